/**
 * `npm run bench:lists [rows] [part of a title]`: pages of lists of a million jobs and a million repositories in one namespace, in each order,
 * with each filter, at the beginning, in the middle and at the end: by number over REST with the exact total, and after a
 * cursor in GraphQL with `totalCount`. Milliseconds of a request, the median of three.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { median } from './repository.ts';
import { start } from './script.ts';

const ROWS = Number(process.argv[2] ?? 1_000_000);
const PART = process.argv[3] ?? '';
const REQUESTS = 3;
const GOAL_MS = 50;
/** Goal for the middle page by number, which scans half of an index. */
const MIDDLE_GOAL_MS = 150;
const TOKEN = 'loam_pat_benchmark_of_lists';

await using cleanup = new AsyncDisposableStack();
const dataDir = await mkdtemp(join(tmpdir(), 'loam-bench-'));
cleanup.defer(() => rm(dataDir, { recursive: true, force: true, maxRetries: 5 }));
const loam = await start(cleanup, 'src/main.ts', [], {
  PORT: '0',
  LOAM_DATA_DIR: dataDir,
  LOAM_ADMIN_TOKEN: TOKEN,
  LOAM_RATE_LIMITS: 'off',
  LOAM_LOG_LEVEL: 'warn',
  LOAM_SSH_PORT: 'off',
  LOAM_RUNNER: 'process',
});
const base = /http:\S+/.exec(loam.greeting)?.[0] as string;
const headers = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' };
const pool = new pg.Pool({ host: join(dataDir, 'postgres/run'), user: 'loam', database: 'loam' });
cleanup.defer(() => pool.end());

type List = {
  table: string;
  path: string;
  filter: string;
  values: (string | null)[];
  sorts: Record<string, string>;
};
type Asked = { sort: string; column: string; order: string; value: string | null };
const LISTS: List[] = [
  {
    table: 'jobs',
    path: '/auth/v1/admin/jobs',
    filter: 'status',
    // Of a hundred jobs 98, 1, and of ten thousand one.
    values: [null, 'succeeded', 'failed', 'running'],
    sorts: {
      created_at: 'created_at',
      started_at: 'started_at',
      completed_at: 'completed_at',
      name: 'name',
    },
  },
  {
    table: 'repositories',
    path: '/auth/v1/repository/admin',
    filter: 'visibility',
    values: [null, 'private', 'public'],
    sorts: {
      created_at: 'created_at',
      updated_at: 'updated_at',
      size: 'size_bytes',
      name: 'name_key',
    },
  },
];

await fill();
console.log(`${ROWS} jobs and ${ROWS} repositories; ms of a request: beginning, middle, end\n`);
const all: number[] = [];
const middles: number[] = [];
for (const list of LISTS)
  for (const [sort, column] of Object.entries(list.sorts))
    for (const order of ['asc', 'desc'])
      for (const value of list.values) {
        const title = `${list.table} by ${sort} ${order}, ${value ?? 'all'}`;
        if (!title.includes(PART)) continue;
        const asked = { sort, column, order, value };
        const rest = await numbered(list, asked);
        const graphql = await sliced(list, asked);
        const [first, middle, last] = rest as [number, number, number];
        middles.push(middle);
        all.push(first, last, ...graphql);
        const [a, b] = [rest, graphql].map((times) => times.map(shown).join(' '));
        console.log(
          `${list.table} by ${sort} ${order}, ${value ?? 'all'}: REST ${a}; GraphQL ${b}`,
        );
      }
for (const [what, times, goal] of [
  ['all but the middle by number', all, GOAL_MS],
  ['the middle by number', middles, MIDDLE_GOAL_MS],
] as const) {
  const late = times.filter((ms) => ms > goal).length;
  console.log(
    `${what}: median ${median(times).toFixed(1)} ms, at most ${Math.max(...times).toFixed(0)}; ${late} of ${times.length} over ${goal} ms`,
  );
}

function shown(ms: number): string {
  return ms.toFixed(ms < 10 ? 1 : 0);
}

async function numbered({ path, filter }: List, { sort, order, value }: Asked): Promise<number[]> {
  const url = `${base}${path}?sort=${sort}&order=${order}${value ? `&${filter}=${value}` : ''}`;
  const { pagination } = (await ask(url)) as { pagination: { total_pages: number } };
  const last = Math.max(1, pagination.total_pages);
  const times: number[] = [];
  for (const page of [1, Math.ceil(last / 2), last])
    times.push(await time(() => ask(`${url}&page=${page}`)));
  return times;
}

