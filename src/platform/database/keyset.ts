/**
 * Pages of a table, each after the row that a cursor names: a page costs the same however deep it stands, and
 * rows that come, change or go meanwhile move none of the others.
 *
 * A list is sorted by one column and then by the id. A cursor holds the values of both in its row, so it works
 * when that row is gone, and the name of the sort, because with another it means nothing.
 */
import { Prisma } from '../../../prisma/generated/client.ts';
import {
  checkFirst,
  inPlaceOf,
  LazyItem,
  noCursor,
  type Slice,
  type SliceRequest,
} from './paging.ts';

export type Sorting = {
  /** What clients call it. */
  name: string;
  column: string;
  type: 'text' | 'time' | 'integer';
  order: 'asc' | 'desc';
  /** Rows without a value come last, in either order. */
  nullable?: boolean;
  /** The column that makes the order total, where it is not `id`. */
  id?: string;
};

/** Newest first: ids sort by time of creation. */
export const NEWEST: Sorting = { name: 'newest', column: 'id', type: 'text', order: 'desc' };

type Value = string | Date | bigint | number | null;
type Row = Record<string, unknown>;

/** The part of Prisma's delegate of a model that reads a page. */
type Table = {
  findMany(query: object): PromiseLike<object[]>;
  count(query: object): PromiseLike<number>;
};

/**
 * A page of the rows of `table` that `where` has, with the columns of `select`.
 * @param toItems what is shown of the rows, each in its place; left out: the rows themselves
 * @throws AppError 400 for `first` out of range, and for what is no cursor of this list
 */
export async function readSlice<Row, Item = Row>(
  table: Table,
  sorting: Sorting,
  range: SliceRequest,
  { where, select }: { where: object; select: object },
  toItems?: (rows: Row[]) => Item[] | Promise<Item[]>,
): Promise<Slice<Item>> {
  const { where: page, orderBy, take } = pageQuery(sorting, range);
  const rows = await table.findMany({
    where: { AND: [where, page] },
    select: { ...select, ...cursorColumns(sorting) },
    orderBy,
    take,
    relationLoadStrategy: 'join',
  });
  const count = async () => table.count({ where });
  const { items, ...slice } = toSlice(sorting, range, rows, count);
  // The caller's `select` says what a row is.
  const read = items.map(({ node }) => node) as Row[];
  const shown = toItems ? await toItems(read) : (read as unknown[] as Item[]);
  return { ...slice, items: items.map((item, at) => inPlaceOf(item, shown[at] as Item)) };
}

/** The parts of Prisma's `findMany` that read one page, and one row more, which shows whether another follows. */
type PageQuery = { where: object; orderBy: object[]; take: number };

/** @throws AppError 400 for `first` out of range, and for what is no cursor of this list. */
export function pageQuery(sorting: Sorting, { first, after }: SliceRequest): PageQuery {
  const { column, order, nullable, id = 'id' } = sorting;
  const sorted = nullable ? { sort: order, nulls: 'last' } : order;
  return {
    where: after == null ? {} : beyond(sorting, readCursor(sorting, after)),
    orderBy: column === id ? [{ [id]: order }] : [{ [column]: sorted }, { [id]: order }],
    take: checkFirst(first) + 1,
  };
}

/** The parts of a statement by hand that reads one page of the rows `r`, and one row more. */
type PageSql = {
  /** Of which cursors are made, named as in Prisma. */
  columns: readonly string[];
  /** The page is the first `take` rows of all of these together, each of which an index has in its order. */
  branches: readonly { where: Prisma.Sql; orderBy: Prisma.Sql }[];
  /** The order of what another query read as `p`. */
  orderRead: Prisma.Sql;
  take: number;
};

const SQL_TYPES = { text: 'text', time: 'timestamptz', integer: 'bigint' } as const;

/** As `pageQuery`. @throws AppError 400 */
export function pageSql(sorting: Sorting, { first, after }: SliceRequest): PageSql {
  const { column, order, nullable, id = 'id' } = sorting;
  const columns = column === id ? [id] : [column, id];
  const orderRead = columns.map(
    (name) => `p."${name}" ${order}${nullable && name === column ? ' nulls last' : ''}`,
  );
  return {
    columns,
    branches: branchesOf(sorting, after == null ? null : readCursor(sorting, after)),
    orderRead: Prisma.raw(orderRead.join(', ')),
    take: checkFirst(first) + 1,
  };
}

