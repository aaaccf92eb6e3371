import { test } from 'vitest';
import { fakeRunner } from '../fakes/runner.ts';
import { startApp } from '../harness.ts';
import { fuzzRest } from './rest.ts';
import { count } from './world.ts';

/** A server that slows to this is broken too. */
const DEADLINE_MS = 240_000;

test('no request gets a 5xx, and every answer is as documented', {
  timeout: DEADLINE_MS,
}, async () => {
  const config = { webhooks: { allow: ['127.0.0.1'] } };
  await using app = await startApp({ config, overrides: { runner: fakeRunner() } });
  await fuzzRest(app, count(1_600, 12_800));
});
