/**
 * Reading the outbox: events in an order that never changes under a reader.
 *
 * `seq` alone is no cursor. Transactions commit in another order than they took their numbers, so a reader
 * that remembers 7 can miss a 6 that commits later. Events are therefore read in the order of (xid, seq), and
 * only those whose transaction is older than every one still open: nothing can appear before them any more.
 * Of one job's events the order is that of its changes, because a change takes its xid after the row's lock.
 *
 * In a database that was restored into another cluster (`pg_restore`), the events that came with it have xids which
 * that cluster may reach in years. So xids are counted from a start that is set then (`event_clock`, `clock.ts`).
 *
 * An open transaction, of whatever database of the cluster, holds the events after it back until it ends.
 *
 * Every read walks one index from the reader's place on, so it costs the same however many events are kept.
 */
import type pg from 'pg';
import { Prisma } from '../../../prisma/generated/client.ts';
import type { Db } from '../database/client.ts';
import { untilAnswered } from '../database/outage.ts';
import type { Bus } from './bus.ts';
import { cursorAfter, placeOf, placeText } from './cursor.ts';
import { eventsWhere, type OutboxEvent, type Query, readPages } from './pages.ts';
import { joinTail } from './tail.ts';

export { EventsRemoved, type OutboxEvent } from './pages.ts';

export type OutboxQuery = {
  /** Whose events, or where the subject belongs now. */
  namespaceIds: readonly string[];
  /** All events of this job or repository, and no others, also after it was given to another namespace. */
  subject?: string;
  /** Only types that begin like this. */
  prefix: string;
  /** The `seq` of the last event that was seen; 0: from the first that is kept; null: from now on. */
  after: number | null;
};

/** Some events, and the place of the last of them. What they hold is read where it is needed: it may be 20 kB each. */
export type EventPage = { events: Omit<OutboxEvent, 'data'>[]; place: string };

/** Rows of a page. */
const PAGE = { followed: 100, all: 1_000 };

const WITHOUT_DATA = Prisma.sql`seq, xid, id, type, namespace_id, subject, null::jsonb as data, timestamp`;

type Deps = { db: Db; pool: pg.Pool; bus: Bus };

/**
 * Ends when `signal` aborts or the server stops. While the database is away it waits, and goes on where it stood.
 * Those who follow the same share what comes (`tail.ts`).
 * @throws AppError 400 when `after` is the number of no event; EventsRemoved
 */
export async function* readOutbox(
  services: Deps,
  { namespaceIds, subject, prefix, after }: OutboxQuery,
  signal: AbortSignal,
): AsyncGenerator<OutboxEvent> {
  const ids = [...namespaceIds].sort();
  const topics = subject
    ? [`subject:${subject}` as const]
    : ids.map((id) => `namespace:${id}` as const);
  const page = (of: Prisma.Sql) => eventsWhere(Prisma.sql`${of} and starts_with(type, ${prefix})`);
  // A page of each namespace, so that each is read along its index, and of these the first page.
  const query: Query = subject
    ? page(Prisma.sql`subject = ${subject}`)
    : (place, limit) => Prisma.sql`
        select each.* from unnest(${ids}::text[]) as namespace (id)
        cross join lateral (${page(Prisma.sql`namespace_id = namespace.id`)(place, limit)}) each
        order by xid, seq limit ${limit}`;
  const from = await untilAnswered(() => cursorAfter(services, after), signal);
  const key = JSON.stringify([subject ?? ids, prefix]);
  using tail = joinTail(services, { key, topics, query, size: PAGE.followed });
  yield* tail.after(from, signal);
}

/**
 * The events of all namespaces, for a reader that keeps its place in the database: it stores `place` in the
 * transaction that acts on the events of the page, and goes on from there after a restart, on whichever server. So
 * it acts on each event once. A place stays right in a database that is restored, because events and places are
 * restored together.
 * @param after the place that was stored (`placeNow` for a new reader); null: before the oldest event that is kept
 * @throws EventsRemoved when events between that place and the oldest event have been removed
 */
export async function* readAllEvents(
  services: Deps,
  after: string | null,
  signal: AbortSignal,
): AsyncGenerator<EventPage> {
  const from =
    after === null ? await untilAnswered(() => cursorAfter(services, 0), signal) : placeOf(after);
  const query = eventsWhere(Prisma.sql`true`, WITHOUT_DATA);
  for await (const page of readPages(services, ['events'], query, PAGE.all, from, signal)) {
    const last = page.at(-1);
    if (last) yield { events: page.map(({ event }) => event), place: placeText(last.place) };
  }
}
