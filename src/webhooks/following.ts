/** Subscription to the deliveries of a webhook: each delivery is shown when it is created and whenever it changes. */

import { setTimeout as delay } from 'node:timers/promises';
import { AppError } from '../base/errors.ts';
import { demand, type Viewer } from '../identity/permissions.ts';
import type { Rechecks } from '../identity/rechecks.ts';
import { type AccessRule, whileAllowed } from '../identity/rechecks.ts';
import type { Db } from '../platform/database/client.ts';
import { retryWhileUnavailable } from '../platform/database/outage.ts';
import type { Bus } from '../platform/events/bus.ts';
import { mayAdministerWebhooks } from './access.ts';
import { type Delivery, deliveryColumns } from './deliveries.ts';
import { PING } from './event-types.ts';
import { getWebhook, type Webhook } from './webhooks.ts';

type Deps = { db: Db; bus: Bus; rechecks: Rechecks };

const PAGE = 200;
/**
 * `updated_at` is taken at the start of a transaction, and the row becomes visible at its end, so each read goes back by
 * this much. Transactions that write deliveries take milliseconds.
 */
const OVERLAP_MS = 1_000;
/** Pause between reads: for a webhook with thousands of events a second, each read returns thousands of rows. */
const PAUSE_MS = 500;

/**
 * Follows the deliveries of the namespaces that the viewer administers now, and tests. Several changes between two reads
 * are shown once, in the latest state.
 * @throws AppError 401, 403, 404 at once, or later when the viewer loses access to one of these namespaces or the webhook
 *   is deleted
 */
export async function followDeliveries(
  services: Deps,
  viewer: Viewer,
  id: string,
): Promise<(signal: AbortSignal) => AsyncGenerator<Delivery>> {
  const webhook = await getWebhook(services, viewer, id);
  const namespaces = webhook.namespaceIds.filter((each) => mayAdministerWebhooks(viewer, each));
  const rule: AccessRule = {
    key: `deliveries of ${id} from ${namespaces.join()}`,
    async demand(now) {
      await getWebhook(services, now, id);
      for (const namespaceId of namespaces) demand(now, 'webhook.administer', { namespaceId });
    },
  };
  const [clock] = await services.db.$queryRaw<{ now: Date }[]>`select now()`;
  const since = clock?.now ?? new Date();
  return (signal) =>
    whileAllowed(services, viewer, rule, signal, async function* (ended) {
      yield* readChanges(services, { webhook, namespaces, since }, ended);
      if (!ended.aborted)
        throw new AppError('internal_error', 'The server is stopping: subscribe again', {
          status: 503,
        });
    });
}

async function* readChanges(
  { db, bus }: Deps,
  { webhook, namespaces, since }: { webhook: Webhook; namespaces: string[]; since: Date },
  signal: AbortSignal,
): AsyncGenerator<Delivery> {
  /** The state last shown, by id, of the deliveries that the next read returns again. */
  const seen = new Map<string, { at: number; state: string }>();
  let until = since.getTime();
  const page = (from: Date, after: string) =>
    db.delivery.findMany({
      where: {
        webhookId: webhook.id,
        updatedAt: { gte: from },
        AND: [
          { OR: [{ updatedAt: { gt: from } }, { id: { gt: after } }] },
          { OR: [{ namespaceId: { in: namespaces } }, { type: PING }] },
        ],
      },
      select: deliveryColumns,
      orderBy: [{ updatedAt: 'asc' }, { id: 'asc' }],
      take: PAGE,
    });

  for await (const why of bus.wakes(`webhook:${webhook.id}`, signal)) {
    let from = new Date(until - OVERLAP_MS);
    let after = '';
    for (let rows: Awaited<ReturnType<typeof page>>; ; ) {
      rows = await retryWhileUnavailable(() => page(from, after), signal);
      for (const row of rows) {
        const at = row.updatedAt.getTime();
        const state = `${at} ${row.status} ${row.attempts}`;
        if (seen.get(row.id)?.state === state) continue;
        seen.set(row.id, { at, state });
        // The delivery did not change since the subscription began.
        if (why === 'start' && row.updatedAt < since) continue;
        yield row as Delivery;
        if (signal.aborted) return;
      }
      const last = rows.at(-1);
      if (!last) break;
      until = Math.max(until, last.updatedAt.getTime());
      if (rows.length < PAGE) break;
      from = last.updatedAt;
      after = last.id;
    }
    for (const [id, { at }] of seen) if (at < until - OVERLAP_MS) seen.delete(id);
    await delay(PAUSE_MS, undefined, { signal }).catch(() => {});
  }
}
