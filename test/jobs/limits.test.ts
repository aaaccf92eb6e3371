/** The maximum cost and the idle timeout of jobs end them as cancelled, whatever happens in between. */
import { expect, test } from 'vitest';
import { addIdleTime, attemptTimeoutMs, describeMaxCost } from '../../src/jobs/record/limits.ts';
import type { Runner } from '../../src/runners/runner.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { job, lines, submit, submitRaw, until } from '../support/submit.ts';

const H100S = { gpu: 'H100_80GB', gpuCount: 8, cpu: 96, memoryGb: 512 };

async function withAda(app: TestApp): Promise<Client> {
  const ada = await app.user('ada', 'unlimited');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
  return ada;
}

const run = (client: Client, name: string, command: string, more: object = {}) =>
  submit(client, { namespace: 'ada', repo: 'ada/code', name, command, ...more });

const limited = (more: object = {}) => ({
  maxCost: '1.00',
  costPerHour: '2.0000',
  runtimeSeconds: 0,
  timeoutMinutes: 60,
  ...more,
});

test('the maximum cost is a timeout that counts the attempts before', () => {
  expect(attemptTimeoutMs(limited())).toBe(1_800_000);
  expect(attemptTimeoutMs(limited({ runtimeSeconds: 1_000 }))).toBe(800_000);
  // Something remains for an attempt that starts at the limit.
  expect(attemptTimeoutMs(limited({ runtimeSeconds: 5_000 }))).toBe(1_000);
  expect(attemptTimeoutMs(limited({ timeoutMinutes: 10 }))).toBe(600_000);
  expect(attemptTimeoutMs(limited({ maxCost: null }))).toBe(3_600_000);
  expect(attemptTimeoutMs(limited({ maxCost: '9999999999.9999' }))).toBe(3_600_000);
  expect(describeMaxCost(limited())).toBe('cancelled: reached its maximum cost of 1.00');
  expect(describeMaxCost(limited({ timeoutMinutes: 10 }))).toBeNull();
  expect(describeMaxCost(limited({ maxCost: null }))).toBeNull();
});

test('idle time is continued by the next process, and restarts with the next attempt and with load', () => {
  const idle = { gpuPercent: 2.5, gpuCount: 2, sinceMs: 5_000 };
  const first = addIdleTime(undefined, 'a', { ...idle, sinceMs: null });
  expect(first).toEqual({ attemptId: 'a', ms: 0 });
  const second = addIdleTime(first, 'a', idle);
  expect(second.ms).toBe(5_000);
  expect(addIdleTime(second, 'a', { ...idle, sinceMs: null }).ms).toBe(5_000);
  expect(addIdleTime(second, 'a', { ...idle, sinceMs: 3_600_000 }).ms).toBe(35_000);
  expect(addIdleTime(second, 'b', idle).ms).toBe(5_000);
  // One of the two may be above 5 %.
  expect(addIdleTime(second, 'a', { ...idle, gpuPercent: 2.6 }).ms).toBe(0);
  expect(addIdleTime(second, 'a', { ...idle, gpuPercent: null }).ms).toBe(0);
});

test('a job at its maximum cost is cancelled with the reason, and not retried', async () => {
  const runner = fakeRunner({ gpus: { 'H100-80GB': 8 } });
  await using app = await startApp({ overrides: { runner } });
  const ada = await withAda(app);
  await run(ada, 'costly', 'echo ::progress::epoch 1; echo up; busy', {
    ...H100S,
    maxCost: '0.01',
    retries: 3,
  });
  const ended = await until(ada, 'ada', 'costly', 'CANCELLED');
  const reason = 'cancelled: reached its maximum cost of 0.01';
  expect(ended).toMatchObject({ progress: reason, retryCount: 0, exitCode: 143 });
  expect(Number(ended.totalCost)).toBeGreaterThanOrEqual(0.009);
  expect(await lines(ada, 'ada', 'costly')).toEqual([
    'up',
    'Cancelled: reached its maximum cost of 0.01',
  ]);
});

