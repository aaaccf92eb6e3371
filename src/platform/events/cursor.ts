/** The position of an event reader: after the event with this (xid, seq). `read.ts` explains the order of events. */

import { invalid } from '../../base/errors.ts';
import type { Db } from '../database/client.ts';

export type Cursor = {
  xid: string;
  seq: bigint;
  /** Set for a reader that started "now": it does not see the transactions that were visible in this snapshot. */
  snapshot?: string;
};

/** Whether `a` comes after `b`. */
export function isAfter(a: Cursor, b: Cursor): boolean {
  const difference = BigInt(a.xid) - BigInt(b.xid);
  return difference > 0n || (difference === 0n && a.seq > b.seq);
}

/** Whether the event was visible in the snapshot of a reader, by the rules of `pg_visible_in_snapshot`. */
export function isInSnapshot({ xid }: Cursor, { snapshot }: Cursor): boolean {
  if (!snapshot) return false;
  const [xmin = '', xmax = '', open = ''] = snapshot.split(':');
  const id = BigInt(xid);
  if (id < BigInt(xmin)) return true;
  return id < BigInt(xmax) && !open.split(',').includes(xid);
}

/** Stored form of a cursor: `<xid>:<seq>`. */
export function formatCursor({ xid, seq }: Cursor): string {
  return `${xid}:${seq}`;
}

/** @throws Error if `text` is not the result of `formatCursor` */
export function parseCursor(text: string): Cursor {
  const [, xid, seq] = /^(\d+):(\d+)$/.exec(text) ?? [];
  if (xid === undefined || seq === undefined) throw new Error(`"${text}" is not an event cursor`);
  return { xid, seq: BigInt(seq) };
}

/**
 * The stored cursor for a new reader of all events that starts now. It is the position of an existing or removed event,
 * because only these positions stay before new events if the database is restored into another PostgreSQL cluster.
 */
export async function currentCursor({ db }: { db: Db }): Promise<string> {
  const [last] = await db.$queryRaw<Cursor[]>`
    select xid::text as xid, seq from events where xid < (select event_horizon())
    order by events.xid desc, seq desc limit 1`;
  return formatCursor(last ?? (await beforeOldest(db)));
}

/**
 * @param after the `seq` of an event; 0: before the oldest event that is kept; null: now
 * @throws AppError 400 if `after` is not the number of an event
 */
export async function cursorAfter({ db }: { db: Db }, after: number | null): Promise<Cursor> {
  if (after === 0) return beforeOldest(db);
  if (after === null) return now(db);
  const cursor = await findCursor({ db }, after);
  if (cursor === 'removed') throw cursorTooOld();
  if (cursor === null)
    throw invalid(
      'after',
      'is not the cursor of an event; omit it to start with events from now on',
    );
  return cursor;
}

/** Finds an event by `seq`. `'removed'`: the event and all earlier events have expired; null: the number was never used. */
export async function findCursor(
  { db }: { db: Db },
  seq: number,
): Promise<Cursor | 'removed' | null> {
  const [row] = await db.$queryRaw<Cursor[]>`
    select xid::text as xid, seq from events where seq = ${seq}::bigint`;
  if (row) return row;
  const [{ last } = { last: 0n }] = await db.$queryRaw<{ last: bigint }[]>`
    select last_value as last from events_seq_seq`;
  return seq > 0 && seq <= last ? 'removed' : null;
}

export function cursorTooOld() {
  return invalid(
    'after',
    'is older than the retained events, and events after it have been removed; use 0 to start with the oldest event, or omit it to start now',
  );
}

/** The position after all removed events. */
async function beforeOldest(db: Db): Promise<Cursor> {
  const [cursor] = await db.$queryRaw<Cursor[]>`
    select removed_xid::text as xid, removed_seq as seq from event_clock`;
  if (!cursor) throw new Error('event_clock has no row');
  return cursor;
}

async function now(db: Db): Promise<Cursor> {
  const [row] = await db.$queryRaw<(Cursor & { snapshot: string; ahead: bigint })[]>`
    select pg_current_snapshot()::text as snapshot, 0::bigint as seq, event_horizon()::text as xid, ahead
    from event_clock`;
  if (!row) throw new Error('event_clock has no row');
  const { xid, seq, snapshot, ahead } = row;
  // The ids in "xmin:xmax:xid,xid" are compared with the xids of events, so they get the same offset.
  return { xid, seq, snapshot: snapshot.replace(/\d+/g, (id) => `${BigInt(id) + ahead}`) };
}
