import { afterAll, beforeAll, expect, test } from 'vitest';
import { fakeRunner } from '../src/jobs/runners/fake.ts';
import { type Client, eventually, startApp, type TestApp } from './harness.ts';
import { cancel, lines, remove, submit, until } from './submit.ts';
import { MODES, take, viaYoga } from './subscribe.ts';

const REPO =
  'mutation ($input: CreateRepositoryInput!) { createRepository(input: $input) { repository { id } } }';
let app: TestApp;
let ada: Client;

beforeAll(async () => {
  app = await startApp({ overrides: { runner: fakeRunner({ graceMs: 200 }) } });
  ada = await app.user('ada');
  await ada.gql(REPO, { input: { namespace: 'ada', name: 'code' } });
});
afterAll(() => app[Symbol.asyncDispose]());

const run = (name: string, command: string, more: object = {}) =>
  submit(ada, { namespace: 'ada', repo: 'ada/code', name, command, ...more });

const LOG = (name: string, after?: number) =>
  `subscription { jobLog(namespace: "ada", name: "${name}"${after === undefined ? '' : `, after: ${after}`}) { __typename seq ... on LogLine { timestamp message } ... on JobStatusChange { timestamp status } ... on JobLogEnd { status exitCode } } }`;
const EVENTS = (args = '') =>
  `subscription { jobEvents(namespace: "ada"${args}) { cursor type status name job { status } } }`;

test.each(Object.entries(MODES))('%s: a log to its end, and after an entry', async (_, open) => {
  const name = `log${crypto.randomUUID().slice(0, 8)}`;
  await run(name, 'echo a; sleep 0.3; echo b; exit 2');
  const all = await take(open(ada, LOG(name)), 'jobLog');
  const told = all.map((e) => e.message ?? e.status);
  expect(told).toEqual(['QUEUED', 'RUNNING', 'a', 'b', 'FAILED', 'FAILED']);
  expect(all.at(-1)).toMatchObject({ __typename: 'JobLogEnd', exitCode: 2 });
  const rest = await take(open(ada, LOG(name, all[2].seq)), 'jobLog');
  expect(rest.map((e) => e.message ?? e.status)).toEqual(['b', 'FAILED', 'FAILED']);
});

test.each(Object.entries(MODES))(
  '%s: every change of a job, resumed by cursor',
  async (_, open) => {
    const name = `ev${crypto.randomUUID().slice(0, 8)}`;
    const live = open(ada, EVENTS());
    const first = live.next();
    await eventually(async () => {
      const { rows } = await app.app.services.pool.query(
        `select 1 from pg_stat_activity where datname = current_database() and query like '%pg_visible_in_snapshot%'`,
      );
      expect(rows).not.toEqual([]);
    });
    await run(name, 'exit 0');
    const begun = (await first).value?.data.jobEvents;
    const more = await take(live, 'jobEvents', 2);
    expect([begun, ...more].map((e) => [e.type, e.status])).toEqual([
      ['QUEUED', 'QUEUED'],
      ['RUNNING', 'RUNNING'],
      ['SUCCEEDED', 'SUCCEEDED'],
    ]);
    const after = `, name: "${name}", after: ${begun.cursor}`;
    const resumed = await take(open(ada, EVENTS(after)), 'jobEvents', 2);
    expect(resumed.map((e) => e.cursor)).toEqual(more.map((e) => e.cursor));
    expect(resumed.at(-1)).toMatchObject({ name, job: { status: 'SUCCEEDED' } });
  },
);

test('events of a deleted job are still told, without the job', async () => {
  await run('gone', 'exit 0');
  await until(ada, 'ada', 'gone', 'SUCCEEDED');
  await remove(ada, 'ada', 'gone');
  const all = await take(
    viaYoga(ada, EVENTS(', after: 0')),
    'jobEvents',
    4 + (await eventsBefore('gone')),
  );
  const mine = all.filter((e) => e.name === 'gone');
  expect(mine.map((e) => e.type)).toEqual(['QUEUED', 'RUNNING', 'SUCCEEDED', 'DELETED']);
  expect(mine.every((e) => e.job === null)).toBe(true);
});

