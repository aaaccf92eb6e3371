/**
 * Uploads of a new version of a large file as a delta: the client sends only the bytes that an older object of the same
 * repository does not have, and the server assembles the object from both. The result is verified and stored like any
 * upload.
 *
 * The base is an object that the client has too, so that a delta reveals nothing about other objects. Rejected: telling
 * clients which chunks the store has, because a store belongs to many repositories.
 */
import { AppError, unprocessable } from '../../base/errors.ts';
import type { ByteRange } from '../../platform/storage/storage.ts';
import { isOid, type LfsObject, requireOid } from './objects.ts';

/** Name of the transfer in batches: `lfs.customtransfer.loam-delta` of git-lfs. */
export const DELTA_TRANSFER = 'loam-delta';

/**
 * A delta is a list of instructions, each a byte for its kind and two big-endian numbers or one:
 *
 *   0  offset (8 bytes)  length (8 bytes)   copies bytes of the base
 *   1  length (4 bytes)  bytes              inserts bytes
 */
const COPY = 0;
const INSERT = 1;
const HEADER_BYTES = { [COPY]: 17, [INSERT]: 5 } as const;
/** Each copy costs a query and a read of storage. */
const MAX_COPIES = 100_000;
const MEDIA_TYPE = 'application/vnd.loam.delta';
const NUMBER = /^\d{1,15}$/;

export type DeltaRequest = {
  oid: string;
  /** Of the object and of its base, from the query. */
  size: unknown;
  base: unknown;
  contentType: string | undefined;
};

/** @throws AppError 415, 422 */
export function readDeltaRequest({ oid, size, base, contentType }: DeltaRequest): {
  object: LfsObject;
  base: string;
} {
  if (contentType !== MEDIA_TYPE)
    throw new AppError('invalid_request', `Content-Type: must be ${MEDIA_TYPE}`, { status: 415 });
  requireOid(oid);
  if (typeof size !== 'string' || !NUMBER.test(size))
    throw unprocessable('size', 'must be the number of bytes of the object');
  if (!isOid(base)) throw unprocessable('base', 'must be the oid of an object of the repository');
  return { object: { oid, size: Number(size) }, base };
}

type Base = {
  /** In bytes. */
  size: number;
  open(range: ByteRange): Promise<AsyncIterable<Uint8Array>>;
};

/**
 * Yields the bytes of the object. A piece is valid until the next one is requested.
 * @param delta pieces of any length, which may be reused after the next read
 * @throws AppError 422 for a malformed delta, or one that yields more than `size` bytes
 */
export async function* applyDelta(
  delta: AsyncIterable<Uint8Array>,
  base: Base,
  size: number,
): AsyncGenerator<Uint8Array> {
  const header = Buffer.alloc(HEADER_BYTES[COPY]);
  let headerLength = 0;
  /** Bytes of the current insertion that have not arrived. */
  let inserting = 0;
  let written = 0;
  let copies = 0;
  const count = (bytes: number) => {
    written += bytes;
    if (written > size) throw invalidDelta(`yields more than ${size} bytes`);
  };
  for await (const piece of delta) {
    for (let at = 0; at < piece.length; ) {
      if (inserting > 0) {
        const part = piece.subarray(at, at + inserting);
        at += part.length;
        inserting -= part.length;
        yield part;
        continue;
      }
      header[headerLength++] = piece[at++] as number;
      const kind = header[0];
      if (kind !== COPY && kind !== INSERT)
        throw invalidDelta(`has an instruction of the unknown kind ${kind}`);
      if (headerLength < HEADER_BYTES[kind]) continue;
      headerLength = 0;
      if (kind === INSERT) {
        inserting = header.readUInt32BE(1);
        count(inserting);
        continue;
      }
      if (++copies > MAX_COPIES) throw invalidDelta(`has more than ${MAX_COPIES} copies`);
      const offset = Number(header.readBigUInt64BE(1));
      const length = Number(header.readBigUInt64BE(9));
      if (length === 0 || offset + length > base.size)
        throw invalidDelta(`copies ${length} bytes at ${offset} of a base of ${base.size}`);
      count(length);
      yield* await base.open({ start: offset, end: offset + length - 1 });
    }
  }
  if (headerLength > 0 || inserting > 0) throw invalidDelta('ends within an instruction');
}

function invalidDelta(reason: string): AppError {
  return unprocessable('delta', reason);
}
