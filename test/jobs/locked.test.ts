/** Locked rows and frozen servers only block transactions that need exactly these rows. */
import pg from 'pg';
import { expect, test } from 'vitest';
import { newId } from '../../src/base/ids.ts';
import { claimJobs } from '../../src/jobs/queue/claim.ts';
import { isDatabaseUnavailable } from '../../src/platform/database/outage.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { submit, until } from '../support/submit.ts';

/** Users x and y with a repository each, on a server with `slots` slots. */
async function twoOwners(slots: number) {
  const app = await startApp({ config: { jobSlots: slots }, overrides: { runner: fakeRunner() } });
  const owners: Record<'x' | 'y', Client> = { x: await app.user('x'), y: await app.user('y') };
  for (const [name, client] of Object.entries(owners))
    expect((await client.post(`/auth/v1/repository/${name}`, { name: 'r' })).status).toBe(201);
  const run = (owner: 'x' | 'y', name: string, command: string) =>
    submit(owners[owner], { namespace: owner, name, command, repo: `${owner}/r` });
  const ended = (owner: 'x' | 'y', name: string) => until(owners[owner], owner, name, 'SUCCEEDED');
  return { app, run, ended, ...owners, [Symbol.asyncDispose]: () => app[Symbol.asyncDispose]() };
}

/** Locks rows in another transaction until it is disposed. */
async function locking(app: TestApp, statement: string, values: unknown[]) {
  const client = new pg.Client(app.app.services.pool.options as pg.ClientConfig);
  await client.connect();
  await client.query('begin');
  expect((await client.query(statement, values)).rowCount).toBeGreaterThan(0);
  return { [Symbol.asyncDispose]: () => client.end() };
}

const LOCK_JOB = 'select from jobs where name = $1 for update';

test('a locked job that is next in the queue does not block others, and starts when it is unlocked', async () => {
  await using loam = await twoOwners(1);
  const { app, run, ended } = loam;
  await run('y', 'first', 'exit 0');
  await ended('y', 'first');
  await run('x', 'filler', 'sleep 600');
  await until(loam.x, 'x', 'filler', 'RUNNING');
  await run('x', 'locked', 'exit 0');
  await run('y', 'other', 'exit 0');
  {
    await using _ = await locking(app, LOCK_JOB, ['locked']);
    // Makes x come before y.
    await app.pool.query(`
      update queue_lines l set served_at = 'epoch' from namespaces n where n.id = l.namespace_id and n.name = 'x'`);
    await loam.x.post('/auth/v1/seed/x/jobs/filler/cancel', {});
    await ended('y', 'other');
  }
  await ended('x', 'locked');
});

test('the locks of a server that freezes during a claim are released', async () => {
  await using loam = await twoOwners(0);
  await loam.run('x', 'waits', 'exit 0');
  const { services } = loam.app.app;
  const claim = claimJobs(services, {
    workerId: 'frozen',
    runner: 'fake',
    pools: new Map([['none', { 'us-east-1': 0 }]]),
    maxQueues: 1,
    maxJobsPerQueue: 1,
    reserved: [],
    decide([line]) {
      // Like SIGSTOP: this thread does nothing at all.
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 6_000);
      const job = line?.jobs[0];
      if (!job) throw new Error('nothing waits');
      return [{ job, grant: { machine: 'local', cpus: 1, memoryBytes: 1, shared: false } }];
    },
  });
  expect(isDatabaseUnavailable(await claim.catch((error) => error))).toBe(true);
  const { rows } = await loam.app.pool.query(`select attempt_id from jobs where name = 'waits'`);
  expect(rows).toEqual([{ attempt_id: null }]);
});

test('every connection has timeouts for idle transactions and for dead clients', async () => {
  await using app = await startApp({});
  const { rows } = await app.app.services.pool.query(`
    select name, setting from pg_settings
    where name in ('idle_in_transaction_session_timeout', 'default_transaction_isolation') order by name`);
  expect(rows).toEqual([
    { name: 'default_transaction_isolation', setting: 'read committed' },
    { name: 'idle_in_transaction_session_timeout', setting: '30000' },
  ]);
});

