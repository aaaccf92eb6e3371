/** Removes old deliveries, and the rows of deleted webhooks. */
import type pg from 'pg';
import { inPoolTransaction } from '../platform/database/client.ts';

/** Longer than all retries of a delivery take. */
const DELIVERY_DAYS = 30;

const BATCH_SIZE = 1_000;

/** Removes a batch of deliveries that are older than `DELIVERY_DAYS`. @returns whether there may be more */
export async function removeOldDeliveries({ pool }: { pool: pg.Pool }): Promise<boolean> {
  return inPoolTransaction(pool, async (client) => {
    // Ids sort by time of creation, so the oldest are the first of the primary key.
    const { rows } = await client.query<{ id: string; isExpired: boolean }>(
      `select id, created_at < now() - make_interval(days => ${DELIVERY_DAYS}) as "isExpired"
       from deliveries order by id limit ${BATCH_SIZE}`,
    );
    const firstKept = rows.findIndex(({ isExpired }) => !isExpired);
    const expired = firstKept < 0 ? rows : rows.slice(0, firstKept);
    await removeDeliveries(
      client,
      expired.map(({ id }) => id),
    );
    return expired.length === BATCH_SIZE;
  });
}

/**
 * Removes a batch of the deliveries of a deleted webhook, and the row of the webhook with the last batch. Starts a minute
 * after the deletion, because the dispatcher may still be writing deliveries.
 * @returns whether there may be more
 */
export async function removeDeletedWebhooks({ pool }: { pool: pg.Pool }): Promise<boolean> {
  return inPoolTransaction(pool, async (client) => {
    const { rows: found } = await client.query<{ id: string }>(
      `select id from webhooks where deleted_at < now() - interval '1 minute'
       order by deleted_at limit 1 for update skip locked`,
    );
    const [webhook] = found;
    if (!webhook) return false;
    const { rows } = await client.query<{ id: string }>(
      `select id from deliveries where webhook_id = $1 order by id desc limit ${BATCH_SIZE}`,
      [webhook.id],
    );
    await removeDeliveries(
      client,
      rows.map(({ id }) => id),
    );
    if (rows.length < BATCH_SIZE)
      await client.query('delete from webhooks where id = $1', [webhook.id]);
    return true;
  });
}

/**
 * Removes deliveries, and their messages if no other delivery refers to them. The messages are locked before the search for
 * other deliveries, because `redeliver` adds a delivery under a lock of the message.
 */
async function removeDeliveries(client: pg.PoolClient, ids: readonly string[]): Promise<void> {
  if (ids.length === 0) return;
  const { rows } = await client.query<{ id: string }>(
    `select id from webhook_messages
     where id in (select message_id from deliveries where id = any($1))
     order by id for update`,
    [ids],
  );
  await client.query('delete from deliveries where id = any($1)', [ids]);
  await client.query(
    `delete from webhook_messages
     where id = any($1) and not exists (select from deliveries where message_id = webhook_messages.id)`,
    [rows.map(({ id }) => id)],
  );
}