test('the costs of all attempts count, also after a restart and on another worker', async () => {
  const runner = fakeRunner({ gpus: { 'H100-80GB': 8 } });
  await using app = await startApp({ overrides: { runner } });
  const ada = await withAda(app);
  await run(ada, 'twice', 'echo up; hold; exit 1', { ...H100S, maxCost: '100.00', retries: 1 });
  await until(ada, 'ada', 'twice', 'RUNNING');
  const { costPerHour } = await job(ada, 'ada', 'twice');
  // The first attempt has run for almost all of the money.
  const seconds = Math.floor((100 / Number(costPerHour)) * 3_600) - 1;
  await app.restart();
  await app.app.services.db.job.updateMany({
    where: { name: 'twice' },
    data: { runtimeSeconds: seconds },
  });
  runner.release();
  await eventually(() => expect(runner.started).toHaveLength(2));
  expect(runner.started.map(({ timeoutMs }) => timeoutMs < 3_000)).toEqual([false, true]);
  const ended = await until(ada, 'ada', 'twice', 'CANCELLED');
  expect(ended.progress).toBe('cancelled: reached its maximum cost of 100.00');
  expect(ended.attempts.nodes).toHaveLength(2);
});

test('an attempt that was lost costs nothing, and the next worker enforces the same limit', async () => {
  const runner = fakeRunner({ gpus: { 'H100-80GB': 8 } });
  await using app = await startApp({ overrides: { runner } });
  const ada = await withAda(app);
  await run(ada, 'lost', 'lose', { ...H100S, maxCost: '0.50' });
  const ended = await until(ada, 'ada', 'lost', 'FAILED');
  expect(ended.totalCost).toBe('0.00');
  const limit = runner.started[0]?.timeoutMs;
  expect(limit).toBeLessThan(60_000);
  expect(runner.started.map(({ timeoutMs }) => timeoutMs)).toEqual([limit, limit, limit, limit]);
});

test('a job whose GPUs are idle is cancelled, continuing the idle time after a restart', async () => {
  const fake = fakeRunner({ gpus: { T4: 4 }, graceMs: 50 });
  let load: number | null = 0;
  let starts = 0;
  let changed = Promise.withResolvers<void>();
  const runner: Runner & typeof fake = {
    ...fake,
    async sweep(keep) {
      starts += 1;
      changed = Promise.withResolvers();
      await fake.sweep(keep);
    },
    async stats(handle) {
      const usage = await fake.stats(handle);
      // A later process takes its first sample when the test has changed the stored time.
      if (starts > 1) await changed.promise;
      return usage && { ...usage, gpuPercent: load };
    },
  };
  await using app = await startApp({ overrides: { runner } });
  const ada = await withAda(app);
  const GPU = { gpu: 'T4', idleTimeoutMinutes: 1 };
  await run(ada, 'idle', 'echo ::progress::epoch 1; trap 7; busy', GPU);
  await until(ada, 'ada', 'idle', 'RUNNING');
  const stored = () => app.app.services.db.job.findFirstOrThrow({ where: { name: 'idle' } });
  // biome-ignore lint/suspicious/noExplicitAny: JSON of the database.
  const idleTime = async () => ((await stored()).usage as any)?.idle;
  await eventually(async () => expect((await idleTime())?.ms).toBeGreaterThan(0));
  await app.restart();
  // Almost the whole minute has passed before.
  const { usage, attemptId } = await stored();
  const idle = { attemptId, ms: 59_900 };
  await app.app.services.db.job.updateMany({
    where: { name: 'idle' },
    data: { usage: { ...(usage as object), idle } },
  });
  changed.resolve();
  const ended = await until(ada, 'ada', 'idle', 'CANCELLED');
  expect(ended.progress).toBe('cancelled: its GPUs were idle for 1 minute');
  await eventually(async () =>
    expect(await lines(ada, 'ada', 'idle')).toEqual(['Cancelled: its GPUs were idle for 1 minute']),
  );
  await eventually(async () => expect((await job(ada, 'ada', 'idle')).exitCode).toBe(7));

  // The hold of a failed job has an end of its own.
  await run(ada, 'held', 'busy', GPU);
  await until(ada, 'ada', 'held', 'RUNNING');
  const setHeld = (data: object) =>
    app.app.services.db.job.updateMany({ where: { name: 'held' }, data });
  const row = () => app.app.services.db.job.findFirstOrThrow({ where: { name: 'held' } });
  await eventually(async () => expect((await row()).usage).toHaveProperty('idle'));
  await app.restart();
  const long = { attemptId: (await row()).attemptId, ms: 3_600_000 };
  await setHeld({ heldAt: new Date(), usage: { ...((await row()).usage as object), idle: long } });
  changed.resolve();
  await eventually(async () => {
    const { usage: sampled, status } = await row();
    expect(sampled).toMatchObject({ idle: { ms: expect.any(Number) } });
    // biome-ignore lint/suspicious/noExplicitAny: JSON of the database.
    expect((sampled as any).idle.ms).toBeGreaterThan(3_600_000);
    expect(status).toBe('running');
  });
  await setHeld({ heldAt: null });
  await until(ada, 'ada', 'held', 'CANCELLED');

  load = null;
  await run(ada, 'unmeasured', 'busy', GPU);
  await eventually(async () => {
    const { usage: sampled } = await app.app.services.db.job.findFirstOrThrow({
      where: { name: 'unmeasured' },
    });
    expect(sampled).toMatchObject({ gpuPercent: null, idle: { ms: 0 } });
  });
});

