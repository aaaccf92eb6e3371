/**
 * Reads objects and chunks. Adjacent chunks of a pack form a run, which is read in batches of 1 MiB. Each chunk is
 * verified against its SHA-256 before its bytes are returned.
 */
import { Readable } from 'node:stream';
import type pg from 'pg';
import type { Logger } from '../../../base/log.ts';
import type { RangeReader, Storage } from '../../../platform/storage/storage.ts';
import {
  BufferPool,
  type ChunkBatch,
  findDamagedChunk,
  HASH_BYTES,
  HEADROOM,
  hashKey,
} from './chunking.ts';
import { decodeEntries, type RecipeEntry } from './recipes.ts';
import { markDamaged, type StoredKey } from './references.ts';

type Deps = StorageDeps & { pool: pg.Pool; hashing: { verifier: ChunkVerifier } };

/** In bytes, the end excluded. */
export type Range = { start: number; end: number };

/** A pack may be rewritten between the lookup of its chunks and the read. */
const MAX_LOOKUPS = 5;

/** An object to be read, either by `pieces` or by `body`. */
export type OpenedObject = {
  /** Of the whole object, in bytes. */
  size: number;
  /** A piece is valid until the next one is requested. A caller that stops early must call `return`. */
  pieces: AsyncGenerator<Buffer>;
  /** A stream of copies of the pieces. A caller that stops early must destroy it. */
  body(): Readable;
};

/**
 * Returns null if the repository does not have the object. Later failures are thrown by `pieces` or destroy the stream.
 * @throws RangeError for a range outside of the object; DamagedChunkError; errors of the storage
 */
export async function openObject(
  deps: Deps,
  repositoryId: string,
  oid: string,
  range?: Range,
): Promise<OpenedObject | null> {
  const { rows } = await deps.pool.query<{ storeId: number; size: string }>({
    name: 'loam-find-large-file',
    text: `select store_id as "storeId", size from large_files where repository_id = $1 and oid = $2`,
    values: [repositoryId, oid],
  });
  const [row] = rows;
  return row
    ? openStored(deps, { storeId: row.storeId, oid, size: Number(row.size) }, range)
    : null;
}

/**
 * Opens an object whose holder the caller has read.
 * @throws as `openObject`
 */
export async function openStored(
  deps: Deps,
  { storeId, oid, size }: StoredKey,
  range?: Range,
): Promise<OpenedObject> {
  const { start, end } = range ?? { start: 0, end: size };
  if (!(start >= 0 && start <= end && end <= size))
    throw new RangeError(`The range ${start} to ${end} is outside of an object of ${size} bytes`);
  const contents = read(deps, { storeId, oid }, { start, end });
  // Reads the first piece now, so that an unreadable object fails before a response has begun.
  const first = await contents.next();
  const pieces = (async function* () {
    try {
      if (!first.done) yield first.value;
      yield* contents;
    } finally {
      // Needed if the caller stops at the first piece: `contents` holds an open file.
      await contents.return(undefined);
    }
  })();
  const body = () => {
    const copies = (async function* () {
      for await (const piece of pieces) yield Buffer.from(piece);
    })();
    const stream = Readable.from(copies, { objectMode: false });
    // Needed if the stream was never read: returning a generator that has not started does not end its source.
    stream.once('close', () => void contents.return(undefined).catch(() => {}));
    return stream;
  };
  return { size, pieces, body };
}

type Key = { storeId: number; oid: string };

async function* read(deps: Deps, key: Key, range: Range): AsyncGenerator<Buffer> {
  try {
    yield* readPages(deps, key, range);
  } catch (error) {
    if (error instanceof DamagedChunkError) await markDamaged(deps, key);
    throw error;
  }
}

async function* readPages(deps: Deps, key: Key, { start, end }: Range): AsyncGenerator<Buffer> {
  let at = start;
  while (at < end) {
    const page = await findRecipePage(deps, key, at);
    let from = page.start;
    const wanted: RecipeEntry[] = [];
    /** Bytes of the first wanted chunk that come before the range. */
    let before = 0;
    for (const entry of decodeEntries(page.chunks)) {
      const to = from + entry.length;
      if (to > at && from < end) {
        if (wanted.length === 0) before = at - from;
        wanted.push(entry);
      }
      from = to;
    }
    for await (const { bytes, free } of readChunks(deps, key.storeId, wanted)) {
      const part = bytes.subarray(before, before + end - at);
      before = 0;
      at += part.length;
      yield part;
      free();
    }
  }
}

