/**
 * Appends log lines to the journal. The numbers come from a counter in the job's row, whose lock is held until the commit. So
 * entries become visible in the order of their numbers, and no entry appears later with a number that readers have passed.
 */
import type pg from 'pg';
import { MicrosecondDate, toMicroseconds } from '../../platform/database/times.ts';
import type { LogCursor } from '../../runners/runner.ts';
import { COMPACT_AT as COMPACT_METRICS_AT, compactMetrics } from '../metrics/compaction.ts';
import { encodePages, type LogLine } from '../record/journal-pages.ts';
import { PAGE_COLUMNS, pageRowsSql, toPageParameters } from '../record/page-columns.ts';
import { COMPACT_AT, compactPages } from './compaction.ts';

type AppendInput = {
  jobId: string;
  attemptId: string;
  lines: readonly LogLine[];
  /** The time of the newest stored line; null if no line is stored. */
  newestTime: Date | null;
  /** The position in the runner's log before these lines; null for its start. */
  from: LogCursor | null;
  /** The position in the runner's log after these lines. */
  to: LogCursor | null;
  /** The progress that the program printed with these lines, if any. */
  progress?: string;
  /** Whether these lines are the last of the log, so that no later output is stored. */
  endsLog?: boolean;
  /** The points of metrics that were printed with these lines; `data`: a page, null without points. */
  metrics?: { points: number; data: Buffer | null };
};

/** The size of the job's log and metrics, the storage that its namespace uses, and the time of the newest line. */
export type LogTotals = {
  lines: number;
  bytes: number;
  storageBytes: bigint;
  metricPoints: number;
  newestTime: Date | null;
};

const NO_METRICS = { points: 0, data: null };

/**
 * Stores lines, points of metrics and their position in the runner's log in one transaction. After a crash, the worker reads the runner's log
 * from the stored position, so no line is lost or stored twice.
 * @returns null if nothing was stored: the job was deleted, or another worker has stored these lines
 */
export async function appendLines(
  { pool }: { pool: pg.Pool },
  {
    jobId,
    attemptId,
    lines,
    newestTime,
    from,
    to,
    progress,
    endsLog = false,
    metrics = NO_METRICS,
  }: AppendInput,
): Promise<LogTotals | null> {
  const stamped = makeTimesIncrease(lines, newestTime);
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
      pages.reduce((sum, { textBytes }) => sum + textBytes, 0),
      progress ?? null,
      endsLog,
      metrics.points,
      metrics.data,
      ...toPageParameters(pages),
    ],
  });
  const [row] = rows;
  if (!row) return null;
  if (Number(row.open_pages) >= COMPACT_AT) await compactPages({ pool }, jobId);
  if (Number(row.metric_pages) >= COMPACT_METRICS_AT) await compactMetrics({ pool }, jobId);
  return {
    lines: Number(row.log_lines),
    bytes: Number(row.log_bytes),
    storageBytes: BigInt(row.storage_bytes),
    metricPoints: Number(row.metric_points),
    newestTime: stamped.at(-1)?.timestamp ?? newestTime,
  };
}

/** Makes the times of a log strictly increasing, so that a client that requests the lines after a time misses none. */
function makeTimesIncrease(lines: readonly LogLine[], newestTime: Date | null): LogLine[] {
  let micros = newestTime === null ? 0 : toMicroseconds(newestTime);
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
  metric_points: string;
  metric_pages: string;
};

/**
 * Parameters: $1 job, $2 attempt, $3 cursor before, $4 cursor after, $5 number of lines, $6 bytes of text, $7 progress or
 * null, $8 whether the log ends, $9 number of points of metrics, $10 their page, and from $11 on the pages of lines.
 *
 * Like all transactions, it locks the job before the attempt; another order could deadlock. If the stored cursor is not $3, no
 * row is changed and no number is used. `pg_notify` in the last select wakes the followers of the log.
 */
const APPEND_LINES = `
  with locked as (
    select id, log_until from jobs where id = $1 for update
  ), moved as (
    update job_attempts set log_cursor = $4 from locked
    where job_attempts.id = $2 and job_id = locked.id
      and log_cursor is not distinct from $3::jsonb
    returning job_id, number
  ), page as (
    ${pageRowsSql(11)}
  ), numbered as (
    update jobs set
      next_seq = next_seq + $5,
      progress = case when stop_reason is null then coalesce($7, progress) else progress end,
      progress_said = progress_said or ($7 is not null and stop_reason is null),
      log_lines = log_lines + $5,
      log_bytes = log_bytes + $6,
      log_full = log_full or $8,
      metric_points = metric_points + $9::int,
      log_until = greatest(log_until, (select to_timestamp(max(until_us) / 1000000) from page))
    from moved where id = moved.job_id
    returning id, namespace_id, next_seq - $5 as first_seq, log_lines, log_bytes, metric_points
  ), stored as (
    insert into journal_pages (job_id, ${PAGE_COLUMNS})
    select id, first_seq + seq_offset, first_seq + seq_offset + entries - 1, lines, bytes,
      greatest(log_until, to_timestamp(until_us / 1000000)), open, compressed, data
    from page, numbered join locked using (id)
  ), metric_page as (
    insert into metric_pages (job_id, attempt, data)
    select job_id, number, $10::bytea from moved where $9 > 0
  )
  select log_lines, log_bytes, storage_bytes, metric_points,
    case when $9 > 0 then (select count(*) from metric_pages where job_id = $1) else 0 end
      as metric_pages,
    (select count(*) from journal_pages where job_id = $1 and open) as open_pages,
    pg_notify('loam', 'job:' || numbered.id)
  from numbered join namespaces on namespaces.id = namespace_id`;
