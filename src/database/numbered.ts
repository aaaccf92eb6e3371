/**
 * Pages by number of what a namespace has, with their total. By hand, because Prisma's form of it joins every row of the
 * namespace before it cuts the page.
 *
 * One statement reads the first pages of an unfiltered list. An index-only scan from the nearer end of the list finds any other
 * page. The last page of a million rows therefore costs as much as the first; the middle page scans half of the keys.
 */
import type pg from 'pg';
import { Prisma } from '../../prisma/generated/client.ts';
import { inPoolTransaction } from './client.ts';
import { columnOf, type Sorting } from './keyset.ts';
import { type Counted, totalSql } from './list-counts.ts';
import type { Table } from './merged.ts';
import { type PageRequest, toOffset } from './paging.ts';
import { readValues } from './prepared.ts';
import { nameOf, type RowColumns } from './rows.ts';

type Numbered = {
  /** The table, which the condition calls `r`, and its namespace `n`. */
  from: string;
  /** Its name. */
  namespace: string;
  where: Prisma.Sql;
  /** Whether more is left out than what the viewer may not see. */
  isFiltered: boolean;
  /** How the condition is said of the counts; null: the rows are counted. */
  counted: Counted | null;
  select: object;
};

/** `unique`: the column alone is a key in its namespace. */
type Order = Pick<Sorting, 'column' | 'order' | 'nullable'> & { unique?: boolean };
type Page<Row> = { namespaceId: string; total: number; nodes: Row[] };

/** Of whole rows passed over; of keys it would cost a tenth. */
const MAX_PASSED = 1_000;

/** @returns null when there is no such namespace @throws AppError 400 naming `page` or `perPage` */
export async function readNumberedPage<Row>(
  table: Table,
  order: Order,
  request: PageRequest,
  numbered: Numbered,
): Promise<Page<Row> | null> {
  const { skip } = toOffset(request);
  const isPlain = skip <= MAX_PASSED && !numbered.isFiltered;
  // No index has those without a value behind the others in ascending order.
  const hasIndex = !(order.nullable && order.order === 'asc');
  const read = isPlain && hasIndex ? readAtOnce : readFromNearerEnd;
  return read<Row>(table, order, request, numbered);
}

async function readAtOnce<Row>(
  { pool, rows, prisma }: Table,
  { column, order, nullable, unique }: Order,
  request: PageRequest,
  { from, namespace, where, counted, select }: Numbered,
): Promise<Page<Row> | null> {
  const { skip, take } = toOffset(request);
  const { sql, raw } = Prisma;
  const columns = rows.columns(select);
  const read = columns ?? (rows.columns(ID) as RowColumns);
  const table = raw(from);
  // Total by the id, so that pages never overlap.
  const first = `r.${columnOf(column)} ${order}${nullable ? ' nulls last' : ''}`;
  const by = raw(unique ? first : `${first}, r.id ${order}`);
  const total = counted
    ? totalSql(counted, sql`array[n.id]`)
    : sql`select count(*) as total from ${table} r where r.namespace_id = n.id and ${where}`;
  const { text, values } = sql`
    select n.id, t.total, r.id, ${raw(read.sql)}
      from namespaces n
      cross join lateral (${total}) t
      left join lateral (
        select r.* from ${table} r where r.namespace_id = n.id and ${where}
          order by ${by} limit ${take} offset ${skip}
      ) r on true
      where n.name = ${namespace.toLowerCase()}
      order by ${by}`;
  const answer = await readValues(pool, { name: nameOf(text), text }, values);
  const [head] = answer;
  if (!head) return null;
  // An empty page is one row, without an id.
  const found = answer.flatMap((row) => (row[2] === null ? [] : read.toRow(row.slice(3))));
  const nodes = columns ? found : await readAll(prisma, found as { id: string }[], select);
  return { namespaceId: head[0] as string, total: Number(head[1]), nodes: nodes as Row[] };
}

const ID = { id: true };

