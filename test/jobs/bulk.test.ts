/** Many jobs are cancelled, run again and deleted by one call. */
import pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { withLockedJobs } from '../../src/jobs/record/state.ts';
import { addJobs, change, changeRaw, type Verb } from '../support/bulk.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';
import { cancel, job, submit, until } from '../support/submit.ts';

let app: TestApp;
let ada: Client;
/** Has no worker, so jobs wait. */
let waiting: TestApp;
let eve: Client;
const runner = fakeRunner({ graceMs: 100 });

beforeAll(async () => {
  app = await startApp({ overrides: { runner } });
  ada = await app.user('ada', 'unlimited');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
  waiting = await startApp({ config: { jobSlots: 0 } });
  eve = await waiting.user('eve', 'unlimited');
  await eve.post('/auth/v1/repository/eve', { name: 'code' });
});
afterAll(async () => {
  await app[Symbol.asyncDispose]();
  await waiting[Symbol.asyncDispose]();
});

const label = (value: string) => ({ labels: [{ key: 'sweep', values: [value] }] });
const submitLabelled = (client: Client, namespace: string, name: string, command: string) =>
  submit(client, {
    namespace,
    name,
    command,
    repo: `${namespace}/code`,
    labels: [{ key: 'sweep', value: name.split('-')[0] }],
  });
const named = (...names: string[]) => ({ count: names.length, names });

test('jobs that meet a filter are cancelled, whether they wait or run; others are left', async () => {
  for (const name of ['c-1', 'c-2']) await submitLabelled(ada, 'ada', name, 'sleep 600');
  await submitLabelled(ada, 'ada', 'c-done', 'exit 0');
  await submitLabelled(ada, 'ada', 'other', 'sleep 600');
  for (const name of ['c-1', 'c-2', 'other']) await until(ada, 'ada', name, 'RUNNING');
  await until(ada, 'ada', 'c-done', 'SUCCEEDED');

  const input = { namespace: 'ada', filter: label('c') };
  const all = { matched: 2, done: 2, skipped: [], endCursor: null };
  expect(await change(ada, 'cancel', { ...input, dryRun: true })).toEqual(all);
  expect((await job(ada, 'ada', 'c-1')).status).toBe('RUNNING');
  expect(await change(ada, 'cancel', input)).toEqual(all);
  expect(await change(ada, 'cancel', input)).toEqual({ ...all, matched: 0, done: 0 });
  for (const name of ['c-1', 'c-2'])
    expect(await job(ada, 'ada', name)).toMatchObject({ status: 'CANCELLED' });
  await eventually(() => expect(runner.running().map((each) => each.job.name)).toEqual(['other']));

  const { rows } = await app.pool.query(
    `select name, action, actor, credential_kind from audit_entries where action = 'job.cancel' order by name`,
  );
  const entry = { action: 'job.cancel', actor: 'ada', credential_kind: 'pat' };
  expect(rows).toEqual([
    { ...entry, name: 'c-1' },
    { ...entry, name: 'c-2' },
  ]);
  const events = await app.pool.query(
    `select e.type from events e join jobs j on j.id = e.subject where j.name = 'c-1' order by e.xid, e.seq`,
  );
  expect(events.rows.map(({ type }) => type)).toEqual([
    'job.queued',
    'job.running',
    'job.cancelled',
  ]);
  await cancel(ada, 'ada', 'other');
});

