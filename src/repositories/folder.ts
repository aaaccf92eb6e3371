/**
 * Work in the folder of a repository, and what is said when that cannot be done.
 *
 * A folder that is gone has two reasons. Either the repository was deleted meanwhile, which is a 404; or it
 * has a row and no data: a data folder that does not belong to the database, or a disk that is not mounted.
 * The operator has to repair that, so it is logged, once a repository, and the client's error says so.
 */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { LRUCache } from 'lru-cache';
import type pg from 'pg';
import { AppError, busy, notFound } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import { onServerOf } from '../cluster/calls.ts';
import type { Cluster } from '../cluster/cluster.ts';
import type { Git } from '../git/git.ts';
import { GitUnavailable } from '../git/processes/run.ts';
import type { Db } from '../platform/database/client.ts';
import { QueueTimeout } from '../platform/limits/fair-semaphore.ts';

type Deps = { db: Db; git: Git; log: Logger };

/** What reading a repository takes, on whichever server. */
export type Reads = Deps & { pool: pg.Pool; cluster: Cluster };

/** Ids of repositories whose data is missing and that the log has named. */
const reported = new LRUCache<string, true>({ max: 10_000 });

/**
 * Runs `work` with the folder of a repository.
 * @throws AppError 404 when the repository was deleted meanwhile, 500 when its data is missing, 503 when git
 * cannot be started now; else what `work` throws.
 */
export async function inFolder<T>(
  services: Deps,
  id: string,
  work: (dir: string) => Promise<T>,
): Promise<T> {
  const dir = services.git.disk.pathOf(id);
  try {
    return await work(dir);
  } catch (error) {
    // Where the folder is gone, that is why anything failed: processes that were started before find nothing.
    const explained = error instanceof AppError && error.code !== 'not_found';
    if (!explained && (await isGone(dir))) throw await whyGone(services, id, dir);
    if (error instanceof QueueTimeout)
      throw busy('Too much is read from repositories at the moment');
    if (!(error instanceof GitUnavailable)) throw error;
    services.log.error({ err: error, repository: id }, 'git could not be started');
    throw busy('The server cannot read repositories at the moment');
  }
}

/**
 * Work in the folder of a repository, to be called on any server: the one that has the repository does it. What goes
 * in and comes out must be data, and to do it twice must do no harm. `signal` aborts when nobody waits for it any more.
 * @throws as `inFolder`
 */
export function folderWork<In, Out>(
  name: string,
  work: (services: Deps, dir: string, input: In, signal?: AbortSignal) => Promise<Out>,
): (services: Reads, id: string, input: In, signal?: AbortSignal) => Promise<Out> {
  return onServerOf<In, Out>(name, (services, id, input, signal) =>
    inFolder(services, id, (dir) => work(services, dir, input, signal)),
  );
}

async function whyGone({ db, log }: Deps, id: string, dir: string): Promise<AppError> {
  const row = await db.repository.findUnique({ where: { id }, select: { id: true } });
  if (!row) return notFound('Repository');
  if (!reported.has(id)) {
    reported.set(id, true);
    log.error(
      { repository: id, folder: dir },
      'the data of a repository is missing: does LOAM_DATA_DIR belong to this database?',
    );
  }
  return new AppError(
    'internal_error',
    "The repository's data is missing on the server; its operator can find the reason in the log",
  );
}

/**
 * By what every repository has: a process of git that goes on after its repository was removed makes the folders anew that
 * it writes into.
 */
async function isGone(dir: string): Promise<boolean> {
  return stat(join(dir, 'HEAD')).then(
    () => false,
    (error) => error.code === 'ENOENT',
  );
}

/** What was left of pushes to a repository that were cut off is removed by the server that has it, between its own pushes. */
const remove = onServerOf<null, null>('removeQuarantines', async ({ git }, id) => {
  await git.quarantines.remove(id);
  return null;
});

/** @throws AppError 503 when that server does not answer */
export async function removeQuarantines(
  services: { db: Db; git: Git; log: Logger; cluster: Cluster },
  id: string,
): Promise<void> {
  await remove(services, id, null);
}
