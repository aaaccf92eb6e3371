/**
 * The form in which a cache is stored: a tar in zstd frames, as `pzstd` writes them, so `zstd -d | tar -x` reads it. Before each
 * frame stands a skippable frame with its length, so that frames are decompressed in parallel.
 *
 * Frames end where the contents decide it, not at a fixed size, and each is compressed alone. So a changed file changes one frame,
 * and the chunk store has all others already.
 */
import { promisify } from 'node:util';
import { type ZstdOptions, zstdCompress, zstdDecompress } from 'node:zlib';
import { ArtifactsNotKept } from '../../runners/runner.ts';

const BLOCK = 512;
/** Most frames have one to two MiB. */
const MIN_FRAME = 256 * 1024;
const MAX_FRAME = 4 * 2 ** 20;
/** One entry in 64 ends a frame that is large enough. */
const CUT_MASK = 63;
/** Compressed or decompressed at once: as many as Node has threads for it. */
const CONCURRENT = 4;
const SKIPPABLE = 0x184d2a50;
const PREFIX_BYTES = 12;
/** zstd makes incompressible bytes slightly longer. */
const MAX_COMPRESSED = MAX_FRAME + 2 ** 16;

const compress = promisify<Buffer, ZstdOptions, Buffer>(zstdCompress);
const decompress = promisify<Buffer, ZstdOptions, Buffer>(zstdDecompress);

/** What the archive contains, counted while it is packed. */
export type PackedCounts = { bytes: number };

/**
 * Compresses a tar.
 * @param counts.bytes of the tar
 * @throws ArtifactsNotKept for more than `maxBytes`, or a stream that is no tar
 */
export async function* packCache(
  tar: AsyncIterable<Buffer>,
  counts: PackedCounts,
  maxBytes: number,
): AsyncGenerator<Buffer> {
  const frames = splitTar(tar, counts, maxBytes);
  // The output is taken in one piece: Node's usual 16 KiB would cost a wait and a copy for each.
  const pack = (frame: Buffer) => compress(frame, { chunkSize: Math.max(frame.length, 64) });
  for await (const packed of mapAhead(frames, pack)) {
    const prefix = Buffer.alloc(PREFIX_BYTES);
    prefix.writeUInt32LE(SKIPPABLE, 0);
    prefix.writeUInt32LE(4, 4);
    prefix.writeUInt32LE(packed.length, 8);
    yield prefix;
    yield packed;
  }
}

/** Splits a tar into frames of at most `MAX_FRAME`: between entries, and within large files. */
async function* splitTar(
  tar: AsyncIterable<Buffer>,
  counts: PackedCounts,
  maxBytes: number,
): AsyncGenerator<Buffer> {
  let frame: Buffer[] = [];
  let frameBytes = 0;
  const take = (bytes: Buffer) => {
    if (bytes.length === 0) return;
    frame.push(bytes);
    frameBytes += bytes.length;
  };
  const flush = () => {
    const whole = Buffer.concat(frame, frameBytes);
    frame = [];
    frameBytes = 0;
    return whole;
  };
  let header: Buffer = Buffer.alloc(0);
  /** Bytes of contents and padding before the next header. */
  let left = 0;
  /** The next header belongs to the previous one, which has its long name. */
  let isContinued = false;
  for await (let piece of tar) {
    counts.bytes += piece.length;
    if (counts.bytes > maxBytes) throw new ArtifactsNotKept(tooLarge(maxBytes));
    while (piece.length > 0) {
      if (left > 0) {
        const length = Math.min(left, piece.length, MAX_FRAME - frameBytes);
        take(piece.subarray(0, length));
        piece = piece.subarray(length);
        left -= length;
        if (frameBytes === MAX_FRAME) yield flush();
        continue;
      }
      const rest = piece.subarray(0, BLOCK - header.length);
      piece = piece.subarray(rest.length);
      header = header.length === 0 ? rest : Buffer.concat([header, rest]);
      if (header.length < BLOCK) continue;
      const { size, isLongName, sum } = parseHeader(header);
      const padded = Math.ceil(size / BLOCK) * BLOCK;
      const endsFrame = frameBytes >= MIN_FRAME && (sum & CUT_MASK) === 0;
      // A large file begins a frame, so that its frames do not depend on the files before it.
      const isLarge = padded >= MAX_FRAME;
      const isFull = frameBytes + BLOCK + padded > MAX_FRAME;
      if (frameBytes > 0 && !isContinued && (endsFrame || isLarge || isFull)) yield flush();
      else if (frameBytes + BLOCK > MAX_FRAME) yield flush();
      take(header);
      header = Buffer.alloc(0);
      left = padded;
      isContinued = isLongName;
    }
  }
  if (left > 0 || header.length > 0)
    throw new ArtifactsNotKept('the machine sent no valid archive');
  if (frameBytes > 0) yield flush();
}