test('jobs selected by name are reported when they are skipped', async () => {
  await submitLabelled(ada, 'ada', 'n-1', 'sleep 600');
  await submitLabelled(ada, 'ada', 'n-2', 'exit 0');
  await until(ada, 'ada', 'n-1', 'RUNNING');
  await until(ada, 'ada', 'n-2', 'SUCCEEDED');
  const names = ['n-1', 'n-2', 'no-such-job'];
  expect(await change(ada, 'cancel', { namespace: 'ada', names })).toMatchObject({
    matched: 2,
    done: 1,
    skipped: [
      { reason: 'WRONG_STATUS', ...named('n-2') },
      { reason: 'NOT_FOUND', ...named('no-such-job') },
    ],
  });
  await submitLabelled(ada, 'ada', 'n-3', 'sleep 600');
  expect(
    await change(ada, 'delete', { namespace: 'ada', names: [...names, 'n-3'], filter: label('n') }),
  ).toMatchObject({
    matched: 3,
    done: 2,
    skipped: [
      { reason: 'WRONG_STATUS', ...named('n-3') },
      { reason: 'NOT_FOUND', ...named('no-such-job') },
    ],
  });
  expect(await job(ada, 'ada', 'n-3')).toMatchObject({ name: 'n-3' });
  expect((await ada.get('/ada/job/n-1')).status).toBe(404);
  await change(ada, 'cancel', { namespace: 'ada', filter: label('n') });
});

test('bad input is refused and changes nothing', async () => {
  const refused = async (verb: Verb, input: object) => {
    const { errors } = await changeRaw(ada, verb, { namespace: 'ada', ...input });
    return errors?.[0]?.extensions;
  };
  for (const verb of ['cancel', 'rerun', 'delete'] as const) {
    expect(await refused(verb, {})).toMatchObject({ code: 'INVALID_REQUEST' });
    const names = Array.from({ length: 1_001 }, (_, i) => `job-${i}`);
    expect(await refused(verb, { names })).toMatchObject({ field: 'names' });
    expect(await refused(verb, { names: ['a b'] })).toMatchObject({ field: 'names' });
    expect(await refused(verb, { filter: {}, after: 'x' })).toMatchObject({ field: 'after' });
    expect(await refused(verb, { filter: { namePrefix: '%' } })).toMatchObject({
      field: 'namePrefix',
    });
    expect(await refused(verb, { namespace: 'nobody', filter: {} })).toMatchObject({
      code: 'NOT_FOUND',
    });
    expect(await change(ada, verb, { namespace: 'ada', names: [] })).toMatchObject({ matched: 0 });
  }
  const call = 'cancelJobs(input: { namespace: "ada", names: [] }) { done }';
  const five = [1, 2, 3, 4, 5].map((n) => `c${n}: ${call}`).join(' ');
  await expectRefusal(ada.graphql(`mutation { ${five} }`), 'LIMIT_EXCEEDED');
});

test('each job needs the permission of the single mutation', async () => {
  const bob = await app.user('bob');
  const carl = await app.user('carl');
  await app.organization('team', { ada: 'ADMIN', bob: 'WRITE', carl: 'READ' });
  await ada.repository('team/code');
  await submitLabelled(ada, 'team', 'p-ada', 'exit 0');
  await submitLabelled(bob, 'team', 'p-bob', 'exit 0');
  for (const name of ['p-ada', 'p-bob']) await until(ada, 'team', name, 'SUCCEEDED');
  const input = { namespace: 'team', filter: {} };
  for (const verb of ['cancel', 'rerun', 'delete'] as const) {
    const codes = [carl, app.anonymous].map(
      async (client) => (await changeRaw(client, verb, input)).errors?.[0]?.extensions.code,
    );
    expect(await Promise.all(codes)).toEqual(['PERMISSION_DENIED', 'AUTHENTICATION_FAILED']);
  }
  const expected = {
    matched: 2,
    done: 1,
    skipped: [{ reason: 'NOT_PERMITTED', ...named('p-ada') }],
  };
  expect(await change(bob, 'delete', { ...input, dryRun: true })).toMatchObject(expected);
  expect(await change(bob, 'delete', input)).toMatchObject(expected);

  // A credential that is restricted to another repository does not see the job.
  const other = (await ada.post('/auth/v1/repository/team', { name: 'other' })).body;
  const token = { name: 'narrow', repositories: [other.id] };
  const narrow = app.client(`Bearer ${(await ada.post('/auth/v1/pat', token)).body.token}`);
  expect(await change(narrow, 'delete', input)).toMatchObject({ matched: 0, done: 0 });
  expect(await change(narrow, 'delete', { ...input, names: ['p-ada'] })).toMatchObject({
    matched: 0,
    skipped: [{ reason: 'NOT_FOUND' }],
  });
  expect(await change(ada, 'delete', input)).toMatchObject({ matched: 1, done: 1 });
});

