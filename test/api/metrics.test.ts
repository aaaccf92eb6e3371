/** The metrics for Prometheus, after real traffic. */
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import pg from 'pg';
import { expect, test } from 'vitest';
import { ConfigError } from '../../src/base/config/config.ts';
import { joinMachine } from '../../src/jobs/machines/machines.ts';
import { countWaitingJobs } from '../../src/jobs/queue/overview.ts';
import { GIT_STARTED, type StartedGit } from '../../src/platform/processes/git-started.ts';
import type { MachineFacts } from '../../src/runners/machines/protocol.ts';
import { openCuttableProxy } from '../support/cut.ts';
import { eventually } from '../support/eventually.ts';
import { type Family, readExposition } from '../support/exposition.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { Workspace } from '../support/git.ts';
import { startApp, type TestApp } from '../support/harness.ts';
import { freePort } from '../support/ports.ts';
import { startServers } from '../support/servers.ts';
import { followStream } from '../support/sse.ts';
import { submit, until } from '../support/submit.ts';

const facts: MachineFacts = {
  hostname: 'box',
  os: 'linux',
  arch: 'x64',
  node: '24.1.0',
  program: '1.0.0',
  cpus: 4,
  memoryBytes: 2 ** 33,
  gpus: [],
  withImage: false,
  withoutImage: true,
  slots: 2,
  notes: [],
};
const metrics = { host: '127.0.0.1', port: 0 };

async function scrape(app: { metricsAddress?: string }): Promise<Map<string, Family>> {
  const response = await fetch(`${app.metricsAddress}/metrics`);
  expect(response.headers.get('content-type')).toBe('text/plain; version=0.0.4; charset=utf-8');
  expect(response.status).toBe(200);
  return readExposition(await response.text());
}

/** The sum of the samples with these labels; undefined if there are none. */
function value(families: Map<string, Family>, name: string, labels: Record<string, string> = {}) {
  const family = families.get(name.replace(/_(count|sum)$/, '')) ?? families.get(name);
  const found = family?.samples.filter(
    (s) => s.name === name && Object.entries(labels).every(([key, text]) => s.labels[key] === text),
  );
  return found?.length ? found.reduce((sum, s) => sum + s.value, 0) : undefined;
}

const series = (families: Map<string, Family>) =>
  families.values().reduce((sum, { samples }) => sum + samples.length, 0);

async function makeTraffic(app: TestApp): Promise<void> {
  const ada = await app.user('ada');
  expect((await ada.post('/auth/v1/repository/ada', { name: 'code' })).status).toBe(201);
  expect((await ada.get('/auth/v1/ada/repositories')).status).toBe(200);
  expect((await ada.get('/auth/v1/repository/ada/repo_nothing')).status).toBe(404);
  expect((await ada.get('/nowhere/at/all')).status).toBe(404);
  expect((await ada.graphql('{ viewer { nothing } }')).errors).toHaveLength(1);
  await using workspace = await Workspace.open();
  await workspace.clone(ada, 'ada/code');
  await workspace.commit('code', { 'a.txt': 'first\n' });
  await workspace.git('code', 'push', '-q', 'origin', 'HEAD:main');
  await submit(ada, {
    namespace: 'ada',
    repo: 'ada/code',
    name: 'good',
    command: 'echo a; echo b; echo done > $JOB_SUMMARY',
  });
  await submit(ada, { namespace: 'ada', repo: 'ada/code', name: 'bad', command: 'exit 3' });
  await until(ada, 'ada', 'good', 'SUCCEEDED');
  await until(ada, 'ada', 'bad', 'FAILED');
}

