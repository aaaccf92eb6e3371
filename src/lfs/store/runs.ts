/**
 * Reading chunks that lie one after the other in a pack, a MiB at a time. None is handed on whose SHA-256 is not that
 * which was stored.
 */
import type { Services } from '../../services.ts';
import { type Chunks, firstDamaged, HASH_BYTES, HEADROOM } from './chunks.ts';
import { freeing } from './pieces.ts';

type Deps = Pick<Services, 'storage' | 'log'>;

/** What was stored is not what is there: a disk or an S3 server has lost or changed it. */
export class Damaged extends Error {
  override name = 'Damaged';
  /** The chunk, where it is one that has a place. */
  readonly place?: Place;

  constructor(message: string, place?: Place) {
    super(message);
    this.place = place;
  }
}

/** Where a chunk lies; `key`: of its pack. */
export type Place = { hash: Buffer; key: string; start: number; length: number };

/**
 * Finds the first chunk that has another SHA-256: its number, or -1. It may take the memory to another thread: what it
 * gives back is to be used from then on.
 */
export type Check = (chunks: Chunks) => Promise<{ buffer: ArrayBuffer; damaged: number }>;

/** In this thread: 2 ms for a MiB. */
export const checkHere: Check = async (chunks) => ({
  buffer: chunks.buffer,
  damaged: firstDamaged(chunks),
});

/** Some of a run, all of them right. */
export type Checked = {
  /** One after the other in memory. */
  chunks: Buffer[];
  /** All of them as one. */
  bytes: Buffer;
  /** Says that nobody needs them any more: their memory is used again. */
  free(): void;
};

/** Of chunks, read and checked at once. */
const BATCH_BYTES = 2 ** 20;

export function runsOf(places: readonly Place[]): Place[][] {
  const runs: Place[][] = [];
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
  deps: Deps,
  run: readonly Place[],
  check: Check,
): AsyncGenerator<Checked> {
  const [first, last] = [run[0] as Place, run.at(-1) as Place];
  const bounds = { start: first.start, end: last.start + last.length - 1 };
  const found = await deps.storage.open(first.key, bounds);
  if (!found) return;
  const unused: ArrayBuffer[] = [];
  const checked = async ({ places, ...chunks }: Batch): Promise<Checked> => {
    const { start, ends } = chunks;
    const { buffer, damaged } = await check(chunks);
    if (damaged >= 0)
      throw damage(deps, places[damaged] as Place, 'its bytes are not those that were stored');
    const part = (from: number, to: number) => Buffer.from(buffer, from, to - from);
    return {
      chunks: places.map((_, i) =>
        part(i === 0 ? start : (ends[i - 1] as number), ends[i] as number),
      ),
      bytes: part(start, ends.at(-1) ?? start),
      free: () => void unused.push(buffer),
    };
  };
  try {
    let before: Promise<Checked> | undefined;
    for await (const batch of batchesOf(deps, found.contents, run, unused)) {
      const now = checked(batch);
      // Heard below, if this goes on so far.
      now.catch(() => {});
      if (before) yield await before;
      before = now;
    }
    if (before) yield await before;
  } finally {
    found.contents.destroy();
  }
}

/** Chunks in memory of their own, behind `HEADROOM`, or with the beginning of the first right in front of it. */
type Batch = Chunks & { places: readonly Place[] };

/** @throws Damaged when the contents end before the run */
async function* batchesOf(
  deps: Deps,
  contents: AsyncIterable<Uint8Array>,
  run: readonly Place[],
  unused: ArrayBuffer[],
): AsyncGenerator<Batch> {
  let left = run.reduce((sum, { length }) => sum + length, 0);
  let at = 0;
  const begin = () => {
    const room = HEADROOM + Math.min(BATCH_BYTES, left);
    const known = unused.pop();
    return Buffer.from(known && known.byteLength >= room ? known : new ArrayBuffer(room), 0, room);
  };
  let memory = begin();
  let start = HEADROOM;
  let end = HEADROOM;
  const takeWhole = (): Batch => {
    const ends: number[] = [];
    const from = at;
    for (let to = start; at < run.length; at++) {
      to += (run[at] as Place).length;
      if (to > end) break;
      ends.push(to);
    }
    const places = run.slice(from, at);
    const hashes = new Uint8Array(places.length * HASH_BYTES);
    for (const [i, { hash }] of places.entries()) hashes.set(hash, i * HASH_BYTES);
    const buffer = memory.buffer as ArrayBuffer;
    return { places, buffer, start, ends: Uint32Array.from(ends), hashes };
  };
  for await (let piece of freeing(contents)) {
    while (piece.length > 0) {
      const part = piece.subarray(0, memory.length - end);
      if (part.length === 0) break;
      memory.set(part, end);
      end += part.length;
      left -= part.length;
      piece = piece.subarray(part.length);
      if (end < memory.length) continue;
      const batch = takeWhole();
      const rest = Buffer.from(memory.subarray(batch.ends.at(-1) ?? start, end));
      yield batch;
      memory = begin();
      start = HEADROOM - rest.length;
      memory.set(rest, start);
      end = HEADROOM;
    }
  }
  if (end > start && at < run.length) yield takeWhole();
  const missing = run[at];
  if (missing) throw damage(deps, missing, 'its pack is too short');
}

/** The error, which is logged too. */
export function damage({ log }: Pick<Deps, 'log'>, place: Place, why: string): Damaged {
  const { hash, key, start, length } = place;
  const chunk = hash.toString('hex');
  const error = new Damaged(`a chunk of large files is damaged: ${why}`, place);
  log.error({ err: error, chunk, key, start, length }, 'a large file cannot be read');
  return error;
}
