/**
 * Ranges of long lists: how many rows are in each, so that a page in the middle is found without passing over half of the list,
 * which takes 50 ms where it has a million rows.
 *
 * A list in the order of a column is cut where every 20,000th row stands (`list_cuts`). Triggers count what comes into a range
 * and what leaves it as rows of `list_counts`, as they count whole lists: so the sums are exact in every snapshot, and no
 * transaction waits for another. Short lists are not cut, and cost one look into an index.
 */
import { setTimeout as delay } from 'node:timers/promises';
import type pg from 'pg';
import { Prisma } from '../../prisma/generated/client.ts';
import { onConnection } from './client.ts';
import { columnOf } from './keyset.ts';
import type { Counted } from './list-counts.ts';
import { isLostRace } from './outage.ts';

/**
 * Rows from which a list is cut, and how many there are in a range then. It is cut again where a range has come to hold as many
 * as a list may: what is new is in the last range of most orders, as is what has just changed.
 */
const SIZES = { long: 100_000, each: 20_000 };

/** The columns by which lists are sorted → the array of a cut that has their type. */
const COLUMNS = {
  jobs: { created_at: 'times', started_at: 'times', completed_at: 'times', name: 'texts' },
  repositories: {
    created_at: 'times',
    updated_at: 'times',
    size_bytes: 'numbers',
    name_key: 'texts',
  },
} as const;
const FILTERS = { jobs: 'status', repositories: 'visibility' } as const;

type List = keyof typeof COLUMNS;

/** The array of a cut that holds its values; undefined where the list is not sorted by that. */
function arrayOf(list: List, column: string): string | undefined {
  return (COLUMNS[list] as Record<string, string>)[column];
}

/** The range that a row is in, by its place in ascending order. `before`: the rows below the range. */
export type Range = { before: number; from: Prisma.Sql | null };

export type Cut = {
  /** Of all ranges together. */
  rows: number;
  /** `from`: the first value of the range, as SQL; the lowest has none. */
  rangeOf(place: number): Range;
};

/** @returns null where the list is not cut in that order. `client`: in the snapshot that the page is read in */
export async function readCut(
  client: pg.ClientBase,
  { list, where }: Counted,
  namespaceId: string,
  field: string,
): Promise<Cut | null> {
  const { sql, raw } = Prisma;
  const column = columnOf(field);
  const array = arrayOf(list, column);
  if (!array) return null;
  const { text, values } = sql`
    select c.range, sum(c.n)::float8 as n from list_cuts g
      join list_counts c on c.namespace_id = g.namespace_id and c.list = ${`${list}/${column}`}
      where g.namespace_id = ${namespaceId} and g.list = ${list} and g."column" = ${column} and g.counted
        and ${where}
      group by c.range order by c.range`;
  const { rows } = await client.query<{ range: number; n: number }>(text, values);
  if (rows.length === 0) return null;
  const first = (range: number) => sql`(
    select g.${raw(array)}[${range}::int] from list_cuts g
      where g.namespace_id = ${namespaceId} and g.list = ${list} and g."column" = ${column})`;
  return {
    rows: rows.reduce((sum, { n }) => sum + n, 0),
    rangeOf(place) {
      let before = 0;
      for (const { range, n } of rows) {
        if (place < before + n) return { before, from: range === 0 ? null : first(range) };
        before += n;
      }
      return { before: 0, from: null };
    },
  };
}

/** Whoever holds it cuts, as an advisory lock. */
export const CUTTING_LOCK = 465825750387;

type Wanted = { namespaceId: string; list: List; column: string };

/**
 * Cuts one list that has grown long, in one of its orders. Two servers would count the same list twice: one of them does it.
 * @returns whether there is another
 * @throws Error where something is being written to the list for so long that it is cut another time
 */
export async function cutLists(
  { pool }: { pool: pg.Pool },
  signal?: AbortSignal,
  sizes = SIZES,
): Promise<boolean> {
  return onConnection(pool, async (lock) => {
    await lock.query('begin');
    // Nothing is asked here until the list is cut, which may take minutes.
    await lock.query('set local idle_in_transaction_session_timeout = 0');
    const { rows } = await lock.query(`select pg_try_advisory_xact_lock(${CUTTING_LOCK}) as free`);
    const [wanted, ...others] = rows[0].free ? await findLong(pool, sizes.long) : [];
    if (wanted) await cut(pool, wanted, sizes.each, signal);
    await lock.query('commit');
    return others.length > 0;
  });
}

