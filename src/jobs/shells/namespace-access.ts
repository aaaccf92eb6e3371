/** Whether shells can be opened in the jobs of a namespace: a setting that its admins change. Open ones end within seconds. */
import type pg from 'pg';
import type { ShellAccess } from '../../../prisma/generated/enums.ts';
import { resolveNamespace } from '../../identity/accounts.ts';
import { recordAudit } from '../../identity/audit.ts';
import { demand, demandAccount, type Viewer } from '../../identity/permissions.ts';
import { type Db, inTransaction } from '../../platform/database/client.ts';

/** @returns the id of the namespace @throws AppError 401, 403, 404 */
export async function setShellAccess(
  { db, pool }: { db: Db; pool: pg.Pool },
  viewer: Viewer,
  { namespace: name, access }: { namespace: string; access: ShellAccess },
): Promise<string> {
  const account = demandAccount(viewer);
  const namespace = await resolveNamespace(pool, name);
  demand(viewer, 'shell.administer', { namespaceId: namespace.id });
  await inTransaction(db, async (tx) => {
    const { count } = await tx.namespace.updateMany({
      where: { id: namespace.id, shellAccess: { not: access } },
      data: { shellAccess: access },
    });
    if (count === 0) return;
    await recordAudit(tx, account, {
      action: 'shell_access.set',
      namespaceIds: [namespace.id],
      subject: namespace.id,
      name: namespace.name,
      details: { access },
    });
  });
  return namespace.id;
}
