/** Archives of all files of a commit. */
import type { Writable } from 'node:stream';
import type { GitExit } from '../../platform/processes/git-started.ts';
import { startGit } from '../processes/run.ts';
import { relayToReader } from './relay.ts';

export type ArchiveOf = {
  dir: string;
  commit: string;
  format: 'tar.gz' | 'zip';
  /** All that is in it lies in this folder. */
  folder: string;
  signal: AbortSignal;
};

/** Writes it as it is made, without ending `output`. */
export async function writeArchive(
  { dir, commit, format, folder, signal }: ArchiveOf,
  output: Writable,
): Promise<GitExit> {
  const args = ['archive', `--format=${format}`, `--prefix=${folder}/`, commit];
  using process = await startGit(args, { dir, signal });
  process.stdin.end();
  return await relayToReader(process, output);
}
