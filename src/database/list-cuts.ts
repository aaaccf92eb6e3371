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

/** Rows from which a list is cut, and how many there are in a range. */
const SIZES = { long: 100_000, each: 20_000 };
/** Cut again when it has grown by so much: what is new is in the last range of most orders. */
const GROWTH = 1.25;

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
  const array = (COLUMNS[list] as Record<string, string>)[column];
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

/** `rows`: of the list, also those without a value in the column. */
type Wanted = { namespaceId: string; list: List; column: string; rows: string };

/**
 * Cuts one list that has grown long, in one of its orders.
 * @returns whether there is another
 */
export async function cutLists({ pool }: { pool: pg.Pool }, sizes = SIZES): Promise<boolean> {
  // Two servers that cut the same list would count it twice.
  return onConnection(pool, async (lock) => {
    await lock.query('begin');
    const { rows } = await lock.query(`select pg_try_advisory_xact_lock(465825750387) as free`);
    const [wanted, ...others] = rows[0].free ? await findLong(pool, sizes.long) : [];
    if (wanted) await cut(pool, wanted, sizes.each);
    await lock.query('commit');
    return others.length > 0;
  });
}

async function findLong(pool: pg.Pool, long: number): Promise<Wanted[]> {
  const orders = Object.entries(COLUMNS).flatMap(([list, columns]) =>
    Object.keys(columns).map((column) => ({ list, column })),
  );
  const { rows } = await pool.query<Wanted>(
    `with long as (
       select namespace_id, list, sum(n) as rows from list_counts where list in ('jobs', 'repositories')
       group by 1, 2 having sum(n) >= $1
     )
     select l.namespace_id as "namespaceId", l.list, o."column", l.rows from long l
       join jsonb_to_recordset($2) as o (list text, "column" text) using (list)
       left join list_cuts g using (namespace_id, list, "column")
     where not coalesce(g.counted, false) or l.rows > g.rows * $3::float8
     order by 1, 2, 3`,
    [long, JSON.stringify(orders), GROWTH],
  );
  return rows;
}

/** How long transactions are waited for that have changed something without seeing the cut. */
const OLDEST_MS = 60_000;

async function cut(pool: pg.Pool, wanted: Wanted, each: number): Promise<void> {
  const { namespaceId, list, column } = wanted;
  const array = (COLUMNS[list] as Record<string, string>)[column];
  await pool.query(
    `with sorted as (
       select ${column} as value, row_number() over (order by ${column}) as place
       from ${list} where namespace_id = $1 and ${column} is not null
     )
     insert into list_cuts (namespace_id, list, "column", ${array}, each, rows)
     select $1, $2, $3,
       coalesce(array_agg(distinct value order by value) filter (where place % $4 = 0), '{}'), $4, $5
     from sorted
     on conflict (namespace_id, list, "column") do update
       set ${array} = excluded.${array}, each = excluded.each, rows = excluded.rows, counted = false`,
    [namespaceId, list, column, each, wanted.rows],
  );
  await untilAllSeeIt(pool);
  for (let tries = MOST_TRIES; ; tries--)
    try {
      return await countRanges(pool, wanted);
    } catch (error) {
      if (tries === 1 || !isOvertaken(error)) throw error;
    }
}

const MOST_TRIES = 5;

/** What has been counted since the cut is counted again, with all that was there before. */
async function countRanges(pool: pg.Pool, { namespaceId, list, column }: Wanted): Promise<void> {
  const array = (COLUMNS[list] as Record<string, string>)[column];
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
    await client.query(
      `update list_cuts set counted = true where namespace_id = $1 and list = $2 and "column" = $3`,
      [namespaceId, list, column],
    );
    await client.query('commit');
  });
}

/** Rows were added up meanwhile that this snapshot has as they were. */
function isOvertaken(error: unknown): boolean {
  return (error as { code?: string }).code === '40001';
}

/**
 * Whatever changes a row from now on sees the cut, since triggers look behind the change. What has changed one before may have
 * looked too early, and what it did is not seen by others before its end.
 * @throws Error when such a transaction lasts too long: the list is cut again another time
 */
async function untilAllSeeIt(pool: pg.Pool): Promise<void> {
  const { rows } = await pool.query('select pg_snapshot_xmax(pg_current_snapshot())::text as xid');
  for (const deadline = Date.now() + OLDEST_MS; ; await delay(50)) {
    const found = await pool.query(
      'select pg_snapshot_xmin(pg_current_snapshot()) >= $1::xid8 as ended',
      [rows[0].xid],
    );
    if (found.rows[0].ended) return;
    if (Date.now() > deadline) throw new Error('a transaction has lasted for more than a minute');
  }
}
