/**
 * Inputs of a job: artifacts of other jobs of its namespace, which are copied into its working directory before each attempt.
 * A request names the job. The id of the job is stored, because the job can be deleted and its name used again.
 */
import type { JobStatus } from '../../../prisma/generated/enums.ts';
import { AppError, invalid } from '../../base/errors.ts';
import { demand, type Viewer } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import { type MatrixValue, readMatrixValues } from '../record/matrix-values.ts';
import { isOver } from '../record/state.ts';
import { findArrays } from './arrays.ts';
import type { Need } from './needs.ts';
import type { InputPaths } from './request.ts';

/** As stored with the job. `jobId` is null until `linkInputs`; a job that is not linked is found by its name. */
export type JobInput = InputPaths & {
  jobId: string | null;
  /** The array that is an input as a whole, if the job is a part of it; `to` is what the request says. */
  array?: { id: string | null; name: string; to: string };
};

const MAX_ARRAY_JOBS = 1_000;
/** Each job of a new array stores all of its inputs. */
const MAX_STORED = 50_000;

export function readInputs({ inputs }: { inputs: unknown }): JobInput[] {
  return inputs as JobInput[];
}

/** The inputs as they were requested: an array that is an input as a whole is one entry. */
export function foldInputs(inputs: readonly JobInput[]): JobInput[] {
  const seen = new Set<string>();
  return inputs.flatMap((input) => {
    const { array } = input;
    if (!array) return [input];
    const folded = { ...input, job: array.name, jobId: null, to: array.to };
    const key = JSON.stringify([array.name, folded.path, folded.to]);
    if (seen.has(key)) return [];
    seen.add(key);
    return [folded];
  });
}

/** A job that is created together with the new job. */
type Sibling = { name: string; outputPath: string | null; matrixValues: readonly MatrixValue[] };

export type Siblings = {
  jobs: ReadonlyMap<string, Pick<Sibling, 'outputPath'>>;
  /** The jobs of each matrix, by the name of its array. */
  arrays: ReadonlyMap<string, readonly Sibling[]>;
};

const NO_SIBLINGS: Siblings = { jobs: new Map(), arrays: new Map() };

/**
 * Finds the jobs that inputs name. A job that has not ended may be named if it will keep artifacts; they are looked for when
 * the new job starts. The name of an array stands for all its jobs, each of which gets a folder.
 * @param size how many jobs get these inputs
 * @throws AppError 400 if a job has no artifacts, 403, 404 naming the field `inputs`
 */
