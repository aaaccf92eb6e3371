/** Which jobs a viewer may see, and what they left, as a condition for the database. The rule is `reachOf`. */
import { Prisma } from '../../prisma/generated/client.ts';
import { reachOf, type Viewer } from '../identity/permissions.ts';

/** For Prisma's queries. */
export function visibleTo(viewer: Viewer): Prisma.JobWhereInput {
  const { within } = reachOf(viewer, 'job.read');
  if (!within) return { id: '' };
  const { namespaces, repositories } = within;
  return {
    ...(namespaces && { namespaceId: { in: [...namespaces] } }),
    ...(repositories && { repositoryId: { in: [...repositories] } }),
  };
}

/** For statements by hand, where `r` is the job. */
export function visibleSql(viewer: Viewer): Prisma.Sql {
  const { sql } = Prisma;
  const { within } = reachOf(viewer, 'job.read');
  if (!within) return sql`false`;
  const { namespaces, repositories } = within;
  const inNamespaces = namespaces ? sql`r.namespace_id = any(${[...namespaces]})` : sql`true`;
  const among = repositories ? sql`r.repository_id = any(${[...repositories]})` : sql`true`;
  return sql`(${inNamespaces} and ${among})`;
}

/** As `visibleSql`, of the counts `c` of lists; null where they do not say, as with rights in single repositories. */
export function visibleCountsSql(viewer: Viewer): Prisma.Sql | null {
  const { sql } = Prisma;
  const { within } = reachOf(viewer, 'job.read');
  if (!within) return sql`false`;
  if (within.repositories) return null;
  return within.namespaces ? sql`c.namespace_id = any(${[...within.namespaces]})` : sql`true`;
}
