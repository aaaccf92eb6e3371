/** Creating, updating and deleting webhooks; permissions are in `access.ts`. */

import { isDeepStrictEqual } from 'node:util';
import type pg from 'pg';
import type { Prisma } from '../../prisma/generated/client.ts';
import type { Config } from '../base/config/config.ts';
import { invalid } from '../base/errors.ts';
import { newId } from '../base/ids.ts';
import { resolveNamespace } from '../identity/accounts.ts';
import { recordAudit } from '../identity/audit.ts';
import { demandAccount, type Viewer } from '../identity/permissions.ts';
import type { Db } from '../platform/database/client.ts';
import { inTransaction } from '../platform/database/client.ts';
import { notifyReaders } from '../platform/events/outbox.ts';
import { requireQuota } from '../platform/limits/quotas.ts';
import { demandAdministerWebhooks, demandChangeNamespaces } from './access.ts';
import { findUrlProblem } from './delivery/guard.ts';
import {
  type Changes,
  type CreateInput,
  checkChanges,
  checkCreation,
  type UpdateInput,
} from './request.ts';
import { rotateSecret } from './signing-secrets.ts';
import { failUnwantedDeliveries } from './unwanted.ts';
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
 * @throws AppError 400, 401, 403 (the viewer does not administer a namespace, or a quota is reached), 404 for an unknown
 *   namespace
 */
