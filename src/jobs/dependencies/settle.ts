/**
 * One step of the loop (`loop.ts`): the consequences of the changes of some jobs, in one transaction.
 *
 * 1. Jobs that need one of these are handled in later steps.
 * 2. Slots of jobs that are over, without an open attempt, are released.
 * 3. Blocked jobs among these: needs that can no longer be met cancel the job, needs that are met put it in line for its slots.
 * 4. Groups of these jobs: free slots go to the waiting jobs with the smallest ids. A job takes its slots of both groups at once
 *    or none, so that two jobs never wait for each other.
 * 5. The decided jobs are locked and written. Jobs that may be running are cancelled in transactions of their own before that.
 */
import type pg from 'pg';
import type { GroupConflict } from '../../../prisma/generated/enums.ts';
import type { Db } from '../../platform/database/client.ts';
import { runStatement } from '../../platform/database/statement.ts';
import { cancelLockedJobs } from '../record/cancel.ts';
import { lockJobs, PHASES, withLockedJobs } from '../record/state.ts';
import {
  describeNeeds,
  describeReplaced,
  describeSlots,
  describeUnmet,
  isNeedMet,
  listOpenNeeds,
  type NeedOutcome,
  SKIPPED,
} from './groups.ts';

/** Maximum number of jobs of a group that are looked at in one step. */
const CANDIDATES = 200;

/** What one step decides. */
type Decisions = {
  /** Job → the reason, as its `progress`. */
  cancel: Map<string, string>;
  unblock: Set<string>;
  /** Job → what it waits for. */
  progress: Map<string, string>;
  /** Jobs to look at again, because this step was not enough. */
  again: Set<string>;
};

/** @param beforeEnd runs before the locks that workers wait for are taken */
export async function settleJobs(
  pool: pg.Pool,
  tx: Db,
  ids: readonly string[],
  beforeEnd: () => Promise<void>,
): Promise<void> {
  const decisions: Decisions = {
    cancel: new Map(),
    unblock: new Set(),
    progress: new Map(),
    again: new Set(),
  };
  await runStatement(tx, ADD_DEPENDENTS, [ids]);
  const released = await runStatement<{ key: string }>(tx, RELEASE_SLOTS, [ids]);
  const ready = await settleNeeds(tx, ids, decisions);
  if (ready.length > 0) await runStatement(tx, JOIN_LINES, [ready]);
  const own = await runStatement<{ key: string; jobId: string }>(tx, READ_GROUPS, [ids]);
  const withSlots = new Set(own.map(({ jobId }) => jobId));
  for (const id of ready) if (!withSlots.has(id)) decisions.unblock.add(id);
  const keys = [...new Set([...released, ...own].map(({ key }) => key))];
  if (keys.length > 0) await fillGroups(tx, keys, ids, decisions);
  await write(pool, tx, decisions, beforeEnd);
}

/** Jobs of the page itself are handled in this step; if they end now, that is a change of its own. */
const ADD_DEPENDENTS = `
  insert into job_changes (job_id)
  select distinct n.job_id from job_needs n join jobs j on j.id = n.job_id
  where n.needed_id = any ($1::text[]) and j.blocked and j.status = 'queued' and n.job_id <> all ($1::text[])
    and not exists (select from jobs o where o.id = n.needed_id and o.status in ('queued', 'running'))
  returning 1 as added`;

const RELEASE_SLOTS = `
  delete from job_slots s where job_id = any ($1::text[])
    and not exists (select from jobs j where j.id = s.job_id and j.status in ('queued', 'running'))
    and not exists (select from job_attempts a where a.job_id = s.job_id and a.ended_at is null)
  returning group_key as key`;

/** A row for each need; for a job without needs, one row without names. */
const READ_NEEDS = `
  select j.id, j.progress, n.condition, n.run_job as "runJob",
    coalesce(array_agg(n.needed_name order by n.needed_id) filter (where n.job_id is not null), '{}') as names,
    array_agg(coalesce(o.status, n.ended_as)::text order by n.needed_id) as statuses
  from jobs j left join job_needs n on n.job_id = j.id left join jobs o on o.id = n.needed_id
  where j.id = any ($1::text[]) and j.blocked and j.status = 'queued'
  group by j.id, n.condition, n.run_job, coalesce(n.run_job, n.needed_id) order by min(n.needed_id)`;

type NeedRow = NeedOutcome & { id: string; progress: string };

