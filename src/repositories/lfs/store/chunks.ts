/** Chunks as threads hand them to each other: in memory of their own, one after the other. */
import { hash as hashOf } from 'node:crypto';
import { MAX_CHUNK } from './cut.ts';

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
