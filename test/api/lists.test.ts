/** Lists in every order, with every filter, at every place: the pages are those of a plain sort, the totals those of a count. */
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Prisma } from '../../prisma/generated/client.ts';
import { onConnection } from '../../src/database/client.ts';
import { CUTTING_LOCK, cutLists, readCut } from '../../src/database/list-cuts.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';

let app: TestApp;
let member: Client;
let stranger: Client;

/** So many that a page in the middle of a filtered list is far from its ends. */
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

/** By number. @returns the ids of the whole list */
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

/** All of it as GraphQL has it, page after page, and its total. */
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

describe('cut into ranges', () => {
  beforeAll(async () => {
    while (await cutLists(app.app.services, undefined, { long: 1_000, each: 90 }));
    const { rows } = await app.pool.query('select list, counted from list_cuts');
    expect(rows.filter(({ counted }) => counted)).toHaveLength(8);
  });

  test.for(CASES)('$table by $sort, $order, $filter $value', async (asked) => {
    await checkPages(asked);
  });

  test('a page in the middle passes over the rows of its range alone', async () => {
    const client = await app.pool.connect();
    const { rows } = await client.query(`select id from namespaces where name = 'member'`);
    const counted = {
      list: 'jobs',
      where: Prisma.sql`c.value = any(${['running', 'failed']})`,
    } as const;
    const cut = await readCut(client, counted, rows[0].id, 'name');
    client.release();
    expect(cut?.rows).toBe(JOBS / 2);
    for (const place of [0, JOBS / 4, JOBS / 4 + 1, JOBS / 2 - 1]) {
      const { before, from } = cut?.rangeOf(place) ?? { before: 0 };
      expect(place - before).toBeLessThan(90);
      expect(from === null).toBe(before === 0);
    }
  });

  const SMALL = { long: 50, each: 10 };
  const cutAll = async () => {
    // One that failed holds the lock until PostgreSQL has seen its connection end, and nobody else cuts meanwhile.
    await eventually(async () => {
      const { rows } = await app.pool.query(
        `select pg_try_advisory_lock(${CUTTING_LOCK}), pg_advisory_unlock(${CUTTING_LOCK}) as free`,
      );
      expect(rows).toMatchObject([{ free: true }]);
    });
    while (await cutLists(app.app.services, undefined, SMALL));
  };
  /** A namespace of its own, and what adds repositories to it. */
  async function spaceOf(name: string) {
    await app.user(name);
    const { rows } = await app.pool.query('select id from namespaces where name = $1', [name]);
    const id = rows[0].id as string;
    // The larger, the later.
    const adding = (from: number, to: number) =>
      ADD_REPOSITORIES.replace('(1::int, $2)', `(${from}, ${to}::int)`)
        .replace('n * 7919 % 300', 'n')
        .replace('$1', `'${id}'`);
    const ranges = async (column: 'size_bytes' | 'updated_at') => {
      const found = await app.pool.query(
        `select counted, coalesce(cardinality(numbers), cardinality(times)) as ranges from list_cuts
          where namespace_id = $1 and "column" = $2`,
        [id, column],
      );
      return found.rows[0];
    };
    return { id, adding, ranges };
  }

  test('they are cut again when one range has grown long, also of a list that has not', async () => {
    const { id, adding, ranges } = await spaceOf('grown');
    await app.pool.query(adding(200_001, 200_049));
    await cutAll();
    expect(await ranges('size_bytes')).toBeUndefined();
    await app.pool.query(adding(200_050, 200_060));
    await cutAll();
    expect(await ranges('size_bytes')).toEqual({ counted: true, ranges: 6 });
    await app.pool.query(adding(200_061, 200_090));
    await cutAll();
    expect(await ranges('size_bytes')).toEqual({ counted: true, ranges: 6 });
    await app.pool.query(adding(200_091, 200_120));
    await cutAll();
    expect(await ranges('size_bytes')).toEqual({ counted: true, ranges: 12 });

    // What is pushed to comes last: two thirds are in the range above all others.
    const moved = `update repositories set updated_at = now() + id_of.n * interval '1 ms'
      from (select id, row_number() over (order by id) as n from repositories where namespace_id = $1) as id_of
      where id_of.id = repositories.id and id_of.n <= 80`;
    await app.pool.query(moved, [id]);
    const spread = async () => {
      const { rows } = await app.pool.query(
        `select max(n)::int as most from (
           select sum(n) as n from list_counts where namespace_id = $1 and list = 'repositories/updated_at' group by range) r`,
        [id],
      );
      return rows[0].most as number;
    };
    expect(await spread()).toBeGreaterThan(79);
    await cutAll();
    expect(await spread()).toBeLessThanOrEqual(10);
    expect(await miscounted()).toEqual([]);
  });

  test('what is changed while a list is being cut is counted, however long it stays undecided', async ({
    onTestFinished,
  }) => {
    const { id, adding, ranges } = await spaceOf('undecided');
    await app.pool.query(adding(220_001, 220_050));
    const [gate, writer] = [await app.pool.connect(), await app.pool.connect()];
    for (const client of [gate, writer]) {
      onTestFinished(() => client.release(true));
      // The pool's limit of 30 s would end these transactions on a slow machine.
      await client.query('set idle_in_transaction_session_timeout = 0');
    }
    // The cut is made, and not committed yet, when something is changed that cannot see it.
    await app.pool.query(`
      create function hold_cut() returns trigger language plpgsql as
        $$ begin perform pg_advisory_xact_lock(220); return null; end $$;
      create trigger hold_cut after insert on list_cuts for each row execute function hold_cut()`);
    await gate.query('select pg_advisory_lock(220)');
    const cutting = cutLists(app.app.services, undefined, SMALL);
    await eventually(async () => {
      const waiting = await app.pool.query(
        `select from pg_stat_activity where datname = current_database() and wait_event = 'advisory'`,
      );
      expect(waiting.rowCount).toBe(1);
    });
    await writer.query('begin');
    await writer.query(adding(220_051, 220_060));
    await gate.query('select pg_advisory_unlock(220)');
    const cuts = async () => {
      const at = 'select counted from list_cuts where namespace_id = $1';
      return (await app.pool.query(at, [id])).rows;
    };
    await eventually(async () => expect(await cuts()).toEqual([{ counted: false }]));
    await writer.query('commit');
    await cutting;
    expect(await cuts()).toEqual([{ counted: true }]);
    await app.pool.query('drop trigger hold_cut on list_cuts');
    await cutAll();
    expect(await miscounted()).toEqual([]);

    // A table that is being cleaned up is not written to, however long that takes.
    await gate.query('begin');
    await gate.query('lock table repositories in share update exclusive mode');
    await app.pool.query('update list_cuts set counted = false where namespace_id = $1', [id]);
    await cutAll();
    await gate.query('commit');
    expect(await cuts()).toContainEqual({ counted: true });

    // What is written to for long keeps its ranges, and is cut another time.
    await app.pool.query(adding(220_061, 220_130));
    const before = await ranges('size_bytes');
    await writer.query('begin');
    await writer.query(adding(220_131, 220_132));
    await expect(cutLists(app.app.services, undefined, SMALL)).rejects.toThrow(/for too long/);
    expect(await ranges('size_bytes')).toEqual(before);
    const stopping = new AbortController();
    const stopped = cutLists(app.app.services, stopping.signal, SMALL);
    stopping.abort();
    await expect(stopped).rejects.toThrow(/aborted/);
    await writer.query('rollback');
    await cutAll();
    expect((await ranges('size_bytes')).ranges).toBe(13);
    expect(await miscounted()).toEqual([]);
  });
});

