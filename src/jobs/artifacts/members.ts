/**
 * The gzip members of an archive, as it is written: one for each large file, and one for many small ones. A compressor
 * for each small file took a third of the CPU of storing them.
 */
import type { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { promisify } from 'node:util';
import { createGzip, gzip } from 'node:zlib';
import { tarPadding } from '../../runners/supervisor/tar-format.ts';

export type ArtifactEntry = { path: string; sizeBytes: number };
/** Where its member lies in the archive, and how far the contents are from the member's beginning. */
export type IndexEntry = ArtifactEntry & { offset: number; length: number; skip: number };

type File = { path: string; header: Buffer; contents: Readable; size: number };

/** What a file may have to share a member, and a member to get no more: so much is unpacked at most to send one of them. */
const SMALL_BYTES = 64 * 1024;
/** How many bytes of the archive are written between two checks of the room for it. */
const ROOM_STEP = 16 * 2 ** 20;

const gzipped = promisify(gzip);

/**
 * Both give pieces of the archive. `index` gets the files in their order.
 * @param demandRoom called with the size of the archive as it grows, and throws when there is no room
 */
export function openMemberWriter(index: IndexEntry[], demandRoom: (size: number) => Promise<void>) {
  let offset = 0;
  let asked = 0;
  /** Of the member that small files share, which is not written yet. */
  let pending: { path: string; sizeBytes: number; skip: number }[] = [];
  let parts: Buffer[] = [];
  let bytes = 0;

  async function* countBytes(pieces: AsyncIterable<Buffer> | Iterable<Buffer>) {
    for await (const piece of pieces) {
      yield piece;
      offset += piece.length;
      if (offset - asked < ROOM_STEP) continue;
      asked = offset;
      await demandRoom(offset);
    }
  }

  async function* writeShared(): AsyncGenerator<Buffer> {
    if (parts.length === 0) return;
    const start = offset;
    // Not `gzipSync`: other requests would wait for it.
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
    /** What has no contents, and no place in the index: a link or a directory. */
    async *addHeader(header: Buffer): AsyncGenerator<Buffer> {
      parts.push(header);
      bytes += header.length;
      if (bytes >= SMALL_BYTES) yield* writeShared();
    },
    /** What is left; to be called after the last file. */
    end: writeShared,
  };
}

/** The tar entry of one file, header and padding included. */
function compressEntry(header: Buffer, contents: Readable, size: number): AsyncIterable<Buffer> {
  const member = createGzip();
  const entry = async function* () {
    yield header;
    yield* contents as AsyncIterable<Buffer>;
    yield tarPadding(size);
  };
  // A failure destroys `member`, which is what is read.
  void pipeline(entry, member).catch((error) => member.destroy(error));
  return member;
}