function tooLarge(maxBytes: number): string {
  return `its files are larger than ${Math.floor(maxBytes / 2 ** 30)} GB`;
}

/** `sum`: the checksum of the header, which an unchanged file keeps. */
function parseHeader(header: Buffer): { size: number; isLongName: boolean; sum: number } {
  const octal = (from: number, to: number) => {
    const text = header.toString('latin1', from, to).replace(/[\0 ].*$/s, '');
    return text === '' ? 0 : /^[0-7]+$/.test(text) ? Number.parseInt(text, 8) : Number.NaN;
  };
  const isBinary = (header[124] ?? 0) === 0x80;
  const size = isBinary ? Number(header.readBigUInt64BE(128)) : octal(124, 136);
  if (!Number.isSafeInteger(size)) throw new ArtifactsNotKept('the machine sent no valid archive');
  const type = String.fromCharCode(header[156] ?? 0);
  return { size, isLongName: 'LKxg'.includes(type), sum: octal(148, 156) };
}

/**
 * Decompresses an archive of `packCache`.
 * @throws Error if it is damaged
 */
export async function* unpackCache(archive: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  yield* mapAhead(splitFrames(archive), (frame) =>
    decompress(frame, { chunkSize: MAX_FRAME, maxOutputLength: MAX_FRAME }),
  );
}

async function* splitFrames(archive: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let rest: Buffer[] = [];
  let bytes = 0;
  let needed = PREFIX_BYTES;
  let isPrefix = true;
  for await (const piece of archive) {
    // The memory of a piece is used again.
    rest.push(Buffer.from(piece));
    bytes += piece.length;
    while (bytes >= needed) {
      const all = rest.length === 1 ? (rest[0] as Buffer) : Buffer.concat(rest, bytes);
      const part = all.subarray(0, needed);
      rest = [all.subarray(needed)];
      bytes -= needed;
      if (!isPrefix) yield part;
      else if (part.readUInt32LE(0) !== SKIPPABLE || part.readUInt32LE(4) !== 4)
        throw new Error('the archive of a cache is damaged');
      needed = isPrefix ? part.readUInt32LE(8) : PREFIX_BYTES;
      if (needed > MAX_COMPRESSED) throw new Error('the archive of a cache is damaged');
      isPrefix = !isPrefix;
    }
  }
  if (bytes > 0 || !isPrefix) throw new Error('the archive of a cache ended early');
}

/** Maps items in parallel, and yields the results in order. */
async function* mapAhead<T, R>(
  source: AsyncIterable<T>,
  work: (item: T) => Promise<R>,
): AsyncGenerator<R> {
  const running: Promise<R>[] = [];
  for await (const item of source) {
    const result = work(item);
    // Awaited later; until then a rejection counts as handled.
    result.catch(() => {});
    running.push(result);
    if (running.length === CONCURRENT) yield (await running.shift()) as R;
  }
  for (const result of running) yield await result;
}
