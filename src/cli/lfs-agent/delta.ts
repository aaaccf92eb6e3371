/**
 * Deltas between two versions of a large file, in the format of the server (docs/large-files.md, "Deltas"): instructions
 * that copy bytes of the older version (the base), or insert bytes.
 */
import { type FileHandle, open } from 'node:fs/promises';
import { ChunkIndex, chunkSizesFor, forEachChunk } from './chunks.ts';

/** A range of the new version. With `base`, the offset of the same bytes in the older version. */
type Instruction = { start: number; length: number; base: number | null };

/** `bytes`: the length of the request, of at most `MAX_COPIES` copies. */
export type Delta = { instructions: Instruction[]; bytes: number };

const COPY_BYTES = 17;
const INSERT_BYTES = 5;
/** The server refuses more. */
const MAX_COPIES = 100_000;
/** The length of an insertion has 4 bytes. */
const MAX_INSERT = 2 ** 30;
const BLOCK_BYTES = 2 ** 18;

/**
 * Reads both versions once. It takes less than 100 MB of memory for files of any size.
 * @returns null when the delta has too many copies
 */
export async function computeDelta(
  base: { path: string; size: number },
  file: { path: string; size: number },
  signal: AbortSignal,
): Promise<Delta | null> {
  const sizes = chunkSizesFor(Math.max(base.size, file.size));
  const index = new ChunkIndex(base.size, sizes);
  await forEachChunk(base.path, sizes, (...chunk) => index.add(...chunk), signal);
  const instructions: Instruction[] = [];
  let copies = 0;
  let expected = 0;
  const append = (digest: Buffer, start: number, length: number) => {
    const found = index.find(digest, expected);
    if (found >= 0) expected = found + 1;
    const from = found < 0 ? null : index.offsetOf(found);
    const last = instructions.at(-1);
    if (last && continues(last, from, length)) last.length += length;
    else {
      if (from !== null) copies++;
      if (copies <= MAX_COPIES) instructions.push({ start, length, base: from });
    }
  };
  await forEachChunk(file.path, sizes, append, signal);
  return copies > MAX_COPIES ? null : { instructions, bytes: lengthOf(instructions) };
}

function continues(last: Instruction, from: number | null, length: number): boolean {
  if (from === null || last.base === null)
    return from === last.base && last.length + length <= MAX_INSERT;
  return last.base + last.length === from;
}

function lengthOf(instructions: readonly Instruction[]): number {
  return instructions.reduce(
    (sum, { base, length }) => sum + (base === null ? INSERT_BYTES + length : COPY_BYTES),
    0,
  );
}

/**
 * Yields the body of a request: a delta, or the whole file.
 * @param onProgress gets the number of bytes of the file that have been passed on, before each piece
 */
export async function* encode(
  path: string,
  content: Delta | { size: number },
  onProgress: (bytes: number) => void,
): AsyncGenerator<Buffer> {
  const file = await open(path);
  try {
    if ('size' in content) yield* readRange(file, 0, content.size, onProgress);
    else yield* encodeInstructions(file, content.instructions, onProgress);
  } finally {
    await file.close();
  }
}

async function* encodeInstructions(
  file: FileHandle,
  instructions: readonly Instruction[],
  onProgress: (bytes: number) => void,
): AsyncGenerator<Buffer> {
  // Copies are collected, because a write to the network for each would be slow.
  let headers: Buffer[] = [];
  for (const { start, length, base } of instructions) {
    headers.push(base === null ? insertHeader(length) : copyHeader(base, length));
    if (base !== null && headers.length < 1_000) continue;
    onProgress(base === null ? start : start + length);
    yield Buffer.concat(headers);
    headers = [];
    if (base === null) yield* readRange(file, start, length, onProgress);
  }
  if (headers.length > 0) yield Buffer.concat(headers);
}

function copyHeader(offset: number, length: number): Buffer {
  const header = Buffer.alloc(COPY_BYTES);
  header.writeBigUInt64BE(BigInt(offset), 1);
  header.writeBigUInt64BE(BigInt(length), 9);
  return header;
}

function insertHeader(length: number): Buffer {
  const header = Buffer.alloc(INSERT_BYTES);
  header[0] = 1;
  header.writeUInt32BE(length, 1);
  return header;
}

async function* readRange(
  file: FileHandle,
  start: number,
  length: number,
  onProgress: (bytes: number) => void,
): AsyncGenerator<Buffer> {
  const end = start + length;
  for (let at = start; at < end; ) {
    // A new buffer for each piece: the socket keeps the previous ones until they are sent.
    const buffer = Buffer.allocUnsafe(Math.min(BLOCK_BYTES, end - at));
    const { bytesRead } = await file.read(buffer, 0, buffer.length, at);
    if (bytesRead === 0) throw new Error('The file became shorter while it was read.');
    at += bytesRead;
    onProgress(at);
    yield buffer.subarray(0, bytesRead);
  }
}