test('a lost attempt whose job is locked blocks neither other recoveries nor the heartbeat', async () => {
  await using loam = await twoOwners(0);
  const { app } = loam;
  await app.pool.query(`
    insert into workers (id, runner, machines, heartbeat_at) values ('gone', 'fake', '[]', now() - interval '1 hour')`);
  for (const name of ['locked', 'other']) {
    await loam.run('x', name, 'exit 0');
    const attempt = newId('att');
    await app.pool.query('update jobs set attempt_id = $1 where name = $2', [attempt, name]);
    await app.pool.query(
      `insert into job_attempts (id, job_id, number, runner, worker_id, heartbeat_at)
         select $1, id, 1, 'fake', 'gone', now() - interval '1 hour' from jobs where name = $2`,
      [attempt, name],
    );
  }
  const open = async () =>
    (
      await app.pool.query(`
        select j.name from job_attempts a join jobs j on j.id = a.job_id where a.ended_at is null order by 1`)
    ).rows.map(({ name }) => name);
  {
    await using _ = await locking(app, LOCK_JOB, ['locked']);
    await eventually(async () => expect(await open()).toEqual(['locked']));
    const { rows } = await app.pool.query(`
      select max(heartbeat_at) > now() - interval '11 seconds' as alive from workers where id <> 'gone'`);
    expect(rows).toEqual([{ alive: true }]);
  }
  await eventually(async () => expect(await open()).toEqual([]));
});

test('a filtered page contains only matching jobs during concurrent changes', async () => {
  await using loam = await twoOwners(0);
  const { app } = loam;
  await app.pool.query(`
    insert into repositories (id, namespace_id, name, name_key, description, visibility, default_branch)
      select 'repo_' || lpad(n::text, 26, '0'), id, 'r-' || n, 'r-' || n, 'open', 'public', 'main'
      from namespaces, generate_series(1, 60) n where namespaces.name = 'x'`);
  let isOver = false;
  const changing = (async () => {
    const set = 'update repositories set visibility = $1, description = $2';
    while (!isOver) {
      await app.pool.query(set, ['private', 'secret']);
      await app.pool.query(set, ['public', 'open']);
    }
  })();
  const seen: unknown[] = [];
  for (let i = 0; i < 60; i++) {
    for (const sort of ['name', 'created_at']) {
      const query = `visibility=public&sort=${sort}&per_page=50`;
      seen.push(...(await loam.y.get(`/auth/v1/repository/x?${query}`)).body.data);
    }
    const { namespace } = await loam.y.gql(
      `{ namespace(name: "x") { repositories(first: 50) { nodes { visibility description owner { kind } } } } }`,
    );
    seen.push(...namespace.repositories.nodes);
  }
  isOver = true;
  await changing;
  expect(seen.length).toBeGreaterThan(100);
  expect(JSON.stringify(seen)).not.toContain('secret');
});

test('a repository with many jobs is deleted, and the jobs are kept', async () => {
  await using loam = await twoOwners(0);
  const { app } = loam;
  const { rows } = await app.pool.query(`
    insert into jobs (id, namespace_id, name, status, command, gpu, gpu_count, cpu, memory_gb, disk_gb, region, timeout_minutes,
        retries, cost_per_hour, completed_at, repository_id, repo)
      select 'job_' || lpad(g.i::text, 26, '0'), r.namespace_id, 'j' || g.i, 'succeeded', 'true', 'none', 1, 8, 32, 1, 'us-east-1', 60,
        0, 0.1, now(), r.id, 'x/r'
      from repositories r join namespaces n on n.id = r.namespace_id, generate_series(1, 2500) g (i) where n.name = 'x'
      returning repository_id as id`);
  expect((await loam.x.delete(`/auth/v1/repository/x/${rows[0].id}`)).status).toBe(204);
  const left = await app.pool.query(
    'select count(*)::int as n, count(repository_id)::int as led from jobs',
  );
  expect(left.rows).toEqual([{ n: 2_500, led: 0 }]);
});
