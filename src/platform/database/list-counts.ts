/** Totals of lists, out of `list_counts`: they are exact in every snapshot, and no rows of the list are read for them. */
import { Prisma } from '../../../prisma/generated/client.ts';

export type Counted = {
  list: 'jobs' | 'repositories';
  /** What of the list is counted, as a condition on `c`, a row of `list_counts`. */
  where: Prisma.Sql;
};

/** The columns of lists that may have no value, and what says of how many rows they have one. */
const CURRENT_VALUES: Record<string, Prisma.Sql> = {
  startedAt: Prisma.sql`c.started`,
  completedAt: Prisma.sql`c.completed`,
};

/** A row with `total`, and `present`: how many of them have a value in the column. `of`: namespaces, as SQL. */
export function totalSql({ list, where }: Counted, of: Prisma.Sql, column?: string): Prisma.Sql {
  const present = (column !== undefined && CURRENT_VALUES[column]) || Prisma.sql`true`;
  return Prisma.sql`select coalesce(sum(c.n), 0)::bigint as total,
      coalesce(sum(c.n) filter (where ${present}), 0)::bigint as present
    from list_counts c where c.namespace_id = any(${of}) and c.list = ${list} and ${where}`;
}
