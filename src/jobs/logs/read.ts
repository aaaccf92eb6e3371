/** Reads the last lines of a log, optionally only the lines after a time, and finds where a stream of lines must start. */

import type pg from 'pg';
import { invalid } from '../../base/errors.ts';
import { toMicroseconds } from '../../platform/database/times.ts';
import type { Allowance } from '../../platform/limits/reads.ts';
import {
  decodePage,
  type JournalEntry,
  type LineEntry,
  PAGE_ENTRIES,
  type StoredPage,
} from '../record/journal-pages.ts';
import { readAllowedPages, readPages } from './pages.ts';

/** The maximum and the default of `tail`, as documented for the API. */
const MAX_TAIL = 10_000;
const DEFAULT_TAIL = 100;

export type LogQuery = { tail?: number | null; since?: Date | null };
/** `hasMore`: older lines were left out, because of `tail` or the read allowance. */
type LogTail = { lines: LineEntry[]; hasMore: boolean };

/** Returns the number of lines to read. @throws AppError 400 */
export function resolveTail(tail: number | null | undefined): number {
  const count = tail ?? DEFAULT_TAIL;
  if (count < 1 || count > MAX_TAIL) throw invalid('tail', `must be from 1 to ${MAX_TAIL}`);
  return count;
}

/**
 * Reads the last `tail` lines written after `since`, oldest first. The bytes of their pages are taken from `allowance`; if it
 * has fewer bytes left, only the newest of these lines are returned.
 * @throws AppError 400, 503
 */
export async function readLogTail(
  { pool }: { pool: pg.Pool },
  jobId: string,
  { tail, since }: LogQuery,
  allowance: Allowance,
): Promise<LogTail> {
  const count = resolveTail(tail);
  const start = await firstSeqAfter(pool, jobId, since);
  // With one more line, which tells whether there are older ones.
  const { firstSeq, bytes } = await readTailStart(pool, jobId, { start, count: count + 1 });
  if (firstSeq === null) return { lines: [], hasMore: false };
  const lowest = firstSeq;
  const range = { from: null, order: 'desc', count: Number.MAX_SAFE_INTEGER, lowest } as const;
  const { pages, isWhole } = await readAllowedPages(pool, jobId, range, allowance, bytes);
  const entries = (await Promise.all(pages.toReversed().map(decodePage))).flat();
  const lines = selectLinesFrom(entries, start);
  return { lines: lines.slice(-count), hasMore: lines.length > count || !isWhole };
}

/**
 * Finds the `seq` after which a stream must start so that it begins with the lines that `readLogTail` would return. Without
 * such lines it is the last `seq` of the log.
 */
export async function findStreamStart(
  { pool }: { pool: pg.Pool },
  jobId: string,
  { tail, since }: LogQuery,
): Promise<number> {
  const count = resolveTail(tail);
  const start = await firstSeqAfter(pool, jobId, since);
  const { nextSeq, firstSeq, linesAfter } = await readTailStart(pool, jobId, { start, count });
  const { pages } =
    firstSeq === null
      ? { pages: [] }
      : await readPages(
          pool,
          jobId,
          { from: firstSeq, order: 'asc', count: 1 },
          Number.MAX_SAFE_INTEGER,
        );
  const entries = (await Promise.all(pages.map(decodePage))).flat();
  const lines = selectLinesFrom(entries, start);
  const first = lines[Math.max(0, lines.length - (count - linesAfter))];
  return (first?.seq ?? nextSeq) - 1;
}

function selectLinesFrom(entries: readonly JournalEntry[], firstSeq: number): LineEntry[] {
  return entries.filter(
    (entry): entry is LineEntry => entry.kind === 'log' && entry.seq >= firstSeq,
  );
}

/**
 * Finds the `seq` of the first line after `since`; the next unused `seq` if there is no such line; 1 without `since`.
 *
 * The SQL bisects the numbers, which works because `until` never decreases. Every number below `low` is in a page without a
 * line after `since`; `high` is in a page with such a line, or is the next number. A log of 150,000 full pages has
 * 300 million numbers, so it takes 28 index lookups.
 */
