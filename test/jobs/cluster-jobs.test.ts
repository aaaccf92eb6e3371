/** Jobs that wait for hours in the queue of a cluster between their submission and their start. */
import { expect, test } from 'vitest';
import { endLostAttempt } from '../../src/jobs/worker/finish.ts';
import { Unstartable } from '../../src/runners/runner.ts';
import {
  type ClusterRunner,
  clusterRunner,
  WAITING_FOR_NODES,
  type WaitingAttempt,
} from '../support/cluster-runner.ts';
import { eventually } from '../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { cancel, job, lines, submit, until } from '../support/submit.ts';

const HOUR_MS = 3_600_000;

async function withAda(app: TestApp): Promise<Client> {
  const ada = await app.user('ada');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
  return ada;
}

const run = (client: Client, name: string, command: string, more: object = {}) =>
  submit(client, { namespace: 'ada', repo: 'ada/code', name, command, ...more });

function untilWaiting({ waiting }: ClusterRunner, name: string): Promise<WaitingAttempt> {
  return eventually(async () => {
    const attempt = waiting.get(name);
    if (!attempt) throw new Error(`${name} does not wait; waiting: ${[...waiting.keys()].join()}`);
    return attempt;
  });
}

/** Lets the cluster start the job. */
async function admit(runner: ClusterRunner, name: string): Promise<void> {
  (await untilWaiting(runner, name)).admit();
}

test('a job in the queue of a cluster stays queued and shows why, and its cost counts from its start', async () => {
  const runner = clusterRunner();
  await using app = await startApp({ overrides: { runner } });
  const ada = await withAda(app);
  const { db } = app.app.services;
  const { id } = await run(ada, 'patient', 'echo up; hold');
  const waiting = await untilWaiting(runner, 'patient');
  for (const reason of [WAITING_FOR_NODES, 'waiting for Slurm: expected at 14:05']) {
    waiting.report(reason);
    await eventually(async () =>
      expect(await job(ada, 'ada', 'patient')).toMatchObject({
        status: 'QUEUED',
        progress: reason,
        startedAt: null,
      }),
    );
  }
  // As if it had been submitted long ago.
  const createdAt = new Date(Date.now() - 5 * HOUR_MS);
  await db.jobAttempt.updateMany({ data: { createdAt } });
  await db.job.updateMany({ data: { createdAt } });
  expect(await job(ada, 'ada', 'patient')).toMatchObject({ runtimeSeconds: 0, totalCost: '0.00' });

  const admittedAt = Date.now();
  waiting.admit();
  await until(ada, 'ada', 'patient', 'RUNNING');
  await eventually(async () => expect(await lines(ada, 'ada', 'patient')).toEqual(['up']));
  runner.release();
  const ended = await until(ada, 'ada', 'patient', 'SUCCEEDED');
  expect(Date.parse(ended.startedAt)).toBeGreaterThanOrEqual(admittedAt);
  expect(ended.runtimeSeconds).toBeLessThan(60);
  expect(runner.started.map((spec) => spec.job)).toEqual([
    { id, name: 'patient', namespace: 'ada' },
  ]);
  // The handle of the start is stored and used afterwards.
  expect(runner.awaited).toMatchObject([{ node: 'node-7' }]);
  expect(await db.jobAttempt.findMany({ select: { handle: true } })).toMatchObject([
    { handle: { node: 'node-7' } },
  ]);
});

test('a job that is cancelled in the queue of a cluster never starts', async () => {
  const runner = clusterRunner();
  await using app = await startApp({ overrides: { runner } });
  const ada = await withAda(app);
  await run(ada, 'late', 'echo ran');
  const waiting = await untilWaiting(runner, 'late');
  const { data } = await cancel(ada, 'ada', 'late');
  expect(data.cancelJob).toMatchObject({ message: 'Cancelled before the job started.' });
  await eventually(() => expect(runner.waiting.size).toBe(0));
  waiting.report('waiting for Slurm: too late');
  await run(ada, 'next', 'exit 0');
  await admit(runner, 'next');
  await until(ada, 'ada', 'next', 'SUCCEEDED');
  expect(runner.started.map((spec) => spec.job.name)).toEqual(['next']);
  expect(await job(ada, 'ada', 'late')).toMatchObject({
    status: 'CANCELLED',
    progress: 'cancelled',
    runtimeSeconds: 0,
  });
});

