/**
 * SQL of pushes. Raw statements, because Prisma's statements and transactions took a third of the server's CPU time for
 * a small push.
 */

import type pg from 'pg';
import type { Plan } from '../../../prisma/generated/enums.ts';
import type { ReceivedRefUpdate } from '../../git/transport/hooks.ts';
import type { Actor } from '../../identity/audit.ts';
import { addAuditToStatement } from '../../identity/audit.ts';
import {
  addEffectsToStatement,
  type IdempotentEffect,
} from '../../platform/database/idempotent-effects.ts';
import { toColumnName } from '../../platform/database/keyset.ts';
import {
  beginPipeline,
  createStatementParts,
  type Queryable,
  runStatement,
} from '../../platform/database/statement.ts';
import { eventNotification } from '../../platform/events/bus.ts';
import { RESERVED_BYTES } from '../../platform/limits/quotas.ts';
import type { BranchRule } from '../branch-rules.ts';
import {
  type PayloadRow,
  payloadColumns,
  payloadOf,
  pushPayloadOf,
  type RefPayload,
} from '../payload.ts';
import type { Measurements } from './measure.ts';
import type { PushTrigger } from './triggers.ts';

/** The note on disk of a push that was accepted and is not recorded yet. */
export type PushNote = {
  kind: 'push';
  /** The id of the push's event. It shows whether a note was recorded before the server was killed. */
  event: string;
  pusher: string;
  /** For the audit log. */
  by: Actor;
  commands: ReceivedRefUpdate[];
  /** The updates that may start jobs. */
  triggers?: PushTrigger[];
  /** The request with an `Idempotency-Key` that made this push, whose result is the commit of its first command. */
  effect?: IdempotentEffect;
  /** When the push was accepted, as ISO 8601. */
  at: string;
};

/** A push to record. `updated` is what git reported as updated; null if it gave no report. */
export type PushToRecord = PushNote & {
  updated: ReceivedRefUpdate[] | null;
  /** The push may stay undecided for now. */
  canWait?: boolean;
};

/** Plan and storage use of a namespace. `storageBytes` includes reservations. */
export type NamespaceStorage = { plan: Plan; storageBytes: bigint };

/** @returns null if the repository no longer exists, like all reads in this file */
export async function readNamespaceStorage(
  pool: pg.Pool,
  id: string,
): Promise<NamespaceStorage | null> {
  const text = `select n.plan, n.storage_bytes + ${RESERVED_BYTES} as "storageBytes"
    from repositories r join namespaces n on n.id = r.namespace_id where r.id = $1`;
  const { rows } = await pool.query<NamespaceStorage>({
    name: 'loam-push-storage',
    text,
    values: [id],
  });
  return rows.map((row) => ({ ...row, storageBytes: BigInt(row.storageBytes) }))[0] ?? null;
}

export type EnforcedRule = Omit<BranchRule, 'updatedAt'>;

/** What the pre-receive check needs to know about a repository. */
type PushPolicy = {
  name: string;
  defaultBranch: string;
  branchProtection: boolean;
  secretScanning: boolean;
  namespaceId: string;
  plan: Plan;
  rules: EnforcedRule[];
  /** Files locked by other users: path → name of the lock's owner. */
  locks: ReadonlyMap<string, string>;
};

const POLICY_SQL = `
  select r.name, r.default_branch as "defaultBranch", r.branch_protection as "branchProtection",
    r.secret_scanning as "secretScanning", r.namespace_id as "namespaceId", n.plan,
    coalesce((
      select json_agg(json_build_object('pattern', pattern, 'pushRole', push_role, 'pusherIds', pusher_ids,
        'allowsForcePushes', allows_force_pushes, 'allowsDeletions', allows_deletions,
        'requiredJobs', required_jobs) order by pattern)
      from branch_rules where repository_id = r.id
    ), '[]') as rules,
    coalesce((
      select json_agg(json_build_array(lock.path, owner.username))
      from file_locks lock join users owner on owner.id = lock.owner_id
      where lock.repository_id = r.id and ($2::text is null or lock.owner_id <> $2)
    ), '[]') as locks
  from repositories r join namespaces n on n.id = r.namespace_id where r.id = $1`;

