/** The order of events, in a database that was moved to another cluster. */
import type pg from 'pg';
import type { Logger } from '../../base/log.ts';

/**
 * Makes new events come after all that are there or were removed, in a database that was restored into another
 * cluster, so that the places that readers have stored stay right. To be called before a server writes its first
 * event; several servers may call it at once.
 */
export async function goOnAfterRestored({
  pool,
  log,
}: {
  pool: pg.Pool;
  log: Logger;
}): Promise<void> {
  // No event that was written in this cluster has an xid that is still to come.
  const { rows } = await pool.query<{ ahead: string }>(
    `update event_clock set ahead = last.xid + 1
     from (
       select greatest((select xid from events order by xid desc limit 1), removed_xid)::text::bigint as xid
       from event_clock
     ) last
     where last.xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint + ahead
     returning ahead`,
  );
  if (rows[0])
    log.warn(
      rows[0],
      'the database was restored into another cluster: its events go on from there',
    );
}
