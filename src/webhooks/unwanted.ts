/** Fails pending deliveries that must no longer be sent. */
import type pg from 'pg';
import { PING } from './event-types.ts';

/** Outcome of these deliveries: no request was sent. */
const WEBHOOK_OFF = 'webhook_off';

const BATCH_SIZE = 1_000;

/**
 * Fails the pending deliveries of a webhook that is off, or of namespaces that were removed from the webhook. Must be
 * called after the commit of that change. It reads the current state, so a repeated call is harmless.
 * @param batches maximum number of batches; the sender fails the rest. 50,000 deliveries take about 4 seconds
 */
export async function failUnwantedDeliveries(
  { pool }: { pool: pg.Pool },
  webhookId: string,
  batches = Number.POSITIVE_INFINITY,
): Promise<void> {
  // The end of the previous batch, so that a batch does not scan again the deliveries that stay pending.
  let after: [Date, string] = [new Date(0), ''];
  for (let batch = 0; batch < batches; batch++) {
    const { rows } = await pool.query<{ id: string; due: Date }>(
      `with unwanted as (
         select delivery.id, delivery.next_attempt_at
         from deliveries delivery join webhooks webhook on webhook.id = delivery.webhook_id
         where delivery.webhook_id = $1 and delivery.status = 'pending'
           and (delivery.next_attempt_at, delivery.id) > ($2::timestamptz, $3)
           and (not webhook.active or delivery.type <> '${PING}' and not exists (
             select from webhook_namespaces listed
             where listed.webhook_id = webhook.id and listed.namespace_id = delivery.namespace_id))
         order by delivery.next_attempt_at, delivery.id limit ${BATCH_SIZE}
       ), ended as (
         -- Without a test of the status, for which the planner may scan the index of pending deliveries once per id.
         update deliveries set status = 'failed', outcome = '${WEBHOOK_OFF}', next_attempt_at = null,
           updated_at = now(), completed_at = now()
         from unwanted where deliveries.id = unwanted.id and deliveries.completed_at is null
         returning deliveries.id
       )
       select id, next_attempt_at as due,
         (select pg_notify('loam', 'webhook:' || $1) from ended limit 1) as notified
       from unwanted order by next_attempt_at, id`,
      [webhookId, ...after],
    );
    const last = rows.at(-1);
    if (!last || rows.length < BATCH_SIZE) return;
    after = [last.due, last.id];
  }
}