test('artifacts are kept unless they are deleted with the jobs, and logs are removed', async () => {
  const create = (name: string) =>
    submit(ada, {
      namespace: 'ada',
      name,
      repo: 'ada/code',
      command: 'echo x; echo y > out/y',
      outputPath: 'out',
    });
  for (const name of ['a-1', 'a-2']) await create(name);
  for (const name of ['a-1', 'a-2']) await until(ada, 'ada', name, 'SUCCEEDED');
  const kept = async () => {
    const { namespace } = await ada.gql(
      '{ namespace(name: "ada") { keptArtifacts { nodes { jobName } } } }',
    );
    return namespace.keptArtifacts.nodes;
  };
  await change(ada, 'delete', { namespace: 'ada', names: ['a-1'] });
  expect(await kept()).toEqual([{ jobName: 'a-1' }]);
  await change(ada, 'delete', { namespace: 'ada', names: ['a-2'], deleteArtifacts: true });
  expect(await kept()).toEqual([{ jobName: 'a-1' }]);
  const { rows } = await app.pool.query('select from deleted_journals');
  expect(rows).toHaveLength(0);
});

test('a rerun skips jobs that cannot run again, and stops at the quota', async () => {
  const dan = await app.user('dan', 'free');
  await dan.post('/auth/v1/repository/dan', { name: 'code' });
  for (const name of ['r-1', 'r-2']) await submitLabelled(dan, 'dan', name, 'exit 0');
  for (const name of ['r-1', 'r-2']) await until(dan, 'dan', name, 'SUCCEEDED');
  await app.pool.query(`update jobs set commit_sha = repeat('0', 40) where name = 'r-1'`);
  const input = { namespace: 'dan', filter: label('r') };
  expect(await change(dan, 'rerun', { ...input, dryRun: true })).toMatchObject({ done: 2 });
  const answer = await change(dan, 'rerun', input);
  expect(answer).toMatchObject({
    matched: 2,
    done: 1,
    skipped: [{ reason: 'NOT_REPEATABLE', ...named('r-1') }],
  });
  expect(answer.skipped[0].message).toContain('no longer in the repository');
  await until(dan, 'dan', 'r-2-2', 'SUCCEEDED');
  // With the newest commit, the first job can run, too.
  expect(await change(dan, 'rerun', { ...input, newestCommit: true })).toMatchObject({ done: 3 });

  await addJobs(app, 'dan', { count: 200, like: 'r-2', prefix: 'full-', status: 'running' });
  const over = await change(dan, 'rerun', input);
  expect(over).toMatchObject({ done: 0, skipped: [{ reason: 'QUOTA_EXCEEDED' }] });
  expect(over.skipped[0].count).toBe(over.matched);
});

test('a job that another transaction has locked is changed when it is unlocked', async () => {
  for (const n of [1, 2, 3]) await submitLabelled(eve, 'eve', `l-${n}`, 'exit 0');
  const client = new pg.Client(waiting.app.services.pool.options as pg.ClientConfig);
  await client.connect();
  await client.query('begin');
  await client.query(`select from jobs where name = 'l-2' for update`);
  const cancelling = change(eve, 'cancel', { namespace: 'eve', filter: label('l') });
  await eventually(async () => expect((await job(eve, 'eve', 'l-1')).status).toBe('CANCELLED'));
  await client.query('delete from jobs where name = $1', ['l-2']);
  await client.query('commit');
  await client.end();
  expect(await cancelling).toMatchObject({
    matched: 3,
    done: 2,
    skipped: [{ reason: 'NOT_FOUND', ...named('l-2') }],
  });
});

