/** Lists in every order, with every filter, at every position: pages equal a plain sort, totals equal a count. */
import pg from 'pg';
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from 'vitest';
import { withConnection } from '../../src/platform/database/client.ts';
import { isRolledBackByConflict } from '../../src/platform/database/outage.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';

let app: TestApp;
let member: Client;
let stranger: Client;

/** Enough rows that a page in the middle of a filtered list is far from both ends. */
const JOBS = 4_800;
const ADD_JOBS = `
  insert into jobs (id, namespace_id, name, status, command, gpu, gpu_count, cpu, memory_gb, disk_gb, region,
      timeout_minutes, retries, cost_per_hour, created_at, started_at, completed_at)
    select 'job_' || lpad(n::text, 26, '0'), $1, 'j' || md5(n::text),
      (array['running', 'succeeded', 'failed', 'cancelled'])[1 + n % 4]::"JobStatus", 'true', 'none', 1, 1, 1, 1, 'us-east-1',
      60, 0, 0.1, now() - (n % 700) * interval '1 s',
      case when n % 5 > 0 then now() - (n * 7919 % 900) * interval '1 s' end,
      case when n % 4 > 0 then now() - (n * 7919 % 800) * interval '1 s' end
    from generate_series(1::int, $2) n`;
const ADD_REPOSITORIES = `
  insert into repositories (id, namespace_id, name, name_key, visibility, default_branch, size_bytes, created_at, updated_at)
    select 'repo_' || lpad(n::text, 26, '0'), $1, 'R' || md5(n::text), 'r' || md5(n::text),
      (array['private', 'public', 'internal', 'private'])[1 + n % 4]::"Visibility", 'main', n * 7919 % 300,
      now() - (n % 700) * interval '1 s', now() - (n * 7919 % 900) * interval '1 s'
    from generate_series(1::int, $2) n`;

beforeAll(async () => {
  app = await startApp({ overrides: { runner: fakeRunner({ machines: [] }) } });
  member = await app.user('member');
  stranger = await app.user('stranger');
  const { rows } = await app.pool.query(`select id from namespaces where name = 'member'`);
  await app.pool.query(ADD_JOBS, [rows[0].id, JOBS]);
  await app.pool.query(ADD_REPOSITORIES, [rows[0].id, JOBS]);
});
afterAll(() => app[Symbol.asyncDispose]());

const LISTS = {
  jobs: {
    path: '/auth/v1/member/jobs',
    filter: 'status',
    values: [null, 'running', 'failed', 'timed_out'],
    columns: {
      created_at: 'created_at',
      started_at: 'started_at',
      completed_at: 'completed_at',
      name: 'name',
    },
  },
  repositories: {
    path: '/auth/v1/repository/member',
    filter: 'visibility',
    values: [null, 'public', 'private'],
    columns: {
      created_at: 'created_at',
      updated_at: 'updated_at',
      size: 'size_bytes',
      name: 'name_key',
    },
  },
};

const CASES = Object.entries(LISTS).flatMap(([table, list]) =>
  Object.entries(list.columns).flatMap(([sort, column]) =>
    ['asc', 'desc'].flatMap((order) =>
      list.values.map((value) => ({ ...list, table, sort, column, order, value })),
    ),
  ),
);

test.for(CASES)('$table by $sort, $order, $filter $value', async (asked) => {
  const expected = await checkPages(asked);
  expect(await sliced(asked)).toEqual([expected, expected.length]);
});

