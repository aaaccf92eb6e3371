/** Which repositories a viewer may see, as a condition for the database. */
import type { Prisma } from '../../prisma/generated/client.ts';
import { ACTIONS, type Viewer } from '../auth/access.ts';

const { scope } = ACTIONS['repository.read'];

/**
 * The same rule as `can(viewer, 'repository.read', …)`, which a test holds it to: lists must be counted and
 * cut into pages where the rows are.
 */
export function visibleTo(viewer: Viewer): Prisma.RepositoryWhereInput {
  if (viewer.kind === 'anonymous') return { visibility: 'public' };
  const open: Prisma.RepositoryWhereInput = { visibility: { in: ['public', 'internal'] } };
  if (viewer.scopes && !viewer.scopes.has(scope)) return open;
  if (viewer.operator && !viewer.namespaces && !viewer.repositories) return {};
  return { OR: [open, asMember(viewer)] };
}

function asMember(viewer: Exclude<Viewer, { kind: 'anonymous' }>): Prisma.RepositoryWhereInput {
  const { operator, namespace, roles, namespaces, repositories } = viewer;
  const all = operator ? null : [namespace.id, ...roles.keys()];
  const within = namespaces
    ? [...namespaces].filter((id) => all === null || all.includes(id))
    : all;
  return {
    ...(within && { namespaceId: { in: within } }),
    ...(repositories && { id: { in: [...repositories] } }),
  };
}
