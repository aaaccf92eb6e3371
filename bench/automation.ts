/**
 * `npm run bench:automation`: an array of 10,000 jobs is created, listed, and run by a runner that does nothing; and the duration
 * of a claim beside 100,000 jobs that wait for others against the same claim without them, in alternating rounds; and the time from
 * a push to the first line of the job that it starts, against a job that is created over REST right after the same push.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { createApp } from '../src/app.ts';
import { readConfig } from '../src/base/config/config.ts';
import { createLog } from '../src/base/log.ts';
import { admit, findClaimablePools } from '../src/jobs/queue/admission.ts';
import { claimJobs } from '../src/jobs/queue/claim.ts';
import { inPoolTransaction, openDatabase } from '../src/platform/database/client.ts';
import { eventually } from '../test/support/eventually.ts';
import { fakeRunner } from '../test/support/fake-runner.ts';
import { Client } from '../test/support/harness.ts';
import { createJob, firstLine } from './jobs.ts';
import { median, openBench, TOKEN } from './repository.ts';

const SIZE = Number(process.argv[2] ?? 10_000);
const BLOCKED = 100_000;
const ROUNDS = 4;
const CLAIMS = 300;
const NAMESPACES = 100;
const WARM_UPS = 20;
const PAIRS = 40;
const MACHINES = [{ id: 'local', cpus: 1_000, memoryBytes: 2 ** 43, gpus: {} }];

await using cleanup = new AsyncDisposableStack();
const dir = await mkdtemp(join(tmpdir(), 'loam-bench-'));
cleanup.defer(() => rm(dir, { recursive: true, force: true, maxRetries: 5 }));
const database = await openDatabase({ kind: 'embedded' }, join(dir, 'postgres'));
cleanup.defer(() => database.close());
const pool = new pg.Pool({ ...database.target, max: 4, pipeline: true });
cleanup.defer(() => pool.end());
if (!('host' in database.target)) throw new Error('the embedded PostgreSQL listens on a socket');
const { host, user, database: name } = database.target;

await runArray(`postgresql://${user}@localhost/${name}?host=${encodeURIComponent(host)}`);
await compareClaims();
await comparePushes();

async function runArray(databaseUrl: string): Promise<void> {
  const config = readConfig({
    PORT: '0',
    LOAM_SSH_PORT: 'off',
    LOAM_DATA_DIR: join(dir, 'data'),
    LOAM_ADMIN_TOKEN: TOKEN,
    LOAM_JOB_SLOTS: '100',
    LOAM_RATE_LIMITS: 'off',
    DATABASE_URL: databaseUrl,
  });
  const runner = fakeRunner({ images: true });
  await using app = await createApp(config, { log: createLog('silent'), runner });
  const client = new Client(app.address, `Bearer ${TOKEN}`);
  const create = (name: string, size: number) =>
    client.gql('mutation ($input: CreateJobInput!) { createJob(input: $input) { job { id } } }', {
      input: {
        namespace: 'admin',
        name,
        command: 'exit 0',
        image: 'debian:12',
        gpu: 'NONE',
        array: { size },
      },
    });
  // The first connections, query plans and JIT compilation do not count.
  await create('warm', 10);
  const created = await seconds(() => create('sweep', SIZE));
  console.log(`array of ${SIZE} created  ${created.toFixed(2)} s`);
  const finished = seconds(() =>
    eventually(async () => {
      const { rows } = await pool.query<{ n: number }>(
        `select count(*)::int as n from jobs where status = 'succeeded'`,
      );
      if ((rows[0]?.n ?? 0) < SIZE + 10) throw new Error('some have not ended');
    }, 600_000),
  );
  const listed = await milliseconds(() =>
    client.gql(`{ namespace(name: "admin") { jobs(first: 50, foldArrays: true) {
      nodes { name array { size counts { status count } } } } } }`),
  );
  console.log(`listed with one row for the array, while it runs  ${listed}`);
  const paged = await milliseconds(() => client.get('/auth/v1/seed/admin/jobs?per_page=100'));
  console.log(`100 of its jobs listed by REST, while it runs     ${paged}`);
  const ran = await finished;
  console.log(`run by the fake runner  ${ran.toFixed(1)} s, ${(SIZE / ran).toFixed(0)} a second`);
}

async function seconds(work: () => Promise<unknown>): Promise<number> {
  const begun = performance.now();
  await work();
  return (performance.now() - begun) / 1000;
}

async function milliseconds(work: () => Promise<unknown>): Promise<string> {
  const taken: number[] = [];
  for (let i = 0; i < 50; i++) taken.push((await seconds(work)) * 1000);
  return shown(taken);
}

async function compareClaims(): Promise<void> {
  await pool.query(
    `insert into namespaces (id, name, kind)
     select 'ns_' || n, 'bench-' || n, 'organization' from generate_series(1, $1) n`,
    [NAMESPACES],
  );
  await pool.query('create sequence bench_jobs');
  const taken: Record<'without' | 'with', number[]> = { without: [], with: [] };
  for (let round = 0; round < ROUNDS; round++)
    for (const side of ['without', 'with'] as const) {
      await enqueue(side === 'with' ? BLOCKED : 0);
      // The first claims plan their statements.
      taken[side].push(...(await claimOneByOne()).slice(CLAIMS / 10));
    }
  console.log(`one claim  ${shown(taken.without)}`);
  console.log(`one claim, beside ${BLOCKED} blocked jobs  ${shown(taken.with)}`);
  const ratio = quantile(taken.with, 99) / quantile(taken.without, 99);
  console.log(`  p99 ${ratio.toFixed(2)} ×`);
}

/** Replaces the queue. Without the triggers, which count the jobs one by one: their cost belongs to the creation of jobs. */
async function enqueue(blocked: number): Promise<void> {
  await inPoolTransaction(pool, async (client) => {
    await client.query('set local session_replication_role = replica');
    await client.query('delete from jobs; delete from job_attempts; delete from queue_lines');
    await client.query('delete from queue_shares');
    await client.query(
      `insert into jobs (id, namespace_id, name, command, gpu, gpu_count, cpu, memory_gb, disk_gb, region,
         timeout_minutes, retries, cost_per_hour, progress, blocked, watched)
       select 'job_' || lpad(n::text, 12, '0'), 'ns_' || (1 + n % $3::int), 'job' || n, 'true',
         'none', 1, 8, 32, 10, 'us-east-1', 60, 0, 0.288, 'waiting', i <= $1::int, i <= $1::int
       from (select nextval('bench_jobs') as n, i from generate_series(1, $1::int + $2::int) i) numbers`,
      [blocked, CLAIMS * 2, NAMESPACES],
    );
    await client.query('insert into queue_shares (namespace_id) select id from namespaces');
    await client.query(
      `insert into queue_lines (namespace_id, gpu, region, waiting, open, head)
       select namespace_id, gpu, region, count(*), true, min(id) from jobs
       where status = 'queued' and attempt_id is null and not blocked group by namespace_id, gpu, region`,
    );
  });
  await pool.query('vacuum analyze jobs, queue_lines, queue_shares');
  // The writes of the insertion must not go on during the claims.
  await pool.query('checkpoint');
}

