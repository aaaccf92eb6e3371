/** The event feed of a namespace: which events a viewer sees, in pages and in the subscription. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readFeedPage } from '../../src/platform/events/feed-page.ts';
import { followEvents } from '../../src/platform/events/read.ts';
import { eventually } from '../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { remove, submit, until } from '../support/submit.ts';
import { take, viaYoga } from '../support/subscribe.ts';

let app: TestApp;
let ada: Client;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
  for (const name of ['code', 'other']) await ada.post('/auth/v1/repository/ada', { name });
  for (const [name, repo] of [
    ['one', 'ada/code'],
    ['two', 'ada/other'],
  ] as const) {
    await submit(ada, { namespace: 'ada', name, repo, command: 'exit 0' });
    await until(ada, 'ada', name, 'SUCCEEDED');
  }
});
afterAll(() => app[Symbol.asyncDispose]());

type Event = {
  id: string;
  cursor: number;
  type: string;
  subject: string;
  namespace: string;
  payload: Record<string, unknown> | null;
};
type Page = {
  nodes: Event[];
  edges: { cursor: string }[];
  pageInfo: { hasNextPage: boolean; endCursor: string | null };
};

const FIELDS = 'id cursor type timestamp namespace subject payload';

/** Waits until no event is held back, which open transactions of tests in other processes can cause as well. */
const settled = () =>
  eventually(async () => {
    const { rows } = await app.pool.query('select from events where xid >= event_horizon()');
    expect(rows).toEqual([]);
  });

async function page(client: Client, args: string): Promise<Page> {
  await settled();
  const data = await client.gql(
    `{ namespace(name: "ada") { events${args} { nodes { ${FIELDS} } edges { cursor } pageInfo { hasNextPage endCursor } } } }`,
  );
  return data.namespace.events;
}

const insert = (count: number, type: string, namespaceId: string) =>
  app.pool.query(
    `insert into events (id, type, namespace_id, subject, data)
     select 'evt_' || gen_random_uuid(), $2, $3, 'job_x', '{"job": {"name": "x", "namespace": "ada"}}' from generate_series(1, $1)`,
    [count, type, namespaceId],
  );
const namespaceId = async (name: string) =>
  (await app.pool.query('select id from namespaces where name = $1', [name])).rows[0].id as string;

test('a page shows events as webhooks send them, in both orders', async () => {
  const all = await page(ada, '(first: 100)');
  expect(all.nodes.map(({ type }) => type)).toEqual([
    'JOB_COMPLETED',
    'JOB_RUNNING',
    'JOB_QUEUED',
    'JOB_COMPLETED',
    'JOB_RUNNING',
    'JOB_QUEUED',
    'REPOSITORY_CREATED',
    'REPOSITORY_CREATED',
  ]);
  const { body: job } = await ada.get('/ada/job/two');
  expect(all.nodes[0]).toMatchObject({ subject: job.id, namespace: 'ada', payload: job });
  const { body: repository } = await ada.get(`/auth/v1/repository/ada/${all.nodes[7]?.subject}`);
  const { clone_url: _clone, ssh_url: _ssh, collaborators: _some, ...held } = repository;
  expect(all.nodes[7]?.payload).toEqual(held);

  const oldest = await page(ada, '(first: 100, order: ASC)');
  expect(oldest.nodes).toEqual(all.nodes.toReversed());
  const first = await page(ada, '(first: 3)');
  const next = await page(ada, `(first: 100, after: "${first.pageInfo.endCursor}")`);
  expect([...first.nodes, ...next.nodes]).toEqual(all.nodes);
  expect([first.pageInfo.hasNextPage, next.pageInfo.hasNextPage]).toEqual([true, false]);
  expect(first.edges.map(({ cursor }) => Number(cursor))).toEqual(
    first.nodes.map(({ cursor }) => cursor),
  );
  // One event type of the feed stands for several types of the outbox.
  await app.pool.query(
    `update events set type = 'job.timed_out' where type = 'job.succeeded' and data->'job'->>'name' = 'one'`,
  );
  const failed = await page(ada, '(types: [JOB_FAILED, REPOSITORY_PUSHED])');
  expect(failed.nodes.map(({ payload }) => payload?.name)).toEqual(['one']);
  await app.pool.query(`update events set type = 'job.succeeded' where type = 'job.timed_out'`);

  for (const args of ['(after: "x")', '(after: "99999999")', '(first: 101)']) {
    const { errors } = await ada.graphql(
      `{ namespace(name: "ada") { events${args} { nodes { id } } } }`,
    );
    expect(errors?.[0]?.extensions.code, args).toBe('INVALID_REQUEST');
  }
});