/** Reads all pages by number. @returns the ids of the whole list */
async function checkPages(asked: Asked): Promise<string[]> {
  const { table, path, sort, order, filter, value } = asked;
  const expected = await idsOf(asked, 'true');
  const last = Math.max(1, Math.ceil(expected.length / 100));
  const where = value ? `&${filter}=${value}` : '';
  for (const page of new Set([
    1,
    2,
    Math.ceil(last / 3),
    Math.ceil(last / 2),
    Math.ceil((2 * last) / 3),
    last - 1,
    last,
    last + 1,
  ])) {
    if (page < 1) continue;
    const { status, body } = await member.get(
      `${path}?page=${page}&per_page=100&sort=${sort}&order=${order}${where}`,
    );
    expect([status, body.pagination?.total]).toEqual([200, expected.length]);
    expect(body.data.map(({ id }: { id: string }) => id)).toEqual(
      expected.slice(100 * (page - 1), 100 * page),
    );
  }
  if (table === 'repositories') {
    const open = `visibility <> 'private'`;
    const seen = await idsOf(asked, open);
    const { body } = await stranger.get(`${path}?page=2&sort=${sort}&order=${order}${where}`);
    expect(body.pagination.total).toBe(seen.length);
    expect(body.data.map(({ id }: { id: string }) => id)).toEqual(seen.slice(20, 40));
  }
  return expected;
}

type Asked = (typeof CASES)[number];

async function idsOf({ table, column, order, filter, value }: Asked, where: string) {
  const { rows } = await app.pool.query(
    `select r.id from ${table} r join namespaces n on n.id = r.namespace_id
      where n.name = 'member' and ${where} and ($1::text is null or ${filter}::text = $1)
      order by r.${column} ${order} nulls last, r.id ${order}`,
    [value],
  );
  return rows.map(({ id }) => id as string);
}

/** Reads the whole list with GraphQL, page by page, and its total. */
async function sliced({ table, sort, order, filter, value }: Asked) {
  const where = value ? `, ${filter}: ${value.toUpperCase()}` : '';
  const query = `query ($after: String) { namespace(name: "member") { list: ${table}(first: 100, after: $after,
    sort: ${sort.toUpperCase()}, order: ${order.toUpperCase()}${where}) {
      totalCount nodes { id } pageInfo { hasNextPage endCursor } } } }`;
  const ids: string[] = [];
  let [after, total]: [string | null, number] = [null, 0];
  for (;;) {
    const { namespace } = await member.gql(query, { after });
    ids.push(...namespace.list.nodes.map(({ id }: { id: string }) => id));
    total = namespace.list.totalCount;
    if (!namespace.list.pageInfo.hasNextPage) return [ids, total];
    after = namespace.list.pageInfo.endCursor;
  }
}

/** The statements that the server sends from now on, until the test ends. */
function recordStatements(): { name?: string; text: string }[] {
  const statements: { name?: string; text: string }[] = [];
  const { query } = pg.Client.prototype;
  const spy = vi.spyOn(pg.Client.prototype, 'query').mockImplementation(function (
    this: pg.Client,
    ...args: unknown[]
  ) {
    const [statement] = args as [string | { name?: string; text: string }];
    statements.push(typeof statement === 'string' ? { text: statement } : statement);
    return (query as (...all: unknown[]) => void).apply(this, args);
  });
  onTestFinished(() => spy.mockRestore());
  return statements;
}

test('an empty page costs one statement, and knows whether its namespace exists', async () => {
  await app.user('empty');
  const statements = recordStatements();
  const { body } = await stranger.get('/auth/v1/repository/empty');
  expect([body.data, body.pagination.total]).toEqual([[], 0]);
  const beyond = await member.get('/auth/v1/repository/empty?page=3');
  expect([beyond.body.data, beyond.body.pagination.total]).toEqual([[], 0]);
  expect((await member.get('/auth/v1/repository/no-such-namespace')).status).toBe(404);
  expect(statements.filter(({ text }) => text.includes('repeatable read'))).toEqual([]);
});

test('few statements are named, whatever sizes of pages clients request', async () => {
  const statements = recordStatements();
  for (let size = 1; size <= 100; size++)
    for (const page of [1, 2]) {
      const { body } = await member.get(`/auth/v1/repository/member?per_page=${size}&page=${page}`);
      expect(body.data).toHaveLength(size);
    }
  const pages = statements.filter(
    ({ text }) => text.includes('from repositories r') && text.includes('cross join lateral'),
  );
  expect(pages).toHaveLength(200);
  // Seven usual sizes, with and without rows before the page; other sizes have no name.
  expect(new Set(pages.map(({ name }) => name)).size).toBe(2 * 7 + 1);
});

