/**
 * Inputs of a job: artifacts of other jobs of its namespace, which are copied into its working directory before each attempt.
 * A request names the job. Its id is stored, so that a later job of that name is never taken for it.
 */
import { AppError, invalid } from '../base/errors.ts';
import { demand, type Viewer } from '../identity/permissions.ts';
import type { Db } from '../platform/database/client.ts';
import type { InputPaths } from './request.ts';
import { isOver } from './state.ts';

/** As stored with the job. */
export type JobInput = InputPaths & { jobId: string };

export function readInputs({ inputs }: { inputs: unknown }): JobInput[] {
  return inputs as JobInput[];
}

/**
 * Finds the jobs that inputs name. A job that has not ended may be named if it will keep artifacts; they are looked for when
 * the new job starts.
 * @throws AppError 400 if a job has no artifacts, 403, 404 naming the field `inputs`
 */
export async function resolveInputs(
  { db }: { db: Db },
  viewer: Viewer,
  namespaceId: string,
  inputs: readonly InputPaths[],
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
  return inputs.map((input) => {
    const job = jobs.find(({ name }) => name === input.job);
    if (!job)
      throw new AppError('not_found', `inputs: there is no job ${input.job} in the namespace`, {
        field: 'inputs',
      });
    demand(viewer, 'job.read', job);
    if (job.artifactBytes === null && (isOver(job.status) || job.outputPath === null))
      throw invalid('inputs', `the job ${input.job} has no artifacts`);
    return { ...input, jobId: job.id };
  });
}

/**
 * Checks that the viewer may run a job again with the inputs of another job, which may have been deleted since.
 * @throws AppError 403, 409 naming the field `inputs`
 */
export async function demandInputs(
  { db }: { db: Db },
  viewer: Viewer,
  inputs: readonly JobInput[],
): Promise<void> {
  if (inputs.length === 0) return;
  const query = {
    where: { id: { in: inputs.map(({ jobId }) => jobId) } },
    select: { id: true, namespaceId: true, repositoryId: true },
  };
  const owners = [
    ...(await db.job.findMany(query)),
    ...(await db.keptArtifacts.findMany({ ...query, where: { ...query.where, removing: false } })),
  ];
  for (const { job, jobId } of inputs) {
    const owner = owners.find(({ id }) => id === jobId);
    if (!owner)
      throw new AppError('conflict', `inputs: the artifacts of the job ${job} were deleted`, {
        field: 'inputs',
      });
    demand(viewer, 'job.read', owner);
  }
}
