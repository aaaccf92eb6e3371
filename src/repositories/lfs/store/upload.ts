/**
 * Receives an object: splits and hashes its bytes while they arrive, writes new chunks into packs, and adds the object
 * to the repository in one transaction when size and SHA-256 match. Until then the object cannot be read.
 */
import type pg from 'pg';
import type { Config } from '../../../base/config/config.ts';
import { AppError, unprocessable } from '../../../base/errors.ts';
import type { Logger } from '../../../base/log.ts';
import type { DiskSpace } from '../../../platform/storage/disk-space.ts';
import type { Storage } from '../../../platform/storage/storage.ts';
import { hashKey } from './chunking.ts';
import { BodyTooLong, BodyTooShort, type Chunk, type HashingPool } from './hashing.ts';
import { addChunks, findKnownChunks, moveChunks, PackWriter, type WriteChunks } from './packs.ts';
import {
  type ChunkLocation,
  DamagedChunkError,
  groupIntoRuns,
  locateChunks,
  readRun,
} from './read.ts';
import { decodeEntries, Recipe } from './recipes.ts';
import {
  attachObject,
  beginUpload,
  cancelUpload,
  markRepaired,
  type NewObject,
  touchObject,
} from './references.ts';

export type UploadDeps = {
  pool: pg.Pool;
  storage: Storage;
  config: Config;
  space: DiskSpace;
  log: Logger;
  hashing: HashingPool;
};

/** The part of a resumable upload that stays stored when the upload is interrupted. */
type ResumeState = {
  /** Number of stored bytes; Infinity if a concurrent upload of the object has stored more. */
  kept(): number;
  /** Stores the recipe, all of whose chunks are in the store. */
  save(storeId: number, recipe: Recipe): Promise<void>;
  /** Deletes the stored part. */
  drop(): Promise<void>;
};

/** A killed server loses at most this many received bytes of a resumable upload. */
const SAVE_INTERVAL_BYTES = 32 * 2 ** 20;
/** Shorter parts are not stored. */
const MIN_SAVED_BYTES = 2 ** 20;

/**
 * The recipe of an object of this size takes 200 MB of memory, one of 5 GB 15 MB. Clients cannot force smaller chunks,
 * because the boundaries depend on a secret.
 */
const MAX_BYTES = 64 * 2 ** 30;
const OID = /^[0-9a-f]{64}$/;

/**
 * @param progress for a resumable upload, whose body starts with the stored part
 * @throws AppError 403 `quota_exceeded`, 404, 422 if the bytes do not match, 500 on a full disk, 503
 */
export async function upload(
  deps: UploadDeps,
  repositoryId: string,
  object: NewObject,
  body: AsyncIterable<Uint8Array>,
  signal: AbortSignal,
  progress?: ResumeState,
): Promise<void> {
  const { oid, size } = object;
  if (!OID.test(oid))
    throw unprocessable('oid', 'must be a SHA-256: 64 characters from 0-9 and a-f');
  if (!Number.isInteger(size) || size < 0 || size > MAX_BYTES)
    throw unprocessable('size', `must be a number of bytes from 0 to ${MAX_BYTES}`);
  deps.space.demand();
  const storeId = await beginUpload(deps, repositoryId, object);
  const to = { repositoryId, storeId, object };
  try {
    await receive(deps, to, body, signal, progress);
  } catch (error) {
    await cancelUpload(deps, repositoryId, oid).catch((err) => {
      deps.log.warn(
        { err },
        'could not release the storage reservation of a large-file upload; it ends after LOAM_LFS_GRACE_HOURS',
      );
    });
    throw error;
  }
}

type Target = { repositoryId: string; storeId: number; object: NewObject };

async function receive(
  deps: UploadDeps,
  { repositoryId, storeId, object }: Target,
  body: AsyncIterable<Uint8Array>,
  signal: AbortSignal,
  progress?: ResumeState,
): Promise<void> {
  const { oid, size } = object;
  const found = await touchObject(deps, storeId, oid);
  // A resumable upload stores its part in any case: the resume offset must not reveal that the store has the object.
  const isKnown = !progress && found === 'all';
  const lost = found === 'damaged' ? await findDamagedChunks(deps, { storeId, oid }, signal) : null;
  // A resumable upload finishes storing the received bytes after its client has disconnected.
  const until = progress ? NEVER : signal;
  const writeChunks = lost ? replaceChunks : addChunks;
  const packs = isKnown ? null : new PackWriter(deps, storeId, until, writeChunks);
  const recipe = isKnown ? null : new Recipe();
  /** Bytes whose chunks are all in the store or in packs. */
  let taken = 0;
  const save = async () => {
    if (!progress || !packs || !recipe) return;
    // An offset at the end would mean that the repository has the object.
    if (recipe.size !== taken || taken >= size) return;
    await packs.finish();
    await progress.save(storeId, recipe);
  };
  const unsaved = () => taken - (progress?.kept() ?? taken);
  try {
    // For an object that the store has, hashing the body suffices: the client proves that it has the bytes.
    const hashed = deps.hashing.hash(body, { size, cutting: !isKnown, signal });
    for await (const { chunks, oid: found, free } of hashed) {
      if (found !== undefined && found !== oid)
        throw unprocessable('oid', `must be the SHA-256 of the bytes, which is ${found}`);
      if (packs && recipe) await storeNewChunks(deps, storeId, chunks, { packs, recipe, lost });
      free();
      taken = recipe?.size ?? 0;
      if (unsaved() >= SAVE_INTERVAL_BYTES) await save();
    }
    await packs?.finish();
    signal.throwIfAborted();
    if (lost) await markRepaired(deps, { storeId, oid });
    await attachObject(deps, repositoryId, storeId, object, recipe);
  } catch (error) {
    const refusal = toUploadError(error, size);
    const isWrong =
      error instanceof DamagedChunkError ||
      (refusal instanceof AppError && refusal.status === 422 && !(error instanceof BodyTooShort));
    await keepOrDiscard(isWrong).catch((err) => {
      deps.log.warn(
        { err },
        'could not keep or remove the chunks of an interrupted large-file upload',
      );
    });
    throw refusal;
  }

  /** Keeps the received bytes of a resumable upload, and removes them otherwise. */
  async function keepOrDiscard(isWrong: boolean): Promise<void> {
    try {
      if (isWrong) await progress?.drop();
      else if (unsaved() >= MIN_SAVED_BYTES) await save();
    } finally {
      // A concurrent upload that has stored more (Infinity) does not reference the chunks of this one.
      const isKept = progress !== undefined && !isWrong && Number.isFinite(progress.kept());
      await packs?.abandon(isKept);
    }
  }
}

