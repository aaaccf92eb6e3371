/** Webhooks, changed by those who may (`access.ts`): create, update, delete. */

import { isDeepStrictEqual } from 'node:util';
import type pg from 'pg';
import type { Prisma } from '../../prisma/generated/client.ts';
import type { Config } from '../base/config/config.ts';
import { invalid } from '../base/errors.ts';
import { newId } from '../base/ids.ts';
import { namespaceNamed } from '../identity/accounts.ts';
import { record } from '../identity/audit.ts';
import { demandAccount, type Viewer } from '../identity/permissions.ts';
import type { Db } from '../platform/database/client.ts';
import { inTransaction } from '../platform/database/client.ts';
import { wake } from '../platform/events/outbox.ts';
import { demandRoom } from '../platform/limits/quotas.ts';
import { demandAll, demandChangeOfNamespaces } from './access.ts';
import { whyNotUrl } from './delivery/guard.ts';
import {
  type Changes,
  type CreateInput,
  checkChanges,
  checkCreation,
  type UpdateInput,
} from './request.ts';
import { rotated } from './secrets.ts';
import { switchedOff } from './unwanted.ts';
import type { WebhookDeps } from './webhooks.ts';
import {
  getWebhook,
  lockWebhook,
  toWebhook,
  type Webhook,
  type WebhookRow,
  webhookColumns,
} from './webhooks.ts';

type Deps = { db: Db; pool: pg.Pool; config: Config; webhooks: WebhookDeps };

/**
 * @throws AppError 400, 401, 403 (a namespace that is not the viewer's to administer, or a quota), 404 for a
 *   namespace that there is not
 */
export async function createWebhook(
  services: Deps,
  viewer: Viewer,
  input: CreateInput,
): Promise<Webhook> {
  const author = demandAccount(viewer);
  const { namespaces: names, secret, ...request } = checkCreation(input);
  const namespaces = await namespacesNamed(services, names);
  demandAll(viewer, idsOf(namespaces));
  await demandUrl(services, request.url);

  const id = newId('wh');
  return inTransaction(services.db, async (tx) => {
    await demandRoomIn({ ...services, db: tx }, namespaces);
    const row = await tx.webhook.create({
      data: {
        ...request,
        id,
        secret: secret === null ? null : services.webhooks.secrets.seal(id, secret),
        createdById: author.userId,
        namespaces: { create: namespaces.map(({ id: namespaceId }) => ({ namespaceId })) },
        queue: { create: { namespaceId: namespaces[0].id } },
      },
      select: webhookColumns,
    });
    const webhook = toWebhook(row);
    const { name, url, eventTypes, namespaceIds } = webhook;
    const details = { host: new URL(url).host, eventTypes };
    await record(tx, author, {
      action: 'webhook.create',
      namespaceIds,
      subject: id,
      name,
      details,
    });
    return webhook;
  });
}

/**
 * Changes what is given. A change takes the right in all namespaces, those it had and those it gets; to take out
 * namespaces and nothing else, it suffices to have it in those.
 * @throws AppError 400, 401, 403 (right or quota), 404
 */
export async function updateWebhook(
  services: Deps,
  viewer: Viewer,
  { id, ...input }: UpdateInput & { id: string },
): Promise<Webhook> {
  const author = demandAccount(viewer);
  const before = await getWebhook(services, viewer, id);
  const { namespaces: names, ...changes } = checkChanges(input);
  const namespaces = names && (await namespacesNamed(services, names));
  const demandChange = ({ namespaceIds }: Webhook) =>
    namespaces && Object.keys(changes).length === 0
      ? demandChangeOfNamespaces(viewer, namespaceIds, idsOf(namespaces))
      : demandAll(viewer, [...namespaceIds, ...idsOf(namespaces ?? [])]);
  demandChange(before);
  if (changes.url !== undefined) await demandUrl(services, changes.url);

  const changed = await inTransaction(services.db, async (tx) => {
    const locked = await lockWebhook(tx, id);
    // Its namespaces may be others by now.
    demandChange(toWebhook(locked));
    const { data, changed } = dataOf(services, locked, changes);
    if (namespaces && (await setNamespaces({ ...services, db: tx }, locked, namespaces)))
      changed.push('namespaces');
    if (changed.length === 0) return toWebhook(locked);
    Object.assign(data, { updatedAt: new Date() });
    const row = await tx.webhook.update({ where: { id }, data, select: webhookColumns });
    await wake(tx, `webhook:${id}`);
    const webhook = toWebhook(row);
    if (locked.active && !webhook.active) await handOver(tx, id);
    await record(tx, author, {
      action: 'webhook.update',
      // Those that it was taken from too.
      namespaceIds: [...webhook.namespaceIds, ...toWebhook(locked).namespaceIds],
      subject: id,
      name: webhook.name,
      details: { changed, host: new URL(webhook.url).host },
    });
    return webhook;
  });
  if (!changed.active) await switchedOff(services, id, OFF_AT_ONCE);
  else if (namespaces) await switchedOff(services, id);
  return changed;
}

