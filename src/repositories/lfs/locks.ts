/**
 * Locks: a file that one user alone may change by pushes, until they, or an administrator, end the lock. Git itself
 * cannot merge two versions of most large files.
 *
 * A lock is of a path on all branches. It follows the repository when that is renamed or transferred, and goes with it.
 * The judge of pushes (`repos/pushes/locks.ts`) refuses commits that change what another user has locked.
 */

import type { Prisma } from '../../../prisma/generated/client.ts';
import { AppError, forbidden, invalid, notFound } from '../../base/errors.ts';
import { isId, newId } from '../../base/ids.ts';
import { type AuditAction, recordAudit } from '../../identity/audit.ts';
import { type Action, demand, demandAccount, type Viewer } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import { inTransaction } from '../../platform/database/client.ts';
import { readCursorPage, type Sorting } from '../../platform/database/keyset.ts';
import type { CursorPage, CursorPageRequest } from '../../platform/database/paging.ts';
import { type AccessRow, accessTarget } from '../repositories.ts';
import { type LockedRow, lockedRow } from './lfs.ts';

export type Lock = {
  id: string;
  path: string;
  lockedAt: Date;
  owner: { id: string; username: string };
};

/** In UTF-8. */
const MAX_PATH_BYTES = 1_024;
/** Of a repository: each push to one with locks of others reads them all. */
const MAX_LOCKS = 10_000;

const OLDEST: Sorting = { name: 'locks', column: 'id', type: 'text', order: 'asc' };

const columns = {
  id: true,
  path: true,
  lockedAt: true,
  owner: { select: { id: true, username: true } },
} as const satisfies Prisma.FileLockSelect;

/** 409: the path is locked already, perhaps by the one who asks. */
export class AlreadyLocked extends AppError {
  readonly lock: Lock;

  constructor(lock: Lock) {
    super('conflict', `${lock.path} is locked by ${lock.owner.username} already`);
    this.lock = lock;
  }
}

/**
 * Locks a path for the viewer, whether or not there is a file.
 * @throws AppError 400, 401, 403, 404; 409 for too many; AlreadyLocked
 */
export async function lockFile(
  { db }: { db: Db },
  viewer: Viewer,
  { repositoryId, path }: { repositoryId: string; path: string },
): Promise<Lock> {
  const account = demandAccount(viewer);
  return inTransaction(db, async (tx) => {
    const row = await demandRight(tx, viewer, repositoryId, 'repository.push');
    checkPath(path);
    const key = { repositoryId_path: { repositoryId, path } };
    const taken = await tx.fileLock.findUnique({ where: key, select: columns });
    if (taken) throw new AlreadyLocked(taken);
    if ((await tx.fileLock.count({ where: { repositoryId } })) >= MAX_LOCKS)
      throw new AppError('conflict', `A repository has at most ${MAX_LOCKS} locks`);
    const data = { id: newId('lock'), repositoryId, path, ownerId: account.userId };
    const lock = await tx.fileLock.create({ data, select: columns });
    await recordLock(tx, viewer, 'large_file.lock', row, lock);
    return lock;
  });
}

/**
 * Ends a lock. That of another user takes `force`, and the right to administer the repository.
 * @throws AppError 401, 403, 404
 */
export async function unlockFile(
  { db }: { db: Db },
  viewer: Viewer,
  { repositoryId, id, force }: { repositoryId?: string; id: string; force: boolean },
): Promise<Lock> {
  const { userId } = demandAccount(viewer);
  if (!isId('lock', id)) throw notFound('Lock');
  return inTransaction(db, async (tx) => {
    const found = await tx.fileLock.findUnique({ where: { id }, select: { repositoryId: true } });
    if (!found || (repositoryId && found.repositoryId !== repositoryId)) throw notFound('Lock');
    const row = await demandRight(tx, viewer, found.repositoryId, 'repository.push');
    // Read again under the lock of the repository: another may have ended it.
    const lock = await tx.fileLock.findUnique({ where: { id }, select: columns });
    if (!lock) throw notFound('Lock');
    if (lock.owner.id !== userId) {
      if (!force)
        throw forbidden(
          `${lock.path} is locked by ${lock.owner.username}; an administrator can end the lock by force`,
        );
      demand(viewer, 'repository.administer', accessTarget(row));
    }
    await tx.fileLock.delete({ where: { id } });
    await recordLock(tx, viewer, 'large_file.unlock', row, lock);
    return lock;
  });
}

export type LockFilter = { path?: string | null; id?: string | null };

/** Those of a repository that the viewer may read, oldest first. @throws AppError 400, 401, 403 */
export function locksOf(
  services: { db: Db },
  viewer: Viewer,
  repository: AccessRow,
  range: CursorPageRequest & LockFilter,
): Promise<CursorPage<Lock>> {
  demand(viewer, 'repository.read', accessTarget(repository));
  return sliceLocks(services, repository.id, range);
}

/** Oldest first. The caller has asked for the right to read. @throws AppError 400 */
export async function sliceLocks(
  { db }: { db: Db },
  repositoryId: string,
  range: CursorPageRequest & LockFilter,
): Promise<CursorPage<Lock>> {
  const { path, id } = range;
  // What cannot be stored is not there.
  if (path?.includes('\0') || id?.includes('\0'))
    return { items: [], hasNextPage: false, totalCount: () => 0 };
  const where = { repositoryId, ...(path != null && { path }), ...(id != null && { id }) };
  return readCursorPage<Lock>(db.fileLock, OLDEST, range, { where, select: columns });
}

/** The row of a repository, which nobody else changes or locks files of until the transaction ends. */
async function demandRight(
  tx: Prisma.TransactionClient,
  viewer: Viewer,
  repositoryId: string,
  action: Action,
): Promise<LockedRow> {
  const row = await lockedRow(tx, repositoryId);
  if (!row) throw notFound('Repository');
  demand(viewer, action, accessTarget(row));
  return row;
}

async function recordLock(
  tx: Prisma.TransactionClient,
  viewer: Viewer,
  action: AuditAction,
  { id, name, namespaceId }: LockedRow,
  { path, owner }: Lock,
): Promise<void> {
  const details = { path, owner: owner.username };
  const namespaceIds = [namespaceId];
  await recordAudit(tx, demandAccount(viewer), {
    action,
    namespaceIds,
    subject: id,
    name,
    details,
  });
}

/** @throws AppError 400 naming `path` for what cannot be a file's in a repository */
function checkPath(path: string): void {
  if (path === '') throw invalid('path', 'must not be empty');
  if (Buffer.byteLength(path) > MAX_PATH_BYTES)
    throw invalid('path', `must be at most ${MAX_PATH_BYTES} bytes`);
  if (path.includes('\0')) throw invalid('path', 'must not hold a NUL character');
  if (path.split('/').some((part) => ['', '.', '..'].includes(part)))
    throw invalid('path', 'must lead from the root to a file, without "." and ".."');
}
