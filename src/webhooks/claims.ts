/**
 * The SQL with which servers share the work of sending deliveries. Servers claim webhooks, not deliveries: one server at a
 * time sends the deliveries of a webhook, so they keep their order except for retries and concurrent attempts, and no server
 * waits for row locks on deliveries.
 *
 * `webhook_queues.due_at` is never later than the due time of the earliest pending delivery. A server releases a webhook
 * without missing a delivery in three steps:
 *
 *   1. It reads `due_at`.
 *   2. It reads the due deliveries.
 *   3. It releases the webhook only if `due_at` has not changed since step 1. The transaction that adds a delivery changes
 *      `due_at`, so a different value means that a delivery was added.
 *
 * A webhook that yields its slot is released without this check, because its `due_at` becomes now.
 *
 * Claims of single deliveries with leases were measured as the alternative. Without a row per webhook, the limits per endpoint
 * have to be computed from all waiting deliveries: beside 10,000 waiting retries a claim took 83 to 122 ms instead of 0.4, and
 * the 99th percentile at 200 events per second was 644 ms instead of 266. With a smaller row per webhook a claim took 1.8 ms,
 * each delivery one more write (55 µs), and another server took over after the lease of 30 s instead of after 3 s.
 */
import type pg from 'pg';
import { DEAD_AFTER_S } from '../cluster/members.ts';
import type { ClaimQuota } from './concurrency-limits.ts';
import type { StoredMessage } from './delivery/payload.ts';

/**
 * Whether the server that claimed the row `queue` has had no heartbeat for `DEAD_AFTER_S`. A server on the embedded database
 * never has a heartbeat. That is harmless: no second server can share that database.
 */
const IS_CLAIMER_DEAD = `not exists (
  select from servers where servers.id = queue.server_id
    and servers.heartbeat_at > clock_timestamp() - make_interval(secs => ${DEAD_AFTER_S}))`;

/**
 * Claims the webhooks that have been due for longest, within the limits of `concurrency-limits.ts`.
 *
 *   $1          id of this server
 *   $2, $3, $4  namespace, whether slow, count: slots that this server already uses
 *   $5, $6      slots of a namespace for responsive and for slow webhooks
 *   $7, $8      free slots for slow webhooks, and for all webhooks
 *
 * `namespace_rank` counts the webhooks of the same namespace and kind, including those that this server has claimed. The
 * conditions of `candidate` are repeated in `chosen`, because a row may change before it is locked.
 */
const CLAIM = `
  with candidate as (
    select queue.webhook_id, queue.due_at, kind.slow,
      coalesce(used.count, 0) + row_number() over (partition by queue.namespace_id, kind.slow order by queue.due_at)
        as namespace_rank,
      row_number() over (partition by kind.slow order by queue.due_at) as overall_rank
    from webhook_queues queue
    join webhooks on webhooks.id = queue.webhook_id
    -- An unclaimed webhook is slow only if its last attempt failed (concurrency-limits.ts).
    cross join lateral (select webhooks.failing_since is not null as slow) kind
    left join unnest($2::text[], $3::bool[], $4::int[]) as used (namespace_id, slow, count)
      on used.namespace_id = queue.namespace_id and used.slow = kind.slow
    where queue.due_at <= now()
      and (queue.server_id is null or queue.server_id <> $1 and ${IS_CLAIMER_DEAD})
  ), chosen as (
    select queue.webhook_id from webhook_queues queue
    join (
      select webhook_id from candidate
      where not slow and namespace_rank <= $5 or slow and namespace_rank <= $6 and overall_rank <= $7
      order by due_at limit $8
    ) admitted using (webhook_id)
    where queue.due_at <= now()
      and (queue.server_id is null or queue.server_id <> $1 and ${IS_CLAIMER_DEAD})
    order by queue.webhook_id for update of queue skip locked
  )
  update webhook_queues queue set server_id = $1
  from chosen where queue.webhook_id = chosen.webhook_id
  returning queue.webhook_id as "webhookId", queue.namespace_id as "namespaceId"`;

