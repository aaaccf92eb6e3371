/**
 * Reading the audit log. Admins read the log of their namespace, users their own actions, and operators everything.
 * Always with a credential of full rights, because entries name credentials.
 */

import type { Prisma } from '../../prisma/generated/client.ts';
import type { Db } from '../platform/database/client.ts';
import { NEWEST_FIRST, readCursorPage } from '../platform/database/keyset.ts';
import type { CursorPage, CursorPageRequest } from '../platform/database/paging.ts';
import { isSelfOrOperator, resolveUser } from './accounts.ts';
import type { AuditAction } from './audit.ts';
import { demandFullRights, demandOwn } from './credentials.ts';
import { demand, demandOperator, type Viewer } from './permissions.ts';

const entryColumns = {
  id: true,
  namespaceId: true,
  action: true,
  subject: true,
  name: true,
  details: true,
  actorId: true,
  actor: true,
  credentialKind: true,
  credentialId: true,
  credentialName: true,
  address: true,
  requestId: true,
  createdAt: true,
} as const satisfies Prisma.AuditEntrySelect;
type EntryRow = Prisma.AuditEntryGetPayload<{ select: typeof entryColumns }>;

/** `namespace`: the name; null once the namespace is deleted. */
export type AuditEntry = EntryRow & { namespace: string | null };

type AuditRequest = CursorPageRequest & {
  action?: AuditAction | null;
  /** The name of a user. */
  actor?: string | null;
};

type Deps = { db: Db };

/** @throws AppError 400, 401, 403, and 404 for an unknown `actor` */
export async function sliceNamespaceLog(
  services: Deps,
  viewer: Viewer,
  namespaceId: string,
  request: AuditRequest,
): Promise<CursorPage<AuditEntry>> {
  demand(viewer, 'namespace.administer', { namespaceId });
  return sliceEntries(services, request, { namespaceId });
}

/** The actions of a user. @throws AppError 400, 401, 403 */
export async function sliceUserLog(
  services: Deps,
  viewer: Viewer,
  userId: string,
  request: Omit<AuditRequest, 'actor'>,
): Promise<CursorPage<AuditEntry>> {
  if (!isSelfOrOperator(viewer, userId)) demandOwn(viewer, userId);
  demandFullRights(viewer);
  return sliceEntries(services, request, { actorId: userId, main: true });
}

/** @throws AppError 400, 401, 403, and 404 for an unknown `actor` */
export async function sliceServerLog(
  services: Deps,
  viewer: Viewer,
  request: AuditRequest,
): Promise<CursorPage<AuditEntry>> {
  demandOperator(viewer);
  return sliceEntries(services, request, { main: true });
}

async function sliceEntries(
  { db }: Deps,
  { action, actor, ...range }: AuditRequest,
  where: Prisma.AuditEntryWhereInput,
): Promise<CursorPage<AuditEntry>> {
  const by = actor == null ? null : await resolveUser(db, actor);
  const query = {
    where: { ...where, ...(action && { action }), ...(by && { actorId: by.userId }) },
    select: entryColumns,
  };
  return readCursorPage(db.auditEntry, NEWEST_FIRST, range, query, async (rows: EntryRow[]) => {
    const ids = [...new Set(rows.map((row) => row.namespaceId))];
    const select = { id: true, name: true };
    const found = await db.namespace.findMany({
      where: { id: { in: ids }, deletedAt: null },
      select,
    });
    const names = new Map(found.map(({ id, name }) => [id, name]));
    return rows.map((row) => ({ ...row, namespace: names.get(row.namespaceId) ?? null }));
  });
}
