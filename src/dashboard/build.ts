/**
 * `npm run build`: builds the dashboard into `dist/dashboard` and compresses each asset with Brotli and gzip. `npm start`
 * rebuilds if the sources changed; without Vite (`npm ci --omit=dev`) the server uses the existing build. A build goes to
 * a temporary folder that is then renamed, so that a crash or a concurrent start never leaves a partial build.
 */
import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { brotliCompress, gzip, constants as zlib } from 'node:zlib';
import { digestSources, readStamp, STAMP } from '../base/build-stamp.ts';

const ROOT = join(import.meta.dirname, '../..');
const OUT = join(ROOT, 'dist/dashboard');

/** Smaller files fit into one network packet uncompressed. */
const MIN_COMPRESSED_BYTES = 1_024;

/** Brotli's best quality takes two seconds per megabyte and saves 10 %: larger files get a lower quality. */
const MAX_BEST_QUALITY_BYTES = 2 ** 20;

/** Builds unless the existing build has the digest of the current sources. @returns whether it built */
export async function buildDashboard(): Promise<boolean> {
  const stamp = digestSources('src/dashboard/**/*.*', 'src/dashboard/generated/**');
  if (readStamp(OUT) === stamp) return false;
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
    await inProductionMode(() => build(options));
    await compressAssets(join(outDir, 'assets'));
    await writeFile(join(outDir, STAMP), stamp);
    await replaceBuild(outDir);
  } finally {
    await rm(outDir, { recursive: true, force: true });
  }
  return true;
}

/** Vite selects React's build by NODE_ENV: under a test runner that would be the slow development build. */
async function inProductionMode(act: () => Promise<unknown>): Promise<void> {
  const before = process.env.NODE_ENV;
  process.env.NODE_ENV = 'production';
  try {
    await act();
  } finally {
    if (before === undefined) delete process.env.NODE_ENV;
    else process.env.NODE_ENV = before;
  }
}

/** Of two concurrent builds the later one wins; both have the same content. */
async function replaceBuild(built: string): Promise<void> {
  const old = `${OUT}-${randomUUID()}`;
  await rename(OUT, old).catch((error) => {
    if (error.code !== 'ENOENT') throw error;
  });
  await rename(built, OUT).catch((error) => {
    if (error.code !== 'ENOTEMPTY' && error.code !== 'EEXIST') throw error;
  });
  await rm(old, { recursive: true, force: true });
}

async function compressAssets(folder: string): Promise<void> {
  for (const name of await readdir(folder)) {
    const path = join(folder, name);
    const bytes = await readFile(path);
    if (bytes.length < MIN_COMPRESSED_BYTES) continue;
    const params = { [zlib.BROTLI_PARAM_QUALITY]: bytes.length < MAX_BEST_QUALITY_BYTES ? 10 : 9 };
    await writeFile(`${path}.br`, await promisify(brotliCompress)(bytes, { params }));
    await writeFile(`${path}.gz`, await promisify(gzip)(bytes, { level: 9 }));
  }
}

if (process.argv[1] === import.meta.filename) {
  const isViteInstalled = existsSync(join(ROOT, 'node_modules/vite'));
  if (isViteInstalled) {
    const begin = performance.now();
    if (await buildDashboard())
      console.log(`Built the dashboard in ${((performance.now() - begin) / 1000).toFixed(1)} s`);
  } else if (readStamp(OUT) === null) {
    console.error(
      'The dashboard is not built and Vite is not installed. Run "npm ci" and "npm run build".',
    );
  }
}
