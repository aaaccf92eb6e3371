/**
 * Pages of a list whose rows lie in several parts of a table, such as the jobs of all namespaces of a user.
 *
 * An index has the rows of one part in order, and of several it has not: to sort a million rows for a page of twenty
 * took a second. So of each part only a page is read, and the pages are merged. What it costs grows with the number of
 * parts, and neither with the rows nor with the depth of the page.
 */
import type pg from 'pg';
import { Prisma } from '../../prisma/generated/client.ts';
import { pageSql, type Sorting, toSlice } from './keyset.ts';
import type { Slice, SliceRequest } from './paging.ts';
import type { Rows } from './rows.ts';

/** A column by whose values the table is in parts: as `n.id` the condition can name the value of the part. */
export type Part = { alias: string; column: string; type: string; values: readonly string[] };

type Merged = {
  /** The table, which the condition calls `r`. */
  from: string;
  /** Each row lies in one of all combinations of their values. */
  parts: readonly Part[];
  where: Prisma.Sql;
  select: object;
};

/** `prisma` reads what `rows` does not know. */
export type Table = {
  pool: pg.Pool;
  rows: Rows;
  prisma: { findMany(query: object): PromiseLike<object[]> };
};

/** @throws AppError 400 for `first` out of range, and for what is no cursor of this list */
export async function readMergedSlice<Row>(
  { pool, rows, prisma }: Table,
  sorting: Sorting,
  range: SliceRequest,
  { from, parts, where, select }: Merged,
): Promise<Slice<Row>> {
  const { sql, join, raw } = Prisma;
  const page = pageSql(sorting, range);
  const sources = join(parts.map(sourceOf), ' cross join ');
  const isOfPart = join(
    parts.map(({ alias, column }) => raw(`r.${column} = ${alias}.id`)),
    ' and ',
  );
  const found = await read<Record<string, unknown>>(
    pool,
    sql`
    select p.* from ${sources} cross join lateral (
      select ${page.columns} from ${raw(from)} r
        where ${isOfPart} and ${where} and ${page.where} order by ${page.orderBy} limit ${page.take}) p
      order by ${page.orderRead} limit ${page.take}`,
  );
  const { items, ...slice } = toSlice(sorting, range, found, async () => {
    const [row] = await read<{ total: string }>(
      pool,
      sql`
      select coalesce(sum(p.total), 0)::bigint as total from ${sources} cross join lateral (
        select count(*) as total from ${raw(from)} r where ${isOfPart} and ${where}) p`,
    );
    return Number(row?.total ?? 0);
  });
  const ids = items.map(({ node }) => node.id);
  const statement = rows.statement(select, { id: true }, 'where r.id = any($1)');
  const whole = statement
    ? await statement.read(pool, [ids])
    : await prisma.findMany({
        where: { id: { in: ids } },
        select: { ...select, id: true },
        relationLoadStrategy: 'join',
      });
  const byId = new Map(whole.map((row) => [(row as { id: string }).id, row as Row]));
  // One that was deleted since is left out.
  return {
    ...slice,
    items: items.flatMap(({ cursor, node }) => {
      const row = byId.get(node.id as string);
      return row ? [{ cursor, node: row }] : [];
    }),
  };
}

/**
 * Through pg, which does not name the statement: PostgreSQL then plans it for the values that it is given. A plan for
 * any values, which Prisma's come to after five times, took 3 s for a label of one job in ten thousand, against 10 ms.
 */
async function read<Row extends object>(pool: pg.Pool, { text, values }: Prisma.Sql) {
  return (await pool.query<Row>(text, values)).rows;
}

/** A single value is given as a constant, so that the planner knows how frequent it is. */
function sourceOf({ alias, type, values }: Part): Prisma.Sql {
  const { sql, raw } = Prisma;
  if (values.length === 1) return sql`(select ${values[0]}::${raw(type)} as id) ${raw(alias)}`;
  return sql`unnest(${[...values]}::${raw(type)}[]) ${raw(alias)}(id)`;
}
