/**
 * Keyset pagination: each page begins after the row of a cursor. A page costs the same at any depth, and rows that are
 * inserted, changed or deleted between two pages do not shift other rows.
 *
 * A list is sorted by one column and then by the id. A cursor contains both values, so it stays valid if its row is deleted.
 * It also contains the name of the sort order, because it is meaningless in another order.
 */
import { Prisma } from '../../../prisma/generated/client.ts';
import {
  type CursorPage,
  type CursorPageRequest,
  checkFirst,
  invalidCursor,
  LazyItem,
  replaceNode,
} from './paging.ts';

export type Sorting = {
  /** Name in cursors and in the API. */
  name: string;
  column: string;
  type: 'text' | 'time' | 'integer';
  order: 'asc' | 'desc';
  /** Rows without a value come last in both directions. */
  nullable?: boolean;
  /** Whether no two rows of a namespace have the same value, so that the order of its rows needs no id. */
  unique?: boolean;
  /** Unique column that breaks ties; default `id`. */
  id?: string;
};

/** Ids sort by the time of creation. */
export const NEWEST_FIRST: Sorting = { name: 'newest', column: 'id', type: 'text', order: 'desc' };

type Value = string | Date | bigint | number | null;
/** What a cursor contains: the values of a row in the sort column and in the id. */
export type Position = [value: Value, id: string];
type Row = Record<string, unknown>;

/** The methods of a Prisma model delegate that a page needs. */
type PrismaTable = {
  findMany(query: object): PromiseLike<object[]>;
  count(query: object): PromiseLike<number>;
};

/**
 * Reads a page of the rows of `table` that match `where`, with the columns of `select`.
 * @param toItems converts rows to list items in the same order; default: the rows themselves
 * @throws AppError 400 if `first` is out of range or the cursor is invalid
 */
export async function readCursorPage<Row, Item = Row>(
  table: PrismaTable,
  sorting: Sorting,
  range: CursorPageRequest,
  { where, select }: { where: object; select: object },
  toItems?: (rows: Row[]) => Item[] | Promise<Item[]>,
): Promise<CursorPage<Item>> {
  const { where: page, orderBy, take } = buildPageQuery(sorting, range);
  const rows = await table.findMany({
    where: { AND: [where, page] },
    select: { ...select, ...cursorColumns(sorting) },
    orderBy,
    take,
    relationLoadStrategy: 'join',
  });
  const count = async () => table.count({ where });
  const { items, ...pageInfo } = toCursorPage(sorting, range, rows, count);
  // `select` decides the type of a row; only the caller knows it.
  const nodes = items.map(({ node }) => node) as Row[];
  const converted = toItems ? await toItems(nodes) : (nodes as unknown[] as Item[]);
  return { ...pageInfo, items: items.map((item, i) => replaceNode(item, converted[i] as Item)) };
}

/** Arguments of `findMany` for one page and an additional row, which shows whether another page follows. */
type PageQuery = { where: object; orderBy: object[]; take: number };

/** @throws AppError 400 if `first` is out of range or the cursor is invalid */
export function buildPageQuery(sorting: Sorting, { first, after }: CursorPageRequest): PageQuery {
  const { column, order, nullable, id = 'id' } = sorting;
  const sorted = nullable ? { sort: order, nulls: 'last' } : order;
  const position = decodeCursor(sorting, after);
  return {
    where: position ? afterCursor(sorting, position) : {},
    orderBy: column === id ? [{ [id]: order }] : [{ [column]: sorted }, { [id]: order }],
    take: checkFirst(first) + 1,
  };
}

/** Parts of an SQL statement that reads one page of the rows `r`. */
type PageSql = {
  /** Columns of the cursor, named as in Prisma. */
  columns: readonly string[];
  /** The page is the beginning of the union of these branches. Each branch can be read in the order of an index. */
  branches: readonly { where: Prisma.Sql; orderBy: Prisma.Sql }[];
  /** The order of the union, whose rows an outer query calls `p`. */
  orderRead: Prisma.Sql;
};

const SQL_TYPES = { text: 'text', time: 'timestamptz', integer: 'bigint' } as const;

/** @param after null for the beginning of the list */
export function buildPageSql(sorting: Sorting, after: Position | null): PageSql {
  const { column, order, nullable, id = 'id' } = sorting;
  const columns = column === id ? [id] : [column, id];
  const orderRead = columns.map(
    (name) => `p."${name}" ${order}${nullable && name === column ? ' nulls last' : ''}`,
  );
  return {
    columns,
    branches: buildBranches(sorting, after),
    orderRead: Prisma.raw(orderRead.join(', ')),
  };
}

