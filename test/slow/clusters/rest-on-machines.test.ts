/** The whole REST contract, while a joined machine runs the jobs. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll } from 'vitest';
import { PLAN_LIMITS } from '../../../src/base/config/plans.ts';
import { startApp } from '../../support/harness.ts';
import { joinMachine } from '../../support/joined-machine.ts';
import { walkRoutes } from '../../support/rest/walk.ts';

const cleanup = new AsyncDisposableStack();
afterAll(() => cleanup.disposeAsync());

walkRoutes(async () => {
  const dir = await mkdtemp(join(tmpdir(), 'loam-machine-'));
  cleanup.defer(() => rm(dir, { recursive: true, force: true, maxRetries: 5 }));
  const webhooks = { allow: ['127.0.0.1'] };
  const loam = cleanup.use(await startApp({ config: { runner: 'none', webhooks } }));
  // Many slots, because the cases leave many jobs running.
  const env = { LOAM_JOB_SLOTS: '300' };
  const machine = await joinMachine(loam, { dir, name: 'box', env });
  cleanup.defer(async () => {
    await loam.admin.gql(
      'mutation { removeMachine(input: { name: "box", force: true }) { __typename } }',
    );
    await machine.exited;
  });
  const free = { ...PLAN_LIMITS.free, perMinute: 1 };
  const other = cleanup.use(await startApp({ config: { rateLimits: { ...PLAN_LIMITS, free } } }));
  return { loam, limited: (username) => other.user(username, 'free') };
});
