/** Totals of lists from the table `list_counts`, which triggers keep exact in every snapshot, without reading list rows. */
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

/** Selects `total`, and `present`: the number of rows with a value in `column`. `of`: namespace ids, as SQL. */
export function buildTotalSql(
  { list, where }: CountedList,
  of: Prisma.Sql,
  column?: string,
): Prisma.Sql {
  const present = (column !== undefined && HAS_VALUE[column]) || Prisma.sql`true`;
  return Prisma.sql`select coalesce(sum(c.n), 0)::bigint as total,
      coalesce(sum(c.n) filter (where ${present}), 0)::bigint as present
    from list_counts c where c.namespace_id = any(${of}) and c.list = ${list} and ${where}`;
}
