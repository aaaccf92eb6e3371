/** Reading objects: their chunks out of packs, each checked against its SHA-256 before it is handed on. */
import { Readable } from 'node:stream';
import type pg from 'pg';
import type { Logger } from '../../../base/log.ts';
import type { Storage, Reading } from '../../../platform/storage/storage.ts';
import { noteDamage } from './references.ts';
import { textOf, type Chunks, firstDamaged, HASH_BYTES, HEADROOM, Memory } from './chunking.ts';
import { entriesOf, type RecipeEntry } from './recipes.ts';

type Deps = StorageDeps & { pool: pg.Pool; hashing: { checking: Checking } };

/** Bytes, the end excluded. */
export type Range = { start: number; end: number };

/** Of reading a chunk whose pack was written anew since its place was looked up. */
const TRIES = 5;

/** An object that is being read, in one of two ways. */
export type Opened = {
  /** Of the whole, in bytes. */
  size: number;
  /** Each is good until the next is asked for. Whoever does not take it all must `return` it. */
  pieces: AsyncGenerator<Buffer>;
  /** The same as a stream, whose pieces stay as they are. A reader who stops must destroy it. */
  body(): Readable;
};

/**
 * Null when the repository was not given it.
 * @throws RangeError for a range that does not lie within; Damaged; what storage throws. What fails later fails the
 * stream, so that no byte is handed on that was not checked.
 */
export async function openObject(
  deps: Deps,
  repositoryId: string,
  oid: string,
  range?: Range,
): Promise<Opened | null> {
  const { rows } = await deps.pool.query<{ storeId: number; size: string }>({
    name: 'loam-find-large-file',
    text: `select store_id as "storeId", size from large_files where repository_id = $1 and oid = $2`,
    values: [repositoryId, oid],
  });
  const [row] = rows;
  if (!row) return null;
  const size = Number(row.size);
  const { start, end } = range ?? { start: 0, end: size };
  if (!(start >= 0 && start <= end && end <= size))
    throw new RangeError(`no range of ${size} bytes: ${start} to ${end}`);
  const contents = read(deps, { storeId: row.storeId, oid }, { start, end });
  // What cannot be read at all is known before an answer begins.
  const first = await contents.next();
  const pieces = (async function* () {
    if (!first.done) yield first.value;
    yield* contents;
  })();
  const body = () => {
    const copies = (async function* () {
      for await (const piece of pieces) yield Buffer.from(piece);
    })();
    const stream = Readable.from(copies, { objectMode: false });
    // Also when nobody has read of it: what has not begun would not end what has.
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
    if (error instanceof Damaged) await noteDamage(deps, key);
    throw error;
  }
}

async function* readPages(deps: Deps, key: Key, { start, end }: Range): AsyncGenerator<Buffer> {
  let at = start;
  while (at < end) {
    const page = await pageAt(deps, key, at);
    let from = page.start;
    const wanted: RecipeEntry[] = [];
    /** Bytes of the first of them that come before the range. */
    let before = 0;
    for (const entry of entriesOf(page.chunks)) {
      const to = from + entry.length;
      if (to > at && from < end) {
        if (wanted.length === 0) before = at - from;
        wanted.push(entry);
      }
      from = to;
    }
    for await (const { bytes, free } of chunksOf(deps, key.storeId, wanted)) {
      const part = bytes.subarray(before, before + end - at);
      before = 0;
      at += part.length;
      yield part;
      free();
    }
  }
}

async function pageAt({ pool }: Deps, { storeId, oid }: Key, at: number) {
  const { rows } = await pool.query<{ start: string; chunks: Buffer }>({
    name: 'loam-recipe-page',
    text: `
      select start, chunks from large_recipes where store_id = $1 and oid = $2 and start <= $3
      order by start desc limit 1`,
    values: [storeId, oid, at],
  });
  const [page] = rows;
  const bytes = page ? entriesOf(page.chunks).reduce((sum, { length }) => sum + length, 0) : 0;
  // It is removed with the object, while the last of its readers still reads.
  if (!page || Number(page.start) + bytes <= at) throw new Damaged(`${oid} has no chunk at ${at}`);
  return { start: Number(page.start), chunks: page.chunks };
}

