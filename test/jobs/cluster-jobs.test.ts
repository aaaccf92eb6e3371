/** Jobs on clusters: the wait between their submission and their start, and their places beside ordinary machines. */
import { expect, test } from 'vitest';
import type { PrismaClient } from '../../prisma/generated/client.ts';
import { endLostAttempt } from '../../src/jobs/attempts/finish.ts';
import { claimJobs, type WaitingJob } from '../../src/jobs/queue/claim.ts';
import { ArtifactsLost, AttemptLost, type Machine, Unstartable } from '../../src/runners/runner.ts';
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

/** @param previous an earlier attempt of the job, which may not have gone yet */
function untilWaiting(
  { waiting }: ClusterRunner,
  name: string,
  previous?: WaitingAttempt,
): Promise<WaitingAttempt> {
  return eventually(async () => {
    const attempt = waiting.get(name);
    if (!attempt || attempt === previous)
      throw new Error(`${name} does not wait; waiting: ${[...waiting.keys()].join()}`);
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
  const first = await untilWaiting(runner, 'lucky');
  first.lose();
  (await untilWaiting(runner, 'lucky', first)).admit();
  expect(await until(ada, 'ada', 'lucky', 'SUCCEEDED')).toMatchObject({
    retryCount: 0,
    attempts: { nodes: [{ outcome: 'LOST' }, { outcome: 'EXITED' }] },
  });
  await run(ada, 'unlucky', 'echo ran');
  let previous: WaitingAttempt | undefined;
  for (let losses = 0; losses < 4; losses++) {
    const next = await untilWaiting(runner, 'unlucky', previous);
    previous = next;
    next.lose();
  }
  expect(await until(ada, 'ada', 'unlucky', 'FAILED')).toMatchObject({
    retryCount: 0,
    progress: 'failed: its machine or its supervising process was lost 4 times',
  });
});

test('a job whose agent cannot start says why, while it waits and when it fails', async () => {
  const runner = clusterRunner();
  await using app = await startApp({ overrides: { runner } });
  const ada = await withAda(app);
  await run(ada, 'old', 'echo ran');
  const reason = 'Slurm: exit code 1 on n1: GLIBC_2.28 not found';
  let previous: WaitingAttempt | undefined;
  for (let losses = 0; losses < 4; losses++) {
    const next = await untilWaiting(runner, 'old', previous);
    previous = next;
    next.refuse(new AttemptLost(reason));
  }
  expect(await until(ada, 'ada', 'old', 'FAILED')).toMatchObject({
    progress: `failed: its machine or its supervising process was lost 4 times, at last: ${reason}`,
  });
  expect(await lines(ada, 'ada', 'old')).toEqual([reason, reason, reason, reason]);
});

test('a job whose node is lost with its artifacts runs again, unless its command has failed', async () => {
  const runner = clusterRunner();
  const { artifacts } = runner;
  runner.artifacts = async () => {
    throw new ArtifactsLost('the node was lost');
  };
  await using app = await startApp({ overrides: { runner } });
  const ada = await withAda(app);
  await run(ada, 'failing', 'exit 3', { outputPath: 'out', retries: 0 });
  await admit(runner, 'failing');
  expect(await until(ada, 'ada', 'failing', 'FAILED')).toMatchObject({ exitCode: 3 });
  expect(await lines(ada, 'ada', 'failing')).toEqual([
    'The artifacts were not kept: the node was lost',
  ]);
  await run(ada, 'whole', 'echo kept > out/file', { outputPath: 'out', retries: 0 });
  const first = await untilWaiting(runner, 'whole');
  first.admit();
  const second = await untilWaiting(runner, 'whole', first);
  runner.artifacts = artifacts;
  second.admit();
  expect(await until(ada, 'ada', 'whole', 'SUCCEEDED')).toMatchObject({
    retryCount: 0,
    artifacts: { fileCount: 1 },
    attempts: { nodes: [{ outcome: 'LOST' }, { outcome: 'EXITED' }] },
  });
});

test('an attempt that was taken for lost while it waited does not start beside its successor', async () => {
  const runner = clusterRunner({ ignoresAbort: true });
  await using app = await startApp({ overrides: { runner } });
  const ada = await withAda(app);
  const db = app.app.services.db as PrismaClient;
  const { id: jobId } = await run(ada, 'paused', 'echo ran');
  const first = await untilWaiting(runner, 'paused');
  const [attempt] = await db.jobAttempt.findMany({ where: { jobId } });
  if (!attempt) throw new Error('no attempt');
  expect(attempt.handle).toBeNull();
  await endLostAttempt({ db }, { attemptId: attempt.id, jobId });
  const second = await untilWaiting(runner, 'paused', first);
  first.admit();
  await eventually(async () => expect(await runner.attach({ attempt: attempt.id })).toBe('gone'));
  expect(runner.started).toEqual([]);
  second.admit();
  expect(await until(ada, 'ada', 'paused', 'SUCCEEDED')).toMatchObject({
    attempts: { nodes: [{ outcome: 'LOST' }, { outcome: 'EXITED' }] },
  });
  expect(runner.started).toHaveLength(1);
});

const LOCAL: Machine = { id: 'local', cpus: 64, memoryBytes: 2 ** 40, gpus: {} };
const CLUSTER: Machine = { ...LOCAL, id: 'hpc', maxJobs: 2 };

/** Name of each job that runs or waits in the cluster → its machine. */
async function placesOf(app: TestApp): Promise<Record<string, string>> {
  const open = await app.app.services.db.jobAttempt.findMany({
    where: { endedAt: null },
    select: { machine: true, job: { select: { name: true } } },
  });
  return Object.fromEntries(open.map(({ machine, job: { name } }) => [name, machine]));
}

test('jobs on a cluster use no slots, also while it does not answer', async () => {
  const runner = clusterRunner({ machines: [LOCAL, CLUSTER] });
  await using app = await startApp({ config: { jobSlots: 1 }, overrides: { runner } });
  const ada = await withAda(app);
  await run(ada, 'first', 'hold');
  await until(ada, 'ada', 'first', 'RUNNING');
  for (const name of ['second', 'third', 'fourth']) await run(ada, name, 'exit 0');
  await untilWaiting(runner, 'third');
  expect(await placesOf(app)).toEqual({ first: 'local', second: 'hpc', third: 'hpc' });
  await eventually(async () =>
    expect((await job(ada, 'ada', 'fourth')).progress).toMatch(/1st in line/),
  );

  const cluster = async () => {
    const { servers } = await app.admin.gql(
      '{ servers { worker { machines { name jobs maxJobs unavailableReason } } } }',
    );
    return servers[0].worker.machines.find(({ name }: { name: string }) => name === 'hpc');
  };
  expect(await cluster()).toMatchObject({ jobs: 2, maxJobs: 2, unavailableReason: null });

  const unavailableReason = 'the controller does not answer';
  Object.assign(runner, { machines: [LOCAL], clusters: [{ id: 'hpc', unavailableReason }] });
  // Written with the next heartbeat.
  await eventually(async () =>
    expect(await cluster()).toMatchObject({ jobs: 2, unavailableReason }),
  );
  runner.release();
  expect(await until(ada, 'ada', 'fourth', 'SUCCEEDED')).toMatchObject({ retryCount: 0 });
  expect(await placesOf(app)).toEqual({ second: 'hpc', third: 'hpc' });
  for (const name of ['second', 'third']) {
    await admit(runner, name);
    await until(ada, 'ada', name, 'SUCCEEDED');
  }
});

test('a job that only a cluster could run waits with the reason for which the cluster takes no jobs', async () => {
  const runner = clusterRunner({ machines: [CLUSTER] });
  const unavailableReason = 'Loam has no permission for pods (create)';
  Object.assign(runner, { machines: [], clusters: [{ id: 'hpc', unavailableReason }] });
  await using app = await startApp({ config: { jobSlots: 0 }, overrides: { runner } });
  const ada = await withAda(app);
  await run(ada, 'plain', 'exit 0');
  await run(ada, 'image', 'exit 0', { image: 'debian:12' });
  await run(ada, 'gpu', 'exit 0', { gpu: 'T4' });
  for (const name of ['plain', 'image', 'gpu'])
    await eventually(async () =>
      expect(await job(ada, 'ada', name)).toMatchObject({
        status: 'QUEUED',
        progress: expect.stringMatching(
          /: no worker offers it, and "hpc" takes no jobs now: Loam has no permission for pods \(create\)$/,
        ),
      }),
    );
  Object.assign(runner, { machines: [CLUSTER], clusters: [{ id: 'hpc' }] });
  await untilWaiting(runner, 'plain');
});

test('a worker without slots runs jobs on its clusters', async () => {
  const runner = clusterRunner({ machines: [LOCAL, CLUSTER] });
  await using app = await startApp({ config: { jobSlots: 0 }, overrides: { runner } });
  const ada = await withAda(app);
  for (const name of ['first', 'second', 'third']) await run(ada, name, 'exit 0');
  await untilWaiting(runner, 'second');
  await admit(runner, 'first');
  // The place of a job that has ended goes to the next.
  for (const name of ['third', 'second']) await admit(runner, name);
  for (const name of ['first', 'second', 'third'])
    expect(await until(ada, 'ada', name, 'SUCCEEDED')).toMatchObject({ retryCount: 0 });
  expect(runner.started.map(({ machine }) => machine)).toEqual(['hpc', 'hpc', 'hpc']);
});

test('a job in a region that no worker serves waits and says so, and holds up no other job', async () => {
  const runner = clusterRunner({
    machines: [{ ...CLUSTER, regions: ['us-east-1'], gpus: { T4: 4 } }],
  });
  await using app = await startApp({ config: { jobSlots: 0 }, overrides: { runner } });
  const ada = await withAda(app);
  await run(ada, 'far', 'exit 0', { region: 'EU_WEST_1', cpu: 2, memoryGb: 4 });
  const { progress } = await run(ada, 'far-gpu', 'exit 0', { region: 'EU_WEST_1', gpu: 'T4' });
  expect(progress).toBe('waiting for a T4 in eu-west-1: no worker offers it');
  await run(ada, 'near', 'exit 0', { gpu: 'T4' });
  await admit(runner, 'near');
  await until(ada, 'ada', 'near', 'SUCCEEDED');
  expect(await job(ada, 'ada', 'far')).toMatchObject({
    status: 'QUEUED',
    progress: 'waiting for 2 vCPUs and 4 GB in eu-west-1: no worker offers it',
  });
  expect((await job(ada, 'ada', 'far-gpu')).progress).toBe(progress);
});

test('a claim reads only the queues of regions that the worker serves', async () => {
  await using app = await startApp({ config: { jobSlots: 0 } });
  const [ada, bob] = [await withAda(app), await app.user('bob')];
  await bob.post('/auth/v1/repository/bob', { name: 'code' });
  await run(ada, 'eu', 'exit 0', { region: 'EU_WEST_1' });
  await run(ada, 'eu-two', 'exit 0', { region: 'EU_WEST_1', gpu: 'T4', gpuCount: 2 });
  await run(ada, 'us-two', 'exit 0', { gpu: 'T4', gpuCount: 2 });
  await submit(bob, { namespace: 'bob', repo: 'bob/code', name: 'us', command: 'exit 0' });
  const { services } = app.app;
  const names = new Map(
    (await services.db.job.findMany({ select: { id: true, name: true } })).map((row) => [
      row.id,
      row.name,
    ]),
  );
  const read = async (pools: Record<string, Record<string, number>>) => {
    const found: WaitingJob[] = [];
    await claimJobs(services, {
      workerId: 'reader',
      runner: 'fake',
      pools: new Map(Object.entries(pools)),
      maxQueues: 1,
      maxJobsPerQueue: 8,
      reserved: [],
      decide(queues) {
        found.push(...queues.flatMap(({ jobs }) => jobs));
        return [];
      },
    });
    return found.map(({ id }) => names.get(id));
  };
  expect(await read({ none: { 'us-east-1': 0 } })).toEqual(['us']);
  expect(await read({ none: { 'eu-west-1': 0 } })).toEqual(['eu']);
  expect(await read({ none: { 'us-west-2': 0 } })).toEqual([]);
  expect(await read({ T4: { 'us-east-1': 4, 'eu-west-1': 1 } })).toEqual(['us-two']);
  expect(await read({ T4: { 'us-east-1': 1, 'eu-west-1': 2 } })).toEqual(['eu-two']);
});
