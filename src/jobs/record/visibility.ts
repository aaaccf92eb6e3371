/** Conditions for the jobs and kept artifacts that a viewer may see. They implement the rule of `reachOf`. */
import { Prisma } from '../../../prisma/generated/client.ts';
import { reachOf, type Viewer } from '../../identity/permissions.ts';

/** The condition for queries of Prisma. */
export function visibleTo(viewer: Viewer): Prisma.JobWhereInput {
  const { within } = reachOf(viewer, 'job.read');
  if (!within) return { id: '' };
  const { namespaces, repositories } = within;
  return {
    ...(namespaces && { namespaceId: { in: [...namespaces] } }),
    ...(repositories && { repositoryId: { in: [...repositories] } }),
  };
}

/** The condition for SQL in which `r` is the job. */
export function visibleSql(viewer: Viewer): Prisma.Sql {
  const { sql } = Prisma;
  const { within } = reachOf(viewer, 'job.read');
  if (!within) return sql`false`;
  const { namespaces, repositories } = within;
  const inNamespaces = namespaces ? sql`r.namespace_id = any(${[...namespaces]})` : sql`true`;
  const among = repositories ? sql`r.repository_id = any(${[...repositories]})` : sql`true`;
  return sql`(${inNamespaces} and ${among})`;
}

/** Like `visibleSql`, for the list counts `c`. Null if the viewer may only see single repositories: counts are by namespace. */
export function visibleCountsSql(viewer: Viewer): Prisma.Sql | null {
  const { sql } = Prisma;
  const { within } = reachOf(viewer, 'job.read');
  if (!within) return sql`false`;
  if (within.repositories) return null;
  return within.namespaces ? sql`c.namespace_id = any(${[...within.namespaces]})` : sql`true`;
}
