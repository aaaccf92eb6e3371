/** For how long events are kept. */
import type { Services } from '../services.ts';

const BATCH = 1_000;

/**
 * Removes a batch of the events that are older than `days`, and no more than a beginning of the order in which
 * they are read: whoever has the cursor of an event that is kept finds all that come after it.
 * @returns whether there may be more
 */
export async function removeOldEvents(
  { pool }: Pick<Services, 'pool'>,
  days: number,
): Promise<boolean> {
  const { rows } = await pool.query<{ seq: string; old: boolean }>(
    `select seq, timestamp < now() - make_interval(days => $1) as old
     from events order by xid, seq limit ${BATCH}`,
    [days],
  );
  const kept = rows.findIndex(({ old }) => !old);
  const old = kept < 0 ? rows : rows.slice(0, kept);
  if (old.length > 0)
    await pool.query('delete from events where seq = any($1)', [old.map(({ seq }) => seq)]);
  return old.length === BATCH;
}