export async function firstSeqAfter(
  pool: pg.Pool,
  jobId: string,
  since?: Date | null,
): Promise<number> {
  if (!since) return 1;
  const { rows } = await pool.query<Partial<StoredPage> & { next: string }>({
    name: 'loam-log-since',
    text: `
      with recursive search (low, high) as (
        select 1::bigint, next_seq from jobs where id = $1
        union all
        select case when is_before then middle + 1 else low end,
          case when is_before then high else middle end
        from (
          select low, high, (low + high) / 2 as middle, coalesce((
            select until <= $2::timestamptz from journal_pages
            where job_id = $1 and first_seq <= (low + high) / 2
            order by first_seq desc limit 1
          ), true) as is_before
          from search where low < high
        ) step
      ), found as (select min(high) as next from search)
      select next, first_seq, bytes, compressed, data
      from found left join journal_pages on job_id = $1 and first_seq = next`,
    values: [jobId, since.toISOString()],
  });
  const [page] = rows;
  if (!page?.data) return Number(page?.next ?? 1);
  const entries = await decodePage(page as StoredPage);
  const found = entries.find(
    ({ kind, timestamp }) => kind === 'log' && toMicroseconds(timestamp) > toMicroseconds(since),
  );
  return found?.seq ?? Number(page.next);
}

/** The last `count` lines whose `seq` is at least `start`. */
type LineSelection = { start: number; count: number };

/** The first query reads this many extra entries, which may be status changes instead of lines. */
const EXPECTED_STATUS_CHANGES = 20;
/** If these entries contain too few lines, the next query reads this many times as many, so that few queries are needed. */
const SCAN_GROWTH = 4;

/**
 * Finds the page in which the last `count` lines begin.
 * @returns its first number, the number of lines in later pages, and the bytes of JSON of all these pages
 */
async function readTailStart(
  pool: pg.Pool,
  jobId: string,
  { start, count }: LineSelection,
): Promise<{ nextSeq: number; firstSeq: number | null; linesAfter: number; bytes: number }> {
  for (let entries = count + EXPECTED_STATUS_CHANGES; ; entries *= SCAN_GROWTH) {
    // Selects by a range of numbers, not by a limit on pages, for the reason given in `pages.ts`.
    const { rows } = await pool.query<TailStartRow>({
      name: 'loam-log-tail-start',
      text: `
        with job as (
          select next_seq, greatest($2::bigint, next_seq - $3::bigint) as lower from jobs where id = $1
        ), near as (
          select first_seq, lines,
            sum(lines) over newest - lines as lines_after, sum(bytes) over newest as tail_bytes
          from journal_pages, job
          where job_id = $1 and first_seq > lower - ${PAGE_ENTRIES} and last_seq >= lower
          window newest as (order by first_seq desc)
        ), oldest as (
          select first_seq, lines_after, lines_after + lines as lines_found, tail_bytes from near
          where lines_after < $4 and lines > 0 order by first_seq limit 1
        )
        select lower, next_seq, coalesce(lines_found, 0) as lines_found,
          coalesce(lines_after, 0) as lines_after, coalesce(tail_bytes, 0) as tail_bytes, first_seq
        from job left join oldest on true`,
      values: [jobId, start, entries, count],
    });
    const [row] = rows;
    if (!row) return { nextSeq: 1, firstSeq: null, linesAfter: 0, bytes: 0 };
    if (Number(row.lines_found) >= count || Number(row.lower) <= start)
      return {
        nextSeq: Number(row.next_seq),
        firstSeq: row.first_seq === null ? null : Number(row.first_seq),
        linesAfter: Number(row.lines_after),
        bytes: Number(row.tail_bytes),
      };
  }
}

type TailStartRow = Record<
  'lower' | 'next_seq' | 'lines_found' | 'lines_after' | 'tail_bytes',
  string
> & { first_seq: string | null };
