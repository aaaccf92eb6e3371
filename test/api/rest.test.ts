/** Runs the cases of every route in the table, on one server. */
import { afterAll } from 'vitest';
import { PLAN_LIMITS } from '../../src/base/config/plans.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { startApp } from '../support/harness.ts';
import { walkRoutes } from '../support/rest/walk.ts';

const cleanup = new AsyncDisposableStack();
afterAll(() => cleanup.disposeAsync());

walkRoutes(async () => {
  // Many slots, because the cases leave many jobs running.
  const webhooks = { allow: ['127.0.0.1'] };
  const config = { jobSlots: 1_000, webhooks };
  const loam = cleanup.use(await startApp({ config, overrides: { runner: fakeRunner() } }));
  const free = { ...PLAN_LIMITS.free, perMinute: 1 };
  const other = cleanup.use(await startApp({ config: { rateLimits: { ...PLAN_LIMITS, free } } }));
  return { loam, limited: (username) => other.user(username, 'free') };
});
