/** Limits of logs that grow without end, and their effect on the storage of a namespace. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { PLAN_LIMITS } from '../../src/base/config/plans.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { job, lines, remove, submit, until } from '../support/submit.ts';

const UNHURRIED = { perMinute: 1_000_000, perSecond: 1_000_000 };
let app: TestApp;
let ada: Client;
let bea: Client;

beforeAll(async () => {
  app = await startApp({
    overrides: { runner: fakeRunner() },
    config: {
      rateLimits: {
        ...PLAN_LIMITS,
        free: { ...PLAN_LIMITS.free, ...UNHURRIED, logBytes: 20 * 1024, logLines: 30 },
        team: { ...PLAN_LIMITS.team, ...UNHURRIED, storageBytes: 100_000 },
        unlimited: { ...PLAN_LIMITS.unlimited, ...UNHURRIED },
      },
    },
  });
  ada = await app.user('ada', 'free');
  bea = await app.user('bea', 'team');
  await ada.repository('ada/code');
  await bea.repository('bea/code');
});
afterAll(() => app[Symbol.asyncDispose]());

const stored = async (name: string) =>
  Number((await app.app.services.db.namespace.findUniqueOrThrow({ where: { name } })).storageBytes);

test('a log ends with a notice at the limit of its plan, and the job continues', async () => {
  const before = await stored('ada');
  const command = 'flood 15 1000; flood 10 1000; echo ::progress::nearly done; echo more; exit 3';
  await submit(ada, { namespace: 'ada', repo: 'ada/code', name: 'bytes', command, retries: 1 });
  const ended = await until(ada, 'ada', 'bytes', 'FAILED');
  expect(ended).toMatchObject({ exitCode: 3, retryCount: 1, progress: 'nearly done' });
  const told = await lines(ada, 'ada', 'bytes');
  expect(told).toHaveLength(21);
  expect(told.slice(0, 20).every((line) => line.length === 1_000)).toBe(true);
  expect(told.at(-1)).toBe(
    'The log ends here: the free plan allows 20 KiB of log per job. Further output of the job is not kept.',
  );
  // Every status change is still in the journal.
  const { text } = await ada.get('/ada/job/bytes/logs?stream=true', { 'Last-Event-ID': '1' });
  const events = [...text.matchAll(/^event: (\w+)$/gm)].map(([, event]) => event);
  expect(events.slice(events.lastIndexOf('log') + 1)).toEqual([
    'status',
    'status',
    'status',
    'end',
  ]);
  const size = told.reduce((sum, line) => sum + line.length + 1, 0);
  await eventually(async () => expect((await stored('ada')) - before).toBe(size));
  await remove(ada, 'ada', 'bytes');
  expect(await stored('ada')).toBe(before);
});

test('the number of lines is limited too, even if they are short', async () => {
  await submit(ada, {
    namespace: 'ada',
    repo: 'ada/code',
    name: 'lines',
    command: 'flood 100 0; exit 0',
  });
  await until(ada, 'ada', 'lines', 'SUCCEEDED');
  const told = await lines(ada, 'ada', 'lines');
  expect(told).toHaveLength(31);
  expect(told.at(-1)).toContain('the free plan allows 30 lines of log per job');
});

test('a namespace without free storage stores no more lines', async () => {
  const run = async (name: string) => {
    await submit(bea, {
      namespace: 'bea',
      repo: 'bea/code',
      name,
      command: 'flood 60 1000; exit 0',
    });
    await until(bea, 'bea', name, 'SUCCEEDED');
    return lines(bea, 'bea', name);
  };
  const room = 100_000 - (await stored('bea'));
  const first = await run('one');
  expect(first).toHaveLength(Math.min(60, Math.floor(room / 1_001)));
  const second = await run('two');
  expect(second.length).toBeLessThan(60);
  expect(second.at(-1)).toBe(
    'The log ends here: the team plan allows 100,000 bytes of storage per namespace. Further output of the job is not kept.',
  );
  expect(await job(bea, 'bea', 'two')).toMatchObject({ status: 'SUCCEEDED', exitCode: 0 });
  expect(await stored('bea')).toBeLessThan(100_500);
});

test('the runner keeps no more output than the log has room for, and the log has one notice', async () => {
  const free = { ...PLAN_LIMITS.free, ...UNHURRIED, logBytes: 200 * 1024 };
  await using real = await startApp({
    config: { runner: 'process', rateLimits: { ...PLAN_LIMITS, free } },
  });
  const cay = await real.user('cay', 'free');
  await cay.repository('cay/code');
  const command =
    'i=0; while [ $i -lt 15000 ]; do echo some line of text $i; i=$((i+1)); done; exit 1';
  await submit(cay, { namespace: 'cay', repo: 'cay/code', name: 'loud', command, retries: 1 });
  await until(cay, 'cay', 'loud', 'FAILED');
  const told = await lines(cay, 'cay', 'loud');
  const ends = told.filter((line) => line.startsWith('The log ends here'));
  expect(ends).toEqual([told.at(-1)]);
  expect(told.at(-1)).toContain('the free plan allows 200 KiB of log per job');
  const kept = told.slice(0, -1).reduce((sum, line) => sum + line.length + 1, 0);
  expect(kept).toBeGreaterThan(199 * 1024);
  expect(kept).toBeLessThanOrEqual(200 * 1024);

  // A full log does not hide that the sandbox is held.
  const held = { name: 'held', holdOnFailureMinutes: 30 };
  await submit(cay, { namespace: 'cay', repo: 'cay/code', command, ...held });
  await eventually(async () => {
    const { progress } = await job(cay, 'cay', 'held');
    expect(progress).toMatch(/^failed with exit code 1: held until /);
  });
  expect(await lines(cay, 'cay', 'held')).toEqual(told);
});