test('totals are exact after changes that are made at once, and those that are undone', async () => {
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
    // Those that another has under way are left to it: what they meet in are the counts.
    const found = await client.query(
      `select id from ${table} where namespace_id = any($1) order by random() limit 3 for update skip locked`,
      [ids],
    );
    await client.query(pick(changes[table]), [found.rows.map(({ id }) => id)]);
  };
  // What is counted of two namespaces may be taken crosswise, at the commit too, which PostgreSQL ends. It is one more that is
  // undone; that two wait for each other for what is counted of lists is what must not be.
  const isCrosswise = (error: { code?: string; where?: string }) =>
    error.code === '40P01' && !/list_counts/.test(`${error.where}`);
  const work = async () => {
    for (let round = 0; round < 60; round++)
      await onConnection(app.pool, async (client) => {
        await client.query('begin');
        await change(client);
        await client.query(Math.random() < 0.8 ? 'commit' : 'rollback');
      }).catch((error) => {
        if (!isCrosswise(error)) throw error;
      });
  };
  const working = Promise.all([work(), work(), work(), work(), work(), work()]);
  let isOver = false;
  const over = () => {
    isOver = true;
  };
  working.then(over, over);
  // Lists are cut meanwhile, again and again. Changes that wait for each other crosswise are ended after a second, two such
  // in a row are longer than a cut waits: it is left to the next one.
  while (!isOver) {
    await app.pool.query('update list_cuts set counted = false where random() < 0.3');
    await cutLists(app.app.services, undefined, { long: 10, each: 10 }).catch((error) => {
      if (!/written to for too long/.test(error.message)) throw error;
    });
  }
  await working;
  await eventually(async () =>
    expect(await cutLists(app.app.services, undefined, { long: 10, each: 10 })).toBe(false),
  );
  expect(await miscounted()).toEqual([]);

  const counted = await app.pool.query(`
    select list, namespace_id, value, started, completed, sum(n)::int as n from list_counts
      where list in ('jobs', 'repositories') group by 1, 2, 3, 4, 5 having sum(n) <> 0 order by 1, 2, 3, 4, 5`);
  const real = await app.pool.query(`
    select 'jobs' as list, namespace_id, status::text as value, started_at is not null as started,
        completed_at is not null as completed, count(*)::int as n from jobs group by 1, 2, 3, 4, 5
      union all select 'repositories', namespace_id, visibility::text, false, false, count(*)::int
        from repositories group by 1, 2, 3, 4, 5 order by 1, 2, 3, 4, 5`);
  expect(counted.rows).toEqual(real.rows);
  expect(real.rows.length).toBeGreaterThan(10);
  // They were added up now and then.
  const { rows: kept } = await app.pool.query(`
    select count(*)::int as n from list_counts where list in ('jobs', 'repositories')`);
  expect(kept[0].n).toBeLessThan(1_500);
});

