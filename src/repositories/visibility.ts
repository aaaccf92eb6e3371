/**
 * Which repositories a viewer may read, as a condition for the database: lists must be counted and cut into pages
 * where the rows are. The rule itself is `reachOf` in `auth/permissions.ts`.
 */
import { Prisma } from '../../prisma/generated/client.ts';
import { reachOf, type Viewer } from '../identity/permissions.ts';

/** For Prisma's queries. */
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

/** For statements by hand, where `r` is the repository and `n` its namespace, which is one for all. */
export function visibleSql(viewer: Viewer): Prisma.Sql {
  const { sql } = Prisma;
  const { visibilities, within } = reachOf(viewer, 'repository.read');
  const visibility = sql`r.visibility = any(${visibilities}::"Visibility"[])`;
  if (!within) return visibility;
  const { namespaces, repositories } = within;
  const inNamespaces = namespaces ? sql`n.id = any(${[...namespaces]})` : sql`true`;
  const among = repositories ? sql`r.id = any(${[...repositories]})` : sql`true`;
  return sql`((${inNamespaces} and ${among}) or ${visibility})`;
}

/** As `visibleSql`, of the counts `c` of lists; null where they do not say, as with rights in single repositories. */
export function countedSql(viewer: Viewer): Prisma.Sql | null {
  const { sql } = Prisma;
  const { visibilities, within } = reachOf(viewer, 'repository.read');
  const visibility = sql`c.value = any(${[...visibilities]}::text[])`;
  if (!within) return visibility;
  if (within.repositories) return null;
  if (!within.namespaces) return sql`true`;
  return sql`(c.namespace_id = any(${[...within.namespaces]}) or ${visibility})`;
}
