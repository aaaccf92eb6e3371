/**
 * Reads deliveries. A delivery is a message for one webhook, with all its attempts. A viewer sees the deliveries of the
 * namespaces that the viewer administers, and tests (`access.ts`).
 */

import { Prisma } from '../../prisma/generated/client.ts';
import type { DeliveryStatus } from '../../prisma/generated/enums.ts';
import { invalid, notFound } from '../base/errors.ts';
import { isId } from '../base/ids.ts';
import type { Urls } from '../base/urls.ts';
import type { Viewer } from '../identity/permissions.ts';
import type { Signer } from '../platform/crypto/signed-links.ts';
import type { Db } from '../platform/database/client.ts';
import { buildPageQuery, NEWEST_FIRST, toCursorPage } from '../platform/database/keyset.ts';
import {
  type CursorPage,
  type CursorPageRequest,
  type OffsetPage,
  type OffsetPageRequest,
  toOffset,
} from '../platform/database/paging.ts';
import type { Allowance } from '../platform/limits/reads.ts';
import { deliveriesVisibleInSql, deliveriesVisibleTo, demandReadWebhook } from './access.ts';
import type { AttemptRecord } from './delivery/outcomes.ts';
import { renderBody } from './delivery/payload.ts';
import type { DeliveryType } from './event-types.ts';
import { findWebhooks, getWebhook, type Webhook } from './webhooks.ts';

/** All columns except the large ones. */
export const deliveryColumns = {
  id: true,
  webhookId: true,
  messageId: true,
  type: true,
  namespaceId: true,
  status: true,
  outcome: true,
  responseStatus: true,
  attempts: true,
  nextAttemptAt: true,
  createdAt: true,
  updatedAt: true,
  completedAt: true,
} as const satisfies Prisma.DeliverySelect;
type DeliveryRow = Prisma.DeliveryGetPayload<{ select: typeof deliveryColumns }>;
export type Delivery = Omit<DeliveryRow, 'type'> & { type: DeliveryType };

type Deps = { db: Db };
type Filter = { status?: DeliveryStatus | null; type?: DeliveryType | null };

/** A numbered page of a webhook's deliveries, newest first. @throws AppError 400, 401, 403, 404 */
export async function listDeliveries(
  { db }: Deps,
  viewer: Viewer,
  { id, namespaceIds }: Webhook,
  { page, perPage, ...filter }: OffsetPageRequest & Filter,
): Promise<OffsetPage<Delivery>> {
  const { skip, take } = toOffset({ page, perPage });
  demandReadWebhook(viewer, namespaceIds);
  const visible = visibleDeliveriesSql(viewer, id, filter);
  const [nodes, total] = await Promise.all([
    db.$queryRaw<Delivery[]>`${COLUMNS} ${visible} order by id desc offset ${skip} limit ${take}`,
    countRows(db, visible),
  ]);
  return { nodes, page, perPage, total };
}

const STATUS_SQL: Record<DeliveryStatus, Prisma.Sql> = {
  pending: Prisma.sql`and status = 'pending'`,
  succeeded: Prisma.sql`and status = 'succeeded'`,
  failed: Prisma.sql`and status = 'failed'`,
};

/** A page of `listDeliveries` after a cursor. @throws AppError 400, 401, 403 */
export async function sliceDeliveries(
  { db }: Deps,
  viewer: Viewer,
  { id, namespaceIds }: Webhook,
  { status, type, ...range }: CursorPageRequest & Filter,
): Promise<CursorPage<Delivery>> {
  demandReadWebhook(viewer, namespaceIds);
  const { where, take } = buildPageQuery(NEWEST_FIRST, range);
  const lastId = (where as { id?: { lt: string } }).id?.lt;
  const visible = visibleDeliveriesSql(viewer, id, { status, type });
  const rows = await db.$queryRaw<Delivery[]>`
    ${COLUMNS} ${visible} ${lastId === undefined ? Prisma.empty : Prisma.sql`and id < ${lastId}`}
    order by id desc limit ${take}`;
  return toCursorPage(NEWEST_FIRST, range, rows, () => countRows(db, visible));
}

