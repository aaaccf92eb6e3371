/**
 * Streams of logs and job events, for GraphQL subscriptions and server-sent events: checks permissions, finds the start, and
 * yields the events.
 */
import type pg from 'pg';
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { JobStatus } from '../../../prisma/generated/enums.ts';
import { sleep } from '../../base/backoff.ts';
import { AppError, invalid } from '../../base/errors.ts';
import { anyTargetIn, demand, type Viewer } from '../../identity/permissions.ts';
import type { Rechecks } from '../../identity/rechecks.ts';
import { type AccessRule, whileAllowed } from '../../identity/rechecks.ts';
import type { Db } from '../../platform/database/client.ts';
import { retryWhileUnavailable } from '../../platform/database/outage.ts';
import type { Bus } from '../../platform/events/bus.ts';
import type { OutboxEvent } from '../../platform/events/read.ts';
import {
  parseFollowedNamespaces,
  serverStoppingError,
  subscribeToEvents,
} from '../../platform/events/read.ts';
import { followJournal } from '../logs/follow.ts';
import { findStreamStart, type LogQuery, resolveTail } from '../logs/read.ts';
import type { JournalEntry } from '../record/journal-pages.ts';
import type { JobEventData } from '../record/payload.ts';
import { isOver } from '../record/state.ts';
import { type AccessRow, findNamespace, getJob, type JobKey } from './jobs.ts';

type Deps = { db: Db; pool: pg.Pool; bus: Bus; rechecks: Rechecks };

/** `seq` is the number of the last entry. */
export type EndEvent = { kind: 'end'; seq: number; status: JobStatus; exitCode: number | null };
/** An event of a log stream: an entry of the journal, or the end. */
export type LogEvent = JournalEntry | EndEvent;
/** The entries of one read. All followers of a job get the same array, so its encoding can be shared. */
export type LogEventBatch = readonly LogEvent[];

type LogRequest = JobKey & { after?: number | null };

/**
 * Follows the log after the entry `after` until the job ends.
 * @throws AppError 400, 401, 403, 404 before the first event; later if the viewer loses access
 */
export async function followLog(
  services: Deps,
  viewer: Viewer,
  request: LogRequest,
): Promise<(signal: AbortSignal) => AsyncGenerator<LogEvent>> {
  const { rule, batches } = await prepareLogStream(services, viewer, request);
  return (signal) =>
    whileAllowed(services, viewer, rule, signal, async function* (ended) {
      for await (const events of batches(ended)) yield* events;
    });
}

/** Like `followLog`, but yields the events of each read as one batch, so that thousands of lines a second are few events. */
export async function followLogBatches(
  services: Deps,
  viewer: Viewer,
  request: LogRequest,
): Promise<(signal: AbortSignal) => AsyncGenerator<LogEventBatch>> {
  const { rule, batches } = await prepareLogStream(services, viewer, request);
  return (signal) => whileAllowed(services, viewer, rule, signal, batches);
}

async function prepareLogStream(services: Deps, viewer: Viewer, { after, ...key }: LogRequest) {
  const job = await getJob(services, viewer, key, streamColumns);
  if (after != null && (after < 0 || (!hasEnded(job) && after > getLastSeq(job))))
    throw invalid('after', 'must be 0 or the seq of an entry');
  return {
    rule: createReadRule(services, job),
    async *batches(ended: AbortSignal): AsyncGenerator<LogEventBatch> {
      for await (const events of readLogEvents(services, job.id, after ?? 0, ended)) {
        yield events;
        if (events.at(-1)?.kind === 'end') return;
      }
      if (!ended.aborted) throw serverStoppingError();
    },
  };
}

/**
 * Opens a stream of the lines that `query` selects and of all later entries; or, if `lastSeen` is given, of all entries after
 * that number.
 * @returns a function that starts the stream, which throws if the viewer loses access; null if the log has ended and there is
 *   no entry after `lastSeen`
 * @throws AppError 400 (also if no entry has the number `lastSeen` yet), 401, 403, 404, and 409 if the job is not running and
 *   `lastSeen` is not given
 */