async function sliced(list: List, asked: Asked): Promise<number[]> {
  const { table, filter } = list;
  const { sort, order, value } = asked;
  const where = value ? `, ${filter}: ${value.toUpperCase()}` : '';
  const query = `query ($after: String) { namespace(name: "admin") { list: ${table}(after: $after,
    sort: ${sort.toUpperCase()}, order: ${order.toUpperCase()}${where}) { totalCount nodes { id name createdAt } } } }`;
  const times: number[] = [];
  for (const part of [0, 0.5, 0.9999]) {
    const after = part === 0 ? null : await cursorAt(part, list, asked);
    const body = JSON.stringify({ query, variables: { after } });
    times.push(await time(() => ask(`${base}/graphql`, { method: 'POST', body })));
  }
  return times;
}

/** A cursor as the server makes them, of the row after that part of the list. */
async function cursorAt(
  part: number,
  { table, filter }: List,
  { sort, column, order, value }: Asked,
) {
  const { rows } = await pool.query(
    `with page as (select id, ${column} as value from ${table} where $1::text is null or ${filter}::text = $1)
     select * from page order by value ${order} nulls last, id ${order} limit 1
       offset (select floor(count(*) * $2::float8)::bigint from page)`,
    [value, part],
  );
  const [{ id, value: at }] = rows;
  const text = at instanceof Date ? at.toISOString() : at === null ? null : String(at);
  return Buffer.from(JSON.stringify([sort, text, id])).toString('base64url');
}

async function time(work: () => Promise<unknown>): Promise<number> {
  const times: number[] = [];
  for (let i = 0; i < REQUESTS; i++) {
    const begun = performance.now();
    await work();
    times.push(performance.now() - begun);
  }
  return median(times);
}

async function ask(url: string, init: RequestInit = {}): Promise<unknown> {
  const response = await fetch(url, { ...init, headers });
  const body = (await response.json()) as { errors?: unknown };
  if (!response.ok || body.errors) throw new Error(`${url}: ${JSON.stringify(body)}`);
  return body;
}

/** Without triggers, and with the indexes made behind the rows: that takes a tenth of the time. */
async function fill(): Promise<void> {
  const client = await pool.connect();
  await client.query('set session_replication_role = replica');
  const { rows: indexes } = await client.query(
    `select indexrelid::regclass as name, pg_get_indexdef(indexrelid) as made from pg_index
      where indrelid in ('jobs'::regclass, 'repositories'::regclass) and not indisprimary`,
  );
  for (const { name } of indexes) await client.query(`drop index ${name}`);
  const made = `now() - ($1 - n) * interval '30 s'`;
  await client.query(
    `insert into jobs (id, namespace_id, name, status, command, gpu, gpu_count, cpu, memory_gb, disk_gb, region,
        timeout_minutes, retries, cost_per_hour, created_at, started_at, completed_at)
      select 'job_' || lpad(n::text, 26, '0'), s.id, 'job-' || md5(n::text),
        (case when n % 10000 = 2 then 'running' when n % 100 = 0 then 'failed' when n % 100 = 1 then 'cancelled'
          else 'succeeded' end)::"JobStatus",
        'true', 'none', 1, 8, 32, 10, 'us-east-1', 60, 0, 0.288, ${made},
        case when n % 100 <> 1 then ${made} + n * 7919 % 600 * interval '1 s' end,
        case when n % 10000 <> 2 then ${made} + n * 7919 % 900 * interval '1 s' end
      from generate_series(1::bigint, $1) n, namespaces s where s.name = 'admin'`,
    [ROWS],
  );
  await client.query(
    `insert into repositories (id, namespace_id, name, name_key, visibility, default_branch, size_bytes, created_at, updated_at)
      select 'repo_' || lpad(n::text, 26, '0'), s.id, md5(n::text), md5(n::text),
        (case when n % 100 = 0 then 'public' when n % 100 = 1 then 'internal' else 'private' end)::"Visibility",
        'main', n * 7919 % 1000003, ${made}, now() - n * 7919 % 1000003 * interval '30 s'
      from generate_series(1::bigint, $1) n, namespaces s where s.name = 'admin'`,
    [ROWS],
  );
  for (const { made: statement } of indexes) await client.query(statement);
  const { rows: counts } = await client.query(`select to_regclass('list_counts') as name`);
  if (counts[0].name) {
    await client.query('delete from list_counts');
    await client.query(
      `insert into list_counts (namespace_id, list, value, started, completed, n)
        select namespace_id, 'jobs', status::text, started_at is not null, completed_at is not null, count(*)
          from jobs group by 1, 3, 4, 5
        union all select namespace_id, 'repositories', visibility::text, false, false, count(*)
          from repositories group by 1, 3`,
    );
  }
  await client.query('vacuum analyze');
  client.release(true);
}
