/**
 * Changes the owner of whole folders. The program `chown` handles any number of files, but most jobs have few, and its start
 * takes longer than the work. For few files the calls are made synchronously: each takes 5 to 15 µs, while a request to the
 * thread pool takes 30 µs of this thread, and as much of a pool thread.
 */
import { lchownSync, opendirSync } from 'node:fs';
import { join } from 'node:path';
import { run } from '../../platform/processes/starter.ts';

/** The most files and folders that are changed without `chown`, whose start takes 5 ms of a core. */
const MAX_FILES = 100;

/** Gives the folders with their contents to the user and group. Links are not followed. */
export async function changeOwner(
  { uid, gid }: { uid: number; gid: number },
  folders: readonly string[],
): Promise<void> {
  try {
    const found = listSmallTrees(folders);
    if (found) {
      for (const path of [...found.folders, ...found.files]) lchownSync(path, uid, gid);
      return;
    }
  } catch {
    // For example a file name that is not UTF-8. `chown` handles it.
  }
  await run('chown', ['-R', '--no-dereference', `${uid}:${gid}`, ...folders]);
}

/** Lists all folders, parents first, and all files in them; undefined when there are too many. */
function listSmallTrees(
  roots: readonly string[],
): { folders: string[]; files: string[] } | undefined {
  const folders = [...roots];
  const files: string[] = [];
  for (const folder of folders) {
    // Reads names one by one, because there may be a million.
    const open = opendirSync(folder);
    try {
      for (let entry = open.readSync(); entry; entry = open.readSync()) {
        (entry.isDirectory() ? folders : files).push(join(folder, entry.name));
        if (folders.length + files.length > MAX_FILES) return undefined;
      }
    } finally {
      open.closeSync();
    }
  }
  return { folders, files };
}
