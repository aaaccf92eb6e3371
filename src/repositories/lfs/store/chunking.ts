/**
 * Where contents are cut into chunks: at places that the contents themselves choose, so that a byte put in moves no
 * cut but the next one. Blocks of a fixed size would find 50 % of a CSV new after one row was inserted; this finds 0.2 %.
 *
 * A gear hash rolls over the last 32 bytes (each byte shifts what came before out to the left), and a chunk ends
 * where its upper 16 bits are zero: on average every 64 KiB. What a byte adds to the hash is a secret of the server: who
 * knew it could make contents that are cut every 8 KiB, which takes eight times the memory and rows.
 */
import { createHmac, hash as hashOf } from 'node:crypto';

const MIN_CHUNK = 8 * 1024;
export const MAX_CHUNK = 128 * 1024;
/** Bytes that the hash depends on: as many as it has bits. */
const WINDOW = 32;

/** One in 65,536: the upper 16 bits, on which all of the window has a say. */
const CUT_MASK = -65_536;

/** One number for each byte. */
export type Gear = Int32Array;

/**
 * The same key gives the same numbers, for ever and on every server: with other numbers, next to nothing would be found
 * of what is stored already.
 */
export function gearOf(key: Uint8Array): Gear {
  return Int32Array.from({ length: 256 }, (_, byte) =>
    createHmac('sha256', key).update(`gear ${byte}`).digest().readInt32BE(),
  );
}

/** The most chunks that `bytes` bytes can have, besides the one that goes on in what follows. */
export function maxChunks(bytes: number): number {
  return Math.ceil(bytes / MIN_CHUNK) + 1;
}

/**
 * Cuts `bytes` by `gear` from `from` to `to` and writes the end of each chunk to `ends`. What follows the last cut is a chunk
 * only when `isLast`; otherwise it has to be given again, with what comes after it.
 * @returns how many chunks there are
 */
export function cut(
  gear: Gear,
  bytes: Uint8Array,
  from: number,
  to: number,
  isLast: boolean,
  ends: Uint32Array,
): number {
  let count = 0;
  for (let start = from; start < to; ) {
    const limit = Math.min(start + MAX_CHUNK, to);
    const hasRoom = limit - start > MIN_CHUNK;
    const found = hasRoom ? endAfter(gear, bytes, start + MIN_CHUNK - WINDOW, limit) : 0;
    if (!found && limit - start < MAX_CHUNK && !isLast) break;
    start = found || limit;
    ends[count++] = start;
  }
  return count;
}

/**
 * Where the first chunk ends that is longer than the window; 0 when none does before `to`. A function of its own, called
 * for each chunk: it does 1,000 MB/s, as a part of the loop above 700, and as a closure that awaits 100.
 */
function endAfter(gear: Gear, bytes: Uint8Array, from: number, to: number): number {
  let hash = 0;
  let at = from | 0;
  const full = (from + WINDOW) | 0;
  for (; at < full; at = (at + 1) | 0)
    hash = ((hash << 1) + (gear[bytes[at] as number] as number)) | 0;
  while (at < to) {
    hash = ((hash << 1) + (gear[bytes[at] as number] as number)) | 0;
    at = (at + 1) | 0;
    if ((hash & CUT_MASK) === 0) return at;
  }
  return 0;
}

/* Chunks as threads hand them to each other: in memory of their own, one after the other. */

/** In front of what is read next, for what the chunk that it goes on with has already: so each lies in one piece. */
export const HEADROOM = MAX_CHUNK;
export const HASH_BYTES = 32;

export type Chunks = {
  buffer: ArrayBufferLike;
  /** Where the first begins; each other begins where the one before it ends. */
  start: number;
  ends: Uint32Array;
  /** Their SHA-256, one after the other. */
  hashes: Uint8Array;
};

/** Takes the SHA-256 of each. */
export function hashesOf({ buffer, start, ends }: Omit<Chunks, 'hashes'>): Uint8Array {
  const hashes = new Uint8Array(ends.length * HASH_BYTES);
  let from = start;
  for (const [i, to] of ends.entries()) {
    const chunk = new Uint8Array(buffer, from, to - from);
    hashes.set(hashOf('sha256', chunk, 'buffer'), i * HASH_BYTES);
    from = to;
  }
  return hashes;
}

/** The number of the first whose SHA-256 is another; -1 when all are right. */
export function firstDamaged(chunks: Chunks): number {
  const found = hashesOf(chunks);
  const other = found.findIndex((byte, at) => byte !== chunks.hashes[at]);
  return other < 0 ? -1 : Math.floor(other / HASH_BYTES);
}

/** A hash as a key of maps and sets, in the order of the bytes. */
export function textOf(hash: Buffer): string {
  return hash.toString('latin1');
}

/**
 * Memory that one thread reads into and writes from while another hashes in it.
 *
 * Both see the same. Handing it over and back instead counts with V8 as that much new memory each time: it marked all of
 * its heap for every 100 MB, a quarter of the CPU of a download. Shared memory it does not count at all, so it would be
 * left lying for long, and there is a fixed number of pieces. Whoever comes while all are taken gets memory of its own.
 */
export class Memory {
  /** Of a piece. */
  readonly #bytes: number;
  readonly #most: number;
  readonly #unused: SharedArrayBuffer[] = [];
  #made = 0;
  /** Who is cut off may leave memory that something is still being read into or written from. */
  readonly #left = new FinalizationRegistry<void>(() => {
    this.#made--;
  });

  constructor(options: { bytes: number; most: number }) {
    this.#bytes = options.bytes;
    this.#most = options.most;
  }

  /** At least so many bytes, with anything in them. */
  take(bytes: number): ArrayBufferLike {
    // A piece of shared memory for every small object would be kept by them all.
    if (bytes > this.#bytes || bytes < this.#bytes / 2) return new ArrayBuffer(bytes);
    const unused = this.#unused.pop();
    if (unused) return unused;
    if (this.#made >= this.#most) return new ArrayBuffer(bytes);
    this.#made++;
    const fresh = new SharedArrayBuffer(this.#bytes);
    this.#left.register(fresh, undefined);
    return fresh;
  }

  /** Says that nobody reads or writes it any more. */
  free(buffer: ArrayBufferLike): void {
    if (buffer instanceof SharedArrayBuffer) this.#unused.push(buffer);
    // To nothing: it goes at once.
    else buffer.transfer(0);
  }
}

/** What has to be handed over for another thread to see it. */
export function handedOver(buffer: ArrayBufferLike): ArrayBuffer[] {
  return buffer instanceof ArrayBuffer ? [buffer] : [];
}
