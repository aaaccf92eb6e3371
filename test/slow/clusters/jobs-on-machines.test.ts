/** The jobs part of the REST contract on a machine that has joined. */
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, onTestFinished } from 'vitest';
import { readClaim } from '../../../src/runners/supervisor/folder.ts';
import { clusterJobs } from '../../support/cluster-jobs.contract.ts';
import { joinMachine } from '../../support/joined-machine.ts';

describe('jobs on a joined machine', () => {
  clusterJobs(async () => {
    const dir = await mkdtemp(join(tmpdir(), 'loam-machine-'));
    onTestFinished(() => rm(dir, { recursive: true, force: true, maxRetries: 5 }));
    const attempts = join(dir, 'runner/attempts');
    const listAttempts = async () =>
      (await readdir(attempts).catch(() => [])).filter((name) => !name.startsWith('.'));
    return {
      config: { runner: 'none' },
      job: {},
      waiting: /: 1st in line/,
      async join(app) {
        const machine = await joinMachine(app, { dir, name: 'box', env: { LOAM_JOB_SLOTS: '2' } });
        onTestFinished(() => machine[Symbol.asyncDispose]());
      },
      killsAtOnce: true,
      // As the kernel does when the machine has no memory left.
      async interrupt() {
        for (const id of await listAttempts()) {
          const claim = await readClaim(join(attempts, id, 'claim'));
          if (claim) process.kill(claim.pid, 'SIGKILL');
        }
      },
      listLeftovers: listAttempts,
    };
  });
});
