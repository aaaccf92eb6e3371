/** Large files (git-lfs): who may do what with those of a repository, and where a client finds them. */
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

/** What a server holds for large files. Its transfers are uploads and downloads. */
export type Lfs = TransferSemaphores & { tokens: LfsTokens };

/** @param atOnce how many transfers of large files run at once, shared out as those of git are */
export function openLfs(key: Uint8Array, atOnce: number): Lfs {
  return { tokens: createLfsTokens(key), ...openTransferSemaphores(atOnce) };
}

/** A repository by name, without `.git`. */
export type LfsKey = { namespace: string; name: string };

export function actionOf(operation: LfsOperation): GitAction {
  return operation === 'upload' ? 'repository.push' : 'repository.read';
}

/**
 * The id of a repository whose large files the viewer may read, or add to: the rule of fetches and pushes.
 * @throws AppError as `openForGit`
 */
export async function openForLfs(
  services: { db: Db; pool: pg.Pool; space: DiskSpace },
  viewer: Viewer,
  key: LfsKey,
  operation: LfsOperation,
): Promise<string> {
  return authorizeGit(services, viewer, key, actionOf(operation));
}

const rowColumns = { ...accessColumns, name: true } as const;
export type LockedRow = Prisma.RepositoryGetPayload<{ select: typeof rowColumns }>;

/** The row of a repository, which nobody else changes until the transaction ends; null when it is gone. */
export async function lockedRow(
  tx: Prisma.TransactionClient,
  id: string,
): Promise<LockedRow | null> {
  const isThere = await lockRepository(tx, id);
  return isThere ? tx.repository.findUnique({ where: { id }, select: rowColumns }) : null;
}

/** Where the API of git-lfs is for a repository, without a trailing slash. */
export function addressOf({ urls }: { urls: Urls }, { namespace, name }: LfsKey): string {
  return `${urls.base}/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}.git/info/lfs`;
}
