/**
 * `npm run bench:scheduler [claims] [finished]`: jobs claimed and ended per second, ten at once, against graphile-worker with an
 * empty task (without its local queue) on the same PostgreSQL in the same run. The states: 1,000 and 100,000 jobs queued in 100
 * namespaces, beside finished jobs, and beside an open transaction; also the duration of a claim with 10,000 waiting namespaces.
 *
 * In each state, a whole server with a runner that does nothing shows the time from the commit of a small job until the runner
 * gets it, while as many jobs as are queued wait for GPUs that the server does not have.
 *
 * Our side does what the worker does: fair turns, admission by CPU and memory, and an attempt for each job. One statement locks
 * and ends a job, as one statement of graphile-worker deletes it. Other work at the end of a job is not part of the queue.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { Logger as GraphileLogger, run as runGraphile } from 'graphile-worker';
import pg from 'pg';
import { createApp } from '../src/app.ts';
import { readConfig } from '../src/base/config/config.ts';
import { createLog } from '../src/base/log.ts';
import { admit, findClaimablePools, type HeldCapacity } from '../src/jobs/queue/admission.ts';
import { type ClaimResult, claimJobs } from '../src/jobs/queue/claim.ts';
import { MAX_BATCHED_MOVES } from '../src/jobs/record/state.ts';
import {
  inPoolTransaction,
  openDatabase,
  withConnection,
} from '../src/platform/database/client.ts';
import { beginPipeline, pipeline } from '../src/platform/database/statement.ts';
import { batchTransactions } from '../src/platform/database/transaction-batcher.ts';
import { fakeRunner } from '../test/support/fake-runner.ts';
import { TOKEN } from './repository.ts';

const CLAIMS = Number(process.argv[2] ?? 10_000);
const FINISHED = Number(process.argv[3] ?? 1_000_000);
const QUEUED = [1_000, 100_000];
const SLOTS = 10;
const NAMESPACES = 100;
const MANY_NAMESPACES = 10_000;
const SINGLE_CLAIMS = 300;
const COMMITS = 300;
/** A GPU that this machine does not have. */
const ELSEWHERE = 'A100-80GB';
const END = `
  with ended as (
    update jobs set status = 'succeeded', attempt_id = null, completed_at = now()
    where id = $1 returning id
  ) update job_attempts set ended_at = now(), outcome = 'exited', exit_code = 0
    where id = $2 and job_id in (select id from ended)`;
/** Large enough for all jobs, so that slots are the limit. */
const MACHINES = [{ id: 'local', cpus: 1_000, memoryBytes: 2 ** 43, gpus: {} }];

/** The number of small jobs that were committed one by one, for their ids. */
let committed = 0;

await using cleanup = new AsyncDisposableStack();
const dir = await mkdtemp(join(tmpdir(), 'loam-bench-'));
cleanup.defer(() => rm(dir, { recursive: true, force: true, maxRetries: 5 }));
const database = await openDatabase({ kind: 'embedded' }, join(dir, 'postgres'));
cleanup.defer(() => database.close());
// Both sides have the same number of connections.
const pool = new pg.Pool({ ...database.target, max: SLOTS + 1, pipeline: true });
cleanup.defer(() => pool.end());
const end = batchTransactions(
  { runBatch: endAll, runAlone: async (one) => (await endAll([one]))[0] },
  MAX_BATCHED_MOVES,
);
if (!('host' in database.target)) throw new Error('the embedded PostgreSQL listens on a socket');
const { host, user, database: name } = database.target;
const databaseUrl = `postgresql://${user}@localhost/${name}?host=${encodeURIComponent(host)}`;

await addNamespaces(NAMESPACES);
await enqueue(2_000);
await claimAndEnd(2_000);
const before = await graphile(2_000, 2_000);
console.log(`graphile-worker, warm       ${before.toFixed(0)} a second`);

