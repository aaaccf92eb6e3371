/** Following the deliveries of a webhook: each is shown when it is made, and again whenever it has changed. */

import { setTimeout as delay } from 'node:timers/promises';
import { AppError } from '../base/errors.ts';
import { demand, type Viewer } from '../identity/permissions.ts';
import type { Rechecks } from '../identity/rechecks.ts';
import { type Rule, whileAllowed } from '../identity/rechecks.ts';
import type { Db } from '../platform/database/client.ts';
import { untilAnswered } from '../platform/database/outage.ts';
import type { Bus } from '../platform/events/bus.ts';
import { mayAdminister } from './access.ts';
import { type Delivery, deliveryColumns } from './deliveries.ts';
import { PING } from './event-types.ts';
import { getWebhook, type Webhook } from './webhooks.ts';

type Deps = { db: Db; bus: Bus; rechecks: Rechecks };

const PAGE = 200;
/**
 * A change gets its time at the beginning of its transaction and can be read after the end of it, so what comes late
 * is looked for once more. Transactions that write deliveries take milliseconds.
 */
const OVERLAP_MS = 1_000;
/** Between two reads, because of a webhook that is sent thousands of events a second each reads thousands of rows. */
const PAUSE_MS = 500;

/**
 * From now on, those of the namespaces of the webhook that the viewer administers by now, and tests. What changes
 * several times between two reads is shown once, as it is then.
 * @throws AppError 401, 403, 404 at once; later when the viewer may not see one of these namespaces any more, or the
 *   webhook is deleted
 */
export async function followDeliveries(
  services: Deps,
  viewer: Viewer,
  id: string,
): Promise<(signal: AbortSignal) => AsyncGenerator<Delivery>> {
  const webhook = await getWebhook(services, viewer, id);
  const namespaces = webhook.namespaceIds.filter((each) => mayAdminister(viewer, each));
  const rule: Rule = {
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
      yield* changes(services, { webhook, namespaces, since }, ended);
      if (!ended.aborted)
        throw new AppError('internal_error', 'The server is stopping: subscribe again', {
          status: 503,
        });
    });
}

async function* changes(
  { db, bus }: Deps,
  { webhook, namespaces, since }: { webhook: Webhook; namespaces: string[]; since: Date },
  signal: AbortSignal,
): AsyncGenerator<Delivery> {
  /** What was shown of those that are read again, by id. */
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
      rows = await untilAnswered(() => page(from, after), signal);
      for (const row of rows) {
        const at = row.updatedAt.getTime();
        const state = `${at} ${row.status} ${row.attempts}`;
        if (seen.get(row.id)?.state === state) continue;
        seen.set(row.id, { at, state });
        // What was there before is not news.
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
