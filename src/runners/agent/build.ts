/**
 * Builds the agent into one file, `dist/agent/agent.mjs`, that nodes of a cluster load from the worker. `npm run build` makes
 * it together with the dashboard. It runs on Node 22 and later.
 */
import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, rename, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { ConfigError } from '../../base/config/config.ts';

const ROOT = join(import.meta.dirname, '../../..');
export const PROGRAM = join(ROOT, 'dist/agent/agent.mjs');

/** @throws ConfigError when there is no build, and Vite is not installed */
export async function requireAgentProgram(): Promise<string> {
  try {
    await buildAgent();
  } catch (error) {
    if (!existsSync(PROGRAM))
      throw new ConfigError(
        `LOAM_RUNNER: the program for the nodes of a cluster cannot be built (${(error as Error).message}). Run "npm ci" and "npm run build".`,
      );
  }
  return PROGRAM;
}

export async function buildAgent(): Promise<void> {
  const { build } = await import('vite');
  const outDir = `${dirname(PROGRAM)}-${randomUUID()}`;
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
    await mkdir(dirname(PROGRAM), { recursive: true });
    await rename(join(outDir, 'agent.mjs'), PROGRAM);
  } finally {
    await rm(outDir, { recursive: true, force: true });
  }
}

if (import.meta.main) await buildAgent();
