/** Following jobs: who may, where it begins, and what is sent, for GraphQL and for event streams. */
import type pg from 'pg';
import type { Prisma } from '../../prisma/generated/client.ts';
import type { JobStatus } from '../../prisma/generated/enums.ts';
import { AppError, invalid } from '../base/errors.ts';
import { anyIn, demand, type Viewer } from '../identity/permissions.ts';
import type { Rechecks } from '../identity/rechecks.ts';
import { type Rule, whileAllowed } from '../identity/rechecks.ts';
import type { Db } from '../platform/database/client.ts';
import type { Bus } from '../platform/events/bus.ts';
import type { OutboxEvent } from '../platform/events/read.ts';
import { follow, followed, stopping } from '../platform/events/read.ts';
import { type AccessRow, getJob, type JobKey, namespaceOf } from './jobs.ts';
import { followJournal } from './logs/follow.ts';
import type { Entry } from './logs/pages.ts';
import { checkTail, type LogQuery, startOf } from './logs/read.ts';
import type { JobPayload } from './payload.ts';
import { isOver } from './state.ts';

type Deps = { db: Db; pool: pg.Pool; bus: Bus; rechecks: Rechecks };

export type LogLineEvent = { kind: 'log'; seq: number; timestamp: Date; message: string };
export type StatusEvent = { kind: 'status'; seq: number; timestamp: Date; status: JobStatus };
/** `seq` is that of the last entry. */
export type EndEvent = { kind: 'end'; seq: number; status: JobStatus; exitCode: number | null };
export type LogEvent = LogLineEvent | StatusEvent | EndEvent;

type LogRequest = JobKey & { after?: number | null };

/**
 * The log from `after` on, to the end of the job.
 * @throws AppError 400, 401, 403, 404, before the first event; later when the viewer may not see it any more
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

/** As `followLog`, with what was read at once as one event: thousands of lines a second cost some events. */
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
    rule: ruleOf(services, job),
    async *batches(ended: AbortSignal): AsyncGenerator<LogBatch> {
      for await (const events of logEvents(services, job.id, after ?? 0, ended)) {
        yield events;
        if (events.at(-1)?.kind === 'end') return;
      }
      if (!ended.aborted) throw stopping();
    },
  };
}

/**
 * The lines that `query` selects and what comes after them; or what comes after `lastSeen`, to the end.
 * @returns what opens it, and throws when the viewer may not see it any more; null when the job is over and
 *   nothing comes after `lastSeen`
 * @throws AppError 400 (also for a `lastSeen` that no event has yet), 401, 403, 404, and 409 for a job that is not running,
 *   unless it is resumed
 */
export async function openStream(
  services: Deps,
  viewer: Viewer,
  key: JobKey,
  query: StreamQuery,
): Promise<OpenStream | null> {
  return openStreamOf(services, viewer, await getJob(services, viewer, key, streamColumns), query);
}

export type StreamQuery = LogQuery & { lastSeen: number | null };
type OpenStream = (signal: AbortSignal) => AsyncGenerator<LogBatch>;
/** What was read at once. All who follow a job get the same array, so what is made of it for one is good for the others. */
export type LogBatch = readonly LogEvent[];

/** As `openStream`, for a job that the viewer was found to be allowed to see. */
export async function openStreamOf(
  services: Deps,
  viewer: Viewer,
  job: AccessRow & StreamRow,
  { lastSeen, ...query }: StreamQuery,
): Promise<OpenStream | null> {
  checkTail(query.tail);
  const { id, status } = job;
  const from = (start: number) => {
    const rule = ruleOf(services, job);
    return (signal: AbortSignal) =>
      whileAllowed(services, viewer, rule, signal, (ended) =>
        logEvents(services, id, start, ended),
      );
  };
  if (lastSeen !== null) {
    const last = lastSeqOf(job);
    if (hasEnded(job)) return lastSeen >= last ? null : from(lastSeen);
    // A job of this name that was deleted may have had so many. Nothing would be sent until this one has as many.
    if (lastSeen > last)
      throw invalid(null, `Last-Event-ID: must be the id of an event; the last one has ${last}`);
    return from(lastSeen);
  }
  if (status !== 'running')
    throw new AppError(
      'conflict',
      `Only a running job can be streamed, and this one has the status ${status}; with the header Last-Event-ID: 0 the whole stream is sent`,
    );
  return from(await startOf(services, id, query));
}

