/** What a request says about other jobs: needs, an array, and a concurrency group. */
import type { GroupConflict, NeedCondition } from '../../../prisma/generated/enums.ts';
import { AppError, invalid } from '../../base/errors.ts';
import { demand, type Viewer } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import { findArrays } from './arrays.ts';

export type DependencyInput = {
  needs?: readonly NeedRequest[] | null;
  array?: { size: number; maxParallel?: number | null } | null;
  concurrency?: { group: string; onConflict?: GroupConflict | null } | null;
};

/** @param job the name of a job of the same namespace */
export type NeedRequest = { job: string; when?: NeedCondition | null };

/** A need of an existing job. @param runJob and `arrayId`: see the model `JobNeed` */
export type Need = {
  id: string;
  name: string;
  when: NeedCondition;
  runJob: string | null;
  arrayId: string | null;
};

export type ArrayRequest = { size: number; maxParallel: number | null };

export const DEPENDENCY_RULES = {
  maxNeeds: 100,
  maxArraySize: 10_000,
  /** The command, variables and secrets of an array are stored with each of its jobs. */
  maxArrayBytes: 256 * 2 ** 20,
  /** Each job has a row for each job that it needs. */
  maxArrayNeeds: 50_000,
  /** The names of branches, which groups may contain, have at most 255 bytes. */
  groupBytes: 500,
} as const;

/**
 * @param job the checked fields that are stored with each job of an array
 * @throws AppError 400
 */
export function checkDependencies(
  { needs, array, concurrency }: DependencyInput,
  job: { name: string; command: string; env: object; secrets: object },
) {
  return {
    needs: checkNeeds(needs ?? []),
    array: array == null ? null : checkArray(array, job, needs?.length ?? 0),
    concurrencyGroup: concurrency == null ? null : checkGroup(concurrency.group),
    onConflict: concurrency == null ? null : (concurrency.onConflict ?? 'queue'),
  };
}

function checkNeeds(needs: readonly NeedRequest[]): Required<NeedRequest>[] {
  if (needs.length > DEPENDENCY_RULES.maxNeeds)
    throw invalid('needs', `must not have more than ${DEPENDENCY_RULES.maxNeeds} entries`);
  const names = new Set<string>();
  return needs.map(({ job, when }) => {
    if (names.has(job)) throw invalid('needs', `${job} is given more than once`);
    names.add(job);
    return { job, when: when ?? 'succeeded' };
  });
}

function checkArray(
  { size, maxParallel }: NonNullable<DependencyInput['array']>,
  { name, ...stored }: { name: string; command: string; env: object; secrets: object },
  needs: number,
): ArrayRequest {
  const { maxArraySize, maxArrayBytes, maxArrayNeeds } = DEPENDENCY_RULES;
  if (size < 1 || size > maxArraySize)
    throw invalid('array', `size must be from 1 to ${maxArraySize}`);
  if (maxParallel != null && (maxParallel < 1 || maxParallel > size))
    throw invalid('array', 'maxParallel must be from 1 to size');
  if (size * needs > maxArrayNeeds) throw tooManyNeeds();
  const longest = arrayJobName(name, size - 1);
  if (longest.length > 100)
    throw invalid(
      'name',
      `is too long for this array: the name of its last job, ${longest}, must not be longer than 100 characters`,
    );
  const bytes = size * Buffer.byteLength(JSON.stringify(stored));
  if (bytes > maxArrayBytes)
    throw invalid(
      'array',
      `the command, env and secrets of all its jobs must not be longer than ${maxArrayBytes / 2 ** 20} MiB in total`,
    );
  return { size, maxParallel: maxParallel ?? null };
}

function tooManyNeeds(): AppError {
  const { maxArrayNeeds } = DEPENDENCY_RULES;
  return invalid(
    'needs',
    `must not name more than ${maxArrayNeeds} jobs, for all jobs of an array`,
  );
}

export function arrayJobName(name: string, index: number): string {
  return `${name}-${index}`;
}

function checkGroup(group: string): string {
  const { groupBytes } = DEPENDENCY_RULES;
  if (!group.isWellFormed() || /\p{Cc}/u.test(group))
    throw invalid('concurrency', 'group must be text without control characters');
  if (!group || Buffer.byteLength(group) > groupBytes)
    throw invalid('concurrency', `group must have 1 to ${groupBytes} bytes`);
  return group;
}

/**
 * Finds the jobs that needs name: one job, or all jobs of an array. A new job can only need jobs that exist, and needs never
 * change, so there are no circles.
 * @param size how many jobs get these needs
 * @throws AppError 400, 403, 404 naming the field `needs`
 */
export async function resolveNeeds(
  { db }: { db: Db },
  viewer: Viewer,
  namespaceId: string,
  { needs, size }: { needs: readonly Required<NeedRequest>[]; size: number },
): Promise<Need[]> {
  if (needs.length === 0) return [];
  const jobs = await db.job.findMany({
    where: { namespaceId, name: { in: needs.map(({ job }) => job) } },
    select: { id: true, name: true, namespaceId: true, repositoryId: true },
  });
  const byName = new Map(jobs.map((job) => [job.name, job]));
  const others = needs.flatMap(({ job }) => (byName.has(job) ? [] : job));
  const arrays = await findArrays(db, namespaceId, others, (count) => {
    if ((jobs.length + count) * size > DEPENDENCY_RULES.maxArrayNeeds) throw tooManyNeeds();
  });
  return needs.flatMap(({ job: name, when: condition }): Need[] => {
    const when = condition ?? 'succeeded';
    const job = byName.get(name);
    const array = arrays.get(name);
    for (const one of job ? [job] : (array?.jobs ?? [])) demand(viewer, 'job.read', one);
    if (job) return [{ id: job.id, name, when, runJob: null, arrayId: null }];
    if (!array) throw neededJobMissing(name);
    const deleted = array.size - array.jobs.length;
    if (deleted > 0 && when !== 'finished') throw neededJobsDeleted(name, deleted);
    return array.jobs.map((one) => ({
      id: one.id,
      name: one.name,
      when,
      runJob: array.name,
      arrayId: array.id,
    }));
  });
}

/** How deleted jobs ended is not known, so they must not count as succeeded. */
function neededJobsDeleted(name: string, count: number): AppError {
  const message = `needs: ${count} of the jobs of the array ${name} were deleted, so it can be needed with the condition "finished" only`;
  return new AppError('not_found', message, { field: 'needs' });
}

export function neededJobMissing(name: string): AppError {
  const message = `needs: there is no job or array ${name} in the namespace`;
  return new AppError('not_found', message, { field: 'needs' });
}
