/** Reads a whole journal in steps of a few pages, forwards or backwards, so that a large log is never in memory at once. */
import type pg from 'pg';
import { decodePage, PAGE_BYTES, PAGE_ENTRIES } from '../record/journal-pages.ts';
import { type JournalPage, readPages } from './pages.ts';

/**
 * Maximum bytes of JSON in one step. At least two pages fit: a page has at most 64 KiB of text with six bytes of JSON for each,
 * and 40 kB of times and quotes. Only a page with a single line can be larger.
 */
const STEP_BYTES = 16 * PAGE_BYTES;
/** Maximum range of numbers in one step: eight pages of short lines. */
const STEP_ENTRIES = 8 * PAGE_ENTRIES;

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
  const range = { from: isForwards ? from + 1 : from, order, count: STEP_ENTRIES };
  const { pages, low, next } = await readPages(pool, jobId, range, STEP_BYTES);
  const lastPage = pages.at(-1);
  if (!isForwards) {
    const lastSeq = lastPage?.firstSeq ?? low;
    return { pages, lastSeq, isEnd: lastSeq <= 1 };
  }
  const start = Math.min(from, next);
  const end = next - 1;
  const lastSeq = lastPage?.lastSeq ?? Math.min(start + STEP_ENTRIES, Math.max(start, end));
  return { pages, lastSeq, isEnd: lastSeq >= end };
}

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