const COLUMNS = Prisma.sql`
  select id, webhook_id as "webhookId", message_id as "messageId", type, namespace_id as "namespaceId", status,
    outcome, response_status as "responseStatus", attempts, next_attempt_at as "nextAttemptAt",
    created_at as "createdAt", updated_at as "updatedAt", completed_at as "completedAt"`;

/**
 * The deliveries of a webhook that the viewer may see. The status is a literal: with a parameter, PostgreSQL cannot use the
 * partial index of failed deliveries, and scans a million rows to find a few (1.3 s).
 */
function visibleDeliveriesSql(
  viewer: Viewer,
  webhookId: string,
  { status, type }: Filter,
): Prisma.Sql {
  return Prisma.sql`
    from deliveries where webhook_id = ${webhookId} and ${deliveriesVisibleInSql(viewer)}
      ${status ? STATUS_SQL[status] : Prisma.empty}
      ${type ? Prisma.sql`and type = ${type}` : Prisma.empty}`;
}

async function countRows(db: Deps['db'], rows: Prisma.Sql): Promise<number> {
  const [counted] = await db.$queryRaw<{ total: bigint }[]>`select count(*) as total ${rows}`;
  return Number(counted?.total ?? 0);
}

/** @throws AppError 401, 403 */
function whereVisible(viewer: Viewer, { id, namespaceIds }: Webhook): Prisma.DeliveryWhereInput {
  demandReadWebhook(viewer, namespaceIds);
  return { webhookId: id, AND: [deliveriesVisibleTo(viewer)] };
}

/** The deliveries among `ids` that the viewer may see. */
export async function findDeliveries(
  { db }: Deps,
  viewer: Viewer,
  ids: readonly string[],
): Promise<Delivery[]> {
  const rows = await db.delivery.findMany({
    where: { AND: [{ id: { in: [...ids] } }, deliveriesVisibleTo(viewer)] },
    select: deliveryColumns,
  });
  const webhookIds = new Set(rows.map(({ webhookId }) => webhookId));
  const webhooks = await findWebhooks({ db }, viewer, [...webhookIds]);
  const visible = new Set(webhooks.map(({ id }) => id));
  return rows.filter(({ webhookId }) => visible.has(webhookId)) as Delivery[];
}

/** @throws AppError 401, 403, 404 if the webhook does not exist or has no such delivery */
export async function getDelivery(
  services: Deps,
  viewer: Viewer,
  { webhookId, deliveryId }: { webhookId: string; deliveryId: string },
): Promise<{ webhook: Webhook; delivery: Delivery }> {
  const webhook = await getWebhook(services, viewer, webhookId);
  const row =
    isId('dlv', deliveryId) &&
    (await services.db.delivery.findUnique({
      where: { id: deliveryId, AND: [whereVisible(viewer, webhook)] },
      select: deliveryColumns,
    }));
  if (!row) throw notFound('Delivery');
  return { webhook, delivery: row as Delivery };
}

/** The attempts of a delivery, oldest first. The caller has checked that the viewer may see it. */
export async function listAttempts(
  { db }: Deps,
  { id }: Pick<Delivery, 'id'>,
): Promise<AttemptRecord[]> {
  // Prisma batches the `findUnique` calls of all deliveries in a response into one query.
  const row = await db.delivery.findUnique({ where: { id }, select: { tries: true } });
  return (row?.tries ?? []) as unknown as AttemptRecord[];
}

/**
 * The body of a delivery's requests; null if it was removed. The caller has checked that the viewer may see it.
 * @throws AppError 400 if the body exceeds the space left in the response, 503
 */
export async function getDeliveryPayload(
  services: { db: Db; signer: Signer; urls: Urls },
  { messageId }: Pick<Delivery, 'messageId'>,
  allowance: Allowance,
): Promise<unknown> {
  const message = await services.db.webhookMessage.findUnique({ where: { id: messageId } });
  if (!message) return null;
  const body = renderBody(services, message);
  const bytes = Buffer.byteLength(body);
  if ((await allowance.take(bytes)) === bytes) return JSON.parse(body);
  throw invalid(null, 'The response is too large; request fewer payloads at once');
}
