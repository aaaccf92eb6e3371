/**
 * FIFOs for the output of jobs. Node makes none, and `mkfifo` takes 14 ms of a job's start: so one run of it makes those
 * of several jobs, and each job takes its own by moving them into its folder.
 */
import { renameSync } from 'node:fs';
import { mkdir, rm, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from '../../../processes/starter.ts';
import { spreadFolders } from './spread.ts';

const FOLDER = '.fifos';
/** Of one run: for 32 jobs. */
const BATCH = 64;

export type Fifos = {
  /** Puts one at each path, which our user alone may open. @throws Error when none can be made */
  give(paths: readonly string[]): Promise<void>;
};

/** Those that an earlier server left are removed. @param dir on the file system of the paths that are given */
export async function openFifos(dir: string): Promise<Fifos> {
  const folder = join(dir, FOLDER);
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { mode: 0o700 });
  await spreadFolders(folder);
  const free: string[] = [];
  let made = 0;
  let before = '';
  let making: Promise<void> | undefined;

  async function make(): Promise<void> {
    // In a folder of its own, for the reason of `spread.ts`: they are deleted a moment later.
    const batch = join(folder, String(made++));
    await mkdir(batch);
    const paths = Array.from({ length: BATCH }, (_, i) => join(batch, String(i)));
    await run('mkfifo', ['-m', '600', ...paths]);
    // The one before is empty now; where a FIFO could not be given, it stays until the next start.
    await rmdir(before).catch(() => {});
    before = batch;
    free.push(...paths);
  }

  return {
    async give(paths) {
      const taken: string[] = [];
      while (taken.length < paths.length) {
        const [next] = free.splice(-1);
        if (next) taken.push(next);
        else {
          making ??= make().finally(() => {
            making = undefined;
          });
          await making;
        }
      }
      for (const [i, from] of taken.entries()) renameSync(from, paths[i] as string);
    },
  };
}
