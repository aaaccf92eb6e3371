/** Budgets hold, whoever creates jobs, how many at once, and on how many servers. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { enforceBudgets } from '../../src/jobs/costs/budget-loop.ts';
import { eventually } from '../support/eventually.ts';
import { type FakeRunner, fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';
import { cancel, job, lines, remove, submit, submitRaw, until } from '../support/submit.ts';

let app: TestApp;
let runner: FakeRunner;
let count = 0;

beforeAll(async () => {
  runner = fakeRunner({ graceMs: 50 });
  app = await startApp({ overrides: { runner }, config: { jobSlots: 500 } });
});
afterAll(() => app[Symbol.asyncDispose]());

/** A user with a repository, in a namespace of their own. */
async function newUser(): Promise<{ client: Client; name: string }> {
  count += 1;
  const name = `user-${count}`;
  const client = await app.user(name, 'unlimited');
  await client.post(`/auth/v1/repository/${name}`, { name: 'code' });
  return { client, name };
}

const SET = `mutation ($input: SetBudgetInput!) { setBudget(input: $input) {
  budget { cost forecast budgets { owner month onReached notify } } } }`;
const setRaw = (client: Client, namespace: string, input: object) =>
  client.graphql(SET, { input: { namespace, ...input } });
async function set(client: Client, namespace: string, month: string, more: object = {}) {
  const { data, errors } = await setRaw(client, namespace, { month, ...more });
  expect(errors).toBeUndefined();
  return data.setBudget.budget;
}
const DELETE =
  'mutation ($input: DeleteBudgetInput!) { deleteBudget(input: $input) { budget { cost } } }';
const STATUS = `query ($name: String!) { namespace(name: $name) { budget {
  from to cost forecast budgets { owner month } labels { key value cost jobs } } } }`;
const status = async (client: Client, name: string) =>
  (await client.gql(STATUS, { name })).namespace.budget;

/** Adds costs to the ledger, as jobs that have ended. @param day SQL of a time */
async function spend(namespace: string, amount: string, day = 'now()'): Promise<void> {
  await app.pool.query(
    `insert into usage_days (namespace_id, day, user_id, seconds, gpu_seconds, price_seconds, jobs)
     select id, ((${day}) at time zone 'UTC')::date, '', 1, 0, $2::numeric * 3600, 1 from namespaces where name = $1
     on conflict (namespace_id, day, user_id) do update
       set price_seconds = usage_days.price_seconds + excluded.price_seconds`,
    [namespace, amount],
  );
}

const run = (client: Client, namespace: string, name: string, command = 'exit 0', more = {}) =>
  submitRaw(client, { namespace, repo: `${namespace}/code`, name, command, ...more });
const enforce = () => enforceBudgets(app.app.services as never);
const countJobs = (namespace: string) =>
  app.app.services.db.job.count({ where: { namespace: { name: namespace } } });
/** Readers do not see an event while an older transaction is open, even one of another test. */
const events = async (client: Client, name: string) => {
  const { namespace } = await client.gql(
    'query ($name: String!) { namespace(name: $name) { events(types: [BUDGET_REACHED], first: 50) { edges { node { payload subject namespace } } } } }',
    { name },
  );
  return namespace.events.edges.map(({ node }: { node: { payload: object } }) => node.payload);
};

test('200 creations at once at the edge of a budget: none passes it, and a raise lets all pass', async () => {
  const { client, name } = await newUser();
  await set(client, name, '10.00');
  await spend(name, '9.9999');
  expect((await run(client, name, 'within')).errors).toBeUndefined();
  await until(client, name, 'within', 'SUCCEEDED');
  await spend(name, '0.0001');
  const create = (prefix: string) =>
    Promise.all(Array.from({ length: 200 }, (_, index) => run(client, name, `${prefix}-${index}`)));
  const refused = await create('over');
  for (const { errors } of refused)
    expect(errors?.[0]).toMatchObject({
      message: expect.stringMatching(
        /^The budget of the namespace for this month is used up: its jobs have cost 10\.00\d* of 10\.00/,
      ),
      extensions: { code: 'QUOTA_EXCEEDED' },
    });
  expect(await countJobs(name)).toBe(1);
  const rest = await client.post(`/auth/v1/seed/${name}/jobs`, {
    name: 'rest',
    command: 'true',
    repo: `${name}/code`,
    gpu: 'none',
  });
  expect(rest.status).toBe(403);
  expect(rest.body).toMatchObject({ error: { code: 'quota_exceeded' } });

  // Re-runs, one and many, are creations.
  const rerun = await client.graphql(
    'mutation ($input: RerunJobInput!) { rerunJob(input: $input) { job { id } } }',
    { input: { namespace: name, name: 'within' } },
  );
  await expectRefusal(rerun, 'QUOTA_EXCEEDED');
  const { rerunJobs } = await client.gql(
    `mutation ($input: RerunJobsInput!) { rerunJobs(input: $input) { done skipped { reason message } } }`,
    { input: { namespace: name, names: ['within'] } },
  );
  expect(rerunJobs).toMatchObject({ done: 0, skipped: [{ reason: 'QUOTA_EXCEEDED' }] });
  expect(rerunJobs.skipped[0].message).toMatch(/budget/);

  // Deleting jobs frees nothing, because the ledger stays.
  await remove(client, name, 'within', true);
  expect((await run(client, name, 'still')).errors).toBeDefined();
  await set(client, name, '20.00');
  for (const { errors } of await create('raised')) expect(errors).toBeUndefined();
});