/** The chunks in their order. Those that lie one after the other in a pack are read in one go. */
export async function* chunksOf(
  deps: Deps,
  storeId: number,
  wanted: readonly RecipeEntry[],
): AsyncGenerator<Checked> {
  let done = 0;
  for (let tries = 1; done < wanted.length; tries++) {
    const places = await placesOf(deps, storeId, wanted.slice(done));
    for (const run of runsOf(places)) {
      let isGone = true;
      for await (const checked of readRun(deps, run, deps.hashing.checking)) {
        isGone = false;
        done += checked.chunks.length;
        yield checked;
      }
      if (!isGone) tries = 0;
      else if (tries === TRIES) throw damage(deps, run[0] as RunLocation, 'its pack is gone');
      else break;
    }
  }
}

/** @throws Damaged for a chunk that is not known */
export async function placesOf(
  { pool }: Deps,
  storeId: number,
  wanted: readonly RecipeEntry[],
): Promise<RunLocation[]> {
  const { rows } = await pool.query<RunLocation>({
    name: 'loam-places-of-chunks',
    text: `
      select c.hash, p.key, c.start, c.length from large_chunks c join large_packs p on p.id = c.pack_id
      where c.store_id = $1 and c.hash = any($2)`,
    values: [storeId, wanted.map(({ hash }) => hash)],
  });
  const known = new Map(rows.map((row) => [textOf(row.hash), row]));
  return wanted.map(({ hash, length }) => {
    const place = known.get(textOf(hash));
    if (place?.length !== length) throw new Damaged(`there is no chunk ${hash.toString('hex')}`);
    return place;
  });
}

/**
 * Reading chunks that lie one after the other in a pack, a MiB at a time. None is handed on whose SHA-256 is not that
 * which was stored.
 */
type StorageDeps = { storage: Storage; log: Logger };

/** What was stored is not what is there: a disk or an S3 server has lost or changed it. */
export class Damaged extends Error {
  override name = 'Damaged';
  /** The chunk, where it is one that has a place. */
  readonly place?: RunLocation;

  constructor(message: string, place?: RunLocation) {
    super(message);
    this.place = place;
  }
}

/** Where a chunk lies; `key`: of its pack. */
export type RunLocation = { hash: Buffer; key: string; start: number; length: number };

/** Checking chunks, and the memory that they lie in meanwhile. */
export type Checking = {
  memory: Memory;
  /** Finds the first chunk that has another SHA-256: its number, or -1. What it gives back as memory is to be used on. */
  check(chunks: Chunks): Promise<{ buffer: ArrayBufferLike; damaged: number }>;
};

/** Of chunks, read and checked at once. */
export const RUN_BYTES = 2 ** 20;

/** In this thread: 2 ms for a MiB. */
export const checkingHere: Checking = {
  memory: new Memory({ bytes: HEADROOM + RUN_BYTES, most: 3 }),
  check: async (chunks) => ({ buffer: chunks.buffer, damaged: firstDamaged(chunks) }),
};

/** Some of a run, all of them right. */
type Checked = {
  /** One after the other in memory. */
  chunks: Buffer[];
  /** All of them as one. */
  bytes: Buffer;
  /** Says that nobody needs them any more: their memory is used again. */
  free(): void;
};

export function runsOf(places: readonly RunLocation[]): RunLocation[][] {
  const runs: RunLocation[][] = [];
  for (const place of places) {
    const before = runs.at(-1)?.at(-1);
    if (before?.key === place.key && before.start + before.length === place.start)
      runs.at(-1)?.push(place);
    else runs.push([place]);
  }
  return runs;
}

