/** All users and organizations, for the operator. */

import type { Namespace, Plan, Prisma } from '../../prisma/generated/client.ts';
import type { Db } from '../platform/database/client.ts';
import { inTransaction } from '../platform/database/client.ts';
import { readCursorPage, type Sorting } from '../platform/database/keyset.ts';
import type { CursorPage, CursorPageRequest } from '../platform/database/paging.ts';
import { resolveNamespace } from './accounts.ts';
import { recordAudit } from './audit.ts';
import { toSearchableName } from './credentials.ts';
import { demandOperator, type Viewer } from './permissions.ts';

type Deps = { db: Db };

export type DirectoryInput = CursorPageRequest & {
  /** What stands in a name or, of a user, in the address. */
  text?: string | null;
};

const BY_USERNAME: Sorting = { name: 'username', column: 'username', type: 'text', order: 'asc' };
const BY_NAME: Sorting = { name: 'name', column: 'name', type: 'text', order: 'asc' };

/** By name. @throws AppError 400, 401, 403 */
export async function sliceUsers<S extends Prisma.UserSelect>(
  { db }: Deps,
  viewer: Viewer,
  { text, ...range }: DirectoryInput,
  select: S,
): Promise<CursorPage<Prisma.UserGetPayload<{ select: S }>>> {
  demandOperator(viewer);
  const holds = toContains(text);
  const where: Prisma.UserWhereInput = holds ? { OR: [{ username: holds }, { email: holds }] } : {};
  return readCursorPage(db.user, BY_USERNAME, range, { where, select });
}

/** By name. @throws AppError 400, 401, 403 */
export async function sliceAllOrganizations<S extends Prisma.NamespaceSelect>(
  { db }: Deps,
  viewer: Viewer,
  { text, ...range }: DirectoryInput,
  select: S,
): Promise<CursorPage<Prisma.NamespaceGetPayload<{ select: S }>>> {
  demandOperator(viewer);
  const holds = toContains(text);
  const where: Prisma.NamespaceWhereInput = {
    kind: 'organization',
    deletedAt: null,
    ...(holds && { name: holds }),
  };
  return readCursorPage(db.namespace, BY_NAME, range, { where, select });
}

/** Names and addresses are kept in lower case. */
function toContains(text: string | null | undefined): { contains: string } | null {
  const wanted = toSearchableName(text ?? '')
    .trim()
    .toLowerCase();
  // It becomes a pattern, in which these would stand for other characters.
  return text ? { contains: wanted.replace(/[\\%_]/g, (character) => `\\${character}`) } : null;
}

/**
 * Sets the plan of an organization, or of a user and their namespace. Limits and quotas are those of the new one with
 * the next request.
 * @throws AppError 401, 403, 404
 */
export async function setPlan(
  { db }: Deps,
  viewer: Viewer,
  { namespace: name, plan }: { namespace: string; plan: Plan },
): Promise<Namespace> {
  const operator = demandOperator(viewer);
  const { id } = await resolveNamespace(db, name);
  return inTransaction(db, async (tx) => {
    await tx.$executeRaw`select from namespaces where id = ${id} for update`;
    const before = await tx.namespace.findUniqueOrThrow({ where: { id }, include: { user: true } });
    if (before.plan === plan && (before.user?.plan ?? plan) === plan) return before;
    if (before.userId) await tx.user.update({ where: { id: before.userId }, data: { plan } });
    const namespace = await tx.namespace.update({ where: { id }, data: { plan } });
    await recordAudit(tx, operator, {
      action: 'plan.set',
      namespaceIds: [id],
      subject: id,
      name: namespace.name,
      details: { from: before.plan, to: plan },
    });
    return namespace;
  });
}
