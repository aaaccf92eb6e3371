/** Removes the journal pages of deleted jobs, whose ids a trigger inserts into `deleted_journals`. */
import type pg from 'pg';

/** At most 32 MiB of text, removed in about 100 ms. */
const PAGES_PER_BATCH = 512;
/** Jobs with short logs are removed together. */
const JOBS_PER_BATCH = 100;

/**
 * Removes a batch of pages of the deleted job `jobId`, or else of any deleted jobs.
 * @returns whether there may be more pages to remove
 */
export async function removeDeletedPages(
  { pool }: { pool: pg.Pool },
  jobId: string | null = null,
): Promise<boolean> {
  const { rowCount } = await pool.query({
    name: 'loam-remove-pages-of-deleted',
    text: `
      with journals as (
        select job_id from deleted_journals where job_id = coalesce($1, job_id)
        order by job_id limit ${JOBS_PER_BATCH} for update skip locked
      ), batch as materialized (
        select page.* from journals cross join lateral (
          select job_id, first_seq from journal_pages where job_id = journals.job_id
          order by first_seq limit ${PAGES_PER_BATCH}
        ) page limit ${PAGES_PER_BATCH}
      ), removed as (
        delete from journal_pages using batch
        where journal_pages.job_id = batch.job_id and journal_pages.first_seq = batch.first_seq
      ), done as (
        delete from deleted_journals using journals
        where deleted_journals.job_id = journals.job_id and not exists (
          select from journal_pages page where page.job_id = journals.job_id
            and (page.job_id, page.first_seq) not in (select job_id, first_seq from batch))
      )
      select job_id from journals`,
    values: [jobId],
  });
  return rowCount !== 0;
}