/** @param userId null for pushers that cannot own locks */
export async function readPushPolicy(
  pool: pg.Pool,
  id: string,
  userId: string | null,
): Promise<PushPolicy | null> {
  const { rows } = await pool.query({
    name: 'loam-push-policy',
    text: POLICY_SQL,
    values: [id, userId],
  });
  const [row] = rows;
  if (!row) return null;
  const { locks, ...policy } = row;
  return { ...policy, locks: new Map(locks) };
}

/** The ref updates of one push event. */
export type RecordedPush = { refs: RefPayload[]; at: Date };
/** `recorded`: the latest first. */
type RecordedState = {
  defaultBranch: string;
  branchCount: number;
  records: number;
  recorded: RecordedPush[];
};

const STATE_SQL = `
  select r.default_branch as "defaultBranch", r.branch_count as "branchCount", r.records,
    coalesce((
      select json_agg(json_build_object('refs', coalesce(data -> 'push' -> 'refs', data -> 'refs', '[]'),
        'at', timestamp) order by xid desc, seq desc)
      from (
        select * from events where subject = $1 and type = 'repository.pushed'
        order by xid desc, seq desc limit $2
      ) latest where timestamp >= $3
    ), '[]') as recorded
  from repositories r where r.id = $1`;

/** Includes the ref updates of the last `limit` push events that are not older than `since`. */
export async function readRecordedState(
  pool: pg.Pool,
  id: string,
  { since, limit }: { since: Date; limit: number },
): Promise<RecordedState | null> {
  const values = [id, limit, since];
  const { rows } = await pool.query({ name: 'loam-push-recorded', text: STATE_SQL, values });
  const [row] = rows;
  if (!row) return null;
  const recorded = row.recorded.map(({ refs, at }: { refs: RefPayload[]; at: string }) => ({
    refs,
    at: new Date(at),
  }));
  return { ...row, recorded };
}

type LockedRow = PayloadRow & {
  namespaceId: string;
  /** The name of the owner. */
  namespace: string;
  records: number;
  largeBytes: bigint;
  /** Ids of the requested events that exist. */
  existingEvents: string[];
};

const PAYLOAD_SQL = Object.keys(payloadColumns)
  .map((field) => `r.${toColumnName(field)} as "${field}"`)
  .join(', ');

/**
 * The second parameter is a JSON array of event ids. Events of a transaction that this one waits for are not visible
 * here, but that transaction has changed `records`, which is.
 */
const LOCK_SQL = `
  select ${PAYLOAD_SQL}, r.namespace_id as "namespaceId", n.name as namespace, r.records,
    r.large_bytes as "largeBytes",
    array(select id from events where id in (select jsonb_array_elements_text($2::jsonb))) as "existingEvents"
  from repositories r join namespaces n on n.id = r.namespace_id
  where r.id = $1 for no key update of r`;

/** Begins a transaction and locks the repository; other records of the repository wait until the end. */
export async function beginAndLock(
  client: pg.PoolClient,
  id: string,
  pushes: readonly PushToRecord[],
): Promise<LockedRow | null> {
  const events = JSON.stringify(pushes.map(({ event }) => event));
  const [row] = await beginPipeline<LockedRow>(client, LOCK_SQL, [id, events]);
  if (!row) return null;
  return { ...row, sizeBytes: BigInt(row.sizeBytes), largeBytes: BigInt(row.largeBytes) };
}

type Changes = Omit<Measurements, 'refs'> & {
  pushedAt: Date | null;
  updatedAt: Date;
  /** The ids of the snapshots that were pushed. */
  snapshots: readonly string[];
};

