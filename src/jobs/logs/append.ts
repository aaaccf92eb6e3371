/**
 * Appends log lines to the journal. The sequence is a counter in the job's row, whose lock is held until the commit. So
 * entries become visible in the order of their numbers, and no entry appears before the position of a reader.
 */
import type pg from 'pg';
import { MicrosecondDate, toMicroseconds } from '../../platform/database/times.ts';
import type { LogCursor } from '../../runners/runner.ts';
import { PAGE_COLUMNS, pageRows, toPageColumns } from './columns.ts';
import { COMPACT_AT, compactPages } from './compaction.ts';
import { encodePages, type LogLine } from './pages.ts';

type Append = {
  jobId: string;
  attemptId: string;
  lines: readonly LogLine[];
  /** The time of the newest stored line; null if there is none. */
  after: Date | null;
  /** The position in the runner's log before these lines, and after them. */
  from: LogCursor | null;
  to: LogCursor;
  /** The progress that the program printed with these lines, if any. */
  progress?: string;
  /** Whether the last of the lines ends the log, so that no later output is stored. */
  full?: boolean;
};

/** The size of the job's log, and the storage that its namespace uses. */
export type LogTotals = { lines: number; bytes: number; storageBytes: bigint; until: Date | null };

/**
 * Stores lines and their position in the runner's log in one transaction. After a crash the log is read again from the
 * stored position, so no line is lost or duplicated.
 * @returns null if nothing was stored: the job is deleted, or another worker has stored these lines
 */
export async function appendLines(
  { pool }: { pool: pg.Pool },
  { jobId, attemptId, lines, after, from, to, progress, full = false }: Append,
): Promise<LogTotals | null> {
  const stamped = makeTimesIncrease(lines, after);
  const pages = await encodePages(stamped.map((line) => ({ kind: 'log', ...line })));
  const { rows } = await pool.query<AppendedRow>({
    name: 'loam-append-lines',
    text: APPEND_LINES,
    values: [
      jobId,
      attemptId,
      from,
      to,
      lines.length,
      pages.reduce((sum, { text }) => sum + text, 0),
      progress ?? null,
      full,
      ...toPageColumns(pages),
    ],
  });
  const [row] = rows;
  if (!row) return null;
  if (Number(row.open_pages) >= COMPACT_AT) await compactPages({ pool }, jobId);
  return {
    lines: Number(row.log_lines),
    bytes: Number(row.log_bytes),
    storageBytes: BigInt(row.storage_bytes),
    until: stamped.at(-1)?.timestamp ?? after,
  };
}

/** Makes the times of all lines of a log distinct, so that a client that asks for lines after a time misses none. */
function makeTimesIncrease(lines: readonly LogLine[], after: Date | null): LogLine[] {
  let micros = after === null ? 0 : toMicroseconds(after);
  return lines.map(({ timestamp, message }) => {
    micros = Math.max(toMicroseconds(timestamp), micros + 1);
    return { timestamp: new MicrosecondDate(micros), message };
  });
}

type AppendedRow = {
  log_lines: string;
  log_bytes: string;
  storage_bytes: string;
  open_pages: string;
};

/**
 * The job is locked before the attempt, as in all transactions. The sequence only advances if the attempt's cursor matches,
 * so there are no gaps in the numbers.
 */
const APPEND_LINES = `
  with locked as (
    select id, log_until from jobs where id = $1 for update
  ), moved as (
    update job_attempts set log_cursor = $4 from locked
    where job_attempts.id = $2 and job_id = locked.id
      and log_cursor is not distinct from $3::jsonb
    returning job_id
  ), page as (
    ${pageRows(9)}
  ), numbered as (
    update jobs set
      next_seq = next_seq + $5,
      progress = coalesce($7, progress),
      progress_said = progress_said or $7 is not null,
      log_lines = log_lines + $5,
      log_bytes = log_bytes + $6,
      log_full = log_full or $8,
      log_until = greatest(log_until, (select to_timestamp(max(until) / 1000000) from page))
    from moved where id = moved.job_id
    returning id, namespace_id, next_seq - $5 as first, log_lines, log_bytes
  ), stored as (
    insert into journal_pages (job_id, ${PAGE_COLUMNS})
    select id, first + start, first + start + entries - 1, lines, bytes,
      greatest(log_until, to_timestamp(until / 1000000)), open, compressed, data
    from page, numbered join locked using (id)
  )
  select log_lines, log_bytes, storage_bytes,
    (select count(*) from journal_pages where job_id = $1 and open) as open_pages,
    pg_notify('loam', 'job:' || numbered.id)
  from numbered join namespaces on namespaces.id = namespace_id`;
