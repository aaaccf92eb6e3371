/**
 * A job that prints now and then makes a small page each time. When there are many they are joined, so that a log of
 * any length is a number of full pages and a few small ones.
 */
import type pg from 'pg';
import { inPoolTransaction } from '../../platform/database/client.ts';
import { toPageColumns, PAGE_COLUMNS, pageRows } from './columns.ts';
import { decodePage, encodePages, type StoredPage } from './pages.ts';

/**
 * Small pages at which they are joined. With lines of 100 bytes, one by one, a line is then written again five
 * times at most before its page is full.
 */
export const COMPACT_AT = 64;
/** At the end of a job fewer stay as they are: to join them takes a transaction, which was a tenth of what a short job cost. */
const COMPACT_AT_END = 8;

/**
 * Joins the small pages of a job that has ended, where they are more than a few.
 * @param entries how many entries its journal has, if that is known: it has no more pages
 */
export async function compactEndedLog(
  services: { pool: pg.Pool },
  jobId: string,
  entries?: bigint,
): Promise<void> {
  if (entries !== undefined && entries < COMPACT_AT_END) return;
  const { rowCount } = await services.pool.query({
    name: 'loam-small-pages',
    text: 'select from journal_pages where job_id = $1 and open limit $2',
    values: [jobId, COMPACT_AT_END],
  });
  if (rowCount === COMPACT_AT_END) await compactPages(services, jobId);
}

/**
 * Joins the small pages of a job. It is one transaction, so that a reader's statement sees either the small ones or
 * what they became, and it holds the job's row, so that nothing is appended meanwhile.
 */
export async function compactPages({ pool }: { pool: pg.Pool }, jobId: string): Promise<void> {
  await inPoolTransaction(pool, async (client) => {
    const {
      rows: [job],
    } = await client.query<{ next_seq: string }>({
      name: 'loam-lock-journal',
      text: 'select next_seq from jobs where id = $1 for update',
      values: [jobId],
    });
    // The job was deleted, and its pages are being removed.
    if (!job) return;
    const { rows } = await client.query<OpenPage>({
      name: 'loam-open-pages',
      text: `
        select first_seq, last_seq, bytes, until::text, compressed, data from journal_pages
        where job_id = $1 and open order by first_seq`,
      values: [jobId],
    });
    const end = Number(job.next_seq);
    for (const run of findRuns(rows)) {
      const isNewest = Number(run.at(-1)?.last_seq) + 1 === end;
      if (run.length > 1 || !isNewest) await mergeRun(client, jobId, run, isNewest);
    }
  });
}

/** `until`: as text, which has its microseconds. */
type OpenPage = StoredPage & { last_seq: string; until: string | null };

/** Pages that follow each other without a gap; between two runs lies a full page, or a number is missing. */
function findRuns(pages: readonly OpenPage[]): OpenPage[][] {
  const runs: OpenPage[][] = [];
  for (const page of pages) {
    const before = runs.at(-1)?.at(-1);
    if (before && Number(before.last_seq) + 1 === Number(page.first_seq)) runs.at(-1)?.push(page);
    else runs.push([page]);
  }
  return runs;
}

/** Only the newest page can still grow. */
async function mergeRun(
  client: pg.PoolClient,
  jobId: string,
  run: readonly OpenPage[],
  isNewest: boolean,
): Promise<void> {
  const [first] = run;
  const entries = (await Promise.all(run.map(decodePage))).flat();
  const pages = await encodePages(entries);
  const kept = pages.map((page, at) => ({
    ...page,
    open: page.open && isNewest && at === pages.length - 1,
  }));
  await client.query({
    name: 'loam-remove-pages',
    text: 'delete from journal_pages where job_id = $1 and first_seq between $2 and $3',
    values: [jobId, first?.first_seq, run.at(-1)?.first_seq],
  });
  await client.query({
    name: 'loam-joined-pages',
    text: `
      insert into journal_pages (job_id, ${PAGE_COLUMNS})
      select $1, $2 + start, $2 + start + entries - 1, lines, bytes,
        greatest($3::timestamptz, to_timestamp(until / 1000000)), open, compressed, data
      from (${pageRows(4)}) page`,
    values: [jobId, first?.first_seq, first?.until ?? null, ...toPageColumns(kept)],
  });
}
