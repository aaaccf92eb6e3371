/** Failures around an attempt do not hold its slot forever, and do not prevent the start of the worker. */
import { mkdir } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import type { Pool } from 'pg';
import { expect, test } from 'vitest';
import { GitError } from '../../src/git/processes/run.ts';
import {
  type CheckOutJob,
  createCheckout,
  createInputReader,
} from '../../src/jobs/attempts/checkouts.ts';
import { endLostAttempt } from '../../src/jobs/attempts/finish.ts';
import { startWorker } from '../../src/jobs/attempts/worker.ts';
import { findLostAttempts } from '../../src/jobs/queue/heartbeats.ts';
import type { DiskSpace } from '../../src/platform/storage/disk-space.ts';
import {
  GRACE_MS,
  type Machine,
  type Outcome,
  type Runner,
  RunnerUnavailable,
} from '../../src/runners/runner.ts';
import { eventually } from '../support/eventually.ts';
import { type FakeRunner, fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { startProcessClock } from '../support/process-clock.ts';
import { cancel, job, lines, submit, until } from '../support/submit.ts';

async function withAda(app: TestApp): Promise<Client> {
  const ada = await app.user('ada');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
  return ada;
}

const run = (client: Client, name: string, command: string, more: object = {}) =>
  submit(client, { namespace: 'ada', repo: 'ada/code', name, command, ...more });

type Database = Parameters<typeof startWorker>[0]['db'];

/** The server claims no jobs. A worker with a faulty runner, short pauses and one slot claims them. */
async function withWorker(
  runner: Runner,
  wrap = (pool: Pool) => pool,
  changes: Partial<Parameters<typeof startWorker>[0]> = {},
) {
  const app = await startApp({ config: { jobSlots: 0 }, overrides: { runner: fakeRunner() } });
  const { services } = app.app;
  const db = services.db as Database;
  const pool = wrap(services.pool);
  const config = { ...services.config, jobSlots: 1 };
  const deps = {
    ...services,
    db,
    pool,
    config,
    runner,
    checkout: createCheckout(services),
    readInput: createInputReader(services),
    ...changes,
  };
  const worker = await startWorker(deps, { pauses: { firstMs: 5, longestMs: 20 }, awayMs: 50 });
  return {
    app,
    ada: await withAda(app),
    async [Symbol.asyncDispose]() {
      await worker[Symbol.asyncDispose]();
      await app[Symbol.asyncDispose]();
    },
  };
}

test('a job whose secrets cannot be decrypted fails, its process ends, and its slot is free', async () => {
  const runner = fakeRunner({ graceMs: 100 });
  await using app = await startApp({ config: { jobSlots: 1 }, overrides: { runner } });
  const ada = await withAda(app);
  await run(ada, 'sealed', 'echo up; sleep 600', {
    secrets: [{ name: 'KEY', value: 'value' }],
    retries: 3,
  });
  await eventually(async () => expect(await lines(ada, 'ada', 'sealed')).toEqual(['up']));
  await run(ada, 'next', 'exit 0');

  const secrets = Buffer.alloc(64, 7);
  await app.app.services.db.job.updateMany({ where: { name: 'sealed' }, data: { secrets } });
  await app.restart();
  expect(await until(ada, 'ada', 'sealed', 'FAILED')).toMatchObject({
    exitCode: 125,
    retryCount: 0,
    attempts: { nodes: [{ number: 1, outcome: 'UNSTARTABLE' }] },
  });
  expect(await lines(ada, 'ada', 'sealed')).toEqual([
    'up',
    expect.stringMatching(/^The secrets of the job cannot be decrypted/),
  ]);
  await eventually(() => expect(runner.running()).toEqual([]));
  await until(ada, 'ada', 'next', 'SUCCEEDED');
});

test('an attempt whose handle was stored without confirmation runs and is not lost', async () => {
  const fake = fakeRunner({ graceMs: 100 });
  let unconfirmed = 0;
  const runner: Runner = {
    ...fake,
    start: (handle, mayBegin) =>
      fake.start(handle, async () => {
        const may = await mayBegin?.();
        if (unconfirmed++ > 0) return may ?? false;
        throw Object.assign(new Error('Connection terminated'), { code: 'ECONNRESET' });
      }),
  };
  await using made = await withWorker(runner);
  await run(made.ada, 'once', 'echo ran');
  expect(await until(made.ada, 'ada', 'once', 'SUCCEEDED')).toMatchObject({
    attempts: { nodes: [{ number: 1, outcome: 'EXITED' }] },
  });
  expect(unconfirmed).toBe(2);
});

test('a job that is cancelled during its preparation never starts', async () => {
  const fake = fakeRunner({ graceMs: 100 });
  const [ready, go] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const runner: Runner = {
    ...fake,
    async start(handle, mayBegin) {
      ready.resolve();
      await go.promise;
      return fake.start(handle, mayBegin);
    },
  };
  await using made = await withWorker(runner);
  const { ada } = made;
  await run(ada, 'late', 'echo ran');
  await ready.promise;
  const { body } = await ada.post('/auth/v1/seed/ada/jobs/late/cancel', {});
  expect(body).toMatchObject({ message: 'Cancelled before the job started.', runtime_seconds: 0 });
  go.resolve();
  await run(ada, 'next', 'exit 0');
  await until(ada, 'ada', 'next', 'SUCCEEDED');
  expect(fake.started.map(({ env }) => env.JOB_NAME)).toEqual(['next']);
  expect(await lines(ada, 'ada', 'late')).toEqual([]);
});

test('an attempt that was taken for lost is killed at once, and the next attempt starts after it', async () => {
  // SIGTERM would give it a grace period of thirty seconds.
  const fake = fakeRunner();
  await using made = await withWorker(fake);
  const db = made.app.app.services.db as Database;
  await run(made.ada, 'paused', 'stubborn; echo up; sleep 600');
  await until(made.ada, 'ada', 'paused', 'RUNNING');
  const { id, jobId } = await db.jobAttempt.findFirstOrThrow({ where: { endedAt: null } });
  using clock = startProcessClock();
  expect(await endLostAttempt({ db }, { attemptId: id, jobId })).toBe(true);
  await eventually(() => expect(fake.started).toHaveLength(2));
  expect(clock.ms).toBeLessThan(GRACE_MS);
  expect(fake.running()).toHaveLength(1);
  await cancel(made.ada, 'ada', 'paused');
});

test('a cancelled job has its exit code while its last lines wait for disk space', async () => {
  const fake = fakeRunner();
  let low = false;
  const space: DiskSpace = {
    get low() {
      return low;
    },
    room: Number.POSITIVE_INFINITY,
    demand() {},
    disks: async () => [],
    async untilFree(signal) {
      while (low && !signal.aborted) await delay(10);
    },
    [Symbol.dispose]() {},
  };
  await using made = await withWorker(fake, (pool) => pool, { space });
  const { ada } = made;
  await run(ada, 'full', 'echo up; hold; echo late; sleep 600');
  await eventually(async () => expect(await lines(ada, 'ada', 'full')).toEqual(['up']));
  low = true;
  fake.release();
  await cancel(ada, 'ada', 'full');
  await eventually(async () =>
    expect(await job(ada, 'ada', 'full')).toMatchObject({ status: 'CANCELLED', exitCode: 143 }),
  );
  expect(await lines(ada, 'ada', 'full')).toEqual(['up']);
  low = false;
  await eventually(async () => expect(await lines(ada, 'ada', 'full')).toEqual(['up', 'late']));
});

test('a checkout that fails on a full disk is repeated when there is space', async () => {
  const fake = fakeRunner();
  let failures = 0;
  const checkout: CheckOutJob = async ({ dir }) => {
    if (failures++ < 3)
      throw new GitError('reset', {
        code: 128,
        signal: null,
        stderr: 'fatal: unable to write file a: No space left on device',
      });
    await mkdir(dir);
    return 0;
  };
  await using made = await withWorker(fake, (pool) => pool, { checkout });
  await run(made.ada, 'patient', 'echo ran');
  expect(await until(made.ada, 'ada', 'patient', 'SUCCEEDED')).toMatchObject({ retryCount: 0 });
});

test('a job that has not started on a machine that does not answer is queued again and gets another machine', async () => {
  const machine = (id: string): Machine => ({ id, cpus: 64, memoryBytes: 2 ** 40, gpus: {} });
  const fake = fakeRunner({ graceMs: 100 });
  let machines = [machine('far')];
  const runner: Runner = {
    ...fake,
    get machines() {
      return machines;
    },
    async prepare(spec, signal) {
      if (spec.machine === 'near') return fake.prepare(spec, signal);
      machines = [machine('near')];
      throw new RunnerUnavailable('the engine does not answer');
    },
  };
  await using made = await withWorker(runner);
  await run(made.ada, 'moved', 'echo ran');
  expect(await until(made.ada, 'ada', 'moved', 'SUCCEEDED')).toMatchObject({
    retryCount: 0,
    attempts: { nodes: [{ outcome: 'LOST' }, { outcome: 'EXITED' }] },
  });
  expect(fake.started).toHaveLength(1);
});

test('a job that was cancelled on a machine that does not answer frees its slot', async () => {
  const fake = fakeRunner({ graceMs: 100 });
  const told = Promise.withResolvers<Outcome>();
  let isAway = true;
  const runner: Runner = {
    ...fake,
    async signal() {
      told.resolve({ kind: 'lost', unreachable: true });
      throw new RunnerUnavailable('the engine does not answer');
    },
    wait: (handle, signal) => (isAway ? told.promise : fake.wait(handle, signal)),
    async *logs(handle, cursor, signal) {
      if (!isAway) yield* fake.logs(handle, cursor, signal);
      // If an engine does not answer, there may be more log lines.
      else await new Promise((resolve) => signal.addEventListener('abort', resolve));
    },
  };
  await using made = await withWorker(runner);
  const { ada } = made;
  await run(ada, 'away', 'sleep 600');
  await until(ada, 'ada', 'away', 'RUNNING');
  await run(ada, 'next', 'exit 0');
  await cancel(ada, 'ada', 'away');
  await told.promise;
  isAway = false;
  await until(ada, 'ada', 'next', 'SUCCEEDED');
  expect(await job(ada, 'ada', 'away')).toMatchObject({
    status: 'CANCELLED',
    attempts: { nodes: [{ outcome: 'LOST' }] },
  });
});

test.each(['attach', 'start', 'wait', 'logs'] as const)(
  'an attempt whose %s always fails is failed and killed, and the next job runs',
  async (step) => {
    const fake = fakeRunner({ graceMs: 100 });
    let faulty = '';
    const runner: Runner = {
      ...fake,
      [step]: (handle: { attempt: string }, ...rest: unknown[]) => {
        faulty ||= handle.attempt;
        if (handle.attempt === faulty) throw new Error('broken for good');
        return (fake[step] as (...args: unknown[]) => unknown)(handle, ...rest);
      },
    };
    await using made = await withWorker(runner);
    const { ada } = made;
    await run(ada, 'broken', 'echo up; sleep 600', { retries: 5 });
    await run(ada, 'next', 'exit 0');
    expect(await until(ada, 'ada', 'broken', 'FAILED')).toMatchObject({
      exitCode: 125,
      retryCount: 0,
    });
    expect((await lines(ada, 'ada', 'broken')).at(-1)).toMatch(
      /^The server repeatedly failed to supervise/,
    );
    await until(ada, 'ada', 'next', 'SUCCEEDED');
    expect(fake.running()).toEqual([]);
  },
);

test('an attempt that cannot be removed holds no slot, but its GPU until it is removed', async () => {
  const fake = fakeRunner({ gpus: { T4: 1 } });
  let removable = false;
  const runner: Runner = {
    ...fake,
    async remove(handle) {
      if (!removable) throw Object.assign(new Error('not now'), { code: 'ENAMETOOLONG' });
      await fake.remove(handle);
    },
  };
  await using made = await withWorker(runner);
  const { ada } = made;
  await run(ada, 'first', 'exit 0', { gpu: 'T4' });
  await until(ada, 'ada', 'first', 'SUCCEEDED');
  for (const name of ['second', 'third']) {
    await run(ada, name, 'exit 0');
    await until(ada, 'ada', name, 'SUCCEEDED');
  }
  await run(ada, 'other', 'exit 0', { gpu: 'T4' });
  await run(ada, 'fourth', 'exit 0');
  await until(ada, 'ada', 'fourth', 'SUCCEEDED');
  expect((await job(ada, 'ada', 'other')).status).toBe('QUEUED');
  removable = true;
  await until(ada, 'ada', 'other', 'SUCCEEDED');
});

test('a failed sweep does not prevent the start, is retried, and spares new attempts', async () => {
  const fake = fakeRunner();
  let possible = false;
  const spared: number[] = [];
  const runner: Runner = {
    ...fake,
    async sweep(keep) {
      if (!possible) throw new Error('a folder that cannot be removed');
      await fake.sweep(keep);
      spared.push(fake.running().length);
    },
  };
  await using made = await withWorker(runner);
  const { ada } = made;
  await run(ada, 'begun', 'sleep 600');
  await until(ada, 'ada', 'begun', 'RUNNING');
  possible = true;
  await eventually(() => expect(spared).toEqual([1]));
  expect((await job(ada, 'ada', 'begun')).status).toBe('RUNNING');
  await cancel(ada, 'ada', 'begun');
});

test('attempts of another kind of runner are not touched, and continue under that runner', async () => {
  const runner: FakeRunner = fakeRunner({ graceMs: 100 });
  await using app = await startApp({ overrides: { runner } });
  const ada = await withAda(app);
  await run(ada, 'mine', 'echo a; hold; echo b');
  await eventually(async () => expect(await lines(ada, 'ada', 'mine')).toEqual(['a']));
  const attached: unknown[] = [];
  const { attach, sweep } = runner;
  runner.name = 'other';
  runner.attach = (handle) => {
    attached.push(handle);
    return attach(handle);
  };
  // The sweep removes only attempts of its own runner, and none of these is.
  runner.sweep = async () => {};
  await app.restart();
  await run(ada, 'theirs', 'exit 0');
  await until(ada, 'ada', 'theirs', 'SUCCEEDED');
  expect(attached).toHaveLength(1);
  expect(await job(ada, 'ada', 'mine')).toMatchObject({ status: 'RUNNING' });
  runner.release();
  Object.assign(runner, { name: 'fake', attach, sweep });
  await app.restart();
  await until(ada, 'ada', 'mine', 'SUCCEEDED');
  expect(await lines(ada, 'ada', 'mine')).toEqual(['a', 'b']);
});

test('an attempt counts as lost when it certainly does not run', async () => {
  await using app = await startApp({
    config: { jobSlots: 0 },
    overrides: { runner: fakeRunner() },
  });
  const ada = await withAda(app);
  const { db } = app.app.services;
  const { id: jobId } = await run(ada, 'timed', 'exit 0', { timeoutMinutes: 10 });
  const SECONDS = 1_000;
  const MINUTES = 60 * SECONDS;
  const rows = [
    // Not started: lost after a minute of silence, because its worker can no longer store the handle.
    { id: 'alive', silentMs: 50 * SECONDS, lost: false },
    { id: 'silent', silentMs: 70 * SECONDS, lost: true },
    { id: 'ended', silentMs: 70 * SECONDS, endedAt: new Date(), lost: false },
    // Started: the process continues without its server until its timeout and the grace period.
    { id: 'running', silentMs: 9 * MINUTES, handle: {}, lost: false },
    { id: 'ending', silentMs: 11 * MINUTES, handle: {}, lost: false },
    { id: 'over', silentMs: 12 * MINUTES + SECONDS, handle: {}, lost: true },
    // Own attempts: supervised by this worker, unless they belong to another kind of runner.
    { id: 'own', workerId: 'me', silentMs: 70 * SECONDS, lost: false },
    { id: 'own-other', workerId: 'me', runner: 'docker', silentMs: 70 * SECONDS, lost: true },
    {
      id: 'own-alive',
      workerId: 'me',
      runner: 'docker',
      silentMs: MINUTES,
      handle: {},
      lost: false,
    },
  ];
  for (const [number, { silentMs, lost: _, ...row }] of rows.entries())
    await db.jobAttempt.create({
      data: {
        jobId,
        number,
        workerId: 'other',
        runner: 'fake',
        heartbeatAt: new Date(Date.now() - silentMs),
        ...row,
      },
    });
  const found = await findLostAttempts({ db }, { id: 'me', kinds: ['fake'] });
  expect(found.map(({ attemptId }) => attemptId).sort()).toEqual(
    rows.flatMap(({ id, lost }) => (lost ? id : [])).sort(),
  );
});
