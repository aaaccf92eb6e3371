/** Reads pages of the outbox, once or continuously. `read.ts` explains the order of events. */

import type pg from 'pg';
import { Prisma } from '../../../prisma/generated/client.ts';
import { Backoff, sleep } from '../../base/backoff.ts';
import { retryWhileUnavailable } from '../database/outage.ts';
import { runStatement } from '../database/statement.ts';
import type { Bus, Topic } from './bus.ts';
import type { Cursor } from './cursor.ts';

export type OutboxEvent = {
  /** The cursor that clients see. */
  seq: number;
  id: string;
  type: string;
  namespaceId: string;
  subject: string;
  data: Prisma.JsonObject;
  timestamp: Date;
};

/** An event with its cursor. */
export type PositionedEvent = { event: OutboxEvent; cursor: Cursor };

/** Events after the reader's cursor expired before the reader read them. It can restart with the oldest event. */
export class EventsRemoved extends Error {
  constructor() {
    super(
      'events after this cursor were removed, because they were older than the retention period',
    );
  }
}

/** Selects the first `limit` events after a cursor. */
export type EventQuery = (after: Cursor, limit: number) => Prisma.Sql;

export function selectEvents(condition: Prisma.Sql, columns = Prisma.sql`*`): EventQuery {
  return ({ xid, seq, snapshot }, limit) => Prisma.sql`
    select ${columns} from events
    where ${condition} and (xid, seq) > (${xid}::text::xid8, ${seq}::bigint)
      ${snapshot ? Prisma.sql`and not pg_visible_in_snapshot(xid, ${snapshot}::text::pg_snapshot)` : Prisma.empty}
    order by xid, seq limit ${limit}`;
}

type OutboxPage = {
  events: PositionedEvent[];
  /** All events up to this cursor have been read, and no further event can appear before it. */
  reached: Cursor;
  /** Whether an open transaction holds back further events. */
  isHeldBack: boolean;
  /** Whether the page was full, so that there may be more events. */
  isFull: boolean;
};

/** Reads one page. @throws EventsRemoved */
export async function readPage(
  { pool }: { pool: pg.Pool },
  query: EventQuery,
  size: number,
  cursor: Cursor,
): Promise<OutboxPage> {
  const { rows, horizon } = await readRows(pool, query(cursor, size), cursor);
  const unsettled = rows.findIndex(({ settled }) => !settled);
  const isHeldBack = unsettled >= 0;
  const events = (isHeldBack ? rows.slice(0, unsettled) : rows).map(toPositionedEvent);
  const last = events.at(-1)?.cursor;
  let reached = last ? { ...cursor, xid: last.xid, seq: last.seq } : cursor;
  const isFull = rows.length === size && !isHeldBack;
  // Everything below the horizon has been read, so events that are removed there later are not missed.
  if (!isFull && BigInt(horizon) > BigInt(reached.xid))
    reached = { ...reached, xid: horizon, seq: 0n };
  return { events, reached, isHeldBack, isFull };
}

/** Minimum time between reads, so that several events are read together instead of with one read per event. */
const BATCH_DELAY_MS = 20;

/** While a transaction holds events back, the reader polls with backoff, because no notification announces its end. */
const HELD_BACK_POLLS = { firstMs: 20, longestMs: 250 };

/**
 * Yields non-empty pages of the events after `from`, then of new events. Waits while the database is unavailable.
 * @throws EventsRemoved
 */
export async function* followPages(
  { pool, bus }: { pool: pg.Pool; bus: Bus },
  topics: readonly Topic[],
  query: EventQuery,
  size: number,
  from: Cursor,
  signal: AbortSignal,
): AsyncGenerator<PositionedEvent[]> {
  let cursor = from;
  let readAt = Number.NEGATIVE_INFINITY;
  for await (const _ of bus.wakes(topics, signal)) {
    const remainingMs = readAt + BATCH_DELAY_MS - performance.now();
    if (remainingMs > 0) await sleep(remainingMs, signal);
    const backoff = new Backoff(HELD_BACK_POLLS);
    while (!signal.aborted) {
      readAt = performance.now();
      const page = await retryWhileUnavailable(
        () => readPage({ pool }, query, size, cursor),
        signal,
      );
      cursor = page.reached;
      if (page.events.length > 0) {
        yield page.events;
        if (signal.aborted) return;
        backoff.reset();
      }
      if (page.isFull) continue;
      if (!page.isHeldBack) break;
      await backoff.pause(signal);
    }
  }
}

type Row = Omit<OutboxEvent, 'seq'> & { seq: string; xid: string; settled: boolean };

function toPositionedEvent({
  seq,
  xid,
  id,
  type,
  namespaceId,
  subject,
  data,
  timestamp,
}: Row): PositionedEvent {
  const event = { seq: Number(seq), id, type, namespaceId, subject, data, timestamp };
  return { event, cursor: { xid, seq: BigInt(seq) } };
}

/** One statement reads the events and checks that none were removed before them. @throws EventsRemoved */
async function readRows(
  pool: pg.Pool,
  query: Prisma.Sql,
  { xid, seq }: Cursor,
): Promise<{ rows: Row[]; horizon: string }> {
  // Without Prisma, which adds half a millisecond to a read: each commit of a job wakes all readers of events.
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
  const resultRows = await runStatement<{ horizon: string; missed: boolean } & Row>(
    pool,
    text,
    values,
  );
  const [state] = resultRows;
  if (!state) throw new Error('event_clock has no row');
  if (state.missed) throw new EventsRemoved();
  // Without events, the left join returns one row that has only the columns of `state`.
  return { rows: resultRows.filter(({ id }) => id !== null), horizon: state.horizon };
}
