/**
 * Which repositories a viewer may see, as a condition for the database: lists must be counted and cut into
 * pages where the rows are. The rule is that of `can(viewer, 'repository.read', …)`, and a test holds it to that.
 */
import { Prisma } from '../../prisma/generated/client.ts';
import type { Visibility } from '../../prisma/generated/enums.ts';
import { ACTIONS, type Account, type Viewer } from '../auth/permissions.ts';

/** Those of an open visibility, and those that a member sees; null within it: no such limit. */
type Sight = {
  open: Visibility[];
  member?: { namespaces: string[] | null; repositories: string[] | null };
};

const { scope } = ACTIONS['repository.read'];

function sightOf(viewer: Viewer): Sight {
  if (viewer.kind === 'anonymous') return { open: ['public'] };
  const open: Visibility[] = ['public', 'internal'];
  if (viewer.scopes && !viewer.scopes.has(scope)) return { open };
  const { repositories } = viewer;
  const member = {
    namespaces: namespacesOf(viewer),
    repositories: repositories && [...repositories],
  };
  return { open, member };
}

function namespacesOf({ operator, namespace, roles, namespaces }: Account): string[] | null {
  const all = operator ? null : [namespace.id, ...roles.keys()];
  return namespaces ? [...namespaces].filter((id) => all?.includes(id) ?? true) : all;
}

/** For Prisma's queries. */
export function visibleTo(viewer: Viewer): Prisma.RepositoryWhereInput {
  const { open, member } = sightOf(viewer);
  const visibility = { visibility: { in: open } };
  if (!member) return visibility;
  const { namespaces, repositories } = member;
  const own = {
    ...(namespaces && { namespaceId: { in: namespaces } }),
    ...(repositories && { id: { in: repositories } }),
  };
  return namespaces || repositories ? { OR: [visibility, own] } : {};
}

/** For statements by hand, where `r` is the repository and `n` its namespace, which is one for all. */
export function visibleSql(viewer: Viewer): Prisma.Sql {
  const { sql } = Prisma;
  const { open, member } = sightOf(viewer);
  const visibility = sql`r.visibility = any(${open}::"Visibility"[])`;
  if (!member) return visibility;
  const { namespaces, repositories } = member;
  const within = namespaces ? sql`n.id = any(${namespaces})` : sql`true`;
  const among = repositories ? sql`r.id = any(${repositories})` : sql`true`;
  return sql`((${within} and ${among}) or ${visibility})`;
}
