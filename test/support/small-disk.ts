/** A disk of its own, which a test may fill. Needs root. */
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);

export async function smallDisk(megabytes: number) {
  const path = await mkdtemp(join(tmpdir(), 'loam-disk-'));
  await run('mount', ['-t', 'tmpfs', '-o', `size=${megabytes}m`, 'tmpfs', path]);
  return {
    path,
    /** A folder on it that does not exist yet. */
    dir: join(path, 'attempts'),
    async [Symbol.asyncDispose]() {
      await run('umount', ['-l', path]);
      await rm(path, { recursive: true, force: true });
    },
  };
}
