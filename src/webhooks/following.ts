/**
 * Subscription to the deliveries of a webhook: yields each delivery when it is created and whenever it changes. The servers
 * that write deliveries wake the followers.
 */

import type pg from 'pg';
import { sleep } from '../base/backoff.ts';
import { AppError } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
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

const PAGE_SIZE = 200;
/**
 * `updated_at` is set during a transaction, and the row becomes visible at its end. So each read starts this long before
 * the newest row of the previous read. Transactions that write deliveries take milliseconds.
 */
const OVERLAP_MS = 1_000;
/** Pause between reads, because each read of a webhook with thousands of events a second returns thousands of rows. */
const PAUSE_MS = 500;

/**
 * Follows the deliveries of the namespaces that the viewer administers at the start, and tests. A delivery that changes
 * several times between two reads is yielded once, in its latest state.
 * @throws AppError 401, 403, 404 at once, and later if the viewer loses access to one of these namespaces or the webhook
 *   is deleted
 */
export async function followDeliveries(
  services: Deps,
  viewer: Viewer,
  id: string,
): Promise<(signal: AbortSignal) => AsyncGenerator<Delivery>> {
  const webhook = await getWebhook(services, viewer, id);
  const namespaces = webhook.namespaceIds.filter((namespaceId) =>
    mayAdministerWebhooks(viewer, namespaceId),
  );
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
        throw new AppError('internal_error', 'The server is stopping; subscribe again', {
          status: 503,
        });
    });
}

async function* readChanges(
  { db, bus }: Deps,
  { webhook, namespaces, since }: { webhook: Webhook; namespaces: string[]; since: Date },
  signal: AbortSignal,
): AsyncGenerator<Delivery> {
  /** By id, the last yielded state of the deliveries that the next read may return again. */
  const yielded = new Map<string, { at: number; state: string }>();
  let newest = since.getTime();
  const readPage = (from: Date, after: string) =>
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
      take: PAGE_SIZE,
    });

  for await (const why of bus.wakes(`webhook:${webhook.id}`, signal)) {
    let from = new Date(newest - OVERLAP_MS);
    let after = '';
    for (let rows: Awaited<ReturnType<typeof readPage>>; ; ) {
      rows = await retryWhileUnavailable(() => readPage(from, after), signal);
      for (const row of rows) {
        const at = row.updatedAt.getTime();
        const state = `${at} ${row.status} ${row.attempts}`;
        if (yielded.get(row.id)?.state === state) continue;
        yielded.set(row.id, { at, state });
        // The delivery has not changed since the subscription began.
        if (why === 'start' && row.updatedAt < since) continue;
        yield row as Delivery;
        if (signal.aborted) return;
      }
      const last = rows.at(-1);
      if (!last) break;
      newest = Math.max(newest, last.updatedAt.getTime());
      if (rows.length < PAGE_SIZE) break;
      from = last.updatedAt;
      after = last.id;
    }
    for (const [id, { at }] of yielded) if (at < newest - OVERLAP_MS) yielded.delete(id);
    await sleep(PAUSE_MS, signal);
  }
}

/** Interval of notifications to the followers of a webhook, however many of its deliveries change. */
const NOTIFY_MS = 300;

type FollowerNotifier = AsyncDisposable & {
  add(webhookIds: Iterable<string>): void;
};

/**
 * Notifies the followers of a webhook that its deliveries have changed. Followers also poll, so a notification may be lost if
 * a server is killed.
 */
export function openFollowerNotifier({
  pool,
  log,
}: {
  pool: pg.Pool;
  log: Logger;
}): FollowerNotifier {
  const changed = new Set<string>();
  let timer: NodeJS.Timeout | undefined;
  let notifying: Promise<void> = Promise.resolve();

  async function notify(): Promise<void> {
    const ids = [...changed];
    changed.clear();
    timer = undefined;
    if (ids.length === 0) return;
    await pool
      .query(`select pg_notify('loam', 'webhook:' || id) from unnest($1::text[]) as webhook (id)`, [
        ids,
      ])
      .catch((error) => log.debug({ err: error }, 'followers of deliveries were not notified'));
  }

  return {
    add(webhookIds) {
      for (const id of webhookIds) changed.add(id);
      timer ??= setTimeout(() => {
        notifying = notifying.then(notify);
      }, NOTIFY_MS);
    },
    async [Symbol.asyncDispose]() {
      clearTimeout(timer);
      await notifying.then(notify);
    },
  };
}
