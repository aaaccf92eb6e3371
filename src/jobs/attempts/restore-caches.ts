/**
 * Restores the caches of a job into its folders before the command begins. A cache is unpacked into an empty folder beside them
 * and moved to its place as a whole, so a failure leaves nothing, and links of the checkout are never followed. Files that exist
 * are never replaced.
 */
import { createHash } from 'node:crypto';
import { createReadStream, createWriteStream } from 'node:fs';
import { lstat, mkdir, readdir, rename, rm } from 'node:fs/promises';
import { dirname, join, posix } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { hashPaths } from '../../git/disk/checkout.ts';
import { isDatabaseUnavailable } from '../../platform/database/outage.ts';
import { DamagedChunkError } from '../../repositories/lfs/store/store.ts';
import {
  addEntries,
  CannotExtract,
  FolderFull,
  InputFolder,
  type TarEntry,
} from '../artifacts/extract.ts';
import { linkBytes, relativeTarget } from '../artifacts/store.ts';
import { unpackCache } from '../caches/archive.ts';
import { type FoundCache, findCache, recordLookup, removeCache } from '../caches/entries.ts';
import {
  CACHE_RULES,
  expandKey,
  type JobCache,
  type KeyVariables,
  listHashPaths,
  placeOf,
  readCaches,
  UNPACKED,
} from '../caches/request.ts';
import { type CacheScopes, readScopes } from '../caches/scope.ts';
import { type CacheUse, writeCacheUse } from '../caches/use.ts';
import type { Attempt, Deps } from './attempt-row.ts';
import { isTransient } from './retry.ts';

/** The folders that a job gets. */
type Folders = { work: string; home: string };
/** What the job's files may still take. */
type Room = { bytes: number; entries: number };

/**
 * Restores the caches of an attempt, and records which ones. A miss is no error, and neither is a cache that cannot be restored.
 * @throws transient errors; the reason of `signal`
 */
export async function restoreCaches(
  deps: Deps,
  { id, job, machine }: Attempt,
  folders: Folders,
  room: Room,
  signal: AbortSignal,
): Promise<void> {
  const caches = readCaches(job);
  const { repositoryId } = job;
  if (caches.length === 0 || repositoryId === null) return;
  const scopes = await readScopes(deps, job);
  const hashes = await hashPaths(folders.work, listHashPaths(caches), signal);
  const branch = job.branch ?? job.tag ?? '';
  const placed = deps.runner.machines.find((one) => one.id === machine)?.platform;
  const { os, arch } = placed ?? { os: process.platform, arch: process.arch };
  const variables = { branch, os, arch, hashes };
  const uses: CacheUse[] = [];
  for (const cache of caches) {
    const use = await restoreCache(
      deps,
      { attemptId: id, repositoryId, cache, scopes, variables },
      folders,
      room,
      signal,
    );
    if (use.note !== undefined)
      deps.log.info({ job: job.id, key: use.key, path: use.path }, `A cache is ${use.note}`);
    uses.push(use);
  }
  await writeCacheUse(deps, { attemptId: id, jobId: job.id }, uses);
}

type Restore = {
  attemptId: string;
  repositoryId: string;
  cache: JobCache;
  scopes: CacheScopes;
  variables: KeyVariables;
};

async function restoreCache(
  deps: Deps,
  { attemptId, repositoryId, cache, scopes, variables }: Restore,
  folders: Folders,
  room: Room,
  signal: AbortSignal,
): Promise<CacheUse> {
  const { path } = cache;
  const [key = '', ...restoreKeys] = [cache.key, ...cache.restoreKeys].map((one) =>
    expandKey(one, variables),
  );
  const use: CacheUse = { path, key, restoredKey: null, restoredBytes: null, isSaved: false };
  if ([key, ...restoreKeys].some((one) => one.length > CACHE_RULES.keyLength))
    return {
      ...use,
      note: `not restored: its key is longer than ${CACHE_RULES.keyLength} characters`,
    };
  const lookup = { repositoryId, scopes: scopes.read, path, key, restoreKeys };
  const found = await findCache(deps, lookup);
  if (!found) {
    await recordLookup(deps, repositoryId, null);
    deps.metrics.cacheLookedUp('miss');
    return use;
  }
  try {
    await unpack(deps, attemptId, found, path, folders, room, signal);
  } catch (error) {
    signal.throwIfAborted();
    if (isDatabaseUnavailable(error) || isTransient(error)) throw error;
    const isExpected = error instanceof CannotExtract;
    if (!isExpected) deps.log.error({ err: error, cache: found.id }, 'Cannot restore a cache');
    // The next job saves it again.
    if (error instanceof DamagedChunkError) await removeCache(deps, repositoryId, found.id);
    deps.metrics.cacheLookedUp('failed');
    return { ...use, note: `not restored: ${isExpected ? error.message : 'it cannot be read'}` };
  }
  await recordLookup(deps, repositoryId, found.id);
  deps.metrics.cacheLookedUp(found.key === key ? 'hit' : 'partial');
  deps.metrics.cacheBytes('restored', found.size);
  return { ...use, restoredKey: found.key, restoredBytes: found.contentBytes };
}

