/** Reads a whole journal in steps of some pages, in either direction. */
import type pg from 'pg';
import { decodePage, PAGE_BYTES, PAGE_ENTRIES, type StoredPage } from './pages.ts';

/** Bytes of text in one step, beyond the first page. */
const STEP_BYTES = 16 * PAGE_BYTES;
/** Entries in one step: eight pages of short lines. */
const STEP_ENTRIES = 8 * PAGE_ENTRIES;

export type WalkedPage = StoredPage & { first: number; last: number; lines: number };

export type Step = {
  /** In reading order. */
  pages: WalkedPage[];
  /** The last number that was read; the next step starts after it. */
  reached: number;
  isEnd: boolean;
};

/** Reads the pages after the number `from`: newer entries with `asc`, older ones with `desc`. */
export async function readStep(
  { pool }: { pool: pg.Pool },
  jobId: string,
  { from, order }: { from: number; order: 'asc' | 'desc' },
): Promise<Step> {
  const forwards = order === 'asc';
  const { rows } = await pool.query<Row>({
    name: `loam-walk-${order}`,
    text: `
      with start as (
        select next_seq, least($2::bigint, next_seq) as place from jobs where id = $1
      )
      select next_seq, place, page.* from start left join (
        select first_seq, last_seq, lines, bytes, compressed, data,
          sum(bytes) over (order by first_seq ${order}) - bytes as before
        from journal_pages, start
        where job_id = $1 and ${
          forwards
            ? `last_seq > place and first_seq > place - ${PAGE_ENTRIES}
               and first_seq <= place + ${STEP_ENTRIES}`
            : `first_seq < place and first_seq >= place - ${STEP_ENTRIES}`
        }
      ) page on before < ${STEP_BYTES}
      order by first_seq ${order}`,
    values: [jobId, from],
  });
  const [row] = rows;
  if (!row) return { pages: [], reached: from, isEnd: true };
  const pages = rows
    .filter(({ data }) => data !== null)
    .map((page) => ({ ...page, first: Number(page.first_seq), last: Number(page.last_seq) }));
  const edge = pages.at(-1);
  const place = Number(row.place);
  if (forwards) {
    const end = Number(row.next_seq) - 1;
    const reached = edge?.last ?? Math.min(place + STEP_ENTRIES, Math.max(place, end));
    return { pages, reached, isEnd: reached >= end };
  }
  const reached = edge?.first ?? Math.max(1, place - STEP_ENTRIES);
  return { pages, reached, isEnd: reached <= 1 };
}

type Row = StoredPage & { next_seq: string; place: string; last_seq: string; lines: number };

/**
 * Streams a log as plain text, up to the last line at the start of the stream. It ends early if the job is deleted.
 * @param jobId the job; `timestamps`: whether each line begins with its time
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
    const { pages, reached, isEnd } = await readStep(services, jobId, { from, order: 'asc' });
    for (const page of pages) {
      const entries = await decodePage(page);
      let text = '';
      for (const { kind, seq, timestamp, message } of entries) {
        if (kind !== 'log' || seq <= from || seq > end) continue;
        text += timestamps ? `${timestamp.toISOString()} ${message}\n` : `${message}\n`;
      }
      if (text) yield text;
    }
    if (isEnd) return;
    from = reached;
  }
}