/** Ranges whose counts differ from those of the rows, in one snapshot. */
async function miscounted(): Promise<unknown[]> {
  const { rows: cuts } = await app.pool.query(
    `select list, "column", case when times is not null then 'times' when texts is not null then 'texts' else 'numbers' end as kind
      from list_cuts where counted group by 1, 2, 3`,
  );
  expect(cuts.length).toBe(8);
  const parts = cuts.map(
    ({ list, column, kind }) => `(
      select g.namespace_id, g.list, g."column", r.${list === 'jobs' ? 'status' : 'visibility'}::text as value,
        width_bucket(r.${column}, g.${kind}) as range, count(*) as n
      from list_cuts g join ${list} r using (namespace_id)
      where g.counted and g.list = '${list}' and g."column" = '${column}' and r.${column} is not null group by 1, 2, 3, 4, 5)`,
  );
  const { rows } = await app.pool.query(`
    with real as (${parts.join(' union all ')}), kept as (
      select c.namespace_id, g.list, g."column", c.value, c.range, sum(c.n) as n
      from list_counts c join list_cuts g on g.namespace_id = c.namespace_id and c.list = g.list || '/' || g."column"
      where g.counted group by 1, 2, 3, 4, 5 having sum(c.n) <> 0
    ) select * from real full join kept using (namespace_id, list, "column", value, range)
      where real.n is distinct from kept.n`);
  return rows;
}
