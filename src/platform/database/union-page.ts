/**
 * Pages of a list whose rows lie in several parts of a table, such as the jobs of all namespaces of a user.
 *
 * An index has the rows of one part in order, and of several it has not: to sort a million rows for a page of twenty
 * took a second. So of each part only a page is read, and the pages are merged. What it costs grows with the number of
 * parts, and neither with the rows nor with the depth of the page.
 */
import type pg from 'pg';
import { Prisma } from '../../../prisma/generated/client.ts';
import { columnOf, pageSql, type Sorting, toSlice } from './keyset.ts';
import { type Counted, totalSql } from './list-counts.ts';
import { type Item, inPlaceOf, type Slice, type SliceRequest } from './paging.ts';
import { nameOf, type RowColumns, type Rows, readValues } from './rows.ts';

/** A column by whose values the table is in parts: as `n.id` the condition can name the value of the part. */
export type Part = { alias: string; column: string; type: string; values: readonly string[] };

type Merged = {
  /** The table, which the condition calls `r`. */
  from: string;
  /** Each row lies in one of all combinations of their values. */
  parts: readonly Part[];
  where: Prisma.Sql;
  /** Whether more is left out than what the viewer may not see: the planner then has to know of what. */
  isFiltered: boolean;
  /** How the condition is said of the counts of these namespaces; null: the rows are counted. */
  counted: (Counted & { namespaceIds: readonly string[] }) | null;
  select: object;
};

/** `prisma` reads what `rows` does not know. */
export type Table = {
  pool: pg.Pool;
  rows: Rows;
  prisma: { findMany(query: object): PromiseLike<object[]> };
};

/** @throws AppError 400 for `first` out of range, and for what is no cursor of this list */
export async function unionPage<Row>(
  { pool, rows, prisma }: Table,
  sorting: Sorting,
  range: SliceRequest,
  { from, parts, where, isFiltered, counted, select }: Merged,
): Promise<Slice<Row>> {
  const { sql, join, raw } = Prisma;
  const page = pageSql(sorting, range);
  const sources = join(parts.map(sourceOf), ' cross join ');
  const isOfPart = join(
    parts.map(({ alias, column }) => raw(`r.${column} = ${alias}.id`)),
    ' and ',
  );
  const named = page.columns.map((name) => `r.${columnOf(name)} as "${name}"`).join(', ');
  const branches = page.branches.map(
    ({ where: beyond, orderBy }) => sql`
      (select ${raw(named)} from ${raw(from)} r
        where ${isOfPart} and ${where} and ${beyond} order by ${orderBy} limit ${raw(String(page.take))})`,
  );
  const sum = counted && totalSql(counted, sql`${[...counted.namespaceIds]}::text[]`);
  const columns = rows.columns(select);
  const read = columns ?? (rows.columns(ID) as RowColumns);
  // The rows are read for the page alone, by their ids.
  const { text, values } = sql`
    select ${raw(page.columns.map((name) => `p."${name}"`).join(', '))},
        ${sum ? sql`(select t.total from (${sum}) t)` : sql`null`}, ${raw(read.sql)}
      from (select p.* from ${sources} cross join lateral (${join(branches, ' union all ')}) p
        order by ${page.orderRead} limit ${raw(String(page.take))}) p
      join (${raw(rows.from)}) on r.id = p.id
      order by ${page.orderRead}`;
  const isPlain = !isFiltered && parts.every((part) => part.values.length === 1);
  const name = isPlain ? nameOf(text) : undefined;
  const answer = await readValues(pool, { name, text }, values);
  const width = page.columns.length;
  const found = answer.map((row) => {
    const found: Found = { node: read.toRow(row.slice(width + 1)) };
    for (const [at, column] of page.columns.entries()) found[column] = row[at];
    return found;
  });
  const total = sum && answer[0]?.[width];
  const count = async () => {
    const counting =
      sum ??
      sql`
      select coalesce(sum(p.total), 0)::bigint as total from ${sources} cross join lateral (
        select count(*) as total from ${raw(from)} r where ${isOfPart} and ${where}) p`;
    const counts = await pool.query<{ total: string }>(counting.text, counting.values);
    return Number(counts.rows[0]?.total ?? 0);
  };
  const slice = toSlice(sorting, range, found, total == null ? count : () => Number(total));
  const items = slice.items.map((item) => inPlaceOf(item, item.node.node as Row));
  return { ...slice, items: columns ? items : await readWhole(prisma, items, select) };
}

/** A row, and under their names the columns of which its cursor is made. */
type Found = Record<string, unknown> & { node: object };

const ID = { id: true };

/** What Prisma alone reads, in the same order. One that was deleted since is left out. */
async function readWhole<Row>(
  prisma: Table['prisma'],
  items: readonly Item<Row>[],
  select: object,
): Promise<Item<Row>[]> {
  const idOf = (row: Row) => (row as { id: string }).id;
  const whole = await prisma.findMany({
    where: { id: { in: items.map(({ node }) => idOf(node)) } },
    select: { ...select, id: true },
    relationLoadStrategy: 'join',
  });
  const byId = new Map(whole.map((row) => [idOf(row as Row), row as Row]));
  return items.flatMap((item) => {
    const row = byId.get(idOf(item.node));
    return row ? [inPlaceOf(item, row)] : [];
  });
}

/** A single value is given as a constant, so that the planner knows how frequent it is. */
function sourceOf({ alias, type, values }: Part): Prisma.Sql {
  const { sql, raw } = Prisma;
  if (values.length === 1) return sql`(select ${values[0]}::${raw(type)} as id) ${raw(alias)}`;
  return sql`unnest(${[...values]}::${raw(type)}[]) ${raw(alias)}(id)`;
}
