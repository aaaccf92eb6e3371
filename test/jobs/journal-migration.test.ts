/** The migration of logs from a row for each line to pages loses no line. */
import fc from 'fast-check';
import type pg from 'pg';
import { expect, test } from 'vitest';
import { newId } from '../../src/base/ids.ts';
import { type LogEntry, PAGE_ENTRIES } from '../../src/jobs/logs/pages.ts';
import { readLog } from '../../src/jobs/logs/read.ts';
import { beforeMigration } from '../support/before-migration.ts';

const UNBOUNDED = { take: async (bytes: number) => bytes };
const START = Date.UTC(2026, 0, 1);

type Old = { seq: number; kind: 'log' | 'status'; message: string; ms: number };

test('rows become pages, and their size is counted in the namespace', async () => {
  await using earlier = await beforeMigration('journal_pages');
  const { pool } = earlier;
  await pool.query(
    "insert into namespaces (id, name, kind, storage_bytes) values ('ns', 'ada', 'organization', 7)",
  );

  const text = fc.oneof(
    fc.string({ unit: 'grapheme', maxLength: 30 }).map((one) => one.replaceAll('\0', '')),
    fc.integer({ min: 1, max: 66_000 }).map((n) => '"\u0001'.repeat(n / 2)),
    fc.constant(''),
  );
  const row = fc.record({
    // There are gaps in the numbers where a batch was refused.
    skip: fc.oneof({ weight: 9, arbitrary: fc.constant(0) }, fc.nat(50)),
    kind: fc.oneof(
      { weight: 9, arbitrary: fc.constant('log' as const) },
      fc.constant('status' as const),
    ),
    message: text,
    step: fc.integer({ min: -20, max: 100 }),
  });
  const logs: { id: string; rows: Old[]; completed: boolean }[] = [];
  for (const drawn of fc.sample(fc.array(row, { minLength: 1, maxLength: 60 }), {
    numRuns: 15,
    seed: 7,
  })) {
    let [seq, ms] = [0, START];
    const rows = drawn.map(({ skip, kind, message, step }) => {
      seq += 1 + skip;
      ms += step;
      return { seq, kind, message: kind === 'status' ? 'running' : message, ms };
    });
    logs.push({ id: newId('job'), rows, completed: logs.length % 2 === 0 });
  }
  const many = Array.from({ length: 7_000 }, (_, i) => ({
    seq: i + 1,
    kind: 'log' as const,
    message: `${i}`,
    ms: START + i,
  }));
  logs.push({ id: newId('job'), rows: many, completed: true });

  for (const { id, rows, completed } of logs) {
    await pool.query(
      `insert into jobs (id, namespace_id, name, command, gpu, gpu_count, cpu, memory_gb, disk_gb, region,
         timeout_minutes, retries, cost_per_hour, next_seq, completed_at)
       values ($1, 'ns', $1, '', 'none', 0, 2, 1, 1, 'us-east-1', 1, 0, 0, $2, $3)`,
      [id, (rows.at(-1)?.seq ?? 0) + 1, completed ? new Date() : null],
    );
    await insert(pool, id, rows);
  }
  await insert(pool, 'job_deleted_long_ago', [
    { seq: 1, kind: 'log', message: 'orphan', ms: START },
  ]);

  await earlier.migrate();

  for (const { id, rows } of logs) {
    const lines = rows.filter(({ kind }) => kind === 'log');
    const { lines: read } = await readLog({ pool }, id, { tail: 10_000 }, UNBOUNDED);
    expect(read.map(plain)).toEqual(lines.map(({ seq, message, ms }) => ({ seq, message, ms })));
    const since = new Date(START + 500);
    const first = lines.findIndex(({ ms }) => ms > since.getTime());
    const { lines: later } = await readLog({ pool }, id, { tail: 10_000, since }, UNBOUNDED);
    expect(later).toHaveLength(first === -1 ? 0 : lines.length - first);
  }
  const { rows: pages } = await pool.query(
    `select count(*)::int as count, max(last_seq - first_seq + 1)::int as entries,
       count(*) filter (where job_id not in (select id from jobs))::int as orphans from journal_pages`,
  );
  expect(pages[0].entries).toBeLessThanOrEqual(PAGE_ENTRIES);
  expect(pages[0].orphans).toBe(0);

  const bytes = (rows: Old[]) =>
    rows.reduce(
      (sum, { kind, message }) => sum + (kind === 'log' ? Buffer.byteLength(message) + 1 : 0),
      0,
    );
  const counted = logs.map(({ rows, completed }) =>
    completed ? bytes(rows) : bytes(rows) - (bytes(rows) % 65_536),
  );
  const { rows: namespaces } = await pool.query(
    "select storage_bytes from namespaces where id = 'ns'",
  );
  expect(Number(namespaces[0].storage_bytes)).toBe(7 + counted.reduce((sum, one) => sum + one, 0));
  await pool.query('delete from jobs');
  const { rows: left } = await pool.query(
    "select storage_bytes, (select count(*) from journal_pages) as pages from namespaces where id = 'ns'",
  );
  expect(left).toEqual([{ storage_bytes: '7', pages: '0' }]);
});

function plain({ seq, message, timestamp }: LogEntry) {
  return { seq, message, ms: timestamp.getTime() };
}

async function insert(pool: pg.Pool, job: string, rows: Old[]): Promise<void> {
  await pool.query(
    `insert into journal (job_id, seq, kind, timestamp, message)
     select $1, seq, kind::"JournalKind", to_timestamp(ms / 1000), message
     from unnest($2::bigint[], $3::text[], $4::float8[], $5::text[]) as row (seq, kind, ms, message)`,
    [
      job,
      rows.map((r) => r.seq),
      rows.map((r) => r.kind),
      rows.map((r) => r.ms),
      rows.map((r) => r.message),
    ],
  );
}