/** The file of an archive in a folder of `InputCache`. */
const ARCHIVE = 'archive';

/**
 * Opens the archive of a cache. If the storage is not a folder, the archive is first copied to the disk of this machine, where the
 * next jobs with this cache find it, too.
 */
async function openArchive(
  { config, largeFiles, inputCache }: Deps,
  found: FoundCache,
  attemptId: string,
  signal: AbortSignal,
): Promise<AsyncIterable<Buffer>> {
  if (config.storage.kind === 'folder') return (await largeFiles.openStored(found)).pieces;
  const key = `cache-${found.oid}`;
  const dir = await inputCache.acquire({ key, attemptId, signal }, async (empty) => {
    const { pieces } = await largeFiles.openStored(found);
    await pipeline(pieces, createWriteStream(join(empty, ARCHIVE)), { signal });
    return { bytes: found.size, isComplete: true };
  });
  return readVerified(dir, found.oid);
}

/** @param dir is removed if the archive in it is damaged */
async function* readVerified(dir: string, oid: string): AsyncGenerator<Buffer> {
  const hash = createHash('sha256');
  for await (const piece of createReadStream(join(dir, ARCHIVE), { highWaterMark: 2 ** 20 })) {
    hash.update(piece);
    yield piece;
  }
  if (hash.digest('hex') === oid) return;
  await rm(dirname(dir), { recursive: true, force: true });
  throw new Error('the copy of a cache on the disk of this machine is damaged');
}

/** @throws CannotExtract; errors of the storage and the disk; the reason of `signal` */
async function unpack(
  deps: Deps,
  attemptId: string,
  found: FoundCache,
  path: string,
  folders: Folders,
  room: Room,
  signal: AbortSignal,
): Promise<void> {
  const unpacked = join(folders.home, UNPACKED);
  await mkdir(unpacked);
  try {
    const limits = { maxBytes: room.bytes, maxEntries: room.entries, mayHaveGit: true };
    const folder = new InputFolder(unpacked, limits);
    const archive = await openArchive(deps, found, attemptId, signal);
    const onlyFile = await extractTar(unpackCache(archive), folder, signal);
    const { folder: name, inside } = placeOf(path);
    const parents = new InputFolder(folders[name], { ...limits, maxEntries: room.entries + 1_000 });
    await parents.addFolder(
      Buffer.from(posix.dirname(inside)).toString('latin1').replace(/^\.$/, ''),
    );
    const isFile =
      onlyFile !== null && onlyFile === Buffer.from(posix.basename(inside)).toString('latin1');
    const from = Buffer.from(unpacked);
    await moveInto(
      isFile ? Buffer.concat([from, Buffer.from(`/${onlyFile}`, 'latin1')]) : from,
      Buffer.from(join(folders[name], inside)),
    );
    room.bytes -= folder.used.bytes;
    room.entries -= folder.used.entries;
  } finally {
    await rm(unpacked, { recursive: true, force: true });
  }
}

/**
 * Leaves out devices, hard links, and links and names that lead outside.
 * @returns the name of the file if the archive is one file; else null
 */
async function extractTar(
  tar: AsyncIterable<Buffer>,
  folder: InputFolder,
  signal: AbortSignal,
): Promise<string | null> {
  const source = Readable.from(tar, { objectMode: false });
  let count = 0;
  let onlyFile: string | null = null;
  const add = async ({ name, header, contents }: TarEntry) => {
    const isFile = header.type === 'file';
    onlyFile = count++ === 0 && isFile ? name : null;
    if (name === null) return;
    try {
      if (header.type === 'directory') await folder.addFolder(name);
      else if (isFile) await folder.addFile(name, header, contents, signal);
      else if (header.type === 'symlink') {
        const target = relativeTarget(name, linkBytes(header));
        if (target !== null) await folder.addLink(name, target);
      }
    } catch (error) {
      // For example two entries with one name.
      if (!(error instanceof CannotExtract) || error instanceof FolderFull) throw error;
    }
  };
  await addEntries([source], add, signal);
  return onlyFile;
}

/** Moves a file or folder. Folders that exist keep their files. Links are never followed. */
async function moveInto(from: Buffer, to: Buffer): Promise<void> {
  const existing = await lstat(to).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return null;
    throw error;
  });
  if (!existing) return rename(from, to);
  if (!existing.isDirectory() || !(await lstat(from)).isDirectory()) return;
  const below = (folder: Buffer, name: Buffer) => Buffer.concat([folder, Buffer.from('/'), name]);
  for (const name of await readdir(from, { encoding: 'buffer' }))
    await moveInto(below(from, name), below(to, name));
}