async function findRecipePage({ pool }: Deps, { storeId, oid }: Key, at: number) {
  const { rows } = await pool.query<{ start: string; chunks: Buffer }>({
    name: 'loam-recipe-page',
    text: `
      select start, chunks from large_recipes where store_id = $1 and oid = $2 and start <= $3
      order by start desc limit 1`,
    values: [storeId, oid, at],
  });
  const [page] = rows;
  const bytes = page ? decodeEntries(page.chunks).reduce((sum, { length }) => sum + length, 0) : 0;
  // The page is missing if the object was removed during the read.
  if (!page || Number(page.start) + bytes <= at)
    throw new DamagedChunkError(`The recipe of ${oid} has no chunk at byte ${at}`);
  return { start: Number(page.start), chunks: page.chunks };
}

/** Reads chunks in the given order. Adjacent chunks of a pack are read together. */
export async function* readChunks(
  deps: Deps,
  storeId: number,
  wanted: readonly RecipeEntry[],
): AsyncGenerator<VerifiedChunks> {
  let done = 0;
  for (let tries = 1; done < wanted.length; tries++) {
    const locations = await locateChunks(deps, storeId, wanted.slice(done));
    for (const run of groupIntoRuns(locations)) {
      let isPackMissing = true;
      for await (const batch of readRun(deps, run, deps.hashing.verifier)) {
        isPackMissing = false;
        done += batch.chunks.length;
        yield batch;
      }
      if (!isPackMissing) tries = 0;
      else if (tries === MAX_LOOKUPS)
        throw logDamage(deps, run[0] as ChunkLocation, 'its pack is missing');
      else break;
    }
  }
}

/** @throws DamagedChunkError for a chunk that is not in the database, or has another length */
export async function locateChunks(
  { pool }: Deps,
  storeId: number,
  wanted: readonly RecipeEntry[],
): Promise<ChunkLocation[]> {
  const { rows } = await pool.query<ChunkLocation>({
    name: 'loam-locate-chunks',
    text: `
      select c.hash, p.key, c.start, c.length from large_chunks c join large_packs p on p.id = c.pack_id
      where c.store_id = $1 and c.hash = any($2)`,
    values: [storeId, wanted.map(({ hash }) => hash)],
  });
  const known = new Map(rows.map((row) => [hashKey(row.hash), row]));
  return wanted.map(({ hash, length }) => {
    const location = known.get(hashKey(hash));
    if (location?.length !== length)
      throw new DamagedChunkError(`Chunk ${hash.toString('hex')} is missing`);
    return location;
  });
}

type StorageDeps = { storage: Storage; log: Logger };

/** The storage has lost or changed the bytes of a chunk. */
export class DamagedChunkError extends Error {
  override name = 'DamagedChunkError';
  /** Undefined for a chunk that is not in the database. */
  readonly location?: ChunkLocation;

  constructor(message: string, location?: ChunkLocation) {
    super(message);
    this.location = location;
  }
}

/** `key`: storage key of the pack. */
export type ChunkLocation = { hash: Buffer; key: string; start: number; length: number };

export type ChunkVerifier = {
  buffers: BufferPool;
  /**
   * `damaged`: index of the first chunk whose SHA-256 differs, or -1. The returned `buffer` replaces the passed one.
   */
  verify(chunks: ChunkBatch): Promise<{ buffer: ArrayBufferLike; damaged: number }>;
};

/** Bytes that are read and verified together. */
export const READ_BATCH_BYTES = 2 ** 20;

/** Verifies in the calling thread: 2 ms per MiB. */
export const inlineVerifier: ChunkVerifier = {
  buffers: new BufferPool({ bytes: HEADROOM + READ_BATCH_BYTES, most: 3 }),
  verify: async (chunks) => ({ buffer: chunks.buffer, damaged: findDamagedChunk(chunks) }),
};

/** Consecutive verified chunks of a run. */
type VerifiedChunks = {
  /** Adjacent in memory. */
  chunks: Buffer[];
  /** All chunks as one buffer. */
  bytes: Buffer;
  /** Returns the memory of the chunks to the pool. */
  free(): void;
};

