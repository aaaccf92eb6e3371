/**
 * `npm run build`: builds what the server serves: the dashboard, the pages of the documentation, the `loam` command, the client
 * library, the agent for the nodes of a cluster, and the program for joined machines. `npm start` rebuilds those whose sources changed; without Vite (`npm ci
 * --omit=dev`) the server uses the existing builds. A build goes to a temporary folder that is then renamed, so that a crash or
 * a concurrent start never leaves a partial build.
 */
import { execFile } from 'node:child_process';
import { createHash, randomUUID } from 'node:crypto';
import { existsSync, globSync, readFileSync } from 'node:fs';
import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { brotliCompress, gzip, constants as zlib } from 'node:zlib';

const ROOT = join(import.meta.dirname, '../..');

/** A build with Vite, from one folder of sources to one folder of `dist/`. */
type Target = {
  name: string;
  /** Relative to the root of the repository. */
  out: string;
  config: string;
  sources: string;
  /** Compresses the files of these folders of the build. */
  compressed?: string[];
  /** Keeps all files only in a tar with this name. */
  archive?: string;
};

const TARGETS: readonly Target[] = [
  {
    name: 'the dashboard',
    out: 'dist/dashboard',
    config: 'src/dashboard/vite.config.ts',
    sources: 'src/dashboard/**/*.*',
    compressed: ['assets'],
  },
  {
    name: 'the documentation',
    out: 'dist/docs',
    config: 'src/dashboard/docs/vite.config.ts',
    sources: '{*.md,docs/*.*,src/dashboard/{docs/*.*,style.css,pages/repository/highlight.ts}}',
    compressed: ['assets', 'pages'],
  },
  {
    name: 'the command',
    out: 'dist/cli',
    config: 'src/cli/vite.config.ts',
    sources: 'src/cli/**/*.*',
  },
  {
    name: 'the client library',
    out: 'dist/sdk',
    config: 'src/cli/sdk/vite.config.ts',
    sources: 'src/cli/sdk/**/*.*',
  },
  {
    name: 'the agent',
    out: 'dist/agent',
    config: 'src/runners/agent/vite.config.ts',
    sources: 'src/{base,platform,runners}/**/*.ts',
  },
  {
    name: 'the program for joined machines',
    out: 'dist/worker',
    config: 'src/runners/worker/vite.config.ts',
    sources: 'src/{base,platform,runners}/**/*.ts',
    archive: 'program.tgz',
  },
];

/**
 * Name of the file with the digest of the sources that a build was made from, in its folder. By it, a start finds out whether
 * it has to build again.
 */
const STAMP = 'built-from';

/** Smaller files fit into one network packet uncompressed. */
const MIN_COMPRESSED_BYTES = 1_024;

/** Brotli's best quality takes two seconds per megabyte and saves 10 %: larger files get a lower quality. */
const MAX_BEST_QUALITY_BYTES = 2 ** 20;

/** Builds the targets whose existing build has another digest than the current sources. @returns their names */
export async function buildPrograms(): Promise<string[]> {
  const built: string[] = [];
  for (const target of TARGETS) if (await buildTarget(target)) built.push(target.name);
  return built;
}

async function buildTarget(target: Target): Promise<boolean> {
  const out = join(ROOT, target.out);
  const stamp = digestSources(target.sources);
  if (readStamp(out) === stamp) return false;
  const { build } = await import('vite');
  const outDir = `${out}-${randomUUID()}`;
  try {
    const options = {
      configFile: join(ROOT, target.config),
      configLoader: 'native',
      build: { outDir },
      logLevel: 'warn',
    } as const;
    await inProductionMode(() => build(options));
    for (const folder of target.compressed ?? []) await compressFiles(join(outDir, folder));
    await writeFile(join(outDir, STAMP), stamp);
    if (target.archive) await archiveFiles(outDir, target.archive);
    await replaceBuild(outDir, out);
  } finally {
    await rm(outDir, { recursive: true, force: true });
  }
  return true;
}

function readStamp(folder: string): string | null {
  const path = join(folder, STAMP);
  return existsSync(path) ? readFileSync(path, 'utf8') : null;
}

function digestSources(pattern: string): string {
  const digest = createHash('sha256');
  const sources = globSync(pattern, { cwd: ROOT, exclude: ['src/*/generated/**'] }).sort();
  for (const path of ['package-lock.json', ...sources])
    digest.update(`${path}\0`).update(readFileSync(join(ROOT, path)));
  return digest.digest('hex');
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
async function replaceBuild(built: string, out: string): Promise<void> {
  const old = `${out}-${randomUUID()}`;
  await mkdir(dirname(out), { recursive: true });
  await rename(out, old).catch((error) => {
    if (error.code !== 'ENOENT') throw error;
  });
  await rename(built, out).catch((error) => {
    if (error.code !== 'ENOTEMPTY' && error.code !== 'EEXIST') throw error;
  });
  await rm(old, { recursive: true, force: true });
}

async function archiveFiles(folder: string, name: string): Promise<void> {
  const names = await readdir(folder);
  await promisify(execFile)('tar', ['-czf', join(folder, name), '-C', folder, ...names]);
  for (const each of names) if (each !== STAMP) await rm(join(folder, each), { recursive: true });
}

async function compressFiles(folder: string): Promise<void> {
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
  const list = new Intl.ListFormat('en');
  const isViteInstalled = existsSync(join(ROOT, 'node_modules/vite'));
  const missing = TARGETS.filter(({ out }) => readStamp(join(ROOT, out)) === null).map(
    ({ name }) => name,
  );
  if (isViteInstalled) {
    const begin = performance.now();
    const built = await buildPrograms();
    const seconds = ((performance.now() - begin) / 1000).toFixed(1);
    if (built.length > 0) console.log(`Built ${list.format(built)} in ${seconds} s`);
  } else if (missing.length > 0) {
    console.error(
      `Vite is not installed, and ${list.format(missing)} is not built. Run "npm ci" and "npm run build".`,
    );
  }
}
