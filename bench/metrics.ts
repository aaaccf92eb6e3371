/**
 * `npm run bench:metrics`: the server's CPU for a point of a metric, against that for a line of a log: two jobs print 1,000 a second
 * for 20 s, one after the other, in turns. Then the time to read a metric of a million points for a chart, and as CSV.
 */
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { appendLines } from '../src/jobs/logs/append.ts';
import { compactMetrics } from '../src/jobs/metrics/compaction.ts';
import { encodePage, type Series } from '../src/jobs/metrics/series.ts';
import type { LogCursor } from '../src/runners/runner.ts';
import { cpuSecondsOf } from './process.ts';
import { median, openBench, TOKEN } from './repository.ts';

const TURNS = 3;
const SECONDS = 20;
const PER_SECOND = 1_000;
const PRINTED = SECONDS * PER_SECOND;
const POINTS = 1_000_000;
const PAGE_POINTS = 10_000;

/** A tenth of a second's output, again and again. */
const pace = (text: string) =>
  `for i in $(seq ${10 * SECONDS}); do printf '${text}'; sleep 0.1; done`;
const VALUES = Array.from({ length: 10 }, (_, at) => `m${at}=0.${at}123456`).join(' ');
const METRICS = pace(`::metric::${VALUES}\\n`.repeat(PER_SECOND / 100));
const LINES = pace(
  '[worker 3] epoch 3 step 4711 loss=0.215000 grad_norm=0.3\\n'.repeat(PER_SECOND / 10),
);

await using bench = await openBench({});
const { server, graphql, folder } = bench;
await graphql(
  'mutation { createRepository(input: {namespace: "admin", name: "code"}) { repository { id } } }',
);
await using cleanup = new AsyncDisposableStack();
const pool = new pg.Pool({
  host: join(folder, 'data/postgres/run'),
  user: 'loam',
  database: 'loam',
  max: 2,
});
cleanup.defer(() => pool.end());

/** @returns microseconds of the server's CPU for each line or point */
async function run(name: string, command: string): Promise<number> {
  const before = await cpuSecondsOf(server.child.pid as number);
  await graphql(
    `mutation { createJob(input: {namespace: "admin", name: "${name}", repo: "admin/code", gpu: NONE, command: ${JSON.stringify(command)}}) { job { id } } }`,
  );
  for (;;) {
    await delay(500);
    const { job } = await graphql(`{ job(namespace: "admin", name: "${name}") { status } }`);
    if (job.status === 'SUCCEEDED') break;
    if (!['QUEUED', 'RUNNING'].includes(job.status)) throw new Error(`the job is ${job.status}`);
  }
  const { rows } = await pool.query('select log_lines, metric_points from jobs where name = $1', [
    name,
  ]);
  const stored = Number(rows[0].log_lines) + Number(rows[0].metric_points);
  if (stored !== PRINTED) throw new Error(`${name} has stored ${stored}`);
  return (((await cpuSecondsOf(server.child.pid as number)) - before) / PRINTED) * 1e6;
}

const [points, lines]: [number[], number[]] = [[], []];
for (let turn = 1; turn <= TURNS; turn++) {
  points.push(await run(`points-${turn}`, METRICS));
  lines.push(await run(`lines-${turn}`, LINES));
}
const show = (all: number[]) =>
  `${median(all).toFixed(1)} µs (${all.map((one) => one.toFixed(1)).join(', ')})`;
console.log(`the server's CPU at ${PER_SECOND} a second, median of ${TURNS}
  a point     ${show(points)}
  a line      ${show(lines)}
  ratio       ${(median(points) / median(lines)).toFixed(2)}×`);

/** Adds a metric of a million points to the first job. */
async function store(): Promise<void> {
  const { rows } = await pool.query(`
    select j.id, a.id as attempt, a.log_cursor from jobs j join job_attempts a on a.job_id = j.id
    where j.name = 'points-1'`);
  const { id, attempt, log_cursor } = rows[0];
  let from = log_cursor as LogCursor | null;
  for (let start = 0; start < POINTS; start += PAGE_POINTS) {
    const series: Series = { steps: [], times: [], values: [] };
    for (let step = start; step < start + PAGE_POINTS; step++) {
      series.steps.push(step);
      series.times.push(1_800_000_000_000 + step * 100 + (step % 7));
      series.values.push(Math.exp(-step / 200_000) + Math.sin(step * 12.9898) / 50);
    }
    const to: LogCursor = { ...from, added: start };
    const metrics = { points: PAGE_POINTS, data: encodePage([{ name: 'big', series }]) };
    const batch = { jobId: id, attemptId: attempt, lines: [], newestTime: null, from, to, metrics };
    await appendLines({ pool }, batch);
    from = to;
  }
  await compactMetrics({ pool }, id);
}

async function timed(work: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  await work();
  return performance.now() - start;
}

const storing = await timed(store);
const { rows: sizes } = await pool.query(
  "select sum(length(data)) as data, sum(length(overview)) as overview from metric_chunks where name = 'big'",
);
const read = (range: string) =>
  graphql(
    `{ job(namespace: "admin", name: "points-1") { metrics(names: ["big"]) { last series(maxPoints: 1000${range}) { steps times values } } } }`,
  );
/** The longest answer to other requests shows how long the main thread is blocked. */
async function longestAnswer(until: Promise<unknown>): Promise<number> {
  let longest = 0;
  let isOver = false;
  void until.then(() => {
    isOver = true;
  });
  while (!isOver) {
    longest = Math.max(longest, await timed(() => fetch(`${server.base}/livez`)));
    await delay(5);
  }
  return longest;
}
const idle = await longestAnswer(delay(3_000));
const all: number[] = [];
const near: number[] = [];
const reading = async () => {
  for (let turn = 0; turn < 10; turn++) {
    all.push(await timed(() => read('')));
    near.push(await timed(() => read(', fromStep: 500000, toStep: 520000')));
  }
};
const longest = await longestAnswer(reading());
const exporting = await timed(async () => {
  const { job } = await graphql('{ job(namespace: "admin", name: "points-1") { metricsUrl } }');
  const response = await fetch(`${job.metricsUrl}&name=big`, {
    headers: { authorization: `Bearer ${TOKEN}` },
  });
  const rows = (await response.text()).trimEnd().split('\n').length - 1;
  if (rows !== POINTS) throw new Error(`the CSV has ${rows} points`);
});
console.log(`a metric of ${POINTS.toLocaleString('en')} points
  stored      ${(storing / 1_000).toFixed(1)} s, ${(Number(sizes[0].data) / POINTS).toFixed(1)} bytes a point and ${(Number(sizes[0].overview) / POINTS).toFixed(1)} for overviews
  a chart     median ${median(all).toFixed(0)} ms for all points, ${median(near).toFixed(0)} for 20,000; another request meanwhile at most ${longest.toFixed(0)} ms, without them ${idle.toFixed(0)}
  as CSV      ${(exporting / 1_000).toFixed(1)} s`);
