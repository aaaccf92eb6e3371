/**
 * The transactional outbox: writes events, removes old events, keeps their order after a restore, and measures how far
 * readers are behind.
 *
 * A state change writes its event in its own transaction (`publish`), so neither exists without the other. Readers keep a
 * cursor and read the table (`read.ts`). NOTIFY only makes them read again, so a lost notification loses no event: it delays
 * a reader until its next poll, 15 s by default (`bus.ts`).
 */

import type pg from 'pg';
import type { Prisma } from '../../../prisma/generated/client.ts';
import { newId } from '../../base/ids.ts';
import type { Logger } from '../../base/log.ts';
import type { Db } from '../database/client.ts';
import { eventNotification, type NotifyPayload } from './bus.ts';

/**
 * Every transition of a job, changes of repositories, thresholds of budgets, and changes of machines. Webhooks rename some types
 * (`webhooks/event-types.ts`).
 */
export type EventType =
  | `job.${'queued' | 'running' | 'succeeded' | 'failed' | 'cancelled' | 'timed_out' | 'deleted'}`
  | `repository.${'created' | 'renamed' | 'transferred' | 'updated' | 'pushed' | 'deleted'}`
  | 'budget.reached'
  | `machine.${'joined' | 'silent' | 'online' | 'draining' | 'resumed' | 'removed'}`;

type NewEvent = {
  /** Set by a writer that may retry: ids are unique, so a second insert fails. Default: a new id. */
  id?: string;
  type: EventType;
  namespaceId: string;
  /** Id of the job, repository or machine, or of the namespace of the budget. */
  subject: string;
  /** The whole job or repository, so that readers load nothing else; below 20 kB. It has neither secrets nor the job's `env`. */
  data: Prisma.InputJsonObject;
};

/** Writes the event. Its readers are woken when the transaction commits. */
export async function publish(tx: Db, event: NewEvent): Promise<void> {
  await tx.event.create({ data: { id: newId('evt'), ...event }, select: { seq: true } });
  await notifyReaders(tx, eventNotification(event.namespaceId, event.subject));
}

/** Wakes the readers of a topic (`bus.ts`) on every server when the transaction commits. */
export async function notifyReaders(tx: Db, notification: NotifyPayload): Promise<void> {
  await tx.$executeRaw`select pg_notify('loam', ${notification})`;
}

/** Events that are deleted in one batch. */
const DELETED_PER_BATCH = 1_000;

/**
 * Deletes one batch of events that are older than `days`, in reading order and without gaps: a reader whose cursor is an
 * event that still exists finds every later event. The same statement stores the cursor of the last deleted event, so a
 * reader with an earlier cursor learns that it missed events.
 *
 * Events from the horizon on, which is the oldest open transaction, are kept whatever their age: no reader can have
 * seen them yet, and new subscriptions start before them.
 * @returns whether there may be more
 */
export async function removeOldEvents({ pool }: { pool: pg.Pool }, days: number): Promise<boolean> {
  const { rows } = await pool.query<{ seq: string; isExpired: boolean }>(
    `select seq, timestamp < now() - make_interval(days => $1) as "isExpired"
     from events where xid < (select event_horizon()) order by xid, seq limit ${DELETED_PER_BATCH}`,
    [days],
  );
  const firstKept = rows.findIndex(({ isExpired }) => !isExpired);
  const expired = firstKept < 0 ? rows : rows.slice(0, firstKept);
  if (expired.length > 0)
    await pool.query(
      `with removed as (delete from events where seq = any($1) returning xid, seq)
       update event_clock set removed_xid = last.xid, removed_seq = last.seq
       from (select xid, seq from removed order by xid desc, seq desc limit 1) last
       where (removed_xid, removed_seq) < (last.xid, last.seq)`,
      [expired.map(({ seq }) => seq)],
    );
  return expired.length === DELETED_PER_BATCH;
}

/**
 * After a restore into another PostgreSQL cluster, makes new events come after all existing and removed events, so that
 * stored cursors stay valid. Must be called before a server writes its first event; several servers may call it at the
 * same time. `ahead` is the number that is added to PostgreSQL's xids to get the xids of events.
 */
export async function advanceClockAfterRestore({
  pool,
  log,
}: {
  pool: pg.Pool;
  log: Logger;
}): Promise<void> {
  // If this PostgreSQL cluster wrote the events, their xids are below its next xid, and the condition is false.
  const { rows } = await pool.query<{ ahead: string }>(
    `update event_clock set ahead = last.xid + 1
     from (
       select greatest((select xid from events order by xid desc limit 1), removed_xid)::text::bigint as xid
       from event_clock
     ) last
     where last.xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint + ahead
     returning ahead`,
  );
  const [advanced] = rows;
  if (advanced)
    log.warn(
      { ahead: advanced.ahead },
      'the database was restored into another PostgreSQL cluster; new events continue after the restored events',
    );
}

/**
 * For each reader with a stored cursor (`event_readers.place`): the age in seconds of the oldest event that it has not
 * passed; 0 if there is none. One index lookup for each reader, however far it is behind. The limit bounds the number of
 * metric labels; Loam has one such reader, the webhook dispatcher.
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
