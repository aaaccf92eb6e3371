/** Jobs on machines that joined with a worker token, through the whole server. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { checkpointTopic } from '../../src/jobs/checkpoints/store.ts';
import { REFUSED_EXIT } from '../../src/runners/machines/protocol.ts';
import { eventually } from '../support/eventually.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { startMachine } from '../support/joined-machine.ts';
import { cancel, job, lines, submit, until, variables } from '../support/submit.ts';

const adaCode = { namespace: 'ada', repo: 'ada/code' };
const eveCode = { namespace: 'eve', repo: 'eve/code' };
/** Longer than any test. A variable, because commands are compared. */
const env = variables({ WAIT: '600' });

let app: TestApp;
let ada: Client;
let eve: Client;
let folder: string;

beforeAll(async () => {
  app = await startApp({ config: { runner: 'none' } });
  ada = await app.user('ada');
  eve = await app.user('eve');
  folder = await mkdtemp(join(tmpdir(), 'loam-machines-'));
  await using workspace = await Workspace.open();
  for (const [name, client] of Object.entries({ ada, eve })) {
    await client.repository(`${name}/code`);
    await workspace.clone(client, `${name}/code`, name);
    await workspace.commit(name, { 'a.txt': 'of the repository\n' });
    await workspace.git(name, 'push', 'origin', 'HEAD');
  }
});
afterAll(async () => {
  await app[Symbol.asyncDispose]();
  await rm(folder, { recursive: true, force: true, maxRetries: 5 });
});

async function createToken(client: Client, namespace?: string): Promise<string> {
  const { createWorkerToken } = await client.gql(
    'mutation ($input: CreateWorkerTokenInput!) { createWorkerToken(input: $input) { token } }',
    { input: { name: 'box', ...(namespace && { namespace }) } },
  );
  return createWorkerToken.token;
}

async function countLosses(name: string): Promise<number> {
  const found = await app.pool.query('select loss_count from jobs where name = $1', [name]);
  return found.rows[0].loss_count;
}

/** A machine that has joined and reports. */
async function joined(name: string, namespace?: string) {
  const token = await createToken(namespace ? ada : app.admin, namespace);
  const dir = join(folder, name);
  const machine = startMachine({ server: app.base, dir, token, name });
  await untilMachine(name, 'ONLINE');
  return Object.assign(machine, {
    /** A machine that was removed ends its jobs and its program. */
    async [Symbol.asyncDispose]() {
      if (await machineOf(name)) await remove(name);
      await machine.exited;
    },
  });
}

/** Undefined for a machine that does not exist. */
async function machineOf(name: string) {
  const query = 'query ($name: String!) { machine(name: $name) { name status jobs { name } } }';
  return (await app.admin.graphql(query, { name })).data?.machine;
}

/** The machine of each attempt of a job of ada, as the client sees it. */
async function machinesOf(client: Client, name: string) {
  const found = await client.gql(
    `query ($name: String!) { job(namespace: "ada", name: $name) {
       attempts(first: 9) { nodes { machine joinedMachine { name namespace } } } } }`,
    { name },
  );
  return found.job.attempts.nodes;
}

const untilMachine = (name: string, status: string) =>
  eventually(async () => expect((await machineOf(name))?.status).toBe(status));

const remove = (name: string) =>
  app.admin.gql(
    'mutation ($input: RemoveMachineInput!) { removeMachine(input: $input) { __typename } }',
    { input: { name, force: true } },
  );

test('a job runs on a machine that has joined, with its repository and artifacts', async () => {
  await using _ = await joined('box');
  await submit(ada, {
    ...adaCode,
    name: 'first',
    command: 'cat a.txt; mkdir out; echo kept > out/b.txt; exit 3',
    outputPath: 'out',
  });
  const ended = await until(ada, 'ada', 'first', 'FAILED');
  expect(ended.exitCode).toBe(3);
  expect(ended.artifacts).toMatchObject({ fileCount: 1 });
  expect(await lines(ada, 'ada', 'first')).toEqual(['of the repository']);
  // A machine of all namespaces: operators alone may see it.
  expect(await machinesOf(ada, 'first')).toEqual([{ machine: 'box', joinedMachine: null }]);
  const shown = { machine: 'box', joinedMachine: { name: 'box', namespace: null } };
  expect(await machinesOf(app.admin, 'first')).toEqual([shown]);
});

test('jobs outlive the program and the server, and each line is there once', async () => {
  await using machine = await joined('steady');
  const command = 'for i in $(seq 1 60); do echo $i; sleep 0.1; done; exit 4';
  await submit(ada, { ...adaCode, name: 'long', command });
  await eventually(async () => expect(await lines(ada, 'ada', 'long')).toContain('5'));
  await machine.end('SIGKILL');
  machine.start();
  await eventually(async () => expect(await lines(ada, 'ada', 'long')).toContain('20'));
  await app.restart();
  const ended = await until(ada, 'ada', 'long', 'FAILED');
  expect(ended.exitCode).toBe(4);
  expect(ended.attempts.nodes).toHaveLength(1);
  expect(await lines(ada, 'ada', 'long')).toEqual(Array.from({ length: 60 }, (_, i) => `${i + 1}`));
});

