/** Reads the newest lines of a log, or those after a time. */

import type pg from 'pg';
import { invalid } from '../../base/errors.ts';
import { toMicroseconds } from '../../platform/database/times.ts';
import type { Allowance } from '../../platform/limits/reads.ts';
import { decodePage, type Entry, type LogEntry, PAGE_ENTRIES, type StoredPage } from './pages.ts';

/** The limits that the API documents. */
const MAX_TAIL = 10_000;
const DEFAULT_TAIL = 100;

export type LogQuery = { tail?: number | null; since?: Date | null };
type LogPage = { lines: LogEntry[]; hasMore: boolean };

/** @returns the number of lines, 100 by default @throws AppError 400 */
export function checkTail(tail: number | null | undefined): number {
  const count = tail ?? DEFAULT_TAIL;
  if (count < 1 || count > MAX_TAIL) throw invalid('tail', `must be from 1 to ${MAX_TAIL}`);
  return count;
}

/**
 * Reads the last `tail` lines written after `since`, oldest first, within the read allowance. `hasMore`: older lines were
 * left out.
 *
 * The first query only returns the bytes needed. After they are granted, the same query also returns pages; it computes the
 * bytes again, because pages may have been merged meanwhile.
 * @throws AppError 400, 429
 */
export async function readLog(
  { pool }: { pool: pg.Pool },
  jobId: string,
  { tail, since }: LogQuery,
  allowance: Allowance,
): Promise<LogPage> {
  const count = checkTail(tail);
  const start = await firstSeqAfter(pool, jobId, since);
  let granted = 0;
  for (;;) {
    const { needed, pages } = await newestPages(pool, jobId, { start, count, budget: granted });
    const more = granted < needed ? await allowance.take(needed - granted) : 0;
    granted += more;
    if (more > 0) continue;
    const entries = (await Promise.all(pages.map(decodePage))).flat();
    const lines = filterLines(entries, start);
    return { lines: lines.slice(-count), hasMore: lines.length > count || granted < needed };
  }
}

/** The number after which a stream starts that first shows the lines of `query`; the end of the log if there are none. */
export async function streamStart(
  { pool }: { pool: pg.Pool },
  jobId: string,
  { tail, since }: LogQuery,
): Promise<number> {
  const count = checkTail(tail);
  const start = await firstSeqAfter(pool, jobId, since);
  const { next, oldest, linesAfter } = await oldestPage(pool, jobId, { start, count });
  const entries = oldest ? await decodePage(oldest) : [];
  const lines = filterLines(entries, start);
  const first = lines.at(-Math.min(lines.length, count - linesAfter));
  return (first?.seq ?? next) - 1;
}

function filterLines(entries: readonly Entry[], start: number): LogEntry[] {
  return entries.filter((entry): entry is LogEntry => entry.kind === 'log' && entry.seq >= start);
}

type Pool = pg.Pool;

/** The number of the first line after a time; without such a line, the next number; without a time, 1. */
export async function firstSeqAfter(
  pool: Pool,
  jobId: string,
  since?: Date | null,
): Promise<number> {
  if (!since) return 1;
  const { rows } = await pool.query<Partial<StoredPage> & { next: string }>({
    name: 'loam-log-since',
    // Bisection, which works because `until` never decreases: 28 index lookups for a log of 150,000 pages.
    text: `
      with recursive search (low, high) as (
        select 1::bigint, next_seq from jobs where id = $1
        union all
        select case when early then middle + 1 else low end,
          case when early then high else middle end
        from (
          select low, high, (low + high) / 2 as middle, coalesce((
            select until <= $2::timestamptz from journal_pages
            where job_id = $1 and first_seq <= (low + high) / 2
            order by first_seq desc limit 1
          ), true) as early
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

type Selection = { start: number; count: number };

/** Number of status changes among the lines that the first query allows for; with more, a second query is needed. */
const MARGIN = 20;

/**
 * Finds the newest pages from `start` on that hold more than `count` lines, or all pages, and reads the newest of them that
 * fit into `budget` bytes. `needed`: the bytes of all of them.
 */
async function newestPages(
  pool: Pool,
  jobId: string,
  { start, count, budget }: Selection & { budget: number },
): Promise<{ needed: number; pages: StoredPage[] }> {
  for (let reach = count + MARGIN; ; reach *= 4) {
    const { rows } = await pool.query<NewestRow>({
      name: 'loam-newest-pages',
      text: `
        with ${NEWEST_PAGES}, chosen as (select * from near where lines_after <= $4)
        select lower, coalesce(reached, 0) as reached, coalesce(needed, 0) as needed, page.*
        from job cross join (
          select max(lines_after + lines) as reached from near
        ) whole cross join (
          select max(bytes_after + bytes) as needed from chosen
        ) wanted left join (
          select first_seq, journal_pages.bytes, compressed, data
          from chosen join journal_pages using (first_seq)
          where job_id = $1 and bytes_after + journal_pages.bytes <= $5
        ) page on true
        order by first_seq`,
      values: [jobId, start, reach, count, budget],
    });
    const [row] = rows;
    if (!row) return { needed: 0, pages: [] };
    if (Number(row.reached) > count || Number(row.lower) <= start)
      return { needed: Number(row.needed), pages: rows.filter((page) => page.data !== null) };
  }
}

type NewestRow = StoredPage & { lower: string; reached: string; needed: string };

/** Reads the oldest of the newest pages that hold `count` lines, and the number of lines after it. */
async function oldestPage(
  pool: Pool,
  jobId: string,
  { start, count }: Selection,
): Promise<{ next: number; oldest: StoredPage | null; linesAfter: number }> {
  for (let reach = count + MARGIN; ; reach *= 4) {
    const { rows } = await pool.query<OldestRow>({
      name: 'loam-oldest-page',
      text: `
        with ${NEWEST_PAGES}, oldest as (
          select first_seq, lines_after, lines_after + lines as reached from near
          where lines_after < $4 and lines > 0 order by first_seq limit 1
        )
        select lower, next_seq, coalesce(reached, 0) as reached,
          coalesce(lines_after, 0) as lines_after, first_seq, bytes, compressed, data
        from job left join (
          oldest join journal_pages using (first_seq)
        ) on job_id = $1`,
      values: [jobId, start, reach, count],
    });
    const [row] = rows;
    if (!row) return { next: 1, oldest: null, linesAfter: 0 };
    if (Number(row.reached) >= count || Number(row.lower) <= start)
      return {
        next: Number(row.next_seq),
        oldest: row.data ? row : null,
        linesAfter: Number(row.lines_after),
      };
  }
}

type OldestRow = StoredPage & {
  lower: string;
  next_seq: string;
  reached: string;
  lines_after: string;
};

/**
 * The pages with the last `$3` numbers, but none before `$2`, with the lines and bytes after each page. This is a range of
 * numbers, not a limit on pages: while statistics lag behind a growing log, PostgreSQL assumes that it is short and sorts
 * all of it (measured: 0.8 s for the last ten of a million rows).
 */
const NEWEST_PAGES = `
  job as (
    select next_seq, greatest($2::bigint, next_seq - $3::bigint) as lower from jobs where id = $1
  ), near as (
    select first_seq, lines, bytes,
      sum(lines) over newest - lines as lines_after,
      sum(bytes) over newest - bytes as bytes_after
    from journal_pages, job
    where job_id = $1 and first_seq > lower - ${PAGE_ENTRIES} and last_seq >= lower
    window newest as (order by first_seq desc)
  )`;
