/** Merges the small pages of jobs that print few lines at a time, so that a log has full pages and only a few small pages. */
import type pg from 'pg';
import { inPoolTransaction } from '../../platform/database/client.ts';
import { decodePage, encodePages, type StoredPage } from '../record/journal-pages.ts';
import { PAGE_COLUMNS, pageRowsSql, toPageParameters } from '../record/page-columns.ts';

/**
 * Number of small pages that triggers a merge. With this number, lines of 100 bytes that arrive one by one are each rewritten
 * at most five times before their page is full.
 */
export const COMPACT_AT = 64;
/** The same at the end of a job. Fewer pages stay, because the transaction was a tenth of the cost of a short job. */
const COMPACT_AT_END = 8;

/**
 * Merges the small pages of an ended job if there are at least `COMPACT_AT_END`.
 * @param entries the number of journal entries, if known; the number of pages cannot be larger
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
 * Merges the small pages of a job in one transaction, so that readers see either the small pages or the merged pages. The
 * lock on the job's row blocks appends until the commit.
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
    // The job was deleted. Maintenance removes its pages.
    if (!job) return;
    const { rows } = await client.query<OpenPage>({
      name: 'loam-open-pages',
      text: `
        select first_seq, last_seq, bytes, until::text, compressed, data from journal_pages
        where job_id = $1 and open order by first_seq`,
      values: [jobId],
    });
    const end = Number(job.next_seq);
    for (const run of groupConsecutivePages(rows)) {
      const isNewest = Number(run.at(-1)?.last_seq) + 1 === end;
      if (run.length > 1 || !isNewest) await mergeRun(client, jobId, run, isNewest);
    }
  });
}

/** `until` is text, because a Date would lose the microseconds. */
type OpenPage = StoredPage & { last_seq: string; until: string | null };

/** Groups the open pages into runs of consecutive numbers. Between two runs there are full pages. */
function groupConsecutivePages(pages: readonly OpenPage[]): OpenPage[][] {
  const runs: OpenPage[][] = [];
  for (const page of pages) {
    const previous = runs.at(-1)?.at(-1);
    if (previous && Number(previous.last_seq) + 1 === Number(page.first_seq))
      runs.at(-1)?.push(page);
    else runs.push([page]);
  }
  return runs;
}

/** Replaces a run with merged pages. Only the newest page of the journal stays open for further merges. */
async function mergeRun(
  client: pg.PoolClient,
  jobId: string,
  run: readonly OpenPage[],
  isNewest: boolean,
): Promise<void> {
  const [first] = run;
  const entries = (await Promise.all(run.map(decodePage))).flat();
  const pages = await encodePages(entries);
  const kept = pages.map((page, index) => ({
    ...page,
    isOpen: page.isOpen && isNewest && index === pages.length - 1,
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
      select $1, $2 + seq_offset, $2 + seq_offset + entries - 1, lines, bytes,
        greatest($3::timestamptz, to_timestamp(until_us / 1000000)), open, compressed, data
      from (${pageRowsSql(4)}) page`,
    values: [jobId, first?.first_seq, first?.until ?? null, ...toPageParameters(kept)],
  });
}
