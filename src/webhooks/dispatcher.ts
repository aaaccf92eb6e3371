/**
 * Turns events into deliveries: one per event and matching webhook.
 *
 * One server dispatches at a time: the server whose session holds an advisory lock. If that server ends, another server takes
 * over within a second. The lock only avoids duplicate work. The cursor makes dispatch exact: the deliveries of a page of
 * events and the cursor after the page are written in one transaction, which does nothing if another server has moved the
 * cursor. So each event is dispatched exactly once, whatever happens to servers, sessions and locks.
 *
 * A page without matching webhooks writes no rows. Reading such a page again is harmless, so its cursor is stored later.
 */

import type pg from 'pg';
import { WEBHOOK_DISPATCH_LOCK } from '../base/advisory-locks.ts';
import { sleep } from '../base/backoff.ts';
import { newId } from '../base/ids.ts';
import type { Logger } from '../base/log.ts';
import type { Db } from '../platform/database/client.ts';
import { retryWhileUnavailable } from '../platform/database/outage.ts';
import type { Session } from '../platform/database/session.ts';
import type { Bus } from '../platform/events/bus.ts';
import { currentCursor } from '../platform/events/cursor.ts';
import type { EventType } from '../platform/events/outbox.ts';
import { EventsRemoved, followAllEvents, type OutboxEvent } from '../platform/events/read.ts';
import { startLoop } from '../platform/loop.ts';
import { WEBHOOK_TYPE_OF_EVENT } from './event-types.ts';
import { openFollowerNotifier } from './following.ts';

/** Interval between attempts to take the lock. */
const LOCK_RETRY_MS = 1_000;
/**
 * Pause after a page of events without matching webhooks. Without a pause, the dispatcher reads 50 times a second while many
 * short jobs run, which is a twentieth of the total cost of these jobs.
 */
const UNMATCHED_PAUSE_MS = 100;
/** After a page of this size the next read follows at once, because more events are likely to be waiting. */
const LARGE_PAGE = 50;
/** Interval at which the cursor is stored while pages have no matching webhooks. */
const STORE_CURSOR_MS = 5_000;
/** Name of the stored cursor in `event_readers`, whose column `place` is the cursor. */
const READER_NAME = 'webhooks';

type Deps = { db: Db; pool: pg.Pool; bus: Bus; log: Logger };

/** On the first start, sets the cursor to the current end of the events. Must run before a webhook can be created. */
export async function initializeCursor(services: { db: Db; pool: pg.Pool }): Promise<void> {
  await services.pool.query(
    'insert into event_readers (name, place) values ($1, $2) on conflict do nothing',
    [READER_NAME, await currentCursor(services)],
  );
}

/** Runs until disposed. */
export function startDispatcher(services: Deps, session: Session): AsyncDisposable {
  return startLoop(
    {
      name: 'Dispatching events to webhooks',
      every: LOCK_RETRY_MS,
      alone: (work) => session.runAlone(WEBHOOK_DISPATCH_LOCK, work),
      log: services.log,
    },
    (signal) => dispatch(services, signal),
  );
}

/** Dispatches until another server has moved the cursor. @throws `signal.reason` */
async function dispatch(services: Deps, signal: AbortSignal): Promise<void> {
  const { pool, log } = services;
  await using notifier = openFollowerNotifier(services);
  let stored = await retryWhileUnavailable(() => readCursor(pool), signal);
  let reached = stored;
  // A page and the timer both write the cursor, so their writes are serialized.
  let writing: Promise<unknown> = Promise.resolve();
  const serialize = <T>(work: () => Promise<T>): Promise<T> => {
    const result = writing.then(work);
    writing = result.catch(() => {});
    return result;
  };
  const storeReached = () =>
    serialize(async () => {
      const next = reached;
      if (next !== stored && (await moveCursor(pool, stored, next))) stored = next;
    });
  await using _ = startLoop(
    { name: 'Storing the webhook cursor', every: STORE_CURSOR_MS, waitsFirst: true, log },
    storeReached,
  );

  /** @returns the number of deliveries; null if another server dispatches now */
  const dispatchPage = async (
    events: readonly Omit<OutboxEvent, 'data'>[],
    cursor: string,
  ): Promise<number | null> => {
    const eligible = events.flatMap((event) => {
      const type = WEBHOOK_TYPE_OF_EVENT[event.type as EventType];
      return type ? [{ ...event, type }] : [];
    });
    const matches =
      eligible.length > 0
        ? await retryWhileUnavailable(() => matchWebhooks(pool, eligible), signal)
        : [];
    return serialize(async () => {
      if (matches.length > 0) {
        const isMoved = await retryWhileUnavailable(
          () => enqueueDeliveries(pool, { from: stored, to: cursor, events: eligible, matches }),
          signal,
        );
        if (!isMoved) return null;
        stored = cursor;
        notifier.add(matches.map(({ webhookId }) => webhookId));
      }
      reached = cursor;
      return matches.length;
    });
  };

  try {
    for (let from: string | null = stored; ; ) {
      try {
        for await (const { events, cursor } of followAllEvents(services, from, signal)) {
          const deliveries = await dispatchPage(events, cursor);
          if (deliveries === null) return;
          if (deliveries === 0 && events.length < LARGE_PAGE)
            await sleep(UNMATCHED_PAUSE_MS, signal);
        }
        return;
      } catch (error) {
        if (!(error instanceof EventsRemoved)) throw error;
        log.error(
          { cursor: reached },
          'events were removed before they were dispatched to webhooks; continuing with the oldest kept event',
        );
        // Starts with the oldest event.
        from = null;
      }
    }
  } finally {
    await storeReached().catch(() => {});
  }
}

