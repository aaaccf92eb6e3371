/** Reads a whole journal in steps of a few pages, forwards or backwards, so that a large log is never in memory at once. */
import type pg from 'pg';
import { decodePage, PAGE_BYTES, PAGE_ENTRIES, type StoredPage } from '../record/journal-pages.ts';

/** Bytes of JSON after which a step takes no further page. */
const STEP_BYTES = 16 * PAGE_BYTES;
/** Maximum range of numbers in one step: eight pages of short lines. */
const STEP_ENTRIES = 8 * PAGE_ENTRIES;

export type JournalPage = StoredPage & { firstSeq: number; lastSeq: number; lines: number };

export type JournalStep = {
  /** In reading order. */
  pages: JournalPage[];
  /** All numbers from `from` up to this one, in reading order, have been read. The next step starts after it. */
  lastSeq: number;
  isEnd: boolean;
};

/**
 * Reads the next pages: with `asc` the pages with numbers above `from`, with `desc` the pages with numbers below `from`. The
 * first page may also contain entries that were read before.
 */
export async function readJournalStep(
  { pool }: { pool: pg.Pool },
  jobId: string,
  { from, order }: { from: number; order: 'asc' | 'desc' },
): Promise<JournalStep> {
  const isForwards = order === 'asc';
  const { rows } = await pool.query<StepRow>({
    name: `loam-walk-${order}`,
    // A left join, so that a step without pages still returns the numbers.
    text: `
      with start as (
        select next_seq, least($2::bigint, next_seq) as start_seq from jobs where id = $1
      )
      select next_seq, start_seq, page.* from start left join (
        select first_seq, last_seq, lines, bytes, compressed, data,
          sum(bytes) over (order by first_seq ${order}) - bytes as bytes_before
        from journal_pages, start
        where job_id = $1 and ${
          isForwards
            ? `last_seq > start_seq and first_seq > start_seq - ${PAGE_ENTRIES}
               and first_seq <= start_seq + ${STEP_ENTRIES}`
            : `first_seq < start_seq and first_seq >= start_seq - ${STEP_ENTRIES}`
        }
      ) page on bytes_before < ${STEP_BYTES}
      order by first_seq ${order}`,
    values: [jobId, from],
  });
  const [row] = rows;
  if (!row) return { pages: [], lastSeq: from, isEnd: true };
  const pages = rows
    .filter(({ data }) => data !== null)
    .map((page) => ({ ...page, firstSeq: Number(page.first_seq), lastSeq: Number(page.last_seq) }));
  const lastPage = pages.at(-1);
  const start = Number(row.start_seq);
  if (isForwards) {
    const end = Number(row.next_seq) - 1;
    const lastSeq = lastPage?.lastSeq ?? Math.min(start + STEP_ENTRIES, Math.max(start, end));
    return { pages, lastSeq, isEnd: lastSeq >= end };
  }
  const lastSeq = lastPage?.firstSeq ?? Math.max(1, start - STEP_ENTRIES);
  return { pages, lastSeq, isEnd: lastSeq <= 1 };
}

type StepRow = StoredPage & {
  next_seq: string;
  start_seq: string;
  last_seq: string;
  lines: number;
};

/**
 * Streams the log as plain text, without the lines that are stored after this call. The stream ends early if the job is
 * deleted.
 * @param timestamps whether each line begins with its time
 */
export async function* streamLogText(
  services: { pool: pg.Pool },
  jobId: string,
  { timestamps }: { timestamps: boolean },
): AsyncGenerator<string> {
  const { rows } = await services.pool.query<{ next_seq: string }>({
    name: 'loam-log-end',
    text: 'select next_seq from jobs where id = $1',
    values: [jobId],
  });
  const end = Number(rows[0]?.next_seq ?? 1) - 1;
  for (let from = 0; from < end; ) {
    const { pages, lastSeq, isEnd } = await readJournalStep(services, jobId, {
      from,
      order: 'asc',
    });
    for (const page of pages) {
      const entries = await decodePage(page);
      let text = '';
      for (const entry of entries) {
        if (entry.kind !== 'log' || entry.seq <= from || entry.seq > end) continue;
        const { timestamp, message } = entry;
        text += timestamps ? `${timestamp.toISOString()} ${message}\n` : `${message}\n`;
      }
      if (text) yield text;
    }
    if (isEnd) return;
    from = lastSeq;
  }
}
