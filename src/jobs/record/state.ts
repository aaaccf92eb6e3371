/**
 * The state machine of a job: which moves are allowed, and what each move writes.
 *
 *   from      trigger                                        to          also
 *   (none)    the job is created                             queued      commit pinned, quota counted
 *   queued    the process of the attempt starts              running     started_at, the first time only
 *   queued    the attempt cannot be started                  failed      exit_code 125, the reason as a log line
 *   queued    the attempt is lost before its start           queued      loss_count + 1
 *   queued    the job is cancelled, or can never start       cancelled
 *   running   the process ends; the job has an output_path   running     time and cost stop, artifacts are stored
 *   running   exit code 0                                    succeeded   exit_code, time and cost
 *   running   exit code 0, artifacts cannot be stored        failed      exit_code 125, the reason as a log line
 *   running   exit code 0, a check of a metric fails         failed      the same, and check_results; never retried
 *   running   other exit code, retries left                  queued      retry_count + 1, after a delay
 *   running   other exit code, no retries left               failed      exit_code
 *   running   the same, and the job asks for a hold          running     held_at, held_until, held_exit_code
 *   held      a user releases it                             running     held_until, then its worker ends the process
 *   held      the process ends in any way, or is lost        failed      held_exit_code as exit_code
 *   running   the timeout expires                            timed_out   exit_code, never retried
 *   running   the attempt is lost, at most three times       queued      loss_count + 1, no retry used
 *   running   the attempt is lost once more                  failed      no exit_code
 *   both      its machine is drained or removed              queued      no loss, no retry used
 *   running   the job is cancelled                           cancelled   time and cost until now, or the end of the process
 *   running   the process is ended at the maximum cost       cancelled   exit_code, stop_reason; never retried
 *   running   its GPUs are idle for too long                 cancelled   stop_reason; as if a user cancelled it
 *   final     the job is deleted                             (none)      its journal is deleted too
 *
 * An attempt belongs to one worker. While the attempt holds the job (`attempt_id`), only that worker may move the job, except
 * that anyone with permission may cancel it. A cancelled or deleted job is not held any more: its worker is notified, ends the
 * process, and then only stores the rest of the log and the artifacts.
 *
 * `moveJob` and `commitMove` are the only way to change a status. They lock the row of the job before they write, so the
 * transactions of one job are serialized: journal entries become visible in the order of `seq`, and events in the order of
 * (xid, seq), because the xid is assigned after the lock. If several jobs share a transaction, the
 * first lock assigns the xid for all. Another transaction may then move one of the other jobs before that job is locked here:
 * it commits first but has the later xid. Only a cancellation or a lost attempt can do so, and then the worker's own move of
 * that job is dropped.
 */
import type pg from 'pg';
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { JobStatus } from '../../../prisma/generated/enums.ts';
import { newId } from '../../base/ids.ts';
import { type Db, withConnection } from '../../platform/database/client.ts';
import { toColumnName } from '../../platform/database/keyset.ts';
import {
  beginPipeline,
  createStatementParts,
  pipeline,
  runStatement,
  type StatementParts,
  type Transaction,
} from '../../platform/database/statement.ts';
import { batchTransactions, RUN_ALONE } from '../../platform/database/transaction-batcher.ts';
import { eventNotification, type NotifyPayload } from '../../platform/events/bus.ts';
import type { Handle } from '../../runners/runner.ts';
import { encodeStatusPage } from './journal-pages.ts';
import { PAGE_COLUMNS } from './page-columns.ts';
import { type JobEventData, type PayloadRow, payloadColumns, toJobPayload } from './payload.ts';
import { EVENT_REPOSITORY_NAME } from './repository-name.ts';
import { addUsage, type RunSpan, type UsageEntry } from './usage-ledger.ts';

const MOVES: Record<JobStatus, readonly JobStatus[]> = {
  queued: ['running', 'queued', 'failed', 'cancelled'],
  running: ['running', 'succeeded', 'failed', 'timed_out', 'queued', 'cancelled'],
  succeeded: [],
  failed: [],
  cancelled: [],
  timed_out: [],
};

