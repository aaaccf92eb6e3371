/**
 * The SQL by which servers share the sending. Servers claim webhooks, not deliveries: one server at a time sends for a
 * webhook, so its deliveries mostly keep their order, and no server waits for row locks on deliveries.
 *
 * `webhook_queues.due_at` is never later than the due time of the earliest pending delivery. The transaction that adds a
 * delivery sets it. The claiming server remembers the value from before it read deliveries, and releases the webhook only
 * while the value is the same: a different value means that a delivery was added after the read.
 */
import type pg from 'pg';
import { DEAD_AFTER_S } from '../cluster/members.ts';
import type { ClaimRange } from './concurrency-limits.ts';
import type { StoredMessage } from './delivery/payload.ts';

/** A server on the embedded database writes no heartbeat, but no second server can share that database. */
const IS_DEAD = `not exists (
  select from servers where servers.id = queue.server_id
    and servers.heartbeat_at > clock_timestamp() - make_interval(secs => ${DEAD_AFTER_S}))`;

/**
 * `place` ranks a webhook among the webhooks of its namespace that are equally slow, after those that this server has
 * claimed (`concurrency-limits.ts`). The conditions are repeated because the row may change before it is locked.
 */
const CLAIM = `
  with candidate as (
    select queue.webhook_id, queue.due_at, kind.slow,
      coalesce(held.count, 0) + row_number() over (partition by queue.namespace_id, kind.slow order by queue.due_at)
        as place,
      row_number() over (partition by kind.slow order by queue.due_at) as rank
    from webhook_queues queue
    join webhooks on webhooks.id = queue.webhook_id
    cross join lateral (select webhooks.failing_since is not null as slow) kind
    left join unnest($2::text[], $3::bool[], $4::int[]) as held (namespace_id, slow, count)
      on held.namespace_id = queue.namespace_id and held.slow = kind.slow
    where queue.due_at <= now()
      and (queue.server_id is null or queue.server_id <> $1 and ${IS_DEAD})
  ), chosen as (
    select queue.webhook_id from webhook_queues queue
    join (
      select webhook_id from candidate
      where not slow and place <= $5 or slow and place <= $6 and rank <= $7
      order by due_at limit $8
    ) first using (webhook_id)
    where queue.due_at <= now()
      and (queue.server_id is null or queue.server_id <> $1 and ${IS_DEAD})
    order by queue.webhook_id for update of queue skip locked
  )
  update webhook_queues queue set server_id = $1
  from chosen where queue.webhook_id = chosen.webhook_id
  returning queue.webhook_id as "webhookId", queue.namespace_id as "namespaceId"`;

export type ClaimedWebhook = { webhookId: string; namespaceId: string };

/** Claims webhooks with due deliveries for this server, as far as it has slots. */
export async function claim(
  pool: pg.Pool,
  serverId: string,
  { occupied, perNamespace, free }: ClaimRange,
): Promise<ClaimedWebhook[]> {
  const { rows } = await pool.query<ClaimedWebhook>({
    name: 'claim webhooks',
    text: CLAIM,
    values: [
      serverId,
      occupied.map(({ namespaceId }) => namespaceId),
      occupied.map(({ slow }) => slow),
      occupied.map(({ count }) => count),
      perNamespace.prompt,
      perNamespace.slow,
      free.slow,
      free.all,
    ],
  });
  return rows;
}

/** All webhooks that this server has claimed, with `due_at` to compare with `Endpoint.seen`. */
export async function readClaimed(
  pool: pg.Pool,
  serverId: string,
): Promise<(ClaimedWebhook & { due: string })[]> {
  const { rows } = await pool.query<ClaimedWebhook & { due: string }>({
    name: 'webhooks of a server',
    text: `
      select webhook_id as "webhookId", namespace_id as "namespaceId", coalesce(due_at::text, '') as due
      from webhook_queues where server_id = $1`,
    values: [serverId],
  });
  return rows;
}

/** The endpoint of a webhook as it is now. */
export type Endpoint = {
  webhookId: string;
  /** `due_at` before the read of deliveries. */
  seen: string;
  url: string;
  secret: Buffer | null;
  /** Set while it still signs. */
  formerSecret: Buffer | null;
  state: 'on' | 'off' | 'deleted';
  /** Its last attempt failed. */
  isFailing: boolean;
};