test('a credential sees only events of jobs and repositories that it may read', async () => {
  const bob = await app.user('bob');
  const repositories = await ada.gql(
    '{ namespace(name: "ada") { repositories { nodes { id name } } } }',
  );
  const { id: code } = repositories.namespace.repositories.nodes.find(
    ({ name }: { name: string }) => name === 'code',
  );
  const pat = async (json: object) => {
    const { body } = await ada.post('/auth/v1/pat', { name: crypto.randomUUID(), ...json });
    return app.client(`Bearer ${body.token}`);
  };
  const kinds = async (client: Client) =>
    new Set((await page(client, '(first: 100)')).nodes.map(({ type }) => type.split('_')[0]));
  const jobs = await pat({ scopes: ['job:read'] });
  expect(await kinds(jobs)).toEqual(new Set(['JOB']));
  expect(await kinds(await pat({ scopes: ['repo:read'] }))).toEqual(new Set(['REPOSITORY']));

  const narrowed = await pat({ repositories: [code] });
  const seen = (await page(narrowed, '(first: 100)')).nodes;
  expect(seen.map(({ payload }) => payload?.name)).toEqual(['one', 'one', 'one', 'code']);
  const live = viaYoga(
    narrowed,
    'subscription { events(namespaces: ["ada"], after: 0) { id payload } }',
  );
  expect((await take(live, 'events', 4)).map(({ id }) => id)).toEqual(
    seen.map(({ id }) => id).toReversed(),
  );

  const refusals = [
    [bob, ''],
    [await pat({ scopes: ['webhook:admin'] }), ''],
    [jobs, 'types: [REPOSITORY_PUSHED]'],
  ] as const;
  for (const [client, types] of refusals) {
    const { data, errors } = await client.graphql(
      `{ namespace(name: "ada") { events(first: 1 ${types}) { nodes { id } } } }`,
    );
    expect([data.namespace.events, errors?.[0]?.extensions.code]).toEqual([
      null,
      'PERMISSION_DENIED',
    ]);
    const followed = viaYoga(
      client,
      `subscription { events(namespaces: ["ada"] ${types}) { id } }`,
    );
    await expect(take(followed, 'events')).rejects.toMatchObject({ code: 'PERMISSION_DENIED' });
  }
});

test('a removed member gets an error, and no further events', async () => {
  const eve = await app.user('eve');
  await app.organization('acme', { eve: 'READ' });
  const live = viaYoga(eve, 'subscription { events(namespaces: ["acme"]) { id } }');
  const { waiters } = app.app.services.bus;
  const first = live.next();
  await eventually(() => expect(app.app.services.bus.waiters).toBeGreaterThan(waiters));
  await app.admin.gql(
    `mutation { removeMember(input: {namespace: "acme", username: "eve"}) { id } }`,
  );
  expect((await first).value?.errors?.[0].extensions.code).toBe('PERMISSION_DENIED');
  expect((await live.next()).done).toBe(true);
});

test('a subscription continues after a page, with each event once, and shows deletions', async () => {
  const newest = (await page(ada, '(first: 1)')).nodes[0];
  const following = (after: number) =>
    viaYoga(
      ada,
      `subscription { events(namespaces: ["ada"], after: ${after}, types: [JOB_QUEUED, JOB_COMPLETED, JOB_DELETED]) { id cursor type subject } }`,
    );
  const live = take(following(newest?.cursor ?? 0), 'events', 3);
  const { id } = await submit(ada, {
    namespace: 'ada',
    name: 'three',
    repo: 'ada/code',
    command: 'exit 0',
  });
  await until(ada, 'ada', 'three', 'SUCCEEDED');
  await remove(ada, 'ada', 'three');
  const told = await live;
  expect(told.map(({ type, subject }) => [type, subject])).toEqual(
    ['JOB_QUEUED', 'JOB_COMPLETED', 'JOB_DELETED'].map((type) => [type, id]),
  );
  expect(await take(following(told[0].cursor), 'events', 2)).toEqual(told.slice(1));
});

test('a page costs the same if only few of many events match', async () => {
  const before = (await page(ada, '(first: 1)')).nodes[0];
  await insert(2_500, 'job.running', await namespaceId('ada'));
  const pages: Page[] = [];
  for (let after = ''; ; ) {
    const one = await page(ada, `(first: 2, types: [JOB_DELETED] ${after})`);
    pages.push(one);
    if (!one.pageInfo.hasNextPage) break;
    after = `after: "${one.pageInfo.endCursor}"`;
  }
  expect(pages.map(({ nodes }) => nodes.length)).toEqual([0, 0, 1]);
  expect(pages.at(-1)?.nodes[0]?.id).toBe(before?.id);
});