/** What decides whether a stream goes on: a cancelled job prints until its attempt has ended. */
export const streamColumns = {
  status: true,
  nextSeq: true,
  attempts: { where: { endedAt: null }, select: { id: true }, take: 1 },
} as const;
type StreamRow = Prisma.JobGetPayload<{ select: typeof streamColumns }>;

/** Whether nothing more is printed. */
function hasEnded({ status, attempts }: StreamRow): boolean {
  return isOver(status) && attempts.length === 0;
}

function lastSeqOf({ nextSeq }: StreamRow): number {
  return Number(nextSeq) - 1;
}

/** For as long as it is followed. A repository that is deleted takes the job from credentials narrowed to it. */
export function ruleOf(
  { db }: { db: Db },
  { id, namespaceId, repositoryId }: Omit<AccessRow, 'createdById'>,
): Rule {
  return {
    key: `job ${id}`,
    async demand(viewer) {
      const narrowed = viewer.kind === 'account' && viewer.repositories !== null;
      const select = { repositoryId: true };
      const now = narrowed && (await db.job.findUnique({ where: { id }, select }));
      // A job that is deleted ends what follows it by itself.
      demand(viewer, 'job.read', {
        namespaceId,
        repositoryId: now ? now.repositoryId : repositoryId,
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
      yield batchOf(step.entries);
    }
  }
}

const batches = new WeakMap<readonly Entry[], LogBatch>();

function batchOf(entries: readonly Entry[]): LogBatch {
  const known = batches.get(entries);
  if (known) return known;
  const batch = entries.map(eventOf);
  batches.set(entries, batch);
  return batch;
}

/** An entry as it is sent. */
export function eventOf(entry: Entry): LogLineEvent | StatusEvent {
  if (entry.kind === 'log') return entry;
  const { kind, seq, timestamp, message: status } = entry;
  return { kind, seq, timestamp, status };
}

/** `job.queued` and so on. */
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
  // Null in events of versions that kept less of the job.
  namespace: string | null;
  progress: string | null;
  retryCount: number | null;
  runtimeSeconds: number | null;
  totalCost: string | null;
};

/**
 * What happens to the jobs of some namespaces, or to one job of the only one until it is deleted.
 * @throws AppError 401, 403, 404 at once; 400 for an `after` that is no event's, with the first read; later when
 *   the viewer may not see them any more
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
  const [owner, ...others] = followed(owners, name);
  const ids: string[] = [];
  for (const each of [owner, ...others]) {
    const { id } = await namespaceOf(services, each, viewer);
    demand(viewer, 'job.read', anyIn(viewer, id));
    ids.push(id);
  }
  const job = name == null ? null : await getJob(services, viewer, { namespace: owner, name }, {});
  const narrowed = viewer.kind === 'account' ? viewer.repositories : null;
  const query = {
    namespaceIds: ids,
    subject: job?.id,
    prefix: 'job.',
    after: after ?? null,
  };
  const rule: Rule = job
    ? ruleOf(services, job)
    : {
        key: `jobs of ${ids.join()}`,
        demand: (now) => {
          for (const id of ids) demand(now, 'job.read', anyIn(now, id));
        },
      };
  return (signal) =>
    whileAllowed(services, viewer, rule, signal, async function* (ended) {
      for await (const event of follow(services, query, ended)) {
        if (!narrowed || narrowed.has(String(event.data.repositoryId))) yield jobEventOf(event);
        if (job && event.type === 'job.deleted') return;
      }
    });
}

function jobEventOf({ id, seq, type, timestamp, subject, data }: OutboxEvent): JobEvent {
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
