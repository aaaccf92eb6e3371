/** The contents of events, and reading events of all namespaces with a stored cursor. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { JobEventData } from '../../src/jobs/record/payload.ts';
import { payloadToSend } from '../../src/jobs/requests/jobs.ts';
import { currentCursor } from '../../src/platform/events/cursor.ts';
import { removeOldEvents } from '../../src/platform/events/outbox.ts';
import { type EventPage, followAllEvents } from '../../src/platform/events/read.ts';
import { eventually } from '../support/eventually.ts';
import { Workspace } from '../support/git.ts';
import { type Client, disablePolling, startApp, type TestApp } from '../support/harness.ts';
import { remove, submit, until, variables } from '../support/submit.ts';
import { take, viaYoga } from '../support/subscribe.ts';

let app: TestApp;
let ada: Client;
let bob: Client;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
  bob = await app.user('bob');
  for (const [name, client] of Object.entries({ ada, bob }))
    await client.post(`/auth/v1/repository/${name}`, { name: 'code' });
});
afterAll(() => app[Symbol.asyncDispose]());

const query = async (sql: string, values: unknown[] = []) =>
  (await app.app.services.pool.query(sql, values)).rows;
const publish = (id: string, namespace = 'ns_x') =>
  query(
    `with written as (
       insert into events (id, type, namespace_id, subject, data)
       values ($1, 'job.queued', $2, 'job_x', '{"name": "x", "status": "queued"}')
     ) select pg_notify('loam', 'event:' || $2 || ':job_x')`,
    [id, namespace],
  );

/** Reads all events after a cursor until `stop`. */
function reader(after: string | null) {
  const abort = new AbortController();
  const pages: EventPage[] = [];
  const ended = (async () => {
    for await (const page of followAllEvents(app.app.services, after, abort.signal))
      pages.push(page);
  })();
  return {
    pages,
    ids: () => pages.flatMap(({ events }) => events.map(({ id }) => id)),
    ended,
    stop: () => {
      abort.abort();
      return ended;
    },
  };
}

const eventsOf = (subject: string) =>
  query('select type, data from events where subject = $1 order by xid, seq', [subject]);

test('an event of a job contains the job as GET returns it, and no secrets', async () => {
  const { id } = await submit(ada, {
    namespace: 'ada',
    name: 'whole',
    repo: 'ada/code',
    command: "echo '::progress::halfway'; exit 3",
    outputPath: 'out',
    retries: 0,
    env: variables({ PLAIN: 'env-value' }),
    secrets: variables({ HIDDEN: 'secret-value' }),
  });
  await until(ada, 'ada', 'whole', 'FAILED');
  const { body } = await ada.get('/ada/job/whole');
  const [queued, running, failed] = await eventsOf(id);
  const sent = (row: { data: JobEventData }) =>
    payloadToSend(app.app.services, row.data.job) as typeof body;
  expect(failed.type).toBe('job.failed');
  const { artifacts, ...payload } = sent(failed);
  const { artifacts: shown, ...rest } = body;
  expect(payload).toEqual(rest);
  expect({ ...artifacts, download_url: '' }).toEqual({ ...shown, download_url: '' });
  const download = await app.anonymous.get(artifacts.download_url);
  expect(download.status).toBe(200);
  expect(failed.data.repositoryId).toMatch(/^repo_/);
  // Earlier events contain the job at that time, in the same form.
  expect(sent(queued)).toMatchObject({ status: 'queued', started_at: null, total_cost: '0.00' });
  expect(sent(running)).toMatchObject({ status: 'running', completed_at: null });
  for (const row of [queued, running]) {
    expect(sent(row)).not.toHaveProperty('artifacts');
    expect(sent(row)).not.toHaveProperty('exit_code');
  }
  expect(JSON.stringify([queued, running, failed])).not.toMatch(/env-value|secret-value|HIDDEN/);
  await remove(ada, 'ada', 'whole');
  expect((await eventsOf(id)).at(-1)).toMatchObject({
    type: 'job.deleted',
    data: { job: { ...payload, artifacts: { path: 'out' } } },
  });
});

