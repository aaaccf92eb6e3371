/** The large files of a repository: looked for, given out, listed, deleted. */

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
import { lockedRow } from './lfs.ts';
import type { LargeFiles } from './store/store.ts';

/** `oid`: SHA-256 in hexadecimal, lower case. `size`: in bytes. */
export type LfsObject = { oid: string; size: number };

/** @throws AppError 422 for what is no SHA-256 as git-lfs writes it */
export function demandOid(oid: string): void {
  if (!isOid(oid)) throw unprocessable('oid', 'must be 64 hexadecimal digits, in lower case');
}

export function isOid(value: unknown): value is string {
  return typeof value === 'string' && /^[0-9a-f]{64}$/.test(value);
}

/**
 * Room for objects that the repository does not have. Uploads that were begun have theirs.
 * @throws AppError 403 `quota_exceeded` when the namespace of the repository has none, 404
 */
export async function demandRoomFor(
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

/** Whether the repository has what its client says it has uploaded. @throws AppError 400, 404, 422 */
export async function verifyUpload(
  { largeFiles }: { largeFiles: LargeFiles },
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
  open(range?: ByteRange): Promise<AsyncIterable<Uint8Array>>;
};

/** @throws AppError 404 when the repository was not given it, 422 for what is no SHA-256 */
export async function findObject(
  { largeFiles }: { largeFiles: LargeFiles },
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
      return found.pieces;
    },
  };
}

export type ListedObject = { id: string; oid: string; size: bigint; givenAt: Date };

/** Those of a repository that the viewer may read, newest first. @throws AppError 400, 401, 403 */
export function objectsOf(
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

/** As many are deleted at once. */
const MAX_DELETED = 1_000;

/**
 * Takes large files from a repository, whose pointers to them then lead nowhere. The audit log has the entry before they
 * go: a kill between the two must not leave a deletion that nobody is named for.
 * @returns those that it had
 * @throws AppError 400, 401, 403 unless the viewer may administer it, 404
 */
export async function deleteObjects(
  { db, largeFiles }: { db: Db; largeFiles: LargeFiles },
  viewer: Viewer,
  { repositoryId, oids }: { repositoryId: string; oids: readonly string[] },
): Promise<string[]> {
  const account = demandAccount(viewer);
  if (oids.length > MAX_DELETED) throw invalid('oids', `must be at most ${MAX_DELETED}`);
  if (!oids.every(isOid))
    throw invalid('oids', 'must each be 64 hexadecimal digits, in lower case');
  const found = await inTransaction(db, async (tx) => {
    const row = await lockedRow(tx, repositoryId);
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

/** Of their names in the audit log. */
const MAX_RECORDED = 100;

function noObject(oid: string): AppError {
  return new AppError('not_found', `The object ${oid} is not in this repository`);
}