/** The endpoints of the webhooks among `webhookIds` that this server still holds. */
export async function readEndpoints(
  pool: pg.Pool,
  serverId: string,
  webhookIds: readonly string[],
): Promise<Endpoint[]> {
  const { rows } = await pool.query<Endpoint>({
    name: 'endpoints of webhooks',
    text: `
      select queue.webhook_id as "webhookId", coalesce(queue.due_at::text, '') as seen, url, secret,
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
  /** Null when the message was removed. */
  message: StoredMessage | null;
};

export type ReadRequest = {
  webhookId: string;
  limit: number;
  /** Ids of deliveries that were read before and were not recorded when this read began. */
  held: ReadonlySet<string>;
};

/**
 * Reads the due deliveries of each webhook in order, up to its limit. Held deliveries are filtered here, because PostgreSQL
 * would compare each row with each element of a list parameter. Messages are read separately, so that a message for many
 * webhooks is read once.
 */
export async function readDue(
  pool: pg.Pool,
  wants: readonly ReadRequest[],
): Promise<DueDelivery[]> {
  const { rows } = await pool.query<Omit<DueDelivery, 'message'> & { messageId: string }>({
    name: 'deliveries due',
    text: `
      select due.* from unnest($1::text[], $2::int[]) as want (webhook_id, count)
      cross join lateral (
        select id, webhook_id as "webhookId", message_id as "messageId", attempts from deliveries
        where webhook_id = want.webhook_id and status = 'pending' and next_attempt_at <= now()
        order by next_attempt_at, id limit want.count
      ) due`,
    values: [
      wants.map(({ webhookId }) => webhookId),
      wants.map(({ limit, held }) => limit + held.size),
    ],
  });
  const byWebhook = Map.groupBy(rows, ({ webhookId }) => webhookId);
  const due = wants.flatMap(({ webhookId, limit, held }) =>
    (byWebhook.get(webhookId) ?? []).filter(({ id }) => !held.has(id)).slice(0, limit),
  );
  if (due.length === 0) return [];
  const messages = await pool.query<StoredMessage>({
    name: 'messages',
    text: `select id, type, namespace, timestamp, data from webhook_messages where id = any($1::text[])`,
    values: [[...new Set(due.map(({ messageId }) => messageId))]],
  });
  const byId = new Map(messages.rows.map((message) => [message.id, message]));
  return due.map(({ messageId, ...one }) => ({ ...one, message: byId.get(messageId) ?? null }));
}

/** A webhook to release. */
export type Release = {
  webhookId: string;
  seen: string;
  /** More is due, but other webhooks wait for the slot. Its `due_at` becomes now, so they are claimed before it. */
  yieldsSlot: boolean;
  /** The webhook was deleted, so nothing is due any more. */
  deleted: boolean;
};

/**
 * A row that is locked by a transaction that adds a delivery is skipped. The comparison with `seen` is needed because the
 * snapshot of this statement may be older than a delivery that was added just before the row was locked.
 */
const RELEASE = `
  with chosen as (
    select queue.webhook_id, release.give_way, release.deleted
    from webhook_queues queue
    join unnest($2::text[], $3::text[], $4::bool[], $5::bool[]) as release (webhook_id, seen, give_way, deleted)
      using (webhook_id)
    where queue.server_id = $1 and (release.give_way or coalesce(queue.due_at::text, '') = release.seen)
    order by queue.webhook_id for update of queue skip locked
  )
  update webhook_queues queue set server_id = null, due_at = case
    when chosen.deleted then null
    when chosen.give_way then clock_timestamp()
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
      releases.map(({ seen }) => seen),
      releases.map(({ yieldsSlot: giveWay }) => giveWay),
      releases.map(({ deleted }) => deleted),
    ],
  });
  return rows.map(({ id }) => id);
}

/** Releases all webhooks of this server, or of a killed process with its id. They stay due, so any server may claim them. */
export async function releaseAll(pool: pg.Pool, serverId: string): Promise<void> {
  await pool.query(
    `with freed as (update webhook_queues set server_id = null where server_id = $1 returning webhook_id)
     select pg_notify('loam', 'deliveries') from freed limit 1`,
    [serverId],
  );
}
