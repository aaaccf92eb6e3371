/** Streams of logs and job events for GraphQL subscriptions and server-sent events: permissions, start, and contents. */
import type pg from 'pg';
import type { Prisma } from '../../prisma/generated/client.ts';
import type { JobStatus } from '../../prisma/generated/enums.ts';
import { AppError, invalid } from '../base/errors.ts';
import { anyTargetIn, demand, type Viewer } from '../identity/permissions.ts';
import type { Rechecks } from '../identity/rechecks.ts';
import { type AccessRule, whileAllowed } from '../identity/rechecks.ts';
import type { Db } from '../platform/database/client.ts';
import type { Bus } from '../platform/events/bus.ts';
import type { OutboxEvent } from '../platform/events/read.ts';
import {
  parseFollowedNamespaces,
  serverStopping,
  subscribeToEvents,
} from '../platform/events/read.ts';
import { type AccessRow, getJob, type JobKey, namespaceOf } from './jobs.ts';
import { followJournal } from './logs/follow.ts';
import type { Entry } from './logs/pages.ts';
import { checkTail, type LogQuery, streamStart } from './logs/read.ts';
import type { JobPayload } from './payload.ts';
import { isOver } from './state.ts';

type Deps = { db: Db; pool: pg.Pool; bus: Bus; rechecks: Rechecks };

export type LogLineEvent = { kind: 'log'; seq: number; timestamp: Date; message: string };
export type StatusEvent = { kind: 'status'; seq: number; timestamp: Date; status: JobStatus };
/** `seq` is the number of the last entry. */
export type EndEvent = { kind: 'end'; seq: number; status: JobStatus; exitCode: number | null };
export type LogEvent = LogLineEvent | StatusEvent | EndEvent;

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
  const { rule, batches } = await openLog(services, viewer, request);
  return (signal) =>
    whileAllowed(services, viewer, rule, signal, async function* (ended) {
      for await (const events of batches(ended)) yield* events;
    });
}

/** As `followLog`, with one event for each read, so that thousands of lines a second are only a few events. */
export async function followLogBatches(
  services: Deps,
  viewer: Viewer,
  request: LogRequest,
): Promise<(signal: AbortSignal) => AsyncGenerator<LogBatch>> {
  const { rule, batches } = await openLog(services, viewer, request);
  return (signal) => whileAllowed(services, viewer, rule, signal, batches);
}

async function openLog(services: Deps, viewer: Viewer, { after, ...key }: LogRequest) {
  const job = await getJob(services, viewer, key, streamColumns);
  if (after != null && (after < 0 || (!hasEnded(job) && after > lastSeqOf(job))))
    throw invalid('after', 'must be 0 or the seq of an entry');
  return {
    rule: readRuleOf(services, job),
    async *batches(ended: AbortSignal): AsyncGenerator<LogBatch> {
      for await (const events of logEvents(services, job.id, after ?? 0, ended)) {
        yield events;
        if (events.at(-1)?.kind === 'end') return;
      }
      if (!ended.aborted) throw serverStopping();
    },
  };
}

/**
 * Opens a stream of the lines that `query` selects and all later entries; or of all entries after `lastSeen`.
 * @returns a function that starts the stream, which throws if the viewer loses access; null if the job is over and nothing
 *   comes after `lastSeen`
 * @throws AppError 400 (also if no event has the id `lastSeen` yet), 401, 403, 404, and 409 for a job that is not running,
 *   unless the stream is resumed
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
type OpenStream = (signal: AbortSignal) => AsyncGenerator<LogBatch>;
/** The entries of one read. All followers of a job get the same array, so an encoding of it can be shared. */
export type LogBatch = readonly LogEvent[];

