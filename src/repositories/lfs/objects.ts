/** The large files of a repository: lookups, downloads, lists, deletion. */

import type { Config } from '../../base/config/config.ts';
import { AppError, invalid, notFound, unprocessable } from '../../base/errors.ts';
import { recordAudit } from '../../identity/audit.ts';
import { demand, demandAccount, type Viewer } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import { inTransaction } from '../../platform/database/client.ts';
import { NEWEST_FIRST, readCursorPage } from '../../platform/database/keyset.ts';
import type { CursorPage, CursorPageRequest } from '../../platform/database/paging.ts';
import { requireQuota } from '../../platform/limits/quotas.ts';
import type { ByteRange } from '../../platform/storage/storage.ts';
import { type AccessRow, accessTarget, repositoryNotFound } from '../repositories.ts';
import { lockRepositoryRow } from './lfs.ts';
import type { LargeFiles } from './store/store.ts';

/** `oid`: SHA-256 in hexadecimal, lower case. `size`: in bytes. */
export type LfsObject = { oid: string; size: number };

/** @throws AppError 422 */
export function requireOid(oid: string): void {
  if (!isOid(oid)) throw unprocessable('oid', 'must be 64 lowercase hexadecimal digits');
}

export function isOid(value: unknown): value is string {
  return typeof value === 'string' && /^[0-9a-f]{64}$/.test(value);
}

/**
 * Checks that the namespace has storage for objects that the repository does not have. Uploads in progress have
 * reserved theirs.
 * @throws AppError 403 `quota_exceeded`, 404
 */
export async function requireStorageFor(
  services: { db: Db; config: Config },
  repositoryId: string,
  objects: readonly LfsObject[],
): Promise<void> {
  if (objects.length === 0) return;
  const row = await services.db.repository.findUnique({
    where: { id: repositoryId },
    select: {
      namespace: { select: { id: true, plan: true } },
      largeUploads: {
        where: { oid: { in: objects.map(({ oid }) => oid) } },
        select: { oid: true, size: true },
      },
    },
  });
  if (!row) throw notFound('Repository');
  const begun = new Map(row.largeUploads.map(({ oid, size }) => [oid, Number(size)]));
  const bytes = objects.reduce((sum, { oid, size }) => sum + size - (begun.get(oid) ?? 0), 0);
  if (bytes > 0) await requireQuota(services, row.namespace, 'storageBytes', bytes);
}

/** Checks that the repository has the uploaded object. @throws AppError 400, 404, 422 */
export async function verifyUpload(
  { largeFiles }: { largeFiles: LargeFiles },
  repositoryId: string,
  { oid, size }: { oid?: unknown; size?: unknown },
): Promise<void> {
  if (!isOid(oid)) throw invalid('oid', 'must be 64 lowercase hexadecimal digits');
  if (!Number.isSafeInteger(size)) throw invalid('size', 'must be a whole number of bytes');
  const known = (await largeFiles.sizes(repositoryId, [oid])).get(oid);
  if (known === undefined) throw objectNotFound(oid);
  if (known !== size) throw unprocessable('size', `the object ${oid} has ${known} bytes`);
}

type LfsDownload = {
  /** In bytes. */
  size: number;
  open(range?: ByteRange): Promise<AsyncIterable<Uint8Array>>;
};

/** @throws AppError 404 if the repository does not have the object, 422 for an invalid `oid` */
export async function findObject(
  { largeFiles }: { largeFiles: LargeFiles },
  repositoryId: string,
  oid: string,
): Promise<LfsDownload> {
  requireOid(oid);
  const size = (await largeFiles.sizes(repositoryId, [oid])).get(oid);
  if (size === undefined) throw objectNotFound(oid);
  return {
    size,
    async open(range) {
      const cut = range && { start: range.start, end: range.end + 1 };
      const found = await largeFiles.open(repositoryId, oid, cut);
      // The object was removed after its size was read.
      if (!found) throw objectNotFound(oid);
      return found.pieces;
    },
  };
}

export type ListedObject = { id: string; oid: string; size: bigint; givenAt: Date };

/** Lists the objects of a repository, newest first. @throws AppError 400, 401, 403 */
export function listObjects(
  { db }: { db: Db },
  viewer: Viewer,
  repository: AccessRow,
  range: CursorPageRequest,
): Promise<CursorPage<ListedObject>> {
  demand(viewer, 'repository.read', accessTarget(repository));
  const select = { id: true, oid: true, size: true, givenAt: true };
  const where = { repositoryId: repository.id };
  return readCursorPage<ListedObject>(db.largeFile, NEWEST_FIRST, range, { where, select });
}

/** Per call. */
const MAX_DELETED = 1_000;

/**
 * Deletes objects from a repository, whose pointers to them remain. The audit entry is written first, so that a killed
 * server cannot leave a deletion without an entry.
 * @returns the deleted objects
 * @throws AppError 400, 401, 403 unless the viewer may administer the repository, 404
 */
export async function deleteObjects(
  { db, largeFiles }: { db: Db; largeFiles: LargeFiles },
  viewer: Viewer,
  { repositoryId, oids }: { repositoryId: string; oids: readonly string[] },
): Promise<string[]> {
  const account = demandAccount(viewer);
  if (oids.length > MAX_DELETED) throw invalid('oids', `must be at most ${MAX_DELETED}`);
  if (!oids.every(isOid)) throw invalid('oids', 'must each be 64 lowercase hexadecimal digits');
  const found = await inTransaction(db, async (tx) => {
    const row = await lockRepositoryRow(tx, repositoryId);
    if (!row) throw repositoryNotFound(repositoryId);
    demand(viewer, 'repository.administer', accessTarget(row));
    const here = await tx.largeFile.findMany({
      where: { repositoryId, oid: { in: [...oids] } },
      select: { oid: true },
    });
    const names = here.map(({ oid }) => oid);
    if (names.length === 0) return [];
    await recordAudit(tx, account, {
      action: 'large_file.delete',
      namespaceIds: [row.namespaceId],
      subject: repositoryId,
      name: row.name,
      details: { count: names.length, oids: names.slice(0, MAX_RECORDED) },
    });
    return names;
  });
  await largeFiles.remove(repositoryId, found);
  return found;
}

/** Objects listed in an audit entry. */
const MAX_RECORDED = 100;

function objectNotFound(oid: string): AppError {
  return new AppError('not_found', `The object ${oid} is not in this repository`);
}
