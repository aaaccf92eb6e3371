/** Large files (git-lfs): permissions, tokens and the API's URL. */
import type pg from 'pg';
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { Urls } from '../../base/urls.ts';
import type { Viewer } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import {
  openTransferSemaphores,
  type TransferSemaphores,
} from '../../platform/limits/fair-semaphore.ts';
import type { DiskSpace } from '../../platform/storage/disk-space.ts';
import { accessColumns, authorizeGit, type GitAction, lockRepository } from '../repositories.ts';
import { createLfsTokens, type LfsOperation, type LfsTokens } from './tokens.ts';

/** The state of one server for large files. Transfers are uploads and downloads. */
export type Lfs = TransferSemaphores & { tokens: LfsTokens };

/** @param atOnce maximum concurrent transfers of large files, queued in the same way as those of git */
export function openLfs(key: Uint8Array, atOnce: number): Lfs {
  return { tokens: createLfsTokens(key), ...openTransferSemaphores(atOnce) };
}

/** A repository by name, without `.git`. */
export type LfsRepositoryName = { namespace: string; name: string };

export function gitActionFor(operation: LfsOperation): GitAction {
  return operation === 'upload' ? 'repository.push' : 'repository.read';
}

/**
 * Returns the id of the repository if the viewer may fetch (download) or push (upload).
 * @throws AppError as `authorizeGit`
 */
export async function authorizeLfs(
  services: { db: Db; pool: pg.Pool; space: DiskSpace },
  viewer: Viewer,
  key: LfsRepositoryName,
  operation: LfsOperation,
): Promise<string> {
  return authorizeGit(services, viewer, key, gitActionFor(operation));
}

const rowColumns = { ...accessColumns, name: true } as const;
export type LockedRow = Prisma.RepositoryGetPayload<{ select: typeof rowColumns }>;

/** Locks the row of a repository until the end of the transaction. Returns null if the repository is gone. */
export async function lockRepositoryRow(tx: Db, id: string): Promise<LockedRow | null> {
  const isThere = await lockRepository(tx, id);
  return isThere ? tx.repository.findUnique({ where: { id }, select: rowColumns }) : null;
}

/** The URL of a repository's git-lfs API, without a trailing slash. */
export function lfsUrl({ urls }: { urls: Urls }, { namespace, name }: LfsRepositoryName): string {
  return `${urls.base}/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}.git/info/lfs`;
}
