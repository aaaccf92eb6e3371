/**
 * The life of a job: who may move it, and what goes with a move.
 *
 *   from      what happens                                   to          besides
 *   (none)    it is created                                  queued      commit pinned, quota counted
 *   queued    the process of its attempt starts              running     started_at, the first time only
 *   queued    its attempt cannot be started                  failed      exit_code 125, the reason as a line
 *   queued    its attempt is lost before it started          queued      loss_count + 1
 *   queued    it is cancelled                                cancelled
 *   running   its process ends, and has an output_path       running     time and cost stand still, its artifacts are stored
 *   running   exit 0                                         succeeded   exit_code, time and cost
 *   running   exit 0, its artifacts cannot be kept           failed      exit_code 125, the reason as a line
 *   running   another exit, retries left                     queued      retry_count + 1, after a pause
 *   running   another exit, none left                        failed      exit_code
 *   running   it overran its timeout                         timed_out   exit_code, never retried
 *   running   its attempt is lost, at most three times       queued      loss_count + 1, no retry used
 *   running   its attempt is lost once more                  failed      no exit_code
 *   running   it is cancelled                                cancelled   time and cost until now, or the end of its process
 *   any end   it is deleted                                  (none)      the journal with it
 *
 * An attempt belongs to one worker. While it holds the job (`attempt_id`), that worker alone may move the
 * job, except that anyone with the right may cancel it. A job that was cancelled or deleted is held no more:
 * its worker finds out, ends the process, and only keeps what that still prints.
 *
 * `moveJob` is the one place where a status changes. The row is locked before anything else is written, so
 * the transactions of one job follow each other, and so do their numbers: journal entries become visible in
 * the order of `seq`, events in the order of (xid, seq), which takes its xid after the lock. Where several jobs
 * share a transaction, the first lock gives the xid to all: who moves another of them before its own lock, a moment later, is
 * first with a later xid. That is only who cancels it, or says that it is lost, and then its worker has nothing to move.
 */
import type pg from 'pg';
import type { Prisma } from '../../prisma/generated/client.ts';
import type { JobStatus } from '../../prisma/generated/enums.ts';
import { newId } from '../base/ids.ts';
import { onConnection } from '../platform/database/client.ts';
import { columnOf } from '../platform/database/keyset.ts';
import {
  beginPipeline,
  openParts,
  type Parts,
  pipeline,
  runStatement,
  type Transaction,
} from '../platform/database/statement.ts';
import { batchTransactions, RUN_ALONE } from '../platform/database/transaction-batcher.ts';
import { eventNotification, type Notification } from '../platform/events/bus.ts';
import { publish } from '../platform/events/outbox.ts';
import type { Handle } from '../runners/runner.ts';
import { PAGE_COLUMNS } from './logs/columns.ts';
import { statusPage } from './logs/pages.ts';
import { type JobEventData, type PayloadRow, payloadColumns, payloadOf } from './payload.ts';
import { EVENT_REPOSITORY_NAME } from './repository-name.ts';
import { addUsage, type RunSpan, type UsageEntry } from './usage.ts';

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

/** What decides about a move may look at this, and the event tells it; it is read under the lock. */
const lockedColumns = {
  ...payloadColumns,
  attemptId: true,
  createdById: true,
  lossCount: true,
  progressSaid: true,
  nextSeq: true,
} as const satisfies Prisma.JobSelect;
export type LockedJob = Prisma.JobGetPayload<{ select: typeof lockedColumns }> & {
  /** Its owner's name. */
  namespace: string;
};

const LOCK = `
  select ${Object.keys(lockedColumns)
    .map((key) => `${key === 'repo' ? EVENT_REPOSITORY_NAME : `j.${columnOf(key)}`} as "${key}"`)
    .join(', ')}, n.name as namespace
  from jobs j join namespaces n on n.id = j.namespace_id
    left join (repositories p join namespaces o on o.id = p.namespace_id) on p.id = j.repository_id
  where j.id = any ($1::text[]) order by j.id for update of j`;
const LOCK_SKIP_LOCKED = `${LOCK} skip locked`;

/** What a move may change, and the type of its column. */
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
  nextSeq: 'bigint',
} as const;
type Changes = Partial<Prisma.JobGetPayload<{ select: Record<keyof typeof COLUMN_TYPES, true> }>>;

export type Move = {
  to: JobStatus;
  /** In words, unless the program has said something of its own. */
  phase: string;
  /** What the attempt ran, which the job and the ledger of its namespace get. */
  ran?: RunSpan;
  /** The attempt that moves it, which has begun or ended. */
  attempt?: MovedAttempt;
  set?: Omit<Changes, 'status' | 'progress' | 'progressSaid' | 'completedAt' | 'nextSeq'>;
};