/** @returns the jobs whose needs are met */
async function settleNeeds(
  tx: Db,
  ids: readonly string[],
  decisions: Decisions,
): Promise<string[]> {
  const rows = await runStatement<NeedRow>(tx, READ_NEEDS, [ids]);
  const ready: string[] = [];
  for (const [id, needs] of Map.groupBy(rows, (row) => row.id)) {
    const unmet = needs.find(({ condition, statuses }) => isNeedMet(condition, statuses) === false);
    const open = needs.flatMap(listOpenNeeds);
    if (unmet) decisions.cancel.set(id, describeUnmet(unmet));
    else if (open.length === 0) ready.push(id);
    else {
      const progress = describeNeeds(open);
      if (progress !== needs[0]?.progress) decisions.progress.set(id, progress);
    }
  }
  return ready;
}

const JOIN_LINES = `
  update job_slots set state = 'waiting' where job_id = any ($1::text[]) and state = 'pending'
  returning job_id`;

const READ_GROUPS = `
  select group_key as key, job_id as "jobId" from job_slots where job_id = any ($1::text[])`;

type Candidate = {
  jobId: string;
  key: string;
  unit: string;
  maxRunning: number;
  onConflict: GroupConflict;
};
/** The units that hold a group. `unit` is one of them. */
type Holders = { count: number; unit: string | null };

/** The first waiting jobs of each group, and those among the given jobs: each with all its slots, also in other groups. */
const READ_CANDIDATES = `
  with found as (
    select w.job_id from unnest($1::text[]) as k (key) cross join lateral (
      select job_id from job_slots where group_key = k.key and state = 'waiting'
      order by job_id limit ${CANDIDATES}
    ) w
    union select job_id from job_slots where job_id = any ($2::text[]) and state = 'waiting'
  )
  select s.job_id as "jobId", s.group_key as key, s.unit,
    s.max_running as "maxRunning", s.on_conflict as "onConflict"
  from found join job_slots s using (job_id) join jobs j on j.id = s.job_id
  where j.blocked and j.status = 'queued'
  order by s.job_id`;

const READ_HOLDERS = `
  select group_key as key, count(distinct unit)::int as count, min(unit) as unit from job_slots
  where group_key = any ($1::text[]) and state = 'holding' group by group_key`;

/** The newest waiting job of each group that replaces the jobs before it. */
const READ_REPLACING = `
  select w.job_id as "jobId", k.key, w.unit, j.name from unnest($1::text[]) as k (key) cross join lateral (
    select job_id, unit from job_slots
    where group_key = k.key and state = 'waiting' and on_conflict = 'cancel_running'
    order by job_id desc limit 1
  ) w join jobs j on j.id = w.job_id and j.blocked and j.status = 'queued'`;

const READ_REPLACED = `
  select s.job_id as "jobId" from job_slots s join jobs j on j.id = s.job_id
  where s.group_key = $1 and s.job_id < $2 and s.unit <> $3 and j.status in ('queued', 'running')
  order by s.job_id limit ${CANDIDATES}`;

type Replacing = { jobId: string; key: string; unit: string; name: string };

async function fillGroups(
  tx: Db,
  keys: readonly string[],
  ids: readonly string[],
  decisions: Decisions,
): Promise<void> {
  const replacing = await runStatement<Replacing>(tx, READ_REPLACING, [keys]);
  for (const { key, jobId, unit, name } of replacing) {
    const replaced = await runStatement<{ jobId: string }>(tx, READ_REPLACED, [key, jobId, unit]);
    for (const one of replaced) decisions.cancel.set(one.jobId, describeReplaced(name));
    if (replaced.length === CANDIDATES) decisions.again.add(jobId);
  }
  const rows = await runStatement<Candidate>(tx, READ_CANDIDATES, [keys, ids]);
  const groups = await readHolders(tx, rows);
  const granted: string[] = [];
  const page = new Set(ids);
  for (const [jobId, slots] of Map.groupBy(rows, (row) => row.jobId)) {
    if (decisions.cancel.has(jobId)) continue;
    const full = slots.filter((slot) => !hasRoom(slot, groups) || isReplaced(slot, replacing));
    if (full.length === 0) {
      for (const slot of slots) hold(slot, groups);
      granted.push(jobId);
      decisions.unblock.add(jobId);
    } else if (full.some(({ onConflict }) => onConflict === 'skip'))
      decisions.cancel.set(jobId, SKIPPED);
    else if (page.has(jobId))
      decisions.progress.set(
        jobId,
        describeSlots(slots.map((slot) => ({ ...slot, groupKey: slot.key }))),
      );
  }
  if (granted.length === 0) return;
  await runStatement(tx, TAKE_SLOTS, [granted]);
  for (const slots of Map.groupBy(rows, ({ key }) => key).values()) {
    // More jobs than were read may have a free slot.
    const last = slots.findLast(({ jobId }) => decisions.unblock.has(jobId));
    if (slots.length >= CANDIDATES && last) decisions.again.add(last.jobId);
  }
}

