/** Deliveries that are still pending and must not be sent any more. */
import type pg from 'pg';
import { PING } from './event-types.ts';

/** What their outcome is; nothing was sent. */
export const OFF = 'webhook_off';

const BATCH = 1_000;

/**
 * Ends what is pending of a webhook that is off, and of one that is on what came from namespaces that it does not
 * list any more: to be called after the commit that switched it off or took a namespace out. In batches, because
 * there may be a backlog. It does nothing that is not so by then, so whoever meets such deliveries may call it.
 * @param batches the most, for who leaves the rest to the sender; 50,000 deliveries take some 4 seconds
 */
export async function switchedOff(
  { pool }: { pool: pg.Pool },
  webhookId: string,
  batches = Number.POSITIVE_INFINITY,
): Promise<void> {
  // Where the batch before has ended: without it each would pass over all that stays pending.
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
         -- Not by the status, for which the planner may take the index of what is pending, by id: a scan for each.
         update deliveries set status = 'failed', outcome = '${OFF}', next_attempt_at = null,
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