/** What is written down of an attempt with the move that it makes. */
export type MovedAttempt = {
  id: string;
  startedAt?: Date;
  /** With it, by which the work is found again. `runner`: the kind that has it. */
  begun?: { handle: Handle; runner: string };
  /** The end of its process alone. */
  exited?: { at: Date; exitCode: number };
  ended?: { at: Date; outcome: string; exitCode: number };
};

/**
 * Moves a job as `decide` says once it has the job's row to itself; with null nothing happens.
 * @returns the job before the move, or null when it is not there or was not moved.
 */
export async function moveJob(
  tx: Prisma.TransactionClient,
  id: string,
  decide: Decide,
): Promise<LockedJob | null> {
  const moved = await moveLocked(tx, await lockJob(tx, id), decide);
  if (!moved) return null;
  await addUsage(tx, [moved.used]);
  return moved.job;
}

/**
 * The same in a transaction of its own, for the moves that each job makes on its way: by a connection's own statements, because
 * Prisma's transactions took a tenth of this thread's time for a short job. It takes two round trips, one that begins and
 * locks, and one that writes and commits. What is to be moved at the same moment shares them; should one of those fail, or be
 * locked, `decide` is called again.
 */
export function commitMove(pool: pg.Pool, id: string, decide: Decide): Promise<LockedJob | null> {
  const commit = commits.get(pool) ?? openMoveBatcher(pool);
  commits.set(pool, commit);
  return commit({ id, decide });
}

type MoveRequest = { id: string; decide: Decide };
const commits = new WeakMap<pg.Pool, (asked: MoveRequest) => Promise<LockedJob | null>>();
/** Jobs of one transaction. With more, workers whose jobs end together wait for the disk instead of claiming meanwhile. */
export const MOST_MOVES = 5;
/**
 * Each of its statements finds rows by their keys: so a connection plans it once, and by an index, however small the table was
 * then. By itself PostgreSQL plans for as many keys as there are, each time, which took a third as long again.
 */
const PLAN_BY_KEY = 'set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off';
/**
 * How long jobs wait for what somebody has locked, such as the row of a namespace that is being transferred. Then each waits by
 * itself for as long, again and again, and those of other namespaces go on. Groups of one namespace wait for each other's
 * commits, which take less.
 */
const BEGIN = `begin; set local lock_timeout = '500ms'; ${PLAN_BY_KEY}`;

function openMoveBatcher(pool: pg.Pool) {
  return batchTransactions<MoveRequest, LockedJob | null>(
    {
      async together(asked) {
        const moved = await commitMoves(pool, LOCK_SKIP_LOCKED, asked, BEGIN);
        return asked.map((one) => (moved.has(one) ? (moved.get(one) ?? null) : RUN_ALONE));
      },
      async alone(one) {
        return (await commitMoves(pool, LOCK, [one], BEGIN)).get(one) ?? null;
      },
    },
    MOST_MOVES,
  );
}

/** @returns the jobs that `lock` has found, as they were, or null where they were not moved */
async function commitMoves(
  pool: pg.Pool,
  lock: string,
  asked: readonly MoveRequest[],
  begin: string,
): Promise<Map<MoveRequest, LockedJob | null>> {
  return onConnection(pool, async (client) => {
    const ids = asked.map(({ id }) => id);
    const rows = await beginPipeline<LockedJob>(client, lock, [ids], begin);
    const moved = new Map<MoveRequest, LockedJob | null>();
    await pipeline(client, async (tx) => {
      const used: UsageEntry[] = [];
      for (const row of rows.toSorted(byOwner)) {
        const one = asked.find(({ id }) => id === row.id) as MoveRequest;
        const done = await moveLocked(tx, parseLockedJob([row]), one.decide);
        moved.set(one, done?.job ?? null);
        if (done) used.push(done.used);
      }
      await addUsage(tx, used);
      await tx.query({ text: 'commit' });
    });
    return moved;
  });
}

/** What is counted of owners is locked in one order by all, or two servers would wait for each other. */
function byOwner(a: LockedJob, b: LockedJob): number {
  const place = (job: LockedJob) => `${job.namespaceId} ${job.id}`;
  return place(a) < place(b) ? -1 : 1;
}

type Decide = (job: LockedJob, now: Date) => Move | null | Promise<Move | null>;

/** Leaves what was used to be added, after which nothing is locked until the commit. */
async function moveLocked(
  tx: Transaction,
  job: LockedJob | null,
  decide: Decide,
): Promise<{ job: LockedJob; used: UsageEntry } | null> {
  if (!job) return null;
  const { id } = job;
  // One moment for the end of the job and for what it ran until then.
  const now = new Date();
  const move = await decide(job, now);
  if (!move) return null;
  const { to, phase, ran, attempt, set } = move;
  if (!MOVES[job.status].includes(to))
    throw new Error(`a job cannot go from ${job.status} to ${to}`);
  const isNew = to !== job.status;
  const endedAt = isOver(to) ? now : undefined;
  const changes: Changes = {
    status: to,
    // What the program said last outlives its end, and gives way to the phase of what comes next.
    ...(!((isOver(to) || (to === 'running' && !isNew)) && job.progressSaid) && {
      progress: phase,
      progressSaid: false,
    }),
    ...(to !== 'running' && { attemptId: null }),
    ...(endedAt && { completedAt: endedAt }),
    ...(ran && { runtimeSeconds: job.runtimeSeconds + ran.seconds }),
    ...set,
    ...(isNew && { nextSeq: job.nextSeq + 1n }),
  };
  const topics: Notification[] = [`job:${id}`];
  // Its own worker makes these moves, and knows when it has room again; it hears of those that others make.
  if (to !== 'running' && to !== 'succeeded' && to !== 'timed_out')
    topics.push(statusTopic(id), 'queue');
  await writeMove(tx, job, changes, { isNew, topics, attempt });
  return { job, used: { job, ran, endedAt } };
}

