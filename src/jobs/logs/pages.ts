/** Reads the pages of a journal that hold a range of numbers, forwards or backwards, within a budget of bytes. */
import type pg from 'pg';
import type { Allowance } from '../../platform/limits/reads.ts';
import { PAGE_ENTRIES, type StoredPage } from '../record/journal-pages.ts';

export type SeqRange = {
  /** How many numbers. */
  count: number;
} & (
  | {
      order: 'asc';
      /** The first number. */
      from: number;
    }
  | {
      order: 'desc';
      /** The number after the last one; null for the end of the log. */
      from: number | null;
      /** Lower numbers are left out. Default: 1. */
      lowest?: number;
    }
);

export type JournalPage = StoredPage & { firstSeq: number; lastSeq: number; lines: number };

type PagesOfRange = {
  /** In the order of the range. They may also have numbers before and after it. */
  pages: JournalPage[];
  /** The first and the last number of the range. */
  low: number;
  high: number;
  /** The next unused number of the log; 1 if the job does not exist. */
  next: number;
  /** Bytes of JSON of all pages of the range. */
  needed: number;
};

/** Reads the pages of a range until `budget` bytes of JSON are used. */
export async function readPages(
  pool: pg.Pool,
  jobId: string,
  range: SeqRange,
  budget: number,
): Promise<PagesOfRange> {
  const { from, order, count } = range;
  const lowest = range.order === 'desc' ? (range.lowest ?? 1) : 1;
  const { rows } = await pool.query<PageRow>({
    name: `loam-log-pages-${order}`,
    // Selects by a range of numbers, not by a limit on pages: while statistics lag behind a growing log, PostgreSQL assumes that
    // the log is short and sorts all of it (measured: 0.8 s for the last ten of a million rows). A left join, so that a range
    // without pages still returns the numbers.
    text: `
      with seq_range as (
        select next_seq, ${
          order === 'asc'
            ? 'greatest($5, $2::bigint) as low, $2::bigint + $3::bigint - 1 as high'
            : 'greatest($5, least($2, next_seq) - $3::bigint) as low, least($2, next_seq) - 1 as high'
        }
        from (select next_seq from jobs where id = $1) job
      ), near as (
        select first_seq, sum(bytes) over (order by first_seq ${order}) as bytes_read
        from journal_pages, seq_range
        where job_id = $1 and first_seq > low - ${PAGE_ENTRIES} and first_seq <= high
          and last_seq >= low
      )
      select next_seq, low, high, coalesce((select max(bytes_read) from near), 0) as needed, page.*
      from seq_range left join (
        select first_seq, last_seq, lines, bytes, compressed, data
        from near join journal_pages using (first_seq) where job_id = $1 and bytes_read <= $4
      ) page on true
      order by first_seq ${order}`,
    values: [jobId, from, count, budget, lowest],
  });
  const [row] = rows;
  return {
    pages: rows
      .filter(({ data }) => data !== null)
      .map((page) => ({
        ...page,
        firstSeq: Number(page.first_seq),
        lastSeq: Number(page.last_seq),
      })),
    low: Number(row?.low ?? 1),
    high: Number(row?.high ?? 0),
    next: Number(row?.next_seq ?? 1),
    needed: Number(row?.needed ?? 0),
  };
}

type PageRow = StoredPage &
  Record<'next_seq' | 'low' | 'high' | 'needed' | 'last_seq', string> & { lines: number };

/**
 * Takes the bytes of the pages from `allowance`; if it has fewer bytes left, the far end of the range is left out. The first
 * query runs with `expected` bytes and tells how many are needed. If that is more, or pages were merged in the meantime, the
 * query is repeated.
 * @throws AppError 503 if the allowance needs a slot and none is free
 */
export async function readAllowedPages(
  pool: pg.Pool,
  jobId: string,
  range: SeqRange,
  allowance: Allowance,
  expected = 0,
): Promise<PagesOfRange & { isWhole: boolean }> {
  let budget = expected > 0 ? await allowance.take(expected) : 0;
  for (;;) {
    const read = await readPages(pool, jobId, range, budget);
    const granted = budget < read.needed ? await allowance.take(read.needed - budget) : 0;
    if (granted === 0) return { ...read, isWhole: budget >= read.needed };
    budget += granted;
  }
}
