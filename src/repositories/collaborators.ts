/** Who can write to a repository. */
import type { Prisma } from '../../prisma/generated/client.ts';

/** Columns for `collaboratorCount`. */
export const collaboratorColumns = {
  namespace: {
    select: {
      userId: true,
      _count: { select: { members: { where: { role: { in: ['write', 'admin'] } } } } },
    },
  },
} as const satisfies Prisma.RepositorySelect;

type Row = Prisma.RepositoryGetPayload<{ select: typeof collaboratorColumns }>;

/** Members who can write, the owner included: a user has no membership of their own namespace. */
export function collaboratorCount({ namespace }: Row): number {
  return Math.max(1, namespace._count.members + (namespace.userId ? 1 : 0));
}