/** What Prisma alone reads, in the order of `page`. One deleted since the page was read is left out. */
async function readAll(prisma: Table['prisma'], page: readonly { id: string }[], select: object) {
  const ids = page.map(({ id }) => id);
  const rows = await prisma.findMany({
    where: { id: { in: ids } },
    select: { ...select, id: true },
    relationLoadStrategy: 'join',
  });
  const byId = new Map(rows.map((row) => [(row as { id: string }).id, row]));
  return ids.flatMap((id) => byId.get(id) ?? []);
}

type Head = { id: string; total: string; present: string };

/**
 * In one snapshot, so that a page is where the total says. Statements without a name: PostgreSQL plans them for the values,
 * of which some are rare.
 */
async function readFromNearerEnd<Row>(
  { pool, rows, prisma }: Table,
  order: Order,
  request: PageRequest,
  { from, namespace, where, counted, select }: Numbered,
): Promise<Page<Row> | null> {
  const { skip, take } = toOffset(request);
  const { sql, raw } = Prisma;
  const column = raw(`r.${columnOf(order.column)}`);
  const of = (id: string) =>
    sql`${raw(from)} r cross join (select ${id}::text as id) n where r.namespace_id = ${id} and ${where}`;
  const key = order.unique ? order.column : 'id';
  const statement = rows.statement(
    select,
    { [key]: true },
    `where r.namespace_id = $1 and r.${columnOf(key)} = any($2)`,
  );
  const found = await inPoolTransaction(pool, async (client) => {
    await client.query('set transaction isolation level repeatable read, read only');
    const named = sql`select n.id from namespaces n where n.name = ${namespace.toLowerCase()}`;
    const [known] = await query<{ id: string }>(client, named);
    if (!known) return null;
    const { id } = known;
    const counts = counted
      ? totalSql(counted, sql`array[${id}]`, order.column)
      : sql`select count(*) as total, count(${column}) as present from ${of(id)}`;
    const [head] = await query<Head>(client, counts);
    const total = Number(head?.total);
    const present = order.nullable ? Number(head?.present) : total;
    const keys: string[] = [];
    for (const part of partsOf({ skip, take }, { total, present }, order)) {
      const statement = sql`
        select ${order.unique ? column : raw('r.id')} as key from ${of(id)} and ${part.where}
          order by ${part.orderBy} limit ${part.limit} offset ${part.offset}`;
      const read = (await query<{ key: string }>(client, statement)).map(({ key }) => key);
      keys.push(...(part.reversed ? read.reverse() : read));
    }
    return { namespaceId: id, total, keys, read: await statement?.read(client, [id, keys]) };
  });
  if (!found) return null;
  const { namespaceId, total, keys, read } = found;
  const whole =
    read ??
    (await prisma.findMany({
      where: { namespaceId, [key]: { in: keys } },
      select: { ...select, [key]: true },
      relationLoadStrategy: 'join',
    }));
  const byKey = new Map(whole.map((row) => [(row as Record<string, unknown>)[key], row as Row]));
  return { namespaceId, total, nodes: keys.flatMap((one) => byKey.get(one) ?? []) };
}

async function query<Row extends object>(
  client: pg.ClientBase,
  { text, values }: Prisma.Sql,
): Promise<Row[]> {
  return (await client.query<Row>(text, values)).rows;
}

type Part = {
  where: Prisma.Sql;
  orderBy: Prisma.Sql;
  limit: number;
  offset: number;
  /** It is read from the end. */
  reversed: boolean;
};

/** Splits the page into its rows with a value in the sort column and its rows with null. */
function partsOf(
  { skip, take }: { skip: number; take: number },
  { total, present }: { total: number; present: number },
  { column, order, nullable, unique }: Order,
): Part[] {
  const { raw } = Prisma;
  const name = `r.${columnOf(column)}`;
  const opposite = order === 'asc' ? 'desc' : 'asc';
  const part = (begin: number, end: number, hasValue: boolean): Part[] => {
    const from = Math.max(skip, begin);
    const limit = Math.min(skip + take, end) - from;
    if (limit <= 0) return [];
    const [before, after] = [from - begin, end - from - limit];
    const reversed = after < before;
    const direction = reversed ? opposite : order;
    // The planner uses the index only if NULLS FIRST or LAST matches it, even if no null can occur in these rows.
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