export function isOver(status: JobStatus): boolean {
  return MOVES[status].length === 0;
}

/** The columns that are read under the lock, to decide on the move and to write its event. */
const lockedColumns = {
  ...payloadColumns,
  attemptId: true,
  createdById: true,
  watched: true,
  lossCount: true,
  timeoutMinutes: true,
  maxCost: true,
  holdOnFailureMinutes: true,
  heldAt: true,
  heldUntil: true,
  heldExitCode: true,
  progressSaid: true,
  nextSeq: true,
} as const satisfies Prisma.JobSelect;
export type LockedJob = Prisma.JobGetPayload<{ select: typeof lockedColumns }> & {
  /** The name of the namespace. */
  namespace: string;
};

const LOCK_JOBS = `
  select ${Object.keys(lockedColumns)
    .map(
      (key) => `${key === 'repo' ? EVENT_REPOSITORY_NAME : `j.${toColumnName(key)}`} as "${key}"`,
    )
    .join(', ')}, n.name as namespace
  from jobs j join namespaces n on n.id = j.namespace_id
    left join (repositories p join namespaces o on o.id = p.namespace_id) on p.id = j.repository_id
  where j.id = any ($1::text[]) order by j.id for update of j`;
const LOCK_SKIP_LOCKED = `${LOCK_JOBS} skip locked`;

/** The columns that a move may change, with their SQL types. */
const COLUMN_TYPES = {
  status: '"JobStatus"',
  progress: 'text',
  progressSaid: 'bool',
  attemptId: 'text',
  startedAt: 'timestamptz',
  completedAt: 'timestamptz',
  availableAt: 'timestamptz',
  runtimeSeconds: 'int',
  exitCode: 'int',
  retryCount: 'int',
  lossCount: 'int',
  artifactFiles: 'int',
  artifactBytes: 'bigint',
  artifactsOf: 'text',
  stopReason: 'text',
  checkResults: 'jsonb',
  outputs: 'jsonb',
  heldAt: 'timestamptz',
  heldUntil: 'timestamptz',
  heldExitCode: 'int',
  nextSeq: 'bigint',
} as const;
type JobChanges = Partial<
  Prisma.JobGetPayload<{ select: Record<keyof typeof COLUMN_TYPES, true> }>
>;

export type Move = {
  to: JobStatus;
  /** The new `progress`, unless the last progress that the program printed is kept. */
  phase: string;
  /** The time that the attempt ran, which is added to the job and to the ledger of its namespace. */
  ran?: RunSpan;
  /** The attempt that started or ended with this move. */
  attempt?: MovedAttempt;
  set?: Omit<JobChanges, 'status' | 'progress' | 'progressSaid' | 'completedAt' | 'nextSeq'>;
};

/** The changes of an attempt that are written together with the move of its job. */
type MovedAttempt = {
  id: string;
  startedAt?: Date;
  /** The handle with which the process is found again, and the kind of its runner. */
  started?: { handle: Handle; runner: string };
  /** The end of the process, while the attempt still stores its artifacts. */
  exited?: { at: Date; exitCode: number };
  ended?: { at: Date; outcome: string; exitCode: number };
};

/**
 * Locks the job and makes the move that `decide` returns; null means no move.
 * @returns the job before the move; null if it does not exist or was not moved
 */
export async function moveJob(tx: Db, id: string, decide: Decide): Promise<LockedJob | null> {
  const moved = await moveLocked(tx, await lockJob(tx, id), decide);
  if (!moved) return null;
  await addUsage(tx, [moved.used]);
  return moved.job;
}

/**
 * Like `moveJob`, in a transaction of its own, for the moves that every job makes. It uses the connection directly, because
 * Prisma's transactions took a tenth of this thread's time for a short job. It takes two round trips: one begins and locks, the
 * other writes and commits. Concurrent moves are batched into one transaction. If a move of the batch fails or its job is
 * locked, it is retried in a transaction of its own, and `decide` is called again.
 */
