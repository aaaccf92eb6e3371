/**
 * Who may do what with a webhook (docs/webhooks.md).
 *
 * It sends the events of several namespaces to one address. Reading takes `webhook.administer` in one of them, and
 * changing takes it in all: the admin of one namespace must not turn the events of another to an address of their
 * own. What each may do without the others is to take their own namespace out.
 */
import { Prisma } from '../../prisma/generated/client.ts';
import { can, demand, demandAccount, reachOf, type Viewer } from '../identity/permissions.ts';
import { PING } from './event-types.ts';

const ACTION = 'webhook.administer';

/** The namespaces in which the viewer may administer webhooks; null: in all. */
function administered(viewer: Viewer): readonly string[] | null {
  const { within } = reachOf(viewer, ACTION);
  // A webhook is of whole namespaces, so a credential that is narrowed to repositories has none.
  if (!within || within.repositories) return [];
  return within.namespaces && [...within.namespaces];
}

/**
 * For what lists webhooks of whichever namespaces.
 * @throws AppError 401, and 403 for a credential that may not administer any, because its list would look empty
 */
export function demandAny(viewer: Viewer): void {
  const account = demandAccount(viewer);
  const { within } = reachOf(viewer, ACTION);
  // Everybody is an admin of their own namespace, so this says what the credential lacks.
  if (!within || within.repositories) demand(viewer, ACTION, { namespaceId: account.namespace.id });
}

/** Those that the viewer may read, as a condition for the database. */
export function visibleTo(viewer: Viewer): Prisma.WebhookWhereInput {
  const namespaces = administered(viewer);
  return {
    deletedAt: null,
    ...(namespaces && { namespaces: { some: { namespaceId: { in: [...namespaces] } } } }),
  };
}

/** Of the deliveries of a webhook that the viewer may read: those of namespaces that it administers, and tests. */
export function deliveriesVisibleTo(viewer: Viewer): Prisma.DeliveryWhereInput {
  const namespaces = administered(viewer);
  return namespaces ? { OR: [{ namespaceId: { in: [...namespaces] } }, { type: PING }] } : {};
}

/** The same rule in SQL. */
export function deliveriesVisibleInSql(viewer: Viewer): Prisma.Sql {
  const namespaces = administered(viewer);
  return namespaces
    ? Prisma.sql`(namespace_id = any(${namespaces}::text[]) or type = ${PING})`
    : Prisma.sql`true`;
}

export function mayAdminister(viewer: Viewer, namespaceId: string): boolean {
  return can(viewer, ACTION, { namespaceId });
}

/** @param namespaceIds those of a webhook. @throws AppError 401, 403 */
export function demandRead(viewer: Viewer, namespaceIds: readonly string[]): void {
  const [first = ''] = namespaceIds;
  if (!namespaceIds.some((id) => mayAdminister(viewer, id)))
    demand(viewer, ACTION, { namespaceId: first });
}

/** @param namespaceIds those of a webhook, or of one that is to be made. @throws AppError 401, 403 */
export function demandAll(viewer: Viewer, namespaceIds: readonly string[]): void {
  for (const namespaceId of namespaceIds) demand(viewer, ACTION, { namespaceId });
}

/**
 * For a change of the namespaces and of nothing else.
 * @throws AppError 401, 403
 */
export function demandChangeOfNamespaces(
  viewer: Viewer,
  before: readonly string[],
  after: readonly string[],
): void {
  const removed = before.filter((id) => !after.includes(id));
  const added = after.filter((id) => !before.includes(id));
  const onlyRemoves = removed.length > 0 && added.length === 0;
  demandAll(viewer, onlyRemoves ? removed : [...before, ...added]);
}
