/** The order of events, in a database that is not where it was. */
import type { Services } from '../services.ts';

/**
 * Sees to it that events go on after those that are there, in a database that was restored into another cluster.
 * To be called before a server writes its first event; several may at once.
 */
export async function goOnAfterRestored({
  pool,
  log,
}: Pick<Services, 'pool' | 'log'>): Promise<void> {
  // No event that was written in this cluster has an xid that is still to come.
  const { rows } = await pool.query<{ ahead: string }>(
    `update event_clock set ahead = last.xid + 1
     from (select xid::text::bigint as xid from events order by events.xid desc limit 1) last
     where last.xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint + ahead
     returning ahead`,
  );
  if (rows[0])
    log.warn(
      rows[0],
      'the database was restored into another cluster: its events go on from there',
    );
}
