/**
 * Cuts files into content-defined chunks: a boundary depends on the 32 bytes before it, so an insertion moves the chunks
 * behind it but does not change them. A chunk is recognized by 128 bits of its SHA-256.
 */
import { createHash } from 'node:crypto';
import { open } from 'node:fs/promises';

const BATCH_BYTES = 4 * 2 ** 20;
const SMALLEST_AVERAGE = 8_192;
/** The index takes about 32 bytes a chunk: 64 MB at most. */
const MAX_CHUNKS = 2 ** 21;
const WINDOW = 32;

/** In bytes. `average` is a power of two. */
export type ChunkSizes = { min: number; average: number; max: number };

/** Larger files get larger chunks, so that the index of their chunks fits in memory. */
export function chunkSizesFor(bytes: number): ChunkSizes {
  let average = SMALLEST_AVERAGE;
  while (bytes / average > MAX_CHUNKS / 2) average *= 2;
  return { min: average / 4, average, max: average * 4 };
}

/** Four 32-bit words of the SHA-256 of a chunk. */
type Visit = (digest: Buffer, offset: number, length: number) => void;

/** Calls `visit` for each chunk of a file, in order. @throws AbortError */
export async function forEachChunk(
  path: string,
  sizes: ChunkSizes,
  visit: Visit,
  signal: AbortSignal,
): Promise<void> {
  const file = await open(path);
  try {
    const bytes = Buffer.allocUnsafeSlow(BATCH_BYTES);
    /** Offset of `bytes` in the file, and the number of bytes that it has. */
    let offset = 0;
    let filled = 0;
    for (;;) {
      signal.throwIfAborted();
      const { bytesRead } = await file.read(bytes, filled, bytes.length - filled, offset + filled);
      filled += bytesRead;
      const used = visitBatch(bytes.subarray(0, filled), offset, {
        sizes,
        isLast: bytesRead === 0,
        visit,
      });
      if (bytesRead === 0) return;
      bytes.copyWithin(0, used, filled);
      offset += used;
      filled -= used;
    }
  } finally {
    await file.close();
  }
}

/** @returns how many bytes belong to complete chunks */
function visitBatch(
  bytes: Buffer,
  offset: number,
  { sizes, isLast, visit }: { sizes: ChunkSizes; isLast: boolean; visit: Visit },
): number {
  // The upper bits of the hash depend on the most bytes.
  const mask = -(2 ** 32 / sizes.average) | 0;
  let start = 0;
  while (start < bytes.length) {
    const limit = Math.min(start + sizes.max, bytes.length);
    const isCut = limit === start + sizes.max;
    const found =
      limit - start > sizes.min ? findBoundary(bytes, start + sizes.min - WINDOW, limit, mask) : 0;
    if (found === 0 && !isCut && !isLast) break;
    const end = found || limit;
    visit(
      createHash('sha256').update(bytes.subarray(start, end)).digest(),
      offset + start,
      end - start,
    );
    start = end;
  }
  return start;
}

const GEAR = Int32Array.from({ length: 256 }, (_, byte) =>
  createHash('sha256').update(`loam-delta ${byte}`).digest().readInt32BE(),
);

/** @returns the first boundary after the window at `from`, or 0. A small function, which is compiled well. */
function findBoundary(bytes: Uint8Array, from: number, to: number, mask: number): number {
  let hash = 0;
  let at = from;
  for (const warm = from + WINDOW; at < warm; at++)
    hash = ((hash << 1) + (GEAR[bytes[at] as number] as number)) | 0;
  for (; at < to; at++) {
    hash = ((hash << 1) + (GEAR[bytes[at] as number] as number)) | 0;
    if ((hash & mask) === 0) return at + 1;
  }
  return 0;
}

/** The chunks of a file by their digests. Chunks beyond `MAX_CHUNKS` are left out. */
export class ChunkIndex {
  readonly #words: Int32Array;
  /** Of chunk n, and the end of the last one. */
  readonly #offsets: Float64Array;
  /** Hash table with linear probing: the number of a chunk plus 1, or 0. */
  readonly #slots: Int32Array;
  #count = 0;

  constructor(bytes: number, { min }: ChunkSizes) {
    const capacity = Math.min(Math.ceil(bytes / min) + 1, MAX_CHUNKS);
    this.#words = new Int32Array(4 * capacity);
    this.#offsets = new Float64Array(capacity + 1);
    this.#slots = new Int32Array(2 ** Math.ceil(Math.log2(2 * capacity)));
  }

  /** Chunks are added in their order in the file. */
  add(digest: Buffer, offset: number, length: number): void {
    const chunk = this.#count;
    if (chunk === this.#offsets.length - 1) return;
    this.#count++;
    for (let word = 0; word < 4; word++)
      this.#words[4 * chunk + word] = digest.readInt32LE(4 * word);
    this.#offsets[chunk] = offset;
    this.#offsets[chunk + 1] = offset + length;
    const slot = this.#findSlot(digest);
    if (this.#slots[slot] === 0) this.#slots[slot] = chunk + 1;
  }

  /**
   * @param expected the number of the chunk that continues the previous match. It is preferred, so that equal chunks,
   * such as runs of zeros, are matched in their order
   * @returns the number of an equal chunk, or -1
   */
  find(digest: Buffer, expected: number): number {
    if (expected < this.#count && this.#isEqual(expected, digest)) return expected;
    return (this.#slots[this.#findSlot(digest)] as number) - 1;
  }

  offsetOf(chunk: number): number {
    return this.#offsets[chunk] as number;
  }

  /** @returns the slot of an equal chunk, or the empty slot where it belongs */
  #findSlot(digest: Buffer): number {
    const mask = this.#slots.length - 1;
    for (let slot = digest.readUInt32LE(16) & mask; ; slot = (slot + 1) & mask) {
      const chunk = (this.#slots[slot] as number) - 1;
      if (chunk < 0 || this.#isEqual(chunk, digest)) return slot;
    }
  }

  #isEqual(chunk: number, digest: Buffer): boolean {
    for (let word = 0; word < 4; word++)
      if (this.#words[4 * chunk + word] !== digest.readInt32LE(4 * word)) return false;
    return true;
  }
}
