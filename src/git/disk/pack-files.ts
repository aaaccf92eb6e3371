/** Lists the pack files of a repository with a cache of their sizes. */

import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { LRUCache } from 'lru-cache';

/** A pack or its index. A file with such a name never changes, so its size and time are cached. */
export type PackFile = { name: string; size: number; mtimeMs: number };

const PACK_FILE_NAME = /^pack-.*\.(?:pack|idx)$/;

/** Path → file. Two entries per pack; maintenance keeps the number of packs small. */
const packFileCache = new LRUCache<string, PackFile>({ max: 10_000 });

/** Skips packs that are removed during the call. @throws Error if the folder cannot be read */
export async function listPackFiles(dir: string): Promise<PackFile[]> {
  const folder = join(dir, 'objects/pack');
  const names = (await readdir(folder)).filter((name) => PACK_FILE_NAME.test(name));
  const files = await Promise.all(names.map((name) => statPackFile(folder, name)));
  return files.filter((file) => file !== null);
}

async function statPackFile(folder: string, name: string): Promise<PackFile | null> {
  const path = join(folder, name);
  const cached = packFileCache.get(path);
  if (cached) return cached;
  const found = await stat(path).catch(() => null);
  if (!found) return null;
  const file = { name, size: found.size, mtimeMs: found.mtimeMs };
  packFileCache.set(path, file);
  return file;
}