export function commitMove(pool: pg.Pool, id: string, decide: Decide): Promise<LockedJob | null> {
  return commits.getOrInsertComputed(pool, createMoveBatcher)({ id, decide });
}

type MoveRequest = { id: string; decide: Decide };
const commits = new WeakMap<pg.Pool, (request: MoveRequest) => Promise<LockedJob | null>>();
/** Maximum number of jobs in one transaction. With more, workers whose jobs end together wait for the disk before they claim. */
export const MAX_BATCHED_MOVES = 5;
/**
 * All statements of a move find rows by key, so each is planned once per connection, with index scans even while the table is
 * small. By default PostgreSQL plans a statement again for each number of keys, which took a third longer.
 */
const PLAN_BY_KEY =
  'set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off';
/**
 * Limits the wait for locks, for example for the row of a namespace that a transfer has locked. After the limit, each move of
 * the batch is retried alone with the same limit, so that moves in other namespaces continue. A wait for another batch of the
 * same namespace is shorter than the limit.
 */
const BEGIN = `begin; set local lock_timeout = '500ms'; ${PLAN_BY_KEY}`;

function createMoveBatcher(pool: pg.Pool) {
  return batchTransactions<MoveRequest, LockedJob | null>(
    {
      async runBatch(requests) {
        const moved = await commitMoves(pool, LOCK_SKIP_LOCKED, requests, BEGIN);
        return requests.map((request) =>
          moved.has(request) ? (moved.get(request) ?? null) : RUN_ALONE,
        );
      },
      async runAlone(request) {
        return (await commitMoves(pool, LOCK_JOBS, [request], BEGIN)).get(request) ?? null;
      },
    },
    MAX_BATCHED_MOVES,
  );
}

/** @returns the jobs that `lock` found, as they were before their move; null for a job that was not moved */
async function commitMoves(
  pool: pg.Pool,
  lock: string,
  requests: readonly MoveRequest[],
  begin: string,
): Promise<Map<MoveRequest, LockedJob | null>> {
  return withConnection(pool, async (client) => {
    const ids = requests.map(({ id }) => id);
    const rows = await beginPipeline<LockedJob>(client, lock, [ids], begin);
    const moved = new Map<MoveRequest, LockedJob | null>();
    await pipeline(client, async (tx) => {
      const used: UsageEntry[] = [];
      for (const row of rows.toSorted(byOwner)) {
        const request = requests.find(({ id }) => id === row.id) as MoveRequest;
        const move = await moveLocked(tx, parseLockedJob([row]), request.decide);
        moved.set(request, move?.job ?? null);
        if (move) used.push(move.used);
      }
      await addUsage(tx, used);
      await tx.query({ text: 'commit' });
    });
    return moved;
  });
}

/**
 * Locks jobs and runs `work` on them in one transaction, for a change that a user makes to many jobs. Jobs that another
 * transaction has locked are left out, so the change waits for nobody while it holds locks. So are jobs that another transaction
 * changed while these locks were taken: its xid may be the later one, and the events would be in the wrong order.
 * @param options.isWaiting waits for locks, for a single job
 * @returns the ids that were left out, or do not exist
 */
export async function withLockedJobs(
  pool: pg.Pool,
  ids: readonly string[],
  work: (client: pg.PoolClient, jobs: LockedJob[]) => Promise<unknown>,
  { isWaiting = false }: { isWaiting?: boolean } = {},
): Promise<string[]> {
  return withConnection(pool, async (client) => {
    const [before, rows] = await Promise.all([
      // This statement takes no lock, so the transaction gets its xid after it.
      beginPipeline<{ id: string; nextSeq: string }>(client, READ_SEQS, [ids], BEGIN_MANY),
      runStatement<LockedJob>(client, isWaiting ? LOCK_JOBS : LOCK_SKIP_LOCKED, [ids]),
    ]);
    const seqs = new Map(before.map(({ id, nextSeq }) => [id, nextSeq]));
    const jobs = rows
      .filter(({ id, nextSeq }) => isWaiting || seqs.get(id) === String(nextSeq))
      .map((row) => parseLockedJob([row]) as LockedJob);
    if (jobs.length > 0) await work(client, jobs);
    await client.query('commit');
    const locked = new Set(jobs.map(({ id }) => id));
    return ids.filter((id) => !locked.has(id));
  });
}