type ClaimedWebhook = { webhookId: string; namespaceId: string };

/** Claims webhooks with due deliveries for this server, as far as the quota allows. */
export async function claim(
  pool: pg.Pool,
  serverId: string,
  { occupied, perNamespace, free }: ClaimQuota,
): Promise<ClaimedWebhook[]> {
  const { rows } = await pool.query<ClaimedWebhook>({
    name: 'claim webhooks',
    text: CLAIM,
    values: [
      serverId,
      occupied.map(({ namespaceId }) => namespaceId),
      occupied.map(({ isSlow }) => isSlow),
      occupied.map(({ count }) => count),
      perNamespace.responsive,
      perNamespace.slow,
      free.slow,
      free.all,
    ],
  });
  return rows;
}

/**
 * All webhooks that this server has claimed. `dueAt` is compared with `Endpoint.dueAtWhenRead`; it is a text because a
 * JavaScript date would lose the microseconds, and empty for null.
 */
export async function readClaimed(
  pool: pg.Pool,
  serverId: string,
): Promise<(ClaimedWebhook & { dueAt: string })[]> {
  const { rows } = await pool.query<ClaimedWebhook & { dueAt: string }>({
    name: 'webhooks of a server',
    text: `
      select webhook_id as "webhookId", namespace_id as "namespaceId", coalesce(due_at::text, '') as "dueAt"
      from webhook_queues where server_id = $1`,
    values: [serverId],
  });
  return rows;
}

/** The state of a webhook, read before its due deliveries. */
export type Endpoint = {
  webhookId: string;
  /** `due_at` before the due deliveries were read, in the form of `readClaimed`. */
  dueAtWhenRead: string;
  url: string;
  secret: Buffer | null;
  /** The previous secret, until its grace period ends. */
  formerSecret: Buffer | null;
  state: 'on' | 'off' | 'deleted';
  /** Whether the last attempt failed. */
  isFailing: boolean;
};

/** The endpoints of the webhooks among `webhookIds` that are still claimed by this server. */
export async function readEndpoints(
  pool: pg.Pool,
  serverId: string,
  webhookIds: readonly string[],
): Promise<Endpoint[]> {
  const { rows } = await pool.query<Endpoint>({
    name: 'endpoints of webhooks',
    text: `
      select queue.webhook_id as "webhookId", coalesce(queue.due_at::text, '') as "dueAtWhenRead", url, secret,
        case when former_until > now() then former_secret end as "formerSecret",
        case when deleted_at is not null then 'deleted' when active then 'on' else 'off' end as state,
        failing_since is not null as "isFailing"
      from webhook_queues queue join webhooks on webhooks.id = queue.webhook_id
      where queue.server_id = $1 and queue.webhook_id = any($2::text[])`,
    values: [serverId, webhookIds],
  });
  return rows;
}

export type DueDelivery = {
  id: string;
  webhookId: string;
  attempts: number;
  /** Null if the message was removed. */
  message: StoredMessage | null;
};

export type DueRead = {
  webhookId: string;
  limit: number;
  /** Deliveries that are in memory, so they must not be returned again: their results are not stored yet. */
  loadedIds: ReadonlySet<string>;
};

/**
 * Reads the due deliveries of each webhook in order, up to its limit. Loaded deliveries are filtered here, because PostgreSQL
 * would compare each row with each element of a list parameter. Messages are read separately, so that a message for many
 * webhooks is read once.
 */
