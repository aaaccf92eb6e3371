/**
 * Permissions on webhooks (docs/webhooks.md).
 *
 * A webhook sends the events of several namespaces to one URL. Reading a webhook requires `webhook.administer` in one of its
 * namespaces, and changing it requires that permission in all of them: the admin of one namespace must not redirect the
 * events of another namespace to their own URL. An admin may always remove their own namespace from a webhook.
 */
import { Prisma } from '../../prisma/generated/client.ts';
import { can, demand, demandAccount, reachOf, type Viewer } from '../identity/permissions.ts';
import { PING } from './event-types.ts';

const ACTION = 'webhook.administer';

/** Ids of the namespaces in which the viewer may administer webhooks; null: all. */
function administeredNamespaces(viewer: Viewer): readonly string[] | null {
  const { within } = reachOf(viewer, ACTION);
  // A webhook belongs to whole namespaces, so a credential restricted to repositories administers none.
  if (!within || within.repositories) return [];
  return within.namespaces && [...within.namespaces];
}

/**
 * Checks that the viewer may list webhooks of all namespaces.
 * @throws AppError 401, 403 for a credential that may not administer any webhook: an empty list would hide the reason
 */
export function demandListWebhooks(viewer: Viewer): void {
  const account = demandAccount(viewer);
  const { within } = reachOf(viewer, ACTION);
  // Every user is admin of their own namespace, so the error names what the credential lacks.
  if (!within || within.repositories) demand(viewer, ACTION, { namespaceId: account.namespace.id });
}

/** Condition on the webhooks that the viewer may read. */
export function webhooksVisibleTo(viewer: Viewer): Prisma.WebhookWhereInput {
  const namespaces = administeredNamespaces(viewer);
  return {
    deletedAt: null,
    ...(namespaces && { namespaces: { some: { namespaceId: { in: [...namespaces] } } } }),
  };
}

/** Condition on the deliveries of a readable webhook: deliveries of namespaces that the viewer administers, and tests. */
export function deliveriesVisibleTo(viewer: Viewer): Prisma.DeliveryWhereInput {
  const namespaces = administeredNamespaces(viewer);
  return namespaces ? { OR: [{ namespaceId: { in: [...namespaces] } }, { type: PING }] } : {};
}

/** `deliveriesVisibleTo` in SQL. */
export function deliveriesVisibleInSql(viewer: Viewer): Prisma.Sql {
  const namespaces = administeredNamespaces(viewer);
  return namespaces
    ? Prisma.sql`(namespace_id = any(${namespaces}::text[]) or type = ${PING})`
    : Prisma.sql`true`;
}

export function mayAdministerWebhooks(viewer: Viewer, namespaceId: string): boolean {
  return can(viewer, ACTION, { namespaceId });
}

/** @param namespaceIds of a webhook. @throws AppError 401, 403 */
export function demandReadWebhook(viewer: Viewer, namespaceIds: readonly string[]): void {
  const [first = ''] = namespaceIds;
  if (!namespaceIds.some((id) => mayAdministerWebhooks(viewer, id)))
    demand(viewer, ACTION, { namespaceId: first });
}

/** @param namespaceIds of an existing or a new webhook. @throws AppError 401, 403 */
export function demandAdministerWebhooks(viewer: Viewer, namespaceIds: readonly string[]): void {
  for (const namespaceId of namespaceIds) demand(viewer, ACTION, { namespaceId });
}

/**
 * Checks a change of nothing but the namespaces: removing namespaces requires the permission in the removed ones only.
 * @throws AppError 401, 403
 */
export function demandChangeNamespaces(
  viewer: Viewer,
  before: readonly string[],
  after: readonly string[],
): void {
  const removed = before.filter((id) => !after.includes(id));
  const added = after.filter((id) => !before.includes(id));
  const onlyRemoves = removed.length > 0 && added.length === 0;
  demandAdministerWebhooks(viewer, onlyRemoves ? removed : [...before, ...added]);
}
