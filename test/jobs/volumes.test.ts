/** Volumes that jobs name: who may mount them, what is refused, and what a job waits for. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { CONTRACT } from '../../src/base/hardware.ts';
import { checkRequest, findWarnings } from '../../src/jobs/requests/request.ts';
import { measureVolumes, scheduleMeasurement } from '../../src/jobs/volumes/measure.ts';
import { LOCAL_MACHINE } from '../../src/runners/runner.ts';
import { eventually } from '../support/eventually.ts';
import { type FakeRunner, fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';
import { cancel, job, submit, submitRaw, until } from '../support/submit.ts';
import { type TestVolumes, testVolumes } from '../support/volumes.ts';

let volumes: TestVolumes;
let app: TestApp;
let runner: FakeRunner;
let ada: Client;
let bob: Client;
const machine = {
  id: LOCAL_MACHINE,
  cpus: 1_000,
  memoryBytes: 2 ** 50,
  gpus: {},
  volumes: ['data', 'scratch', 'own', 'secret', 'limited', 'removed'],
};

const base = { namespace: 'ada', image: 'busybox', command: 'hold' };
const DECLARED = [
  '{ name: data, path: /srv/data }',
  '{ name: scratch, path: /srv/scratch, access: write }',
  '{ name: own, path: /srv/own, access: write, per_namespace: true }',
  '{ name: secret, path: /srv/secret, namespaces: [bob] }',
  '{ name: limited, path: /srv/limited, access: write, max_gb: 500 }',
  '{ name: removed, path: /srv/removed }',
  '{ name: nowhere, path: /srv/nowhere }',
];

beforeAll(async () => {
  volumes = await testVolumes();
  await volumes.declare(DECLARED);
  runner = fakeRunner({ machines: [machine], images: true });
  app = await startApp({ config: { volumes: volumes.declared }, overrides: { runner } });
  ada = await app.user('ada');
  bob = await app.user('bob');
});

afterAll(async () => {
  await app?.[Symbol.asyncDispose]();
  await volumes?.[Symbol.asyncDispose]();
});

const VOLUMES = `query ($name: String!) { job(namespace: "ada", name: $name) { volumes { name to readOnly } } }`;
const shown = async (name: string) => (await ada.gql(VOLUMES, { name })).job.volumes;
const specOf = (name: string) => runner.started.find((spec) => spec.job.name === name);

test('a job mounts its volumes, and a rerun and an array do too', async () => {
  const wanted = [
    { name: 'data', to: 'in//set/' },
    { name: 'scratch', to: '/scratch' },
    { name: 'own', to: '/work/own', readOnly: true },
  ];
  await submit(ada, { ...base, name: 'first', command: 'exit 0', volumes: wanted });
  await until(ada, 'ada', 'first', 'SUCCEEDED');
  const stored = [
    { name: 'data', to: '/work/in/set', readOnly: true },
    { name: 'scratch', to: '/scratch', readOnly: false },
    { name: 'own', to: '/work/own', readOnly: true },
  ];
  expect(await shown('first')).toEqual(stored);
  const { id } = await app.app.services.db.namespace.findUniqueOrThrow({ where: { name: 'ada' } });
  const mounts = [
    { volume: 'data', to: '/work/in/set', readOnly: true, folder: null },
    { volume: 'scratch', to: '/scratch', readOnly: false, folder: null },
    { volume: 'own', to: '/work/own', readOnly: true, folder: id },
  ];
  expect(specOf('first')?.mounts).toEqual(mounts);

  const again = await ada.graphql(
    'mutation { rerunJob(input: { namespace: "ada", name: "first" }) { job { name } } }',
  );
  expect(again.errors).toBeUndefined();
  await until(ada, 'ada', 'first-2', 'SUCCEEDED');
  expect(await shown('first-2')).toEqual(stored);
  expect(specOf('first-2')?.mounts).toEqual(mounts);

  await submit(ada, {
    ...base,
    name: 'many',
    command: 'exit 0',
    array: { size: 2 },
    volumes: [{ name: 'data', to: 'data' }],
  });
  for (const name of ['many-0', 'many-1']) {
    await until(ada, 'ada', name, 'SUCCEEDED');
    expect(specOf(name)?.mounts).toMatchObject([{ volume: 'data', to: '/work/data' }]);
  }
});

test('requests that cannot be mounted are refused with the field and the index', async () => {
  const at = (to: string) => [
    { name: 'data', to: 'ok' },
    { name: 'data', to },
  ];
  const wrong: [unknown, string][] = [
    [at(''), '[1].to must not be empty'],
    [at('../x'), '[1].to must not contain ".."'],
    [at('/data/../etc'), '[1].to must not contain ".."'],
    [at('a\0b'), '[1].to must be well-formed'],
    [at('a\nb'), '[1].to must be well-formed'],
    [at('/a:b'), '[1].to must be well-formed'],
    [at('x'.repeat(256)), '[1].to must not have names'],
    [at('xyz/'.repeat(300)), '[1].to must not be longer'],
    ...['/', '//', '.', '/work', '/work/', '/tmp', '/home', '/home/job'].map(
      (to): [unknown, string] => [at(to), '[1].to must be a folder of its own'],
    ),
    ...[
      ...['/usr', '/usr/share/x', '/bin', '/lib64/x', '/etc/ssl', '/proc/1', '/dev/x', '/sys/x'],
      ...[
        '/run/loam',
        '/var/run/x',
        '/opt/x',
        '/.loam',
        '/.anything',
        '/home/job/.loam/x',
        '/tmp/.loam-results',
      ],
    ].map((to): [unknown, string] => [at(to), '[1].to must not be in']),
    [at('.git/hooks'), '[1].to must not be inside .git'],
    [[{ name: 'a/b', to: 'x' }], '[0].name must be the name of a volume'],
    [at('ok'), '[1].to is the same as [0].to'],
    [at('/work/ok/below'), '[1].to is the same as [0].to, or one is inside'],
    [Array.from({ length: 17 }, (_, i) => ({ name: 'data', to: `d${i}` })), 'must not have more'],
    [
      [{ name: 'data', to: 'x', readOnly: false }],
      '[0].readOnly: the volume data can only be read',
    ],
    [[{ name: 'unknown', to: 'x' }], '[0].name: there is no volume unknown for jobs of ada'],
    [[{ name: 'secret', to: 'x' }], '[0].name: there is no volume secret for jobs of ada'],
  ];
  for (const [list, message] of wrong) {
    const { errors } = await submitRaw(ada, { ...base, name: 'wrong', volumes: list });
    expect(errors?.[0]?.message, JSON.stringify(list)).toContain(`volumes: ${message}`);
    expect(errors?.[0]?.extensions).toMatchObject({ code: 'INVALID_REQUEST', field: 'volumes' });
  }
  const check = await ada.graphql(
    'query ($input: CreateJobInput!) { checkJob(input: $input) { name warnings } }',
    { input: { ...base, name: 'wrong', gpu: 'NONE', volumes: [{ name: 'secret', to: 'x' }] } },
  );
  expect(check.errors?.[0]?.message).toContain('there is no volume secret');
});

test('a volume of a namespace is for its jobs, and permission is checked again at the start', async () => {
  const volumes_ = [{ name: 'secret', to: 'x' }];
  const input = { ...base, namespace: 'bob', volumes: volumes_ };
  await submit(bob, { ...input, name: 'may', command: 'exit 0' });
  await until(bob, 'bob', 'may', 'SUCCEEDED');

  await submit(ada, { ...base, name: 'blocker' });
  await submit(bob, {
    ...input,
    name: 'later',
    volumes: [...volumes_, { name: 'removed', to: 'y' }],
    array: { size: 2, maxParallel: 1 },
  });
  await until(bob, 'bob', 'later-0', 'RUNNING');
  await volumes.declare(DECLARED.filter((line) => !line.includes('removed')));
  runner.release();
  const failed = await until(bob, 'bob', 'later-1', 'FAILED');
  expect(failed.exitCode).toBe(125);
  expect(failed.attempts.nodes).toMatchObject([{ outcome: 'UNSTARTABLE' }]);
  const { errors } = await bob.graphql(
    'mutation { rerunJob(input: { namespace: "bob", name: "later-1" }) { job { name } } }',
  );
  expect(errors?.[0]?.message).toContain('[1].name: there is no volume removed for jobs of bob');
  await volumes.declare(DECLARED);
});

test('a job waits for a machine that has its volume, and other jobs pass it', async () => {
  const created = await ada.graphql(
    'mutation ($input: CreateJobInput!) { createJob(input: $input) { warnings job { name } } }',
    { input: { ...base, name: 'waits', gpu: 'NONE', volumes: [{ name: 'nowhere', to: 'x' }] } },
  );
  const missing = 'no machine has the volume nowhere';
  expect(created.data.createJob.warnings[0]).toContain(missing);
  await submit(ada, { ...base, name: 'passes', command: 'exit 0' });
  await until(ada, 'ada', 'passes', 'SUCCEEDED');
  const waiting = await job(ada, 'ada', 'waits');
  expect(waiting).toMatchObject({ status: 'QUEUED', progress: expect.stringContaining(missing) });
  await cancel(ada, 'ada', 'waits');
});

test('warnings of a created job do not fail when its volume was removed from the file meanwhile', async () => {
  const request = checkRequest(
    { ...base, name: 'warned', gpu: 'none', volumes: [{ name: 'gone', to: 'x' }] },
    CONTRACT,
  );
  expect(await findWarnings(app.app.services, request, 'ns_any')).toEqual([
    expect.stringContaining('no machine has the volume gone'),
  ]);
});

test('a job does not begin to write to a full volume, and one that reads does', async () => {
  const measure = (gb: number) =>
    app.pool.query(
      `insert into volume_usage (name, bytes, measured_at) values ('limited', $1, now())
       on conflict (name) do update set bytes = $1, measured_at = now()`,
      [gb * 2 ** 30],
    );
  await measure(501);
  // The worker reads the sizes with its heartbeat.
  await app.restart();
  const volumes_ = [{ name: 'limited', to: '/limited' }];
  await submit(ada, { ...base, name: 'writes', command: 'exit 0', volumes: volumes_ });
  await submit(ada, {
    ...base,
    name: 'reads',
    command: 'exit 0',
    volumes: [{ ...volumes_[0], readOnly: true }],
  });
  await until(ada, 'ada', 'reads', 'SUCCEEDED');
  expect(await job(ada, 'ada', 'writes')).toMatchObject({
    status: 'QUEUED',
    progress: expect.stringContaining('the volume limited is full: 501 of 500 GB'),
  });
  await measure(499);
  await app.restart();
  await until(ada, 'ada', 'writes', 'SUCCEEDED');
  await eventually(async () => {
    const { rows } = await app.pool.query(
      `select last_used_at from volume_usage where name = 'limited'`,
    );
    expect(rows[0].last_used_at).not.toBeNull();
  });
});

test('everybody sees the volumes that their jobs may mount, and operators where they are', async () => {
  const list = async (client: Client, namespace?: string) => {
    const query = `query ($namespace: String) { volumes(namespace: $namespace) {
      name access perNamespace maxGb sizeBytes measuredAt lastUsedAt isFull path claim namespaces } }`;
    return (await client.gql(query, { namespace })).volumes as Record<string, unknown>[];
  };
  const names = async (client: Client, namespace?: string) =>
    (await list(client, namespace)).map(({ name }) => name);
  const common = ['data', 'limited', 'nowhere', 'own', 'removed', 'scratch'];
  expect(await names(ada)).toEqual(common);
  expect(await names(ada, 'ada')).toEqual(common);
  expect(await names(bob, 'bob')).toEqual([...common, 'secret'].sort());
  expect(await names(app.admin)).toEqual([...common, 'secret'].sort());
  expect(await names(app.admin, 'ada')).toEqual(common);
  await expectRefusal(ada.graphql('{ volumes(namespace: "bob") { name } }'), 'PERMISSION_DENIED');
  const limited = (await list(ada)).find(({ name }) => name === 'limited');
  expect(limited).toMatchObject({
    ...{ access: 'WRITE', maxGb: 500, sizeBytes: 499 * 2 ** 30, isFull: false, path: null },
    lastUsedAt: expect.any(String),
  });
  const secret = (await list(app.admin)).find(({ name }) => name === 'secret');
  expect(secret).toMatchObject({ path: '/srv/secret', claim: null, namespaces: ['bob'] });
});

test('workers measure the volumes of their machine, and soon after a job wrote', async () => {
  await using own = await testVolumes();
  await own.declare([
    `{ name: counted, path: ${own.root}/data, access: write, max_gb: 1 }`,
    `{ name: elsewhere, path: ${own.root}/scratch }`,
  ]);
  await writeFile(join(own.root, 'data/big'), Buffer.alloc(300_000, 1));
  const { pool } = app;
  const local = { machines: [{ ...machine, volumes: ['counted'] }] };
  const deps = { pool, config: { volumes: own.declared }, runner: local };
  const measure = () => measureVolumes(deps, new AbortController().signal);
  const read = async () => {
    const { rows } = await pool.query(
      `select name, bytes::int as bytes, due_at <= now() as due from volume_usage
       where name in ('counted', 'elsewhere')`,
    );
    return rows;
  };
  await measure();
  const [first, ...others] = await read();
  expect(others).toEqual([]);
  expect(first).toMatchObject({ name: 'counted', due: false });
  expect(first.bytes).toBeGreaterThan(300_000);
  expect(first.bytes).toBeLessThan(600_000);
  await writeFile(join(own.root, 'data/more'), Buffer.alloc(300_000, 1));
  await measure();
  expect((await read())[0].bytes).toBe(first.bytes);
  const write = { volumes: [{ name: 'counted', to: '/x', readOnly: false }] };
  await scheduleMeasurement(deps, { volumes: [{ ...write.volumes[0], readOnly: true }] });
  await pool.query(
    `update volume_usage set measured_at = now() - interval '2 minutes' where name = 'counted'`,
  );
  await measure();
  expect((await read())[0].bytes).toBe(first.bytes);
  await scheduleMeasurement(deps, write);
  expect((await read())[0].due).toBe(true);
  await measure();
  expect((await read())[0].bytes).toBeGreaterThan(600_000);
});
