/**
 * A zip of what is in a tar, made while it is read: each entry is compressed as it comes, and its sizes follow it. What is
 * kept of each is its line in the directory at the end, some 100 bytes. Libraries change names (yazl and zip-stream make a
 * slash of a backslash), and yazl's time grows with the square of the number of files.
 */
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { crc32, createDeflateRaw } from 'node:zlib';
import { extract, type Header } from 'tar-stream';

const UTF8 = 0x0800;
/** Sizes and sum stand behind the contents. */
const FOLLOWS = 0x0008;
const DEFLATED = 8;
/** Above it numbers have eight bytes; less than four could say, because what does not compress grows a little. */
const MAX_SHORT = 0xf000_0000;
const LONG = 0xffff_ffff;
const MAX_COUNT = 0xffff;
const BY_UNIX = 0x033f;
const MODES: Partial<Record<string, number>> = { directory: 0o040755, symlink: 0o120777 };

type Entry = {
  name: Buffer;
  mode: number;
  modified: number;
  flags: number;
  method: number;
  crc: number;
  packed: number;
  size: number;
  /** Of its header in the zip. */
  at: number;
  isLong: boolean;
};

/** @param comment of the whole, for which git takes the commit */
export async function* zipOf(tar: AsyncIterable<Buffer>, comment: string): AsyncGenerator<Buffer> {
  const unpacked = extract();
  // What fails ends `unpacked`, and so the loop.
  const piping = pipeline(Readable.from(tar, { objectMode: false }), unpacked);
  piping.catch(() => {});
  const entries: Entry[] = [];
  let at = 0;
  const counted = (bytes: Buffer) => {
    at += bytes.length;
    return bytes;
  };
  for await (const contents of unpacked) {
    const entry = entryOf(contents.header, at);
    if (!entry) {
      contents.resume();
      continue;
    }
    entries.push(entry);
    const link = Buffer.from(contents.header.linkname ?? '');
    if (entry.method !== DEFLATED) {
      Object.assign(entry, { crc: crc32(link), packed: link.length, size: link.length });
      contents.resume();
      yield counted(localHeader(entry));
      yield counted(link);
      continue;
    }
    yield counted(localHeader(entry));
    const begun = at;
    const packing = createDeflateRaw();
    const sent = pipeline(
      contents,
      async function* (source: AsyncIterable<Buffer>) {
        for await (const piece of source) {
          entry.crc = crc32(piece, entry.crc);
          yield piece;
        }
      },
      packing,
    );
    sent.catch(() => {});
    for await (const piece of packing) yield counted(piece as Buffer);
    await sent;
    entry.packed = at - begun;
    yield counted(descriptor(entry));
  }
  await piping;
  const start = at;
  for (const entry of entries) yield counted(directoryLine(entry));
  yield directoryEnd(entries.length, start, at - start, comment);
}

function entryOf({ name, type, mode = 0, mtime, size = 0 }: Header, at: number): Entry | null {
  const isFile = type === 'file';
  if (!isFile && type !== 'directory' && type !== 'symlink') return null;
  return {
    name: Buffer.from(type === 'directory' && !name.endsWith('/') ? `${name}/` : name),
    mode: MODES[type] ?? 0o100000 | (mode & 0o111 ? 0o755 : 0o644),
    modified: dosTime(mtime ?? new Date(0)),
    flags: UTF8 | (isFile ? FOLLOWS : 0),
    method: isFile ? DEFLATED : 0,
    crc: 0,
    packed: 0,
    size,
    at,
    isLong: size >= MAX_SHORT,
  };
}

/** In UTC; two seconds are its smallest step, and 1980 its first year. */
function dosTime(date: Date): number {
  const year = Math.min(2107, Math.max(1980, date.getUTCFullYear()));
  const day = ((year - 1980) << 9) | ((date.getUTCMonth() + 1) << 5) | date.getUTCDate();
  const time =
    (date.getUTCHours() << 11) | (date.getUTCMinutes() << 5) | (date.getUTCSeconds() >> 1);
  return day * 65_536 + time;
}

/** Numbers one after the other, least significant byte first, each with its width in bytes. */
function numbers(...values: [value: number, width: 2 | 4 | 8][]): Buffer {
  const bytes = Buffer.alloc(values.reduce((sum, [, width]) => sum + width, 0));
  let at = 0;
  for (const [value, width] of values) {
    if (width === 8) bytes.writeBigUInt64LE(BigInt(value), at);
    else bytes.writeUIntLE(value, at, width);
    at += width;
  }
  return bytes;
}

function localHeader({ name, flags, method, modified, crc, packed, size, isLong }: Entry): Buffer {
  const isKnown = (flags & FOLLOWS) === 0;
  const extra = isLong ? numbers([1, 2], [16, 2], [0, 8], [0, 8]) : Buffer.alloc(0);
  const sizes = isLong ? [LONG, LONG] : isKnown ? [packed, size] : [0, 0];
  const fixed = numbers(
    [0x04034b50, 4],
    [isLong ? 45 : 20, 2],
    [flags, 2],
    [method, 2],
    [modified, 4],
    [isKnown ? crc : 0, 4],
    [sizes[0] as number, 4],
    [sizes[1] as number, 4],
    [name.length, 2],
    [extra.length, 2],
  );
  return Buffer.concat([fixed, name, extra]);
}

function descriptor({ crc, packed, size, isLong }: Entry): Buffer {
  const width = isLong ? 8 : 4;
  return numbers([0x08074b50, 4], [crc, 4], [packed, width], [size, width]);
}

function directoryLine(entry: Entry): Buffer {
  const { name, mode, modified, flags, method, crc, packed, size, at } = entry;
  const isLong = entry.isLong || at >= MAX_SHORT;
  const extra = isLong
    ? numbers([1, 2], [24, 2], [size, 8], [packed, 8], [at, 8])
    : Buffer.alloc(0);
  const fixed = numbers(
    [0x02014b50, 4],
    [BY_UNIX, 2],
    [isLong ? 45 : 20, 2],
    [flags, 2],
    [method, 2],
    [modified, 4],
    [crc, 4],
    [isLong ? LONG : packed, 4],
    [isLong ? LONG : size, 4],
    [name.length, 2],
    [extra.length, 2],
    // No comment, the first disk, nothing about the text.
    [0, 2],
    [0, 2],
    [0, 2],
    [mode * 65_536, 4],
    [isLong ? LONG : at, 4],
  );
  return Buffer.concat([fixed, name, extra]);
}

function directoryEnd(count: number, start: number, bytes: number, comment: string): Buffer {
  const isLong = count >= MAX_COUNT || start + bytes >= MAX_SHORT;
  const long = isLong
    ? numbers(
        [0x06064b50, 4],
        [44, 8],
        [BY_UNIX, 2],
        [45, 2],
        [0, 4],
        [0, 4],
        [count, 8],
        [count, 8],
        [bytes, 8],
        [start, 8],
        [0x07064b50, 4],
        [0, 4],
        [start + bytes, 8],
        [1, 4],
      )
    : Buffer.alloc(0);
  const said = isLong ? [MAX_COUNT, LONG, LONG] : [count, bytes, start];
  const short = numbers(
    [0x06054b50, 4],
    [0, 2],
    [0, 2],
    [said[0] as number, 2],
    [said[0] as number, 2],
    [said[1] as number, 4],
    [said[2] as number, 4],
    [comment.length, 2],
  );
  return Buffer.concat([long, short, Buffer.from(comment)]);
}