const BEGIN_MANY = `begin; ${PLAN_BY_KEY}`;
const READ_SEQS = 'select id, next_seq as "nextSeq" from jobs where id = any ($1::text[])';

/** Moves jobs that the caller has locked; see `moveJob`. */
export async function moveLockedJobs(
  tx: Transaction,
  jobs: readonly LockedJob[],
  decide: Decide,
): Promise<void> {
  const used: UsageEntry[] = [];
  for (const job of jobs.toSorted(byOwner)) {
    const move = await moveLocked(tx, job, decide);
    if (move) used.push(move.used);
  }
  await addUsage(tx, used);
}

/** All servers lock the counts of namespaces in this order; otherwise two servers could deadlock. */
function byOwner(a: LockedJob, b: LockedJob): number {
  const key = (job: LockedJob) => `${job.namespaceId} ${job.id}`;
  return key(a) < key(b) ? -1 : 1;
}

type Decide = (job: LockedJob, now: Date) => Move | null | Promise<Move | null>;

/** Makes a move without adding its usage to the ledger. The caller adds it last, because its locks must be taken last. */
async function moveLocked(
  tx: Transaction,
  job: LockedJob | null,
  decide: Decide,
): Promise<{ job: LockedJob; used: UsageEntry } | null> {
  if (!job) return null;
  const { id } = job;
  // The same time for the end of the job and the end of its last run.
  const now = new Date();
  const move = await decide(job, now);
  if (!move) return null;
  const { to, phase, ran, attempt, set } = move;
  if (!MOVES[job.status].includes(to))
    throw new Error(`a job cannot move from ${job.status} to ${to}`);
  const isStatusChange = to !== job.status;
  const endedAt = isOver(to) ? now : undefined;
  // The last progress of the program is kept at the end of the job and while artifacts are stored, unless the server has a
  // reason to end the job; other moves replace it.
  const keepsProgress =
    job.progressSaid &&
    set?.stopReason == null &&
    set?.heldUntil == null &&
    (isOver(to) || (to === 'running' && !isStatusChange));
  const changes: JobChanges = {
    status: to,
    ...(!keepsProgress && { progress: phase, progressSaid: false }),
    ...(to !== 'running' && { attemptId: null }),
    ...(endedAt && { completedAt: endedAt }),
    ...(ran && { runtimeSeconds: job.runtimeSeconds + ran.seconds }),
    ...(endedAt && job.heldUntil && { heldUntil: endOfHold(job.heldUntil, ran, endedAt) }),
    ...set,
    ...(isStatusChange && { nextSeq: job.nextSeq + 1n }),
  };
  const topics: NotifyPayload[] = [`job:${id}`];
  // The moves `running`, `succeeded` and `timed_out` are made by the job's worker itself, which need not be notified.
  if (to !== 'running' && to !== 'succeeded' && to !== 'timed_out')
    topics.push(statusTopic(id), 'queue');
  // The release of a held job.
  if (to === 'running' && job.heldAt && set?.heldUntil) topics.push(statusTopic(id));
  await writeMove(tx, job, changes, { isStatusChange, topics, attempt });
  return { job, used: { job, ran, endedAt } };
}

/** A hold ends at the latest with the process of its attempt. */
function endOfHold(planned: Date, ran: RunSpan | undefined, endedAt: Date): Date {
  const end = ran ? ran.from.getTime() + ran.seconds * 1_000 : endedAt.getTime();
  return new Date(Math.min(planned.getTime(), end));
}

/**
 * Writes a move in one statement instead of ten, because moves are a large part of the cost of a short job. The event
 * contains the job after the move.
 */