test('a scrape after traffic has the right values, and the metrics that docs/monitoring.md lists', async () => {
  const runner = fakeRunner();
  const webhooks = { allow: ['127.0.0.1'] };
  await using app = await startApp({ config: { metrics, webhooks }, overrides: { runner } });
  let pushes = 0;
  const countPush = (message: unknown) => {
    if ((message as StartedGit).args[0] === 'receive-pack') pushes++;
  };
  subscribe(GIT_STARTED, countPush);
  await makeTraffic(app).finally(() => unsubscribe(GIT_STARTED, countPush));
  const webhook = await app.admin.post('/auth/v1/seed/webhooks', {
    name: 'nobody there',
    url: `https://127.0.0.1:${await freePort()}/`,
    event_types: ['job.failed'],
    namespaces: ['admin'],
  });
  const tested = await app.admin.post(`/auth/v1/seed/webhooks/${webhook.body.id}/test`, {});
  expect(tested.status, tested.text).toBe(202);
  const ada = app.client(app.admin.authorization);
  await submit(ada, {
    namespace: 'admin',
    name: 'long',
    repo: 'ada/code',
    command: 'echo up; sleep 600',
  });
  await until(ada, 'admin', 'long', 'RUNNING');
  const leaving = new AbortController();
  const subscribed = await fetch(`${app.base}/graphql`, {
    method: 'POST',
    signal: leaving.signal,
    headers: {
      accept: 'text/event-stream',
      authorization: ada.authorization ?? '',
      'content-type': 'application/json',
    },
    body: JSON.stringify({ query: 'subscription { jobEvents(namespace: "admin") { type } }' }),
  });
  expect(subscribed.status).toBe(200);
  const stream = followStream(ada, '/admin/job/long/logs?stream=true');
  await stream.take(1);

  const { createWorkerToken } = await ada.gql(
    'mutation { createWorkerToken(input: { name: "box" }) { token } }',
  );
  await joinMachine(app.app.services as never, createWorkerToken.token, { name: 'box', facts });

  const found = await eventually(async () => {
    const now = await scrape(app.app);
    expect(value(now, 'loam_machine_up', { machine: 'box' })).toBe(1);
    expect(value(now, 'loam_streams_open', { kind: 'subscription' })).toBe(1);
    // A job that ended keeps its slot until the runner has removed it.
    expect(value(now, 'loam_job_slots_used')).toBe(1);
    const refused = { outcome: 'connect_failed' };
    expect(value(now, 'loam_webhook_attempts_total', refused)).toBeGreaterThanOrEqual(1);
    return now;
  });
  const is = (name: string, labels: Record<string, string>, expected: unknown) =>
    expect(value(found, name, labels), `${name} ${JSON.stringify(labels)}`).toEqual(expected);
  const request = (method: string, route: string, status: string, count: unknown) =>
    is('loam_http_requests_total', { method, route, status }, count);
  // Both paths count as one route.
  request('POST', '/auth/v1/repository/{namespace}', '201', 1);
  request('GET', '/auth/v1/repository/{namespace}', '200', 1);
  request('GET', '/auth/v1/repository/{namespace}/{id}', '404', 1);
  request('GET', 'none', '404', 1);
  request('GET', '/{namespace}/{name}/info/refs', '200', expect.any(Number));
  request('POST', '/{namespace}/{name}/git-receive-pack', '200', 1);
  request('POST', '/graphql', '200', expect.any(Number));
  is('loam_http_request_duration_seconds_count', { route: '/auth/v1/repository/{namespace}' }, 2);
  is('loam_http_requests_in_progress', {}, 2);
  is('loam_streams_open', { kind: 'log' }, 1);
  is('loam_graphql_operations_total', { kind: 'mutation', result: 'ok' }, expect.any(Number));
  is('loam_graphql_operations_total', { kind: 'subscription', result: 'ok' }, 1);
  is('loam_job_attempts_total', { outcome: 'succeeded' }, 1);
  is('loam_job_attempts_total', { outcome: 'failed' }, 1);
  is('loam_job_log_lines_total', {}, 3);
  is('loam_job_metric_points_total', {}, 0);
  is('loam_job_results_total', { kind: 'summary', result: 'stored' }, 1);
  is('loam_job_results_total', { kind: 'tests', result: 'failed' }, 0);
  is('loam_job_queue_wait_seconds_count', { gpu: 'none', region: 'us-east-1' }, 3);
  is('loam_machine_gpus', { machine: 'box' }, 0);
  is('loam_job_slots', {}, app.config.jobSlots);
  // One for the push, and one for the advertised refs, unless an earlier push has cached them.
  expect(pushes).toBeOneOf([1, 2]);
  is('loam_git_processes_started_total', { command: 'receive-pack' }, pushes);
  is('loam_git_processes_running', {}, expect.any(Number));
  is('loam_git_cat_file_waiting', {}, 0);
  is('loam_git_transfers', { state: 'running' }, 0);
  is('loam_database_up', {}, 1);
  is('loam_database_waiting', {}, 0);
  is('loam_disk_low', {}, 0);
  is('loam_webhook_first_attempt_delay_seconds_count', {}, 1);
  is('loam_webhook_deliveries_total', { status: 'failed' }, 0);
  is('loam_outbox_lag_seconds', { reader: 'webhooks' }, expect.any(Number));
  is('loam_build_info', { role: 'all' }, 1);
  is('nodejs_eventloop_lag_p99_seconds', {}, expect.any(Number));
  is('process_resident_memory_bytes', {}, expect.any(Number));

  const page = readFileSync(join(import.meta.dirname, '../../docs/monitoring.md'), 'utf8');
  const listed = [...page.matchAll(/^\| `(\w+)` \| (\w+) \| (.*?) \| .+ \|$/gm)].map(
    ([, name, type, labels = '']) => [name, type, labels.replaceAll(/[`\s]/g, '')],
  );
  const told = [...found.values()].map(({ name, type, samples }) => {
    const names = new Set(samples.flatMap(({ labels }) => Object.keys(labels)));
    names.delete('le');
    return { name, type, labels: [...names].sort() };
  });
  expect(listed.map(([name, type]) => [name, type]).sort()).toEqual(
    told.map(({ name, type }) => [name, type]).sort(),
  );
  for (const { name, labels } of told.filter((each) => each.labels.length > 0))
    expect([name, listed.find(([one]) => one === name)?.[2]]).toEqual([name, labels.join(',')]);

  await stream[Symbol.asyncDispose]();
  leaving.abort();
  await eventually(async () => {
    const now = await scrape(app.app);
    expect(value(now, 'loam_streams_open')).toBe(0);
    expect(value(now, 'loam_http_requests_in_progress')).toBe(0);
    const streamed = { route: '/{namespace}/job/{name}/logs', status: '200' };
    expect(value(now, 'loam_http_requests_total', streamed)).toBe(1);
    // The time that a client stays connected is not the duration of a request.
    expect(
      value(now, 'loam_http_request_duration_seconds_count', { route: streamed.route }),
    ).toBeUndefined();
  });
});

test('the number of series is bounded, whatever paths and methods clients request', async () => {
  await using app = await startApp({ config: { metrics } });
  const { admin, anonymous } = app;
  const paths = (n: number) => [
    `/nothing-${n}`,
    `/auth/v1/repository/name-${n}`,
    `/auth/v1/repository/name-${n}/repo_${n}/tree/a/${n}/b?ref=${n}`,
    `/auth/v1/name-${n}/repositories/x${n}`,
    `/name-${n}/job/job-${n}`,
    `/AUTH/v1/${n}/job/${n}/logs`,
    `/graphql/${n}`,
    `/graphql?query=%7Ba${n}%7D&operationName=o${n}`,
    `/ARTIFACTS/name-${n}/job_${n}/files/${n}/${n}`,
    `/artifacts/name-${n}/job_${n}/artifacts.tar.gz`,
    `/repository/${n}/blobs/${n}/${n}`,
    `/repository/${n}/large-files/${n}/${n}`,
    `/name-${n}/code-${n}.git/info/lfs/objects/${n}`,
    `/name-${n}/code-${n}.git/info/refs?service=git-upload-pack`,
    `/_loam/calls/${n}/${n}`,
    `/docs/${n}`,
    `/%ff${n}`,
  ];
  const methods = ['GET', 'HEAD', 'POST', 'DELETE', 'OPTIONS', 'PROPFIND'];
  const ask = async (from: number, to: number) => {
    for (let n = from; n < to; n++)
      await Promise.all(
        paths(n).flatMap((path) =>
          [admin, anonymous].map((client) =>
            client.request(methods[n % methods.length] ?? '', path).catch(() => {}),
          ),
        ),
      );
  };
  await ask(0, 2 * methods.length);
  const before = await scrape(app.app);
  await ask(1_000, 1_000 + 4 * methods.length);
  const after = await scrape(app.app);
  const labels = (families: Map<string, Family>) =>
    [...families.values()]
      .filter(({ name }) => name.startsWith('loam_http'))
      .flatMap(({ samples }) => samples.map(({ name, labels }) => JSON.stringify([name, labels])))
      .sort();
  expect(labels(after)).toEqual(labels(before));
  expect(series(after)).toBeLessThan(2_000);
  expect(value(after, 'loam_http_requests_total', { method: 'other' })).toBeGreaterThan(0);
  expect(JSON.stringify(labels(after))).not.toMatch(/name-|nothing|ARTIFACTS/);
});

test('counting 10,000 waiting jobs reads each once, and the age of an unread event is reported', async () => {
  await using app = await startApp({ config: { metrics, jobSlots: 0 } });
  const { pool } = app;
  await pool.query(`
    insert into jobs (id, namespace_id, name, command, gpu, gpu_count, cpu, memory_gb, disk_gb, region,
      timeout_minutes, retries, cost_per_hour, available_at)
    select 'job_' || lpad(n::text, 26, '0'), namespaces.id, 'job-' || n, 'true', 'L4', 1, 8, 32, 100,
      case when n % 10 = 0 then 'eu-west-1' else 'us-east-1' end, 60, 0, 1, now() - make_interval(secs => n)
    from namespaces cross join generate_series(1, 10000) n where namespaces.name = 'admin'`);
  await pool.query('analyze jobs');
  // One connection, because each connection reports its own statistics.
  const one = new pg.Pool({ ...pool.options, max: 1 });
  const entriesRead = async () => {
    await one.query('select pg_stat_force_next_flush()');
    const { rows } = await one.query(
      `select (seq_tup_read + (select sum(idx_tup_read) from pg_stat_user_indexes where relname = 'jobs'))::int as n
       from pg_stat_user_tables where relname = 'jobs'`,
    );
    return rows[0].n;
  };
  const before = await entriesRead();
  await countWaitingJobs({ pool: one });
  const read = (await entriesRead()) - before;
  await one.end();
  // Reading the whole table for each pool would be several times as much.
  expect(read).toBeGreaterThanOrEqual(10_000);
  expect(read).toBeLessThan(15_000);

  const { rows } = await pool.query("select id from namespaces where name = 'admin'");
  await pool.query(
    `insert into events (id, type, namespace_id, subject, data, timestamp)
     values ('evt_1', 'job.succeeded', $1, 'job_1', '{}', now() - interval '90 s')`,
    [rows[0].id],
  );
  const place = "(select min(xid)::text || ':0' from events)";
  await pool.query(`insert into event_readers (name, place) values ('late', ${place}),
    ('done', '9000000000000000000:0') on conflict do nothing`);
  const found = await scrape(app.app);
  const jobs = (region: string) => value(found, 'loam_jobs_waiting', { gpu: 'L4', region });
  expect([jobs('us-east-1'), jobs('eu-west-1')]).toEqual([9_000, 1_000]);
  const oldest = value(found, 'loam_jobs_waiting_oldest_seconds', { region: 'eu-west-1' });
  expect(oldest).toBeGreaterThanOrEqual(10_000);
  expect(oldest).toBeLessThan(10_100);
  expect(value(found, 'loam_outbox_lag_seconds', { reader: 'late' })).toBeGreaterThanOrEqual(90);
  expect(value(found, 'loam_outbox_lag_seconds', { reader: 'done' })).toBe(0);
});

test('a scrape works while the database is unavailable, without the metrics from the database', async () => {
  await using cut = openCuttableProxy();
  await using app = await startApp({ config: { metrics }, via: (url) => cut.via(url) });
  await cut.cut();
  const away = await scrape(app.app);
  expect(value(away, 'loam_database_up')).toBe(0);
  expect(value(away, 'loam_jobs_waiting')).toBeUndefined();
  expect(value(away, 'loam_git_cat_file_waiting')).toBe(0);
  await cut.mend();
  await eventually(async () => expect(value(await scrape(app.app), 'loam_database_up')).toBe(1));
});

test('the metrics port serves only /metrics, and the port of the service does not', async () => {
  await using app = await startApp({ config: { metrics } });
  const at = (path: string, method = 'GET') =>
    fetch(`${app.app.metricsAddress}${path}`, { method }).then(({ status }) => status);
  expect(
    await Promise.all(['/', '/livez', '/metrics/', '/graphql'].map((path) => at(path))),
  ).toEqual([404, 404, 404, 404]);
  expect([await at('/metrics', 'POST'), await at('/metrics', 'HEAD')]).toEqual([405, 200]);
  expect((await app.admin.get('/metrics')).status).toBe(404);

  const port = Number(new URL(app.app.metricsAddress ?? '').port);
  const second = startApp({ config: { metrics: { ...metrics, port } } });
  await expect(second).rejects.toThrow(ConfigError);
  await expect(second).rejects.toThrow(`LOAM_METRICS_PORT: ${port} is in use on 127.0.0.1`);
});

test('without LOAM_METRICS_PORT no port is opened, and refused requests are still counted', async () => {
  await using app = await startApp({
    config: {
      rateLimits: {
        free: { perMinute: 2, perSecond: 2 },
        team: { perMinute: 2, perSecond: 2 },
      } as never,
    },
  });
  expect(app.app.metricsAddress).toBeUndefined();
  for (let i = 0; i < 5; i++) await app.anonymous.get('/auth/v1/whoami');
  const text = await app.app.services.metrics.text();
  expect(value(readExposition(text), 'loam_rate_limit_refusals_total', { plan: 'free' })).toBe(3);
});

test('a process that only runs jobs has metrics too, without those that all servers share', async () => {
  await using servers = await startServers(1);
  const worker = await servers.work('worker', {
    config: { metrics, jobSlots: 3 },
    overrides: { runner: fakeRunner() },
  });
  const found = await scrape(worker);
  expect(value(found, 'loam_build_info', { role: 'work' })).toBe(1);
  expect([value(found, 'loam_job_slots'), value(found, 'loam_job_slots_used')]).toEqual([3, 0]);
  expect(value(found, 'loam_jobs_waiting')).toBeUndefined();
});
