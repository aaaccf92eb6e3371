/**
 * Runs work in the folder of a repository and translates its failures.
 *
 * A missing folder has two causes. Either the repository was just deleted, which is a 404; or the row exists
 * without data, because the data folder belongs to a different database or a disk is not mounted. The operator
 * must repair that, so it is logged once per repository, and the client's error says so.
 */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { LRUCache } from 'lru-cache';
import type pg from 'pg';
import { AppError, busy, type ErrorCode, notFound } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import { defineRemoteCall } from '../cluster/calls.ts';
import type { Cluster } from '../cluster/cluster.ts';
import type { Git } from '../git/git.ts';
import { GitUnavailable } from '../git/processes/run.ts';
import type { Db } from '../platform/database/client.ts';
import { QueueTimeout } from '../platform/limits/fair-semaphore.ts';

type Deps = { db: Db; git: Git; log: Logger };

/** Dependencies for reading a repository on the server that has it. */
export type RepositoryReadDeps = Deps & { pool: pg.Pool; cluster: Cluster };

/** Codes of errors that a missing folder can cause. */
const FOLDER_CODES: readonly ErrorCode[] = ['not_found', 'invalid_request'];

/** Ids of repositories whose missing data has been logged. */
const reported = new LRUCache<string, true>({ max: 10_000 });

/**
 * Runs `work` with the folder of a repository.
 * @throws AppError 404 if the repository was deleted, 500 if its data is missing, 503 if git cannot be started
 *   or too many reads are queued; otherwise the errors of `work`
 */
export async function withRepositoryFolder<T>(
  services: Deps,
  id: string,
  work: (dir: string) => Promise<T>,
): Promise<T> {
  const dir = services.git.disk.pathOf(id);
  try {
    return await work(dir);
  } catch (error) {
    // A missing folder explains any failure, because processes that were already running find no files. They may blame the request.
    const isExplained = error instanceof AppError && !FOLDER_CODES.includes(error.code);
    if (!isExplained && (await isGone(dir))) throw await missingFolderError(services, id, dir);
    if (error instanceof QueueTimeout)
      throw busy('Too many repository reads are in progress; try again later');
    if (!(error instanceof GitUnavailable)) throw error;
    services.log.error({ err: error, repository: id }, 'git could not be started');
    throw busy('The server cannot start git at the moment; try again later');
  }
}

/**
 * Defines an operation on the folder of a repository that can be called on any server; the server that has the
 * repository runs it. Input and output must be serializable, and the operation must be idempotent. `signal` aborts when
 * the caller stops waiting.
 * @throws AppError 404, 500, 503 as for any work in the folder, and errors of `work`
 */
export function defineFolderTask<In, Out>(
  name: string,
  work: (services: Deps, dir: string, input: In, signal?: AbortSignal) => Promise<Out>,
): (services: RepositoryReadDeps, id: string, input: In, signal?: AbortSignal) => Promise<Out> {
  return defineRemoteCall<In, Out>(name, (services, id, input, signal) =>
    withRepositoryFolder(services, id, (dir) => work(services, dir, input, signal)),
  );
}

async function missingFolderError({ db, log }: Deps, id: string, dir: string): Promise<AppError> {
  const row = await db.repository.findUnique({ where: { id }, select: { id: true } });
  if (!row) return notFound('Repository');
  if (!reported.has(id)) {
    reported.set(id, true);
    log.error(
      { repository: id, folder: dir },
      'the data of a repository is missing: check that LOAM_DATA_DIR belongs to this database and that its disk is mounted',
    );
  }
  return new AppError(
    'internal_error',
    "The repository's data is missing on the server. The operator can find the reason in the log.",
  );
}

/**
 * Checks for `HEAD`, which every repository has, because a git process that outlives its repository can
 * recreate folders that it writes into.
 */
async function isGone(dir: string): Promise<boolean> {
  return stat(join(dir, 'HEAD')).then(
    () => false,
    (error) => error.code === 'ENOENT',
  );
}

/** Removes the quarantines of interrupted pushes on the server that has the repository, between its own pushes. */
const removeOnServer = defineRemoteCall<null, null>('removeQuarantines', async ({ git }, id) => {
  await git.quarantines.remove(id);
  return null;
});

/** @throws AppError 503 if that server does not respond */
export async function removeQuarantines(
  services: { db: Db; git: Git; log: Logger; cluster: Cluster },
  id: string,
): Promise<void> {
  await removeOnServer(services, id, null);
}
