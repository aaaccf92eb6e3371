/** Pages of the outbox, in the order that `read.ts` argues: the statements, and reading on as events come. */

import { setTimeout as delay } from 'node:timers/promises';
import type pg from 'pg';
import { Prisma } from '../../../prisma/generated/client.ts';
import { untilAnswered } from '../database/outage.ts';
import { runStatement } from '../database/statement.ts';
import type { Bus, Topic } from './bus.ts';
import type { Cursor } from './cursor.ts';

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

/** An event, and where it stands. */
export type Placed = { event: OutboxEvent; place: Cursor };

/** Events after the reader's place were removed by age before it read them. It can begin with the oldest kept. */
export class EventsRemoved extends Error {
  constructor() {
    super('events after this place were removed, because they were older than events are kept');
  }
}

/** Of the events after a place, the first so many. */
export type Query = (after: Cursor, limit: number) => Prisma.Sql;

export function eventsWhere(condition: Prisma.Sql, columns = Prisma.sql`*`): Query {
  return ({ xid, seq, snapshot }, limit) => Prisma.sql`
    select ${columns} from events
    where ${condition} and (xid, seq) > (${xid}::text::xid8, ${seq}::bigint)
      ${snapshot ? Prisma.sql`and not pg_visible_in_snapshot(xid, ${snapshot}::text::pg_snapshot)` : Prisma.empty}
    order by xid, seq limit ${limit}`;
}

/** What a read found. */
export type Page = {
  events: Placed[];
  /** Up to here all that `query` selects has been read, and nothing can appear before it any more. */
  reached: Cursor;
  /** Whether events are there that an open transaction holds back. */
  heldBack: boolean;
  /** Whether it was full, so that there may be more. */
  full: boolean;
};

/** Reads once. @throws EventsRemoved */
export async function readPage(
  { pool }: { pool: pg.Pool },
  query: Query,
  size: number,
  place: Cursor,
): Promise<Page> {
  const { rows, horizon } = await readRows(pool, query(place, size), place);
  const unsettled = rows.findIndex(({ settled }) => !settled);
  const heldBack = unsettled >= 0;
  const events = (heldBack ? rows.slice(0, unsettled) : rows).map(placed);
  const last = events.at(-1)?.place;
  let reached = last ? { ...place, xid: last.xid, seq: last.seq } : place;
  const full = rows.length === size && !heldBack;
  // All below the horizon has been read, so what is removed there later is not missed.
  if (!full && BigInt(horizon) > BigInt(reached.xid))
    reached = { ...reached, xid: horizon, seq: 0n };
  return { events, reached, heldBack, full };
}

/** What comes so soon after a read is read together: with many jobs each event was a read of its own for everyone who follows. */
const TOGETHER_MS = 20;

/** Nobody wakes a reader when the transaction ends that holds events back: it looks again, ever less often. */
const FIRST_HELD_BACK_MS = 20;
const MAX_HELD_BACK_MS = 250;

/**
 * The events after a place, and those that come, in pages that are not empty. While the database is away it waits.
 * @throws EventsRemoved
 */
export async function* readPages(
  { pool, bus }: { pool: pg.Pool; bus: Bus },
  topics: readonly Topic[],
  query: Query,
  size: number,
  from: Cursor,
  signal: AbortSignal,
): AsyncGenerator<Placed[]> {
  let place = from;
  let readAt = Number.NEGATIVE_INFINITY;
  for await (const _ of bus.wakes(topics, signal)) {
    const early = readAt + TOGETHER_MS - performance.now();
    if (early > 0) await delay(early, undefined, { signal }).catch(() => {});
    let pause = FIRST_HELD_BACK_MS;
    while (!signal.aborted) {
      readAt = performance.now();
      const page = await untilAnswered(() => readPage({ pool }, query, size, place), signal);
      place = page.reached;
      if (page.events.length > 0) {
        yield page.events;
        if (signal.aborted) return;
        pause = FIRST_HELD_BACK_MS;
      }
      if (page.full) continue;
      if (!page.heldBack) break;
      await delay(pause, undefined, { signal }).catch(() => {});
      pause = Math.min(pause * 2, MAX_HELD_BACK_MS);
    }
  }
}

type Row = Omit<OutboxEvent, 'seq'> & { seq: string; xid: string; settled: boolean };

function placed({ seq, xid, id, type, namespaceId, subject, data, timestamp }: Row): Placed {
  const event = { seq: Number(seq), id, type, namespaceId, subject, data, timestamp };
  return { event, place: { xid, seq: BigInt(seq) } };
}

/** In one statement, so that rows are read, or are known to be removed. @throws EventsRemoved */
async function readRows(
  pool: pg.Pool,
  query: Prisma.Sql,
  { xid, seq }: Cursor,
): Promise<{ rows: Row[]; horizon: string }> {
  // By hand: each commit of a job's move wakes those who read all events, and Prisma took half a millisecond for it.
  const { text, values } = Prisma.sql`
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
  const found = await runStatement<{ horizon: string; missed: boolean } & Row>(pool, text, values);
  const [state] = found;
  if (!state) throw new Error('event_clock has no row');
  if (state.missed) throw new EventsRemoved();
  // Without an event there is one row, of the state alone.
  return { rows: found.filter(({ id }) => id !== null), horizon: state.horizon };
}