test('a page skips no event that becomes visible while the page is read', async () => {
  const { services } = app.app;
  const namespace = `ns_${randomUUID()}`;
  // A page scans 1,000 events: 900 fit in one page, but not with the 201 that arrive during the read.
  await insert(900, 'job.running', namespace);
  await settled();
  let hasRead = false;
  const db = new Proxy(services.db, {
    get(target, name) {
      if (name !== '$queryRaw') return Reflect.get(target, name);
      return async (...query: Parameters<typeof target.$queryRaw>) => {
        const rows = await target.$queryRaw(...query);
        if (!hasRead && String(query[0]).includes('looked_at')) {
          hasRead = true;
          await insert(1, 'job.deleted', namespace);
          await insert(200, 'job.running', namespace);
          await settled();
        }
        return rows;
      };
    },
  });
  const selection = { namespaceId: namespace, types: ['job.deleted'], repositories: null };
  const read = (after: string | null, from = services.db) =>
    readFeedPage({ db: from }, selection, { first: 2, order: 'asc', after });
  const { items, endCursor } = await read(null, db);
  expect([items, hasRead]).toEqual([[], true]);
  expect((await read(endCursor)).items).toHaveLength(1);
});

test('subscribers of the same namespaces share one poller, even if one subscriber is slow', async () => {
  const { services } = app.app;
  // Counts only reads that found events: an open transaction in any database of the PostgreSQL cluster causes further reads.
  let reads = 0;
  const db = new Proxy(services.db, {
    get(target, name) {
      if (name !== '$queryRaw') return Reflect.get(target, name);
      return async (...query: Parameters<typeof target.$queryRaw>) => {
        const rows = (await target.$queryRaw(...query)) as { settled: boolean | null }[];
        if (rows.some(({ settled }) => settled)) reads++;
        return rows;
      };
    },
  });
  const abort = new AbortController();
  const shared = `ns_${randomUUID()}`;
  const too = `ns_${randomUUID()}`;
  const query = { namespaceIds: [shared, too], prefix: '', after: null };
  const seen = Array.from({ length: 200 }, () => [] as string[]);
  const { waiters } = services.bus;
  // Turns of the event loop in which subscribers receive events.
  const turns = new Set<number>();
  let turn = 0;
  const running = seen.map(async (ids) => {
    for await (const { id } of followEvents({ ...services, db }, query, abort.signal)) {
      ids.push(id);
      turns.add(turn);
    }
  });
  // Takes one event, and then none until more events have arrived than the list keeps.
  const slow = followEvents({ ...services, db }, query, abort.signal);
  const first = slow.next();
  // Each of the 201 subscribers has its cursor when it waits. The shared poller waits for two namespaces.
  await eventually(() => expect(services.bus.waiters).toBe(waiters + 201 + 2));
  const write = async (count: number, namespace: string) => {
    await insert(count, 'job.queued', namespace);
    await app.pool.query(`select pg_notify('loam', 'event:${namespace}:job_x')`);
  };
  reads = 0;
  const counting = (async () => {
    while (!abort.signal.aborted) {
      turn++;
      await new Promise(setImmediate);
    }
  })();
  await write(1, shared);
  // An open transaction in the database of any test holds events back, for example while a database is cloned.
  await eventually(() => expect(seen.every(({ length }) => length === 1)).toBe(true));
  // Other work runs before all subscribers are served.
  expect(turns.size).toBeGreaterThan(2);
  const slowIds = [(await first).value?.id];
  // One read for all subscribers instead of one read each. Some subscribers may have caught up with reads of their own.
  expect(reads).toBeLessThan(20);
  for (let n = 0; n < 4; n++) await write(300, n % 2 ? too : shared);
  await eventually(() => expect(seen.every(({ length }) => length === 1_201)).toBe(true));
  for await (const { id } of slow) if (slowIds.push(id) === 1_201) break;
  const { rows } = await app.pool.query(
    `select id from events where namespace_id in ($1, $2) order by xid, seq`,
    [shared, too],
  );
  const expected = rows.map(({ id }) => id);
  expect(slowIds).toEqual(expected);
  for (const ids of seen) expect(ids).toEqual(expected);
  abort.abort();
  await Promise.all([...running, counting]);
});

test('subscribers that join while events are written receive each event once', async () => {
  const { services } = app.app;
  const ns = 'ns_busy';
  const abort = new AbortController();
  let writing = true;
  const { rows: last } = await app.pool.query('select max(seq)::int as seq from events');
  const writer = (async () => {
    for (let n = 0; n < 60; n++) {
      await insert(7, 'job.queued', ns);
      await app.pool.query(`select pg_notify('loam', 'event:${ns}:job_x')`);
    }
    writing = false;
  })();
  const seen: string[][] = [];
  const running: Promise<void>[] = [];
  while (writing && seen.length < 100) {
    const ids: string[] = [];
    seen.push(ids);
    const query = { namespaceIds: [ns], prefix: '', after: last[0].seq };
    running.push(
      (async () => {
        for await (const { id } of followEvents(services, query, abort.signal)) ids.push(id);
      })(),
    );
    await new Promise(setImmediate);
  }
  await writer;
  await eventually(() => expect(seen.every(({ length }) => length >= 420)).toBe(true));
  const { rows } = await app.pool.query(
    `select id from events where namespace_id = $1 order by xid, seq`,
    [ns],
  );
  for (const ids of seen) expect(ids).toEqual(rows.map(({ id }) => id));
  abort.abort();
  await Promise.all(running);
});