/** In any order, so that one that cannot be cut now does not keep the others from it. */
async function findLong(pool: pg.Pool, long: number): Promise<Wanted[]> {
  const orders = Object.entries(COLUMNS).flatMap(([list, columns]) =>
    Object.keys(columns).map((column) => ({ list, column })),
  );
  const { rows } = await pool.query<Wanted>(
    `with long as (
       select namespace_id, list from list_counts where list in ('jobs', 'repositories')
       group by 1, 2 having sum(n) >= $1
     ), ranges as (
       select namespace_id, list, sum(n) as n from list_counts where list like '%/%' group by 1, 2, range
     ), fullest as (
       select namespace_id, list, max(n) as n from ranges group by 1, 2
     )
     select l.namespace_id as "namespaceId", l.list, o."column" from long l
       join jsonb_to_recordset($2) as o (list text, "column" text) using (list)
       left join list_cuts g using (namespace_id, list, "column")
       left join fullest f on f.namespace_id = l.namespace_id and f.list = l.list || '/' || o."column"
     where not coalesce(g.counted, false) or f.n >= greatest($1, 2 * g.fullest)
     order by random()`,
    [long, JSON.stringify(orders)],
  );
  return rows;
}

async function cut(pool: pg.Pool, wanted: Wanted, each: number, signal?: AbortSignal) {
  const { namespaceId, list, column } = wanted;
  const array = arrayOf(list, column);
  // What would be waited for below is better waited for while the ranges that are there are in use.
  await untilWritten(pool, list, signal);
  const { rows } = await pool.query<{ made: string }>(
    `with sorted as (
       select ${column} as value, row_number() over (order by ${column}) as place
       from ${list} where namespace_id = $1 and ${column} is not null
     )
     insert into list_cuts (namespace_id, list, "column", ${array})
     select $1, $2, $3,
       coalesce(array_agg(distinct value order by value) filter (where place % $4 = 0), '{}')
     from sorted
     on conflict (namespace_id, list, "column") do update set ${array} = excluded.${array}, counted = false
     returning ${array}::text as made`,
    [namespaceId, list, column, each],
  );
  const made = rows[0]?.made;
  await untilWritten(pool, list, signal);
  for (let tries = MOST_TRIES; ; tries--)
    try {
      return await countRanges(pool, wanted, made);
    } catch (error) {
      // Rows were added up meanwhile that this snapshot has as they were.
      if (tries === 1 || !isLostRace(error)) throw error;
    }
}

const MOST_TRIES = 5;

/**
 * What has been counted since the cut is counted again, with all that was there before.
 * @param made the cut: another server may have made one since, where this one's lock was lost with its connection
 */
async function countRanges(
  pool: pg.Pool,
  { namespaceId, list, column }: Wanted,
  made: string | undefined,
): Promise<void> {
  const array = arrayOf(list, column);
  const name = `${list}/${column}`;
  await onConnection(pool, async (client) => {
    // One snapshot: what is not seen here adds rows of its own.
    await client.query('begin isolation level repeatable read');
    await client.query('delete from list_counts where namespace_id = $1 and list = $2', [
      namespaceId,
      name,
    ]);
    await client.query(
      `insert into list_counts (namespace_id, list, value, started, completed, range, n)
       select r.namespace_id, $2, r.${FILTERS[list]}, false, false, width_bucket(r.${column}, g.${array}), count(*)
       from ${list} r join list_cuts g on g.namespace_id = r.namespace_id and g.list = $3 and g."column" = $4
       where r.namespace_id = $1 and r.${column} is not null group by 1, 3, 6`,
      [namespaceId, name, list, column],
    );
    const { rowCount } = await client.query(
      `update list_cuts set counted = true, fullest = coalesce((
         select sum(n) as n from list_counts where namespace_id = $1 and list = $4 group by range order by n desc limit 1
       ), 0) where namespace_id = $1 and list = $2 and "column" = $3 and ${array}::text = $5`,
      [namespaceId, list, column, name, made],
    );
    if (rowCount === 0) throw new Error(`${list} are being cut by another server`);
    await client.query('commit');
  });
}

/** A change of a job or a repository takes milliseconds. */
const WRITING_MS = 2_000;

/**
 * Transactions that have written to the table, or are about to; those that begin to later are not among them. What cleans it up
 * or looks at it for the planner (`ShareUpdateExclusiveLock`) takes minutes, and changes no row.
 */
const WRITERS = `
  select distinct virtualtransaction as writer from pg_locks
  where relation = $1::regclass and granted
    and mode not in ('AccessShareLock', 'RowShareLock', 'ShareUpdateExclusiveLock')
    and database = (select oid from pg_database where datname = current_database())`;

/**
 * Waits for the ends of all that is being written to a list. What begins to write afterwards sees a cut that was committed
 * before, since triggers look behind the change; what has written earlier may have looked too early, and nobody sees what
 * it did until its end. An index that is made beside changes waits for the same.
 */
async function untilWritten(pool: pg.Pool, list: List, signal?: AbortSignal): Promise<void> {
  const { rows } = await pool.query<{ writer: string }>(WRITERS, [list]);
  const writers = rows.map(({ writer }) => writer);
  for (const deadline = Date.now() + WRITING_MS; writers.length > 0; ) {
    const left = await pool.query(`${WRITERS} and virtualtransaction = any ($2)`, [list, writers]);
    if (left.rowCount === 0) return;
    if (Date.now() > deadline) throw new Error(`${list} are being written to for too long`);
    await delay(20, undefined, { signal });
  }
}
