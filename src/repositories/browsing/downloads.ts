/** Files by link: signed, for 15 minutes, without a header (decisions section 3). */

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
import { inFolder } from '../folder.ts';

/** Where downloads are served; `repository` is no namespace's name. */
export const DOWNLOAD_PATH = '/repository/:id/blobs/:oid/:name';
/** Of large files, which are not git's. */
export const LARGE_DOWNLOAD_PATH = '/repository/:id/large-files/:oid/:name';

/** Of a blob. The link names the content, so it keeps its meaning when the branch moves or the repository is renamed. */
export function downloadUrl(
  { signer, urls }: { signer: Signer; urls: Urls },
  repositoryId: string,
  oid: string,
  path: string,
): string {
  const url = `${urls.base}/repository/${repositoryId}/blobs/${oid}/${nameOf(path)}`;
  return signer.signUrl(url, thing(repositoryId, oid));
}

/** As `downloadUrl`, of a large file. */
export function largeFileUrl(
  { signer, urls }: { signer: Signer; urls: Urls },
  repositoryId: string,
  oid: string,
  path: string,
): string {
  const url = `${urls.base}/repository/${repositoryId}/large-files/${oid}/${nameOf(path)}`;
  return signer.signUrl(url, largeThing(repositoryId, oid));
}

function nameOf(path: string): string {
  return encodeURIComponent(path.slice(path.lastIndexOf('/') + 1));
}

export type DownloadLink = { id: string; oid: string; query: Record<string, unknown> };

/** @throws AppError 403 for a link without a valid signature or that has expired, 404 for what cannot be one */
export function demandLink({ signer }: { signer: Signer }, { id, oid, query }: DownloadLink): void {
  if (!isId('repo', id) || !isObjectId(oid)) throw notFound('File');
  if (!signer.verify(thing(id, oid), query)) throw noLink();
}

/** As `demandLink`, of a large file. */
export function demandLargeLink(
  { signer }: { signer: Signer },
  { id, oid, query }: DownloadLink,
): void {
  if (!isId('repo', id)) throw notFound('File');
  if (!signer.verify(largeThing(id, oid), query)) throw noLink();
}

export function noLink(): AppError {
  return forbidden('This link is not valid or has expired; ask for a new one');
}

export type Download = {
  size: number;
  /** Content from the byte `start` to the byte `end`, both included. @throws AppError 404, 500, 503. */
  open(range?: { start: number; end: number }): Promise<AsyncIterable<Buffer>>;
};

/** What a good link names, on the server that has the repository. @throws AppError 404 when it is gone. */
export async function findDownload(
  services: { db: Db; git: Git; log: Logger },
  { id, oid }: DownloadLink,
): Promise<Download> {
  const { db, git } = services;
  const row = await db.repository.findUnique({ where: { id }, select: { id: true } });
  if (!row) throw notFound('Repository');
  const [info] = await inFolder(services, id, (dir) =>
    git.objects.use(dir, (objects) => objects.info([oid])),
  );
  if (info?.type !== 'blob') throw notFound('File');
  return {
    size: info.size,
    async open(range = { start: 0, end: info.size - 1 }) {
      return cut(await inFolder(services, id, (dir) => openBlob(dir, oid)), range);
    },
  };
}

function thing(repositoryId: string, oid: string): string {
  return `blob:${repositoryId}:${oid}`;
}

function largeThing(repositoryId: string, oid: string): string {
  return `large-file:${repositoryId}:${oid}`;
}

/** Git gives objects from their beginning only, so what lies before the range is read and dropped. */
async function* cut(
  stream: Readable,
  { start, end }: { start: number; end: number },
): AsyncGenerator<Buffer> {
  let at = 0;
  // Leaving the loop, also because the reader went away, destroys the stream and ends its process.
  for await (const chunk of stream as AsyncIterable<Buffer>) {
    const from = Math.max(start - at, 0);
    const to = Math.min(end + 1 - at, chunk.length);
    if (from < to) yield chunk.subarray(from, to);
    at += chunk.length;
    if (at > end) return;
  }
  if (at <= end) throw new Error('git ended before the content did');
}
