/**
 * Offset pagination of the lists of a namespace, with the total. Hand-written SQL, because the SQL that Prisma generates
 * joins every row of the namespace before it applies the limit.
 *
 * The first pages of an unfiltered list are read by one statement. Other pages are read from the nearer end of the list by an
 * index-only scan: the last page of a million rows costs as much as the first, the middle page a scan of half the keys.
 */
import type pg from 'pg';
import { Prisma } from '../../../prisma/generated/client.ts';
import { inPoolTransaction } from './client.ts';
import { type Sorting, toColumnName } from './keyset.ts';
import { buildTotalSql, type CountedList } from './list-counts.ts';
import { type OffsetPageRequest, toOffset } from './paging.ts';
import { queryRowArrays, statementNameFor } from './rows.ts';
import type { PagedTable } from './union-page.ts';

const { sql, raw } = Prisma;

type OffsetPageQuery = {
  /** Trusted SQL: the table, called `r` in conditions. The row of its namespace is called `n`. */
  from: string;
  /** Name of the namespace. */
  namespace: string;
  where: Prisma.Sql;
  /** Whether the client has set a filter. Conditions on what the viewer may see do not count. */
  isFiltered: boolean;
  /** The same condition on `list_counts`; null: rows are counted. */
  counted: CountedList | null;
  select: object;
};

type PageOrder = Pick<Sorting, 'column' | 'order' | 'nullable'> & {
  /** Whether the column alone is unique within a namespace. */
  unique?: boolean;
};
type NamespacePage<Row> = { namespaceId: string; total: number; nodes: Row[] };

/** With a larger offset, only keys are skipped, which costs a tenth of skipping rows. */
const MAX_SKIPPED_ROWS = 1_000;

/** @returns null if the namespace does not exist @throws AppError 400 for `page` or `perPage` */
export async function offsetPage<Row>(
  table: PagedTable,
  order: PageOrder,
  request: OffsetPageRequest,
  query: OffsetPageQuery,
): Promise<NamespacePage<Row> | null> {
  const { skip } = toOffset(request);
  // No index is ascending and has the rows without a value at its end.
  const hasIndex = !(order.nullable && order.order === 'asc');
  const isCheap = skip <= MAX_SKIPPED_ROWS && !query.isFiltered && hasIndex;
  const readPage = isCheap ? readInOneStatement : readFromNearerEnd;
  return readPage<Row>(table, order, request, query);
}

async function readInOneStatement<Row>(
  { pool, rows }: PagedTable,
  { column, order, nullable, unique }: PageOrder,
  request: OffsetPageRequest,
  { from, namespace, where, counted, select }: OffsetPageQuery,
): Promise<NamespacePage<Row> | null> {
  const { skip, take } = toOffset(request);
  const columns = rows.columns(select);
  const table = raw(from);
  const byColumn = `r.${toColumnName(column)} ${order}${nullable ? ' nulls last' : ''}`;
  // The id makes the order total, so that pages never overlap.
  const orderBy = raw(unique ? byColumn : `${byColumn}, r.id ${order}`);
  const total = counted
    ? buildTotalSql(counted, sql`array[n.id]`)
    : sql`select count(*) as total from ${table} r where r.namespace_id = n.id and ${where}`;
  const { text, values } = sql`
    select n.id, t.total, r.id, ${raw(columns.sql)}
      from namespaces n
      cross join lateral (${total}) t
      left join lateral (
        select r.* from ${table} r where r.namespace_id = n.id and ${where}
          order by ${orderBy} limit ${take} offset ${skip}
      ) r on true
      where n.name = ${namespace.toLowerCase()}
      order by ${orderBy}`;
  const resultRows = await queryRowArrays(pool, { name: statementNameFor(text), text }, values);
  const [firstRow] = resultRows;
  if (!firstRow) return null;
  const [namespaceId, totalText] = firstRow as [string, string];
  // An empty page is one row without an id.
  const nodes = resultRows.flatMap(([, , id, ...rowValues]) =>
    id === null ? [] : columns.toRow(rowValues),
  );
  return { namespaceId, total: Number(totalText), nodes: nodes as Row[] };
}

/**
 * Reads total and keys of the page in one snapshot, so that they agree. The statements have no name, because the best plan
 * depends on their values.
 */
