/** The reader of repository rows, and the number of collaborators of a repository. */

import type { Prisma } from '../../prisma/generated/client.ts';
import { createRowReader, type RowReader } from '../platform/database/rows.ts';

/** Columns that `countCollaborators` needs. */
export const collaboratorColumns = {
  namespace: {
    select: {
      userId: true,
      _count: { select: { members: { where: { role: { in: ['write', 'admin'] } } } } },
    },
  },
} as const satisfies Prisma.RepositorySelect;

type CollaboratorRow = Prisma.RepositoryGetPayload<{ select: typeof collaboratorColumns }>;

/** Counts the users who can write, including the owner, because a user has no membership row in their own namespace. */
export function countCollaborators({ namespace }: CollaboratorRow): number {
  return Math.max(1, namespace._count.members + (namespace.userId ? 1 : 0));
}

export const repositoryRows: RowReader = createRowReader({
  model: 'Repository',
  from: 'repositories r join namespaces n on n.id = r.namespace_id',
  joined: { namespace: 'n' },
});
