/** Lists all users and organizations, and sets plans, for operators. */

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

type DirectoryInput = CursorPageRequest & {
  /** Part of a name, or of a user's email address. */
  text?: string | null;
};

const BY_USERNAME: Sorting = { name: 'username', column: 'username', type: 'text', order: 'asc' };
const BY_NAME: Sorting = { name: 'name', column: 'name', type: 'text', order: 'asc' };

/** A page of all users by name. @throws AppError 400, 401, 403 */
export async function sliceUsers<S extends Prisma.UserSelect>(
  { db }: Deps,
  viewer: Viewer,
  { text, ...range }: DirectoryInput,
  select: S,
): Promise<CursorPage<Prisma.UserGetPayload<{ select: S }>>> {
  demandOperator(viewer);
  const contains = toContains(text);
  const where: Prisma.UserWhereInput = contains
    ? { OR: [{ username: contains }, { email: contains }] }
    : {};
  return readCursorPage(db.user, BY_USERNAME, range, { where, select });
}

/** A page of all organizations by name. @throws AppError 400, 401, 403 */
export async function sliceAllOrganizations<S extends Prisma.NamespaceSelect>(
  { db }: Deps,
  viewer: Viewer,
  { text, ...range }: DirectoryInput,
  select: S,
): Promise<CursorPage<Prisma.NamespaceGetPayload<{ select: S }>>> {
  demandOperator(viewer);
  const contains = toContains(text);
  const where: Prisma.NamespaceWhereInput = {
    kind: 'organization',
    deletedAt: null,
    ...(contains && { name: contains }),
  };
  return readCursorPage(db.namespace, BY_NAME, range, { where, select });
}

/** Names and addresses are stored in lower case. */
function toContains(text: string | null | undefined): { contains: string } | null {
  const part = toSearchableName(text ?? '')
    .trim()
    .toLowerCase();
  // Wildcards are escaped here, because Prisma puts the text into a LIKE pattern unescaped.
  return text ? { contains: part.replace(/[\\%_]/g, (character) => `\\${character}`) } : null;
}

/**
 * Sets the plan of an organization, or of a user and the user's namespace. The new limits apply from the next request.
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
