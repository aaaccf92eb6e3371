/** Saves the caches of a job after its command has succeeded. A failure is a line of the log, and never fails the job. */
import { AppError } from '../../base/errors.ts';
import { requireQuota } from '../../platform/limits/quotas.ts';
import { BodyTooLong } from '../../repositories/lfs/store/store.ts';
import { ArtifactsNotKept, type Handle } from '../../runners/runner.ts';
import { packCache } from '../caches/archive.ts';
import { CacheExists, CachesFull, hasCache, insertCache, makeRoom } from '../caches/entries.ts';
import { readCaches, toAbsolutePath } from '../caches/request.ts';
import { readScopes } from '../caches/scope.ts';
import { type CacheUse, findCacheUse, writeCacheUse } from '../caches/use.ts';
import { untilAborted } from '../checkpoints/store.ts';
import type { Attempt, Deps } from './attempt-row.ts';
import { isStoredLater } from './retry.ts';

/** Most trees of packages have fewer. A job may create more files. */
const MAX_ENTRIES = 1_000_000;
/** How often the storage of the namespace is checked while an archive grows. */
const CHECKED_BYTES = 32 * 2 ** 20;
/** Other saves of the repository may take the room that was made. */
const MAX_TRIES = 5;

/**
 * Saves the caches whose key is new.
 * @param isSuccess of the command
 * @returns lines for the log: which caches were not restored or not saved, and why
 */
export async function saveCaches(
  deps: Deps,
  { id, job }: Attempt,
  handle: Handle,
  isSuccess: boolean,
  signal: AbortSignal,
): Promise<string[]> {
  const caches = readCaches(job);
  const { repositoryId } = job;
  if (caches.length === 0 || repositoryId === null) return [];
  const ids = { attemptId: id, jobId: job.id };
  const found = await findCacheUse(deps, ids);
  if (!found) return [];
  const { write: scope } = await readScopes(deps, job);
  const describe = (use: CacheUse) => (use.note ? [`The cache ${use.key} was ${use.note}.`] : []);
  const notes = found.uses.flatMap(describe);
  if (!isSuccess) return notes;
  const uses = [...found.uses];
  for (const [index, use] of found.uses.entries()) {
    if (use.restoredKey === use.key) continue;
    const cache = caches.find(({ path }) => path === use.path);
    const target = { repositoryId, path: use.path, key: use.key };
    let result: boolean | string;
    if (scope === null || cache?.readOnly)
      result = 'only jobs of a branch or tag save caches, if their creator may push to it';
    else if (found.isTouched) result = 'somebody opened a shell in the job';
    else if (deps.config.caches.maxBytes === 0) result = 'the server keeps none (LOAM_CACHE_GB)';
    else if (await hasCache(deps, { ...target, scope })) continue;
    else result = await saveCache(deps, { job, handle, target: { ...target, scope } }, signal);
    signal.throwIfAborted();
    const saved: CacheUse =
      typeof result === 'string'
        ? { ...use, note: `not saved: ${result}` }
        : { ...use, isSaved: result };
    if (typeof result === 'string') notes.push(...describe(saved));
    uses[index] = saved;
    await writeCacheUse(deps, ids, uses);
  }
  return notes;
}

type Target = { repositoryId: string; scope: string; path: string; key: string };

/** @returns whether it was saved; a text: why not */
async function saveCache(
  deps: Deps,
  { job, handle, target }: { job: Attempt['job']; handle: Handle; target: Target },
  signal: AbortSignal,
): Promise<boolean | string> {
  try {
    const path = toAbsolutePath(target.path);
    const reading = deps.runner.artifacts(handle, path, { maxEntries: MAX_ENTRIES });
    // The program of a machine may never answer.
    const tar = await untilAborted(reading, signal);
    if (!tar) return 'nothing exists at its path';
    const counts = { bytes: 0 };
    const archive = whileRoom(deps, job, target, packCache(tar, counts, job.diskGb * 2 ** 30));
    const { maxBytes: atMost } = deps.config.caches;
    const { repositoryId } = target;
    const size = await deps.largeFiles.write(
      repositoryId,
      archive,
      { atMost, signal },
      async (stored) => {
        for (let tries = 1; ; tries++) {
          if (!(await makeRoom(deps, repositoryId, stored.size))) throw new CachesFull();
          try {
            await stored.attach((client, key) =>
              insertCache(deps, client, key, {
                ...target,
                jobId: job.id,
                contentBytes: counts.bytes,
              }),
            );
            return stored.size;
          } catch (error) {
            if (!(error instanceof CachesFull) || tries === MAX_TRIES) throw error;
          }
        }
      },
    );
    deps.metrics.cacheBytes('saved', size);
    return true;
  } catch (error) {
    if (error instanceof CacheExists || signal.aborted) return false;
    if (isStoredLater(error)) throw error;
    if (error instanceof CachesFull || error instanceof BodyTooLong)
      return `it is larger than the caches of a repository may be (LOAM_CACHE_GB)`;
    const isExpected = error instanceof ArtifactsNotKept || error instanceof AppError;
    if (!isExpected) deps.log.error({ err: error, job: job.id }, 'Cannot save a cache');
    return isExpected ? error.message : 'the server failed to store it';
  }
}

/**
 * Passes an archive on as long as the namespace has storage for it. Bytes that are written and then refused would stay until the
 * sweep, and a job could fill the storage with them.
 * @throws AppError 403 `quota_exceeded`
 */
async function* whileRoom(
  deps: Deps,
  { namespaceId, namespace: { plan } }: Attempt['job'],
  { repositoryId }: Target,
  archive: AsyncIterable<Buffer>,
): AsyncGenerator<Buffer> {
  const found = await deps.db.repository.findUnique({
    where: { id: repositoryId },
    select: { cacheBytes: true },
  });
  // More bytes take the place of older caches.
  const added = Math.max(0, deps.config.caches.maxBytes - Number(found?.cacheBytes ?? 0));
  const owner = { id: namespaceId, plan };
  let bytes = 0;
  let checked = 0;
  for await (const piece of archive) {
    bytes += piece.length;
    if (bytes > checked) {
      await requireQuota(deps, owner, 'storageBytes', Math.min(bytes, added));
      checked = bytes + CHECKED_BYTES;
    }
    yield piece;
  }
}
