/** For how long events are kept. */
import type pg from 'pg';

const BATCH = 1_000;

/**
 * Deletes one batch of events that are older than `days`, in reading order and without gaps: a reader whose position is an
 * event that still exists finds every later event. The same statement stores the position of the last deleted event, so a
 * reader with an earlier position learns that it missed events. Events above the horizon are kept, whatever their age: an
 * open transaction hides them, no reader has seen them, and new subscriptions start before them.
 * @returns whether there may be more
 */
export async function removeOldEvents({ pool }: { pool: pg.Pool }, days: number): Promise<boolean> {
  const { rows } = await pool.query<{ seq: string; old: boolean }>(
    `select seq, timestamp < now() - make_interval(days => $1) as old
     from events where xid < (select event_horizon()) order by xid, seq limit ${BATCH}`,
    [days],
  );
  const kept = rows.findIndex(({ old }) => !old);
  const old = kept < 0 ? rows : rows.slice(0, kept);
  if (old.length > 0)
    await pool.query(
      `with removed as (delete from events where seq = any($1) returning xid, seq)
       update event_clock set removed_xid = last.xid, removed_seq = last.seq
       from (select xid, seq from removed order by xid desc, seq desc limit 1) last
       where (removed_xid, removed_seq) < (last.xid, last.seq)`,
      [old.map(({ seq }) => seq)],
    );
  return old.length === BATCH;
}