test('a page past the end of a list is empty although the stored total is larger', async () => {
  const add = `insert into list_counts (namespace_id, list, value, started, completed, n)
    select namespace_id, list, value, started, completed, $1 from list_counts where list = 'repositories' and namespace_id =
      (select id from namespaces where name = 'member') limit 1`;
  await app.pool.query(add, [20_000]);
  try {
    const { body } = await member.get('/auth/v1/repository/member?per_page=100&page=60');
    expect(body.data).toEqual([]);
  } finally {
    await app.pool.query(add, [-20_000]);
  }
});

test('totals are exact after concurrent changes, and after rollbacks', async () => {
  const spaces = ['a', 'b'];
  for (const name of spaces) await app.user(name);
  const { rows } = await app.pool.query('select id from namespaces where name = any($1)', [spaces]);
  const ids = rows.map(({ id }) => id as string);
  const pick = <T>(of: readonly T[]) => of[Math.floor(Math.random() * of.length)] as T;
  const changes = {
    jobs: [
      `update jobs set status = 'running', started_at = now() where id = any($1)`,
      `update jobs set status = 'failed', completed_at = now() where id = any($1)`,
      `update jobs set status = 'queued', started_at = null, completed_at = null where id = any($1)`,
      `update jobs set progress = 'x' where id = any($1)`,
      'delete from jobs where id = any($1)',
    ],
    repositories: [
      `update repositories set visibility = 'public' where id = any($1)`,
      `update repositories set visibility = 'internal', namespace_id = (select min(id) from namespaces where name in ('a', 'b')) where id = any($1)`,
      'delete from repositories where id = any($1)',
    ],
  };
  let next = 100_000;
  const change = async (client: pg.PoolClient) => {
    const table = pick(['jobs', 'repositories'] as const);
    if (Math.random() < 0.4) {
      next += 10;
      const add = (table === 'jobs' ? ADD_JOBS : ADD_REPOSITORIES).replace(
        'generate_series(1::int, $2)',
        'generate_series($2::int, $2::int + 4)',
      );
      await client.query(add, [pick(ids), next]);
      return;
    }
    // Skips rows that another transaction changes, so that transactions contend only for the counts.
    const found = await client.query(
      `select id from ${table} where namespace_id = any($1) order by random() limit 3 for update skip locked`,
      [ids],
    );
    await client.query(pick(changes[table]), [found.rows.map(({ id }) => id)]);
  };
  // Two transactions may lock the counters of two namespaces in opposite order, also at commit. PostgreSQL ends one of them,
  // which is one more rollback. The counts of lists themselves must never cause a conflict.
  const isAllowedConflict = (error: { where?: string }) =>
    isRolledBackByConflict(error) && !/list_counts/.test(`${error.where}`);
  const work = async () => {
    for (let round = 0; round < 60; round++)
      await withConnection(app.pool, async (client) => {
        await client.query('begin');
        await change(client);
        await client.query(Math.random() < 0.8 ? 'commit' : 'rollback');
      }).catch((error) => {
        if (!isAllowedConflict(error)) throw error;
      });
  };
  await Promise.all([work(), work(), work(), work(), work(), work()]);

  const counted = await app.pool.query(`
    select list, namespace_id, value, started, completed, sum(n)::int as n from list_counts
      group by 1, 2, 3, 4, 5 having sum(n) <> 0 order by 1, 2, 3, 4, 5`);
  const real = await app.pool.query(`
    select 'jobs' as list, namespace_id, status::text as value, started_at is not null as started,
        completed_at is not null as completed, count(*)::int as n from jobs group by 1, 2, 3, 4, 5
      union all select 'repositories', namespace_id, visibility::text, false, false, count(*)::int
        from repositories group by 1, 2, 3, 4, 5 order by 1, 2, 3, 4, 5`);
  expect(counted.rows).toEqual(real.rows);
  expect(real.rows.length).toBeGreaterThan(10);
  // The rows of counts were compacted now and then.
  const { rows: kept } = await app.pool.query('select count(*)::int as n from list_counts');
  expect(kept[0].n).toBeLessThan(1_500);
});