const TAKE_SLOTS = `
  update job_slots set state = 'holding' where job_id = any ($1::text[]) returning job_id`;

async function readHolders(tx: Db, rows: readonly Candidate[]): Promise<Map<string, Holders>> {
  const keys = [...new Set(rows.map(({ key }) => key))];
  const found = await runStatement<Holders & { key: string }>(tx, READ_HOLDERS, [keys]);
  return new Map(found.map(({ key, count, unit }) => [key, { count, unit }]));
}

/** A unit that already holds the group takes no further slot. Only in groups for one unit has a unit several jobs. */
function hasRoom({ key, unit, maxRunning }: Candidate, groups: Map<string, Holders>): boolean {
  const holders = groups.get(key);
  if (!holders) return true;
  return holders.count < maxRunning || (maxRunning === 1 && holders.unit === unit);
}

function hold({ key, unit }: Candidate, groups: Map<string, Holders>): void {
  const { count, unit: holder } = groups.get(key) ?? { count: 0, unit: null };
  groups.set(key, { count: holder === unit ? count : count + 1, unit });
}

/** A job that another one replaces gets no slot, also when its cancellation is left to a later step. */
function isReplaced({ key, unit, jobId }: Candidate, replacing: readonly Replacing[]): boolean {
  return replacing.some((one) => one.key === key && one.unit !== unit && jobId < one.jobId);
}

async function write(
  pool: pg.Pool,
  tx: Db,
  { cancel, unblock, progress, again }: Decisions,
  beforeEnd: () => Promise<void>,
): Promise<void> {
  if (cancel.size > 0) await cancelUnblocked(pool, tx, cancel);
  const jobs = cancel.size > 0 ? await lockJobs(tx, [...cancel.keys()]) : [];
  const unblocked = await runStatement<{ namespaceId: string }>(tx, UNBLOCK, [
    [...unblock],
    PHASES.waiting,
  ]);
  if (progress.size > 0)
    await runStatement(tx, SET_PROGRESS, [[...progress.keys()], [...progress.values()]]);
  if (again.size > 0) await runStatement(tx, LOOK_AGAIN, [[...again]]);
  await beforeEnd();
  // Blocked jobs have no attempt.
  const cancelled = await cancelLockedJobs(tx, jobs, { reason: ({ id }) => cancel.get(id) });
  // The commit changes the counts of these namespaces. Everyone locks them in this order.
  const changed = [...cancelled.map(({ job }) => job), ...unblocked];
  const namespaces = changed.map(({ namespaceId }) => namespaceId);
  if (namespaces.length > 0) await runStatement(tx, LOCK_NAMESPACES, [[...new Set(namespaces)]]);
}

/**
 * Cancels the jobs that are not blocked, each in a transaction of its own: a worker may move them meanwhile, and this transaction
 * has its xid already, so its events would come before the event of that move. If this transaction is rolled back, the next one
 * finds these jobs cancelled.
 */
async function cancelUnblocked(
  pool: pg.Pool,
  tx: Db,
  cancel: ReadonlyMap<string, string>,
): Promise<void> {
  const unblocked = await runStatement<{ id: string }>(
    tx,
    `select id from jobs where id = any ($1::text[]) and not blocked and status in ('queued', 'running')`,
    [[...cancel.keys()]],
  );
  for (const { id } of unblocked)
    await withLockedJobs(
      pool,
      [id],
      (client, jobs) => cancelLockedJobs(client, jobs, { reason: () => cancel.get(id) }),
      { isWaiting: true },
    );
}

/** The `where` is checked again under the lock of the row: the job may have been cancelled meanwhile. */
const UNBLOCK = `
  with unblocked as (
    update jobs set blocked = false, available_at = now(), progress = $2
    where id = any ($1::text[]) and blocked and status = 'queued'
    returning id, namespace_id
  ), notified as (
    select pg_notify('loam', topic)::text from (
      select 'queue' as topic from unblocked union select 'job:' || id from unblocked
    ) topics
  )
  select namespace_id as "namespaceId", (select count(*) from notified) from unblocked`;

const SET_PROGRESS = `
  with changed as (
    update jobs set progress = p.progress from unnest($1::text[], $2::text[]) as p (id, progress)
    where jobs.id = p.id and blocked and status = 'queued' and jobs.progress <> p.progress
    returning jobs.id
  )
  select pg_notify('loam', 'job:' || id)::text from changed`;

const LOOK_AGAIN = `
  insert into job_changes (job_id) select unnest($1::text[]) returning job_id`;

const LOCK_NAMESPACES = `
  select namespace_id from queue_shares where namespace_id = any ($1::text[])
  order by namespace_id for update`;