function buildBranches(
  { column, type, order, nullable, unique, id = 'id' }: Sorting,
  cursor: Position | null,
): PageSql['branches'] {
  const { sql, raw } = Prisma;
  const sortColumn = raw(`r.${toColumnName(column)}`);
  const idColumn = raw(`r.${toColumnName(id)}`);
  const past = raw(order === 'asc' ? '>' : '<');
  const direction = raw(order);
  const byId = sql`${idColumn} ${direction}`;
  const afterId = cursor ? sql`${idColumn} ${past} ${cursor[1]}` : sql`true`;
  if (column === id) return [{ where: afterId, orderBy: byId }];
  const value = cursor && sql`${cursor[0]}::${raw(SQL_TYPES[type])}`;
  const afterCursor = cursor
    ? sql`(${sortColumn}, ${idColumn}) ${past} (${value}, ${cursor[1]})`
    : sql`true`;
  const byColumn = sql`${sortColumn} ${direction}`;
  if (!nullable)
    return [{ where: afterCursor, orderBy: unique ? byColumn : sql`${byColumn}, ${byId}` }];
  // The index has rows without a value at one end, which becomes the other end in a backward scan.
  const nulls = raw(order === 'asc' ? 'nulls first' : 'nulls last');
  // Also sorts by the column where it is null: otherwise PostgreSQL does not recognize the order of the index.
  const orderBy = sql`${sortColumn} ${direction} ${nulls}, ${byId}`;
  const withoutValue = (where: Prisma.Sql) => ({
    where: sql`${sortColumn} is null and ${where}`,
    orderBy,
  });
  if (cursor !== null && cursor[0] === null) return [withoutValue(afterId)];
  const withValue = { where: sql`${sortColumn} is not null and ${afterCursor}`, orderBy };
  return [withValue, withoutValue(sql`true`)];
}

/** `namespaceId` → `namespace_id`, like every `@map` of the Prisma schema. */
export function toColumnName(field: string): string {
  return field.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** Builds the page from the rows that `buildPageQuery` read, which contain the columns of the cursor. */
export function toCursorPage<T>(
  sorting: Sorting,
  { first }: CursorPageRequest,
  rows: readonly T[],
  totalCount: CursorPage<T>['totalCount'],
): CursorPage<T> {
  return {
    items: rows
      .slice(0, first)
      .map((node) => new LazyItem(node, () => encodeCursor(sorting, node as Row))),
    hasNextPage: rows.length > first,
    totalCount,
  };
}

/** Columns of the cursor, as a Prisma `select`. */
function cursorColumns({ column, id = 'id' }: Sorting): Record<string, true> {
  return { [column]: true, [id]: true };
}

function afterCursor(
  { column, order, nullable, id = 'id' }: Sorting,
  [value, lastId]: Position,
): object {
  const past = order === 'asc' ? 'gt' : 'lt';
  const sameValue = { [column]: value, [id]: { [past]: lastId } };
  if (column === id) return { [id]: { [past]: lastId } };
  if (value === null) return sameValue;
  if (nullable) return { OR: [{ [column]: { [past]: value } }, sameValue, { [column]: null }] };
  // The first condition is redundant; it gives the index scan a starting point.
  return {
    AND: [
      { [column]: { [`${past}e`]: value } },
      { OR: [{ [column]: { [past]: value } }, sameValue] },
    ],
  };
}

function encodeCursor({ name, column, id = 'id' }: Sorting, row: Row): string {
  const value = row[column];
  const text = value instanceof Date ? value.toISOString() : value === null ? null : String(value);
  return Buffer.from(JSON.stringify([name, text, row[id]])).toString('base64url');
}

/** @returns null without a cursor @throws AppError 400 */
export function decodeCursor(
  { name, type, nullable }: Sorting,
  cursor: string | null | undefined,
): Position | null {
  if (cursor == null) return null;
  const [sort, text, id] = parseJsonArray(cursor);
  if (sort !== name || typeof id !== 'string' || !/^[a-z]+_[0-9a-z]{26}$/.test(id))
    throw invalidCursor();
  if (text === null && nullable) return [null, id];
  if (typeof text !== 'string' || text.includes('\0')) throw invalidCursor();
  if (type === 'text') return [text, id];
  if (type === 'time') {
    const time = new Date(text);
    // Cursors contain no other form of a time, and PostgreSQL refuses years before 1.
    if (!(time.getTime() >= 0) || time.toISOString() !== text) throw invalidCursor();
    return [time, id];
  }
  if (!/^\d{1,18}$/.test(text)) throw invalidCursor();
  return [BigInt(text), id];
}

function parseJsonArray(cursor: string): unknown[] {
  try {
    const parsed = JSON.parse(Buffer.from(cursor, 'base64url').toString());
    return Array.isArray(parsed) ? parsed : [];
  } catch {
    return [];
  }
}