export async function createWebhook(
  services: Deps,
  viewer: Viewer,
  input: CreateInput,
): Promise<Webhook> {
  const author = demandAccount(viewer);
  const { namespaces: names, secret, ...request } = checkCreation(input);
  const namespaces = await resolveNamespaces(services, names);
  demandAdministerWebhooks(viewer, toIds(namespaces));
  await demandAllowedUrl(services, request.url);

  const id = newId('wh');
  return inTransaction(services.db, async (tx) => {
    await demandQuotaIn({ ...services, db: tx }, namespaces);
    const row = await tx.webhook.create({
      data: {
        ...request,
        id,
        secret: secret === null ? null : services.webhooks.sealer.seal(id, secret),
        createdById: author.userId,
        namespaces: { create: namespaces.map(({ id: namespaceId }) => ({ namespaceId })) },
        queue: { create: { namespaceId: namespaces[0].id } },
      },
      select: webhookColumns,
    });
    const webhook = toWebhook(row);
    const { name, url, eventTypes, namespaceIds } = webhook;
    const details = { host: new URL(url).host, eventTypes };
    await recordAudit(tx, author, {
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
 * Changes the given fields. The viewer must administer webhooks in all namespaces before and after the change. To remove
 * namespaces without another change, it suffices to administer webhooks in the removed namespaces.
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
  const namespaces = names && (await resolveNamespaces(services, names));
  const demandChange = ({ namespaceIds }: Webhook) =>
    namespaces && Object.keys(changes).length === 0
      ? demandChangeNamespaces(viewer, namespaceIds, toIds(namespaces))
      : demandAdministerWebhooks(viewer, [...namespaceIds, ...toIds(namespaces ?? [])]);
  demandChange(before);
  if (changes.url !== undefined) await demandAllowedUrl(services, changes.url);

  const changed = await inTransaction(services.db, async (tx) => {
    const locked = await lockWebhook(tx, id);
    // The namespaces may have changed since the first check.
    demandChange(toWebhook(locked));
    const { data, changed } = diffChanges(services, locked, changes);
    if (namespaces && (await setNamespaces({ ...services, db: tx }, locked, namespaces)))
      changed.push('namespaces');
    if (changed.length === 0) return toWebhook(locked);
    Object.assign(data, { updatedAt: new Date() });
    const row = await tx.webhook.update({ where: { id }, data, select: webhookColumns });
    await notifyReaders(tx, `webhook:${id}`);
    const webhook = toWebhook(row);
    if (locked.active && !webhook.active) await makeDue(tx, id);
    await recordAudit(tx, author, {
      action: 'webhook.update',
      // The namespaces before and after the change.
      namespaceIds: [...webhook.namespaceIds, ...toWebhook(locked).namespaceIds],
      subject: id,
      name: webhook.name,
      details: { changed, host: new URL(webhook.url).host },
    });
    return webhook;
  });
  if (!changed.active) await failUnwantedDeliveries(services, id, MAX_BATCHES_INLINE);
  else if (namespaces) await failUnwantedDeliveries(services, id);
  return changed;
}

/** Batches of pending deliveries that are failed before the response, which a client would not wait for otherwise. */
const MAX_BATCHES_INLINE = 5;

/** Makes a webhook that is off due, so that a sender claims it and fails its pending deliveries. */
async function makeDue(tx: Db, webhookId: string): Promise<void> {
  await tx.$executeRaw`
    update webhook_queues set due_at = clock_timestamp() where webhook_id = ${webhookId}`;
  await notifyReaders(tx, 'deliveries');
}

/** Compares the changes with the row. @returns the columns to write, and the names of the changed fields */
function diffChanges(
  { webhooks }: { webhooks: WebhookDeps },
  row: WebhookRow,
  { secret, ...given }: Omit<Changes, 'namespaces'>,
): { data: Prisma.WebhookUncheckedUpdateInput; changed: string[] } {
  const columns = Object.fromEntries(
    Object.entries(given).filter(
      ([name, value]) => !isDeepStrictEqual(value, row[name as keyof typeof given]),
    ),
  ) as typeof given;
  const secrets =
    secret === undefined ? undefined : rotateSecret(webhooks.sealer, row.id, row.secret, secret);
  const data = {
    ...columns,
    ...secrets,
    ...('active' in columns && { offReason: null }),
    // Earlier failures do not apply to a new URL, or to an endpoint that was repaired and switched on again.
    ...(('active' in columns || 'url' in columns) && { failingSince: null }),
  };
  return { data, changed: [...Object.keys(columns), ...(secrets ? ['secret'] : [])] };
}

type ResolvedNamespace = Awaited<ReturnType<typeof resolveNamespace>>;
type ResolvedNamespaces = [ResolvedNamespace, ...ResolvedNamespace[]];

/** Replaces the namespaces of a webhook. @returns whether they changed. @throws AppError 403 for a quota */
async function setNamespaces(
  services: { db: Db; config: Config },
  { id: webhookId, namespaces: before }: WebhookRow,
  after: ResolvedNamespaces,
): Promise<boolean> {
  const { db } = services;
  const idsBefore = new Set(before.map(({ namespaceId }) => namespaceId));
  const added = after.filter(({ id }) => !idsBefore.has(id));
  if (added.length === 0 && after.length === before.length) return false;
  await demandQuotaIn(services, added);
  await db.webhookNamespace.deleteMany({
    where: { webhookId, namespaceId: { notIn: toIds(after) } },
  });
  await db.webhookNamespace.createMany({
    data: added.map(({ id: namespaceId }) => ({ webhookId, namespaceId })),
  });
  // The sender counts the webhook for this namespace (`concurrency-limits.ts`), which must be one of its namespaces.
  await db.webhookQueue.updateMany({
    where: { webhookId, namespaceId: { notIn: toIds(after) } },
    data: { namespaceId: after[0].id },
  });
  return true;
}

/**
 * The webhook disappears and stops sending at once; `retention.ts` removes its deliveries later.
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
    demandAdministerWebhooks(viewer, namespaceIds);
    await tx.webhook.update({
      where: { id },
      data: { deletedAt: new Date() },
      select: { id: true },
    });
    await tx.webhookNamespace.deleteMany({ where: { webhookId: id } });
    await recordAudit(tx, author, { action: 'webhook.delete', namespaceIds, subject: id, name });
    await notifyReaders(tx, `webhook:${id}`);
  });
  return id;
}

/** @throws AppError 404 */
async function resolveNamespaces(
  { db }: { db: Db },
  [first, ...others]: [string, ...string[]],
): Promise<ResolvedNamespaces> {
  return [
    await resolveNamespace(db, first),
    ...(await Promise.all(others.map((name) => resolveNamespace(db, name)))),
  ];
}

/** Checks in the order of ids, so that concurrent requests lock namespaces in the same order. @throws AppError 403 */
async function demandQuotaIn(
  services: { db: Db; config: Config },
  namespaces: readonly ResolvedNamespace[],
): Promise<void> {
  const sorted = [...namespaces].sort((a, b) => (a.id < b.id ? -1 : 1));
  for (const namespace of sorted) await requireQuota(services, namespace, 'webhooks');
}

/** @throws AppError 400 */
async function demandAllowedUrl(
  { webhooks }: { webhooks: WebhookDeps },
  url: string,
): Promise<void> {
  const problem = await findUrlProblem(url, webhooks.guard);
  if (problem) throw invalid('url', problem);
}

function toIds(namespaces: readonly { id: string }[]): string[] {
  return namespaces.map(({ id }) => id);
}