/**
 * All that a move writes, in one statement: it is a large part of what a short job costs, and took ten. The event holds the
 * job as it is afterwards.
 */
async function writeMove(
  tx: Transaction,
  job: LockedJob,
  changes: Changes,
  { isNew, topics, attempt }: { isNew: boolean; topics: Notification[]; attempt?: MovedAttempt },
): Promise<void> {
  const statement = openParts();
  const { parameter, parts, values } = statement;
  const id = parameter(job.id, 'text');
  const assignments = Object.entries(changes).map(
    ([key, value]) => `${columnOf(key)} = ${parameter(value, COLUMN_TYPES[key as keyof Changes])}`,
  );
  parts.push(`moved as (update jobs set ${assignments.join(', ')} where id = ${id})`);
  if (attempt) {
    const { startedAt, begun, exited, ended } = attempt;
    const set = [
      startedAt && `started_at = ${parameter(startedAt, 'timestamptz')}`,
      begun &&
        `handle = ${parameter(JSON.stringify(begun.handle), 'jsonb')}, runner = ${parameter(begun.runner, 'text')},
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
  if (isNew) {
    const after = { ...job, ...changes };
    addStatus(statement, id, after, job.namespace, job.nextSeq);
    topics.push(eventNotification(job.namespaceId, job.id));
  }
  const names = parameter(topics, 'text[]');
  const tell = `select pg_notify('loam', topic)::text from unnest(${names}) topic`;
  await runStatement(tx, `with ${parts.join(', ')} ${tell}`, values);
}

/** The status that a job has now, in its journal and as an event. `id`: the parameter that holds its id. */
function addStatus(
  { parts, parameter }: Parts,
  id: string,
  job: PayloadRow,
  namespace: string,
  seq: bigint,
): void {
  const page = statusPage(job.status);
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

/** Adds what goes with a new job to the statement that makes it: its first entry and its first event. @returns who is woken */
export function addFirstStatus(statement: Parts, job: PayloadRow, namespace: string): Notification[] {
  const id = statement.parameter(job.id, 'text');
  addStatus(statement, id, job, namespace, 1n);
  return [eventNotification(job.namespaceId, job.id), 'queue'];
}

/** What a worker that looks after a job listens to: its log wakes the plain topic far too often. */
export function statusTopic(id: string): `job:${string}` {
  return `job:${id}/status`;
}

/** @returns null when there is no such job (any more). */
export async function lockJob(tx: Prisma.TransactionClient, id: string): Promise<LockedJob | null> {
  return parseLockedJob(await runStatement<LockedJob>(tx, LOCK, [[id]]));
}

/** A connection gives large numbers as text; of the price, which is exact, the text is all that is looked at. */
function parseLockedJob([job]: LockedJob[]): LockedJob | null {
  if (!job) return null;
  const { nextSeq, artifactBytes } = job;
  const bytes = artifactBytes === null ? null : BigInt(artifactBytes);
  return { ...job, nextSeq: BigInt(nextSeq), artifactBytes: bytes };
}

/** Writes an event of a job that is no move: the first or the last one. `namespace`: its name. */
export async function publishJobEvent(
  tx: Prisma.TransactionClient,
  row: PayloadRow,
  namespace: string,
  type: `job.${JobStatus | 'deleted'}` = `job.${row.status}`,
): Promise<void> {
  const { id, namespaceId } = row;
  await publish(tx, { type, namespaceId, subject: id, data: eventData(row, namespace) });
}

function eventData(row: PayloadRow, namespace: string): JobEventData {
  return { repositoryId: row.repositoryId, job: payloadOf(row, namespace) };
}

/** Characters of `progress`. */
export const MAX_PROGRESS = 1_000;

/** What we say about a job that says nothing of itself. */
export const PHASES = {
  waiting: 'waiting for capacity',
  preparing: 'preparing',
  cloning: 'cloning the repository',
  away: 'waiting for the container engine, which does not answer',
  running: 'running',
  storing: 'storing artifacts',
  succeeded: 'succeeded',
  cancelled: 'cancelled',
  timed_out: 'timed out',
  failed: 'failed',
} as const;
