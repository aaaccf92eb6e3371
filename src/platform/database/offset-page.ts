/**
 * Pages by number of the lists of a namespace, with their total. Hand-written SQL, because Prisma's form joins every row of
 * the namespace before it cuts the page.
 *
 * The first pages of an unfiltered list are one statement. Other pages are read from the nearer end of the list by an
 * index-only scan: the last page of a million rows costs as much as the first, the middle page a scan of half the keys.
 */
import type pg from 'pg';
import { Prisma } from '../../../prisma/generated/client.ts';
import { inPoolTransaction } from './client.ts';
import { type Sorting, toColumnName } from './keyset.ts';
import { buildTotalSql, type CountedList } from './list-counts.ts';
import { type OffsetPageRequest, toOffset } from './paging.ts';
import { type RowColumns, readValues, statementNameFor } from './rows.ts';
import { type PagedTable, readByIds } from './union-page.ts';

type OffsetPageQuery = {
  /** The table, called `r` in conditions; its namespace is `n`. */
  from: string;
  /** Name of the namespace. */
  namespace: string;
  where: Prisma.Sql;
  /** Whether the condition excludes more than rows that the viewer must not see. */
  isFiltered: boolean;
  /** The same condition on `list_counts`; null: rows are counted. */
  counted: CountedList | null;
  select: object;
};

/** `unique`: the column alone is unique within a namespace. */
type PageOrder = Pick<Sorting, 'column' | 'order' | 'nullable'> & { unique?: boolean };
type NamespacePage<Row> = { namespaceId: string; total: number; nodes: Row[] };

/** Limit for skipping whole rows. Skipping keys costs a tenth. */
const MAX_SKIPPED_ROWS = 1_000;

/** @returns null if the namespace does not exist @throws AppError 400 for `page` or `perPage` */
export async function offsetPage<Row>(
  table: PagedTable,
  order: PageOrder,
  request: OffsetPageRequest,
  numbered: OffsetPageQuery,
): Promise<NamespacePage<Row> | null> {
  const { skip } = toOffset(request);
  const canReadInOneStatement = skip <= MAX_SKIPPED_ROWS && !numbered.isFiltered;
  // In ascending order no index has rows without a value last.
  const hasIndex = !(order.nullable && order.order === 'asc');
  const readPage = canReadInOneStatement && hasIndex ? readInOneStatement : readFromNearerEnd;
  return readPage<Row>(table, order, request, numbered);
}

async function readInOneStatement<Row>(
  { pool, rows, prisma }: PagedTable,
  { column, order, nullable, unique }: PageOrder,
  request: OffsetPageRequest,
  { from, namespace, where, counted, select }: OffsetPageQuery,
): Promise<NamespacePage<Row> | null> {
  const { skip, take } = toOffset(request);
  const { sql, raw } = Prisma;
  const columns = rows.columns(select);
  const reader = columns ?? (rows.columns(ID) as RowColumns);
  const table = raw(from);
  // The id makes the order total, so that pages never overlap.
  const first = `r.${toColumnName(column)} ${order}${nullable ? ' nulls last' : ''}`;
  const by = raw(unique ? first : `${first}, r.id ${order}`);
  const total = counted
    ? buildTotalSql(counted, sql`array[n.id]`)
    : sql`select count(*) as total from ${table} r where r.namespace_id = n.id and ${where}`;
  const { text, values } = sql`
    select n.id, t.total, r.id, ${raw(reader.sql)}
      from namespaces n
      cross join lateral (${total}) t
      left join lateral (
        select r.* from ${table} r where r.namespace_id = n.id and ${where}
          order by ${by} limit ${take} offset ${skip}
      ) r on true
      where n.name = ${namespace.toLowerCase()}
      order by ${by}`;
  const resultRows = await readValues(pool, { name: statementNameFor(text), text }, values);
  const [head] = resultRows;
  if (!head) return null;
  // An empty page is one row without an id.
  const pageRows = resultRows.flatMap((row) => (row[2] === null ? [] : reader.toRow(row.slice(3))));
  let nodes: object[] = pageRows;
  if (!columns) {
    const ids = pageRows.map((row) => (row as { id: string }).id);
    const byId = await readByIds(prisma, ids, select);
    nodes = ids.flatMap((id) => byId.get(id) ?? []);
  }
  return { namespaceId: head[0] as string, total: Number(head[1]), nodes: nodes as Row[] };
}

