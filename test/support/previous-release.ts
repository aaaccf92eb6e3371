/** The sources of the previous release, for tests of upgrades. */
import { execFile } from 'node:child_process';
import { mkdtemp, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';

const ROOT = join(import.meta.dirname, '../..');

/** Until there is a release: the last commit before machines could join (28 November 2026). */
export const PREVIOUS_RELEASE = 'fe76909cddb15a00e3fa732124f4858d8bf1637f';

/** @returns the path of a folder with the sources and the modules of this checkout; what it was built from is not in it */
export async function extractPreviousRelease(): Promise<AsyncDisposable & { path: string }> {
  await using cleanup = new AsyncDisposableStack();
  const path = await mkdtemp(join(tmpdir(), 'loam-previous-'));
  cleanup.defer(() => rm(path, { recursive: true, force: true }));
  const run = promisify(execFile);
  const script = 'git archive "$1" | tar -x -C "$2"';
  await run('sh', ['-c', script, 'sh', PREVIOUS_RELEASE, path], { cwd: ROOT });
  await symlink(join(ROOT, 'node_modules'), join(path, 'node_modules'));
  await run('node_modules/.bin/prisma', ['generate'], { cwd: path });
  const owned = cleanup.move();
  return { path, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}