/** Each job is ended before the next claim. */
async function claimOneByOne(): Promise<number[]> {
  const input = { machines: MACHINES, slots: 10, slotsFree: 1, held: [] };
  const taken: number[] = [];
  for (let i = 0; i < CLAIMS; i++) {
    const begun = performance.now();
    const [claim] = await claimJobs(
      { pool },
      {
        workerId: 'bench',
        runner: 'fake',
        pools: findClaimablePools(input).pools,
        maxQueues: 1,
        maxJobsPerQueue: 1,
        reserved: [],
        decide: (queues, reserved) => admit({ ...input, elsewhere: [], queues, reserved }).admitted,
      },
    );
    taken.push(performance.now() - begun);
    if (!claim) throw new Error('no job was claimed');
    await pool.query(
      `with ended as (update job_attempts set ended_at = now(), outcome = 'exited' where id = $2)
       update jobs set status = 'succeeded', attempt_id = null, completed_at = now() where id = $1`,
      [claim.jobId, claim.attemptId],
    );
  }
  return taken;
}

/** Both sides alternate, and count from the start of `git push` until the line was printed. */
async function comparePushes(): Promise<void> {
  await using bench = await openBench({ LOAM_JOB_NETWORK: 'host' });
  const file = `jobs:\n  first:\n    on: { push: {} }\n    command: echo first line\n`;
  const { workspace, server } = bench;
  for (const name of ['automated', 'plain']) {
    await bench.create(name);
    await workspace.git('.', 'init', '-q', '-b', 'main', name);
  }
  const push = async (name: string, i: number, files: Record<string, string> = {}) => {
    await workspace.commit(name, { ...files, 'a.txt': `${i}` });
    const begun = Date.now();
    await workspace.git(name, 'push', '-q', bench.remote(name), 'HEAD:main');
    return begun;
  };
  const follow = async (job: string) => {
    const { printed, ended } = await eventually(() => firstLine(server.base, job), 10_000);
    await ended;
    return printed;
  };
  const taken: Record<'automated' | 'plain', number[]> = { automated: [], plain: [] };
  for (let i = 1; i <= WARM_UPS + PAIRS; i++) {
    const automated = await push('automated', i, { '.loam/jobs.yml': file });
    const automatedLine = await follow(`first-${i}`);
    const plain = await push('plain', i);
    await createJob(server.base, {
      repo: 'admin/plain',
      name: `plain${i}`,
      command: 'echo first line',
    });
    const plainLine = await follow(`plain${i}`);
    if (i <= WARM_UPS) continue;
    taken.automated.push(automatedLine - automated);
    taken.plain.push(plainLine - plain);
  }
  const [ours, theirs] = [median(taken.automated), median(taken.plain)];
  console.log(
    `push → first line of its job  ${ours} ms; of a job by REST right after it  ${theirs} ms`,
  );
  console.log(`  ${ours - theirs} ms more, in ${PAIRS} pairs`);
}

function quantile(values: readonly number[], percent: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor((sorted.length * percent) / 100))] ?? 0;
}

function shown(values: readonly number[]): string {
  return `p50 ${quantile(values, 50).toFixed(1)} ms, p99 ${quantile(values, 99).toFixed(1)} ms`;
}