async function writeMove(
  tx: Transaction,
  job: LockedJob,
  changes: JobChanges,
  {
    isStatusChange,
    topics,
    attempt,
  }: { isStatusChange: boolean; topics: NotifyPayload[]; attempt?: MovedAttempt },
): Promise<void> {
  const statement = createStatementParts();
  const { parameter, parts, values } = statement;
  const id = parameter(job.id, 'text');
  const assignments = Object.entries(changes).map(
    ([key, value]) =>
      `${toColumnName(key)} = ${parameter(value, COLUMN_TYPES[key as keyof JobChanges])}`,
  );
  parts.push(`moved as (update jobs set ${assignments.join(', ')} where id = ${id})`);
  if (attempt) {
    const { startedAt, started, exited, ended } = attempt;
    const set = [
      startedAt && `started_at = ${parameter(startedAt, 'timestamptz')}`,
      started &&
        `handle = ${parameter(JSON.stringify(started.handle), 'jsonb')}, runner = ${parameter(started.runner, 'text')},
         heartbeat_at = now()`,
      exited &&
        `exited_at = ${parameter(exited.at, 'timestamptz')}, exit_code = ${parameter(exited.exitCode, 'int')}`,
      ended &&
        `ended_at = ${parameter(ended.at, 'timestamptz')}, outcome = ${parameter(ended.outcome, 'text')},
         exit_code = ${parameter(ended.exitCode, 'int')}`,
    ].filter(Boolean);
    const attemptId = parameter(attempt.id, 'text');
    parts.push(`attempt as (update job_attempts set ${set.join(', ')} where id = ${attemptId})`);
  }
  if (isStatusChange) {
    const after = { ...job, ...changes };
    addStatus(statement, id, after, job.namespace, job.nextSeq);
    if (job.watched) parts.push(`changed as (insert into job_changes (job_id) values (${id}))`);
    topics.push(eventNotification(job.namespaceId, job.id));
  }
  const names = parameter(topics, 'text[]');
  const notify = `select pg_notify('loam', topic)::text from unnest(${names}) topic`;
  await runStatement(tx, `with ${parts.join(', ')} ${notify}`, values);
}

/** Adds the new status to the journal and to the events. @param id the SQL parameter with the id of the job */
function addStatus(
  { parts, parameter }: StatementParts,
  id: string,
  job: PayloadRow,
  namespace: string,
  seq: bigint,
): void {
  const page = encodeStatusPage(job.status);
  parts.push(`page as (
    insert into journal_pages (job_id, ${PAGE_COLUMNS})
    values (${id}, ${parameter(seq, 'bigint')}, ${parameter(seq, 'bigint')}, 0,
      ${parameter(page.bytes, 'int')}, (select log_until from jobs where id = ${id}), true, false,
      ${parameter(page.data, 'bytea')}))`);
  parts.push(`event as (
    insert into events (id, type, namespace_id, subject, data)
    values (${parameter(newId('evt'), 'text')}, ${parameter(`job.${job.status}`, 'text')},
      ${parameter(job.namespaceId, 'text')}, ${id},
      ${parameter(JSON.stringify(eventData(job, namespace)), 'jsonb')}))`);
}

/**
 * Adds the first journal entries and events of new jobs, which the statement has as rows `v (id, name, event_id)`.
 * @param job all columns except these, which the jobs share
 * @returns the topics to notify
 */
export function addFirstStatuses(
  { parts, parameter }: StatementParts,
  job: PayloadRow,
  { namespace, firstId }: { namespace: string; firstId: string },
): NotifyPayload[] {
  const page = encodeStatusPage(job.status);
  parts.push(`page as (
    insert into journal_pages (job_id, ${PAGE_COLUMNS})
    select id, 1, 1, 0, ${parameter(page.bytes, 'int')}, null, true, false, ${parameter(page.data, 'bytea')} from v)`);
  const data = eventData(job, namespace);
  parts.push(`event as (
    insert into events (id, type, namespace_id, subject, data)
    select event_id, ${parameter(`job.${job.status}`, 'text')}, ${parameter(job.namespaceId, 'text')}, id,
      jsonb_build_object('repositoryId', ${parameter(data.repositoryId, 'text')},
        'job', ${parameter(JSON.stringify(data.job), 'jsonb')} || jsonb_build_object('id', id, 'name', name))
    from v order by id)`);
  return [eventNotification(job.namespaceId, firstId), 'queue'];
}

