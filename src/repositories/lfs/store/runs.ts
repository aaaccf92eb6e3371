/**
 * Reading chunks that lie one after the other in a pack, a MiB at a time. None is handed on whose SHA-256 is not that
 * which was stored.
 */

import type { Logger } from '../../../base/log.ts';
import type { Reading, Storage } from '../../../platform/storage/storage.ts';
import { type Chunks, firstDamaged, HASH_BYTES, HEADROOM } from './cut.ts';
import { Memory } from './memory.ts';

type Deps = { storage: Storage; log: Logger };

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
export type Checked = {
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
  deps: Deps,
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
  deps: Deps,
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
export function damage({ log }: Pick<Deps, 'log'>, place: RunLocation, why: string): Damaged {
  const { hash, key, start, length } = place;
  const chunk = hash.toString('hex');
  const error = new Damaged(`a chunk of large files is damaged: ${why}`, place);
  log.error({ err: error, chunk, key, start, length }, 'a large file cannot be read');
  return error;
}
