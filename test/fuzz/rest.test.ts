import { expect, test } from 'vitest';
import { fakeRunner } from '../fakes/runner.ts';
import { startApp } from '../harness.ts';
import { fuzzRest } from './rest.ts';
import { count } from './world.ts';

/** A server that slows to this is broken too. */
const DEADLINE_MS = 240_000;
const FULL = 12_800;

test('no request gets a 5xx, and every answer is as documented', {
  timeout: DEADLINE_MS,
}, async () => {
  const config = { webhooks: { allow: ['127.0.0.1'] } };
  await using app = await startApp({ config, overrides: { runner: fakeRunner() } });
  const requests = count(1_600, FULL);
  const seen = await fuzzRest(app, requests);
  // Fuzzing whose requests are all refused at validation shows nothing. One in 400 answers is a 409: a short run may have none.
  if (requests < FULL) return;
  for (const status of [200, 201, 204, 400, 401, 404, 409])
    expect(seen.get(status) ?? 0, `${status}`).toBeGreaterThan(0);
});
