import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'vitest';
import { openProcessRunner, type ProcessRunner } from '../../src/runners/process/runner.ts';
import { GRACE_MS, type NetworkMode } from '../../src/runners/runner.ts';
import type { LocalVolumes } from '../../src/runners/volumes.ts';
import { eventually } from './eventually.ts';
import { listCommandLines } from './processes.ts';

type Sandboxed = 'auto' | 'unshare' | 'none';

/**
 * A process runner with its own folder; disposing it ends all its processes.
 * @param graceMs short only for commands that ignore SIGTERM: on a busy machine, others would get SIGKILL first
 */
export async function processRunner(
  sandbox: Sandboxed = 'auto',
  network?: NetworkMode,
  graceMs: number = GRACE_MS,
  volumes?: LocalVolumes,
) {
  const dir = await mkdtemp(join(tmpdir(), 'loam-runner-'));
  const opened: ProcessRunner[] = [];
  // A new runner removes the prepared shims of the last one, which here may be preparing more at that moment.
  const again = () =>
    eventually(async () => {
      const one = await openProcessRunner({ dir, graceMs, sandbox, network, volumes });
      opened.push(one);
      return one;
    });
  const runner = await again();
  return {
    dir,
    runner,
    again,
    async [Symbol.asyncDispose]() {
      await runner.sweep(new Set());
      // Each runner prepares a shim for its next attempt.
      for (const one of opened) await one[Symbol.asyncDispose]();
      // A shim that was never used writes its compile cache when it ends.
      await rm(dir, { recursive: true, maxRetries: 5 });
      await eventually(() => expect(listCommandLines(dir)).toEqual([]));
    },
  };
}
