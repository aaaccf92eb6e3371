/**
 * Pages of a list whose rows are in several parts of a table, such as the jobs of all namespaces of a user.
 *
 * An index has the rows of one part in order, but not the rows of several parts, and sorting a million rows for a page of
 * twenty takes a second. So one page of each part is read and the pages are merged. The cost grows with the number of parts,
 * not with the number of rows or the depth of the page.
 */
import type pg from 'pg';
import { Prisma } from '../../../prisma/generated/client.ts';
import { buildPageSql, type Sorting, toColumnName, toCursorPage } from './keyset.ts';
import { buildTotalSql, type CountedList } from './list-counts.ts';
import { type CursorPage, type CursorPageRequest, replaceNode } from './paging.ts';
import { queryRowArrays, type RowReader, statementNameFor } from './rows.ts';

/** A column that divides the table into parts. Conditions can refer to its value as `<alias>.id`. */
export type TablePart = { alias: string; column: string; type: string; values: readonly string[] };

type UnionPageQuery = {
  /** Trusted SQL: the table, called `r` in conditions. */
  from: string;
  /** The list has the rows of all combinations of these values. */
  parts: readonly TablePart[];
  /** A join that conditions can refer to, and that adds no rows. */
  join?: Prisma.Sql | undefined;
  where: Prisma.Sql;
  /**
   * Whether the client has set a filter. Conditions on what the viewer may see do not count. With a filter, the planner must
   * know the values, so the statement gets no name.
   */
  isFiltered: boolean;
  /** The same condition on `list_counts` of these namespaces; null: rows are counted. */
  counted: (CountedList & { namespaceIds: readonly string[] }) | null;
  select: object;
};

export type PagedTable = {
  pool: pg.Pool;
  rows: RowReader;
};

/** @throws AppError 400 if `first` is out of range or the cursor is invalid */
export async function unionPage<Row>(
  { pool, rows }: PagedTable,
  sorting: Sorting,
  range: CursorPageRequest,
  { from, parts, join: joined = Prisma.empty, where, isFiltered, counted, select }: UnionPageQuery,
): Promise<CursorPage<Row>> {
  const { sql, join, raw } = Prisma;
  const page = buildPageSql(sorting, range);
  const sources = join(parts.map(partSource), ' cross join ');
  const isInPart = join(
    parts.map(({ alias, column }) => raw(`r.${column} = ${alias}.id`)),
    ' and ',
  );
  const cursorColumns = page.columns
    .map((name) => `r.${toColumnName(name)} as "${name}"`)
    .join(', ');
  const branches = page.branches.map(
    ({ where: afterCursor, orderBy }) => sql`
      (select ${raw(cursorColumns)} from ${raw(from)} r ${joined}
        where ${isInPart} and ${where} and ${afterCursor} order by ${orderBy} limit ${raw(String(page.take))})`,
  );
  const sum = counted && buildTotalSql(counted, sql`${[...counted.namespaceIds]}::text[]`);
  const columns = rows.columns(select);
  // Whole rows are read only for the page, by their ids.
  const { text, values } = sql`
    select ${raw(page.columns.map((name) => `p."${name}"`).join(', '))},
        ${sum ? sql`(select t.total from (${sum}) t)` : sql`null`}, ${raw(columns.sql)}
      from (select p.* from ${sources} cross join lateral (${join(branches, ' union all ')}) p
        order by ${page.orderRead} limit ${raw(String(page.take))}) p
      join (${raw(rows.from)}) on r.id = p.id
      order by ${page.orderRead}`;
  const isReusable = !isFiltered && parts.every((part) => part.values.length === 1);
  const name = isReusable ? statementNameFor(text) : undefined;
  const resultRows = await queryRowArrays(pool, { name, text }, values);
  const cursorWidth = page.columns.length;
  const foundRows = resultRows.map((row) => {
    // The columns of the statement: cursor, total, row.
    const foundRow: FoundRow = { node: columns.toRow(row.slice(cursorWidth + 1)) };
    for (const [i, column] of page.columns.entries()) foundRow[column] = row[i];
    return foundRow;
  });
  const total = sum && resultRows[0]?.[cursorWidth];
  const count = async () => {
    const counting =
      sum ??
      sql`
      select coalesce(sum(p.total), 0)::bigint as total from ${sources} cross join lateral (
        select count(*) as total from ${raw(from)} r ${joined} where ${isInPart} and ${where}) p`;
    const counts = await pool.query<{ total: string }>(counting.text, counting.values);
    return Number(counts.rows[0]?.total ?? 0);
  };
  const slice = toCursorPage(
    sorting,
    range,
    foundRows,
    total == null ? count : () => Number(total),
  );
  const items = slice.items.map((item) => replaceNode(item, item.node.node as Row));
  return { ...slice, items };
}

/** A row as `node`, beside the columns of its cursor under their names. */
type FoundRow = Record<string, unknown> & { node: object };

/** A single value is a constant, so that the planner knows its frequency. */
function partSource({ alias, type, values }: TablePart): Prisma.Sql {
  const { sql, raw } = Prisma;
  if (values.length === 1) return sql`(select ${values[0]}::${raw(type)} as id) ${raw(alias)}`;
  return sql`unnest(${[...values]}::${raw(type)}[]) ${raw(alias)}(id)`;
}