test('events of jobs that are cancelled while they start and end are in order', async () => {
  await using busy = await startApp({
    config: { jobSlots: 16 },
    overrides: { runner: fakeRunner({ graceMs: 50 }) },
  });
  const fay = await busy.user('fay', 'unlimited');
  await fay.post('/auth/v1/repository/fay', { name: 'code' });
  await submitLabelled(fay, 'fay', 'e', 'echo x; sleep 0.01; echo y');
  await addJobs(busy, 'fay', { count: 400, like: 'e', prefix: 'e-', status: 'queued' });
  const input = { namespace: 'fay', filter: {} };
  for (const each of [5, 10, 100, 1_000]) {
    const names = Array.from({ length: each }, (_, n) => `e-${n * 7 + each}`).slice(0, 400);
    await change(fay, 'cancel', { ...input, names });
  }
  await eventually(async () => {
    await change(fay, 'cancel', input);
    const { rows } = await busy.pool.query(
      `select from jobs where status in ('queued', 'running') limit 1`,
    );
    expect(rows).toHaveLength(0);
  });
  const { rows } = await busy.pool.query<{ name: string; status: string; types: string[] }>(
    `select j.name, j.status, array_agg(e.type order by e.xid, e.seq) as types
     from jobs j join events e on e.subject = j.id where j.name <> 'e' group by j.id`,
  );
  expect(rows).toHaveLength(400);
  for (const { name, status, types } of rows) {
    const order = ['job.running', `job.${status}`].slice(-types.length);
    expect([name, types]).toEqual([name, order]);
  }
});

test('a job that changes while others are locked is left out, because its event would come too early', async () => {
  const created = [];
  for (const n of [1, 2]) created.push(await submitLabelled(eve, 'eve', `o-${n}`, 'exit 0'));
  const [one, two] = created.map(({ id }) => id);
  const { pool } = waiting.app.services;
  const client = await pool.connect();
  const query = client.query.bind(client) as (...args: unknown[]) => Promise<pg.QueryResult>;
  const sent: Promise<unknown>[] = [];
  const changing = {
    connect: async () =>
      Object.assign(client, {
        async query(statement: string | { text: string }, ...more: unknown[]) {
          if (typeof statement === 'object' && statement.text.includes('skip locked')) {
            await Promise.all(sent);
            await pool.query('update jobs set next_seq = next_seq + 1 where id = $1', [two]);
          }
          const sending = query(statement, ...more);
          sent.push(sending);
          return sending;
        },
      }),
  };
  const locked: string[] = [];
  const left = await withLockedJobs(changing as never, [one, two], async (_client, jobs) => {
    locked.push(...jobs.map(({ id }) => id));
  });
  Reflect.deleteProperty(client, 'query');
  expect([locked, left]).toEqual([[one], [two]]);
});

test('two calls at once, and single cancellations, cancel each job once', async () => {
  for (let n = 0; n < 30; n++) await submitLabelled(eve, 'eve', `t-${n}`, 'exit 0');
  const input = { namespace: 'eve', filter: label('t') };
  const [one, two, ...singles] = await Promise.all([
    change(eve, 'cancel', input),
    change(eve, 'cancel', input),
    ...Array.from({ length: 10 }, (_, n) => cancel(eve, 'eve', `t-${n}`)),
  ]);
  const alone = singles.filter(({ errors }) => !errors).length;
  expect(one.done + two.done + alone).toBe(30);
  const { rows } = await waiting.pool.query(
    `select count(*)::int as count from events e join jobs j on j.id = e.subject
     where j.name like 't-%' and e.type = 'job.cancelled'`,
  );
  expect(rows).toEqual([{ count: 30 }]);
});