test('creations and a change of the budget at once: every answer fits the number of jobs', async () => {
  const { client, name } = await newUser();
  await spend(name, '5');
  const answers = Promise.all(
    Array.from({ length: 60 }, (_, index) => run(client, name, `job-${index}`)),
  );
  await set(client, name, '5');
  const created = (await answers).filter(({ errors }) => errors === undefined).length;
  expect(await countJobs(name)).toBe(created);
  expect((await run(client, name, 'after')).errors).toBeDefined();
});

test('the cost of a month: what runs now, from the start of the month in UTC, and not the month before', async () => {
  const { client, name } = await newUser();
  await spend(name, '99', "date_trunc('month', now(), 'UTC') - interval '1 second'");
  await set(client, name, '10.00');
  expect(await status(client, name)).toMatchObject({ cost: '0.00' });
  expect((await run(client, name, 'long', 'hold')).errors).toBeUndefined();
  await until(client, name, 'long', 'RUNNING');
  const { costPerHour } = await job(client, name, 'long');
  // It has run since the month before last, of which only this month counts.
  await app.pool.query(
    `update job_attempts set started_at = now() - interval '70 days' where job_id in (select id from jobs where name = 'long')`,
  );
  const now = new Date();
  const month = now.getTime() - Date.UTC(now.getUTCFullYear(), now.getUTCMonth());
  const expected = (Number(costPerHour) * month) / 3_600_000;
  expect(Math.abs(Number((await status(client, name)).cost) - expected)).toBeLessThan(0.05);
  if (expected > 10) expect((await run(client, name, 'over')).errors).toBeDefined();
  await set(client, name, '9999999999.9999');
  expect((await run(client, name, 'within')).errors).toBeUndefined();
  await cancel(client, name, 'long');
});

test('cancel: running and waiting jobs end once, with the reason, also by two servers at once', async () => {
  const { client, name } = await newUser();
  await set(client, name, '1.00', { onReached: 'CANCEL', notify: [] });
  const names = Array.from({ length: 205 }, (_, index) => `job-${index}`);
  for (const each of names.slice(0, 5)) await run(client, name, each, 'echo up; trap 3; hold');
  for (const each of names.slice(0, 5)) await until(client, name, each, 'RUNNING');
  // These stay in the queue: no machine is large enough.
  await Promise.all(names.slice(5).map((each) => run(client, name, each, 'true', { gpu: 'T4' })));
  await enforce();
  expect(await job(client, name, 'job-0')).toMatchObject({ status: 'RUNNING' });
  await spend(name, '1');
  await Promise.all([enforce(), enforce(), enforce()]);
  await enforce();
  const ended = await until(client, name, 'job-0', 'CANCELLED');
  const reason = 'cancelled: the budget of the namespace for this month, 1.00, is used up';
  expect(ended.progress).toBe(reason);
  await until(client, name, 'job-204', 'CANCELLED');
  await eventually(async () =>
    expect(await lines(client, name, 'job-0')).toEqual([
      'up',
      reason.replace('cancelled', 'Cancelled'),
    ]),
  );
  const { db } = app.app.services;
  const namespace = await db.namespace.findUniqueOrThrow({ where: { name } });
  const where = { namespaceId: namespace.id };
  expect(await db.event.count({ where: { ...where, type: 'job.cancelled' } })).toBe(205);
  const entries = await db.auditEntry.findMany({
    where: { ...where, action: 'budget.cancel_jobs' },
  });
  const details = entries.map((entry) => entry.details as { jobs: number; names: string[] });
  expect(details.reduce((sum, { jobs }) => sum + jobs, 0)).toBe(205);
  expect(Math.max(...details.map(({ names: listed }) => listed.length))).toBe(20);
});

