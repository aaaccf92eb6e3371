/**
 * Turns events into deliveries: one for each webhook that is to be told of an event.
 *
 * One server does it at a time, the one whose session holds a lock; another takes over within a second of its end.
 * What makes it exact is not the lock but the place: the deliveries of a page of events, and the place behind it, are
 * written in one transaction, and only if nobody has moved the place meanwhile. So each event is told of once,
 * whatever happens to servers, sessions and locks.
 *
 * A page that concerns nobody writes nothing; to read it again does no harm, so the place behind it is stored later.
 */

import { setTimeout as delay } from 'node:timers/promises';
import type pg from 'pg';
import { WEBHOOK_DISPATCH_LOCK } from '../base/advisory-locks.ts';
import { newId } from '../base/ids.ts';
import type { Logger } from '../base/log.ts';
import type { Db } from '../platform/database/client.ts';
import { untilAnswered } from '../platform/database/outage.ts';
import type { Session } from '../platform/database/session.ts';
import type { Bus } from '../platform/events/bus.ts';
import { placeNow } from '../platform/events/cursor.ts';
import type { EventType } from '../platform/events/outbox.ts';
import { EventsRemoved, type OutboxEvent, readAllEvents } from '../platform/events/read.ts';
import { TOLD_AS } from './event-types.ts';
import { openNotices } from './recorder.ts';

/** Between looks whether the lock is free. */
const TAKE_OVER_MS = 1_000;
/**
 * Between two looks when the first found some events, and none that concerns anybody: many short jobs made it look 50 times a
 * second, a twentieth of all that they cost.
 */
const UNCONCERNED_MS = 100;
/** As many as that are read on at once, since there are more. */
const MANY = 50;
/** How far a place that concerns nobody is behind at most when it is stored. */
const STORE_MS = 5_000;
const READER = 'webhooks';

type Deps = { db: Db; pool: pg.Pool; bus: Bus; log: Logger };

/**
 * Makes the place from which events are told, with the first start of this version: what happens from now on. To be
 * called before anybody can make a webhook.
 */
export async function markBeginning(services: { db: Db; pool: pg.Pool }): Promise<void> {
  await services.pool.query(
    'insert into event_readers (name, place) values ($1, $2) on conflict do nothing',
    [READER, await placeNow(services)],
  );
}

/** Owns its work until it is disposed. */
export function startDispatcher(services: Deps, session: Session): AsyncDisposable {
  const { log } = services;
  const stopping = new AbortController();
  const { signal } = stopping;
  const working = (async () => {
    for (; !signal.aborted; await delay(TAKE_OVER_MS, undefined, { signal }).catch(() => {})) {
      if (!(await takeLock(session))) continue;
      try {
        await dispatchWhileConnected(services, signal);
      } catch (error) {
        if (!signal.aborted)
          log.error({ err: error }, 'telling webhooks of events: again in a second');
      } finally {
        // A session that was lost has let go of it.
        await session.query('select pg_advisory_unlock($1)', [WEBHOOK_DISPATCH_LOCK]).catch(() => {});
      }
    }
  })();
  return {
    async [Symbol.asyncDispose]() {
      stopping.abort();
      await working;
    },
  };
}

async function takeLock(session: Session): Promise<boolean> {
  const query = session.query<{ taken: boolean }>('select pg_try_advisory_lock($1) as taken', [
    WEBHOOK_DISPATCH_LOCK,
  ]);
  // While there is no session nobody can have the lock on it.
  const [row] = await query.catch(() => []);
  return row?.taken ?? false;
}

/** Until the session was made again, and the lock is gone that it had; or another server is found to dispatch. */
async function dispatchWhileConnected(services: Deps, stopped: AbortSignal): Promise<void> {
  const lost = new AbortController();
  const signal = AbortSignal.any([stopped, lost.signal]);
  const watching = (async () => {
    for await (const why of services.bus.wakes('database', signal))
      if (why === 'wake') lost.abort();
  })();
  try {
    await dispatch(services, signal);
  } catch (error) {
    if (!signal.aborted) throw error;
  } finally {
    lost.abort();
    await watching;
  }
}

