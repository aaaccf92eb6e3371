/**
 * Converts a tar stream to a zip stream. Each entry is compressed as it arrives, and its sizes follow its contents;
 * only its line in the central directory (some 100 bytes) stays in memory. Libraries do not fit: yazl and zip-stream
 * replace backslashes in names with slashes, and yazl's time grows quadratically with the number of files.
 */
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { crc32, createDeflateRaw } from 'node:zlib';
import { extract, type Header } from 'tar-stream';

const UTF8 = 0x0800;
/** Flag: sizes and checksum are in a data descriptor after the contents. */
const HAS_DESCRIPTOR = 0x0008;
const DEFLATED = 8;
/** From this size on, Zip64 fields are used. Below 4 GiB, because incompressible data grows slightly. */
const ZIP64_THRESHOLD = 0xf000_0000;
const IN_ZIP64 = 0xffff_ffff;
const MAX_COUNT = 0xffff;
const MADE_BY_UNIX = 0x033f;
const MODES: Partial<Record<string, number>> = { directory: 0o040755, symlink: 0o120777 };

type Entry = {
  name: Buffer;
  mode: number;
  modified: number;
  flags: number;
  method: number;
  crc: number;
  compressed: number;
  size: number;
  /** Offset of its local header. */
  offset: number;
  isZip64: boolean;
};

/** @param comment the archive comment; git puts the commit id there */
export async function* convertTarToZip(
  tar: AsyncIterable<Buffer>,
  comment: string,
): AsyncGenerator<Buffer> {
  const extracted = extract();
  // A failure destroys `unpacked`, which ends the loop.
  const extracting = pipeline(Readable.from(tar, { objectMode: false }), extracted);
  extracting.catch(() => {});
  const entries: Entry[] = [];
  let offset = 0;
  const counted = (bytes: Buffer) => {
    offset += bytes.length;
    return bytes;
  };
  for await (const contents of extracted) {
    const entry = toEntry(contents.header, offset);
    if (!entry) {
      contents.resume();
      continue;
    }
    entries.push(entry);
    const link = Buffer.from(contents.header.linkname ?? '');
    if (entry.method !== DEFLATED) {
      Object.assign(entry, { crc: crc32(link), compressed: link.length, size: link.length });
      contents.resume();
      yield counted(localHeader(entry));
      yield counted(link);
      continue;
    }
    yield counted(localHeader(entry));
    const contentStart = offset;
    const deflate = createDeflateRaw();
    const compressing = pipeline(
      contents,
      async function* (source: AsyncIterable<Buffer>) {
        for await (const piece of source) {
          entry.crc = crc32(piece, entry.crc);
          yield piece;
        }
      },
      deflate,
    );
    compressing.catch(() => {});
    for await (const piece of deflate) yield counted(piece as Buffer);
    await compressing;
    entry.compressed = offset - contentStart;
    yield counted(dataDescriptor(entry));
  }
  await extracting;
  const start = offset;
  for (const entry of entries) yield counted(centralHeader(entry));
  yield endOfDirectory(entries.length, start, offset - start, comment);
}

function toEntry({ name, type, mode = 0, mtime, size = 0 }: Header, offset: number): Entry | null {
  const isFile = type === 'file';
  if (!isFile && type !== 'directory' && type !== 'symlink') return null;
  return {
    name: Buffer.from(type === 'directory' && !name.endsWith('/') ? `${name}/` : name),
    mode: MODES[type] ?? 0o100000 | (mode & 0o111 ? 0o755 : 0o644),
    modified: dosTime(mtime ?? new Date(0)),
    flags: UTF8 | (isFile ? HAS_DESCRIPTOR : 0),
    method: isFile ? DEFLATED : 0,
    crc: 0,
    compressed: 0,
    size,
    offset,
    isZip64: size >= ZIP64_THRESHOLD,
  };
}