test('hostile limits are refused, and a re-run keeps the limits', async () => {
  const runner = fakeRunner({ gpus: { T4: 4 } });
  await using app = await startApp({ overrides: { runner } });
  const ada = await withAda(app);
  const BASE = { namespace: 'ada', repo: 'ada/code', name: 'bad', command: 'true' };
  const long = '9'.repeat(100_000);
  for (const maxCost of ['0', '0.0000', '10000000000', '0.00001', long, `0.${long}`]) {
    const { errors } = await submitRaw(ada, { ...BASE, maxCost });
    expect(errors?.[0]?.extensions, maxCost.slice(0, 20)).toMatchObject({
      code: 'INVALID_REQUEST',
      field: 'maxCost',
    });
  }
  for (const maxCost of [
    '-1',
    '1e400',
    'NaN',
    'Infinity',
    '',
    ' 1',
    '1.',
    '0x10',
    '١',
    1,
    1.5,
    true,
    [],
  ]) {
    const { errors } = await submitRaw(ada, { ...BASE, maxCost });
    expect(errors?.[0]?.message, String(maxCost)).toMatch(/decimal/);
  }
  for (const idleTimeoutMinutes of [0, -1, 10_081]) {
    const { errors } = await submitRaw(ada, { ...BASE, gpu: 'T4', idleTimeoutMinutes });
    expect(errors?.[0]?.extensions).toMatchObject({ field: 'idleTimeoutMinutes' });
  }
  const { errors } = await submitRaw(ada, { ...BASE, idleTimeoutMinutes: 5 });
  expect(errors?.[0]?.extensions).toMatchObject({ field: 'idleTimeoutMinutes' });

  await run(ada, 'first', 'exit 0', { gpu: 'T4', maxCost: '2.5', idleTimeoutMinutes: 9 });
  const again = await ada.gql(
    `mutation { rerunJob(input: { namespace: "ada", name: "first" }) { job { maxCost idleTimeoutMinutes } } }`,
  );
  expect(again.rerunJob.job).toEqual({ maxCost: '2.50', idleTimeoutMinutes: 9 });
});
