/** Runs every operation as every kind of caller, on one server. */
import { afterAll } from 'vitest';
import { fakeRunner } from '../support/fake-runner.ts';
import { startApp } from '../support/harness.ts';
import { walkMatrix } from '../support/matrix/walk.ts';

const cleanup = new AsyncDisposableStack();
afterAll(() => cleanup.disposeAsync());

walkMatrix(async () => {
  const config = {
    webhooks: { allow: ['127.0.0.1'] },
    appsDomain: { name: 'apps.example.com' },
  };
  return cleanup.use(await startApp({ config, overrides: { runner: fakeRunner() } }));
});
