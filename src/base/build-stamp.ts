/** The digest of the sources that a build was made from, by which a start finds out whether it has to build again. */
import { createHash } from 'node:crypto';
import { existsSync, globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

const ROOT = join(import.meta.dirname, '../..');

/** Name of the file with the digest, in the folder of the build. */
export const STAMP = 'built-from';

export function readStamp(folder: string): string | null {
  const path = join(folder, STAMP);
  return existsSync(path) ? readFileSync(path, 'utf8') : null;
}

/** @param exclude like `pattern`, relative to the root of the project */
export function digestSources(pattern: string, exclude: string): string {
  const digest = createHash('sha256');
  const sources = globSync(pattern, { cwd: ROOT, exclude: [exclude] }).sort();
  for (const path of ['package-lock.json', ...sources])
    digest.update(`${path}\0`).update(readFileSync(join(ROOT, path)));
  return digest.digest('hex');
}