async function readFromNearerEnd<Row>(
  { pool, rows }: PagedTable,
  order: PageOrder,
  request: OffsetPageRequest,
  query: OffsetPageQuery,
): Promise<NamespacePage<Row> | null> {
  const { namespace, select } = query;
  const key = order.unique ? order.column : 'id';
  const rowStatement = rows.statement(
    select,
    { [key]: true },
    `where r.namespace_id = $1 and r.${toColumnName(key)} = any($2)`,
  );
  return inPoolTransaction(pool, async (client) => {
    await client.query('set transaction isolation level repeatable read, read only');
    const [found] = await runSql<{ id: string }>(
      client,
      sql`select n.id from namespaces n where n.name = ${namespace.toLowerCase()}`,
    );
    if (!found) return null;
    const { id } = found;
    const counts = await countRows(client, id, order, query);
    const keys = await readKeys(client, id, splitPage(toOffset(request), counts, order), {
      order,
      query,
    });
    const pageRows = await rowStatement.read(client, [id, keys]);
    const byKey = new Map(
      pageRows.map((row) => [(row as Record<string, unknown>)[key], row as Row]),
    );
    const nodes = keys.flatMap((value) => byKey.get(value) ?? []);
    return { namespaceId: id, total: counts.total, nodes };
  });
}

/** `withValue`: the number of rows with a value in the sort column. */
type Counts = { total: number; withValue: number };

async function countRows(
  client: pg.ClientBase,
  namespaceId: string,
  { column, nullable }: PageOrder,
  { from, where, counted }: OffsetPageQuery,
): Promise<Counts> {
  const sortColumn = raw(`r.${toColumnName(column)}`);
  const counts = counted
    ? buildTotalSql(counted, sql`array[${namespaceId}]`, nullable ? column : undefined)
    : sql`select count(*) as total, count(${sortColumn}) as "withValue"
        from ${rowsOf(namespaceId, from, where)}`;
  const [row] = await runSql<{ total: string; withValue: string }>(client, counts);
  const total = Number(row?.total);
  return { total, withValue: nullable ? Number(row?.withValue) : total };
}

/** Reads the keys of the parts of a page, in the order of the list. */
async function readKeys(
  client: pg.ClientBase,
  namespaceId: string,
  parts: readonly PagePart[],
  { order, query: { from, where } }: { order: PageOrder; query: OffsetPageQuery },
): Promise<string[]> {
  const keyColumn = raw(order.unique ? `r.${toColumnName(order.column)}` : 'r.id');
  const keys: string[] = [];
  for (const part of parts) {
    const partRows = await runSql<{ key: string }>(
      client,
      sql`select ${keyColumn} as key from ${rowsOf(namespaceId, from, where)} and ${part.where}
        order by ${part.orderBy} limit ${part.limit} offset ${part.offset}`,
    );
    const partKeys = partRows.map(({ key }) => key);
    keys.push(...(part.isReversed ? partKeys.reverse() : partKeys));
  }
  return keys;
}

function rowsOf(namespaceId: string, from: string, where: Prisma.Sql): Prisma.Sql {
  return sql`${raw(from)} r cross join (select ${namespaceId}::text as id) n
    where r.namespace_id = ${namespaceId} and ${where}`;
}

async function runSql<Row extends object>(
  client: pg.ClientBase,
  { text, values }: Prisma.Sql,
): Promise<Row[]> {
  return (await client.query<Row>(text, values)).rows;
}

type PagePart = {
  where: Prisma.Sql;
  orderBy: Prisma.Sql;
  limit: number;
  offset: number;
  /** Whether the part is read backwards, from its end. */
  isReversed: boolean;
};

/**
 * Splits the page into the part of the rows with a value in the sort column and the part of the rows without. Each part is
 * read from its nearer end.
 */
function splitPage(
  { skip, take }: { skip: number; take: number },
  { total, withValue }: Counts,
  { column, order, nullable, unique }: PageOrder,
): PagePart[] {
  const name = `r.${toColumnName(column)}`;
  const opposite = order === 'asc' ? 'desc' : 'asc';
  const part = (begin: number, end: number, hasValue: boolean): PagePart[] => {
    const first = Math.max(skip, begin);
    const limit = Math.min(skip + take, end) - first;
    if (limit <= 0) return [];
    const rowsBefore = first - begin;
    const rowsAfter = end - first - limit;
    const isReversed = rowsAfter < rowsBefore;
    const direction = isReversed ? opposite : order;
    // The planner uses the index only if the order of nulls is the index's, even in a part without nulls.
    const nulls = nullable ? (direction === 'asc' ? ' nulls first' : ' nulls last') : '';
    const byValue = `${name} ${direction}${nulls}`;
    return [
      {
        where: raw(nullable ? `${name} is ${hasValue ? 'not null' : 'null'}` : 'true'),
        orderBy: raw(unique ? byValue : `${byValue}, r.id ${direction}`),
        limit,
        offset: isReversed ? rowsAfter : rowsBefore,
        isReversed,
      },
    ];
  };
  return [...part(0, withValue, true), ...part(withValue, total, false)];
}
