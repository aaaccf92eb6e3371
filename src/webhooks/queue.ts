/**
 * The SQL by which servers share the sending. They claim webhooks, not deliveries: a webhook is sent for by one server
 * at a time, so its deliveries keep their order as far as it is cheap, and nobody waits for locks on rows of deliveries.
 *
 * `webhook_queues.due_at` is no later than the earliest pending delivery is due. Whoever adds a delivery sets it,
 * in the same transaction. The server that has the webhook remembers what it was before it read deliveries, and lets
 * go only while it is the same: else something has come that it did not see.
 */
import type pg from 'pg';
import { SILENCE_S } from '../cluster/members.ts';
import type { ClaimRange } from './concurrency-limits.ts';
import type { StoredMessage } from './delivery/payload.ts';

/** A server on the embedded database writes no heartbeat, and is alone. */
const IS_DEAD = `not exists (
  select from servers where servers.id = queue.server_id
    and servers.heartbeat_at > clock_timestamp() - make_interval(secs => ${SILENCE_S}))`;

/**
 * `place` is that of a webhook among those of its namespace that are as slow (`places.ts`), which count as the ones that
 * this server has already. The row is looked at once more when it is locked.
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

export type Claimed = { webhookId: string; namespaceId: string };

/** Webhooks with something to send now, for this server from now on, as far as it has places for them. */
export async function claim(
  pool: pg.Pool,
  serverId: string,
  { held, perNamespace, free }: ClaimRange,
): Promise<Claimed[]> {
  const { rows } = await pool.query<Claimed>({
    name: 'claim webhooks',
    text: CLAIM,
    values: [
      serverId,
      held.map(({ namespaceId }) => namespaceId),
      held.map(({ slow }) => slow),
      held.map(({ count }) => count),
      perNamespace.prompt,
      perNamespace.slow,
      free.slow,
      free.all,
    ],
  });
  return rows;
}

/** All that this server has, with when they were last due, to be compared with what it saw. */
export async function readHeld(
  pool: pg.Pool,
  serverId: string,
): Promise<(Claimed & { due: string })[]> {
  const { rows } = await pool.query<Claimed & { due: string }>({
    name: 'webhooks of a server',
    text: `
      select webhook_id as "webhookId", namespace_id as "namespaceId", coalesce(due_at::text, '') as due
      from webhook_queues where server_id = $1`,
    values: [serverId],
  });
  return rows;
}

/** Where a webhook leads, as it is now. */
export type Endpoint = {
  webhookId: string;
  /** `due_at` before deliveries are read. */
  seen: string;
  url: string;
  secret: Buffer | null;
  /** While it still signs. */
  formerSecret: Buffer | null;
  state: 'on' | 'off' | 'deleted';
  /** Its last attempt failed. */
  failing: boolean;
};

/** Those of the ids that this server still has. */
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
        failing_since is not null as failing
      from webhook_queues queue join webhooks on webhooks.id = queue.webhook_id
      where queue.server_id = $1 and queue.webhook_id = any($2::text[])`,
    values: [serverId, webhookIds],
  });
  return rows;
}

/** A delivery that is due. */
export type Due = {
  id: string;
  webhookId: string;
  attempts: number;
  /** Null when it was removed. */
  message: StoredMessage | null;
};

/** What to read of a webhook. */
export type Want = {
  webhookId: string;
  limit: number;
  /** Ids of deliveries that were read before and were not recorded when this read began. */
  held: ReadonlySet<string>;
};

/**
 * The first deliveries that are due, in order, of each webhook as many as it wants. Those that are held are left out
 * here: PostgreSQL compares each row with each of a list that it got as a parameter. Messages are read by
 * themselves, so that one which goes to many webhooks is read once.
 */
export async function readDue(pool: pg.Pool, wants: readonly Want[]): Promise<Due[]> {
  const { rows } = await pool.query<Omit<Due, 'message'> & { messageId: string }>({
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

/** A webhook to let go of. */
export type Release = {
  webhookId: string;
  seen: string;
  /** There is more to send, but others wait for the place: it is claimed again after them. */
  giveWay: boolean;
  /** Nothing of it is to be sent any more. */
  deleted: boolean;
};

/**
 * The row may be locked by who adds a delivery; then it is left out, because something has come. A subquery of a
 * statement that waited for that lock would not see the delivery, hence the comparison with what was seen.
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

/** @returns the ids of those that this server does not have any more */
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
      releases.map(({ giveWay }) => giveWay),
      releases.map(({ deleted }) => deleted),
    ],
  });
  return rows.map(({ id }) => id);
}

/** All that this server has, or had when it was killed: they are due still, and any server may claim them. */
export async function releaseAll(pool: pg.Pool, serverId: string): Promise<void> {
  await pool.query(
    `with freed as (update webhook_queues set server_id = null where server_id = $1 returning webhook_id)
     select pg_notify('loam', 'deliveries') from freed limit 1`,
    [serverId],
  );
}