export async function readDue(pool: pg.Pool, requests: readonly DueRead[]): Promise<DueDelivery[]> {
  const { rows } = await pool.query<Omit<DueDelivery, 'message'> & { messageId: string }>({
    name: 'deliveries due',
    text: `
      select due.* from unnest($1::text[], $2::int[]) as request (webhook_id, count)
      cross join lateral (
        select id, webhook_id as "webhookId", message_id as "messageId", attempts from deliveries
        where webhook_id = request.webhook_id and status = 'pending' and next_attempt_at <= now()
        order by next_attempt_at, id limit request.count
      ) due`,
    values: [
      requests.map(({ webhookId }) => webhookId),
      requests.map(({ limit, loadedIds }) => limit + loadedIds.size),
    ],
  });
  const byWebhook = Map.groupBy(rows, ({ webhookId }) => webhookId);
  const due = requests.flatMap(({ webhookId, limit, loadedIds }) =>
    (byWebhook.get(webhookId) ?? []).filter(({ id }) => !loadedIds.has(id)).slice(0, limit),
  );
  if (due.length === 0) return [];
  const messages = await pool.query<StoredMessage>({
    name: 'messages',
    text: `select id, type, namespace, timestamp, data from webhook_messages where id = any($1::text[])`,
    values: [[...new Set(due.map(({ messageId }) => messageId))]],
  });
  const byId = new Map(messages.rows.map((message) => [message.id, message]));
  return due.map(({ messageId, ...delivery }) => ({
    ...delivery,
    message: byId.get(messageId) ?? null,
  }));
}

/** A webhook to release. */
type Release = {
  webhookId: string;
  dueAtWhenRead: string;
  /** More deliveries are due, but other webhooks wait for the slot. `due_at` becomes now, so that they are claimed first. */
  yieldsSlot: boolean;
  /** The webhook was deleted, so none of its deliveries is due. */
  isDeleted: boolean;
};

/**
 * Releases webhooks. The comparison with `dueAtWhenRead` is needed because the snapshot of this statement may be older than a
 * delivery that was added just before the row was locked. A row that is locked by a transaction that adds a delivery is
 * skipped: the webhook stays claimed, and the sender reads it again.
 */
const RELEASE = `
  with chosen as (
    select queue.webhook_id, release.yields_slot, release.is_deleted
    from webhook_queues queue
    join unnest($2::text[], $3::text[], $4::bool[], $5::bool[])
      as release (webhook_id, due_at_when_read, yields_slot, is_deleted) using (webhook_id)
    where queue.server_id = $1
      and (release.yields_slot or coalesce(queue.due_at::text, '') = release.due_at_when_read)
    order by queue.webhook_id for update of queue skip locked
  )
  update webhook_queues queue set server_id = null, due_at = case
    when chosen.is_deleted then null
    when chosen.yields_slot then clock_timestamp()
    else (select next_attempt_at from deliveries
      where deliveries.webhook_id = queue.webhook_id and status = 'pending' order by next_attempt_at limit 1)
    end
  from chosen where queue.webhook_id = chosen.webhook_id
  returning queue.webhook_id as id`;

/** @returns the ids of the released webhooks */
export async function release(
  pool: pg.Pool,
  serverId: string,
  releases: readonly Release[],
): Promise<string[]> {
  const { rows } = await pool.query<{ id: string }>({
    name: 'release webhooks',
    text: RELEASE,
    values: [
      serverId,
      releases.map(({ webhookId }) => webhookId),
      releases.map(({ dueAtWhenRead }) => dueAtWhenRead),
      releases.map(({ yieldsSlot }) => yieldsSlot),
      releases.map(({ isDeleted }) => isDeleted),
    ],
  });
  return rows.map(({ id }) => id);
}

/**
 * Releases all webhooks of this server, including those that an earlier process with the same server id has left claimed.
 * They stay due, so any server may claim them.
 */
export async function releaseAll(pool: pg.Pool, serverId: string): Promise<void> {
  await pool.query(
    `with freed as (update webhook_queues set server_id = null where server_id = $1 returning webhook_id)
     select pg_notify('loam', 'deliveries') from freed limit 1`,
    [serverId],
  );
}
