/** The engine of this machine, and runners on it. The images are created by test/support/base-images.sh. */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect } from 'vitest';
import type { DockerConfig } from '../../src/base/config/docker.ts';
import { type DockerRunnerOptions, openDockerRunner } from '../../src/runners/docker/runner.ts';

const run = promisify(execFile);

export const BUSYBOX = 'loam-test/busybox';
/** The engine that the `docker` command uses. */
export const DOCKER: DockerConfig = {
  host: process.env.DOCKER_HOST || 'unix:///var/run/docker.sock',
  named: true,
  tlsVerify: false,
  configFolder: '/nonexistent',
};

export const docker = async (...args: string[]): Promise<string> =>
  (await run('docker', args)).stdout.trim();

/** Runs a command in an image and commits the result as a new image. Disposing it removes the new image. */
export async function changedImage(from: string, ...command: string[]) {
  const container = await docker('create', from, ...command);
  await docker('start', '--attach', container);
  const name = `loam-test/changed-${container.slice(0, 12)}`;
  await docker('commit', container, name);
  await docker('rm', container);
  return {
    name,
    async [Symbol.asyncDispose]() {
      await docker('rmi', name);
    },
  };
}

/**
 * A runner with a folder of its own. Disposing it removes all its containers and files. Give it a short grace period only for
 * commands that ignore SIGTERM: on a busy machine, others would get SIGKILL first.
 * @param fallback the image of jobs that name none
 */
export async function dockerRunner({
  fallback = BUSYBOX,
  ...options
}: Partial<DockerRunnerOptions> & { fallback?: string } = {}) {
  const dir = options.dir ?? (await mkdtemp(join(tmpdir(), 'loam-containers-')));
  const given = {
    dir,
    docker: DOCKER,
    // No registry is reachable, so pulls are not retried.
    images: { allowed: null, fallback, configFolder: dir, times: { tries: 1 } },
    ...options,
  };
  const runner = await openDockerRunner(given);
  const others: AsyncDisposable[] = [];
  return {
    dir,
    runner,
    async again() {
      const other = await openDockerRunner(given);
      others.push(other);
      return other;
    },
    async [Symbol.asyncDispose]() {
      await runner.sweep(new Set());
      const worker = createHash('sha256').update(dir).digest('hex').slice(0, 16);
      const label = `label=loam.worker=${worker}`;
      // Checks the machine's own engine only.
      expect(await docker('ps', '--all', '--quiet', '--filter', label), 'containers left').toBe('');
      for (const one of [...others, runner]) await one[Symbol.asyncDispose]();
      await rm(dir, { recursive: true, maxRetries: 5 });
    },
  };
}
