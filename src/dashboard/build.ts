/**
 * `npm run build`: makes the pages in `dist/dashboard`, with each file packed as browsers take it. `npm start` does it
 * too when the sources are others than those it was made of; without Vite (`npm ci --omit=dev`) it takes what is there.
 *
 * The folder is made beside the old one and takes its place when it is whole, so that a start beside another, or one
 * that is cut off, leaves no half of it.
 */
import { createHash, randomUUID } from 'node:crypto';
import { existsSync, globSync, readFileSync } from 'node:fs';
import { readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { brotliCompress, gzip, constants as zlib } from 'node:zlib';

const ROOT = join(import.meta.dirname, '../..');
const OUT = join(ROOT, 'dist/dashboard');
const STAMP = 'built-from';

/** Smaller ones fit into one packet as they are. */
const WORTH_PACKING = 1_024;

/** The best packing takes two seconds for each megabyte, and saves a tenth. */
const LARGE = 2 ** 20;

/** Builds unless what is there was made of these very sources. @returns whether it built */
export async function buildDashboard(): Promise<boolean> {
  const stamp = digestOfSources();
  if (readStamp() === stamp) return false;
  const { build } = await import('vite');
  const outDir = `${OUT}-${randomUUID()}`;
  try {
    const configFile = join(import.meta.dirname, 'vite.config.ts');
    const options = {
      configFile,
      configLoader: 'native',
      build: { outDir },
      logLevel: 'warn',
    } as const;
    await asProduction(() => build(options));
    await packAll(join(outDir, 'assets'));
    await writeFile(join(outDir, STAMP), stamp);
    await takePlace(outDir);
  } finally {
    await rm(outDir, { recursive: true, force: true });
  }
  return true;
}

/** Vite takes the mode of React from the environment: under a test runner it would be the slow one for developers. */
async function asProduction(act: () => Promise<unknown>): Promise<void> {
  const before = process.env.NODE_ENV;
  process.env.NODE_ENV = 'production';
  try {
    await act();
  } finally {
    if (before === undefined) delete process.env.NODE_ENV;
    else process.env.NODE_ENV = before;
  }
}

/** Of two that build at once the later one wins; both made the same. */
async function takePlace(made: string): Promise<void> {
  const old = `${OUT}-${randomUUID()}`;
  await rename(OUT, old).catch((error) => {
    if (error.code !== 'ENOENT') throw error;
  });
  await rename(made, OUT).catch((error) => {
    if (error.code !== 'ENOTEMPTY' && error.code !== 'EEXIST') throw error;
  });
  await rm(old, { recursive: true, force: true });
}

function readStamp(): string | null {
  const path = join(OUT, STAMP);
  return existsSync(path) ? readFileSync(path, 'utf8') : null;
}

function digestOfSources(): string {
  const digest = createHash('sha256');
  const sources = globSync('src/dashboard/**/*.*', {
    cwd: ROOT,
    exclude: ['src/dashboard/generated/**'],
  }).sort();
  for (const path of ['package-lock.json', ...sources])
    digest.update(`${path}\0`).update(readFileSync(join(ROOT, path)));
  return digest.digest('hex');
}

async function packAll(folder: string): Promise<void> {
  for (const name of await readdir(folder)) {
    const path = join(folder, name);
    const bytes = await readFile(path);
    if (bytes.length < WORTH_PACKING) continue;
    const params = { [zlib.BROTLI_PARAM_QUALITY]: bytes.length < LARGE ? 10 : 9 };
    await writeFile(`${path}.br`, await promisify(brotliCompress)(bytes, { params }));
    await writeFile(`${path}.gz`, await promisify(gzip)(bytes, { level: 9 }));
  }
}

if (process.argv[1] === import.meta.filename) {
  const hasVite = existsSync(join(ROOT, 'node_modules/vite'));
  if (hasVite) {
    const begin = performance.now();
    if (await buildDashboard())
      console.log(`Built the dashboard in ${((performance.now() - begin) / 1000).toFixed(1)} s`);
  } else if (readStamp() === null) {
    console.error(
      'The dashboard is not built, and Vite is not installed: run "npm ci" and "npm run build"',
    );
  }
}
