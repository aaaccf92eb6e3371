/**
 * File locks: only the owner of a lock can push changes of the file, until the owner or an administrator removes the
 * lock. Git cannot merge two versions of most large files.
 *
 * A lock applies to a path on all branches, and belongs to the repository, also after a rename or transfer. The push
 * rules (`repositories/pushes/locks.ts`) refuse commits that change a file locked by another user.
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
import { type LockedRow, lockRepositoryRow } from './lfs.ts';

export type Lock = {
  id: string;
  path: string;
  lockedAt: Date;
  owner: { id: string; username: string };
};

const MAX_PATH_BYTES = 1_024;
/** Per repository. Pushes read all locks of other users. */
const MAX_LOCKS = 10_000;

const OLDEST: Sorting = { name: 'locks', column: 'id', type: 'text', order: 'asc' };

const columns = {
  id: true,
  path: true,
  lockedAt: true,
  owner: { select: { id: true, username: true } },
} as const satisfies Prisma.FileLockSelect;

/** 409: the path is locked already, possibly by the caller. */
export class AlreadyLockedError extends AppError {
  readonly lock: Lock;

  constructor(lock: Lock) {
    super('conflict', `${lock.path} is already locked by ${lock.owner.username}`);
    this.lock = lock;
  }
}

/**
 * Locks a path for the viewer, whether or not the file exists.
 * @throws AppError 400, 401, 403, 404; 409 for too many locks; AlreadyLockedError
 */
export async function lockFile(
  { db }: { db: Db },
  viewer: Viewer,
  { repositoryId, path }: { repositoryId: string; path: string },
): Promise<Lock> {
  const account = demandAccount(viewer);
  return inTransaction(db, async (tx) => {
    const row = await lockRowWithPermission(tx, viewer, repositoryId, 'repository.push');
    checkPath(path);
    const key = { repositoryId_path: { repositoryId, path } };
    const taken = await tx.fileLock.findUnique({ where: key, select: columns });
    if (taken) throw new AlreadyLockedError(taken);
    if ((await tx.fileLock.count({ where: { repositoryId } })) >= MAX_LOCKS)
      throw new AppError(
        'conflict',
        `A repository can have at most ${MAX_LOCKS} locks; remove a lock first`,
      );
    const data = { id: newId('lock'), repositoryId, path, ownerId: account.userId };
    const lock = await tx.fileLock.create({ data, select: columns });
    await recordLock(tx, viewer, 'large_file.lock', row, lock);
    return lock;
  });
}

/**
 * Removes a lock. For a lock of another user, `force` and the right to administer the repository are required.
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
    const row = await lockRowWithPermission(tx, viewer, found.repositoryId, 'repository.push');
    // Read again under the row lock, because another request may have removed the lock.
    const lock = await tx.fileLock.findUnique({ where: { id }, select: columns });
    if (!lock) throw notFound('Lock');
    if (lock.owner.id !== userId) {
      if (!force)
        throw forbidden(
          `${lock.path} is locked by ${lock.owner.username}; an administrator can remove the lock with "force"`,
        );
      demand(viewer, 'repository.administer', accessTarget(row));
    }
    await tx.fileLock.delete({ where: { id } });
    await recordLock(tx, viewer, 'large_file.unlock', row, lock);
    return lock;
  });
}

type LockFilter = { path?: string | null; id?: string | null };

/** Lists the locks of a repository, oldest first. @throws AppError 400, 401, 403 */
export function listLocks(
  services: { db: Db },
  viewer: Viewer,
  repository: AccessRow,
  range: CursorPageRequest & LockFilter,
): Promise<CursorPage<Lock>> {
  demand(viewer, 'repository.read', accessTarget(repository));
  return readLockPage(services, repository.id, range);
}

/** Like `listLocks`, without the permission check. @throws AppError 400 */
export async function readLockPage(
  { db }: { db: Db },
  repositoryId: string,
  range: CursorPageRequest & LockFilter,
): Promise<CursorPage<Lock>> {
  const { path, id } = range;
  // PostgreSQL rejects NUL characters, so no lock can match.
  if (path?.includes('\0') || id?.includes('\0'))
    return { items: [], hasNextPage: false, totalCount: () => 0 };
  const where = { repositoryId, ...(path != null && { path }), ...(id != null && { id }) };
  return readCursorPage<Lock>(db.fileLock, OLDEST, range, { where, select: columns });
}

/** Locks the repository row, so that no other transaction changes its locks, and checks the permission. */
async function lockRowWithPermission(
  tx: Db,
  viewer: Viewer,
  repositoryId: string,
  action: Action,
): Promise<LockedRow> {
  const row = await lockRepositoryRow(tx, repositoryId);
  if (!row) throw notFound('Repository');
  demand(viewer, action, accessTarget(row));
  return row;
}

async function recordLock(
  tx: Db,
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

/** @throws AppError 400 if git cannot have a file at `path` */
function checkPath(path: string): void {
  if (path === '') throw invalid('path', 'must not be empty');
  if (Buffer.byteLength(path) > MAX_PATH_BYTES)
    throw invalid('path', `must be at most ${MAX_PATH_BYTES} bytes`);
  if (path.includes('\0')) throw invalid('path', 'must not contain a NUL character');
  if (path.split('/').some((part) => ['', '.', '..'].includes(part)))
    throw invalid('path', 'must be relative to the root, without empty parts, "." and ".."');
}
