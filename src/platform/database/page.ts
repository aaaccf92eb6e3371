/**
 * Pages of lists of jobs and repositories: by cursor for GraphQL, and by number, with the total, for REST.
 *
 * An index has the rows of one namespace in order, but not the rows of several, and sorting a million rows for a page of twenty
 * takes a second. So one page of each part of the table is read, and the pages are merged. The cost grows with the number of
 * parts, not with the number of rows or the depth of the page.
 *
 * A page by number begins after the row before it. That row is found from the nearer end of the list by an index-only scan: the
 * last page of a million rows costs as much as the first, the middle page a scan of half the keys.
 */
import type pg from 'pg';
import { Prisma } from '../../../prisma/generated/client.ts';
import { inPoolTransaction } from './client.ts';
import {
  buildPageSql,
  decodeCursor,
  type Position,
  type Sorting,
  toColumnName,
  toCursorPage,
} from './keyset.ts';
import { buildTotalSql, type CountedList } from './list-counts.ts';
import {
  type CursorPage,
  type CursorPageRequest,
  checkFirst,
  type OffsetPageRequest,
  replaceNode,
  toOffset,
} from './paging.ts';
import { queryRowArrays, type RowReader } from './rows.ts';
import { createStatementNamer, type Queryable } from './statement.ts';

const { sql, join, raw } = Prisma;

const nameOf = createStatementNamer('page.', 300);
/** The usual sizes of pages by number and by cursor, which read one row more. The text of a statement has its size. */
const NAMED_SIZES = [20, 21, 30, 31, 50, 51, 100, 101];

/** A column that divides the table into parts. Conditions can refer to its value as `<alias>.id`. */
export type TablePart = { alias: string; column: string; type: string; values: readonly string[] };

type ListQuery = {
  /** Trusted SQL: the table, called `r` in conditions. The namespace of a row is `n`, of which conditions may use the id. */
  from: string;
  /** Other columns that divide the table. The list has the rows of all combinations of their values. */
  parts?: readonly TablePart[];
  /** A join that conditions can refer to, and that adds no rows. */
  join?: Prisma.Sql | undefined;
  where: Prisma.Sql;
  /**
   * Whether the client has set a filter. Conditions on what the viewer may see do not count. With a filter, the planner must
   * know the values, so the statement gets no name.
   */
  isFiltered: boolean;
  /** The same condition on `list_counts`; null: rows are counted. */
  counted: CountedList | null;
  select: object;
};
/** The ids of namespaces, or the name of one, which saves a statement to find its id. */
type Namespaces = readonly string[] | { name: string };
type PagedTable = { pool: pg.Pool; rows: RowReader };

/** @throws AppError 400 if `first` is out of range or the cursor is invalid */
export async function readPage<Row>(
  { pool, rows }: PagedTable,
  sorting: Sorting,
  range: CursorPageRequest,
  namespaceIds: readonly string[],
  query: ListQuery,
): Promise<CursorPage<Row>> {
  const after = decodeCursor(sorting, range.after);
  const extent = { after, skip: 0, take: checkFirst(range.first) + 1 };
  const found = await readRows(pool, rows, sorting, extent, namespaceIds, query);
  const { total } = found;
  const count = () => countRows(pool, namespaceIds, query);
  const slice = toCursorPage(sorting, range, found.rows, total === null ? count : () => total);
  return { ...slice, items: slice.items.map((item) => replaceNode(item, item.node.node as Row)) };
}

type NumberedPage<Row> = { namespaceId: string; total: number; nodes: Row[] };

/** Up to this offset, an unfiltered page is read by one statement, which skips the rows before it. */
const MAX_SKIPPED_ROWS = 1_000;

/**
 * Reads a page by number of the list of a namespace.
 * @returns null if the namespace does not exist
 * @throws AppError 400 for `page` or `perPage`
 */
