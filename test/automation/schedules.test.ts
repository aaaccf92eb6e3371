/** Schedules: of the file on the default branch, and of users. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { tick } from '../../src/automation/schedules/clock.ts';
import { eventually } from '../support/eventually.ts';
import { remote, Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';

let app: TestApp;
let ada: Client;
let bob: Client;
let workspace: Workspace;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
  bob = await app.user('bob');
  workspace = await Workspace.open();
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

async function create(name: string, files: Record<string, string>): Promise<string> {
  const { body } = await ada.post('/auth/v1/repository/ada', { name, auto_init: false });
  await workspace.clone(ada, `ada/${name}`);
  await workspace.commit(name, files);
  await workspace.git(name, 'push', '-q', 'origin', 'HEAD');
  await used();
  return body.id;
}

/** Waits until all triggers were used. */
const used = () =>
  eventually(async () => {
    const { rows } = await app.pool.query('select from run_triggers');
    expect(rows).toEqual([]);
  });

/** Starts the runs that are due. The clock of the server may be starting them in the same moment. */
async function start(clocks = 1): Promise<void> {
  const { services } = app.app;
  await eventually(async () => {
    await Promise.all(Array.from({ length: clocks }, () => tick(services, new Date())));
    const { rows } = await app.pool.query('select from schedules where next_at <= now()');
    expect(rows).toEqual([]);
  });
  await used();
}

const READ = `query ($name: String!) { repository(namespace: "ada", name: $name) {
  schedules { id name cron timezone jobs nextTimes lastAt }
  runs { nodes { trigger ref actor status jobs { runJob createdBy { username } } } } } }`;
const read = async (name: string) => (await ada.gql(READ, { name })).repository;

const file = (...crons: string[]) => `jobs:
  nightly:
    on: { schedule: [${crons.map((cron) => `{cron: "${cron}", timezone: Europe/Berlin}`).join()}] }
    command: echo
  other:
    on: { manual: true }
    command: echo
`;

const setNext = (id: string, minutesAgo: number) =>
  app.pool.query(
    `update schedules set next_at = now() - interval '1 minute' * $2 where repository_id = $1`,
    [id, minutesAgo],
  );

test('the file on the default branch decides, and each time starts one run', async () => {
  const id = await create('nightly', { '.loam/jobs.yml': file('0 3 * * *', '30 4 * * 1') });
  const { schedules } = await read('nightly');
  expect(schedules).toMatchObject([
    { name: null, timezone: 'Europe/Berlin', jobs: ['nightly'], lastAt: null },
    { name: null, timezone: 'Europe/Berlin', jobs: ['nightly'], lastAt: null },
  ]);
  expect(schedules[0].nextTimes).toHaveLength(5);

  // A branch changes nothing; the default branch does.
  await workspace.commit('nightly', { '.loam/jobs.yml': file('0 5 * * *') });
  await workspace.git('nightly', 'push', '-q', 'origin', 'HEAD:refs/heads/side');
  await used();
  expect((await read('nightly')).schedules).toHaveLength(2);
  await workspace.git('nightly', 'push', '-q', 'origin', 'HEAD');
  await used();
  expect((await read('nightly')).schedules).toMatchObject([{ cron: '0 5 * * *' }]);

  // Several servers, several missed times: one run.
  await setNext(id, 30);
  await start(5);
  const { runs } = await read('nightly');
  expect(runs.nodes).toMatchObject([
    {
      trigger: 'SCHEDULE',
      ref: 'refs/heads/main',
      actor: 'ada',
      jobs: [{ runJob: 'nightly', createdBy: { username: 'ada' } }],
    },
  ]);
  // More than an hour late: none.
  await setNext(id, 61);
  await start();
  expect((await read('nightly')).runs.nodes).toHaveLength(1);

  await workspace.git('nightly', 'rm', '-q', '.loam/jobs.yml');
  await workspace.git('nightly', 'commit', '-qm', 'remove');
  await workspace.git('nightly', 'push', '-q', 'origin', 'HEAD');
  await used();
  expect((await read('nightly')).schedules).toEqual([]);
});

test('users create schedules with a file of their own', async () => {
  const id = await create('plain', { 'a.txt': 'a' });
  const CREATE = `mutation ($input: CreateScheduleInput!) { createSchedule(input: $input) { schedule { id name nextTimes } } }`;
  const input = {
    id,
    name: 'cleanup',
    cron: '0 6 * * *',
    file: 'jobs: {sweep: {on: {manual: true}, command: echo}}',
  };
  const refused = async (changes: object, client = ada) =>
    (await client.graphql(CREATE, { input: { ...input, ...changes } })).errors?.[0]?.extensions;
  expect(await refused({}, bob)).toMatchObject({ code: 'PERMISSION_DENIED' });
  expect(await refused({ cron: '* * * * *' })).toMatchObject({ field: 'cron' });
  expect(await refused({ timezone: 'Mars' })).toMatchObject({ field: 'timezone' });
  expect(await refused({ name: 'a b' })).toMatchObject({ field: 'name' });
  expect(await refused({ file: 'jobs: 1' })).toMatchObject({ field: 'file' });
  const { createSchedule } = await ada.gql(CREATE, { input });
  expect(createSchedule.schedule).toMatchObject({ name: 'cleanup' });
  expect(await refused({})).toMatchObject({ code: 'ALREADY_EXISTS' });

  await setNext(id, 1);
  await start();
  expect((await read('plain')).runs.nodes).toMatchObject([
    { trigger: 'SCHEDULE', jobs: [{ runJob: 'sweep' }] },
  ]);
  const DELETE = 'mutation ($id: ID!) { deleteSchedule(input: { id: $id }) { id } }';
  await expectRefusal(bob.graphql(DELETE, { id: createSchedule.schedule.id }), 'PERMISSION_DENIED');
  await ada.gql(DELETE, { id: createSchedule.schedule.id });
  expect((await read('plain')).schedules).toEqual([]);
});

test('a schedule of someone who may no longer create jobs waits for approval', async () => {
  const id = await create('left', { '.loam/jobs.yml': file('0 3 * * *') });
  await app.pool.query('update schedules set created_by_id = null where repository_id = $1', [id]);
  await setNext(id, 1);
  await start();
  expect((await read('left')).runs.nodes).toMatchObject([
    { status: 'WAITING_FOR_APPROVAL', jobs: [] },
  ]);
});

test('a push by a credential that may not create jobs takes the owner away only if it changes the file', async () => {
  const id = await create('owned', { '.loam/jobs.yml': file('0 3 * * *') });
  const limited = await ada.withToken({ scopes: ['REPO_WRITE'] });
  const ownerAfter = async (files: Record<string, string>) => {
    await workspace.commit('owned', files);
    await workspace.git('owned', 'push', '-q', remote(limited, 'ada/owned'), 'HEAD:main');
    await used();
    const { rows } = await app.pool.query(
      'select u.username from schedules s left join users u on u.id = s.created_by_id where repository_id = $1',
      [id],
    );
    return rows.map(({ username }) => username);
  };
  expect(await ownerAfter({ 'README.md': 'Hello' })).toEqual(['ada']);
  const other = file('0 3 * * *').replace('echo', 'env');
  expect(await ownerAfter({ '.loam/jobs.yml': other })).toEqual([null]);
  // A push without a change does not give it back.
  expect(await ownerAfter({ 'README.md': 'Hi' })).toEqual([null]);
});
