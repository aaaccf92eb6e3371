/**
 * The repositories that a viewer may read, as conditions for the database, which counts and pages the lists. The
 * permission rule itself is `reachOf` in `identity/permissions.ts`.
 */
import { Prisma } from '../../prisma/generated/client.ts';
import { reachOf, type Viewer } from '../identity/permissions.ts';

/** Returns the condition for Prisma. */
export function visibleTo(viewer: Viewer): Prisma.RepositoryWhereInput {
  const { visibilities, within } = reachOf(viewer, 'repository.read');
  const visibility = { visibility: { in: [...visibilities] } };
  if (!within) return visibility;
  const { namespaces, repositories } = within;
  const own = {
    ...(namespaces && { namespaceId: { in: [...namespaces] } }),
    ...(repositories && { id: { in: [...repositories] } }),
  };
  return namespaces || repositories ? { OR: [visibility, own] } : {};
}

/** Returns the condition as SQL for repositories `r` and their namespaces `n`. */
export function visibleSql(viewer: Viewer): Prisma.Sql {
  const { sql } = Prisma;
  const { visibilities, within } = reachOf(viewer, 'repository.read');
  const visibility = sql`r.visibility = any(${visibilities}::"Visibility"[])`;
  if (!within) return visibility;
  const { namespaces, repositories } = within;
  const inNamespaces = namespaces ? sql`n.id = any(${[...namespaces]})` : sql`true`;
  const inRepositories = repositories ? sql`r.id = any(${[...repositories]})` : sql`true`;
  return sql`((${inNamespaces} and ${inRepositories}) or ${visibility})`;
}

/**
 * Like `visibleSql`, for rows `c` of the stored list counts. Null for a viewer whose permissions are limited to single
 * repositories, which are not counted separately.
 */
export function countedSql(viewer: Viewer): Prisma.Sql | null {
  const { sql } = Prisma;
  const { visibilities, within } = reachOf(viewer, 'repository.read');
  const visibility = sql`c.value = any(${[...visibilities]}::text[])`;
  if (!within) return visibility;
  if (within.repositories) return null;
  if (!within.namespaces) return sql`true`;
  return sql`(c.namespace_id = any(${[...within.namespaces]}) or ${visibility})`;
}
