/**
 * Resumable uploads by the part of tus 1.0.0 that git-lfs uses (`lfs.tustransfers`): HEAD returns the number of stored
 * bytes, and PATCH sends the rest. The URL comes from a batch, so there is no request that creates an upload.
 *
 * Rejected: `@tus/server`, which keeps uploads and their state in files or S3 parts of its own. Each object would have
 * to be copied into the store, and only two requests of the protocol are needed.
 */
import { AppError, invalid } from '../../base/errors.ts';
import { type LfsObject, requireOid } from './objects.ts';

const VERSION = '1.0.0';
const MEDIA_TYPE = 'application/offset+octet-stream';
/** A number of bytes, with more digits than the largest object needs. */
const NUMBER = /^\d{1,15}$/;

/** For every response. */
export const TUS_HEADERS = { 'Tus-Resumable': VERSION, 'Cache-Control': 'no-store' };

/** Relative to `lfsUrl`. The object's size is in the query because a HEAD request has no body. */
export function tusUploadPath({ oid, size }: LfsObject): string {
  return `uploads/${oid}?size=${size}`;
}

export type TusRequest = {
  oid: string;
  /** From the query. */
  size: unknown;
  header(name: string): string | undefined;
};

/** @throws AppError 400, 412 for another version of tus, 422 */
export function readTusObject({ oid, size, header }: TusRequest): LfsObject {
  if (header('tus-resumable') !== VERSION)
    throw new AppError('invalid_request', `Tus-Resumable: must be ${VERSION}`, {
      status: 412,
      headers: { 'Tus-Version': VERSION },
    });
  requireOid(oid);
  if (typeof size !== 'string' || !NUMBER.test(size))
    throw invalid('size', 'must be the number of bytes of the object');
  return { oid, size: Number(size) };
}

/** `from`: offset of the first byte of the body in the object. @throws AppError 400, 411, 412, 415, 422 */
export function readTusPatch(request: TusRequest): LfsObject & { from: number } {
  const object = readTusObject(request);
  const { header } = request;
  if (header('content-type') !== MEDIA_TYPE)
    throw new AppError('invalid_request', `Content-Type: must be ${MEDIA_TYPE}`, { status: 415 });
  const length = header('content-length');
  if (length === undefined)
    throw new AppError('invalid_request', 'Content-Length is required', { status: 411 });
  const offset = header('upload-offset') ?? '';
  if (!NUMBER.test(offset)) throw invalid('Upload-Offset', 'must be a number of bytes');
  const from = Number(offset);
  const { size } = object;
  if (from + Number(length) !== size)
    throw invalid('Content-Length', `must be ${Math.max(0, size - from)}, the rest of the object`);
  return { ...object, from };
}
