/** Which jobs a viewer may see, and what they left. */
import type { Prisma } from '../../prisma/generated/client.ts';
import type { Viewer } from '../auth/permissions.ts';

/** The same rule as `can(viewer, 'job.read', …)`, as a condition for the database. */
export function visibleTo(viewer: Viewer): Prisma.JobWhereInput {
  if (viewer.kind === 'anonymous') return { id: '' };
  const { scopes, operator, namespace, roles, namespaces, repositories } = viewer;
  if (scopes && !scopes.has('job:read')) return { id: '' };
  const member = operator ? null : [namespace.id, ...roles.keys()];
  return {
    AND: [
      member ? { namespaceId: { in: member } } : {},
      namespaces ? { namespaceId: { in: [...namespaces] } } : {},
      repositories ? { repositoryId: { in: [...repositories] } } : {},
    ],
  };
}