/** Batches of a backlog that end before the answer; a client would not wait for more. */
const OFF_AT_ONCE = 5;

/** A webhook that is off is due, so a sender takes it, and ends what is pending. */
async function handOver(tx: Prisma.TransactionClient, webhookId: string): Promise<void> {
  await tx.$executeRaw`
    update webhook_queues set due_at = clock_timestamp() where webhook_id = ${webhookId}`;
  await wake(tx, 'deliveries');
}

/** What becomes another by the changes: their names, and the columns to write. */
function dataOf(
  { webhooks }: { webhooks: WebhookDeps },
  row: WebhookRow,
  { secret, ...given }: Omit<Changes, 'namespaces'>,
): { data: Prisma.WebhookUncheckedUpdateInput; changed: string[] } {
  const rest = Object.fromEntries(
    Object.entries(given).filter(
      ([name, value]) => !isDeepStrictEqual(value, row[name as keyof typeof given]),
    ),
  ) as typeof given;
  const secrets =
    secret === undefined ? undefined : rotated(webhooks.secrets, row.id, row.secret, secret);
  const data = {
    ...rest,
    ...secrets,
    ...('active' in rest && { offReason: null }),
    // What has failed until now says nothing about another address, nor about one that was mended.
    ...(('active' in rest || 'url' in rest) && { failingSince: null }),
  };
  return { data, changed: [...Object.keys(rest), ...(secrets ? ['secret'] : [])] };
}

type Named = Awaited<ReturnType<typeof namespaceNamed>>;
type NamedList = [Named, ...Named[]];

/** Gives it these namespaces and no others. @returns whether they were others. @throws AppError 403 for a quota */
async function setNamespaces(
  services: { db: Db; config: Config },
  { id: webhookId, namespaces: before }: WebhookRow,
  after: NamedList,
): Promise<boolean> {
  const { db } = services;
  const had = new Set(before.map(({ namespaceId }) => namespaceId));
  const added = after.filter(({ id }) => !had.has(id));
  if (added.length === 0 && after.length === before.length) return false;
  await demandRoomIn(services, added);
  await db.webhookNamespace.deleteMany({
    where: { webhookId, namespaceId: { notIn: idsOf(after) } },
  });
  await db.webhookNamespace.createMany({
    data: added.map(({ id: namespaceId }) => ({ webhookId, namespaceId })),
  });
  // In whose turn it is sent: it must be one of those it has.
  await db.webhookQueue.updateMany({
    where: { webhookId, namespaceId: { notIn: idsOf(after) } },
    data: { namespaceId: after[0].id },
  });
  return true;
}

/**
 * It is gone for everybody and sends nothing more; its deliveries are removed later (`retention.ts`).
 * @throws AppError 401, 403, 404
 */
export async function deleteWebhook(
  services: { db: Db },
  viewer: Viewer,
  id: string,
): Promise<string> {
  const author = demandAccount(viewer);
  await getWebhook(services, viewer, id);
  await inTransaction(services.db, async (tx) => {
    const { name, namespaceIds } = toWebhook(await lockWebhook(tx, id));
    demandAll(viewer, namespaceIds);
    await tx.webhook.update({
      where: { id },
      data: { deletedAt: new Date() },
      select: { id: true },
    });
    await tx.webhookNamespace.deleteMany({ where: { webhookId: id } });
    await record(tx, author, { action: 'webhook.delete', namespaceIds, subject: id, name });
    await wake(tx, `webhook:${id}`);
  });
  return id;
}

/** @throws AppError 404 */
async function namespacesNamed(
  { db }: { db: Db },
  [first, ...others]: [string, ...string[]],
): Promise<NamedList> {
  return [
    await namespaceNamed(db, first),
    ...(await Promise.all(others.map((name) => namespaceNamed(db, name)))),
  ];
}

/** Sorted, so that two that want places in the same namespaces wait for each other in one order. @throws AppError 403 */
async function demandRoomIn(
  services: { db: Db; config: Config },
  namespaces: readonly Named[],
): Promise<void> {
  const sorted = [...namespaces].sort((a, b) => (a.id < b.id ? -1 : 1));
  for (const namespace of sorted) await demandRoom(services, namespace, 'webhooks');
}

/** @throws AppError 400 */
async function demandUrl({ webhooks }: { webhooks: WebhookDeps }, url: string): Promise<void> {
  const why = await whyNotUrl(url, webhooks.guard);
  if (why) throw invalid('url', why);
}

function idsOf(namespaces: readonly { id: string }[]): string[] {
  return namespaces.map(({ id }) => id);
}