/** Returns when another server has moved the place. @throws `signal.reason` */
async function dispatch(services: Deps, signal: AbortSignal): Promise<void> {
  const { pool, log } = services;
  await using notices = openNotices(services);
  let stored = await untilAnswered(() => readPlace(pool), signal);
  let passed = stored;
  // A page and the timer both write the place: one after the other.
  let writing: Promise<unknown> = Promise.resolve();
  const inTurn = <T>(work: () => Promise<T>): Promise<T> => {
    const mine = writing.then(work);
    writing = mine.catch(() => {});
    return mine;
  };
  const storePassed = () =>
    inTurn(async () => {
      const to = passed;
      if (to !== stored && (await movePlace(pool, stored, to))) stored = to;
    });
  const timer = setInterval(() => {
    storePassed().catch((error) =>
      log.debug({ err: error }, 'the place of webhooks was not stored'),
    );
  }, STORE_MS);

  /** @returns how many deliveries came of it; null when we are not the one any more that dispatches */
  const take = async (
    events: readonly Omit<OutboxEvent, 'data'>[],
    place: string,
  ): Promise<number | null> => {
    const told = events.flatMap((event) => {
      const type = TOLD_AS[event.type as EventType];
      return type ? [{ ...event, type }] : [];
    });
    const pairs = told.length > 0 ? await untilAnswered(() => match(pool, told), signal) : [];
    return inTurn(async () => {
      if (pairs.length > 0) {
        const moved = await untilAnswered(
          () => enqueue(pool, { from: stored, to: place, told, pairs }),
          signal,
        );
        if (!moved) return null;
        stored = place;
        notices.add(pairs.map(({ webhookId }) => webhookId));
      }
      passed = place;
      return pairs.length;
    });
  };

  try {
    for (let from: string | null = stored; ; ) {
      try {
        for await (const { events, place } of readAllEvents(services, from, signal)) {
          const taken = await take(events, place);
          if (taken === null) return;
          if (taken === 0 && events.length < MANY)
            await delay(UNCONCERNED_MS, undefined, { signal }).catch(() => {});
        }
        return;
      } catch (error) {
        if (!(error instanceof EventsRemoved)) throw error;
        log.error(
          { place: passed },
          'events were removed before webhooks were told of them: going on with the oldest that are kept',
        );
        from = null;
      }
    }
  } finally {
    clearInterval(timer);
    await storePassed().catch(() => {});
  }
}

async function readPlace(pool: pg.Pool): Promise<string> {
  const { rows } = await pool.query<{ place: string }>(
    'select place from event_readers where name = $1',
    [READER],
  );
  if (!rows[0]) throw new Error(`event_readers has no row ${READER}`);
  return rows[0].place;
}

async function movePlace(pool: pg.Pool, from: string, to: string): Promise<boolean> {
  const { rowCount } = await pool.query(
    'update event_readers set place = $3 where name = $1 and place = $2',
    [READER, from, to],
  );
  return rowCount === 1;
}

type Told = Pick<OutboxEvent, 'seq' | 'type' | 'namespaceId' | 'timestamp'>;
/** An event, by its index in the page, and a webhook that is to be told of it. */
type Pair = { index: number; webhookId: string };

/**
 * `offset 0` keeps the order of the joins: from events to the webhooks of their namespaces. Without statistics of new
 * tables PostgreSQL asked for every event and every webhook whether they belong together. Of JSON it expects always as many
 * rows, and so plans this once; of arrays it took each time for another number, and planned for 0.5 ms.
 */
const MATCH = `
  select told.position::int - 1 as index, webhook.id as "webhookId"
  from rows from (json_to_recordset($1) as (type text, "namespaceId" text, timestamp timestamptz))
    with ordinality as told (type, namespace_id, at, position)
  cross join lateral (
    select webhook_id from webhook_namespaces where namespace_id = told.namespace_id offset 0
  ) listed
  cross join lateral (
    select id from webhooks where id = listed.webhook_id and active and deleted_at is null
      and told.type = any(event_types) and created_at <= told.at offset 0
  ) webhook
  order by told.position, webhook.id`;

async function match(pool: pg.Pool, told: readonly Told[]): Promise<Pair[]> {
  const { rows } = await pool.query<Pair>({
    name: 'webhooks of events',
    text: MATCH,
    values: [JSON.stringify(told)],
  });
  return rows;
}

/**
 * In one statement, so in one transaction. The data of events stays in the database. `due_at` is written also for a
 * webhook that a server sends for: it sees by it, when it wants to let go of the webhook, that something came.
 */
const ENQUEUE = `
  with moved as (
    update event_readers set place = $3 where name = $1 and place = $2 returning name
  ), message as (
    insert into webhook_messages (id, type, namespace_id, namespace, timestamp, data)
    select events.id, told.type, events.namespace_id, namespaces.name, events.timestamp, events.data
    from moved, unnest($4::bigint[], $5::text[]) as told (seq, type)
    join events on events.seq = told.seq
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

/** @returns false when the place was moved by another: nothing is written then */
async function enqueue(
  pool: pg.Pool,
  {
    from,
    to,
    told,
    pairs,
  }: { from: string; to: string; told: readonly (Told & { id: string })[]; pairs: readonly Pair[] },
): Promise<boolean> {
  const wanted = [...new Set(pairs.map(({ index }) => index))].flatMap(
    (index) => told[index] ?? [],
  );
  // Deliveries are sent in the order of their ids, and those of one millisecond are in none.
  const ids = pairs.map(() => newId('dlv')).sort();
  const { rowCount } = await pool.query({
    name: 'deliveries of events',
    text: ENQUEUE,
    values: [
      ...[READER, from, to],
      wanted.map(({ seq }) => seq),
      wanted.map(({ type }) => type),
      ids,
      pairs.map(({ webhookId }) => webhookId),
      pairs.map(({ index }) => told[index]?.id),
      [...new Set(pairs.map(({ webhookId }) => webhookId))].sort(),
    ],
  });
  return rowCount === 1;
}
