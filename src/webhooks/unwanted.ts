/** Ends pending deliveries that must not be sent any more. */
import type pg from 'pg';
import { PING } from './event-types.ts';

/** Outcome of these deliveries: nothing was sent. */
export const WEBHOOK_OFF = 'webhook_off';

const BATCH = 1_000;

/**
 * Ends all pending deliveries of a webhook that is off, or those from namespaces that were removed from the webhook. Call it
 * after the commit of that change; it reads the current state, so a repeated call is harmless. It works in batches, because
 * there may be a backlog.
 * @param batches the maximum; the sender ends the rest. 50,000 deliveries take about 4 seconds
 */
export async function endUnwantedDeliveries(
  { pool }: { pool: pg.Pool },
  webhookId: string,
  batches = Number.POSITIVE_INFINITY,
): Promise<void> {
  // The end of the previous batch: without it each batch would scan all deliveries that stay pending.
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
         order by delivery.next_attempt_at, delivery.id limit ${BATCH}
       ), ended as (
         -- No test of the status: for that the planner may scan the index of pending deliveries once per id.
         update deliveries set status = 'failed', outcome = '${WEBHOOK_OFF}', next_attempt_at = null,
           updated_at = now(), completed_at = now()
         from unwanted where deliveries.id = unwanted.id and deliveries.completed_at is null
         returning deliveries.id
       )
       select id, next_attempt_at as due,
         (select pg_notify('loam', 'webhook:' || $1) from ended limit 1) as told
       from unwanted order by next_attempt_at, id`,
      [webhookId, ...after],
    );
    const last = rows.at(-1);
    if (!last || rows.length < BATCH) return;
    after = [last.due, last.id];
  }
}
