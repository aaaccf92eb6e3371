/** Where a reader of events stands: after the event with this (xid, seq), in the order that `read.ts` argues. */

import { invalid } from '../../base/errors.ts';
import type { Db } from '../database/client.ts';

export type Cursor = {
  xid: string;
  seq: bigint;
  /** Of a reader that began "now": what was visible then, and so is not to be shown. */
  snapshot?: string;
};

/** Whether `one` comes after `other`. */
export function isAfter(one: Cursor, other: Cursor): boolean {
  const difference = BigInt(one.xid) - BigInt(other.xid);
  return difference > 0n || (difference === 0n && one.seq > other.seq);
}

/** Whether a reader that began "now" is not to see the event of this place, as `pg_visible_in_snapshot` has it. */
export function isInSnapshot({ xid }: Cursor, { snapshot }: Cursor): boolean {
  if (!snapshot) return false;
  const [xmin = '', xmax = '', open = ''] = snapshot.split(':');
  const id = BigInt(xid);
  if (id < BigInt(xmin)) return true;
  return id < BigInt(xmax) && !open.split(',').includes(xid);
}

/** As a reader stores it: `<xid>:<seq>`. */
export function placeText({ xid, seq }: Cursor): string {
  return `${xid}:${seq}`;
}

/** @throws Error for what `placeText` did not make */
export function placeOf(text: string): Cursor {
  const [, xid, seq] = /^(\d+):(\d+)$/.exec(text) ?? [];
  if (xid === undefined || seq === undefined) throw new Error(`${text} is no place of an event`);
  return { xid, seq: BigInt(seq) };
}

/**
 * For a new reader of all events that is to begin with what happens from now on, and keeps its place. It is that of
 * an event, kept or removed, because new events come after those in whichever cluster the database is restored into.
 */
export async function placeNow({ db }: { db: Db }): Promise<string> {
  const [last] = await db.$queryRaw<Cursor[]>`
    select xid::text as xid, seq from events where xid < (select event_horizon())
    order by events.xid desc, seq desc limit 1`;
  return placeText(last ?? (await beforeOldest(db)));
}

/**
 * @param after the `seq` of an event; 0: before the oldest event that is kept; null: now
 * @throws AppError 400 when it is the number of no event
 */
export async function cursorAfter({ db }: { db: Db }, after: number | null): Promise<Cursor> {
  if (after === 0) return beforeOldest(db);
  if (after === null) return now(db);
  const place = await cursorOfEvent({ db }, after);
  if (place === 'removed') throw tooOld();
  if (place === null) throw noEvent();
  return place;
}

/** By its `seq`. `'removed'`: it was, by age, and with it all before it; null: that is the number of no event. */
export async function cursorOfEvent(
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

function noEvent() {
  return invalid(
    'after',
    'is the cursor of no event; leave it out to begin with what happens from now on',
  );
}

export function tooOld() {
  return invalid(
    'after',
    'is older than the events that are kept, and some after it are gone: begin with 0 for the oldest, or leave it out to begin now',
  );
}

/** Behind everything that was removed. */
async function beforeOldest(db: Db): Promise<Cursor> {
  const [place] = await db.$queryRaw<Cursor[]>`
    select removed_xid::text as xid, removed_seq as seq from event_clock`;
  if (!place) throw new Error('event_clock has no row');
  return place;
}

async function now(db: Db): Promise<Cursor> {
  const [row] = await db.$queryRaw<(Cursor & { snapshot: string; ahead: bigint })[]>`
    select pg_current_snapshot()::text as snapshot, 0::bigint as seq, event_horizon()::text as xid, ahead
    from event_clock`;
  if (!row) throw new Error('event_clock has no row');
  const { xid, seq, snapshot, ahead } = row;
  // "xmin:xmax:xid,xid": compared with xids of events, so counted as they are.
  return { xid, seq, snapshot: snapshot.replace(/\d+/g, (id) => `${BigInt(id) + ahead}`) };
}