export async function readNumberedPage<Row>(
  { pool, rows }: PagedTable,
  sorting: Sorting,
  request: OffsetPageRequest,
  namespace: string,
  query: ListQuery,
): Promise<NumberedPage<Row> | null> {
  const { skip, take } = toOffset(request);
  const name = namespace.toLowerCase();
  const toPage = (namespaceId: string, total: number, found: FoundRow[]) => ({
    namespaceId,
    total,
    nodes: found.map(({ node }) => node as Row),
  });
  if (skip <= MAX_SKIPPED_ROWS && !query.isFiltered && query.counted) {
    const found = await readRows(pool, rows, sorting, { after: null, skip, take }, { name }, query);
    const { namespaceId, total } = found;
    return namespaceId === null ? null : toPage(namespaceId, Number(total), found.rows);
  }
  return inPoolTransaction(pool, async (client) => {
    // Total and page are of one snapshot, so that they agree.
    await client.query('set transaction isolation level repeatable read, read only');
    const byName = sql`select id from namespaces where name = ${name}`;
    const [found] = await runSql<{ id: string }>(client, byName);
    if (!found) return null;
    const { id } = found;
    const counts = await countNamespace(client, sorting, id, query);
    if (skip >= counts.total) return toPage(id, counts.total, []);
    const after = skip === 0 ? null : await seek(client, sorting, skip - 1, counts, id, query);
    // The list is shorter than its stored total.
    if (skip > 0 && !after) return toPage(id, counts.total, []);
    const uncounted = { ...query, isFiltered: true, counted: null };
    const page = await readRows(client, rows, sorting, { after, skip: 0, take }, [id], uncounted);
    return toPage(id, counts.total, page.rows);
  });
}

/** A row as `node`, beside the columns of its cursor under their names. */
type FoundRow = Record<string, unknown> & { node: object };

/**
 * Reads the `take` rows that follow the first `skip` rows after a position. `total` is null if it is not stored, and without
 * rows if the namespaces are ids. `namespaceId` is null for ids, and if no namespace has the name.
 */
async function readRows(
  on: Queryable,
  rows: RowReader,
  sorting: Sorting,
  { after, skip, take }: { after: Position | null; skip: number; take: number },
  namespaces: Namespaces,
  { from, parts = [], join: joined = Prisma.empty, where, ...query }: ListQuery,
): Promise<{ rows: FoundRow[]; total: number | null; namespaceId: string | null }> {
  const page = buildPageSql(sorting, after);
  const cursorColumns = page.columns
    .map((name) => `r.${toColumnName(name)} as "${name}"`)
    .join(', ');
  // A constant is planned for: with a parameter, a page of 20 took a sixth more CPU. A page far from the start has one all the same,
  // because the text of a statement that is kept must not depend on it.
  const limit = skip > 0 ? sql`${skip + take}` : raw(String(take));
  const branches = page.branches.map(
    ({ where: afterCursor, orderBy }) => sql`
      (select ${raw(cursorColumns)} from ${raw(from)} r ${joined}
        where ${isInPart(parts)} and ${where} and ${afterCursor}
        order by ${orderBy} limit ${limit})`,
  );
  const total = query.counted && buildTotalSql(query.counted, namespaceIdsSql(namespaces));
  const columns = rows.columns(query.select);
  // Whole rows are read only for the page, by their ids.
  const pageRows = sql`(select p.* from ${sources(namespaces, parts)} cross join lateral (${join(branches, ' union all ')}) p
        order by ${page.orderRead} limit ${raw(String(take))} ${skip > 0 ? sql`offset ${skip}` : Prisma.empty}) p
      join (${raw(rows.from)}) on r.id = p.id`;
  const isByName = 'name' in namespaces;
  // An empty page of a named namespace has one row without values, which tells the total, and that the namespace exists.
  const { text, values } = sql`
    select ${raw(page.columns.map((name) => `p."${name}"`).join(', '))},
        ${total ? sql`(select t.total from (${total}) t)` : sql`null`}, ${raw(isByName ? 'named.id' : 'null')}, ${raw(columns.sql)}
      from ${isByName ? sql`${namedNamespace(namespaces.name)} named left join (${pageRows}) on true` : pageRows}
      order by ${page.orderRead}`;
  const isOnePart = isByName || namespaces.length === 1;
  // A statement is kept for each text, so clients may not choose many.
  const isReusable =
    NAMED_SIZES.includes(take) &&
    !query.isFiltered &&
    isOnePart &&
    parts.every((part) => part.values.length === 1);
  const name = isReusable ? nameOf(text) : undefined;
  const found = await queryRowArrays(on, { name, text }, values);
  const width = page.columns.length;
  // The columns of the statement: cursor, which ends with an id, total, namespace, row.
  const foundRows = found
    .filter((row) => row[width - 1] !== null)
    .map((row) => {
      const foundRow: FoundRow = { node: columns.toRow(row.slice(width + 2)) };
      for (const [i, column] of page.columns.entries()) foundRow[column] = row[i];
      return foundRow;
    });
  const stored = found[0]?.[width] ?? null;
  const namespaceId = (found[0]?.[width + 1] ?? null) as string | null;
  return { rows: foundRows, total: stored === null ? null : Number(stored), namespaceId };
}

