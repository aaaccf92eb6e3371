/** For how long events are kept. */
import type { Services } from '../services.ts';

const BATCH = 1_000;

/**
 * Removes a batch of the events that are older than `days`, and no more than a beginning of the order in which
 * they are read: a reader that has the place of an event that is kept finds all that come after it. How far this
 * got is noted in the same statement, so that a reader which is not there yet learns that it missed some. An event
 * that an open transaction holds back is kept: nobody has read it, and readers that begin now stand before it.
 * @returns whether there may be more
 */
export async function removeOldEvents(
  { pool }: Pick<Services, 'pool'>,
  days: number,
): Promise<boolean> {
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
