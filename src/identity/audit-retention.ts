/** For how long the audit log is kept. */
import type pg from 'pg';

const BATCH = 1_000;

/**
 * Removes a batch of the entries that are older than `days`. Ids sort by time, so the oldest are found along the key.
 * @returns whether there may be more
 */
export async function removeOldEntries(
  { pool }: { pool: pg.Pool },
  days: number,
): Promise<boolean> {
  const { rowCount } = await pool.query(
    `delete from audit_entries where (id, namespace_id) in (
       select id, namespace_id from (
         select id, namespace_id, created_at from audit_entries order by id, namespace_id limit ${BATCH}
       ) oldest
       where created_at < now() - make_interval(days => $1))`,
    [days],
  );
  return rowCount === BATCH;
}
