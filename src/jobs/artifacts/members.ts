/**
 * Writes an archive as gzip members: a member for each large file, and shared members for many small files. A compressor for
 * each small file took a third of the CPU for storing them.
 */
import type { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { promisify } from 'node:util';
import { createGzip, gzip } from 'node:zlib';
import { tarPadding } from '../../runners/supervisor/tar-format.ts';

export type ArtifactEntry = { path: string; sizeBytes: number };
/** The position of the file's member in the archive, and of the contents in the decompressed member. */
export type IndexEntry = ArtifactEntry & { offset: number; length: number; skip: number };

type File = { path: string; header: Buffer; contents: Readable; size: number };

/**
 * Maximum size of a file in a shared member, and size at which a shared member is closed. It limits how much must be
 * decompressed to read one file.
 */
const SMALL_BYTES = 64 * 1024;
/** Bytes of the archive that are written between two quota checks. */
const ROOM_STEP = 16 * 2 ** 20;

const gzipped = promisify(gzip);

/**
 * Creates a writer whose methods yield the chunks of the archive and append its files to `index`.
 * @param requireRoom called with the size of the archive as it grows; throws if there is not enough storage
 */
export function createMemberWriter(
  index: IndexEntry[],
  requireRoom: (size: number) => Promise<void>,
) {
  let offset = 0;
  let checkedAt = 0;
  /** The files of the current shared member. */
  let pending: { path: string; sizeBytes: number; skip: number }[] = [];
  let parts: Buffer[] = [];
  /** Uncompressed size of the current shared member. */
  let bytes = 0;

  async function* countBytes(pieces: AsyncIterable<Buffer> | Iterable<Buffer>) {
    for await (const piece of pieces) {
      yield piece;
      offset += piece.length;
      if (offset - checkedAt < ROOM_STEP) continue;
      checkedAt = offset;
      await requireRoom(offset);
    }
  }

  async function* writeShared(): AsyncGenerator<Buffer> {
    if (parts.length === 0) return;
    const start = offset;
    // `gzipSync` would block other requests.
    yield* countBytes([await gzipped(Buffer.concat(parts))]);
    for (const file of pending) index.push({ ...file, offset: start, length: offset - start });
    pending = [];
    parts = [];
    bytes = 0;
  }

  return {
    async *add({ path, header, contents, size }: File): AsyncGenerator<Buffer> {
      if (size > SMALL_BYTES) {
        yield* writeShared();
        const start = offset;
        yield* countBytes(compressEntry(header, contents, size));
        const skip = header.length;
        index.push({ path, sizeBytes: size, offset: start, length: offset - start, skip });
        return;
      }
      pending.push({ path, sizeBytes: size, skip: bytes + header.length });
      parts.push(header);
      for await (const piece of contents) parts.push(piece);
      const padding = tarPadding(size);
      parts.push(padding);
      bytes += header.length + size + padding.length;
      if (bytes >= SMALL_BYTES) yield* writeShared();
    },
    /** Adds a link or a directory, which has no contents and no index entry. */
    async *addHeader(header: Buffer): AsyncGenerator<Buffer> {
      parts.push(header);
      bytes += header.length;
      if (bytes >= SMALL_BYTES) yield* writeShared();
    },
    /** Writes the last shared member. Call it after the last file. */
    end: writeShared,
  };
}

/** Compresses the tar entry of one file, with header and padding. */
function compressEntry(header: Buffer, contents: Readable, size: number): AsyncIterable<Buffer> {
  const member = createGzip();
  const entry = async function* () {
    yield header;
    yield* contents as AsyncIterable<Buffer>;
    yield tarPadding(size);
  };
  // The caller reads `member`, so a failure must destroy it.
  void pipeline(entry, member).catch((error) => member.destroy(error));
  return member;
}
