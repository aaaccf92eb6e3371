/**
 * Uploads that can be resumed, by the part of tus 1.0.0 that git-lfs speaks (`lfs.tustransfers`): HEAD says how many
 * bytes are here, and PATCH sends all that follow. The address comes from a batch, so nothing is created here.
 *
 * `@tus/server` was looked at: it keeps its uploads in files or S3 parts of its own, with state beside them, from which
 * each object would have to be copied into the store; of the protocol, two requests are left.
 */
import { AppError, invalid } from '../../base/errors.ts';
import { demandOid, type LfsObject } from './objects.ts';

const VERSION = '1.0.0';
const MEDIA_TYPE = 'application/offset+octet-stream';
/** Numbers of bytes: more digits than any object has. */
const NUMBER = /^\d{1,15}$/;

/** Of every answer. */
export const TUS_HEADERS = { 'Tus-Resumable': VERSION, 'Cache-Control': 'no-store' };

/** Below the address of a repository's large files. `size`: of the object, which a HEAD has no other place for. */
export function resumablePath({ oid, size }: LfsObject): string {
  return `uploads/${oid}?size=${size}`;
}

export type TusRequest = {
  oid: string;
  /** Of its query. */
  size: unknown;
  header(name: string): string | undefined;
};

/** The object that a request is about. @throws AppError 400, 412 for another version, 422 */
export function readTarget({ oid, size, header }: TusRequest): LfsObject {
  if (header('tus-resumable') !== VERSION)
    throw new AppError('invalid_request', `Tus-Resumable: must be ${VERSION}`, {
      status: 412,
      headers: { 'Tus-Version': VERSION },
    });
  demandOid(oid);
  if (typeof size !== 'string' || !NUMBER.test(size))
    throw invalid('size', 'must be the number of bytes of the object');
  return { oid, size: Number(size) };
}

/** The same of a PATCH, and the place of its first byte in the object. @throws AppError 400, 411, 412, 415, 422 */
export function readRest(request: TusRequest): LfsObject & { from: number } {
  const object = readTarget(request);
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
    throw invalid('Content-Length', `must be all that follows: ${Math.max(0, size - from)} bytes`);
  return { ...object, from };
}