test('refuse: running jobs go on, waiting jobs start when the budget is raised', async () => {
  const { client, name } = await newUser();
  await set(client, name, '1.00');
  await submit(client, { namespace: name, repo: `${name}/code`, name: 'runs', command: 'hold' });
  await until(client, name, 'runs', 'RUNNING');
  await run(client, name, 'waits', 'true', { gpu: 'T4' });
  await spend(name, '1');
  await Promise.all([enforce(), enforce()]);
  expect(await job(client, name, 'runs')).toMatchObject({ status: 'RUNNING' });
  expect(await job(client, name, 'waits')).toMatchObject({
    status: 'QUEUED',
    progress: 'waiting: the budget of the namespace for this month is used up',
  });
  await set(client, name, '2.00');
  await enforce();
  expect((await job(client, name, 'waits')).progress).not.toMatch(/budget/);
  await spend(name, '1');
  await enforce();
  expect((await job(client, name, 'waits')).progress).toMatch(/budget/);
  await client.gql(DELETE, { input: { namespace: name } });
  await enforce();
  const stored = await app.app.services.db.job.findFirstOrThrow({
    where: { name: 'waits', namespace: { name } },
  });
  expect(stored.availableAt.getTime()).toBeLessThanOrEqual(Date.now());
  await cancel(client, name, 'runs');
  await cancel(client, name, 'waits');
});

test('a job that waits for another says so, and starts neither before its need nor before a raise', async () => {
  const { client, name } = await newUser();
  await run(client, name, 'first', 'hold');
  await until(client, name, 'first', 'RUNNING');
  await run(client, name, 'second', 'exit 0', { needs: [{ job: 'first' }] });
  const before = (await job(client, name, 'second')).progress;
  await set(client, name, '1.00');
  await spend(name, '1.00');
  await enforce();
  expect((await job(client, name, 'second')).progress).toBe(before);
  await set(client, name, '2.00');
  await enforce();
  expect((await job(client, name, 'second')).progress).toBe(before);
  runner.release();
  await until(client, name, 'second', 'SUCCEEDED');
});

test('arrays and jobs with needs are refused, and a raise lets them pass', async () => {
  const { client, name } = await newUser();
  await run(client, name, 'first');
  await until(client, name, 'first', 'SUCCEEDED');
  await set(client, name, '1.00');
  await spend(name, '1.00');
  for (const more of [{ array: { size: 100 } }, { needs: [{ job: 'first' }] }]) {
    await expectRefusal(run(client, name, 'many', 'exit 0', more), 'QUOTA_EXCEEDED');
  }
  expect(await countJobs(name)).toBe(1);
  await set(client, name, '2.00');
  expect(
    (await run(client, name, 'many', 'exit 0', { array: { size: 3 } })).errors,
  ).toBeUndefined();
  await until(client, name, 'many-2', 'SUCCEEDED');
});

test('each threshold is published once in a month, by whichever server, and also after a change', async () => {
  const { client, name } = await newUser();
  await set(client, name, '10.00', { notify: [100, 50, 80] });
  await spend(name, '8.5');
  await Promise.all([enforce(), enforce(), enforce()]);
  const payload = { namespace: name, amount: '10.00', cost: '8.50', owner: 'namespace' };
  const seen = await eventually(async () => {
    const published = await events(client, name);
    expect(published).toHaveLength(2);
    return published;
  });
  for (const threshold of [50, 80])
    expect(seen).toContainEqual({
      ...payload,
      threshold,
      on_reached: 'refuse',
      month: new Date().toISOString().slice(0, 7),
    });
  await set(client, name, '100.00', { notify: [50, 80, 100] });
  await spend(name, '80');
  await client.gql(DELETE, { input: { namespace: name } });
  await set(client, name, '100.00', { notify: [50, 80, 100] });
  await enforce();
  expect(await events(client, name)).toHaveLength(2);
  await spend(name, '20');
  await enforce();
  await eventually(async () =>
    expect((await events(client, name))[0]).toMatchObject({ threshold: 100, cost: '108.50' }),
  );
  // In the next month, they are published again.
  await app.pool.query("update budget_notices set month = month - interval '1 month'");
  await enforce();
  await eventually(async () => expect(await events(client, name)).toHaveLength(6));
});

