/** Removes the journal pages of deleted jobs, whose ids a trigger inserts into `deleted_journals`. */
import type pg from 'pg';

/** At most 32 MiB of text, removed in about 100 ms. */
const PAGES_PER_BATCH = 512;

/**
 * Removes a batch of pages of the deleted job `jobId`, or else of any deleted job.
 * @returns whether there may be more pages to remove
 */
export async function removeDeletedPages(
  { pool }: { pool: pg.Pool },
  jobId: string | null = null,
): Promise<boolean> {
  const { rowCount } = await pool.query({
    name: 'loam-remove-pages-of-deleted',
    text: `
      with journal as (
        select job_id from deleted_journals where job_id = coalesce($1, job_id)
        order by job_id limit 1 for update skip locked
      ), batch as (
        select job_id, first_seq from journal_pages
        where job_id = (select job_id from journal) order by first_seq limit ${PAGES_PER_BATCH}
      ), removed as (
        delete from journal_pages using batch
        where journal_pages.job_id = batch.job_id and journal_pages.first_seq = batch.first_seq
      ), done as (
        delete from deleted_journals using journal
        where deleted_journals.job_id = journal.job_id and (select count(*) from batch) < ${PAGES_PER_BATCH}
      )
      select job_id from journal`,
    values: [jobId],
  });
  return rowCount === 1;
}