async function readCursor(pool: pg.Pool): Promise<string> {
  const { rows } = await pool.query<{ cursor: string }>(
    'select place as cursor from event_readers where name = $1',
    [READER_NAME],
  );
  if (!rows[0]) throw new Error(`event_readers has no row ${READER_NAME}`);
  return rows[0].cursor;
}

async function moveCursor(pool: pg.Pool, from: string, to: string): Promise<boolean> {
  const { rowCount } = await pool.query(
    'update event_readers set place = $3 where name = $1 and place = $2',
    [READER_NAME, from, to],
  );
  return rowCount === 1;
}

type MatchedEvent = Pick<OutboxEvent, 'seq' | 'type' | 'namespaceId' | 'timestamp'>;
/** An event, by its index, and a webhook that subscribes to it. */
type Match = { index: number; webhookId: string };

/**
 * `offset 0` fixes the join order, from events to the webhooks of their namespaces: without statistics of new tables
 * PostgreSQL compares every event with every webhook. The events are JSON because PostgreSQL then always expects the same
 * number of rows and plans once. With arrays it plans each time, which takes 0.5 ms.
 */
const MATCH = `
  select source.position::int - 1 as index, webhook.id as "webhookId"
  from rows from (json_to_recordset($1) as (type text, "namespaceId" text, timestamp timestamptz))
    with ordinality as source (type, namespace_id, at, position)
  cross join lateral (
    select webhook_id from webhook_namespaces where namespace_id = source.namespace_id offset 0
  ) listed
  cross join lateral (
    select id from webhooks where id = listed.webhook_id and active and deleted_at is null
      and source.type = any(event_types) and created_at <= source.at offset 0
  ) webhook
  order by source.position, webhook.id`;

async function matchWebhooks(pool: pg.Pool, events: readonly MatchedEvent[]): Promise<Match[]> {
  const { rows } = await pool.query<Match>({
    name: 'webhooks of events',
    text: MATCH,
    values: [JSON.stringify(events)],
  });
  return rows;
}

/**
 * One statement, so it is one transaction, and event data does not leave the database. `due_at` is also written for claimed
 * webhooks: a changed `due_at` tells a server that is about to release a webhook that a delivery was added.
 */
const ENQUEUE = `
  with moved as (
    update event_readers set place = $3 where name = $1 and place = $2 returning name
  ), message as (
    insert into webhook_messages (id, type, namespace_id, namespace, timestamp, data)
    select events.id, source.type, events.namespace_id, namespaces.name, events.timestamp, events.data
    from moved, unnest($4::bigint[], $5::text[]) as source (seq, type)
    join events on events.seq = source.seq
    join namespaces on namespaces.id = events.namespace_id
    on conflict (id) do update set type = excluded.type
    returning id, type, namespace_id
  ), delivery as (
    insert into deliveries (id, webhook_id, message_id, type, namespace_id, next_attempt_at)
    select pair.id, pair.webhook_id, message.id, message.type, message.namespace_id, now()
    from unnest($6::text[], $7::text[], $8::text[]) as pair (id, webhook_id, message_id)
    join message on message.id = pair.message_id
  ), due as (
    update webhook_queues set due_at = clock_timestamp()
    from moved where webhook_id = any($9::text[])
  )
  select pg_notify('loam', 'deliveries') from moved`;

/** @returns false if another server has moved the cursor; then nothing is written */
async function enqueueDeliveries(
  pool: pg.Pool,
  {
    from,
    to,
    events,
    matches,
  }: {
    from: string;
    to: string;
    events: readonly (MatchedEvent & { id: string })[];
    matches: readonly Match[];
  },
): Promise<boolean> {
  const matched = [...new Set(matches.map(({ index }) => index))].flatMap(
    (index) => events[index] ?? [],
  );
  // Deliveries are sent in the order of their ids, and ids of one millisecond are not ordered by themselves.
  const ids = matches.map(() => newId('dlv')).sort();
  const { rowCount } = await pool.query({
    name: 'deliveries of events',
    text: ENQUEUE,
    values: [
      ...[READER_NAME, from, to],
      matched.map(({ seq }) => seq),
      matched.map(({ type }) => type),
      ids,
      matches.map(({ webhookId }) => webhookId),
      matches.map(({ index }) => events[index]?.id),
      [...new Set(matches.map(({ webhookId }) => webhookId))].sort(),
    ],
  });
  return rowCount === 1;
}