test('an event is smaller than 20 kB, whatever the job contains', async () => {
  const { id } = await submit(ada, {
    namespace: 'ada',
    name: 'x'.repeat(100),
    repo: 'ada/code',
    command: `: ${'\u0001'.repeat(30_000)}${'😀"'.repeat(10_000)}; echo '::progress::${'\u0002'.repeat(3_000)}'`,
    outputPath: '\u0003'.repeat(1_024),
  });
  await until(ada, 'ada', 'x'.repeat(100), 'SUCCEEDED');
  for (const { data } of await eventsOf(id)) {
    expect(Buffer.byteLength(JSON.stringify(data))).toBeLessThan(19_000);
    expect(data.job.command).toMatch(/^: .*…$/s);
  }
  const short = '😀'.repeat(900);
  const { id: other } = await submit(ada, {
    namespace: 'ada',
    name: 'emoji',
    repo: 'ada/code',
    command: short,
  });
  expect((await eventsOf(other))[0].data.job.command).toBe(short);
});

test('an event of a repository contains the repository as GET returns it, and the push', async () => {
  await using workspace = await Workspace.open();
  const { body: created } = await ada.post('/auth/v1/repository/ada', { name: 'told' });
  await workspace.clone(ada, 'ada/told');
  const before = await workspace.git('told', 'rev-parse', 'HEAD');
  const sha = await workspace.commit('told', { 'a.ts': 'const a = 1;\n' });
  await workspace.git('told', 'push', '-q', 'origin', 'HEAD:main', 'HEAD:refs/heads/new');
  const { body } = await ada.get(`/auth/v1/repository/ada/${created.id}`);
  const [first, pushed] = await eventsOf(created.id);
  const { clone_url: _clone, ssh_url: _ssh, collaborators: _some, ...asCreated } = created;
  expect(first).toEqual({ type: 'repository.created', data: { repository: asCreated } });
  const { collaborators, ...asPushed } = body;
  expect(collaborators).toBe(1);
  expect(pushed.data.repository).toEqual(asPushed);
  expect(pushed.data.push).toMatchObject({ pusher: 'ada', ref_count: 2 });
  expect(pushed.data.push.refs).toContainEqual({ ref: 'refs/heads/main', before, after: sha });
  expect(pushed.data.push.refs).toContainEqual({ ref: 'refs/heads/new', before: null, after: sha });
});

test('subscribers get the contents of an event', async () => {
  await submit(ada, { namespace: 'ada', name: 'held', repo: 'ada/code', command: 'exit 0' });
  await until(ada, 'ada', 'held', 'SUCCEEDED');
  const fields = 'name status exitCode namespace progress retryCount runtimeSeconds totalCost';
  const events = `subscription { jobEvents(namespace: "ada", name: "held", after: 0) { ${fields} } }`;
  const [queued, , succeeded] = await take(viaYoga(ada, events), 'jobEvents', 3);
  expect([queued, succeeded]).toEqual([
    {
      name: 'held',
      status: 'QUEUED',
      exitCode: null,
      namespace: 'ada',
      progress: expect.any(String),
      retryCount: 0,
      runtimeSeconds: 0,
      totalCost: '0.00',
    },
    {
      name: 'held',
      status: 'SUCCEEDED',
      exitCode: 0,
      namespace: 'ada',
      progress: 'succeeded',
      retryCount: 0,
      runtimeSeconds: 0,
      totalCost: '0.00',
    },
  ]);
});

test('a reader of all namespaces is woken by events of each namespace', async () => {
  disablePolling(app);
  const all = reader(await currentCursor(app.app.services));
  for (const [namespace, client] of Object.entries({ ada, bob }))
    await submit(client, {
      namespace,
      name: 'woken',
      repo: `${namespace}/code`,
      command: 'exit 0',
    });
  await eventually(() => expect(all.ids()).toHaveLength(6));
  const names = new Map(
    (await query('select id, name from namespaces')).map((r) => [r.id, r.name]),
  );
  const types = all.pages.flatMap(({ events }) =>
    events.map(({ type, namespaceId }) => `${names.get(namespaceId)} ${type}`),
  );
  for (const namespace of ['ada', 'bob'])
    expect(types.filter((told) => told.startsWith(namespace))).toEqual(
      ['queued', 'running', 'succeeded'].map((status) => `${namespace} job.${status}`),
    );
  await all.stop();
});

