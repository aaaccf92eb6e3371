import { test } from 'vitest';
import { fakeRunner } from '../../support/fake-runner.ts';
import { expectAnswers, fuzzRest } from '../../support/fuzz/rest.ts';
import { count } from '../../support/fuzz/world.ts';
import { startApp } from '../../support/harness.ts';

/** A server that becomes this slow counts as broken too. */
const DEADLINE_MS = 240_000;
const FULL = 12_800;

test('no request gets a 5xx, and every answer matches its documentation', {
  timeout: DEADLINE_MS,
}, async () => {
  const config = { webhooks: { allow: ['127.0.0.1'] } };
  await using app = await startApp({ config, overrides: { runner: fakeRunner() } });
  const requests = count(1_600, FULL);
  const seen = await fuzzRest(app, requests);
  // One in 400 answers is a 409, and few are 201 or 204: a short run may have none.
  if (requests === FULL) expectAnswers(seen, [201, 204, 409]);
});
