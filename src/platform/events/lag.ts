/** How far readers of all events are behind. */
import type pg from 'pg';

/**
 * Of each reader that keeps its place (`event_readers`): the age in seconds of the oldest event that it has not
 * passed, 0 when there is none. One look into the index a reader, however far it is behind.
 */
export async function outboxLag({
  pool,
}: {
  pool: pg.Pool;
}): Promise<{ reader: string; seconds: number }[]> {
  const { rows } = await pool.query<{ reader: string; seconds: number }>(`
    select name as reader,
      coalesce(greatest(0, extract(epoch from clock_timestamp() - next.timestamp)), 0)::float8 as seconds
    from event_readers left join lateral (
      select timestamp from events
      where (xid, seq) > (split_part(place, ':', 1)::xid8, split_part(place, ':', 2)::bigint)
      order by xid, seq limit 1
    ) next on true
    order by name limit 100`);
  return rows;
}