export async function openStream(
  services: Deps,
  viewer: Viewer,
  key: JobKey,
  query: StreamQuery,
): Promise<OpenStream | null> {
  const job = await getJob(services, viewer, key, streamColumns);
  return openStreamOfJob(services, viewer, job, query);
}

export type StreamQuery = LogQuery & { lastSeen: number | null };
type OpenStream = (signal: AbortSignal) => AsyncGenerator<LogEventBatch>;

/** Like `openStream`, for a job that the caller has found visible to the viewer. */
export async function openStreamOfJob(
  services: Deps,
  viewer: Viewer,
  job: AccessRow & StreamRow,
  { lastSeen, ...query }: StreamQuery,
): Promise<OpenStream | null> {
  resolveTail(query.tail);
  const { id, status } = job;
  const from = (start: number) => {
    const rule = createReadRule(services, job);
    return (signal: AbortSignal) =>
      whileAllowed(services, viewer, rule, signal, (ended) =>
        readLogEvents(services, id, start, ended),
      );
  };
  if (lastSeen !== null) {
    const last = getLastSeq(job);
    if (hasEnded(job)) return lastSeen >= last ? null : from(lastSeen);
    // The id may come from a deleted job of the same name. Without this check, nothing would be sent until this job has as
    // many entries.
    if (lastSeen > last)
      throw invalid(null, `Last-Event-ID: must be the id of an event; the last event has ${last}`);
    return from(lastSeen);
  }
  if (status !== 'running')
    throw new AppError(
      'conflict',
      `Only a running job can be streamed, and the status of this job is ${status}; send the header Last-Event-ID: 0 to get the whole stream`,
    );
  return from(await findStreamStart(services, id, query));
}

/** The columns that tell whether the log has ended. A cancelled job may print until its attempt has ended. */
export const streamColumns = {
  status: true,
  nextSeq: true,
  attempts: { where: { endedAt: null }, select: { id: true }, take: 1 },
} as const;
type StreamRow = Prisma.JobGetPayload<{ select: typeof streamColumns }>;

/** Whether the job cannot print any more lines. */
function hasEnded({ status, attempts }: StreamRow): boolean {
  return isOver(status) && attempts.length === 0;
}

function getLastSeq({ nextSeq }: StreamRow): number {
  return Number(nextSeq) - 1;
}

/**
 * Creates the rule that must hold while a viewer follows a job. A credential that is restricted to single repositories loses
 * access when the job's repository is deleted.
 */
export function createReadRule(
  { db }: { db: Db },
  { id, namespaceId, repositoryId }: Omit<AccessRow, 'createdById'>,
): AccessRule {
  return {
    key: `job ${id}`,
    async demand(viewer) {
      const isRestricted = viewer.kind === 'account' && viewer.repositories !== null;
      const select = { repositoryId: true };
      const current = isRestricted && (await db.job.findUnique({ where: { id }, select }));
      // If the job was deleted, its former repository is checked, and the stream ends without an error.
      demand(viewer, 'job.read', {
        namespaceId,
        repositoryId: current ? current.repositoryId : repositoryId,
      });
    },
  };
}

async function* readLogEvents(
  services: Deps,
  jobId: string,
  after: number,
  signal: AbortSignal,
): AsyncGenerator<LogEventBatch> {
  let seq = after;
  for await (const step of followJournal(services, jobId, after, signal)) {
    if (step.kind === 'end') yield [{ ...step, seq }];
    else if (step.kind === 'entries') {
      seq = step.entries.at(-1)?.seq ?? seq;
      yield step.entries;
    }
  }
}

/** The number of points that a job has printed. */
export type MetricsChange = { points: number };

const METRICS_PAUSE_MS = 1_000;

/**
 * Tells when a job has printed points of metrics, at most once a second, until it has ended. It has no points: readers read
 * them reduced, as charts need them.
 * @throws AppError 401, 403, 404 before the first event; later if the viewer loses access
 */