for (const queued of QUEUED) {
  await compare(`${queued} queued`, queued);
  await tellLatency(queued);
}
await compare('100000 queued since the planner last saw an empty queue', 100_000, false);
await addFinished(FINISHED);
await compare(`1000 queued beside ${FINISHED} finished`, 1_000);
await tellLatency(1_000);
{
  const other = await pool.connect();
  await other.query('begin isolation level repeatable read; select count(*) from queue_lines');
  await compare('1000 queued, another transaction open', 1_000);
  // Beside the dead rows of the runs above, which cannot be vacuumed while the transaction is open.
  await tellLatency(1_000);
  await other.query('rollback');
  other.release();
}

await empty();
await enqueue(SINGLE_CLAIMS * 2);
console.log(`one claim, ${NAMESPACES} namespaces waiting    ${await single()}`);
await addNamespaces(MANY_NAMESPACES);
await enqueue(MANY_NAMESPACES + SINGLE_CLAIMS);
console.log(`one claim, ${MANY_NAMESPACES} namespaces waiting  ${await single()}`);
await tellLatency(0);

async function tellLatency(waiting: number): Promise<void> {
  await empty();
  if (waiting > 0) await enqueue(waiting, true, ELSEWHERE);
  console.log(`  commit → the runner is asked, ${waiting} waiting  ${await commitToRunner()}`);
}

/** Alternating rounds of both sides, each with the same numbers of claimed and queued jobs. */
async function compare(what: string, queued: number, analyzed = true): Promise<void> {
  const [ours, theirs]: [number[], number[]] = [[], []];
  for (let round = 0; round < 2; round++) {
    await empty();
    await enqueue(queued + CLAIMS, analyzed);
    ours.push(await claimAndEnd(CLAIMS));
    theirs.push(await graphile(CLAIMS, queued));
  }
  const [our, their] = [mean(ours), mean(theirs)];
  const ratio = (our / their).toFixed(2);
  console.log(
    `${what}\n  ours ${our.toFixed(0)} a second (${list(ours)}), graphile-worker ${their.toFixed(0)} (${list(theirs)}): ${ratio} ×`,
  );
}

function list(values: number[]): string {
  return values.map((value) => value.toFixed(0)).join(', ');
}

