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
import { setTimeout as delay } from 'node:timers/promises';
import { Prisma } from '../../prisma/generated/client.ts';
import { untilAnswered } from '../database/outage.ts';
import type { Services } from '../services.ts';
import type { Topic } from './bus.ts';
import { type Place, placeAfter, placeOf, placeText } from './place.ts';

export type OutboxEvent = {
  /** What clients get as a cursor. */
  seq: number;
  id: string;
  type: string;
  namespaceId: string;
  subject: string;
  data: Prisma.JsonObject;
  timestamp: Date;
};

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

/** Some events, and the place of the last of them. */
export type EventPage = { events: OutboxEvent[]; place: string };

/** Events after the reader's place were removed by age before it read them. It can begin with the oldest kept. */
export class EventsRemoved extends Error {
  constructor() {
    super('events after this place were removed, because they were older than events are kept');
  }
}

/** Rows of a page. Events are under 20 kB, so a page of all namespaces is under 5 MB. */
const PAGE = { followed: 100, all: 250 };
/** Nobody wakes a reader when the transaction ends that holds events back: it looks again, ever less often. */
const FIRST_HELD_BACK_MS = 20;
const MAX_HELD_BACK_MS = 250;

type Deps = Pick<Services, 'db' | 'bus'>;

/**
 * Ends when `signal` aborts or the server stops. While the database is away it waits, and goes on where it stood.
 * @throws AppError 400 when `after` is the number of no event; EventsRemoved
 */
export async function* readOutbox(
  services: Deps,
  { namespaceIds, subject, prefix, after }: OutboxQuery,
  signal: AbortSignal,
): AsyncGenerator<OutboxEvent> {
  const topics = subject
    ? [`subject:${subject}` as const]
    : namespaceIds.map((id) => `namespace:${id}` as const);
  const page = (of: Prisma.Sql) => eventsWhere(Prisma.sql`${of} and starts_with(type, ${prefix})`);
  // A page of each namespace, so that each is read along its index, and of these the first page.
  const query: Query = subject
    ? page(Prisma.sql`subject = ${subject}`)
    : (place) => Prisma.sql`
        select each.* from unnest(${namespaceIds}::text[]) as namespace (id)
        cross join lateral (${page(Prisma.sql`namespace_id = namespace.id`)(place, PAGE.followed)}) each
        order by xid, seq limit ${PAGE.followed}`;
  const from = await untilAnswered(() => placeAfter(services, after), signal);
  for await (const { events } of readPages(services, topics, query, PAGE.followed, from, signal))
    for (const event of events) {
      yield event;
      if (signal.aborted) return;
    }
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
    after === null ? await untilAnswered(() => placeAfter(services, 0), signal) : placeOf(after);
  const query = eventsWhere(Prisma.sql`true`);
  yield* readPages(services, ['events'], query, PAGE.all, from, signal);
}

type Query = (after: Place, limit: number) => Prisma.Sql;

function eventsWhere(condition: Prisma.Sql): Query {
  return ({ xid, seq, snapshot }, limit) => Prisma.sql`
    select * from events
    where ${condition} and (xid, seq) > (${xid}::text::xid8, ${seq}::bigint)
      ${snapshot ? Prisma.sql`and not pg_visible_in_snapshot(xid, ${snapshot}::text::pg_snapshot)` : Prisma.empty}
    order by xid, seq limit ${limit}`;
}

type Row = Omit<OutboxEvent, 'seq'> & { seq: bigint; xid: string; settled: boolean };

async function* readPages(
  { db, bus }: Deps,
  topics: readonly Topic[],
  query: Query,
  size: number,
  from: Place,
  signal: AbortSignal,
): AsyncGenerator<EventPage> {
  let place = from;
  for await (const _ of bus.wakes(topics, signal)) {
    let pause = FIRST_HELD_BACK_MS;
    while (!signal.aborted) {
      const { rows, horizon } = await untilAnswered(
        () => readRows(db, query(place, size), place),
        signal,
      );
      const unsettled = rows.findIndex(({ settled }) => !settled);
      const ready = unsettled < 0 ? rows : rows.slice(0, unsettled);
      const last = ready.at(-1);
      if (last) {
        place = { ...place, xid: last.xid, seq: last.seq };
        yield { events: ready.map(eventOf), place: placeText(place) };
        if (signal.aborted) return;
      }
      if (rows.length === size && unsettled < 0) continue;
      // All below the horizon has been read, so what is removed there later is not missed.
      if (BigInt(horizon) > BigInt(place.xid)) place = { ...place, xid: horizon, seq: 0n };
      if (unsettled < 0) break;
      if (last) pause = FIRST_HELD_BACK_MS;
      await delay(pause, undefined, { signal }).catch(() => {});
      pause = Math.min(pause * 2, MAX_HELD_BACK_MS);
    }
  }
}

function eventOf({ seq, id, type, namespaceId, subject, data, timestamp }: Row): OutboxEvent {
  return { seq: Number(seq), id, type, namespaceId, subject, data, timestamp };
}

/** In one statement, so that rows are read, or are known to be removed. @throws EventsRemoved */
async function readRows(
  db: Services['db'],
  query: Prisma.Sql,
  { xid, seq }: Place,
): Promise<{ rows: Row[]; horizon: string }> {
  const found = await db.$queryRaw<({ horizon: string; missed: boolean } & Row)[]>`
    select state.horizon::text as horizon, state.missed, page.seq, page.xid::text as xid, page.id, page.type,
      page.namespace_id as "namespaceId", page.subject, page.data, page.timestamp,
      page.xid < state.horizon as settled
    from (
      select event_horizon() as horizon,
        (removed_xid, removed_seq) > (${xid}::text::xid8, ${seq}::bigint) as missed
      from event_clock
    ) state
    left join (${query}) page on true
    order by page.xid, page.seq`;
  const [state] = found;
  if (!state) throw new Error('event_clock has no row');
  if (state.missed) throw new EventsRemoved();
  // Without an event there is one row, of the state alone.
  return { rows: found.filter(({ id }) => id !== null), horizon: state.horizon };
}
