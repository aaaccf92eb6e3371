/** Reads webhooks. Permissions are in `access.ts`, changes in `changes.ts`, deliveries in `deliveries.ts`. */

import type { Prisma } from '../../prisma/generated/client.ts';
import { forbidden, notFound } from '../base/errors.ts';
import { isId } from '../base/ids.ts';
import { demandAccount, type Viewer } from '../identity/permissions.ts';
import type { Sealer } from '../platform/crypto/keys.ts';
import type { Db } from '../platform/database/client.ts';
import { NEWEST_FIRST, readCursorPage } from '../platform/database/keyset.ts';
import {
  type CursorPage,
  type CursorPageRequest,
  type OffsetPage,
  type OffsetPageRequest,
  toOffset,
} from '../platform/database/paging.ts';
import {
  demandAdministerWebhooks,
  demandListWebhooks,
  demandReadWebhook,
  webhooksVisibleTo,
} from './access.ts';
import type { AddressGuard } from './delivery/guard.ts';
import type { WebhookEventType } from './event-types.ts';

export { renderData as dataToSend } from './delivery/payload.ts';

/** Why the server switched a webhook off: its endpoint answered 410, or failed for five days. */
export type OffReason = 'gone' | 'failing';

export type Webhook = {
  id: string;
  name: string;
  url: string;
  eventTypes: WebhookEventType[];
  /** Names, sorted. */
  namespaces: string[];
  namespaceIds: string[];
  hasSecret: boolean;
  /** Until when deliveries are also signed with the previous secret; null if they are not. */
  formerUntil: Date | null;
  active: boolean;
  offReason: OffReason | null;
  failingSince: Date | null;
  createdAt: Date;
  updatedAt: Date;
};

/** Dependencies of the code that delivers and changes webhooks, beside the database. */
export type WebhookDeps = {
  /** Decides which addresses webhooks may be sent to. */
  guard: AddressGuard;
  /** Encrypts the signing secrets. */
  sealer: Sealer;
};

type Deps = { db: Db };
/** The columns that `toWebhook` reads. */
export const webhookColumns = {
  id: true,
  name: true,
  url: true,
  secret: true,
  formerUntil: true,
  eventTypes: true,
  active: true,
  offReason: true,
  failingSince: true,
  createdAt: true,
  updatedAt: true,
  namespaces: { select: { namespaceId: true, namespace: { select: { name: true } } } },
} as const satisfies Prisma.WebhookSelect;
export type WebhookRow = Prisma.WebhookGetPayload<{ select: typeof webhookColumns }>;

export function toWebhook({ secret, namespaces, ...row }: WebhookRow): Webhook {
  const sorted = namespaces
    .map(({ namespaceId, namespace }) => ({ id: namespaceId, name: namespace.name }))
    .sort((a, b) => (a.name < b.name ? -1 : 1));
  return {
    ...row,
    eventTypes: row.eventTypes as WebhookEventType[],
    offReason: row.offReason as OffReason | null,
    namespaces: sorted.map(({ name }) => name),
    namespaceIds: sorted.map(({ id }) => id),
    hasSecret: secret !== null,
    formerUntil: row.formerUntil && row.formerUntil > new Date() ? row.formerUntil : null,
  };
}

/** @throws AppError 401, 403 if the viewer administers none of its namespaces, 404 */
export async function getWebhook({ db }: Deps, viewer: Viewer, id: string): Promise<Webhook> {
  demandAccount(viewer);
  const row =
    isId('wh', id) &&
    (await db.webhook.findUnique({
      where: { id, deletedAt: null },
      select: webhookColumns,
      relationLoadStrategy: 'join',
    }));
  if (!row) throw notFound('Webhook', id);
  const webhook = toWebhook(row);
  demandReadWebhook(viewer, webhook.namespaceIds);
  return webhook;
}

/** The webhooks among `ids` that the viewer may read. */
export async function findWebhooks(
  { db }: Deps,
  viewer: Viewer,
  ids: readonly string[],
): Promise<Webhook[]> {
  const rows = await db.webhook.findMany({
    where: { AND: [{ id: { in: [...ids] } }, webhooksVisibleTo(viewer)] },
    select: webhookColumns,
    relationLoadStrategy: 'join',
  });
  return rows.map(toWebhook);
}

/** A numbered page of the webhooks that the viewer may read, newest first. @throws AppError 400, 401, 403 */
export async function listWebhooks(
  { db }: Deps,
  viewer: Viewer,
  { page, perPage }: OffsetPageRequest,
): Promise<OffsetPage<Webhook>> {
  const range = toOffset({ page, perPage });
  demandListWebhooks(viewer);
  const where = webhooksVisibleTo(viewer);
  const [rows, total] = await Promise.all([
    db.webhook.findMany({
      where,
      select: webhookColumns,
      orderBy: { id: 'desc' },
      ...range,
      relationLoadStrategy: 'join',
    }),
    db.webhook.count({ where }),
  ]);
  return { nodes: rows.map(toWebhook), page, perPage, total };
}

/** A page of `listWebhooks` after a cursor. `userId` must be the viewer's. @throws AppError 400, 401, 403 */
export async function sliceWebhooks(
  { db }: Deps,
  viewer: Viewer,
  userId: string,
  range: CursorPageRequest,
): Promise<CursorPage<Webhook>> {
  demandListWebhooks(viewer);
  if (demandAccount(viewer).userId !== userId)
    throw forbidden("You cannot list another user's webhooks");
  return readCursorPage(
    db.webhook,
    NEWEST_FIRST,
    range,
    { where: webhooksVisibleTo(viewer), select: webhookColumns },
    (rows: WebhookRow[]) => rows.map(toWebhook),
  );
}

/** The webhooks that receive a namespace's events, newest first. @throws AppError 400, 401, 403 */
export async function sliceNamespaceWebhooks(
  { db }: Deps,
  viewer: Viewer,
  namespaceId: string,
  range: CursorPageRequest,
): Promise<CursorPage<Webhook>> {
  demandAdministerWebhooks(viewer, [namespaceId]);
  const where: Prisma.WebhookWhereInput = {
    deletedAt: null,
    namespaces: { some: { namespaceId } },
  };
  return readCursorPage(
    db.webhook,
    NEWEST_FIRST,
    range,
    { where, select: webhookColumns },
    (rows: WebhookRow[]) => rows.map(toWebhook),
  );
}

/** Locks the row until the transaction ends. @throws AppError 404 */
export async function lockWebhook(tx: Db, id: string): Promise<WebhookRow> {
  await tx.$executeRaw`select 1 from webhooks where id = ${id} for update`;
  const row = await tx.webhook.findUnique({
    where: { id, deletedAt: null },
    select: webhookColumns,
    relationLoadStrategy: 'join',
  });
  if (!row) throw notFound('Webhook', id);
  return row;
}