/** Notes that no attempt of a job may be open any more, for jobs that wait for that. */
export async function noteAttemptEnd(tx: Transaction, jobId: string): Promise<void> {
  await runStatement(
    tx,
    'insert into job_changes (job_id) select id from jobs where id = $1 and watched returning 1 as noted',
    [jobId],
  );
}

/** The topic for the worker of a job. The topic `job:<id>` would wake the worker with every batch of log lines. */
export function statusTopic(id: string): `job:${string}` {
  return `job:${id}/status`;
}

/** Locks jobs in the order of their ids. */
export async function lockJobs(tx: Db, ids: readonly string[]): Promise<LockedJob[]> {
  const rows = await runStatement<LockedJob>(tx, LOCK_JOBS, [ids]);
  return rows.flatMap((row) => parseLockedJob([row]) ?? []);
}

/** @returns null if the job does not exist */
export async function lockJob(tx: Db, id: string): Promise<LockedJob | null> {
  return parseLockedJob(await runStatement<LockedJob>(tx, LOCK_JOBS, [[id]]));
}

/** The driver returns large numbers as text. The price, an exact decimal, is left as text. */
function parseLockedJob([job]: LockedJob[]): LockedJob | null {
  if (!job) return null;
  const { nextSeq, artifactBytes } = job;
  const bytes = artifactBytes === null ? null : BigInt(artifactBytes);
  return { ...job, nextSeq: BigInt(nextSeq), artifactBytes: bytes };
}

/** Adds the events of jobs without a move, such as their deletion. @returns the topics to notify */
export function addEvents(
  { parts, parameter }: StatementParts,
  jobs: readonly LockedJob[],
  type: 'job.deleted',
): NotifyPayload[] {
  const rows = jobs.map((job) => ({
    id: newId('evt'),
    namespace_id: job.namespaceId,
    subject: job.id,
    data: eventData(job, job.namespace),
  }));
  parts.push(`event as (
    insert into events (id, type, namespace_id, subject, data)
    select id, '${type}', namespace_id, subject, data
    from jsonb_to_recordset(${parameter(JSON.stringify(rows), 'jsonb')})
      as event (id text, namespace_id text, subject text, data jsonb))`);
  return jobs.map(({ namespaceId, id }) => eventNotification(namespaceId, id));
}

function eventData(row: PayloadRow, namespace: string): JobEventData {
  return { repositoryId: row.repositoryId, job: toJobPayload(row, namespace) };
}

/** Maximum number of characters in `progress`. */
const MAX_PROGRESS = 1_000;

/** The text as `progress`. Texts of engines and jobs may have NUL or half of a surrogate pair, which PostgreSQL cannot store. */
export function toProgress(text: string): string {
  return toStorable(text.slice(0, MAX_PROGRESS));
}

export function toStorable(text: string): string {
  return text.replaceAll('\0', '\uFFFD').toWellFormed();
}

/** The texts of `progress` for jobs that do not print any progress. */
export const PHASES = {
  waiting: 'waiting for capacity',
  preparing: 'preparing',
  cloning: 'cloning the repository',
  inputs: 'copying inputs',
  checkpoint: 'restoring the checkpoint',
  caches: 'restoring caches',
  away: 'waiting for the container engine, which does not answer',
  running: 'running',
  storing: 'storing artifacts',
  checkpointing: 'storing the checkpoint',
  saving: 'saving caches',
  succeeded: 'succeeded',
  cancelled: 'cancelled',
  timed_out: 'timed out',
  failed: 'failed',
} as const;
