/** Files by link: signed, for 15 minutes, without a header (decisions section 3). */
import type { Readable } from 'node:stream';
import { type AppError, forbidden, notFound } from '../../base/errors.ts';
import { isId } from '../../base/ids.ts';
import { isObjectId } from '../../git/names.ts';
import { openBlob } from '../../git/objects/read.ts';
import { demand, type Viewer } from '../../identity/permissions.ts';
import type { Services } from '../../services.ts';
import { folderWork, inFolder, type Reads } from '../folder.ts';
import { type AccessRow, target } from '../repositories.ts';
import { find } from './contents.ts';

/** Where downloads are served; `repository` is no namespace's name. */
export const DOWNLOAD_PATH = '/repository/:id/blobs/:oid/:name';
/** Of large files, which are not git's. */
export const LARGE_DOWNLOAD_PATH = '/repository/:id/large-files/:oid/:name';

/** Of all files of a commit. */
export const ARCHIVE_PATH = '/repository/:id/archives/:commit/:name';

export const ARCHIVE_FORMATS = ['tar.gz', 'zip'] as const;
export type ArchiveFormat = (typeof ARCHIVE_FORMATS)[number];

/**
 * A link to an archive of what `ref` names now. All that is in it lies in a folder of the archive's name.
 * @throws AppError 401, 403, 404 for an unknown ref
 */
export async function archiveUrl(
  services: Reads & Pick<Services, 'signer' | 'urls'>,
  viewer: Viewer,
  repository: AccessRow & { name: string },
  { ref, format }: { ref?: string | null; format: ArchiveFormat },
): Promise<string> {
  demand(viewer, 'repository.read', target(repository));
  const { id, defaultBranch } = repository;
  const found = await commitNamed(services, id, { defaultBranch, ref });
  // What a file may be called everywhere.
  const shown = found.ref.replaceAll(/[^0-9A-Za-z._-]+/g, '-').slice(0, 100);
  const name = `${repository.name}-${shown}.${format}`;
  const url = `${services.urls.base}/repository/${id}/archives/${found.commit}/${name}`;
  return services.signer.signUrl(url, archiveThing(id, found.commit, name));
}

type At = { defaultBranch: string; ref?: string | null };

const commitNamed = folderWork('commitNamed', async ({ git }, dir, at: At) => {
  const found = await git.objects.use(dir, (objects) => find(objects, at, at.ref, ''));
  if (!found) throw notFound('Ref');
  return { ref: found.ref, commit: found.commit };
});

/** Of a blob. The link names the content, so it keeps its meaning when the branch moves or the repository is renamed. */
export function downloadUrl(
  { signer, urls }: Pick<Services, 'signer' | 'urls'>,
  repositoryId: string,
  oid: string,
  path: string,
): string {
  const url = `${urls.base}/repository/${repositoryId}/blobs/${oid}/${nameOf(path)}`;
  return signer.signUrl(url, thing(repositoryId, oid));
}

/** As `downloadUrl`, of a large file. */
export function largeFileUrl(
  { signer, urls }: Pick<Services, 'signer' | 'urls'>,
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
export function demandLink(
  { signer }: Pick<Services, 'signer'>,
  { id, oid, query }: DownloadLink,
): void {
  if (!isId('repo', id) || !isObjectId(oid)) throw notFound('File');
  if (!signer.verify(thing(id, oid), query)) throw noLink();
}

/** As `demandLink`, of a large file. */
export function demandLargeLink(
  { signer }: Pick<Services, 'signer'>,
  { id, oid, query }: DownloadLink,
): void {
  if (!isId('repo', id)) throw notFound('File');
  if (!signer.verify(largeThing(id, oid), query)) throw noLink();
}

export type ArchiveLink = {
  id: string;
  commit: string;
  name: string;
  query: Record<string, unknown>;
};

/** As `demandLink`, of an archive. @returns its format, and the folder in it */
export function demandArchiveLink(
  { signer }: Pick<Services, 'signer'>,
  { id, commit, name, query }: ArchiveLink,
): { format: ArchiveFormat; folder: string } {
  const format = ARCHIVE_FORMATS.find((one) => name.endsWith(`.${one}`));
  if (!isId('repo', id) || !isObjectId(commit) || !format) throw notFound('Archive');
  if (!signer.verify(archiveThing(id, commit, name), query)) throw noLink();
  return { format, folder: name.slice(0, -format.length - 1) };
}

function noLink(): AppError {
  return forbidden('This link is not valid or has expired; ask for a new one');
}

export type Download = {
  size: number;
  /** Content from the byte `start` to the byte `end`, both included. @throws AppError 404, 500, 503. */
  open(range?: { start: number; end: number }): Promise<AsyncIterable<Buffer>>;
};

/** What a good link names, on the server that has the repository. @throws AppError 404 when it is gone. */
export async function findDownload(
  services: Pick<Services, 'db' | 'git' | 'log'>,
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

function archiveThing(repositoryId: string, commit: string, name: string): string {
  return `archive:${repositoryId}:${commit}:${name}`;
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
