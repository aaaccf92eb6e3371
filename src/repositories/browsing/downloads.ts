/** Signed links that download a file without credentials for a limited time (`signed-links.ts`). */

import type { Readable } from 'node:stream';
import { type AppError, forbidden, notFound } from '../../base/errors.ts';
import { isId } from '../../base/ids.ts';
import type { Logger } from '../../base/log.ts';
import type { Urls } from '../../base/urls.ts';
import type { Git } from '../../git/git.ts';
import { isObjectId } from '../../git/names.ts';
import { openBlob } from '../../git/objects/read.ts';
import type { Signer } from '../../platform/crypto/signed-links.ts';
import type { Db } from '../../platform/database/client.ts';
import { withRepositoryFolder } from '../folder.ts';

/** `repository` is a reserved namespace name, so these paths conflict with no page of a namespace. */
export const BLOB_DOWNLOAD_PATH = '/repository/:id/blobs/:oid/:name';
/** Large files are LFS objects, not git objects. */
export const LARGE_FILE_DOWNLOAD_PATH = '/repository/:id/large-files/:oid/:name';

/**
 * Creates a link to a blob. The link contains ids, so within its lifetime it works even if the branch moves or the
 * repository is renamed.
 */
export function createBlobLink(
  { signer, urls }: { signer: Signer; urls: Urls },
  repositoryId: string,
  oid: string,
  path: string,
): string {
  const url = `${urls.base}/repository/${repositoryId}/blobs/${oid}/${fileNameOf(path)}`;
  return signer.signUrl(url, blobSubject(repositoryId, oid));
}

/** Like `createBlobLink`, for a large file. */
export function createLargeFileLink(
  { signer, urls }: { signer: Signer; urls: Urls },
  repositoryId: string,
  oid: string,
  path: string,
): string {
  const url = `${urls.base}/repository/${repositoryId}/large-files/${oid}/${fileNameOf(path)}`;
  return signer.signUrl(url, largeFileSubject(repositoryId, oid));
}

function fileNameOf(path: string): string {
  return encodeURIComponent(path.slice(path.lastIndexOf('/') + 1));
}

export type DownloadLink = { id: string; oid: string; query: Record<string, unknown> };

/** @throws AppError 403 if the signature is invalid or expired, 404 for malformed ids */
export function verifyBlobLink(
  { signer }: { signer: Signer },
  { id, oid, query }: DownloadLink,
): void {
  if (!isId('repo', id) || !isObjectId(oid)) throw notFound('File');
  if (!signer.verify(blobSubject(id, oid), query)) throw invalidLink();
}

/** Like `verifyBlobLink`, for a large file. */
export function verifyLargeFileLink(
  { signer }: { signer: Signer },
  { id, oid, query }: DownloadLink,
): void {
  if (!isId('repo', id)) throw notFound('File');
  if (!signer.verify(largeFileSubject(id, oid), query)) throw invalidLink();
}

export function invalidLink(): AppError {
  return forbidden('This link is not valid or has expired; ask for a new one');
}

type Download = {
  size: number;
  /** Streams the bytes from `start` to `end`, both included. @throws as `withRepositoryFolder` and `openBlob` */
  open(range?: { start: number; end: number }): Promise<AsyncIterable<Buffer>>;
};

/**
 * Finds the blob of a verified link. Must be called on the server that has the repository.
 * @throws AppError 404 if the repository or the blob no longer exists
 */
export async function findBlobDownload(
  services: { db: Db; git: Git; log: Logger },
  { id, oid }: DownloadLink,
): Promise<Download> {
  const { db, git } = services;
  const row = await db.repository.findUnique({ where: { id }, select: { id: true } });
  if (!row) throw notFound('Repository');
  const [info] = await withRepositoryFolder(services, id, (dir) =>
    git.objects.use(dir, (objects) => objects.info([oid])),
  );
  if (info?.type !== 'blob') throw notFound('File');
  return {
    size: info.size,
    async open(range = { start: 0, end: info.size - 1 }) {
      return readRange(
        await withRepositoryFolder(services, id, (dir) => openBlob(dir, oid)),
        range,
      );
    },
  };
}

function blobSubject(repositoryId: string, oid: string): string {
  return `blob:${repositoryId}:${oid}`;
}

function largeFileSubject(repositoryId: string, oid: string): string {
  return `large-file:${repositoryId}:${oid}`;
}

/** Git can only output objects from the beginning, so the bytes before the range are discarded. */
async function* readRange(
  stream: Readable,
  { start, end }: { start: number; end: number },
): AsyncGenerator<Buffer> {
  let position = 0;
  // Leaving the loop, even because the client disconnected, destroys the stream and ends its git process.
  for await (const chunk of stream as AsyncIterable<Buffer>) {
    const from = Math.max(start - position, 0);
    const to = Math.min(end + 1 - position, chunk.length);
    if (from < to) yield chunk.subarray(from, to);
    position += chunk.length;
    if (position > end) return;
  }
  if (position <= end) throw new Error('git ended before the end of the object');
}
