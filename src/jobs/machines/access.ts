/**
 * Who may see and change machines and worker tokens: of a namespace its members and admins, and all of them the operators. Both
 * need a credential without scopes.
 */
import { resolveNamespace } from '../../identity/accounts.ts';
import {
  type Account,
  can,
  demand,
  demandAccount,
  demandOperator,
  hasFullRights,
  reachOf,
  type Viewer,
} from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';

type Action = 'machine.read' | 'machine.administer';
type Owned = { namespaceId: string | null };

/**
 * The rows that the viewer reaches, as a condition for tokens and machines alike.
 * @param namespace name of the only namespace
 * @throws AppError 401, and with `namespace` 403 and 404
 */
export async function whereReachable(
  db: Db,
  viewer: Viewer,
  action: Action,
  namespace?: string | null,
): Promise<{ namespaceId?: string | { in: string[] } }> {
  demandAccount(viewer);
  if (namespace != null) {
    const { id } = await resolveNamespace(db, namespace);
    demand(viewer, action, { namespaceId: id });
    return { namespaceId: id };
  }
  const { within } = reachOf(viewer, action);
  // A credential that is limited to repositories has no machines.
  if (!within || within.repositories) return { namespaceId: { in: [] } };
  return within.namespaces ? { namespaceId: { in: [...within.namespaces] } } : {};
}

export function canReach(viewer: Viewer, action: Action, { namespaceId }: Owned): boolean {
  if (namespaceId !== null) return can(viewer, action, { namespaceId });
  return viewer.kind === 'account' && viewer.operator && hasFullRights(viewer);
}

/** @throws AppError 401, 403 */
export function demandAdministration(viewer: Viewer, { namespaceId }: Owned): Account {
  if (namespaceId === null) return demandOperator(viewer);
  demand(viewer, 'machine.administer', { namespaceId });
  return demandAccount(viewer);
}