/** As `openStream`, for a job that the viewer may see, as the caller has checked. */
export async function openStreamOfJob(
  services: Deps,
  viewer: Viewer,
  job: AccessRow & StreamRow,
  { lastSeen, ...query }: StreamQuery,
): Promise<OpenStream | null> {
  checkTail(query.tail);
  const { id, status } = job;
  const from = (start: number) => {
    const rule = readRuleOf(services, job);
    return (signal: AbortSignal) =>
      whileAllowed(services, viewer, rule, signal, (ended) =>
        logEvents(services, id, start, ended),
      );
  };
  if (lastSeen !== null) {
    const last = lastSeqOf(job);
    if (hasEnded(job)) return lastSeen >= last ? null : from(lastSeen);
    // The id may come from a deleted job of the same name. Nothing would be sent until this job has as many entries.
    if (lastSeen > last)
      throw invalid(null, `Last-Event-ID: must be the id of an event; the last event has ${last}`);
    return from(lastSeen);
  }
  if (status !== 'running')
    throw new AppError(
      'conflict',
      `Only a running job can be streamed, and the status of this job is ${status}; send the header Last-Event-ID: 0 to get the whole stream`,
    );
  return from(await streamStart(services, id, query));
}

/** The columns that decide whether a stream continues. A cancelled job prints until its attempt has ended. */
export const streamColumns = {
  status: true,
  nextSeq: true,
  attempts: { where: { endedAt: null }, select: { id: true }, take: 1 },
} as const;
type StreamRow = Prisma.JobGetPayload<{ select: typeof streamColumns }>;

/** Whether the job can print no more lines. */
function hasEnded({ status, attempts }: StreamRow): boolean {
  return isOver(status) && attempts.length === 0;
}

function lastSeqOf({ nextSeq }: StreamRow): number {
  return Number(nextSeq) - 1;
}

/** The permission that must hold while a job is followed. Credentials restricted to a repository lose it on its deletion. */
export function readRuleOf(
  { db }: { db: Db },
  { id, namespaceId, repositoryId }: Omit<AccessRow, 'createdById'>,
): AccessRule {
  return {
    key: `job ${id}`,
    async demand(viewer) {
      const isRestricted = viewer.kind === 'account' && viewer.repositories !== null;
      const select = { repositoryId: true };
      const current = isRestricted && (await db.job.findUnique({ where: { id }, select }));
      // If the job was deleted, the old repository is used: the stream ends by itself.
      demand(viewer, 'job.read', {
        namespaceId,
        repositoryId: current ? current.repositoryId : repositoryId,
      });
    },
  };
}

async function* logEvents(
  services: Deps,
  jobId: string,
  after: number,
  signal: AbortSignal,
): AsyncGenerator<LogBatch> {
  let seq = after;
  for await (const step of followJournal(services, jobId, after, signal)) {
    if (step.kind === 'end') yield [{ ...step, seq }];
    else if (step.kind === 'entries') {
      seq = step.entries.at(-1)?.seq ?? seq;
      yield toBatch(step.entries);
    }
  }
}

const batches = new WeakMap<readonly Entry[], LogBatch>();

function toBatch(entries: readonly Entry[]): LogBatch {
  const cached = batches.get(entries);
  if (cached) return cached;
  const batch = entries.map(toLogEvent);
  batches.set(entries, batch);
  return batch;
}

/** The event for a journal entry. */
export function toLogEvent(entry: Entry): LogLineEvent | StatusEvent {
  if (entry.kind === 'log') return entry;
  const { kind, seq, timestamp, message: status } = entry;
  return { kind, seq, timestamp, status };
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
  // Null in events of earlier versions, which stored fewer fields.
  namespace: string | null;
  progress: string | null;
  retryCount: number | null;
  runtimeSeconds: number | null;
  totalCost: string | null;
};

/**
 * Follows the events of all jobs in some namespaces, or of one job in a single namespace until it is deleted.
 * @throws AppError 401, 403, 404 at once; 400 with the first read if `after` is not the cursor of an event; later if the
 *   viewer loses access
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
    const { id } = await namespaceOf(services, ownerName, viewer);
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
    ? readRuleOf(services, job)
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
  const job = data.job as JobPayload | undefined;
  return {
    id,
    cursor: seq,
    type: type as JobEventType,
    timestamp,
    jobId: subject,
    name: job?.name ?? String(data.name),
    status: job?.status ?? (data.status as JobStatus),
    exitCode: job ? (job.exit_code ?? null) : ((data.exitCode as number | undefined) ?? null),
    namespace: job?.namespace ?? null,
    progress: job?.progress ?? null,
    retryCount: job?.retry_count ?? null,
    runtimeSeconds: job?.runtime_seconds ?? null,
    totalCost: job?.total_cost ?? null,
  };
}
