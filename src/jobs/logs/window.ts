/** Reads a range of a journal by number or time, forwards or backwards, for views of long logs. */

import type pg from 'pg';
import { invalid } from '../../base/errors.ts';
import { MicrosecondDate, toMicroseconds } from '../../platform/database/times.ts';
import type { Allowance } from '../../platform/limits/reads.ts';
import {
  decodePage,
  type JournalEntry,
  PAGE_ENTRIES,
  type StoredPage,
} from '../record/journal-pages.ts';
import { firstSeqAfter } from './read.ts';

export type WindowQuery = {
  /** Number of entries to read forwards: after the number `after`, from the time `at` on, or from the beginning. */
  first?: number | null;
  after?: number | null;
  at?: Date | null;
  /** Number of entries to read backwards: before the number `before`, or from the end. */
  last?: number | null;
  before?: number | null;
};

type LogWindow = {
  entries: JournalEntry[];
  hasOlder: boolean;
  hasNewer: boolean;
  /** The number of the newest entry of the log. */
  lastSeq: number;
};

/** More entries would block other requests for longer than a log view can wait. */
const MAX_ENTRIES = 1_000;
const DEFAULT_ENTRIES = 100;

/**
 * Reads a window of the log. Lines and status changes are numbered without gaps, so a range of numbers gives the number of
 * entries. If the read allowance is too small, the far end of the window is left out.
 * @throws AppError 400, 429
 */
export async function readWindow(
  { pool }: { pool: pg.Pool },
  jobId: string,
  query: WindowQuery,
  allowance: Allowance,
): Promise<LogWindow> {
  const { isForwards, count } = checkQuery(query);
  const { after, at, before } = query;
  // `at` is inclusive and `firstSeqAfter` is not, so it gets the time one microsecond before.
  const from = at
    ? await firstSeqAfter(pool, jobId, new MicrosecondDate(toMicroseconds(at) - 1))
    : (after ?? 0) + 1;
  const range = isForwards ? { low: from, end: null } : { low: null, end: before ?? null };
  let budget = 0;
  for (;;) {
    const { needed, low, high, next, pages } = await readWindowPages(pool, jobId, {
      ...range,
      count,
      budget,
    });
    const granted = budget < needed ? await allowance.take(needed - budget) : 0;
    if (granted > 0) {
      budget += granted;
      continue;
    }
    const entries = (await Promise.all(pages.map(decodePage)))
      .flat()
      .filter(({ seq }) => seq >= low && seq <= high);
    const oldest = entries[0]?.seq ?? (isForwards ? low : Math.min(high + 1, next));
    const newest = entries.at(-1)?.seq ?? oldest - 1;
    return {
      entries,
      hasOlder: oldest > 1 && next > 1,
      hasNewer: newest < next - 1,
      lastSeq: next - 1,
    };
  }
}

function checkQuery({ first, after, at, last, before }: WindowQuery) {
  if (first != null && last != null) throw invalid('last', 'cannot be given with first');
  const isForwards = last == null && (first != null || after != null || at != null);
  if (isForwards && before != null) throw invalid('before', 'can only be given with last');
  if (!isForwards && after != null) throw invalid('after', 'can only be given with first');
  if (!isForwards && at != null) throw invalid('at', 'can only be given with first');
  if (after != null && at != null) throw invalid('at', 'cannot be given with after');
  for (const [field, value] of Object.entries({ after, before }))
    if (value != null && value < 0) throw invalid(field, 'must be 0 or the seq of an entry');
  const count = (isForwards ? first : last) ?? DEFAULT_ENTRIES;
  if (count < 1 || count > MAX_ENTRIES)
    throw invalid(isForwards ? 'first' : 'last', `must be from 1 to ${MAX_ENTRIES}`);
  return { isForwards, count };
}

type SeqRange = {
  /** Reading forwards: the lowest number. Null when reading backwards. */
  low: number | null;
  /** Reading backwards: the number after the highest; null for the end of the log. */
  end: number | null;
  count: number;
};

/**
 * Reads the pages with these numbers, from the start of the window until `budget` bytes are used.
 * @returns the pages; `needed`, the bytes of all pages of the window; `next`, the next unused number
 */
async function readWindowPages(
  pool: pg.Pool,
  jobId: string,
  { low, end, count, budget }: SeqRange & { budget: number },
): Promise<{ needed: number; low: number; high: number; next: number; pages: StoredPage[] }> {
  const { rows } = await pool.query<WindowRow>({
    name: 'loam-log-window',
    // A range of numbers instead of a limit on pages, for the reason given at `NEWEST_PAGES` in `read.ts`.
    text: `
      with seq_range as (
        select next_seq,
          coalesce($2::bigint, greatest(1, least($3::bigint, next_seq) - $4::bigint)) as low,
          coalesce($2::bigint + $4::bigint, least($3::bigint, next_seq)) - 1 as high
        from jobs where id = $1
      ), near as (
        select first_seq, case when $2::bigint is null
            then sum(bytes) over (order by first_seq desc) else sum(bytes) over (order by first_seq)
          end as bytes_read
        from journal_pages, seq_range
        where job_id = $1 and first_seq > low - ${PAGE_ENTRIES} and first_seq <= high
          and last_seq >= low
      )
      select next_seq, low, high, coalesce((select max(bytes_read) from near), 0) as needed, page.*
      from seq_range left join (
        select first_seq, bytes, compressed, data
        from near join journal_pages using (first_seq) where job_id = $1 and bytes_read <= $5
      ) page on true
      order by first_seq`,
    values: [jobId, low, end, count, budget],
  });
  const [row] = rows;
  if (!row) return { needed: 0, low: 1, high: 0, next: 1, pages: [] };
  return {
    needed: Number(row.needed),
    low: Number(row.low),
    high: Number(row.high),
    next: Number(row.next_seq),
    pages: rows.filter((page) => page.data !== null),
  };
}

type WindowRow = StoredPage & { next_seq: string; low: string; high: string; needed: string };
