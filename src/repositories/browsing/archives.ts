/** Archives of all files of a commit, in which large files stand in the place of their pointers. */
import { Readable, type Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGzip } from 'node:zlib';
import { startGit } from '../../git/processes/run.ts';
import { type ArchiveOf, writeArchive } from '../../git/transport/archive.ts';
import type { Services } from '../../services.ts';
import { hasLargeFiles } from '../large-checkout.ts';
import { withLargeFiles } from './archive-tar.ts';
import { zipOf } from './archive-zip.ts';

/**
 * Writes it as it is made, without ending `output`. A pointer to what the repository was not given stays as it is.
 * @returns whether it is whole
 */
export async function sendArchive(
  services: Pick<Services, 'db' | 'pool' | 'largeFiles' | 'log'>,
  repositoryId: string,
  of: ArchiveOf,
  output: Writable,
): Promise<boolean> {
  if (!(await hasLargeFiles(services, repositoryId)))
    return (await writeArchive(of, output)).code === 0;
  const { dir, commit, format, folder, signal } = of;
  const args = ['archive', '--format=tar', `--prefix=${folder}/`, commit];
  using process = await startGit(args, { dir, signal });
  process.stdin.end();
  const tar = withLargeFiles(services, repositoryId, process.stdout);
  const stages =
    format === 'zip' ? [Readable.from(zipOf(tar, commit))] : [Readable.from(tar), createGzip()];
  try {
    await pipeline([...stages, output] as [Readable, Writable], { end: false, signal });
  } catch (error) {
    if (!output.destroyed && !signal.aborted)
      services.log.error({ err: error, repository: repositoryId }, 'an archive has broken off');
    return false;
  }
  return (await process.ended).code === 0;
}
