/**
 * Refs of pushes that bring many of them. Git writes each ref into a file of its own and syncs it before the next, which
 * took 88 s of a push of 10,000. For such a push that is switched off (`transport/receive.ts`), and three things take
 * its place:
 *
 * 1. Before git updates a ref, those there are are packed into one file, which is synced: what was acknowledged
 *    earlier stands there.
 * 2. After git has updated them, and before anybody is told, they are packed and synced in the same way.
 * 3. After a loss of power between the two a file of a ref may be empty. It is removed at the next start, and what
 *    was packed before holds again: the push was acknowledged to nobody. Which refs these may be stands in its note.
 *
 * Where only the server was killed nothing is lost, because the kernel has what git wrote.
 */
import { readFile, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { git } from '../processes/run.ts';
import { syncIfThere, syncTree } from './sync.ts';

const TIMEOUT_MS = 5 * 60_000;
/** What a ref's file holds when it is whole. */
const WHOLE = /^(?:[0-9a-f]{40}|ref: .*)\n$/;

/** Writes all refs into one file, synced, and removes the files they had. @throws as `git` */
export async function packRefs(dir: string): Promise<void> {
  await git(['pack-refs', '--all'], { dir, timeoutMs: TIMEOUT_MS });
}

/** These refs, which git has written without syncing them, are on the disk when it resolves. */
export async function storeRefs(dir: string, refs: readonly string[]): Promise<void> {
  // Such as when another process holds its lock for too long.
  await packRefs(dir).catch(() => syncTree(join(dir, 'refs')));
  // A file that is removed, and one that is renamed, is so for good when its folder is synced.
  await syncIfThere(dir);
  for (const folder of foldersOf(refs)) await syncIfThere(join(dir, folder));
}

/** Removes what a loss of power left of files of these refs. */
export async function removeCutRefs(dir: string, refs: readonly string[]): Promise<void> {
  for (const ref of refs) {
    const file = join(dir, ref);
    const text = await readFile(file, 'latin1').catch(() => null);
    if (text !== null && !WHOLE.test(text)) await rm(file, { force: true });
  }
}

/** With those that they are in, up to `refs`. */
function foldersOf(refs: readonly string[]): Set<string> {
  const folders = new Set<string>();
  for (const ref of refs)
    for (let at = dirname(ref); at !== '.' && !folders.has(at); at = dirname(at)) folders.add(at);
  return folders;
}