function mean(values: number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** Fills slots whenever they are free, and ends claimed jobs at once. @returns jobs per second */
async function claimAndEnd(total: number): Promise<number> {
  const held = new Map<string, HeldCapacity>();
  let [claimed, ended] = [0, 0];
  let wake = () => {};
  const ends: Promise<void>[] = [];
  const begun = performance.now();
  while (ended < total) {
    const claims = claimed < total ? await claimSome(held, SLOTS) : [];
    for (const claim of claims) {
      held.set(claim.attemptId, claim);
      ends.push(
        end(claim).then(() => {
          held.delete(claim.attemptId);
          ended++;
          wake();
        }),
      );
    }
    claimed += claims.length;
    if (claims.length === 0 || held.size >= SLOTS)
      await new Promise<void>((resolve) => {
        wake = resolve;
        if (held.size < SLOTS && claimed < total) resolve();
      });
  }
  const seconds = (performance.now() - begun) / 1000;
  await Promise.all(ends);
  return ended / seconds;
}

function claimSome(held: ReadonlyMap<string, HeldCapacity>, slots: number): Promise<ClaimResult[]> {
  const slotsFree = slots - held.size;
  const input = { machines: MACHINES, slots, slotsFree, held: held.values().toArray() };
  return claimJobs(
    { pool },
    {
      workerId: 'bench',
      runner: 'fake',
      pools: findClaimablePools(input).pools,
      maxQueues: slotsFree,
      maxJobsPerQueue: slotsFree,
      reserved: [],
      decide: (queues, reserved) => admit({ ...input, elsewhere: [], queues, reserved }).admitted,
    },
  );
}

/** Jobs that end in the same tick share a transaction, with a statement for each, as state changes do (`jobs/record/state.ts`). */
async function endAll(ended: readonly ClaimResult[]): Promise<(ClaimResult | undefined)[]> {
  await withConnection(pool, async (client) => {
    const lock = 'select from jobs where id = any ($1) order by id for update skip locked';
    await beginPipeline(client, lock, [ended.map(({ jobId }) => jobId)]);
    await pipeline(client, async (tx) => {
      for (const { jobId, attemptId } of ended)
        await tx.query({ name: 'end', text: END, values: [jobId, attemptId] });
      await tx.query({ text: 'commit' });
    });
  });
  return [...ended];
}

/** Milliseconds of claims of one job each. Each job is released before the next claim. */
async function single(): Promise<string> {
  const taken: number[] = [];
  for (let i = 0; i < SINGLE_CLAIMS; i++) {
    const begun = performance.now();
    const [claim] = await claimSome(new Map(), 1);
    taken.push(performance.now() - begun);
    if (claim) await end(claim);
  }
  return shown(taken);
}

/** @returns jobs per second of graphile-worker, ten at once, each with one statement to claim and one to complete */
async function graphile(total: number, queued: number): Promise<number> {
  const theirs = new pg.Pool({ ...database.target, max: SLOTS + 1 });
  // Required by graphile-worker.
  theirs.on('error', () => {});
  theirs.on('connect', (client) => client.on('error', () => {}));
  let done = 0;
  let begun = 0;
  const { promise, resolve } = Promise.withResolvers<void>();
  const options = {
    pgPool: theirs,
    noHandleSignals: true,
    logger: new GraphileLogger(() => () => {}),
  };
  // Creates its tables.
  const first = await runGraphile({ ...options, concurrency: 1, taskList: { nothing() {} } });
  await first.stop();
  await theirs.query('truncate graphile_worker._private_jobs');
  const add = (count: number) =>
    theirs.query(
      `select count(*) from graphile_worker.add_jobs((
         select array_agg(('nothing', '{}', null, null, null, null, null, null)::graphile_worker.job_spec)
         from generate_series(1, $1)
       ))`,
      [count],
    );
  await add(queued + total);
  await theirs.query('analyze graphile_worker._private_jobs');
  begun = performance.now();
  const runner = await runGraphile({
    ...options,
    concurrency: SLOTS,
    taskList: {
      nothing() {
        if (++done === total) resolve();
      },
    },
  });
  await promise;
  const seconds = (performance.now() - begun) / 1000;
  await runner.stop();
  await theirs.end();
  return total / seconds;
}

/**
 * Creates jobs in turn in all namespaces, as unrelated users do. Without the triggers, which count the jobs one by one: their
 * cost belongs to the creation of jobs.
 * @param analyzed whether the planner has statistics of the jobs
 */
async function enqueue(count: number, analyzed = true, gpu = 'none'): Promise<void> {
  await inPoolTransaction(pool, async (client) => {
    await client.query('set local session_replication_role = replica');
    await client.query(
      `insert into jobs (id, namespace_id, name, command, gpu, gpu_count, cpu, memory_gb, disk_gb, region,
         timeout_minutes, retries, cost_per_hour, progress)
       select 'job_' || lpad(n::text, 12, '0'), ids[1 + n % cardinality(ids)], 'job' || n, 'true',
         $2, 1, 8, 32, 10, 'us-east-1', 60, 0, 0.288, 'waiting'
       from (select nextval('bench_jobs') as n from generate_series(1, $1)) numbers,
         (select array_agg(id) as ids from namespaces where name like 'bench-%') all_of_them`,
      [count, gpu],
    );
    await client.query(
      'insert into queue_shares (namespace_id) select id from namespaces on conflict do nothing',
    );
    await client.query(
      `insert into queue_lines (namespace_id, gpu, region, waiting, open, head)
       select namespace_id, gpu, region, count(*), true, min(id) from jobs
       where status = 'queued' and attempt_id is null group by namespace_id, gpu, region
       on conflict (namespace_id, gpu, region)
       do update set waiting = excluded.waiting, open = true, head = excluded.head`,
    );
  });
  await pool.query(`vacuum ${analyzed ? 'analyze' : ''} jobs, queue_lines, queue_shares`);
}

async function addNamespaces(count: number): Promise<void> {
  await pool.query('create sequence if not exists bench_jobs');
  await pool.query(
    `insert into namespaces (id, name, kind)
     select 'ns_' || n, 'bench-' || n, 'organization' from generate_series(1, $1) n
     on conflict do nothing`,
    [count],
  );
}

/** Finished jobs of a year, which the queue does not count. */
async function addFinished(count: number): Promise<void> {
  await inPoolTransaction(pool, async (client) => {
    await client.query('set local session_replication_role = replica');
    await client.query(
      `insert into jobs (id, namespace_id, name, status, command, gpu, gpu_count, cpu, memory_gb, disk_gb,
         region, timeout_minutes, retries, cost_per_hour, created_at, completed_at)
       select 'job_' || lpad(n::text, 12, '0'), 'ns_' || 1 + n % 100, 'done' || n, 'succeeded', 'true', 'none',
         1, 8, 32, 10, 'us-east-1', 60, 0, 0.288, now() - n * interval '30 s', now()
       from (select nextval('bench_jobs') as n from generate_series(1, $1)) numbers`,
      [count],
    );
    await client.query(
      `insert into job_attempts (id, job_id, number, runner, worker_id, ended_at, outcome)
       select 'att_' || id, id, 1, 'fake', 'bench', now(), 'exited' from jobs where name like 'done%'`,
    );
  });
  await pool.query('vacuum analyze');
}

/** Without the triggers, which would update the row of a queue line once for each of its jobs. */
async function empty(): Promise<void> {
  await inPoolTransaction(pool, async (client) => {
    await client.query('set local session_replication_role = replica');
    await client.query(`delete from jobs where status = 'queued'`);
    await client.query('update queue_lines set waiting = 0, open = false');
  });
  await pool.query('vacuum analyze jobs, queue_lines, queue_shares');
}

async function commitToRunner(): Promise<string> {
  const config = readConfig({
    PORT: '0',
    LOAM_DATA_DIR: join(dir, 'data'),
    LOAM_ADMIN_TOKEN: TOKEN,
    LOAM_JOB_SLOTS: '100',
    DATABASE_URL: databaseUrl,
  });
  const runner = fakeRunner();
  const asked = new Map<string, number>();
  const prepare = runner.prepare;
  runner.prepare = (spec, signal) => {
    asked.set(String(spec.env.JOB_ID), performance.now());
    return prepare(spec, signal);
  };
  await using _app = await createApp(config, { log: createLog('silent'), runner });
  const taken: number[] = [];
  for (let i = 0; i < COMMITS; i++) {
    const id = `job_${String(10 ** 11 + committed++)}`;
    await inPoolTransaction(pool, async (client) => {
      await client.query(
        `insert into jobs (id, namespace_id, name, command, gpu, gpu_count, cpu, memory_gb, disk_gb, region,
           timeout_minutes, retries, cost_per_hour, next_seq)
         values ($1, 'ns_1', $1, 'exit 0', 'none', 1, 8, 32, 10, 'us-east-1', 60, 0, 0.288, 2)`,
        [id],
      );
      await client.query(`select pg_notify('loam', 'queue')`);
    });
    const since = performance.now();
    while (!asked.has(id)) await delay(0.5);
    taken.push((asked.get(id) ?? since) - since);
    // The end of the previous job must not be part of the figure.
    await delay(20);
  }
  // The first connections, query plans and JIT compilation do not count.
  return shown(taken.slice(COMMITS / 10));
}

function shown(values: number[]): string {
  const sorted = values.toSorted((a, b) => a - b);
  const at = (percent: number) =>
    (sorted[Math.min(sorted.length - 1, Math.floor((sorted.length * percent) / 100))] ?? 0).toFixed(
      1,
    );
  return `p50 ${at(50)} ms, p99 ${at(99)} ms`;
}
