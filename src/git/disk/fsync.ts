/** Writes files and folders through to disk (fsync), so that they survive a power loss. */

import type { Dirent } from 'node:fs';
import { open, readdir } from 'node:fs/promises';
import { join } from 'node:path';

/** Syncs one file or folder. */
export async function sync(path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** Like `sync`; does nothing if the path does not exist. */
export async function syncIfExists(path: string): Promise<void> {
  await sync(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT' && error.code !== 'ENOTDIR') throw error;
  });
}

/** Syncs a folder and everything in it. Skips files that are removed during the call. */
export async function syncTree(folder: string): Promise<void> {
  for (const entry of await entriesOf(folder)) {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) await syncTree(path);
    else await syncIfExists(path);
  }
  await syncIfExists(folder);
}

async function entriesOf(folder: string): Promise<Dirent[]> {
  try {
    return await readdir(folder, { withFileTypes: true });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
}