test('admins set budgets; the operator another, which admins can neither raise nor delete', async () => {
  const { client, name } = await newUser();
  const { client: other } = await newUser();
  await expectRefusal(setRaw(other, name, { month: '1' }), 'PERMISSION_DENIED');
  await expectRefusal(setRaw(app.anonymous, name, { month: '1' }), 'AUTHENTICATION_FAILED');

  await set(app.admin, name, '5.00', { owner: 'OPERATOR' });
  const own = await set(client, name, '500.00');
  expect(own.budgets.map(({ owner }: { owner: string }) => owner)).toEqual([
    'NAMESPACE',
    'OPERATOR',
  ]);
  await expectRefusal(
    setRaw(client, name, { month: '900', owner: 'OPERATOR' }),
    'PERMISSION_DENIED',
  );
  const input = { namespace: name, owner: 'OPERATOR' };
  await expectRefusal(client.graphql(DELETE, { input }), 'PERMISSION_DENIED');
  await spend(name, '5');
  const { errors } = await run(client, name, 'over');
  expect(errors?.[0]?.message).toMatch(/^The budget that the operator has set for the namespace/);
  await app.admin.gql(DELETE, { input });
  expect((await run(client, name, 'within')).errors).toBeUndefined();
  await expectRefusal(app.admin.graphql(DELETE, { input }), 'NOT_FOUND');
  const actions = await app.app.services.db.auditEntry.findMany({
    where: { action: { startsWith: 'budget.' }, name },
    orderBy: { id: 'asc' },
  });
  expect(actions.map(({ action }) => action)).toEqual([
    'budget.set',
    'budget.set',
    'budget.delete',
  ]);
});

test('hostile budgets are refused, and change nothing', async () => {
  const { client, name } = await newUser();
  const long = '9'.repeat(100_000);
  for (const month of [
    '0',
    '0.0',
    '12345678901',
    '1.00001',
    long,
    `0.${long}`,
    '-1',
    '1e400',
    'NaN',
    '',
    -5,
    null,
    {},
  ])
    expect(
      (await setRaw(client, name, { month })).errors,
      String(month).slice(0, 20),
    ).toBeDefined();
  const tooMany = Array.from({ length: 11 }, (_, index) => index + 1);
  for (const notify of [[0], [101], [-1], [50, 50], tooMany, [1.5], [2 ** 31], ['50'], [null]]) {
    const { errors } = await setRaw(client, name, { month: '1', notify });
    expect(errors, JSON.stringify(notify)).toBeDefined();
  }
  expect((await setRaw(client, name, { month: '1', onReached: 'IGNORE' })).errors).toBeDefined();
  expect((await setRaw(client, 'no such', { month: '1' })).errors).toBeDefined();
  expect((await status(client, name)).budgets).toEqual([]);
});

test('the status has the cost, a forecast, and the cost by label', async () => {
  const { client, name } = await newUser();
  await spend(name, '7');
  const labels = [{ key: 'sweep', value: '17' }];
  await run(client, name, 'labelled', 'exit 0', { labels });
  await until(client, name, 'labelled', 'SUCCEEDED');
  await app.pool.query(`update jobs set runtime_seconds = 3600 where name = 'labelled'`);
  const { costPerHour } = await job(client, name, 'labelled');
  const found = await status(client, name);
  expect(found.labels).toEqual([
    {
      key: 'sweep',
      value: '17',
      cost: expect.stringContaining(Number(costPerHour).toString()),
      jobs: 1,
    },
  ]);
  const now = new Date();
  const left = Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + 1) - now.getTime();
  expect(Number(found.forecast)).toBeCloseTo(7 + left / 86_400_000, 1);
  expect(found.from).toMatch(/-01$/);
});

test('an array is refused as a whole, and a job that waits for another says for which', async () => {
  const { client, name } = await newUser();
  await set(client, name, '1.00');
  await submit(client, { namespace: name, repo: `${name}/code`, name: 'first', command: 'hold' });
  await until(client, name, 'first', 'RUNNING');
  const needs = [{ job: 'first' }];
  expect((await run(client, name, 'second', 'true', { needs })).errors).toBeUndefined();
  await eventually(async () =>
    expect((await job(client, name, 'second')).progress).toMatch(/first/),
  );
  await spend(name, '1');
  const before = await countJobs(name);
  const { errors } = await run(client, name, 'many', 'true', { array: { size: 100 } });
  expect(errors?.[0]?.extensions).toMatchObject({ code: 'QUOTA_EXCEEDED' });
  expect(errors?.[0]?.message).toMatch(/budget/);
  expect(await countJobs(name)).toBe(before);

  await enforce();
  expect((await job(client, name, 'second')).progress).toMatch(/first/);
  // It could start now, and does not.
  const { db } = app.app.services;
  const where = { name: 'second', namespace: { name } };
  await db.job.updateMany({ where, data: { gpu: 'T4' } });
  runner.release();
  await until(client, name, 'first', 'SUCCEEDED');
  await eventually(async () =>
    expect(await db.job.findFirst({ where })).toMatchObject({ blocked: false }),
  );
  await enforce();
  expect((await job(client, name, 'second')).progress).toMatch(/budget/);
  // With cancel, jobs that wait for others end, too.
  await set(client, name, '1.00', { onReached: 'CANCEL' });
  await enforce();
  await until(client, name, 'second', 'CANCELLED');
});
