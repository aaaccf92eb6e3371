/**
 * `npm run bench:compare [jobs of the namespace]`: the time of a comparison of 1,000 jobs with 20 metrics each, and sorted by a metric,
 * in a namespace of a million jobs. The peer is the SQL statement that reads the same values. Then 1,000 jobs with 200 metrics each,
 * and how long the main thread is blocked. Rows are filled in by SQL. 1,000 jobs of the namespace are enough for a quick look.
 */
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { cpuSecondsOf } from './process.ts';
import { median, openBench } from './repository.ts';

const JOBS = Number(process.argv[2] ?? 1_000_000);
const COMPARED = 1_000;
const TURNS = 10;
const GOAL_MS = 200;

await using bench = await openBench({});
const { server, graphql, folder } = bench;
await using cleanup = new AsyncDisposableStack();
const pool = new pg.Pool({
  host: join(folder, 'data/postgres/run'),
  user: 'loam',
  database: 'loam',
  max: 2,
});
cleanup.defer(() => pool.end());
await fill();

const TABLE = `
  jobs { id name namespace status matrixValues { key value } labels { key value } gpu gpuCount cpu memoryGb startedAt
    runtimeSeconds totalCost artifactBytes }
  isTruncated missing metricNames { name jobs isLowerBetter }`;
const compare = (array: string, fields: string) =>
  graphql(
    `{ compareJobs(jobs: [{ namespace: "admin", filter: { array: "${arrayId(array)}" } }]) { ${fields} } }`,
  );
const peer = () =>
  pool.query(
    `select j.name, m.name, m.last, m.min, m.max from jobs j join job_metrics m on m.job_id = j.id where j.array_id = $1`,
    [arrayId('narrow')],
  );

const table = () => compare('narrow', `${TABLE} metrics { name last min max }`);
const sorted = async () => {
  const { compareJobs } = await table();
  const [metric] = compareJobs.metrics as [{ last: number[] }];
  const rows = compareJobs.jobs.map((job: object, at: number) => ({ job, value: metric.last[at] }));
  rows.sort((a: { value: number }, b: { value: number }) => a.value - b.value);
  if (rows.length !== COMPARED || rows[0].value !== 1) throw new Error('the wrong order');
};
const wide = () => compare('wide', `${TABLE} metrics { name last min max }`);

const [tables, sorts, peers] = [[], [], []] as [number[], number[], number[]];
await table();
/** CPU does not depend on what else the machine does. */
const cpu = () => cpuSecondsOf(server.child.pid as number);
const before = await cpu();
for (let turn = 0; turn < TURNS; turn++) tables.push(await timed(table));
const cpuMs = (((await cpu()) - before) / TURNS) * 1_000;
for (let turn = 0; turn < TURNS; turn++) {
  sorts.push(await timed(sorted));
  peers.push(await timed(peer));
}
const wides: number[] = [];
const longest = await longestAnswer(async () => {
  for (let turn = 0; turn < TURNS; turn++) wides.push(await timed(wide));
});
const idle = await longestAnswer(() => delay(2_000));
const show = (all: number[]) =>
  `median ${median(all).toFixed(0)} ms, at most ${Math.max(...all).toFixed(0)}`;
console.log(`${COMPARED} jobs of ${JOBS.toLocaleString('en')} compared, ${TURNS} times; the goal is ${GOAL_MS} ms
  20 metrics            ${show(tables)}; server CPU ${cpuMs.toFixed(0)} ms; their values by SQL alone ${median(peers).toFixed(0)} ms: ${(median(tables) / median(peers)).toFixed(1)}×
  sorted by a metric    ${show(sorts)}
  200 metrics           ${show(wides)}; another request meanwhile at most ${longest.toFixed(0)} ms, without them ${idle.toFixed(0)}`);

function arrayId(name: string): string {
  return `arr_${(name === 'narrow' ? '1' : '2').padStart(26, '0')}`;
}

async function timed(work: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  await work();
  return performance.now() - start;
}

/** The longest answer to other requests shows how long the main thread is blocked. */
async function longestAnswer(work: () => Promise<unknown>): Promise<number> {
  let isOver = false;
  const done = work().finally(() => {
    isOver = true;
  });
  let slowest = 0;
  while (!isOver) {
    slowest = Math.max(slowest, await timed(() => fetch(`${server.base}/livez`)));
    await delay(5);
  }
  await done;
  return slowest;
}

/** Two arrays in the middle of the jobs, whose metrics are in the order of the jobs. Without triggers. */
async function fill(): Promise<void> {
  const client = await pool.connect();
  await client.query('set session_replication_role = replica');
  for (const name of ['narrow', 'wide'])
    await client.query(
      `insert into job_arrays (id, namespace_id, name, size) select $1, id, $2, $3 from namespaces where name = 'admin'`,
      [arrayId(name), name, COMPARED],
    );
  const half = Math.max(0, Math.floor(JOBS / 2) - 2 * COMPARED);
  await client.query(
    `insert into jobs (id, namespace_id, name, status, command, gpu, gpu_count, cpu, memory_gb, disk_gb, region,
        timeout_minutes, retries, cost_per_hour, created_at, started_at, completed_at, array_id, matrix_values)
      select 'job_' || lpad(n::text, 26, '0'), s.id, 'job-' || n, 'succeeded', 'true', 'none', 1, 8, 32, 10, 'us-east-1',
        60, 0, 0.288, made.at, made.at, made.at,
        case when n > $2 and n <= $2 + $3 then $4 when n > $2 + $3 and n <= $2 + 2 * $3 then $5 end,
        case when n > $2 and n <= $2 + $3 then jsonb_build_array(
          jsonb_build_object('key', 'lr', 'value', (n % 10)::text), jsonb_build_object('key', 'seed', 'value', n::text)) end
      from generate_series(1::bigint, $1) n, namespaces s, lateral (select now() - ($1 - n) * interval '30 s' as at) made
      where s.name = 'admin'`,
    [Math.max(JOBS, 2 * COMPARED), half, COMPARED, arrayId('narrow'), arrayId('wide')],
  );
  for (const [name, metrics, from] of [
    ['narrow', 20, half],
    ['wide', 200, half + COMPARED],
  ] as const)
    await client.query(
      `insert into job_metrics (job_id, name, points, min, max, last, last_step, last_time, last_attempt)
        select 'job_' || lpad(($1 + n)::text, 26, '0'), '${name}/metric-' || m, 1000, 0.1 * n, 3.3 * n, n, 1000, now(), 1
        from generate_series(1::bigint, $2) n, generate_series(1, $3) m`,
      [from, COMPARED, metrics],
    );
  await client.query('analyze jobs, job_metrics');
  client.release(true);
}
