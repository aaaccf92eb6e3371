/**
 * Reads the totals of lists from the table `list_counts` instead of counting rows. Triggers update the table in the
 * transaction that changes a list, so a total agrees with the rows of the same snapshot.
 */
import { Prisma } from '../../../prisma/generated/client.ts';

export type CountedList = {
  list: 'jobs' | 'repositories';
  /** Condition on `c`, a row of `list_counts`. */
  where: Prisma.Sql;
};

/** Nullable sort columns → condition on `c` that the column has a value. */
const HAS_VALUE: Record<string, Prisma.Sql> = {
  startedAt: Prisma.sql`c.started`,
  completedAt: Prisma.sql`c.completed`,
};

/**
 * Selects `total`, and `"withValue"`: the number of rows with a value in `column`, or the total without a column.
 * @param namespaceIds SQL of an array
 * @param column a nullable sort column
 */
export function buildTotalSql(
  { list, where }: CountedList,
  namespaceIds: Prisma.Sql,
  column?: string,
): Prisma.Sql {
  const hasValue = column === undefined ? Prisma.sql`true` : HAS_VALUE[column];
  if (!hasValue) throw new Error(`list_counts does not count the values of ${column}`);
  return Prisma.sql`select coalesce(sum(c.n), 0)::bigint as total,
      coalesce(sum(c.n) filter (where ${hasValue}), 0)::bigint as "withValue"
    from list_counts c where c.namespace_id = any(${namespaceIds}) and c.list = ${list} and ${where}`;
}