/** The chunks of a run, of which those after are being checked. Nothing at all when the pack is gone. @throws Damaged */
export async function* readRun(
  deps: StorageDeps,
  run: readonly RunLocation[],
  { check, memory }: Checking,
): AsyncGenerator<Checked> {
  const [first, last] = [run[0] as RunLocation, run.at(-1) as RunLocation];
  const bounds = { start: first.start, end: last.start + last.length - 1 };
  const reading = await deps.storage.read(first.key, bounds);
  if (!reading) return;
  await using _ = reading;
  const checked = async ({ places, ...chunks }: Batch): Promise<Checked> => {
    const { start, ends } = chunks;
    const { buffer, damaged } = await check(chunks);
    if (damaged >= 0)
      throw damage(
        deps,
        places[damaged] as RunLocation,
        'its bytes are not those that were stored',
      );
    const part = (from: number, to: number) => Buffer.from(buffer, from, to - from);
    return {
      chunks: places.map((_, i) =>
        part(i === 0 ? start : (ends[i - 1] as number), ends[i] as number),
      ),
      bytes: part(start, ends.at(-1) ?? start),
      free: () => memory.free(buffer),
    };
  };
  let before: Promise<Checked> | undefined;
  for await (const batch of batchesOf(deps, reading, run, memory)) {
    const now = checked(batch);
    // Heard below, if this goes on so far.
    now.catch(() => {});
    if (before) yield await before;
    before = now;
  }
  if (before) yield await before;
}

/** Chunks in memory of their own, behind `HEADROOM`, or with the beginning of the first right in front of it. */
type Batch = Chunks & { places: readonly RunLocation[] };

/** @throws Damaged when the contents end before the run */
async function* batchesOf(
  deps: StorageDeps,
  reading: Reading,
  run: readonly RunLocation[],
  memory: Memory,
): AsyncGenerator<Batch> {
  let left = run.reduce((sum, { length }) => sum + length, 0);
  let rest = new Uint8Array();
  for (let at = 0; at < run.length; ) {
    const room = HEADROOM + Math.min(RUN_BYTES, left);
    const batch = Buffer.from(memory.take(room), 0, room);
    const start = HEADROOM - rest.length;
    batch.set(rest, start);
    const end = HEADROOM + (await filled(batch.subarray(HEADROOM), reading));
    left -= end - HEADROOM;
    const ends: number[] = [];
    for (let to = start; ends.length < run.length - at; ends.push(to)) {
      to += (run[at + ends.length] as RunLocation).length;
      if (to > end) break;
    }
    const places = run.slice(at, at + ends.length);
    at += ends.length;
    const hashes = new Uint8Array(places.length * HASH_BYTES);
    for (const [i, { hash }] of places.entries()) hashes.set(hash, i * HASH_BYTES);
    // Copied now: the reader may be done with the batch before the next is begun.
    rest = Uint8Array.from(batch.subarray(ends.at(-1) ?? start, end));
    if (places.length > 0)
      yield { places, buffer: batch.buffer, start, ends: Uint32Array.from(ends), hashes };
    const missing = run[at];
    if (missing && end < room) throw damage(deps, missing, 'its pack is too short');
  }
}

/** @returns how many bytes there were: fewer only at the end of what is read */
async function filled(memory: Uint8Array, reading: Reading): Promise<number> {
  let filled = 0;
  while (filled < memory.length) {
    const bytes = await reading.into(memory.subarray(filled));
    if (bytes === 0) break;
    filled += bytes;
  }
  return filled;
}

/** The error, which is logged too. */
function damage({ log }: Pick<StorageDeps, 'log'>, place: RunLocation, why: string): Damaged {
  const { hash, key, start, length } = place;
  const chunk = hash.toString('hex');
  const error = new Damaged(`a chunk of large files is damaged: ${why}`, place);
  log.error({ err: error, chunk, key, start, length }, 'a large file cannot be read');
  return error;
}