function branchesOf(
  { column, type, order, nullable, id = 'id' }: Sorting,
  cursor: [Value, string] | null,
): PageSql['branches'] {
  const { sql, raw } = Prisma;
  const [c, i] = [raw(`r.${columnOf(column)}`), raw(`r.${columnOf(id)}`)];
  const [past, direction] = [raw(order === 'asc' ? '>' : '<'), raw(order)];
  const byId = sql`${i} ${direction}`;
  const bound = cursor && sql`${cursor[0]}::${raw(SQL_TYPES[type])}`;
  if (column === id)
    return [{ where: cursor ? sql`${i} ${past} ${cursor[1]}` : sql`true`, orderBy: byId }];
  const beyond = cursor ? sql`(${c}, ${i}) ${past} (${bound}, ${cursor[1]})` : sql`true`;
  if (!nullable) return [{ where: beyond, orderBy: sql`${c} ${direction}, ${byId}` }];
  // The index has those without a value at one end, which is the other one where it is read backwards.
  const nulls = raw(order === 'asc' ? 'nulls first' : 'nulls last');
  // By the value where there is none too, because PostgreSQL knows the order of the index by nothing else.
  const orderBy = sql`${c} ${direction} ${nulls}, ${byId}`;
  const present = { where: sql`${c} is not null and ${beyond}`, orderBy };
  const isAmongAbsent = cursor !== null && cursor[0] === null;
  const behind = isAmongAbsent ? sql`${i} ${past} ${cursor[1]}` : sql`true`;
  const absent = { where: sql`${c} is null and ${behind}`, orderBy };
  return isAmongAbsent ? [absent] : [present, absent];
}

/** `namespaceId` → `namespace_id`, as every `@map` of the schema has it. */
export function columnOf(field: string): string {
  return field.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** The page out of the rows that `pageQuery` read, which hold the sort's columns. */
export function toSlice<T>(
  sorting: Sorting,
  { first }: SliceRequest,
  rows: readonly T[],
  totalCount: Slice<T>['totalCount'],
): Slice<T> {
  return {
    items: rows
      .slice(0, first)
      .map((node) => new LazyItem(node, () => cursorOf(sorting, node as Row))),
    hasNextPage: rows.length > first,
    totalCount,
  };
}

/** The columns of which cursors are made. */
function cursorColumns({ column, id = 'id' }: Sorting): Record<string, true> {
  return { [column]: true, [id]: true };
}

function beyond(
  { column, order, nullable, id = 'id' }: Sorting,
  [value, lastId]: [Value, string],
): object {
  const past = order === 'asc' ? 'gt' : 'lt';
  const sameValue = { [column]: value, [id]: { [past]: lastId } };
  if (column === id) return { [id]: { [past]: lastId } };
  if (value === null) return sameValue;
  if (nullable) return { OR: [{ [column]: { [past]: value } }, sameValue, { [column]: null }] };
  // The first condition adds nothing but a bound that an index can begin at.
  return {
    AND: [
      { [column]: { [`${past}e`]: value } },
      { OR: [{ [column]: { [past]: value } }, sameValue] },
    ],
  };
}

function cursorOf({ name, column, id = 'id' }: Sorting, row: Row): string {
  const value = row[column];
  const text = value instanceof Date ? value.toISOString() : value === null ? null : String(value);
  return Buffer.from(JSON.stringify([name, text, row[id]])).toString('base64url');
}

function readCursor({ name, type, nullable }: Sorting, cursor: string): [Value, string] {
  const [sort, text, id] = parse(cursor);
  if (sort !== name || typeof id !== 'string' || !/^[a-z]+_[0-9a-z]{26}$/.test(id))
    throw noCursor();
  if (text === null && nullable) return [null, id];
  if (typeof text !== 'string' || text.includes('\0')) throw noCursor();
  if (type === 'text') return [text, id];
  if (type === 'time') {
    const time = new Date(text);
    // Any other form was not made here, and years before 1 the database would refuse.
    if (!(time.getTime() >= 0) || time.toISOString() !== text) throw noCursor();
    return [time, id];
  }
  if (!/^\d{1,18}$/.test(text)) throw noCursor();
  return [BigInt(text), id];
}

function parse(cursor: string): unknown[] {
  try {
    const parsed = JSON.parse(Buffer.from(cursor, 'base64url').toString());
    return Array.isArray(parsed) ? parsed : [];
  } catch {
    return [];
  }
}
