/** The program for joined machines, which `npm run build` builds from `../worker/`. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

const FOLDER = join(import.meta.dirname, '../../../dist/worker');
/** The file that `programs/build.ts` writes beside a build, with the digest of its sources. */
const STAMP = 'built-from';

/** The version of the program in a folder; empty: none is built there. */
export function readProgramVersion(folder = FOLDER): string {
  const file = join(folder, STAMP);
  return existsSync(file) ? readFileSync(file, 'utf8').trim() : '';
}