/** Counts the rows of the whole list. */
async function countRows(
  pool: pg.Pool,
  namespaceIds: readonly string[],
  { from, parts = [], join: joined = Prisma.empty, where, counted }: ListQuery,
): Promise<number> {
  const counting = counted
    ? buildTotalSql(counted, namespaceIdsSql(namespaceIds))
    : sql`select coalesce(sum(p.total), 0)::bigint as total
        from ${sources(namespaceIds, parts)} cross join lateral (
          select count(*) as total from ${raw(from)} r ${joined} where ${isInPart(parts)} and ${where}) p`;
  const [row] = await runSql<{ total: string }>(pool, counting);
  return Number(row?.total ?? 0);
}

/** `withValue`: the number of rows with a value in the sort column. */
type Counts = { total: number; withValue: number };

async function countNamespace(
  client: Queryable,
  { column, nullable }: Sorting,
  id: string,
  { from, where, counted }: ListQuery,
): Promise<Counts> {
  const counts = counted
    ? buildTotalSql(counted, namespaceIdsSql([id]), nullable ? column : undefined)
    : sql`select count(*) as total, count(r.${raw(toColumnName(column))}) as "withValue"
        from ${rowsOf(id, from, where)}`;
  const [row] = await runSql<{ total: string; withValue: string }>(client, counts);
  const total = Number(row?.total);
  return { total, withValue: nullable ? Number(row?.withValue) : total };
}

/**
 * Returns the position of the row with this index in the list, from 0. It reads from the nearer end of the rows with a value
 * in the sort column, or of those without.
 */
async function seek(
  client: Queryable,
  { column, order, nullable, unique }: Sorting,
  index: number,
  { total, withValue }: Counts,
  id: string,
  { from, where }: ListQuery,
): Promise<Position | null> {
  const hasValue = index < withValue;
  const [begin, end] = hasValue ? [0, withValue] : [withValue, total];
  const isReversed = end - 1 - index < index - begin;
  const direction = isReversed === (order === 'asc') ? 'desc' : 'asc';
  const name = `r.${toColumnName(column)}`;
  // The planner uses the index only if the order of nulls is the index's, even in a part without nulls.
  const nulls = nullable ? (direction === 'asc' ? ' nulls first' : ' nulls last') : '';
  const byColumn = `${name} ${direction}${nulls}`;
  const key = raw(unique ? name : 'r.id');
  // Only the key is read of the rows that are skipped, which costs a tenth of reading the rows.
  const [row] = await runSql<{ value: Position[0]; id: string }>(
    client,
    sql`select ${raw(name)} as value, r.id from ${raw(from)} r where r.namespace_id = ${id} and ${key} = (
      select ${key} from ${rowsOf(id, from, where)}
        and ${raw(nullable ? `${name} is ${hasValue ? 'not null' : 'null'}` : 'true')}
        order by ${raw(unique ? byColumn : `${byColumn}, r.id ${direction}`)}
        limit 1 offset ${isReversed ? end - 1 - index : index - begin})`,
  );
  return row ? [row.value, row.id] : null;
}

function rowsOf(namespaceId: string, from: string, where: Prisma.Sql): Prisma.Sql {
  return sql`${raw(from)} r cross join (select ${namespaceId}::text as id) n
    where r.namespace_id = ${namespaceId} and ${where}`;
}

async function runSql<Row extends object>(
  on: Queryable,
  { text, values }: Prisma.Sql,
): Promise<Row[]> {
  return (await on.query({ text, values })).rows as Row[];
}

function isInPart(parts: readonly TablePart[]): Prisma.Sql {
  const conditions = parts.map(({ alias, column }) => `r.${column} = ${alias}.id`);
  return raw(['r.namespace_id = n.id', ...conditions].join(' and '));
}

function sources(namespaces: Namespaces, parts: readonly TablePart[]): Prisma.Sql {
  const source =
    'name' in namespaces
      ? sql`${namedNamespace(namespaces.name)} n`
      : partSource({ alias: 'n', type: 'text', values: namespaces });
  return join([source, ...parts.map(partSource)], ' cross join ');
}

function namedNamespace(name: string): Prisma.Sql {
  return sql`(select id from namespaces where name = ${name})`;
}

function namespaceIdsSql(namespaces: Namespaces): Prisma.Sql {
  return 'name' in namespaces
    ? sql`array(select id from namespaces where name = ${namespaces.name})`
    : sql`${[...namespaces]}::text[]`;
}

/** A single value is a constant, so that the planner knows its frequency. */
function partSource({ alias, type, values }: Omit<TablePart, 'column'>): Prisma.Sql {
  if (values.length === 1) return sql`(select ${values[0]}::${raw(type)} as id) ${raw(alias)}`;
  return sql`unnest(${[...values]}::${raw(type)}[]) ${raw(alias)}(id)`;
}
