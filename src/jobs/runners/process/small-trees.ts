/**
 * What is done to all files of a folder. A program does it to any number of them, but starting it costs more than the
 * work where they are few, as in most jobs.
 */
import { lchown, readdir, rmdir, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from '../../../processes/starter.ts';

/** Files and folders: each takes 30 µs of this thread, a program 5 ms of a core. */
const FEW = 100;

/** Makes the user, and the group of that number, own the folders with all that is in them; links themselves. */
export async function giveTo(uid: number, folders: readonly string[]): Promise<void> {
  try {
    const found = await allIn(folders);
    if (found) {
      const paths = [...found.folders, ...found.files];
      await Promise.all(paths.map((path) => lchown(path, uid, uid)));
      return;
    }
  } catch {
    // A name that is no UTF-8, among others.
  }
  await run('chown', ['-R', '--no-dereference', `${uid}:${uid}`, ...folders]);
}

/** @returns whether the folder is gone: not, where much is in it, or where something cannot be removed in this way */
export async function removeFew(folder: string): Promise<boolean> {
  try {
    const found = await allIn([folder]);
    if (!found) return false;
    await Promise.all(found.files.map((path) => unlink(path)));
    for (const path of found.folders.reverse()) await rmdir(path);
    return true;
  } catch {
    return false;
  }
}

/** The folders, each before those in it, and all else that is in them; undefined when that is much. */
async function allIn(
  roots: readonly string[],
): Promise<{ folders: string[]; files: string[] } | undefined> {
  const folders = [...roots];
  const files: string[] = [];
  for (const folder of folders) {
    for (const entry of await readdir(folder, { withFileTypes: true })) {
      (entry.isDirectory() ? folders : files).push(join(folder, entry.name));
      if (folders.length + files.length > FEW) return undefined;
    }
  }
  return { folders, files };
}
