/**
 * Builds the agent into one file, `dist/agent/agent.mjs`, that nodes of a cluster load from the worker. `npm run build` makes
 * it together with the dashboard. It runs on Node 22 and later.
 */
import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, rename, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { digestSources, readStamp, STAMP } from '../../base/build-stamp.ts';
import { ConfigError } from '../../base/config/config.ts';

const ROOT = join(import.meta.dirname, '../../..');
export const PROGRAM = join(ROOT, 'dist/agent/agent.mjs');

/** @throws ConfigError when there is no build, and Vite is not installed */
export async function requireAgentProgram(): Promise<string> {
  try {
    // In a process of its own, because Vite would leave 100 MB in the memory of the server.
    await promisify(execFile)(process.execPath, [import.meta.filename]);
  } catch (error) {
    if (!existsSync(PROGRAM))
      throw new ConfigError(
        `LOAM_RUNNER: the program for the nodes of a cluster cannot be built (${(error as Error).message}). Run "npm ci" and "npm run build".`,
      );
  }
  return PROGRAM;
}

/** Builds unless the existing build has the digest of the current sources. */
export async function buildAgent(): Promise<void> {
  const dir = dirname(PROGRAM);
  const stamp = digestSources('src/**/*.ts', 'src/dashboard/**');
  if (readStamp(dir) === stamp) return;
  const { build } = await import('vite');
  const outDir = `${dir}-${randomUUID()}`;
  try {
    await build({
      root: ROOT,
      configFile: false,
      logLevel: 'warn',
      ssr: { noExternal: true },
      build: {
        ssr: join(import.meta.dirname, 'agent.ts'),
        outDir,
        target: 'node22',
        minify: true,
        rollupOptions: { output: { entryFileNames: 'agent.mjs' } },
      },
    });
    await writeFile(join(outDir, STAMP), stamp);
    await mkdir(dir, { recursive: true });
    // The stamp last, so that it never belongs to an older program.
    await rename(join(outDir, 'agent.mjs'), PROGRAM);
    await rename(join(outDir, STAMP), join(dir, STAMP));
  } finally {
    await rm(outDir, { recursive: true, force: true });
  }
}

if (import.meta.main) await buildAgent();
