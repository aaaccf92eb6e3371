/**
 * The tar that `git archive` writes, with large files in the place of their pointers. All else of it passes as it is, and
 * a few KiB are in memory. tar-stream would write names as UTF-8 only, and without the commit that git names at the start.
 */

import { canBePointer, parsePointer } from '../../git/objects/pointer.ts';
import type { LargeFiles } from '../lfs/store/store.ts';

const BLOCK = 512;
/** In the header: where the size stands, the sum of all bytes, and what kind of entry it is. */
const SIZE = { at: 124, end: 136 };
const SUM = { at: 148, end: 156 };
const TYPE = 156;
const FILE = 0x30;
/** Values for the entry that follows, among them a size that eleven octal digits cannot say. */
const EXTENDED = 0x78;
const MAX_OCTAL = 8 ** 11 - 1;
/** Of such values; git writes a name and a link. */
const MAX_EXTENDED = 2 ** 20;

/** @throws Error where the tar ends early; what the storage fails with */
export async function* withLargeFiles(
  { largeFiles }: { largeFiles: LargeFiles },
  repositoryId: string,
  tar: AsyncIterable<Buffer>,
): AsyncGenerator<Buffer> {
  const bytes = new Bytes(tar);
  /** Said before the header. */
  let announced: number | undefined;
  for (let header = await bytes.take(BLOCK); header; header = await bytes.take(BLOCK)) {
    const type = header[TYPE];
    const said = Number.parseInt(header.toString('latin1', SIZE.at, SIZE.end), 8) || 0;
    const size = announced ?? said;
    announced = undefined;
    if (type === EXTENDED && size <= MAX_EXTENDED) {
      const values = await bytes.takeAll(blocks(size));
      const [, long] = /(?:^|\n)\d+ size=(\d+)\n/.exec(values.toString('latin1', 0, size)) ?? [];
      if (long) announced = Number(long);
      yield header;
      yield values;
    } else if (type === FILE && canBePointer(size)) {
      const text = await bytes.takeAll(BLOCK);
      const pointer = parsePointer(text.toString('latin1', 0, size));
      const found = pointer && (await largeFiles.open(repositoryId, pointer.oid));
      if (found) {
        yield resized(header, found.size);
        for await (const piece of found.body()) yield piece as Buffer;
        yield Buffer.alloc(blocks(found.size) - found.size);
      } else {
        yield header;
        yield text;
      }
    } else {
      yield header;
      yield* bytes.pass(blocks(size));
    }
  }
}

/** What `size` bytes take in a tar. */
function blocks(size: number): number {
  return Math.ceil(size / BLOCK) * BLOCK;
}

function resized(header: Buffer, size: number): Buffer {
  const other = Buffer.from(header);
  other.fill(0, SIZE.at, SIZE.end);
  if (size <= MAX_OCTAL) other.write(size.toString(8).padStart(11, '0'), SIZE.at, 'latin1');
  else {
    // In base 256, as all tools read it.
    other[SIZE.at] = 0x80;
    other.writeBigUInt64BE(BigInt(size), SIZE.at + 4);
  }
  other.fill(' ', SUM.at, SUM.end);
  const sum = other.reduce((total, byte) => total + byte, 0);
  other.write(`${sum.toString(8).padStart(6, '0')}\0 `, SUM.at, 'latin1');
  return other;
}

/** A stream that is read by numbers of bytes. */
class Bytes {
  readonly #source: AsyncIterator<Buffer>;
  #rest: Buffer = Buffer.alloc(0);

  constructor(source: AsyncIterable<Buffer>) {
    this.#source = source[Symbol.asyncIterator]();
  }

  /** Null at the end. @throws Error for fewer */
  async take(count: number): Promise<Buffer | null> {
    while (this.#rest.length < count) {
      const { value, done } = await this.#source.next();
      if (done && this.#rest.length === 0) return null;
      if (done) throw new Error('the archive of git has broken off');
      this.#rest = this.#rest.length === 0 ? value : Buffer.concat([this.#rest, value]);
    }
    const taken = this.#rest.subarray(0, count);
    this.#rest = this.#rest.subarray(count);
    return taken;
  }

  async takeAll(count: number): Promise<Buffer> {
    const taken = count === 0 ? Buffer.alloc(0) : await this.take(count);
    if (!taken) throw new Error('the archive of git has broken off');
    return taken;
  }

  /** As they come. */
  async *pass(count: number): AsyncGenerator<Buffer> {
    for (let left = count; left > 0; ) {
      const piece = await this.takeAll(Math.min(left, Math.max(1, this.#rest.length)));
      left -= piece.length;
      yield piece;
    }
  }
}
