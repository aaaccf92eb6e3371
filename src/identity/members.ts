/**
 * Members of namespaces, managed by admins. A user is admin of their own namespace without a row in `members`, so that
 * this role cannot be lost.
 */
import type pg from 'pg';
import type { Namespace, Role } from '../../prisma/generated/client.ts';
import { AppError } from '../base/errors.ts';
import { type Db, inTransaction } from '../platform/database/client.ts';
import { buildPageQuery, type Sorting, toCursorPage } from '../platform/database/keyset.ts';
import type { CursorPage, CursorPageRequest } from '../platform/database/paging.ts';
import { lockNamespace, resolveNamespace, resolveUser } from './accounts.ts';
import { recordAudit } from './audit.ts';
import { can, demand, demandAccount, hasFullRights, type Viewer } from './permissions.ts';

export type Membership = { namespaceId: string; userId: string; role: Role; createdAt: Date };

type Deps = { db: Db };

export type MemberKey = { namespaceId: string; userId: string };

/** Null when the user is not a member, or the viewer may not see the members. */
export async function findMember(
  { db }: Deps,
  viewer: Viewer,
  key: MemberKey,
): Promise<Membership | null> {
  if (!can(viewer, 'namespace.read', key)) return null;
  const member = await db.member.findUnique({ where: { namespaceId_userId: key } });
  return member ?? findOwner(db, key);
}

/** A user is a member of their own namespace without a row. */
async function findOwner(db: Db, { namespaceId, userId }: MemberKey): Promise<Membership | null> {
  const namespace = await db.namespace.findUnique({ where: { id: namespaceId, userId } });
  return namespace && { namespaceId, userId, role: 'admin', createdAt: namespace.createdAt };
}

/** The present role of a user, for work that goes on after the user's request. Null without a role, and for disabled users. */
export async function readRole(
  { pool }: { pool: pg.Pool },
  { namespaceId, userId }: MemberKey,
): Promise<Role | null> {
  const { rows } = await pool.query<{ role: Role | null }>({
    name: 'loam-role',
    text: `
      select case when u.operator or n.user_id = u.id then 'admin' else m.role end as role
      from users u join namespaces n on n.id = $1 left join members m on m.namespace_id = n.id and m.user_id = u.id
      where u.id = $2 and u.disabled_at is null`,
    values: [namespaceId, userId],
  });
  return rows[0]?.role ?? null;
}

/**
 * Adds a member or changes a member's role.
 * @throws AppError 401, 403, 404, 409 for the owner of a user's namespace and for the last admin of an organization.
 */
export async function setMember(
  { db }: Deps,
  viewer: Viewer,
  input: { namespace: string; username: string; role: Role },
): Promise<Membership> {
  const key = await resolveMember(db, viewer, input);
  const { role } = input;
  return inTransaction(db, async (tx) => {
    await lockNamespace(tx, key.namespaceId, 'no key update');
    const where = { namespaceId_userId: key };
    const before = await tx.member.findUnique({ where });
    if (before?.role === role) return before;
    if (before?.role === 'admin') await demandOtherAdmin(tx, key);
    const member = await tx.member.upsert({
      where,
      create: { ...key, role },
      update: { role },
    });
    await recordMember(tx, viewer, 'member.set', key, input);
    return member;
  });
}

/**
 * Removes a member. Admins may remove any member, and members may leave.
 * @returns the removed membership; null if there was none
 * @throws AppError as `setMember`
 */
export async function removeMember(
  { db }: Deps,
  viewer: Viewer,
  input: { namespace: string; username: string },
): Promise<MemberKey | null> {
  const key = await resolveMember(db, viewer, input, { mayLeave: true });
  return inTransaction(db, async (tx) => {
    await lockNamespace(tx, key.namespaceId, 'no key update');
    const before = await tx.member.findUnique({ where: { namespaceId_userId: key } });
    if (!before) return null;
    if (before.role === 'admin') await demandOtherAdmin(tx, key);
    await tx.member.deleteMany({ where: key });
    await recordMember(tx, viewer, 'member.remove', key, input);
    return key;
  });
}

/**
 * Disabled admins do not count.
 * @throws AppError 409 when the user is the only admin of the organization
 */
async function demandOtherAdmin(tx: Db, { namespaceId, userId }: MemberKey): Promise<void> {
  const { kind } = await tx.namespace.findUniqueOrThrow({ where: { id: namespaceId } });
  if (kind === 'user') return;
  const others = await tx.member.count({
    where: { namespaceId, role: 'admin', userId: { not: userId }, user: { disabledAt: null } },
  });
  if (others === 0)
    throw new AppError(
      'conflict',
      'An organization needs at least one admin: make another member an admin first',
    );
}

async function recordMember(
  tx: Db,
  viewer: Viewer,
  action: 'member.set' | 'member.remove',
  { namespaceId, userId }: MemberKey,
  { username, role }: { username: string; role?: Role },
): Promise<void> {
  await recordAudit(tx, demandAccount(viewer), {
    action,
    namespaceIds: [namespaceId],
    subject: userId,
    name: username.toLowerCase(),
    ...(role && { details: { role } }),
  });
}

async function resolveMember(
  db: Db,
  viewer: Viewer,
  input: { namespace: string; username: string },
  { mayLeave = false } = {},
): Promise<MemberKey> {
  const account = demandAccount(viewer);
  const namespace = await resolveNamespace(db, input.namespace);
  const isLeaving = mayLeave && account.username === input.username.toLowerCase();
  if (!isLeaving || !hasFullRights(account))
    demand(viewer, 'namespace.administer', { namespaceId: namespace.id });
  const { userId } = await resolveUser(db, input.username);
  if (namespace.kind === 'user' && namespace.name === input.username.toLowerCase())
    throw new AppError('conflict', 'A user is always the admin of their own namespace');
  return { namespaceId: namespace.id, userId };
}

const BY_JOIN_TIME: Sorting = {
  name: 'joined',
  column: 'createdAt',
  type: 'time',
  order: 'asc',
  id: 'userId',
};

/** Members in the order of joining; the owner of a user's namespace comes first. @throws AppError 400, 401, 403. */
export async function sliceMembers(
  { db }: Deps,
  viewer: Viewer,
  { id, userId, createdAt }: Pick<Namespace, 'id' | 'userId' | 'createdAt'>,
  range: CursorPageRequest,
): Promise<CursorPage<Membership>> {
  demand(viewer, 'namespace.read', { namespaceId: id });
  const { where, orderBy, take } = buildPageQuery(BY_JOIN_TIME, range);
  // Joined with the creation of the namespace, so the owner is always the first.
  const owner: Membership[] =
    userId && range.after == null ? [{ namespaceId: id, userId, role: 'admin', createdAt }] : [];
  const members = await db.member.findMany({
    where: { namespaceId: id, AND: [where] },
    orderBy,
    take: take - owner.length,
  });
  return toCursorPage(BY_JOIN_TIME, range, [...owner, ...members], async () => {
    const count = await db.member.count({ where: { namespaceId: id } });
    return userId ? count + 1 : count;
  });
}