test('a machine of a namespace runs the jobs of that namespace only', async () => {
  await using _ = await joined('private', 'ada');
  await submit(eve, { ...eveCode, name: 'theirs', command: 'echo no' });
  await submit(ada, { ...adaCode, name: 'ours', command: 'echo yes' });
  await until(ada, 'ada', 'ours', 'SUCCEEDED');
  const shown = { machine: 'private', joinedMachine: { name: 'private', namespace: 'ada' } };
  expect(await machinesOf(ada, 'ours')).toEqual([shown]);
  const limited = await ada.withToken({ scopes: ['JOB_READ'] });
  expect(await machinesOf(limited, 'ours')).toEqual([{ ...shown, joinedMachine: null }]);
  expect((await job(eve, 'eve', 'theirs')).status).toBe('QUEUED');
  await using __ = await joined('public');
  await until(eve, 'eve', 'theirs', 'SUCCEEDED');
});

test('a drained machine gets no jobs, and at the deadline its jobs move to another one', async () => {
  await using _ = await joined('full');
  await submit(ada, { ...adaCode, name: 'moved', command: 'echo begun; sleep $WAIT', env });
  await until(ada, 'ada', 'moved', 'RUNNING');
  const drain = (deadlineMinutes: number | null) =>
    app.admin.gql(
      'mutation ($input: DrainMachineInput!) { drainMachine(input: $input) { __typename } }',
      { input: { name: 'full', deadlineMinutes } },
    );
  await drain(null);
  await untilMachine('full', 'DRAINING');
  await using __ = await joined('spare');
  await submit(ada, { ...adaCode, name: 'other', command: 'true' });
  await until(ada, 'ada', 'other', 'SUCCEEDED');
  await drain(0);
  await untilMachine('full', 'DRAINED');
  await until(ada, 'ada', 'moved', 'RUNNING');
  const machines = await app.pool.query(
    `select a.machine, a.outcome from job_attempts a join jobs j on j.id = a.job_id
     where j.name in ('moved', 'other') order by a.id`,
  );
  expect(machines.rows).toEqual([
    { machine: 'full', outcome: 'lost' },
    { machine: 'spare', outcome: 'exited' },
    { machine: 'spare', outcome: null },
  ]);
  expect(await countLosses('moved')).toBe(0);
  await cancel(ada, 'ada', 'moved');
  await until(ada, 'ada', 'moved', 'CANCELLED');
  expect((await job(ada, 'ada', 'moved')).retryCount).toBe(0);
});

test('a machine that is removed is refused at once, ends its jobs, and they run elsewhere', async () => {
  await using machine = await joined('gone');
  await submit(ada, { ...adaCode, name: 'again', command: 'echo begun; sleep $WAIT', env });
  await until(ada, 'ada', 'again', 'RUNNING');
  await remove('gone');
  expect(await machine.exited).toBe(REFUSED_EXIT);
  expect(machine.said).toContain('The server refuses this machine: The machine was removed');
  await using _ = await joined('next');
  await eventually(async () =>
    expect(await machinesOf(app.admin, 'again')).toEqual([
      { machine: 'gone', joinedMachine: null },
      { machine: 'next', joinedMachine: { name: 'next', namespace: null } },
    ]),
  );
  await until(ada, 'ada', 'again', 'RUNNING');
  expect(await countLosses('again')).toBe(0);
  await cancel(ada, 'ada', 'again');
  await until(ada, 'ada', 'again', 'CANCELLED');
});

test('a checkpoint follows a job to another machine, and is stored while it runs there', async () => {
  await using _ = await joined('keeps');
  const checkpoint = async (name: string) => {
    const query = `query ($name: String!) { job(namespace: "ada", name: $name) {
      id checkpoint { files attempt } } }`;
    return (await ada.gql(query, { name })).job;
  };
  const input = { ...adaCode, env, checkpointPath: 'ckpt', checkpointMinutes: 0, retries: 1 };
  const command = `cat ckpt/step; trap 'echo term > ckpt/term; exit 0' TERM
    test -f ckpt/term && exit 0
    echo one > ckpt/step; echo saved; sleep $WAIT & wait`;
  await submit(ada, { ...input, name: 'follows', command });
  await eventually(async () => expect(await lines(ada, 'ada', 'follows')).toContain('saved'));
  app.app.services.bus.notify(checkpointTopic((await checkpoint('follows')).id));
  await eventually(async () =>
    expect((await checkpoint('follows')).checkpoint).toEqual({ files: 1, attempt: 1 }),
  );
  await using __ = await joined('takes');
  // Also a command that ends with success after SIGTERM has not done its work.
  await app.admin.gql(
    'mutation ($input: DrainMachineInput!) { drainMachine(input: $input) { __typename } }',
    { input: { name: 'keeps', deadlineMinutes: 0 } },
  );
  await until(ada, 'ada', 'follows', 'SUCCEEDED');
  expect(
    (await machinesOf(ada, 'follows')).map(({ machine }: { machine: string }) => machine),
  ).toEqual(['keeps', 'takes']);
  expect((await lines(ada, 'ada', 'follows')).slice(-1)).toEqual(['one']);
  expect(await countLosses('follows')).toBe(0);
});
