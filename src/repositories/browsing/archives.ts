/** Archives of all files of a commit, with large files in place of their pointers. */

import { Readable, type Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGzip } from 'node:zlib';
import type pg from 'pg';
import { notFound } from '../../base/errors.ts';
import { isId } from '../../base/ids.ts';
import type { Logger } from '../../base/log.ts';
import type { Urls } from '../../base/urls.ts';
import { isObjectId } from '../../git/names.ts';
import { startGit } from '../../git/processes/run.ts';
import { type ArchiveRequest, writeArchive } from '../../git/transport/transport.ts';
import type { Viewer } from '../../identity/permissions.ts';
import { demand } from '../../identity/permissions.ts';
import type { Signer } from '../../platform/crypto/signed-links.ts';
import type { Db } from '../../platform/database/client.ts';
import type { RepositoryReadDeps } from '../folder.ts';
import { defineFolderTask } from '../folder.ts';
import type { LargeFiles } from '../lfs/store/store.ts';
import type { AccessRow } from '../repositories.ts';
import { accessTarget } from '../repositories.ts';
import { replacePointersInTar } from './archive-tar.ts';
import { convertTarToZip } from './archive-zip.ts';
import { locateAtRef, type RefAt } from './contents.ts';
import { invalidLink } from './downloads.ts';
import { repositoryHasLargeFiles } from './large-files.ts';

/** Path that serves archives. */
export const ARCHIVE_PATH = '/repository/:id/archives/:commit/:name';

const ARCHIVE_FORMATS = ['tar.gz', 'zip'] as const;
export type ArchiveFormat = (typeof ARCHIVE_FORMATS)[number];

/**
 * Creates a signed link to an archive of the commit that `ref` currently names. The archive has one top-level folder of
 * the same name.
 * @throws AppError 401, 403, 404 for an unknown ref
 */
export async function createArchiveUrl(
  services: RepositoryReadDeps & { signer: Signer; urls: Urls },
  viewer: Viewer,
  repository: AccessRow & { name: string },
  { ref, format }: { ref?: string | null; format: ArchiveFormat },
): Promise<string> {
  demand(viewer, 'repository.read', accessTarget(repository));
  const { id, defaultBranch } = repository;
  const found = await resolveRef(services, id, { defaultBranch, ref });
  // Characters that are valid in file names on every system.
  const safeRef = found.ref.replaceAll(/[^0-9A-Za-z._-]+/g, '-').slice(0, 100);
  const name = `${repository.name}-${safeRef}.${format}`;
  const url = `${services.urls.base}/repository/${id}/archives/${found.commit}/${name}`;
  return services.signer.signUrl(url, archiveSubject(id, found.commit, name));
}

const resolveRef = defineFolderTask('commitNamed', async ({ git }, dir, at: RefAt) => {
  const found = await git.objects.use(dir, (objects) => locateAtRef(objects, at, at.ref, ''));
  if (!found) throw notFound('Ref');
  return { ref: found.ref, commit: found.commit };
});

type ArchiveLink = {
  id: string;
  commit: string;
  name: string;
  query: Record<string, unknown>;
};

/** Like `verifyBlobLink`, for an archive. @returns the format and the top-level folder of the archive */
export function verifyArchiveLink(
  { signer }: { signer: Signer },
  { id, commit, name, query }: ArchiveLink,
): { format: ArchiveFormat; folder: string } {
  const format = ARCHIVE_FORMATS.find((one) => name.endsWith(`.${one}`));
  if (!isId('repo', id) || !isObjectId(commit) || !format) throw notFound('Archive');
  if (!signer.verify(archiveSubject(id, commit, name), query)) throw invalidLink();
  return { format, folder: name.slice(0, -format.length - 1) };
}

/**
 * Streams an archive to `output` without ending it. Pointers to files that the repository does not have stay as they
 * are.
 * @returns whether the archive is complete
 */
export async function sendArchive(
  services: { db: Db; pool: pg.Pool; largeFiles: LargeFiles; log: Logger },
  repositoryId: string,
  of: ArchiveRequest,
  output: Writable,
): Promise<boolean> {
  if (!(await repositoryHasLargeFiles(services, repositoryId)))
    return (await writeArchive(of, output)).code === 0;
  const { dir, commit, format, folder, signal } = of;
  const args = ['archive', '--format=tar', `--prefix=${folder}/`, commit];
  using process = await startGit(args, { dir, signal });
  process.stdin.end();
  const tar = replacePointersInTar(services, repositoryId, process.stdout);
  const stages =
    format === 'zip'
      ? [Readable.from(convertTarToZip(tar, commit))]
      : [Readable.from(tar), createGzip()];
  try {
    await pipeline([...stages, output] as [Readable, Writable], { end: false, signal });
  } catch (error) {
    if (!output.destroyed && !signal.aborted)
      services.log.error(
        { err: error, repository: repositoryId },
        'could not send an archive completely',
      );
    return false;
  }
  return (await process.ended).code === 0;
}

function archiveSubject(repositoryId: string, commit: string, name: string): string {
  return `archive:${repositoryId}:${commit}:${name}`;
}
