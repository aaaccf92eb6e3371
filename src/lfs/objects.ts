/** The large files of a repository, one at a time: taken in, given out, looked for. Callers have asked for the right. */
import type { Readable } from 'node:stream';
import { AppError, invalid, notFound, unprocessable } from '../errors.ts';
import { demandRoom } from '../limits/quotas.ts';
import type { Services } from '../services.ts';
import type { ByteRange } from '../storage/storage.ts';

/** `oid`: SHA-256 in hexadecimal, lower case. `size`: in bytes. */
export type LfsObject = { oid: string; size: number };

/** @throws AppError 422 for what is no SHA-256 as git-lfs writes it */
export function demandOid(oid: string): void {
  if (!isOid(oid)) throw unprocessable('oid', 'must be 64 hexadecimal digits, in lower case');
}

export function isOid(value: unknown): value is string {
  return typeof value === 'string' && /^[0-9a-f]{64}$/.test(value);
}

/** @throws AppError 403 `quota_exceeded` when the namespace of the repository has no room for so many bytes, 404 */
export async function demandRoomFor(
  services: Pick<Services, 'db' | 'config'>,
  repositoryId: string,
  bytes: number,
): Promise<void> {
  const row = await services.db.repository.findUnique({
    where: { id: repositoryId },
    select: { namespace: { select: { id: true, plan: true } } },
    relationLoadStrategy: 'join',
  });
  if (!row) throw notFound('Repository');
  await demandRoom(services, row.namespace, 'storageBytes', bytes);
}

/** Whether the repository has what its client says it has uploaded. @throws AppError 400, 404, 422 */
export async function verifyUpload(
  { largeFiles }: Pick<Services, 'largeFiles'>,
  repositoryId: string,
  { oid, size }: { oid?: unknown; size?: unknown },
): Promise<void> {
  if (!isOid(oid)) throw invalid('oid', 'must be 64 hexadecimal digits, in lower case');
  if (!Number.isSafeInteger(size)) throw invalid('size', 'must be a whole number of bytes');
  const known = (await largeFiles.sizes(repositoryId, [oid])).get(oid);
  if (known === undefined) throw noObject(oid);
  if (known !== size) throw unprocessable('size', `the object ${oid} has ${known} bytes`);
}

export type LfsDownload = {
  /** In bytes. */
  size: number;
  open(range?: ByteRange): Promise<Readable>;
};

/** @throws AppError 404 when the repository was not given it, 422 for what is no SHA-256 */
export async function findObject(
  { largeFiles }: Pick<Services, 'largeFiles'>,
  repositoryId: string,
  oid: string,
): Promise<LfsDownload> {
  demandOid(oid);
  const size = (await largeFiles.sizes(repositoryId, [oid])).get(oid);
  if (size === undefined) throw noObject(oid);
  return {
    size,
    async open(range) {
      const cut = range && { start: range.start, end: range.end + 1 };
      const found = await largeFiles.open(repositoryId, oid, cut);
      // It was removed between the two.
      if (!found) throw noObject(oid);
      return found.body;
    },
  };
}

function noObject(oid: string): AppError {
  return new AppError('not_found', `The object ${oid} is not in this repository`);
}
