/** Allowlist of secret scanning: findings that a pusher declared intentional with `git push -o secret.allow=<id>`. */

import { notFound } from '../base/errors.ts';
import { recordAudit } from '../identity/audit.ts';
import { demand, demandAccount, type Viewer } from '../identity/permissions.ts';
import type { Db } from '../platform/database/client.ts';
import { inTransaction } from '../platform/database/client.ts';
import { readCursorPage, type Sorting } from '../platform/database/keyset.ts';
import type { CursorPage, CursorPageRequest } from '../platform/database/paging.ts';
import { demandAdminAccess } from './lifecycle.ts';
import {
  type AccessRow,
  accessTarget,
  type RepositoryId,
  type Row,
  type Select,
} from './repositories.ts';

export type AllowedSecret = {
  finding: string;
  kind: string;
  path: string;
  allowedBy: string;
  createdAt: Date;
};

const NEWEST: Sorting = {
  name: 'newest',
  column: 'createdAt',
  type: 'time',
  order: 'desc',
  id: 'finding',
};

/** Lists the allowed findings, newest first, for viewers who may push. @throws AppError 400, 401, 403 */
export async function sliceAllowedSecrets(
  { db }: { db: Db },
  viewer: Viewer,
  row: AccessRow,
  range: CursorPageRequest,
): Promise<CursorPage<AllowedSecret>> {
  demand(viewer, 'repository.push', accessTarget(row));
  const select = { finding: true, kind: true, path: true, allowedBy: true, createdAt: true };
  return readCursorPage(db.allowedSecret, NEWEST, range, {
    where: { repositoryId: row.id },
    select,
  });
}

/**
 * Removes a finding from the allowlist. Commits that already contain the secret stay. @throws AppError 401, 403, 404
 */
export async function disallowSecret<S extends Select>(
  { db }: { db: Db },
  viewer: Viewer,
  { finding, ...key }: RepositoryId & { finding: string },
  select: S,
): Promise<Row<S>> {
  const author = demandAccount(viewer);
  return inTransaction(db, async (tx) => {
    const { id, name, namespaceId } = await demandAdminAccess(tx, viewer, key);
    const where = { repositoryId: id, finding };
    const allowed = await tx.allowedSecret.findFirst({ where, select: { kind: true, path: true } });
    if (!allowed) throw notFound('Finding');
    await tx.allowedSecret.deleteMany({ where });
    await recordAudit(tx, author, {
      action: 'secret.disallow',
      namespaceIds: [namespaceId],
      subject: id,
      name,
      details: { finding, ...allowed },
    });
    const row = await tx.repository.findUniqueOrThrow({ where: { id }, select });
    return row as unknown as Row<S>;
  });
}
