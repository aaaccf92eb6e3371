/**
 * Inputs of a job: artifacts of other jobs of its namespace, which are copied into its working directory before each attempt.
 * A request names the job. The id of the job is stored, because the job can be deleted and its name used again.
 */
import { AppError, invalid } from '../base/errors.ts';
import { demand, type Viewer } from '../identity/permissions.ts';
import type { Db } from '../platform/database/client.ts';
import type { Need } from './dependencies/request.ts';
import type { InputPaths } from './request.ts';
import { isOver } from './state.ts';

/** As stored with the job. `jobId` is null until `linkInputs`; a job that is not linked is found by its name. */
export type JobInput = InputPaths & { jobId: string | null };

export function readInputs({ inputs }: { inputs: unknown }): JobInput[] {
  return inputs as JobInput[];
}

/**
 * Finds the jobs that inputs name. A job that has not ended may be named if it will keep artifacts; they are looked for when
 * the new job starts.
 * @param siblings jobs that are created together with the new job, by name
 * @throws AppError 400 if a job has no artifacts, 403, 404 naming the field `inputs`
 */
export async function resolveInputs(
  { db }: { db: Db },
  viewer: Viewer,
  namespaceId: string,
  inputs: readonly InputPaths[],
  siblings: ReadonlyMap<string, { outputPath: string | null }> = new Map(),
): Promise<JobInput[]> {
  if (inputs.length === 0) return [];
  const jobs = await db.job.findMany({
    where: { namespaceId, name: { in: inputs.map(({ job }) => job) } },
    select: {
      id: true,
      name: true,
      namespaceId: true,
      repositoryId: true,
      status: true,
      outputPath: true,
      artifactBytes: true,
    },
  });
  const missing = (name: string) => invalid('inputs', `the job ${name} has no artifacts`);
  return inputs.map((input) => {
    const sibling = siblings.get(input.job);
    if (sibling?.outputPath === null) throw missing(input.job);
    if (sibling) return { ...input, jobId: null };
    const job = jobs.find(({ name }) => name === input.job);
    if (!job)
      throw new AppError('not_found', `inputs: there is no job ${input.job} in the namespace`, {
        field: 'inputs',
      });
    demand(viewer, 'job.read', job);
    if (job.artifactBytes === null && (isOver(job.status) || job.outputPath === null))
      throw missing(input.job);
    return { ...input, jobId: job.id };
  });
}

/** Sets the ids of jobs of the same run, which exist now. A job needs those whose artifacts it takes. */
export function linkInputs(
  inputs: readonly JobInput[],
  needs: readonly { id: string; name: string }[],
): JobInput[] {
  return inputs.map((input) => ({
    ...input,
    jobId: input.jobId ?? needs.find(({ name }) => name === input.job)?.id ?? null,
  }));
}

/**
 * Lists the jobs for whose artifacts a new job must wait. Unless it needs them to end otherwise, it needs them to succeed.
 * @param needs what the new job needs already
 */
export async function listInputNeeds(
  { db }: { db: Db },
  inputs: readonly JobInput[],
  needs: readonly Need[],
): Promise<Need[]> {
  const ids = inputs
    .flatMap(({ jobId }) => jobId ?? [])
    .filter((jobId) => !needs.some(({ id }) => id === jobId));
  if (ids.length === 0) return [];
  const unfinished = await db.job.findMany({
    where: { id: { in: ids }, status: { in: ['queued', 'running'] } },
    select: { id: true, name: true },
  });
  return unfinished.map((job) => ({ ...job, when: 'succeeded', runJob: null, arrayId: null }));
}

/**
 * Checks that the viewer may run a job again with the inputs of another job, which may have been deleted since.
 * @throws AppError 403, 409 naming the field `inputs`
 */
export async function demandInputs(
  { db }: { db: Db },
  viewer: Viewer,
  namespaceId: string,
  inputs: readonly JobInput[],
): Promise<void> {
  if (inputs.length === 0) return;
  const ids = inputs.flatMap(({ jobId }) => jobId ?? []);
  const names = inputs.flatMap(({ job, jobId }) => (jobId === null ? [job] : []));
  const select = { id: true, name: true, namespaceId: true, repositoryId: true } as const;
  const owners = [
    ...(await db.job.findMany({
      where: { OR: [{ id: { in: ids } }, { namespaceId, name: { in: names } }] },
      select,
    })),
    ...(await db.keptArtifacts.findMany({ where: { id: { in: ids }, removing: false }, select })),
  ];
  for (const { job, jobId } of inputs) {
    const owner = owners.find(({ id, name }) => (jobId === null ? name === job : id === jobId));
    if (!owner)
      throw new AppError('conflict', `inputs: the artifacts of the job ${job} were deleted`, {
        field: 'inputs',
      });
    demand(viewer, 'job.read', owner);
  }
}
