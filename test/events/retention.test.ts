/** Removal of expired events and responses, and the error for a client whose cursor has expired. */
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { removeOldEvents } from '../../src/platform/events/outbox.ts';
import { eventually } from '../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { submit, until } from '../support/submit.ts';
import { MODES, take } from '../support/subscribe.ts';

let app: TestApp;
let ada: Client;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
});
afterAll(() => app[Symbol.asyncDispose]());

const query = async (sql: string, values: unknown[] = []) =>
  (await app.app.services.pool.query(sql, values)).rows;
/** Waits until no open transaction, perhaps of another test, holds an event back: such events are never deleted. */
const allSettled = () =>
  eventually(async () =>
    expect(await query('select 1 from events where xid >= event_horizon()')).toHaveLength(0),
  );
const run = async (name: string) => {
  await submit(ada, { namespace: 'ada', name, repo: 'ada/code', command: 'exit 0' });
  return until(ada, 'ada', name, 'SUCCEEDED');
};
const eventsAfter = (after: number, count?: number) =>
  take(
    MODES["Yoga's own"](
      ada,
      `subscription { jobEvents(namespace: "ada", after: ${after}) { cursor name } }`,
    ),
    'jobEvents',
    count,
  );
/** Subscribes to events from now on. The subscription receives every later event and no earlier event. */
async function subscribeNow() {
  const [{ id }] = await query(`select id from namespaces where name = 'ada'`);
  const live = MODES["Yoga's own"](
    ada,
    'subscription { jobEvents(namespace: "ada") { cursor name } }',
  );
  const wakes = vi.spyOn(app.app.services.bus, 'wakes');
  const first = live.next();
  await eventually(() =>
    expect(wakes.mock.calls.flatMap(([topics]) => topics)).toContain(`namespace:${id}`),
  );
  wakes.mockRestore();
  return { live, first };
}

test('after a restore into another PostgreSQL cluster, restored events are read first and new events after them', async () => {
  await run('before');
  const told = await eventsAfter(0, 3);
  // The transaction ids of the new cluster are far below those of the events. A second restore follows.
  for (const name of ['restored', 'again']) {
    await query(`update events set xid = (xid::text::bigint + 1000000000)::text::xid8`);
    await app.restart();
    const { live, first } = await subscribeNow();
    expect(await eventsAfter(0, told.length)).toEqual(told);
    await run(name);
    expect((await first).value?.data.jobEvents.name).toBe(name);
    const fresh = await eventsAfter(told.at(-1).cursor, 3);
    expect(fresh.map((event) => event.name)).toEqual([name, name, name]);
    expect(await take(live, 'jobEvents', 2)).toEqual(fresh.slice(1));
    told.push(...fresh);
  }
  const written = `select xid::text from events order by events.xid desc limit 1`;
  const [{ xid }] = await query(written);
  await app.restart();
  await run('one-more');
  // Without a restore, xids are not counted from an offset.
  const [{ xid: next }] = await query(written);
  expect(Number(next) - Number(xid)).toBeLessThan(10_000);
});

test('events are kept for thirty days, and an older cursor is refused with a reason', async () => {
  await run('early');
  // More than two batches.
  await query(
    `insert into events (id, type, namespace_id, subject, data)
     select 'evt_' || n, 'job.queued', 'ns_x', 'job_x', '{}' from generate_series(1, 2500) n`,
  );
  await query(`update events set timestamp = now() - interval '31 days'`);
  await allSettled();
  await run('late');
  const [{ first: old }] = await query(`select min(seq)::int as first from events`);
  await app.restart();
  await eventually(async () => {
    const [{ n }] = await query(
      `select count(*)::int as n from events where timestamp < now() - interval '30 days'`,
    );
    expect(n).toBe(0);
  });
  const kept = await eventsAfter(0, 3);
  expect(kept.map(({ name }) => name)).toEqual(['late', 'late', 'late']);
  expect(await eventsAfter(kept[0].cursor, 2)).toEqual(kept.slice(1));
  await expect(eventsAfter(old)).rejects.toMatchObject({
    code: 'INVALID_REQUEST',
    message: expect.stringMatching(/older than the retained events/),
  });
  await expect(eventsAfter(99_999_999)).rejects.toThrow(/not the cursor of an event/);
});

test('events are removed in reading order, so that no reader misses an event after its cursor', async () => {
  await run('one');
  await run('two');
  const all = await query('select seq::int as seq from events order by xid, seq');
  // The clock was set back, so an old event follows younger events.
  const late = all.at(-2).seq;
  await query(
    `update events set timestamp = now() - interval '31 days' where seq = $1 or seq = $2`,
    [all[0].seq, late],
  );
  await allSettled();
  expect(await removeOldEvents(app.app.services, 30)).toBe(false);
  const left = await query('select seq::int as seq from events order by xid, seq');
  expect(left).toEqual(all.slice(1));
});

test('an old event that an open transaction holds back is kept, and a new subscription continues', async () => {
  const open = await app.app.services.pool.connect();
  try {
    await open.query('begin');
    await open.query('select pg_current_xact_id()');
    await run('held-back');
    await query(`update events set timestamp = now() - interval '31 days'`);
    expect(await removeOldEvents(app.app.services, 30)).toBe(false);
    expect(await query('select 1 from events')).toHaveLength(3);
    const { live, first } = await subscribeNow();
    await run('next');
    await open.query('commit');
    expect((await first).value?.data?.jobEvents.name).toBe('next');
    await live.return(undefined);
  } finally {
    open.release(true);
  }
});

test('stored idempotent responses are removed after a day, and workers without an attempt after a week', async () => {
  const post = (key: string) => ada.post('/auth/v1/pat', { name: key }, { 'Idempotency-Key': key });
  await post('old');
  await query(`update idempotent_requests set created_at = now() - interval '25 hours'`);
  await post('new');
  const { id: jobId } = await run('worked');
  for (const [id, days] of [
    ['gone', 8],
    ['holding', 8],
    ['silent', 6],
  ] as const)
    await query(
      `insert into workers (id, runner, machines, heartbeat_at) values ($1, 'fake', '[]', now() - make_interval(days => $2))`,
      [id, days],
    );
  await query(
    `insert into job_attempts (id, job_id, number, runner, worker_id, handle) values ('att_x', $1, 9, 'fake', 'holding', '{}')`,
    [jobId],
  );
  await app.restart();
  await eventually(async () => {
    expect(await query('select key from idempotent_requests')).toEqual([{ key: 'new' }]);
    const workers = await query(`select id from workers where length(id) < 10 order by id`);
    expect(workers.map(({ id }) => id)).toEqual(['holding', 'silent']);
  });
  expect(await query('select 1 from workers where length(id) > 10')).toHaveLength(1);
});
