/** Creates the data folder at startup if it is missing, and checks that it is writable before anything uses it. */
import { randomUUID } from 'node:crypto';
import { link, mkdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { ConfigError } from '../../base/config/config.ts';

const REASONS: Record<string, string> = {
  EACCES: 'permission denied',
  EPERM: 'permission denied',
  EROFS: 'the file system is read-only',
  ENOSPC: 'no space is left on the disk',
  EDQUOT: 'the disk quota is exceeded',
  ENOTDIR: 'a part of the path is not a folder',
  ENOENT: 'the file system does not support creating folders there',
};

/** `mode` applies to created folders. @throws ConfigError if the folder cannot be created or written to */
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
    throw new ConfigError(`${variable}: cannot write to ${path}: ${REASONS[code] ?? message}`);
  }
}

/**
 * Creates missing folders one by one. Node's option `recursive` never returns where the creation of a folder in an existing
 * folder fails with ENOENT, as in `/proc`.
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

/** Returns the id of a folder, wherever it is mounted. The first caller writes the id into the folder. */
export async function readOrCreateId(folder: string, name = 'instance-id'): Promise<string> {
  const path = join(folder, name);
  const temporary = `${path}.${randomUUID()}`;
  const existing = await readFile(path, 'utf8').catch(() => '');
  if (existing) return existing.trim();
  await writeFile(temporary, `${randomUUID()}\n`, { flush: true });
  // Unlike a rename, a link does not replace an existing file.
  await link(temporary, path).catch((error) => {
    if (error.code !== 'EEXIST') throw error;
  });
  await rm(temporary);
  return (await readFile(path, 'utf8')).trim();
}