/** MS-DOS time in UTC, with a resolution of two seconds, starting in 1980. */
function dosTime(date: Date): number {
  const year = Math.min(2107, Math.max(1980, date.getUTCFullYear()));
  const day = ((year - 1980) << 9) | ((date.getUTCMonth() + 1) << 5) | date.getUTCDate();
  const time =
    (date.getUTCHours() << 11) | (date.getUTCMinutes() << 5) | (date.getUTCSeconds() >> 1);
  return day * 65_536 + time;
}

/** Concatenates little-endian numbers, each with its width in bytes. */
function littleEndian(...values: [value: number, width: 2 | 4 | 8][]): Buffer {
  const bytes = Buffer.alloc(values.reduce((sum, [, width]) => sum + width, 0));
  let at = 0;
  for (const [value, width] of values) {
    if (width === 8) bytes.writeBigUInt64LE(BigInt(value), at);
    else bytes.writeUIntLE(value, at, width);
    at += width;
  }
  return bytes;
}

function localHeader({
  name,
  flags,
  method,
  modified,
  crc,
  compressed,
  size,
  isZip64,
}: Entry): Buffer {
  const areSizesKnown = (flags & HAS_DESCRIPTOR) === 0;
  const extra = isZip64 ? littleEndian([1, 2], [16, 2], [0, 8], [0, 8]) : Buffer.alloc(0);
  const sizes = isZip64 ? [IN_ZIP64, IN_ZIP64] : areSizesKnown ? [compressed, size] : [0, 0];
  const fixed = littleEndian(
    [0x04034b50, 4],
    [isZip64 ? 45 : 20, 2],
    [flags, 2],
    [method, 2],
    [modified, 4],
    [areSizesKnown ? crc : 0, 4],
    [sizes[0] as number, 4],
    [sizes[1] as number, 4],
    [name.length, 2],
    [extra.length, 2],
  );
  return Buffer.concat([fixed, name, extra]);
}

function dataDescriptor({ crc, compressed, size, isZip64 }: Entry): Buffer {
  const width = isZip64 ? 8 : 4;
  return littleEndian([0x08074b50, 4], [crc, 4], [compressed, width], [size, width]);
}

function centralHeader(entry: Entry): Buffer {
  const { name, mode, modified, flags, method, crc, compressed, size, offset } = entry;
  const isZip64 = entry.isZip64 || offset >= ZIP64_THRESHOLD;
  const extra = isZip64
    ? littleEndian([1, 2], [24, 2], [size, 8], [compressed, 8], [offset, 8])
    : Buffer.alloc(0);
  const fixed = littleEndian(
    [0x02014b50, 4],
    [MADE_BY_UNIX, 2],
    [isZip64 ? 45 : 20, 2],
    [flags, 2],
    [method, 2],
    [modified, 4],
    [crc, 4],
    [isZip64 ? IN_ZIP64 : compressed, 4],
    [isZip64 ? IN_ZIP64 : size, 4],
    [name.length, 2],
    [extra.length, 2],
    // No comment, disk 0, no internal attributes.
    [0, 2],
    [0, 2],
    [0, 2],
    [mode * 65_536, 4],
    [isZip64 ? IN_ZIP64 : offset, 4],
  );
  return Buffer.concat([fixed, name, extra]);
}

function endOfDirectory(count: number, start: number, bytes: number, comment: string): Buffer {
  const isZip64 = count >= MAX_COUNT || start + bytes >= ZIP64_THRESHOLD;
  const zip64 = isZip64
    ? littleEndian(
        [0x06064b50, 4],
        [44, 8],
        [MADE_BY_UNIX, 2],
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
  const counts = isZip64 ? [MAX_COUNT, IN_ZIP64, IN_ZIP64] : [count, bytes, start];
  const end = littleEndian(
    [0x06054b50, 4],
    [0, 2],
    [0, 2],
    [counts[0] as number, 2],
    [counts[0] as number, 2],
    [counts[1] as number, 4],
    [counts[2] as number, 4],
    [comment.length, 2],
  );
  return Buffer.concat([zip64, end, Buffer.from(comment)]);
}
