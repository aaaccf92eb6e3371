/** The data folder at the start: made where it is missing, and found writable before anything is begun in it. */
import { randomUUID } from 'node:crypto';
import { link, mkdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { ConfigError } from '../../base/config/config.ts';

const WHY: Record<string, string> = {
  EACCES: 'permission denied',
  EPERM: 'permission denied',
  EROFS: 'the file system is read-only',
  ENOSPC: 'no space is left on the disk',
  EDQUOT: 'the disk quota is used up',
  ENOTDIR: 'a part of the path is no folder',
  ENOENT: 'the file system makes no folders there',
};

/** `mode` is that of folders that are made. @throws ConfigError when it cannot be made, or not be written into. */
export async function prepareDataFolder(
  path: string,
  variable = 'LOAM_DATA_DIR',
  mode = 0o777,
): Promise<void> {
  try {
    await makeFolder(path, mode);
    const probe = join(path, `.writable.${process.pid}`);
    await writeFile(probe, '');
    await rm(probe);
  } catch (error) {
    const { code = '', message } = error as NodeJS.ErrnoException;
    throw new ConfigError(`${variable}: cannot write to ${path}: ${WHY[code] ?? message}`);
  }
}

/**
 * Level by level. Node's own `recursive` never returns where a folder that exists answers ENOENT to the making
 * of another in it, as `/proc` does.
 */
async function makeFolder(path: string, mode: number): Promise<void> {
  try {
    await mkdir(path, mode);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'EEXIST' && (await stat(path)).isDirectory()) return;
    if (code === 'EEXIST') throw Object.assign(new Error('not a folder'), { code: 'ENOTDIR' });
    const parent = dirname(path);
    if (code !== 'ENOENT' || (await exists(parent))) throw error;
    await makeFolder(parent, mode);
    await mkdir(path, mode);
  }
}

function exists(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    () => false,
  );
}

/** The id of a folder, wherever it is mounted: written into it once, by the first of those who ask. */
export async function identityOf(folder: string, name = 'instance-id'): Promise<string> {
  const path = join(folder, name);
  const fresh = `${path}.${randomUUID()}`;
  const known = await readFile(path, 'utf8').catch(() => '');
  if (known) return known.trim();
  await writeFile(fresh, `${randomUUID()}\n`, { flush: true });
  // Unlike a rename, it leaves the one that is there.
  await link(fresh, path).catch((error) => {
    if (error.code !== 'EEXIST') throw error;
  });
  await rm(fresh);
  return (await readFile(path, 'utf8')).trim();
}