export function groupIntoRuns(locations: readonly ChunkLocation[]): ChunkLocation[][] {
  const runs: ChunkLocation[][] = [];
  for (const location of locations) {
    const before = runs.at(-1)?.at(-1);
    if (before?.key === location.key && before.start + before.length === location.start)
      runs.at(-1)?.push(location);
    else runs.push([location]);
  }
  return runs;
}

/**
 * Reads a run, and verifies one batch ahead of the consumer. Yields nothing if the pack is gone.
 * @throws DamagedChunkError
 */
export async function* readRun(
  deps: StorageDeps,
  run: readonly ChunkLocation[],
  { verify, buffers }: ChunkVerifier,
): AsyncGenerator<VerifiedChunks> {
  const [first, last] = [run[0] as ChunkLocation, run.at(-1) as ChunkLocation];
  const bounds = { start: first.start, end: last.start + last.length - 1 };
  const reading = await deps.storage.read(first.key, bounds);
  if (!reading) return;
  await using _ = reading;
  const verifyBatch = async ({ locations, ...chunks }: ReadBatch): Promise<VerifiedChunks> => {
    const { start, ends } = chunks;
    const { buffer, damaged } = await verify(chunks);
    if (damaged >= 0)
      throw logDamage(
        deps,
        locations[damaged] as ChunkLocation,
        'its bytes differ from those that were stored',
      );
    const part = (from: number, to: number) => Buffer.from(buffer, from, to - from);
    return {
      chunks: locations.map((_, i) =>
        part(i === 0 ? start : (ends[i - 1] as number), ends[i] as number),
      ),
      bytes: part(start, ends.at(-1) ?? start),
      free: () => buffers.release(buffer),
    };
  };
  let before: Promise<VerifiedChunks> | undefined;
  for await (const batch of readBatches(deps, reading, run, buffers)) {
    const now = verifyBatch(batch);
    // Awaited in the next round; until then a rejection counts as handled.
    now.catch(() => {});
    if (before) yield await before;
    before = now;
  }
  if (before) yield await before;
}

type ReadBatch = ChunkBatch & { locations: readonly ChunkLocation[] };

/** @throws DamagedChunkError if the pack ends before the run */
async function* readBatches(
  deps: StorageDeps,
  reading: RangeReader,
  run: readonly ChunkLocation[],
  buffers: BufferPool,
): AsyncGenerator<ReadBatch> {
  let left = run.reduce((sum, { length }) => sum + length, 0);
  let rest = new Uint8Array();
  for (let at = 0; at < run.length; ) {
    const room = HEADROOM + Math.min(READ_BATCH_BYTES, left);
    const batch = Buffer.from(buffers.acquire(room), 0, room);
    const start = HEADROOM - rest.length;
    batch.set(rest, start);
    const end = HEADROOM + (await fillBuffer(batch.subarray(HEADROOM), reading));
    left -= end - HEADROOM;
    const ends: number[] = [];
    for (let to = start; ends.length < run.length - at; ends.push(to)) {
      to += (run[at + ends.length] as ChunkLocation).length;
      if (to > end) break;
    }
    const locations = run.slice(at, at + ends.length);
    at += ends.length;
    const hashes = new Uint8Array(locations.length * HASH_BYTES);
    for (const [i, { hash }] of locations.entries()) hashes.set(hash, i * HASH_BYTES);
    // Copied now, because the consumer may release the batch before the next one starts.
    rest = Uint8Array.from(batch.subarray(ends.at(-1) ?? start, end));
    if (locations.length > 0)
      yield { locations, buffer: batch.buffer, start, ends: Uint32Array.from(ends), hashes };
    const missing = run[at];
    if (missing && end < room) throw logDamage(deps, missing, 'its pack is too short');
  }
}

/** @returns the number of bytes read, which is less than the buffer's length only at the end */
async function fillBuffer(buffer: Uint8Array, reading: RangeReader): Promise<number> {
  let filled = 0;
  while (filled < buffer.length) {
    const bytes = await reading.into(buffer.subarray(filled));
    if (bytes === 0) break;
    filled += bytes;
  }
  return filled;
}

/** Logs the damage and returns the error to throw. */
function logDamage(
  { log }: Pick<StorageDeps, 'log'>,
  location: ChunkLocation,
  why: string,
): DamagedChunkError {
  const { hash, key, start, length } = location;
  const chunk = hash.toString('hex');
  const error = new DamagedChunkError(`A chunk of a large file is damaged: ${why}`, location);
  log.error({ err: error, chunk, key, start, length }, 'a large file cannot be read');
  return error;
}
