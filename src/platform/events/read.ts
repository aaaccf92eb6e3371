/**
 * Reads the outbox: events in an order that never changes for a reader.
 *
 * `seq` alone is not a cursor. Transactions commit in a different order from the one in which they took their numbers, so a
 * reader that remembers 7 can miss a 6 that commits later. Events are therefore read in the order of (xid, seq), and only
 * if their transaction is older than every open transaction: no event can appear before them later. The events of one job
 * have the order of its changes, because a change takes its xid after the row lock.
 *
 * After a restore into another PostgreSQL cluster (`pg_restore`), the restored events have xids that the new cluster may
 * reach only in years. So xids are counted from an offset that is set after the restore (`advanceClockAfterRestore`).
 *
 * An open transaction in any database of the PostgreSQL cluster holds back the events after it until it ends.
 *
 * Every read scans one index from the reader's cursor on, so its cost does not depend on the number of events.
 */
import type pg from 'pg';
import { Prisma } from '../../../prisma/generated/client.ts';
import { AppError, invalid } from '../../base/errors.ts';
import type { Db } from '../database/client.ts';
import { retryWhileUnavailable } from '../database/outage.ts';
import type { Bus } from './bus.ts';
import { cursorAfter, cursorTooOld, formatCursor, parseCursor } from './cursor.ts';
import {
  type EventQuery,
  EventsRemoved,
  followPages,
  type OutboxEvent,
  selectEvents,
} from './pages.ts';
import { joinTail } from './tail.ts';

export { EventsRemoved, type OutboxEvent } from './pages.ts';

type OutboxQuery = {
  /** Namespaces to which the subjects belong now. */
  namespaceIds: readonly string[];
  /** Only the events of this job or repository, even after it was transferred to another namespace. */
  subject?: string;
  /** Only types with this prefix. */
  prefix: string;
  /** The `seq` of the last seen event; 0: from the oldest event that is kept; null: from now on. */
  after: number | null;
};

/** Events without their data, which may be 20 kB each, and the stored cursor of the last one. */
export type EventPage = {
  events: Omit<OutboxEvent, 'data'>[];
  cursor: string;
};

/** Events of a page. Pages of a subscription contain the data of events, at most 20 kB each. */
const PAGE_SIZE = { subscription: 100, allEvents: 1_000 };

const WITHOUT_DATA = Prisma.sql`seq, xid, id, type, namespace_id, subject, null::jsonb as data, timestamp`;

type Deps = { db: Db; pool: pg.Pool; bus: Bus };

/**
 * Yields the events that the query selects. Ends when `signal` aborts or the server stops. Waits while the database is
 * unavailable and continues at its cursor. Callers with the same query share one poller of new events (`tail.ts`).
 * @throws AppError 400 if `after` is not the number of an event; EventsRemoved
 */
export async function* followEvents(
  services: Deps,
  { namespaceIds, subject, prefix, after }: OutboxQuery,
  signal: AbortSignal,
): AsyncGenerator<OutboxEvent> {
  const ids = [...namespaceIds].sort();
  const topics = subject
    ? [`subject:${subject}` as const]
    : ids.map((id) => `namespace:${id}` as const);
  const selectWhere = (condition: Prisma.Sql) =>
    selectEvents(Prisma.sql`${condition} and starts_with(type, ${prefix})`);
  // Reads one page of each namespace along its index, and takes the first rows of all these pages.
  const query: EventQuery = subject
    ? selectWhere(Prisma.sql`subject = ${subject}`)
    : (cursor, limit) => Prisma.sql`
        select event.* from unnest(${ids}::text[]) as namespace (id)
        cross join lateral (${selectWhere(Prisma.sql`namespace_id = namespace.id`)(cursor, limit)}) event
        order by xid, seq limit ${limit}`;
  const from = await retryWhileUnavailable(() => cursorAfter(services, after), signal);
  // Contains everything that `query` depends on.
  const key = JSON.stringify([subject ?? ids, prefix]);
  using tail = joinTail(services, { key, topics, query, size: PAGE_SIZE.subscription });
  yield* tail.after(from, signal);
}

/**
 * The events of all namespaces, for a reader that stores its cursor in the database. The reader stores `cursor` in the
 * transaction that handles the page, and continues there after a restart on any server, so it handles each event once.
 * A stored cursor stays valid in a restored database, because events and cursors are restored together.
 * @param stored the stored cursor (`currentCursor` for a new reader); null: starts with the oldest event that is kept
 * @throws EventsRemoved if events after that cursor have been removed
 */
export async function* followAllEvents(
  services: Deps,
  stored: string | null,
  signal: AbortSignal,
): AsyncGenerator<EventPage> {
  const from =
    stored === null
      ? await retryWhileUnavailable(() => cursorAfter(services, 0), signal)
      : parseCursor(stored);
  const query = selectEvents(Prisma.sql`true`, WITHOUT_DATA);
  const size = PAGE_SIZE.allEvents;
  for await (const page of followPages(services, ['events'], query, size, from, signal)) {
    const last = page.at(-1);
    if (last) yield { events: page.map(({ event }) => event), cursor: formatCursor(last.cursor) };
  }
}

/* Shared by the subscriptions to events of jobs and of repositories. */

/**
 * `followEvents` with errors for clients.
 * @throws AppError 400 if `after` is not the number of an event or events after it were removed; 503 when the server stops
 */
export async function* subscribeToEvents(
  services: Deps,
  query: OutboxQuery,
  signal: AbortSignal,
): AsyncGenerator<OutboxEvent> {
  try {
    yield* followEvents(services, query, signal);
  } catch (error) {
    throw error instanceof EventsRemoved ? cursorTooOld() : error;
  }
  // Without an abort, `followEvents` ends only because the server stops.
  if (!signal.aborted) throw serverStoppingError();
}

/** Maximum number of namespaces in one subscription. */
const MAX_NAMESPACES = 100;

/**
 * Returns the distinct namespaces to follow.
 * @param name follows only the job or repository of this name, which requires a single namespace
 * @throws AppError 400
 */
export function parseFollowedNamespaces(
  namespaces: readonly string[],
  name: string | null | undefined,
): [string, ...string[]] {
  const [first, ...others] = new Set(namespaces.map((namespace) => namespace.toLowerCase()));
  if (!first) throw invalid('namespaces', 'must contain at least one namespace');
  if (others.length >= MAX_NAMESPACES)
    throw invalid('namespaces', `must contain at most ${MAX_NAMESPACES} namespaces`);
  if (name != null && others.length > 0)
    throw invalid('name', 'can be given only with a single namespace');
  return [first, ...others];
}

/** Distinguishes a subscription that a stopping server ended from one whose job or repository was deleted. */
export function serverStoppingError(): AppError {
  const message =
    'The server is stopping; subscribe again with `after` set to the last event you received';
  return new AppError('internal_error', message, { status: 503 });
}