export async function resolveInputs(
  { db }: { db: Pick<Db, 'job' | 'jobArray'> },
  viewer: Viewer,
  namespaceId: string,
  inputs: readonly InputPaths[],
  { siblings = NO_SIBLINGS, size = 1 }: { siblings?: Siblings; size?: number } = {},
): Promise<JobInput[]> {
  if (inputs.length === 0) return [];
  const names = inputs
    .map(({ job }) => job)
    .filter((name) => !siblings.jobs.has(name) && !siblings.arrays.has(name));
  const jobs = await db.job.findMany({
    where: { namespaceId, name: { in: names } },
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
  const byName = new Map(jobs.map((job) => [job.name, job]));
  const others = names.filter((name) => !byName.has(name));
  const arrays = await findArrays(db, namespaceId, others, (count) => {
    if (count > MAX_ARRAY_JOBS)
      throw invalid('inputs', `arrays must not have more than ${MAX_ARRAY_JOBS} jobs in total`);
  });
  const noArtifacts = (job: string) => invalid('inputs', `the job ${job} has no artifacts`);
  const noArtifactsIn = (array: string) =>
    invalid('inputs', `no job of the array ${array} has artifacts`);
  const found = inputs.flatMap((input): JobInput[] => {
    const sibling = siblings.jobs.get(input.job);
    if (sibling?.outputPath === null) throw noArtifacts(input.job);
    if (sibling) return [{ ...input, jobId: null }];
    const matrix = siblings.arrays.get(input.job);
    if (matrix) {
      if (matrix.every(({ outputPath }) => outputPath === null)) throw noArtifactsIn(input.job);
      return spreadArray(input, null, matrix);
    }
    const job = byName.get(input.job);
    const array = arrays.get(input.job);
    for (const one of job ? [job] : (array?.jobs ?? [])) demand(viewer, 'job.read', one);
    if (job && !mayHaveArtifacts(job)) throw noArtifacts(input.job);
    if (job) return [{ ...input, jobId: job.id }];
    if (!array)
      throw new AppError('not_found', `inputs: there is no job or array ${input.job}`, {
        field: 'inputs',
      });
    if (!array.jobs.some(mayHaveArtifacts)) throw noArtifactsIn(input.job);
    return spreadArray(
      input,
      array.id,
      array.jobs.map((one) => ({ ...one, matrixValues: readMatrixValues(one) })),
    );
  });
  if (found.length * size > MAX_STORED)
    throw invalid('inputs', `must not name more than ${MAX_STORED} jobs, for all jobs of an array`);
  return found;
}

function mayHaveArtifacts(job: {
  status: JobStatus;
  outputPath: string | null;
  artifactBytes: bigint | null;
}): boolean {
  return job.artifactBytes !== null || (!isOver(job.status) && job.outputPath !== null);
}

type Member = {
  id?: string;
  name: string;
  arrayIndex?: number | null;
  matrixValues: readonly MatrixValue[];
};

/** Gives each job of an array a folder of its own below `to`. */
function spreadArray(
  input: InputPaths,
  arrayId: string | null,
  members: readonly Member[],
): JobInput[] {
  const base = input.to === '' || input.to.endsWith('/') ? input.to : `${input.to}/`;
  const array = { id: arrayId, name: input.job, to: base };
  const folders = nameFolders(members);
  return members.map((member, i) => ({
    job: member.name,
    jobId: member.id ?? null,
    path: input.path,
    to: `${base}${folders[i]}/`,
    array,
  }));
}

const MAX_FOLDER = 100;

/**
 * Names the folders of the jobs of an array: by the values of a matrix, such as `seed=1,lr=0.1`, else by the index. Characters
 * that are special in a shell or a file system become `-`. The position of the job, from 1, makes the name unique if it was changed.
 */
export function nameFolders(members: readonly Pick<Member, 'arrayIndex' | 'matrixValues'>[]) {
  const used = new Set<string>();
  return members.map(({ arrayIndex, matrixValues }, i) => {
    const values = matrixValues.map(({ key, value }) => `${key}=${value}`).join(',');
    const wanted = values || `${arrayIndex ?? i}`;
    const safe = wanted.replaceAll(/[^A-Za-z0-9._+=,-]/g, '-').slice(0, MAX_FOLDER);
    const isSame = safe === wanted && !used.has(safe);
    let name = isSame ? safe : `${safe}-${i + 1}`;
    while (used.has(name)) name = `${name}-${i + 1}`;
    used.add(name);
    return name;
  });
}

/** Sets the ids of jobs of the same run, which exist now. A job needs those whose artifacts it takes. */
export function linkInputs(
  inputs: readonly JobInput[],
  needs: readonly Pick<Need, 'id' | 'name' | 'arrayId'>[],
): JobInput[] {
  const byName = new Map(needs.map((need) => [need.name, need]));
  return inputs.map((input) => {
    if (input.jobId !== null) return input;
    const need = byName.get(input.job);
    const { array } = input;
    return {
      ...input,
      jobId: need?.id ?? null,
      ...(array && { array: { ...array, id: need?.arrayId ?? null } }),
    };
  });
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
  const needed = new Set(needs.map(({ id }) => id));
  const arrays = new Map(inputs.map(({ jobId, array }) => [jobId, array]));
  const ids = inputs.flatMap(({ jobId }) => (jobId === null || needed.has(jobId) ? [] : jobId));
  if (ids.length === 0) return [];
  const unfinished = await db.job.findMany({
    where: { id: { in: ids }, status: { in: ['queued', 'running'] } },
    select: { id: true, name: true },
  });
  return unfinished.map((job) => {
    const { id = null, name = null } = arrays.get(job.id) ?? {};
    return { ...job, when: 'succeeded', runJob: name, arrayId: id };
  });
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
  for (const { job, jobId, array } of inputs) {
    const owner = owners.find(({ id, name }) => (jobId === null ? name === job : id === jobId));
    // Of an array, the jobs without artifacts are left out.
    if (!owner && array) continue;
    if (!owner)
      throw new AppError('conflict', `inputs: the artifacts of the job ${job} were deleted`, {
        field: 'inputs',
      });
    demand(viewer, 'job.read', owner);
  }
}