/**
 * Updates the row, and writes the snapshots and, for each push, oldest first, an event and an audit entry, in one
 * statement.
 */
export async function writeRecord(
  tx: Queryable,
  locked: LockedRow,
  changes: Changes,
  pushes: readonly PushToRecord[],
): Promise<void> {
  const { id, name, namespaceId } = locked;
  const sizeBytes = BigInt(changes.sizeBytes) + locked.largeBytes;
  const repository = payloadOf({ ...locked, ...changes, sizeBytes }, locked.namespace);
  const recorded = pushes.map((push) => ({
    ...push,
    push: pushPayloadOf(push.pusher, push.commands),
  }));
  const statement = createStatementParts();
  const { parts, parameter, values } = statement;
  const subject = parameter(id, 'text');
  parts.push(`updated as (
    update repositories set
      default_branch = ${parameter(changes.defaultBranch, 'text')},
      branch_count = ${parameter(changes.branchCount, 'int')},
      tag_count = ${parameter(changes.tagCount, 'int')},
      size_bytes = ${parameter(sizeBytes, 'bigint')},
      language = ${parameter(changes.language, 'text')},
      pushed_at = ${parameter(changes.pushedAt, 'timestamptz')},
      updated_at = ${parameter(changes.updatedAt, 'timestamptz')},
      records = records + 1
    where id = ${subject})`);
  if (changes.snapshots.length > 0)
    parts.push(`new_snapshots as (
      insert into snapshots (repository_id, id)
      select ${subject}, unnest(${parameter(changes.snapshots, 'text[]')}) on conflict do nothing)`);
  const events = recorded.map(({ event, push }) => ({
    id: event,
    data: { repository, push },
  }));
  // Uses the clock of this server, because the time is compared with the one in the note (`record.ts`).
  parts.push(`events as (
    insert into events (id, type, namespace_id, subject, data, timestamp)
    select event.id, 'repository.pushed', ${parameter(namespaceId, 'text')}, ${subject}, event.data,
      ${parameter(new Date(), 'timestamptz')}
    from jsonb_array_elements(${parameter(JSON.stringify(events), 'jsonb')}) with ordinality as listed (entry, ordinal)
      cross join lateral jsonb_to_record(entry) as event (id text, data jsonb)
    order by ordinal)`);
  addAuditToStatement(
    statement,
    recorded.map(({ by, push: { ref_count, refs } }) => ({
      by,
      action: 'repository.push',
      namespaceIds: [namespaceId],
      subject: id,
      name,
      details: { ref_count, refs },
    })),
  );
  addEffectsToStatement(
    statement,
    recorded.flatMap(({ effect, commands: [command] }) =>
      effect && command ? [{ ...effect, result: command.after }] : [],
    ),
  );
  const triggers = recorded.flatMap(({ by, commands, triggers = [] }, i) => {
    // Only those that took effect.
    const isEffective = ({ ref, after }: PushTrigger) =>
      commands.some((command) => command.ref === ref && command.after === after);

    return triggers
      .filter(isEffective)
      .map((trigger, n) => ({ ...trigger, id: `${events[i]?.id}-${n}`, actor: by }));
  });
  if (triggers.length > 0)
    parts.push(`triggers as (
      insert into run_triggers (id, repository_id, ref, before, after, starts_run, may_create_jobs, actor)
      select t.id, ${subject}, t.ref, t.before, t.after, t."startsRun", t."mayCreateJobs", t.actor
      from jsonb_to_recordset(${parameter(JSON.stringify(triggers), 'jsonb')}) as t
        (id text, ref text, before text, after text, "startsRun" boolean, "mayCreateJobs" boolean, actor jsonb))`);
  const topic = parameter(eventNotification(namespaceId, id), 'text');
  await runStatement(
    tx,
    `with ${parts.join(', ')} select pg_notify('loam', ${topic})::text${triggers.length > 0 ? ", pg_notify('loam', 'runs')::text" : ''}`,
    values,
  );
}
