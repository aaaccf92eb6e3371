/** Which jobs a viewer may see, and what they left, as a condition for the database. The rule is `reachOf`. */
import type { Prisma } from '../../prisma/generated/client.ts';
import { reachOf, type Viewer } from '../auth/permissions.ts';

export function visibleTo(viewer: Viewer): Prisma.JobWhereInput {
  const { within } = reachOf(viewer, 'job.read');
  if (!within) return { id: '' };
  const { namespaces, repositories } = within;
  return {
    ...(namespaces && { namespaceId: { in: [...namespaces] } }),
    ...(repositories && { repositoryId: { in: [...repositories] } }),
  };
}
