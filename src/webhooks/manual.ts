/** Deliveries on demand: tests and redeliveries. */

import { AppError, notFound } from '../base/errors.ts';
import { newId } from '../base/ids.ts';
import { recordAudit } from '../identity/audit.ts';
import { demandAccount, type Viewer } from '../identity/permissions.ts';
import type { Db } from '../platform/database/client.ts';
import { inTransaction } from '../platform/database/client.ts';
import { notifyReaders } from '../platform/events/outbox.ts';
import { demandAdministerWebhooks } from './access.ts';
import { type Delivery, deliveryColumns, getDelivery } from './deliveries.ts';
import { PING } from './event-types.ts';
import { getWebhook, lockWebhook, toWebhook, type Webhook } from './webhooks.ts';

type Deps = { db: Db };

/**
 * Sends a `ping`, independent of the webhook's event types.
 * @throws AppError 401, 403, 404, 409 if the webhook is off
 */
export async function testWebhook(services: Deps, viewer: Viewer, id: string): Promise<Delivery> {
  const author = demandAccount(viewer);
  demandAdministerWebhooks(viewer, (await getWebhook(services, viewer, id)).namespaceIds);
  return inTransaction(services.db, async (tx) => {
    const { name, namespaceIds, namespaces } = await lockActiveWebhook(tx, viewer, id);
    const [namespaceId = ''] = namespaceIds;
    const [namespace = ''] = namespaces;
    const message = await tx.webhookMessage.create({
      data: {
        id: newId('evt'),
        type: PING,
        namespaceId,
        namespace,
        timestamp: new Date(),
        data: { webhook_id: id, name },
      },
    });
    await recordAudit(tx, author, { action: 'webhook.test', namespaceIds, subject: id, name });
    return insertDueDelivery(tx, id, message);
  });
}

/**
 * Sends the message of a delivery again, in a new delivery with the same `webhook-id`. The status of the given delivery does
 * not matter.
 * @throws AppError 401, 403, 404, 409 if the webhook is off
 */
export async function redeliver(
  services: Deps,
  viewer: Viewer,
  key: { webhookId: string; deliveryId: string },
): Promise<Delivery> {
  const author = demandAccount(viewer);
  const { webhook, delivery } = await getDelivery(services, viewer, key);
  demandAdministerWebhooks(viewer, webhook.namespaceIds);
  return inTransaction(services.db, async (tx) => {
    const { name, namespaceIds } = await lockActiveWebhook(tx, viewer, webhook.id);
    // The lock keeps `retention.ts` from removing the message before the new delivery refers to it.
    await tx.$executeRaw`select 1 from webhook_messages where id = ${delivery.messageId} for share`;
    const message = await tx.webhookMessage.findUnique({ where: { id: delivery.messageId } });
    if (!message) throw notFound('Delivery');
    const details = { delivery: delivery.id, message: message.id };
    const subject = webhook.id;
    await recordAudit(tx, author, {
      action: 'webhook.redeliver',
      namespaceIds,
      subject,
      name,
      details,
    });
    return insertDueDelivery(tx, webhook.id, message);
  });
}

/** Locks the webhook until the transaction ends. @throws AppError 401, 403, 404, 409 */
async function lockActiveWebhook(tx: Db, viewer: Viewer, id: string): Promise<Webhook> {
  const webhook = toWebhook(await lockWebhook(tx, id));
  demandAdministerWebhooks(viewer, webhook.namespaceIds);
  if (!webhook.active) throw new AppError('conflict', 'The webhook is off: switch it on first');
  return webhook;
}

/** Inserts a pending delivery. Its times come from the clock of the database, with which senders compare them. */
async function insertDueDelivery(
  tx: Db,
  webhookId: string,
  message: { id: string; type: string; namespaceId: string },
): Promise<Delivery> {
  const id = newId('dlv');
  await tx.$executeRaw`
    insert into deliveries (id, webhook_id, message_id, type, namespace_id, next_attempt_at)
    values (${id}, ${webhookId}, ${message.id}, ${message.type}, ${message.namespaceId}, now())`;
  // Also written while a server has claimed the webhook, because the change makes that server read the deliveries again.
  await tx.$executeRaw`
    update webhook_queues set due_at = clock_timestamp() where webhook_id = ${webhookId}`;
  await notifyReaders(tx, 'deliveries');
  await notifyReaders(tx, `webhook:${webhookId}`);
  const row = await tx.delivery.findUniqueOrThrow({ where: { id }, select: deliveryColumns });
  return row as Delivery;
}
