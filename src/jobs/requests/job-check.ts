/** Checks a job before it is created, and finds names that are free. */

import { AppError } from '../../base/errors.ts';
import type { Viewer } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import type { createJob } from './jobs.ts';
import { planJob, tryInsertJob } from './jobs.ts';
import { arrayJobName } from './needs.ts';
import { type CreateInput, findWarnings, REQUEST_RULES } from './request.ts';

type Deps = Parameters<typeof createJob>[0];

export type JobCheck = {
  /** The name of the job if it is free, else the name with the next free number. */
  name: string;
  warnings: () => Promise<string[]>;
};

/** Another request may take a free name before the check has ended. */
const NAME_TRIES = 5;

/**
 * Checks everything that `createJob` checks, and changes nothing.
 * @param isUnpushed the job will run a snapshot of `repo` that the client pushes after this check
 * @throws AppError as `createJob`, but not for a taken name
 */
export async function checkJob(
  services: Deps,
  viewer: Viewer,
  input: CreateInput,
  isUnpushed: boolean,
): Promise<JobCheck> {
  const newJob = await planJob(services, viewer, input, isUnpushed);
  const { namespace, request } = newJob;
  for (let tries = 1; ; tries++) {
    const name = await findFreeName(services, namespace.id, request);
    try {
      await tryInsertJob(services, viewer, { ...newJob, request: { ...request, name } });
      return { name, warnings: () => findWarnings(services, request, namespace.id) };
    } catch (error) {
      const isTaken = error instanceof AppError && error.code === 'already_exists';
      if (!isTaken || tries === NAME_TRIES) throw error;
    }
  }
}

type NameRequest = { name: string; array: { size: number } | null };

async function findFreeName(
  services: { db: Db },
  namespaceId: string,
  { name, array }: NameRequest,
): Promise<string> {
  return (await isTaken(services, namespaceId, { name, array }))
    ? findNextName(services, namespaceId, name, array)
    : name;
}

/**
 * Finds a free name: `train-2` for `train`, then `train-3`. The number is found by doubling and bisection, so the thousandth
 * job takes about twenty index lookups. If some numbers below are free, the result need not be the lowest.
 * @param array of the new job: then `train-2-0` and so on are free
 */
export async function findNextName(
  services: { db: Db },
  namespaceId: string,
  base: string,
  array: { size: number } | null = null,
): Promise<string> {
  const suffix = array ? arrayJobName('', array.size - 1).length : 0;
  const nameWith = (n: number) =>
    `${base.slice(0, REQUEST_RULES.name.maxLength - suffix - `-${n}`.length)}-${n}`;
  const isNumberTaken = (n: number) => isTaken(services, namespaceId, { name: nameWith(n), array });
  let free = 2;
  let taken = 1;
  while (await isNumberTaken(free)) {
    taken = free;
    free *= 2;
  }
  while (free - taken > 1) {
    const middle = Math.floor((taken + free) / 2);
    if (await isNumberTaken(middle)) taken = middle;
    else free = middle;
  }
  return nameWith(free);
}

/** Whether a job has the name, or one of the names of the array. */
async function isTaken(
  { db }: { db: Db },
  namespaceId: string,
  { name, array }: NameRequest,
): Promise<boolean> {
  const names = array
    ? Array.from({ length: array.size }, (_, index) => arrayJobName(name, index))
    : [name];
  const found = await db.job.findFirst({
    where: { namespaceId, name: { in: names } },
    select: { id: true },
  });
  return found !== null;
}