export async function followMetrics(
  services: Deps,
  viewer: Viewer,
  key: JobKey,
): Promise<(signal: AbortSignal) => AsyncGenerator<MetricsChange>> {
  const { pool, bus } = services;
  const job = await getJob(services, viewer, key, {});
  return (signal) =>
    whileAllowed(services, viewer, createReadRule(services, job), signal, async function* (ended) {
      let points = -1;
      for await (const _ of bus.wakes(`job:${job.id}`, ended)) {
        const now = await retryWhileUnavailable(() => readPointCount(pool, job.id), ended);
        if (now && now.points !== points) yield { points: now.points };
        if (!now || now.has_ended) return;
        points = now.points;
        await sleep(METRICS_PAUSE_MS, ended);
      }
      if (!ended.aborted) throw serverStoppingError();
    });
}

async function readPointCount(
  pool: pg.Pool,
  jobId: string,
): Promise<{ points: number; has_ended: boolean } | undefined> {
  const { rows } = await pool.query<{ points: number; has_ended: boolean }>({
    name: 'loam-metric-points',
    text: `
      select metric_points::float8 as points, completed_at is not null and not exists (
        select from job_attempts where job_id = $1 and ended_at is null) as has_ended
      from jobs where id = $1`,
    values: [jobId],
  });
  return rows[0];
}

/** For example `job.queued`. */
export type JobEventType = `job.${JobStatus | 'deleted'}`;

export type JobEvent = {
  id: string;
  cursor: number;
  type: JobEventType;
  timestamp: Date;
  jobId: string;
  name: string;
  status: JobStatus;
  exitCode: number | null;
  namespace: string;
  progress: string;
  retryCount: number;
  runtimeSeconds: number;
  totalCost: string;
};

/**
 * Follows the events of all jobs in some namespaces, or of one job in a single namespace until it is deleted.
 * @throws AppError 401, 403, 404 before the stream starts; 400 at the first read if `after` is not the cursor of an event;
 *   later, if the viewer loses access
 */
export async function followEvents(
  services: Deps,
  viewer: Viewer,
  {
    namespaces: owners,
    name,
    after,
  }: { namespaces: readonly string[]; name?: string | null; after?: number | null },
): Promise<(signal: AbortSignal) => AsyncGenerator<JobEvent>> {
  const [owner, ...others] = parseFollowedNamespaces(owners, name);
  const ids: string[] = [];
  for (const ownerName of [owner, ...others]) {
    const { id } = await findNamespace(services, ownerName, viewer);
    demand(viewer, 'job.read', anyTargetIn(viewer, id));
    ids.push(id);
  }
  const job = name == null ? null : await getJob(services, viewer, { namespace: owner, name }, {});
  const onlyRepositories = viewer.kind === 'account' ? viewer.repositories : null;
  const query = {
    namespaceIds: ids,
    subject: job?.id,
    prefix: 'job.',
    after: after ?? null,
  };
  const rule: AccessRule = job
    ? createReadRule(services, job)
    : {
        key: `jobs of ${ids.join()}`,
        demand: (now) => {
          for (const id of ids) demand(now, 'job.read', anyTargetIn(now, id));
        },
      };
  return (signal) =>
    whileAllowed(services, viewer, rule, signal, async function* (ended) {
      for await (const event of subscribeToEvents(services, query, ended)) {
        if (!onlyRepositories || onlyRepositories.has(String(event.data.repositoryId)))
          yield toJobEvent(event);
        if (job && event.type === 'job.deleted') return;
      }
    });
}

function toJobEvent({ id, seq, type, timestamp, subject, data }: OutboxEvent): JobEvent {
  const { job } = data as JobEventData;
  return {
    id,
    cursor: seq,
    type: type as JobEventType,
    timestamp,
    jobId: subject,
    name: job.name,
    status: job.status,
    exitCode: job.exit_code ?? null,
    namespace: job.namespace,
    progress: job.progress,
    retryCount: job.retry_count,
    runtimeSeconds: job.runtime_seconds,
    totalCost: job.total_cost,
  };
}
