/** Following jobs: who may, from where, and in what form it is told. The doors are GraphQL and SSE. */
import type { JobStatus } from '../../prisma/generated/enums.ts';
import { demand, type Viewer } from '../auth/access.ts';
import { AppError, invalid } from '../errors.ts';
import { type OutboxEvent, readOutbox } from '../outbox.ts';
import type { Services } from '../services.ts';
import { anyIn, getJob, type JobKey, namespaceOf } from './jobs.ts';
import { checkTail, type Entry, followJournal, type LogQuery, readLog, startOf } from './logs.ts';

type Deps = Pick<Services, 'db' | 'bus'>;

export type LogLineEvent = { kind: 'log'; seq: number; timestamp: Date; message: string };
export type StatusEvent = { kind: 'status'; seq: number; timestamp: Date; status: JobStatus };
/** `seq` is that of the last entry. */
export type EndEvent = { kind: 'end'; seq: number; status: JobStatus; exitCode: number | null };
export type LogEvent = LogLineEvent | StatusEvent | EndEvent;

/**
 * The log from `after` on, to the end of the job.
 * @throws AppError 400, 401, 403, 404, before the first event
 */
export async function followLog(
  services: Deps,
  viewer: Viewer,
  { after, ...key }: JobKey & { after?: number | null },
): Promise<(signal: AbortSignal) => AsyncGenerator<LogEvent>> {
  const { id } = await getJob(services, viewer, key, {});
  if (after != null && after < 0) throw invalid('after', 'must be 0 or the seq of an entry');
  return async function* (signal) {
    for await (const event of logEvents(services, id, after ?? 0, signal)) {
      if (event !== 'idle') yield event;
    }
  };
}

/**
 * The lines that `query` selects and what comes after them; or what comes after `lastSeen`, to the end.
 * @returns what opens it. Once in a while it yields `idle`, when there was nothing to tell.
 * @throws AppError 400, 401, 403, 404, and 409 for a job that is not running, unless it is resumed
 */
export async function openStream(
  services: Deps,
  viewer: Viewer,
  key: JobKey,
  { lastSeen, ...query }: LogQuery & { lastSeen: number | null },
): Promise<(signal: AbortSignal) => AsyncGenerator<LogEvent | 'idle'>> {
  checkTail(query.tail);
  const { id, status } = await getJob(services, viewer, key, { status: true });
  if (lastSeen !== null) return (signal) => logEvents(services, id, lastSeen, signal);
  if (status !== 'running')
    throw new AppError('conflict', `Only a running job can be streamed; this one is ${status}`);
  const { lines } = await readLog(services, id, query);
  const start = await startOf(services, id, lines);
  return (signal) => logEvents(services, id, start, signal);
}

async function* logEvents(
  services: Deps,
  jobId: string,
  after: number,
  signal: AbortSignal,
): AsyncGenerator<LogEvent | 'idle'> {
  let seq = after;
  for await (const step of followJournal(services, jobId, after, signal)) {
    if (step.kind === 'idle') yield 'idle';
    else if (step.kind === 'end') yield { ...step, seq };
    else
      for (const entry of step.entries) {
        seq = entry.seq;
        yield eventOf(entry);
      }
  }
}

function eventOf({ seq, kind, timestamp, message }: Entry): LogEvent {
  return kind === 'log'
    ? { kind, seq, timestamp, message }
    : { kind, seq, timestamp, status: message as JobStatus };
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
};

/**
 * What happens to the jobs of a namespace, or to one of them.
 * @throws AppError 401, 403, 404 at once; 400 for an `after` that is no event's, with the first read
 */
export async function followEvents(
  services: Deps,
  viewer: Viewer,
  {
    namespace: owner,
    name,
    after,
  }: { namespace: string; name?: string | null; after?: number | null },
): Promise<(signal: AbortSignal) => AsyncGenerator<JobEvent>> {
  const namespace = await namespaceOf(services, owner, viewer);
  demand(viewer, 'job.read', anyIn(viewer, namespace.id));
  const job = name == null ? null : await getJob(services, viewer, { namespace: owner, name }, {});
  const narrowed = viewer.kind === 'account' ? viewer.repositories : null;
  const query = {
    namespaceId: namespace.id,
    subject: job?.id,
    prefix: 'job.',
    after: after ?? null,
  };
  return async function* (signal) {
    for await (const event of readOutbox(services, query, signal)) {
      if (!narrowed || narrowed.has(String(event.data.repositoryId))) yield jobEventOf(event);
    }
  };
}

function jobEventOf({ id, seq, type, timestamp, subject, data }: OutboxEvent): JobEvent {
  return {
    id,
    cursor: seq,
    type: type as JobEventType,
    timestamp,
    jobId: subject,
    name: String(data.name),
    status: data.status as JobStatus,
    exitCode: typeof data.exitCode === 'number' ? data.exitCode : null,
  };
}
