/**
 * Replaces LFS pointers in the output of `git archive` with the large files. Everything else passes through unchanged,
 * with a few KiB in memory. tar-stream is not used, because it writes names only as UTF-8 and drops the commit that git
 * stores at the start.
 */

import { canBePointer, parsePointer } from '../../git/objects/pointer.ts';
import type { LargeFiles } from '../lfs/store/store.ts';

const BLOCK = 512;
/** Header fields: size, checksum, and type of the entry. */
const SIZE = { start: 124, end: 136 };
const CHECKSUM = { start: 148, end: 156 };
const TYPE = 156;
const REGULAR_FILE = 0x30;
/** An extended header for the next entry. It has the size if eleven octal digits are too few. */
const EXTENDED_HEADER = 0x78;
const MAX_OCTAL = 8 ** 11 - 1;
/** Limit for extended headers; git writes only names and link targets. */
const MAX_EXTENDED_BYTES = 2 ** 20;

/**
 * @param onMissing called for a pointer to a file that the repository does not have, which stays
 * @throws Error if the tar is truncated; errors of the storage
 */
export async function* replacePointersInTar(
  { largeFiles }: { largeFiles: LargeFiles },
  repositoryId: string,
  tar: AsyncIterable<Buffer>,
  onMissing?: () => void,
): AsyncGenerator<Buffer> {
  const bytes = new ByteReader(tar);
  /** The size from the extended header. */
  let extendedSize: number | undefined;
  for (let header = await bytes.read(BLOCK); header; header = await bytes.read(BLOCK)) {
    const type = header[TYPE];
    const headerSize = Number.parseInt(header.toString('latin1', SIZE.start, SIZE.end), 8) || 0;
    const size = extendedSize ?? headerSize;
    extendedSize = undefined;
    if (type === EXTENDED_HEADER && size <= MAX_EXTENDED_BYTES) {
      const records = await bytes.readExactly(paddedSize(size));
      const [, digits] = /(?:^|\n)\d+ size=(\d+)\n/.exec(records.toString('latin1', 0, size)) ?? [];
      if (digits) extendedSize = Number(digits);
      yield header;
      yield records;
    } else if (type === REGULAR_FILE && canBePointer(size)) {
      const contents = await bytes.readExactly(BLOCK);
      const pointer = parsePointer(contents.toString('latin1', 0, size));
      const found = pointer && (await largeFiles.open(repositoryId, pointer.oid));
      if (found) {
        yield withSize(header, found.size);
        for await (const piece of found.body()) yield piece as Buffer;
        yield Buffer.alloc(paddedSize(found.size) - found.size);
      } else {
        if (pointer) onMissing?.();
        yield header;
        yield contents;
      }
    } else {
      yield header;
      yield* bytes.pass(paddedSize(size));
    }
  }
}

/** Rounds up to the block size. */
function paddedSize(size: number): number {
  return Math.ceil(size / BLOCK) * BLOCK;
}

function withSize(header: Buffer, size: number): Buffer {
  const resized = Buffer.from(header);
  resized.fill(0, SIZE.start, SIZE.end);
  if (size <= MAX_OCTAL) resized.write(size.toString(8).padStart(11, '0'), SIZE.start, 'latin1');
  else {
    // Base-256 encoding, which all tools read.
    resized[SIZE.start] = 0x80;
    resized.writeBigUInt64BE(BigInt(size), SIZE.start + 4);
  }
  resized.fill(' ', CHECKSUM.start, CHECKSUM.end);
  const sum = resized.reduce((total, byte) => total + byte, 0);
  resized.write(`${sum.toString(8).padStart(6, '0')}\0 `, CHECKSUM.start, 'latin1');
  return resized;
}

/** Reads a stream by byte counts. */
class ByteReader {
  readonly #source: AsyncIterator<Buffer>;
  #rest: Buffer = Buffer.alloc(0);

  constructor(source: AsyncIterable<Buffer>) {
    this.#source = source[Symbol.asyncIterator]();
  }

  /** Null at the end of the stream. @throws Error if fewer bytes are left */
  async read(count: number): Promise<Buffer | null> {
    while (this.#rest.length < count) {
      const { value, done } = await this.#source.next();
      if (done && this.#rest.length === 0) return null;
      if (done) throw new Error('git archive ended early');
      this.#rest = this.#rest.length === 0 ? value : Buffer.concat([this.#rest, value]);
    }
    const chunk = this.#rest.subarray(0, count);
    this.#rest = this.#rest.subarray(count);
    return chunk;
  }

  async readExactly(count: number): Promise<Buffer> {
    const chunk = count === 0 ? Buffer.alloc(0) : await this.read(count);
    if (!chunk) throw new Error('git archive ended early');
    return chunk;
  }

  /** Passes the next bytes through in chunks as they arrive. */
  async *pass(count: number): AsyncGenerator<Buffer> {
    for (let remaining = count; remaining > 0; ) {
      const piece = await this.readExactly(Math.min(remaining, Math.max(1, this.#rest.length)));
      remaining -= piece.length;
      yield piece;
    }
  }
}