test('a reader continues at its stored cursor after a restart and reads each event once', async () => {
  const start = await currentCursor(app.app.services);
  // Three pages.
  await query(
    `insert into events (id, type, namespace_id, subject, data)
     select 'evt_many' || lpad(n::text, 4, '0'), 'job.queued', 'ns_' || n, 'job_' || n, '{}' from generate_series(1, 2400) n`,
  );
  const first = reader(start);
  await eventually(() => expect(first.ids()).toHaveLength(2_400));
  await first.stop();
  expect(first.pages.map(({ events }) => events.length)).toEqual([1_000, 1_000, 400]);
  expect(first.ids()).toEqual(first.ids().toSorted());
  const stored = first.pages[0]?.cursor ?? '';
  await app.restart();
  await publish('evt_many9999');
  const second = reader(stored);
  await eventually(() => expect(second.ids()).toHaveLength(1_401));
  expect(second.ids()).toEqual([...first.ids().slice(1_000), 'evt_many9999']);
  await second.stop();
});

test('events are held back by transactions that began before them, and no event is skipped', async () => {
  const { pool } = app.app.services;
  const all = reader(await currentCursor(app.app.services));
  const slow = await pool.connect();
  await slow.query('begin');
  await slow.query(
    `insert into events (id, type, namespace_id, subject, data) values ('evt_slow', 'job.queued', 'ns_y', 'job_y', '{}')`,
  );
  for (let n = 0; n < 5; n++) await publish(`evt_quick${n}`, `ns_${n}`);
  // A reader that starts now starts before all of these events.
  const late = reader(await currentCursor(app.app.services));
  await publish('evt_quick5');
  expect([all.ids(), late.ids()]).toEqual([[], []]);
  await slow.query('commit');
  slow.release();
  const expected = ['evt_slow', ...[0, 1, 2, 3, 4, 5].map((n) => `evt_quick${n}`)];
  for (const each of [all, late]) {
    await eventually(() => expect(each.ids()).toEqual(expected));
    await each.stop();
  }
});

test('a reader that missed removed events gets an error; a reader that has read them does not', async () => {
  const place = await currentCursor(app.app.services);
  await publish('evt_old1');
  await publish('evt_old2', 'ns_quiet');
  const all = reader(place);
  await eventually(() => expect(all.ids()).toEqual(['evt_old1', 'evt_old2']));
  const read = all.pages.at(-1)?.cursor ?? '';
  const middle = `${read.split(':')[0]}:0`;
  await query(`update events set timestamp = now() - interval '31 days'`);
  await publish('evt_young');
  while (await removeOldEvents(app.app.services, 30));
  await expect(query('select id from events order by xid, seq')).resolves.toEqual([
    { id: 'evt_young' },
  ]);
  for (const missed of [place, middle])
    await expect(reader(missed).ended).rejects.toThrow(/events after this cursor were removed/);
  await publish('evt_next');
  // A reader that continues, a reader with a stored cursor, and a reader that starts with the oldest event.
  for (const [each, ids] of [
    [all, ['evt_old1', 'evt_old2', 'evt_young', 'evt_next']],
    [reader(read), ['evt_young', 'evt_next']],
    [reader(null), ['evt_young', 'evt_next']],
  ] as const) {
    await eventually(() => expect(each.ids()).toEqual(ids));
    await each.stop();
  }
  // If all events were removed, a new reader starts after them, also in a PostgreSQL cluster with lower xids.
  await query(`update events set timestamp = now() - interval '31 days'`);
  await removeOldEvents(app.app.services, 30);
  await query(
    `update event_clock set removed_xid = (removed_xid::text::bigint + 1000000000)::text::xid8`,
  );
  const behind = await currentCursor(app.app.services);
  await app.restart();
  await publish('evt_restored');
  const restored = reader(behind);
  await eventually(() => expect(restored.ids()).toEqual(['evt_restored']));
  await restored.stop();
});
