/** Beside a transaction that stays open, the order of the queue is written anew, and a claim stays cheap. */
import pg from 'pg';
import { expect, test } from 'vitest';
import { newId } from '../../src/ids.ts';
import { claimJobs } from '../../src/jobs/worker/claim.ts';
import { openRenewal } from '../../src/jobs/worker/renewal.ts';
import { cloneDatabase } from '../support/harness.ts';

/** A namespace in a database without a server, whose queries would count too. */
async function withQueue() {
  const database = await cloneDatabase();
  const pool = new pg.Pool({ connectionString: database.url, max: 1 });
  const other = new pg.Client(database.url);
  await other.connect();
  await pool.query("insert into namespaces (id, name, kind) values ('ada', 'ada', 'organization')");
  return {
    ...{ pool, other },
    add: () =>
      pool.query(
        `insert into jobs (id, namespace_id, name, command, gpu, gpu_count, cpu, memory_gb, disk_gb, region,
           timeout_minutes, retries, cost_per_hour, next_seq)
         select $1, id, $1, 'true', 'none', 1, 8, 32, 10, 'us-east-1', 60, 0, 0.288, 2
         from namespaces where name = 'ada'`,
        [newId('job')],
      ),
    async claim() {
      const claims = await claimJobs(
        { pool },
        {
          workerId: 'test',
          runner: 'fake',
          pools: new Map([['none', 1]]),
          ...{ lines: 10, depth: 10, reserved: [] },
          decide: (lines) =>
            lines.flatMap(({ jobs }) =>
              jobs.map((job) => ({
                job,
                grant: { machine: 'local', cpus: 1, memoryBytes: 1, shared: false },
              })),
            ),
        },
      );
      return claims.length;
    },
    end: () =>
      pool.query(
        `update jobs set status = 'succeeded', attempt_id = null, completed_at = now() where attempt_id is not null`,
      ),
    async generation(): Promise<number> {
      const { rows } = await pool.query('select number from queue_generation');
      return rows[0].number;
    },
    async [Symbol.asyncDispose]() {
      await other.end();
      await pool.end();
      await database.drop();
    },
  };
}

test('a claim reads few rows of the queue, however many were claimed since another transaction began', async () => {
  await using queue = await withQueue();
  const { pool, other } = queue;
  /** Entries of indexes, those of dead versions too. */
  const read = async () => {
    await pool.query('select pg_stat_force_next_flush()');
    const { rows } = await pool.query(
      `select sum(idx_tup_read)::int as entries from pg_stat_user_indexes where relname like 'queue%'`,
    );
    return rows[0].entries;
  };
  await other.query('begin isolation level repeatable read; select count(*) from queue_lines');
  const renewal = openRenewal({ pool }, 10);
  const costs: number[] = [];
  for (let i = 0; i < 200; i++) {
    await queue.add();
    const before = await read();
    const claims = await queue.claim();
    costs.push((await read()) - before);
    await renewal.claimed(claims);
    await queue.end();
  }
  expect(await queue.generation()).toBe(20);
  expect(Math.max(...costs)).toBeLessThan(100);
  await other.query('rollback');
});

test('nothing is written anew while a namespace is being deleted, and its jobs wait on if it stays', async () => {
  await using queue = await withQueue();
  const { pool, other } = queue;
  const renewal = openRenewal({ pool }, 1);
  await queue.add();
  await renewal.claimed(1);
  expect(await queue.generation()).toBe(1);
  for (const table of ['queue_lines', 'queue_shares']) {
    await other.query(`begin; delete from ${table}`);
    await renewal.claimed(1);
    await other.query('rollback');
    expect(await queue.generation()).toBe(1);
  }
  // A job that is being queued, and counted in the number that it has read.
  await other.query(`begin; set constraints all immediate;
    insert into jobs select (jsonb_populate_record(j, '{"id": "job_b", "name": "b"}')).* from jobs j`);
  await renewal.claimed(1);
  expect(await queue.generation()).toBe(1);
  await other.query('commit');
  await renewal.claimed(1);
  expect(await queue.generation()).toBe(2);
  expect(await queue.claim()).toBe(2);
});

test('what was counted in an earlier generation goes on in the present one', async () => {
  await using queue = await withQueue();
  const { pool } = queue;
  const renewal = openRenewal({ pool }, 1);
  await queue.add();
  await queue.claim();
  // Nothing of the namespace waits, so its rows are left behind, while it holds a job.
  await renewal.claimed(1);
  await queue.add();
  const { rows } = await pool.query(
    'select l.generation, l.waiting, l.held, s.held as share from queue_lines l join queue_shares s using (namespace_id)',
  );
  expect(rows).toEqual([{ generation: 1, waiting: 1, held: 1, share: 1 }]);
  await queue.claim();
  await renewal.claimed(1);
  await queue.end();
  const { rows: shares } = await pool.query('select generation, held from queue_shares');
  expect(shares).toEqual([{ generation: 2, held: 0 }]);
});