const ID = { id: true };

type Head = { id: string; total: string; present: string };

/**
 * Reads total and page in one snapshot, so that they agree. The statements have no name, so PostgreSQL plans them for
 * their values, some of which are rare.
 */
async function readFromNearerEnd<Row>(
  { pool, rows, prisma }: PagedTable,
  order: PageOrder,
  request: OffsetPageRequest,
  { from, namespace, where, counted, select }: OffsetPageQuery,
): Promise<NamespacePage<Row> | null> {
  const { skip, take } = toOffset(request);
  const { sql, raw } = Prisma;
  const column = raw(`r.${toColumnName(order.column)}`);
  const of = (id: string) =>
    sql`${raw(from)} r cross join (select ${id}::text as id) n where r.namespace_id = ${id} and ${where}`;
  const key = order.unique ? order.column : 'id';
  const statement = rows.statement(
    select,
    { [key]: true },
    `where r.namespace_id = $1 and r.${toColumnName(key)} = any($2)`,
  );
  const result = await inPoolTransaction(pool, async (client) => {
    await client.query('set transaction isolation level repeatable read, read only');
    const named = sql`select n.id from namespaces n where n.name = ${namespace.toLowerCase()}`;
    const [known] = await query<{ id: string }>(client, named);
    if (!known) return null;
    const { id } = known;
    const counts = counted
      ? buildTotalSql(counted, sql`array[${id}]`, order.column)
      : sql`select count(*) as total, count(${column}) as present from ${of(id)}`;
    const [head] = await query<Head>(client, counts);
    const total = Number(head?.total);
    const present = order.nullable ? Number(head?.present) : total;
    const keys: string[] = [];
    for (const part of splitPage({ skip, take }, { total, present }, order)) {
      const statement = sql`
        select ${order.unique ? column : raw('r.id')} as key from ${of(id)} and ${part.where}
          order by ${part.orderBy} limit ${part.limit} offset ${part.offset}`;
      const partKeys = (await query<{ key: string }>(client, statement)).map(({ key }) => key);
      keys.push(...(part.reversed ? partKeys.reverse() : partKeys));
    }
    return { namespaceId: id, total, keys, read: await statement?.read(client, [id, keys]) };
  });
  if (!result) return null;
  const { namespaceId, total, keys, read } = result;
  const pageRows =
    read ??
    (await prisma.findMany({
      where: { namespaceId, [key]: { in: keys } },
      select: { ...select, [key]: true },
      relationLoadStrategy: 'join',
    }));
  const byKey = new Map(pageRows.map((row) => [(row as Record<string, unknown>)[key], row as Row]));
  return { namespaceId, total, nodes: keys.flatMap((one) => byKey.get(one) ?? []) };
}

async function query<Row extends object>(
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
  /** Read backwards from the end. */
  reversed: boolean;
};

/** Splits the page into rows with a value in the sort column and rows without. */
function splitPage(
  { skip, take }: { skip: number; take: number },
  { total, present }: { total: number; present: number },
  { column, order, nullable, unique }: PageOrder,
): PagePart[] {
  const { raw } = Prisma;
  const name = `r.${toColumnName(column)}`;
  const opposite = order === 'asc' ? 'desc' : 'asc';
  const part = (begin: number, end: number, hasValue: boolean): PagePart[] => {
    const from = Math.max(skip, begin);
    const limit = Math.min(skip + take, end) - from;
    if (limit <= 0) return [];
    const [before, after] = [from - begin, end - from - limit];
    const reversed = after < before;
    const direction = reversed ? opposite : order;
    // The planner uses the index only with its order of nulls, even if all rows or none have a value.
    const nulls = nullable ? (direction === 'asc' ? ' nulls first' : ' nulls last') : '';
    const byValue = `${name} ${direction}${nulls}`;
    return [
      {
        where: raw(nullable ? `${name} is ${hasValue ? 'not null' : 'null'}` : 'true'),
        orderBy: raw(unique ? byValue : `${byValue}, r.id ${direction}`),
        limit,
        offset: reversed ? after : before,
        reversed,
      },
    ];
  };
  return [...part(0, present, true), ...part(present, total, false)];
}