async function eventsBefore(name: string): Promise<number> {
  const { rows } = await app.app.services.pool.query(
    `select count(*)::int as n from events where type like 'job.%' and data->>'name' <> $1`,
    [name],
  );
  return rows[0].n;
}

test('no event is passed over when transactions commit in another order than they began', async () => {
  const { pool } = app.app.services;
  const { rows } = await pool.query(`select id from namespaces where name = 'ada'`);
  const insert = (id: string) => ({
    text: `insert into events (id, type, namespace_id, subject, data)
           values ($1, 'job.queued', $2, 'job_x', '{"name": "x", "status": "queued"}')`,
    values: [id, rows[0].id],
  });
  const { rows: last } = await pool.query('select max(seq)::int as seq from events');
  const slow = await pool.connect();
  await slow.query('begin');
  await slow.query(insert('evt_slow'));
  await pool.query(insert('evt_quick'));
  const answers = viaYoga(ada, EVENTS(`, after: ${last[0].seq}`));
  const both = take(answers, 'jobEvents', 2);
  await slow.query('commit');
  slow.release();
  const cursors = (await both).map((e) => e.cursor);
  expect(cursors).toHaveLength(2);
  // And from the first of them on, the second follows.
  const rest = await take(viaYoga(ada, EVENTS(`, after: ${cursors[0]}`)), 'jobEvents', 1);
  expect(rest[0].cursor).toBe(cursors[1]);
});

test('who may not see is told why, and nothing else', async () => {
  const bob = await app.user('bob');
  await run('secret', 'exit 0');
  for (const [client, code] of [
    [bob, 'PERMISSION_DENIED'],
    [app.anonymous, 'AUTHENTICATION_FAILED'],
  ] as const)
    for (const query of [LOG('secret'), EVENTS()])
      await expect(take(viaYoga(client, query), 'x')).rejects.toMatchObject({ code });
  await expect(take(viaYoga(ada, EVENTS(', after: 99999999')), 'x')).rejects.toMatchObject({
    code: 'INVALID_REQUEST',
  });
});

test.each(Object.entries(MODES))('%s: an operation that fails tells why', async (_, open) => {
  const heavy =
    'repositories(first: 100) { nodes { commits(first: 100) { nodes { sha author { name email } committer { name } } } } }';
  for (const [code, query] of [
    ['GRAPHQL_PARSE_FAILED', 'subscription {'],
    ['GRAPHQL_VALIDATION_FAILED', 'subscription { nothing }'],
    ['NOT_FOUND', 'subscription { jobLog(namespace: "ada", name: "none") { seq } }'],
    ['NOT_FOUND', '{ job(namespace: "ada", name: "none") { id } }'],
    ['INVALID_REQUEST', EVENTS(', after: 99999999')],
    ['INVALID_REQUEST', 'query ($name: String!) { namespace(name: $name) { id } }'],
    ['OPERATION_RESOLUTION_FAILURE', 'query A { viewer { id } } query B { viewer { id } }'],
    [
      'LIMIT_EXCEEDED',
      `subscription { jobEvents(namespace: "ada") { job { owner { ${heavy} } } } }`,
    ],
  ] as const)
    await expect(take(open(ada, query), 'x'), query).rejects.toMatchObject({ code });
});

test('a mutation goes by POST, over a stream too', async () => {
  const query =
    'mutation { createRepository(input: {namespace: "ada", name: "by-get"}) { repository { id } } }';
  for (const path of ['/graphql', '/graphql/stream'])
    await ada.get(`${path}?query=${encodeURIComponent(query)}`, { accept: 'text/event-stream' });
  const { errors } = await ada.graphql('{ repository(namespace: "ada", name: "by-get") { id } }');
  expect(errors?.[0]?.extensions.code).toBe('NOT_FOUND');
});

test.each(Object.entries(MODES))(
  '%s: a subscriber that leaves leaves nothing behind',
  async (_, open) => {
    const name = `left${crypto.randomUUID().slice(0, 8)}`;
    await run(name, 'echo up; sleep 600');
    await eventually(async () => expect(await lines(ada, 'ada', name)).toEqual(['up']));
    const { bus } = app.app.services;
    const before = bus.waiters;
    await take(open(ada, LOG(name)), 'jobLog', 3);
    await eventually(() => expect(bus.waiters).toBe(before));
    await cancel(ada, 'ada', name);
  },
);
