/** Users and organizations. Only an operator creates them. */
import type pg from 'pg';
import type {
  Namespace,
  NamespaceKind,
  Plan,
  Prisma,
  Role,
  User,
} from '../../prisma/generated/client.ts';
import { AppError, forbidden, invalid, notFound } from '../base/errors.ts';
import { newId } from '../base/ids.ts';
import { isPossibleNamespaceName, namespaceNameError } from '../base/names.ts';
import { type Db, inTransaction, violatesUnique } from '../platform/database/client.ts';
import { readCursorPage, type Sorting } from '../platform/database/keyset.ts';
import type { CursorPage, CursorPageRequest } from '../platform/database/paging.ts';
import { createRowReader } from '../platform/database/rows.ts';
import { runStatement, type Transaction } from '../platform/database/statement.ts';
import { type Actor, recordAudit } from './audit.ts';
import {
  type Account,
  can,
  demandAccount,
  demandOperator,
  namespacesAsMember,
  roleIn,
  type Viewer,
} from './permissions.ts';

/** RFC 5321 limits a path to 256 characters including its angle brackets. Delivery is not checked. */
const MAX_EMAIL = 254;
const EMAIL = /^[^\s@<>()[\],;:\\"]+@[a-z0-9-]+(?:\.[a-z0-9-]+)*$/i;

export type Identity = { userId: string; username: string; email: string; namespace: string };

type Deps = { db: Db };

/** @throws AppError 401 for an anonymous viewer */
export function whoami(viewer: Viewer): Identity {
  const { userId, username, email, namespace } = demandAccount(viewer);
  return { userId, username, email, namespace: namespace.name };
}

/**
 * Finds a namespace by name, ignoring case. Every signed-in user may know that a namespace exists, but not its
 * contents.
 * @throws AppError 401, 404.
 */
export async function getNamespace<S extends Prisma.NamespaceSelect>(
  { pool }: { pool: pg.Pool },
  viewer: Viewer,
  name: string,
  select: S,
): Promise<NamespaceOf<S>> {
  demandAccount(viewer);
  const statement = namespaceRows.statement(select, {}, 'where r.name = $1');
  const [namespace] = isPossibleNamespaceName(name)
    ? await statement.read(pool, [name.toLowerCase()])
    : [];
  if (!namespace) throw notFound('Namespace', name);
  return namespace as NamespaceOf<S>;
}

type NamespaceOf<S extends Prisma.NamespaceSelect> = Prisma.NamespaceGetPayload<{ select: S }>;

/** Compiled to SQL instead of Prisma, because nearly every query of the dashboard starts with a namespace. */
export const namespaceRows = createRowReader({ model: 'Namespace', from: 'namespaces r' });

/** Finds a user by an id from another row. Resolvers decide for each field whether the viewer may see it. */
export function findUserById<S extends Prisma.UserSelect>(
  { db }: Deps,
  id: string,
  select: S,
): Promise<Prisma.UserGetPayload<{ select: S }> | null> {
  return db.user.findUnique({ where: { id }, select });
}

/**
 * Finds a namespace for a domain function, which checks permissions itself. Hand-written SQL, because job creation
 * waits for it.
 * @param on the pool where speed matters
 * @throws AppError 404.
 */
export async function resolveNamespace(on: Transaction, name: string): Promise<NamespaceRow> {
  const text = 'select id, name, plan, kind from namespaces where name = $1';
  const [namespace] = isPossibleNamespaceName(name)
    ? await runStatement<NamespaceRow>(on, text, [name.toLowerCase()])
    : [];
  if (!namespace) throw notFound('Namespace', name);
  return namespace;
}

type NamespaceRow = { id: string; name: string; plan: Plan; kind: NamespaceKind };

/** Finds the ids of a user and of the user's namespace. @throws AppError 404. */
export async function resolveUser(
  db: Db,
  username: string,
): Promise<{ userId: string; namespaceId: string }> {
  const namespace =
    isPossibleNamespaceName(username) &&
    (await db.namespace.findUnique({
      where: { name: username.toLowerCase() },
      select: { id: true, userId: true },
    }));
  if (!namespace || namespace.userId === null) throw notFound('User', username);
  return { userId: namespace.userId, namespaceId: namespace.id };
}

/** Creates a user and the namespace of the same name. @throws AppError 400, 401, 403, 409. */
export async function createUser(
  { db }: Deps,
  viewer: Viewer,
  input: { username: string; email: string; plan: Plan },
): Promise<User> {
  const operator = demandOperator(viewer);
  checkName('username', input.username);
  if (!isEmail(input.email))
    throw invalid('email', 'must be an email address such as ada@example.com');
  const user = { ...input, id: newId('user'), email: input.email.toLowerCase() };
  return inTransaction(db, (tx) => insertUser(tx, operator, user)).catch((error) => {
    if (violatesUnique(error, 'email'))
      throw new AppError('already_exists', 'email: another user has this address', {
        field: 'email',
      });
    throw toNameTakenError(error, 'username');
  });
}

/** Creates an organization, with the operator as its first admin. @throws AppError 400, 401, 403, 409. */
export async function createOrganization(
  { db }: Deps,
  viewer: Viewer,
  { name, plan }: { name: string; plan: Plan },
): Promise<Namespace> {
  const operator = demandOperator(viewer);
  checkName('name', name);
  const members = { create: { userId: operator.userId, role: 'admin' as const } };
  return inTransaction(db, async (tx) => {
    const data = { id: newId('ns'), name, kind: 'organization' as const, plan, members };
    const namespace = await tx.namespace.create({ data });
    await recordAudit(tx, operator, {
      action: 'organization.create',
      namespaceIds: [namespace.id],
      subject: namespace.id,
      name,
      details: { plan },
    });
    return namespace;
  }).catch((error) => {
    throw toNameTakenError(error, 'name');
  });
}

/**
 * Locks a namespace against deletion until the transaction ends; with `no key update`, also against changes of members.
 * @throws AppError 404 if the namespace no longer exists
 */
export async function lockNamespace(
  tx: Db,
  id: string,
  lock: 'key share' | 'no key update',
): Promise<void> {
  const text = `select from namespaces where id = $1 and deleted_at is null for ${lock}`;
  if ((await tx.$executeRawUnsafe(text, id)) === 0) throw notFound('Namespace');
}

const BY_NAME: Sorting = { name: 'name', column: 'name', type: 'text', order: 'asc' };

/** A page of the organizations of a user, by name. Only for that user and operators. @throws AppError 400, 401, 403. */
export async function sliceOrganizations<S extends Prisma.NamespaceSelect>(
  { db }: Deps,
  viewer: Viewer,
  userId: string,
  range: CursorPageRequest,
  select: S,
): Promise<CursorPage<Prisma.NamespaceGetPayload<{ select: S }>>> {
  demandAccount(viewer);
  if (!isSelfOrOperator(viewer, userId))
    throw forbidden("You cannot list another user's organizations");
  const where: Prisma.NamespaceWhereInput = {
    members: { some: { userId } },
    ...(viewer.namespaces && { id: { in: [...viewer.namespaces] } }),
  };
  return readCursorPage(db.namespace, BY_NAME, range, { where, select });
}

/** Returns the ids of the viewer's own namespace and of the namespaces with a membership. @throws AppError 401, 403 */
export function listOwnNamespaceIds(viewer: Viewer, userId: string): string[] {
  const account = demandAccount(viewer);
  if (account.userId !== userId) throw forbidden('You cannot list the namespaces of another user');
  return namespacesAsMember(account, 'read');
}

/** Whether the viewer may see private fields of a user, such as email and plan. */
export function isSelfOrOperator(viewer: Viewer, userId: string): viewer is Account {
  return viewer.kind === 'account' && (viewer.userId === userId || viewer.operator);
}

/** Only members see the plan of a namespace. */
export function getVisiblePlan(viewer: Viewer, { id, plan }: Pick<Namespace, 'id' | 'plan'>) {
  return can(viewer, 'namespace.read', { namespaceId: id }) ? plan : null;
}

export function viewerRole(viewer: Viewer, namespaceId: string): Role | null {
  return roleIn(viewer, namespaceId);
}

/** Inserts a user and the namespace of the same name. */
export async function insertUser(
  tx: Db,
  by: Actor,
  data: Prisma.UserCreateInput & { plan: Plan },
): Promise<User & { namespace: { id: string } }> {
  const user = await tx.user.create({ data });
  const { id: userId, username: name, plan } = user;
  const namespaceId = newId('ns');
  await tx.namespace.create({ data: { id: namespaceId, name, kind: 'user', plan, userId } });
  await recordAudit(tx, by, {
    action: 'user.create',
    namespaceIds: [namespaceId],
    subject: userId,
    name,
    details: { plan },
  });
  return { ...user, namespace: { id: namespaceId } };
}

/** Checks the form only. */
export function isEmail(text: string): boolean {
  return text.length <= MAX_EMAIL && EMAIL.test(text);
}

function checkName(field: string, name: string): void {
  const fault = namespaceNameError(name);
  if (fault) throw invalid(field, fault);
}

function toNameTakenError(error: unknown, field: string): unknown {
  return violatesUnique(error)
    ? new AppError('already_exists', `${field}: the name is taken`, { field })
    : error;
}