const NEVER = new AbortController().signal;

/** Adds the chunks to the recipe, and stores the chunks that the store does not have or has `lost`. */
export async function storeNewChunks(
  deps: UploadDeps,
  storeId: number,
  chunks: readonly Chunk[],
  { packs, recipe, lost }: { packs: PackWriter; recipe: Recipe; lost: ReadonlySet<string> | null },
): Promise<void> {
  for (const { hash, bytes } of chunks) recipe.add({ hash, length: bytes.length });
  const candidates = chunks.filter(({ hash }) => !packs.has(hashKey(hash)));
  if (candidates.length === 0) return;
  const hashes = candidates.map(({ hash }) => hash);
  const known = await findKnownChunks(deps, storeId, hashes);
  // A batch may contain a chunk twice.
  const newChunks = new Map<string, Chunk>();
  for (const chunk of candidates) {
    const key = hashKey(chunk.hash);
    const isStored = known.has(key) && !lost?.has(key);
    if (!isStored && !newChunks.has(key)) newChunks.set(key, chunk);
  }
  await packs.add([...newChunks.values()]);
}

function toUploadError(error: unknown, size: number): unknown {
  if (error instanceof BodyTooLong)
    return unprocessable('size', `is ${size}, but the body has more bytes`);
  if (error instanceof BodyTooShort)
    return unprocessable('size', `is ${size}, but the body has ${error.bytes} bytes`);
  return error;
}

/**
 * The chunks that the storage has lost or changed, of objects that nothing holds any more. Those of a cache that could not be read
 * would otherwise be taken for stored by each job that saves it again.
 */
export async function findLostChunks(
  deps: UploadDeps,
  storeId: number,
  signal: AbortSignal,
): Promise<ReadonlySet<string>> {
  const { rows } = await deps.pool.query<{ oid: string }>(
    'select oid from large_objects where store_id = $1 and holders = 0 and damaged',
    [storeId],
  );
  let lost: ReadonlySet<string> = new Set();
  for (const { oid } of rows)
    lost = lost.union(await findDamagedChunks(deps, { storeId, oid }, signal));
  return lost;
}

/** Reads the whole object and returns the `hashKey` of each chunk that the storage has lost or changed. */
async function findDamagedChunks(
  deps: UploadDeps,
  { storeId, oid }: { storeId: number; oid: string },
  signal: AbortSignal,
): Promise<ReadonlySet<string>> {
  const damaged = new Set<string>();
  for (let after = -1; ; ) {
    signal.throwIfAborted();
    const { rows } = await deps.pool.query<{ start: string; chunks: Buffer }>(
      `select start, chunks from large_recipes where store_id = $1 and oid = $2 and start > $3
       order by start limit 1`,
      [storeId, oid, after],
    );
    const [page] = rows;
    if (!page) return damaged;
    for (const run of groupIntoRuns(await locateChunks(deps, storeId, decodeEntries(page.chunks))))
      for await (const { hash } of findDamagedInRun(deps, run)) damaged.add(hashKey(hash));
    after = Number(page.start);
  }
}

async function* findDamagedInRun(
  deps: UploadDeps,
  run: readonly ChunkLocation[],
): AsyncGenerator<ChunkLocation> {
  for (let at = 0; at < run.length; ) {
    const begun = at;
    try {
      for await (const { chunks, free } of readRun(deps, run.slice(at), deps.hashing.verifier)) {
        at += chunks.length;
        free();
      }
      // The pack is missing.
      if (at === begun) return yield* run.slice(at);
    } catch (error) {
      const { location } = error instanceof DamagedChunkError ? error : {};
      if (!location) throw error;
      yield location;
      // The chunks before it in the batch are intact.
      at = run.indexOf(location) + 1;
    }
  }
}

/** Like `addChunks`, but points chunks that the store has to the new pack as well. */
export const replaceChunks: WriteChunks = async (client, storeId, pack) => {
  await moveChunks(client, storeId, pack, null);
  return addChunks(client, storeId, pack);
};
