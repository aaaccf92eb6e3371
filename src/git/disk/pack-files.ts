/** The files of a repository's packs. What has such a name never changes, so each is looked at once. */
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { LRUCache } from 'lru-cache';

export type PackFile = { name: string; size: number; mtimeMs: number };

const NAME = /^pack-.*\.(?:pack|idx)$/;

/** By path; a repository has two for each of its packs, which maintenance keeps few. */
const known = new LRUCache<string, PackFile>({ max: 10_000 });

/** Those that are removed meanwhile are left out. @throws Error when the folder cannot be read */
export async function packFiles(dir: string): Promise<PackFile[]> {
  const folder = join(dir, 'objects/pack');
  const names = (await readdir(folder)).filter((name) => NAME.test(name));
  const files = await Promise.all(names.map((name) => look(folder, name)));
  return files.filter((file) => file !== null);
}

async function look(folder: string, name: string): Promise<PackFile | null> {
  const path = join(folder, name);
  const before = known.get(path);
  if (before) return before;
  const found = await stat(path).catch(() => null);
  if (!found) return null;
  const file = { name, size: found.size, mtimeMs: found.mtimeMs };
  known.set(path, file);
  return file;
}
