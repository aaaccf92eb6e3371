/**
 * Reading the outbox: events in an order that never changes under a reader.
 *
 * `seq` alone is no cursor. Transactions commit in another order than they took their numbers, so a reader
 * that remembers 7 can miss a 6 that commits later. Events are therefore read in the order of (xid, seq), and
 * only those whose transaction is older than every one still open: nothing can appear before them any more.
 * A client's cursor is the `seq` of the last event it saw; that event's row tells the xid that goes with it.
 * Of one job's events the order is that of its changes, because a change takes its xid after the row's lock.
 *
 * In a database that was restored into another cluster (`pg_restore`), the events that came with it have xids which
 * that cluster may reach in years. So xids are counted from a start that is set then (`event_clock`).
 *
 * An open transaction, of whatever database of the cluster, holds the events after it back until it ends.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { Prisma } from '../../prisma/generated/client.ts';
import { untilAnswered } from '../database/outage.ts';
import { AppError, invalid } from '../errors.ts';
import type { Services } from '../services.ts';

export type OutboxEvent = {
  seq: number;
  id: string;
  type: string;
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

const PAGE = 100;
/** Nobody wakes us when the transaction ends that holds events back. */
const HELD_BACK_MS = 20;

type Position = {
  xid: string;
  seq: bigint;
  /** What was seen at the start, and so is not to be shown. */
  snapshot?: string;
};
type Row = Omit<OutboxEvent, 'seq'> & { seq: bigint; xid: string; settled: boolean };

/**
 * Ends when `signal` aborts or the server stops. While the database is away it waits, and goes on where it stood.
 * @throws AppError 400 when `after` is the number of no event
 */
export async function* readOutbox(
  { db, bus }: Pick<Services, 'db' | 'bus'>,
  query: OutboxQuery,
  signal: AbortSignal,
): AsyncGenerator<OutboxEvent> {
  let position = await untilAnswered(() => positionOf(db, query.after), signal);
  const topics = query.namespaceIds.map((id) => `namespace:${id}` as const);
  for await (const _ of bus.wakes(topics, signal)) {
    while (!signal.aborted) {
      const rows = await untilAnswered(() => nextRows(db, query, position), signal);
      const unsettled = rows.findIndex(({ settled }) => !settled);
      const ready = unsettled < 0 ? rows : rows.slice(0, unsettled);
      for (const { xid, seq, settled: _settled, ...event } of ready) {
        yield { ...event, seq: Number(seq) };
        if (signal.aborted) return;
        position = { ...position, xid, seq };
      }
      if (unsettled >= 0) await delay(HELD_BACK_MS, undefined, { signal }).catch(() => {});
      else if (rows.length < PAGE) break;
    }
  }
}

async function positionOf(db: Services['db'], after: number | null): Promise<Position> {
  if (after === 0) return { xid: '0', seq: 0n };
  const [row] =
    after === null
      ? (
          await db.$queryRaw<(Position & { snapshot: string; ahead: bigint })[]>`
          select pg_current_snapshot()::text as snapshot, 0::bigint as seq,
            event_horizon()::text as xid, ahead from event_clock`
        ).map(({ ahead, snapshot, ...position }) => ({
          ...position,
          // "xmin:xmax:xid,xid": compared with xids of events, so counted as they are.
          snapshot: snapshot.replace(/\d+/g, (xid) => `${BigInt(xid) + ahead}`),
        }))
      : await db.$queryRaw<Position[]>`
          select xid::text as xid, seq from events where seq = ${after}::bigint`;
  if (row) return row;
  const [{ last } = { last: 0n }] = await db.$queryRaw<{ last: bigint }[]>`
    select last_value as last from events_seq_seq`;
  if (after !== null && after > 0 && after <= last)
    throw invalid(
      'after',
      'is older than the events that are kept, and some after it are gone: begin with 0 for the oldest, or leave it out to begin now',
    );
  throw invalid(
    'after',
    'is the cursor of no event; leave it out to begin with what happens from now on',
  );
}

function nextRows(db: Services['db'], query: OutboxQuery, position: Position): Promise<Row[]> {
  const { namespaceIds, subject, prefix } = query;
  const { xid, seq, snapshot } = position;
  const page = (of: Prisma.Sql) => Prisma.sql`
    select seq, xid::text as xid, id, type, subject, data, timestamp, xid as place,
      xid < (select event_horizon()) as settled
    from events
    where ${of} and starts_with(type, ${prefix})
      and (xid, seq) > (${xid}::text::xid8, ${seq}::bigint)
      ${snapshot ? Prisma.sql`and not pg_visible_in_snapshot(xid, ${snapshot}::text::pg_snapshot)` : Prisma.empty}
    order by xid, seq limit ${PAGE}`;
  if (subject) return rowsOf(db, page(Prisma.sql`subject = ${subject}`));
  // A page of each namespace, so that each is read along its index, and of these the first page.
  return rowsOf(
    db,
    Prisma.sql`
      select page.* from unnest(${namespaceIds}::text[]) as namespace (id)
      cross join lateral (${page(Prisma.sql`namespace_id = namespace.id`)}) page
      order by place, seq limit ${PAGE}`,
  );
}

async function rowsOf(db: Services['db'], query: Prisma.Sql): Promise<Row[]> {
  const rows = await db.$queryRaw<(Row & { place: unknown })[]>`
    select seq, xid, id, type, subject, data, timestamp, settled from (${query}) rows
    order by place, seq`;
  return rows;
}

/** Namespaces that can be followed at once. */
const MAX_FOLLOWED = 100;

/** The names of the namespaces to follow, each once. `name`: of one thing in the only one. @throws AppError 400 */
export function followed(
  namespaces: readonly string[],
  name: string | null | undefined,
): [string, ...string[]] {
  const [first, ...others] = new Set(namespaces.map((each) => each.toLowerCase()));
  if (!first) throw invalid('namespaces', 'must name at least one');
  if (others.length >= MAX_FOLLOWED) throw invalid('namespaces', `must be at most ${MAX_FOLLOWED}`);
  if (name != null && others.length > 0)
    throw invalid('name', 'can be given only with a single namespace');
  return [first, ...others];
}

/** So that nobody takes the end of the server for the end of what they follow. */
export function stopping(): AppError {
  const message = 'The server is stopping: subscribe again, with `after` the last one seen';
  return new AppError('internal_error', message, { status: 503 });
}
