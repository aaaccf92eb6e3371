/**
 * Pages by number of what a namespace has, with their total, in one statement. By hand, because Prisma's form of it
 * joins every row of the namespace before it cuts the page: of 20,000, a page near the end took 500 ms against 35, the
 * first 30 against 18, most of it the counting.
 */
import { Prisma } from '../../prisma/generated/client.ts';
import { columnOf, type Sorting } from './keyset.ts';
import type { Table } from './merged.ts';
import { type PageRequest, toOffset } from './paging.ts';
import { nameOf, type RowColumns } from './rows.ts';

type Numbered = {
  /** The table, which the condition calls `r`, and its namespace `n`. */
  from: string;
  /** Its name. */
  namespace: string;
  where: Prisma.Sql;
  select: object;
};

/** @returns null when there is no such namespace @throws AppError 400 naming `page` or `perPage` */
export async function readNumberedPage<Row>(
  { pool, rows, prisma }: Table,
  sorting: Pick<Sorting, 'column' | 'order' | 'nullable'>,
  request: PageRequest,
  { from, namespace, where, select }: Numbered,
): Promise<{ namespaceId: string; total: number; nodes: Row[] } | null> {
  const { skip, take } = toOffset(request);
  const { sql, raw } = Prisma;
  const columns = rows.columns(select);
  const read = columns ?? (rows.columns(ID) as RowColumns);
  const table = raw(from);
  // Total by the id, so that pages never overlap.
  const { column, order, nullable } = sorting;
  const by = raw(`r.${columnOf(column)} ${order}${nullable ? ' nulls last' : ''}, r.id ${order}`);
  const { text, values } = sql`
    select n.id, t.total, r.id, ${raw(read.sql)}
      from namespaces n
      cross join lateral (select count(*) as total from ${table} r where r.namespace_id = n.id and ${where}) t
      left join lateral (
        select r.* from ${table} r where r.namespace_id = n.id and ${where}
          order by ${by} limit ${take} offset ${skip}
      ) r on true
      where n.name = ${namespace.toLowerCase()}
      order by ${by}`;
  const name = nameOf(text);
  const answer = await pool.query<unknown[]>({ name, text, values, rowMode: 'array' });
  const [first] = answer.rows;
  if (!first) return null;
  // An empty page is one row, without an id.
  const found = answer.rows.flatMap((row) => (row[2] === null ? [] : read.toRow(row.slice(3))));
  const nodes = columns ? found : await readAll(prisma, found as { id: string }[], select);
  return { namespaceId: first[0] as string, total: Number(first[1]), nodes: nodes as Row[] };
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
