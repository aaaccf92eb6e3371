/**
 * Writes events and wakes their readers.
 *
 * A state change writes its event in its own transaction (`publish`), so neither exists without the other. Readers keep a
 * cursor and read the table (`read.ts`). NOTIFY only tells them to look again, so a lost notification delays a reader by
 * one idle period and loses no event.
 */

import type pg from 'pg';
import type { Prisma } from '../../../prisma/generated/client.ts';
import { newId } from '../../base/ids.ts';
import type { Logger } from '../../base/log.ts';
import { eventNotification, type Notification } from './bus.ts';

/** Every transition of a job, and changes of repositories. Webhooks send some of them under other names. */
export type EventType =
  | `job.${'queued' | 'running' | 'succeeded' | 'failed' | 'cancelled' | 'timed_out' | 'deleted'}`
  | `repository.${'created' | 'renamed' | 'transferred' | 'updated' | 'pushed' | 'deleted'}`;

type NewEvent = {
  /** Set by a writer that may retry: ids are unique, so the second attempt is refused. Default: a new id. */
  id?: string;
  type: EventType;
  namespaceId: string;
  /** Id of the job or repository. */
  subject: string;
  /** The whole subject at that moment, so that readers load nothing; below 20 kB, without secrets and the job's `env`. */
  data: Prisma.InputJsonObject;
};

type Tx = Pick<Prisma.TransactionClient, 'event' | '$executeRaw'>;

/** Writes the event and wakes its readers when the transaction commits. */
export async function publish(tx: Tx, event: NewEvent): Promise<void> {
  await tx.event.create({ data: { id: newId('evt'), ...event }, select: { seq: true } });
  await notifyReaders(tx, eventNotification(event.namespaceId, event.subject));
}

/** Wakes the readers of a topic, on every server, when the transaction commits. */
export async function notifyReaders(
  tx: Pick<Tx, '$executeRaw'>,
  what: Notification,
): Promise<void> {
  await tx.$executeRaw`select pg_notify('loam', ${what})`;
}

/** Events that are deleted in one batch. */
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

/* The order of events after a restore into another cluster. */

/**
 * After a restore into another cluster, makes new events come after all existing and removed events, so that stored cursors
 * stay valid. Must be called before a server writes its first event; several servers may call it at the same time.
 */
export async function advanceClockAfterRestore({
  pool,
  log,
}: {
  pool: pg.Pool;
  log: Logger;
}): Promise<void> {
  // The condition is false if this cluster wrote the events: their xids are below its next xid.
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
      'the database was restored into another cluster; new events continue after the restored events',
    );
}

/* How far readers of all events are behind. */

/**
 * For each reader with a stored cursor (`event_readers`): the age in seconds of the oldest event that it has not passed, or
 * 0. One index lookup for each reader, however far it is behind.
 */
export async function measureOutboxLag({
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