test('a server that restarts while a job waits in a cluster waits on with the same attempt', async () => {
  const runner = clusterRunner();
  await using app = await startApp({ overrides: { runner } });
  const ada = await withAda(app);
  await run(ada, 'kept', 'echo ran');
  const first = await untilWaiting(runner, 'kept');
  first.report('waiting for Slurm: Priority');
  await app.restart();
  const second = await untilWaiting(runner, 'kept');
  expect(second).not.toBe(first);
  // The preparation is repeated and writes its progress; the reason is written again after that.
  await eventually(async () =>
    expect(await job(ada, 'ada', 'kept')).toMatchObject({ progress: WAITING_FOR_NODES }),
  );
  second.admit();
  expect(await until(ada, 'ada', 'kept', 'SUCCEEDED')).toMatchObject({
    retryCount: 0,
    attempts: { nodes: [{ number: 1, outcome: 'EXITED' }] },
  });
  expect(runner.started).toHaveLength(1);
});

test('a job that the cluster refuses fails with the reason', async () => {
  const runner = clusterRunner();
  await using app = await startApp({ overrides: { runner } });
  const ada = await withAda(app);
  await run(ada, 'refused', 'echo ran', { retries: 3 });
  const reason = 'The partition "gpu" does not allow this account';
  (await untilWaiting(runner, 'refused')).refuse(new Unstartable(reason));
  expect(await until(ada, 'ada', 'refused', 'FAILED')).toMatchObject({
    exitCode: 125,
    progress: `failed: ${reason}`,
    attempts: { nodes: [{ number: 1, outcome: 'UNSTARTABLE' }] },
  });
  expect(await lines(ada, 'ada', 'refused')).toEqual([reason]);
});

test('a job that a cluster loses before its start is queued again, three times at most', async () => {
  const runner = clusterRunner();
  await using app = await startApp({ overrides: { runner } });
  const ada = await withAda(app);
  await run(ada, 'lucky', 'echo ran');
  (await untilWaiting(runner, 'lucky')).lose();
  await admit(runner, 'lucky');
  expect(await until(ada, 'ada', 'lucky', 'SUCCEEDED')).toMatchObject({
    retryCount: 0,
    attempts: { nodes: [{ outcome: 'LOST' }, { outcome: 'EXITED' }] },
  });
  await run(ada, 'unlucky', 'echo ran');
  let previous: WaitingAttempt | undefined;
  for (let losses = 0; losses < 4; losses++) {
    const next = await eventually(async () => {
      const found = runner.waiting.get('unlucky');
      if (!found || found === previous) throw new Error('it does not wait again');
      return found;
    });
    previous = next;
    next.lose();
  }
  expect(await until(ada, 'ada', 'unlucky', 'FAILED')).toMatchObject({
    retryCount: 0,
    progress: 'failed: the machine was lost 4 times',
  });
});

test('an attempt that was taken for lost while it waited does not start beside its successor', async () => {
  const runner = clusterRunner({ ignoresAbort: true });
  await using app = await startApp({ overrides: { runner } });
  const ada = await withAda(app);
  const { db } = app.app.services;
  const { id: jobId } = await run(ada, 'paused', 'echo ran');
  const first = await untilWaiting(runner, 'paused');
  const [attempt] = await db.jobAttempt.findMany({ where: { jobId } });
  if (!attempt) throw new Error('no attempt');
  expect(attempt.handle).toBeNull();
  await endLostAttempt({ db }, { attemptId: attempt.id, jobId });
  const second = await eventually(async () => {
    const found = runner.waiting.get('paused');
    if (!found || found === first) throw new Error('the job is not claimed again');
    return found;
  });
  first.admit();
  await eventually(async () => expect(await runner.attach({ attempt: attempt.id })).toBe('gone'));
  expect(runner.started).toEqual([]);
  second.admit();
  expect(await until(ada, 'ada', 'paused', 'SUCCEEDED')).toMatchObject({
    attempts: { nodes: [{ outcome: 'LOST' }, { outcome: 'EXITED' }] },
  });
  expect(runner.started).toHaveLength(1);
});
