/**
 * What pushes read and write of the database, by hand: as Prisma's statements and transactions it was a third of what the
 * server's thread has to do for a small push.
 */

import type pg from 'pg';
import type { Plan } from '../../../prisma/generated/enums.ts';
import { newId } from '../../base/ids.ts';
import type { Command } from '../../git/transport/hooks.ts';
import type { Actor } from '../../identity/audit.ts';
import { recordIn } from '../../identity/audit.ts';
import { columnOf } from '../../platform/database/keyset.ts';
import {
  beginPipeline,
  openParts,
  type Runs,
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
import type { Measures } from './measure.ts';

/** The note of a push that was let pass and is not recorded yet. */
export type BegunPush = {
  kind: 'push';
  /**
   * The id of its event: a note that outlived its record, because the server was killed before
   * it was removed, is known by it. Notes of earlier versions have none.
   */
  event?: string;
  pusher: string;
  /** For the audit log. Notes of earlier versions have none. */
  by?: Actor;
  commands: Command[];
  /** When it was let pass, as ISO 8601. */
  at: string;
};

/** A push to record. `updated` is what git said took effect; null when it could not say. */
export type Pushed = BegunPush & {
  updated: Command[] | null;
  /** It can be looked at again later. */
  canWait?: boolean;
};

/** Of a repository's namespace. `storageBytes`: with what is reserved. */
export type Room = { plan: Plan; storageBytes: bigint };

/** @returns null when the repository is gone, as all that read here */
export async function readRoom(pool: pg.Pool, id: string): Promise<Room | null> {
  const text = `select n.plan, n.storage_bytes + ${RESERVED_BYTES} as "storageBytes"
    from repositories r join namespaces n on n.id = r.namespace_id where r.id = $1`;
  const { rows } = await pool.query<Room>({ name: 'loam-push-room', text, values: [id] });
  return rows.map((row) => ({ ...row, storageBytes: BigInt(row.storageBytes) }))[0] ?? null;
}

export type HeededRule = Omit<BranchRule, 'updatedAt'>;

/** What the judge of a push heeds. */
export type Judged = {
  name: string;
  defaultBranch: string;
  branchProtection: boolean;
  secretScanning: boolean;
  namespaceId: string;
  plan: Plan;
  rules: HeededRule[];
  /** Files that others have locked: path → the owner's name. */
  locks: ReadonlyMap<string, string>;
};

const JUDGED = `
  select r.name, r.default_branch as "defaultBranch", r.branch_protection as "branchProtection",
    r.secret_scanning as "secretScanning", r.namespace_id as "namespaceId", n.plan,
    coalesce((
      select json_agg(json_build_object('pattern', pattern, 'pushRole', push_role, 'pusherIds', pusher_ids,
        'allowsForcePushes', allows_force_pushes, 'allowsDeletions', allows_deletions) order by pattern)
      from branch_rules where repository_id = r.id
    ), '[]') as rules,
    coalesce((
      select json_agg(json_build_array(lock.path, owner.username))
      from file_locks lock join users owner on owner.id = lock.owner_id
      where lock.repository_id = r.id and ($2::text is null or lock.owner_id <> $2)
    ), '[]') as locks
  from repositories r join namespaces n on n.id = r.namespace_id where r.id = $1`;

/** @param userId null: a pusher that can own no lock */
export async function readJudged(
  pool: pg.Pool,
  id: string,
  userId: string | null,
): Promise<Judged | null> {
  const { rows } = await pool.query({
    name: 'loam-push-judged',
    text: JUDGED,
    values: [id, userId],
  });
  const [row] = rows;
  if (!row) return null;
  const { locks, ...judged } = row;
  return { ...judged, locks: new Map(locks) };
}

/** The move of refs that an event tells of. */
export type ToldMove = { refs: RefPayload[]; at: Date };
/** `told`: the latest first. */
export type Recorded = {
  defaultBranch: string;
  branchCount: number;
  records: number;
  told: ToldMove[];
};

const RECORDED = `
  select r.default_branch as "defaultBranch", r.branch_count as "branchCount", r.records,
    coalesce((
      select json_agg(json_build_object('refs', coalesce(data -> 'push' -> 'refs', data -> 'refs', '[]'),
        'at', timestamp) order by xid desc, seq desc)
      from (
        select * from events where subject = $1 and type = 'repository.pushed'
        order by xid desc, seq desc limit $2
      ) latest where timestamp >= $3
    ), '[]') as told
  from repositories r where r.id = $1`;

/** With the moves that the last `limit` events tell of, as far as they are as young as `since`. */
export async function readRecorded(
  pool: pg.Pool,
  id: string,
  { since, limit }: { since: Date; limit: number },
): Promise<Recorded | null> {
  const values = [id, limit, since];
  const { rows } = await pool.query({ name: 'loam-push-recorded', text: RECORDED, values });
  const [row] = rows;
  if (!row) return null;
  const told = row.told.map(({ refs, at }: { refs: RefPayload[]; at: string }) => ({
    refs,
    at: new Date(at),
  }));
  return { ...row, told };
}

export type LockedRow = PayloadRow & {
  namespaceId: string;
  /** The owner's name. */
  namespace: string;
  records: number;
  largeBytes: bigint;
  /** Of the events that were asked for, those that are there. */
  written: string[];
};

const COLUMNS = Object.keys(payloadColumns)
  .map((field) => `r.${columnOf(field)} as "${field}"`)
  .join(', ');

/**
 * The second parameter has ids of events as JSON. Those that a transaction writes which this one waits for are not seen:
 * it has changed `records`, which is.
 */
const LOCK = `
  select ${COLUMNS}, r.namespace_id as "namespaceId", n.name as namespace, r.records,
    r.large_bytes as "largeBytes",
    array(select id from events where id in (select jsonb_array_elements_text($2::jsonb))) as written
  from repositories r join namespaces n on n.id = r.namespace_id
  where r.id = $1 for no key update of r`;

/** Begins a transaction and locks the repository; other records of it wait for the end. */
export async function beginLocked(
  client: pg.PoolClient,
  id: string,
  pushes: readonly Pushed[],
): Promise<LockedRow | null> {
  const events = JSON.stringify(pushes.flatMap(({ event }) => event ?? []));
  const [row] = await beginPipeline<LockedRow>(client, LOCK, [id, events]);
  if (!row) return null;
  return { ...row, sizeBytes: BigInt(row.sizeBytes), largeBytes: BigInt(row.largeBytes) };
}

type Changes = Omit<Measures, 'refs'> & { pushedAt: Date; updatedAt: Date };

/** The row as it is from now on, an event and an entry in the audit log for each push, oldest first: one statement. */
export async function writeRecord(
  tx: Runs,
  locked: LockedRow,
  changes: Changes,
  pushes: readonly Pushed[],
): Promise<void> {
  const { id, name, namespaceId } = locked;
  const sizeBytes = BigInt(changes.sizeBytes) + locked.largeBytes;
  const repository = payloadOf({ ...locked, ...changes, sizeBytes }, locked.namespace);
  const told = pushes.map((push) => ({ ...push, push: pushPayloadOf(push.pusher, push.commands) }));
  const statement = openParts();
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
  const events = told.map(({ event, push }) => ({
    id: event ?? newId('evt'),
    data: { repository, push },
  }));
  // The time of this server, as that of the note which it is compared with (`record.ts`).
  parts.push(`events as (
    insert into events (id, type, namespace_id, subject, data, timestamp)
    select event.id, 'repository.pushed', ${parameter(namespaceId, 'text')}, ${subject}, event.data,
      ${parameter(new Date(), 'timestamptz')}
    from jsonb_array_elements(${parameter(JSON.stringify(events), 'jsonb')}) with ordinality as listed (one, place)
      cross join lateral jsonb_to_record(one) as event (id text, data jsonb)
    order by place)`);
  recordIn(
    statement,
    told.map(({ pusher, by, push: { ref_count, refs } }) => ({
      by: by ?? { userId: null, username: pusher, credential: null },
      action: 'repository.push',
      namespaceIds: [namespaceId],
      subject: id,
      name,
      details: { ref_count, refs },
    })),
  );
  const topic = parameter(eventNotification(namespaceId, id), 'text');
  await runStatement(
    tx,
    `with ${parts.join(', ')} select pg_notify('loam', ${topic})::text`,
    values,
  );
}
