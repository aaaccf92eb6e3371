/**
 * Writing events, and waking their readers.
 *
 * A state change writes its event in its own transaction (`publish`), so neither exists without the other.
 * Readers keep a cursor and read the table (`read.ts`); NOTIFY only says when to look again, so a notification that
 * is lost delays a reader by one idle period, and no event is lost.
 */

import type pg from 'pg';
import type { Prisma } from '../../../prisma/generated/client.ts';
import { newId } from '../../base/ids.ts';
import type { Logger } from '../../base/log.ts';
import { eventNotification, type Notification } from './bus.ts';

/** Every transition of a job, and what happens to repositories. Webhooks send some of them under other names. */
export type EventType =
  | `job.${'queued' | 'running' | 'succeeded' | 'failed' | 'cancelled' | 'timed_out' | 'deleted'}`
  | `repository.${'created' | 'renamed' | 'transferred' | 'updated' | 'pushed' | 'deleted'}`;

export type NewEvent = {
  /** Chosen beforehand by a writer that may try twice: the second is refused, as ids are unique. Default: a new one. */
  id?: string;
  type: EventType;
  namespaceId: string;
  /** The id of the job or repository. */
  subject: string;
  /** The subject at that moment, whole, so that readers load nothing; under 20 kB, never a secret or a job's `env`. */
  data: Prisma.InputJsonObject;
};

type Tx = Pick<Prisma.TransactionClient, 'event' | '$executeRaw'>;

/** Writes the event and wakes its readers when the transaction commits. */
export async function publish(tx: Tx, event: NewEvent): Promise<void> {
  await tx.event.create({ data: { id: newId('evt'), ...event }, select: { seq: true } });
  await wake(tx, eventNotification(event.namespaceId, event.subject));
}

/** Wakes the readers of a topic, on every server, when the transaction commits. */
export async function wake(tx: Pick<Tx, '$executeRaw'>, what: Notification): Promise<void> {
  await tx.$executeRaw`select pg_notify('loam', ${what})`;
}

/** For how long events are kept. */
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

/* The order of events, in a database that was moved to another cluster. */

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

/* How far readers of all events are behind. */

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
