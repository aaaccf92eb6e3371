/**
 * Limits the size of a log, and of the metrics that are stored with it, to what the plan allows for one job, and to the storage
 * left in the namespace.
 * The first line over a limit is replaced with a notice that states the reason, and later lines are dropped. The job
 * continues, and its status changes are still recorded.
 */
import type pg from 'pg';
import type { Plan } from '../../../prisma/generated/enums.ts';
import type { Config } from '../../base/config/config.ts';
import type { Db } from '../../platform/database/client.ts';
import { endOfMillisecond } from '../../platform/database/times.ts';
import { outputLimits, storageLimit } from '../../platform/limits/quotas.ts';
import { type LogCursor, MAX_LINE_BYTES } from '../../runners/runner.ts';
import { MetricCollector, type PointRoom, type TimedMetricLine } from '../metrics/collect.ts';
import { countTextBytes, type LogLine } from '../record/journal-pages.ts';
import { toStorable } from '../record/state.ts';
import { appendLines, type LogTotals } from './append.ts';

type Deps = { pool: pg.Pool; db: Db; config: Config };

/** Writes the output of an attempt to the log of its job. */
type AttemptLogWriter = {
  /**
   * Stores the lines and points for which there is room, and `to`, the position in the runner's log after all lines of the batch.
   * @param batch `progress` is the last progress that the program printed in the batch, if any
   * @returns the number of points; null if nothing was stored: the job was deleted, or another worker has stored these lines
   */
  append(batch: {
    lines: readonly LogLine[];
    metrics: readonly TimedMetricLine[];
    to: LogCursor;
    progress?: string;
  }): Promise<{ points: number } | null>;
  /** Stores a line of the server, without a new position in the runner's log. */
  note(message: string): Promise<unknown>;
};

type Batch = {
  lines: readonly LogLine[];
  metrics: readonly TimedMetricLine[];
  to?: LogCursor;
  progress?: string;
};

/** The job as read when the writer was created. Each append returns newer counts. */
type JobSnapshot = {
  id: string;
  logLines: bigint;
  logBytes: bigint;
  logFull: boolean;
  logUntil: Date | null;
  metricPoints: bigint;
  namespace: { plan: Plan; storageBytes: bigint };
};

/** @param from the position in the runner's log up to which lines are stored */
export function createAttemptLogWriter(
  deps: Deps,
  {
    job,
    attemptId,
    number,
    from,
  }: { job: JobSnapshot; attemptId: string; number: number; from: LogCursor | null },
): AttemptLogWriter {
  const { id: jobId } = job;
  const collector = new MetricCollector(deps, { jobId, attempt: number });
  let position = from;
  let isFull = job.logFull;
  let stored: LogTotals = {
    lines: Number(job.logLines),
    bytes: Number(job.logBytes),
    storageBytes: job.namespace.storageBytes,
    metricPoints: Number(job.metricPoints),
    // A Date from the database has no microseconds.
    newestTime: job.logUntil && endOfMillisecond(job.logUntil),
  };
  let appending: Promise<unknown> = Promise.resolve();
  async function append({
    lines: printed,
    metrics,
    to,
    progress,
  }: Batch): Promise<{ points: number } | null> {
    const { plan } = job.namespace;
    const { points, data, notices } = await collector.collect(
      metrics,
      computePointRoom(deps, plan, stored),
    );
    const lines = [...printed, ...notices];
    const room = isFull ? null : computeRoom(deps, plan, stored);
    const kept = room ? takeFitting(lines, room) : [];
    const isOverLimit = room !== null && kept.length < lines.length;
    const notice = isOverLimit ? [truncationNotice(lines, kept.length, room)] : [];
    isFull ||= isOverLimit;
    const result = await appendLines(deps, {
      jobId,
      attemptId,
      lines: [...kept, ...notice],
      newestTime: stored.newestTime,
      from: position,
      to: to ?? position,
      progress,
      endsLog: isFull,
      metrics: { points, data },
    });
    if (!result) return null;
    stored = result;
    position = to ?? position;
    return { points };
  }
  // One after the other, because each continues at the position of the previous one.
  const inOrder = (batch: Batch): Promise<{ points: number } | null> => {
    const done = appending.then(() => append(batch));
    appending = done.catch(() => {});
    return done;
  };
  return {
    append: inOrder,
    note: (message) =>
      inOrder({ lines: [{ timestamp: new Date(), message: toStorable(message) }], metrics: [] }),
  };
}

/** Runners truncate a line at `MAX_LINE_BYTES` and append a note, for which 100 bytes are enough. */
const MAX_STORED_LINE_BYTES = MAX_LINE_BYTES + 100;

/** Bytes of storage that a point of a metric counts as, also in the database (`prisma/functions.sql`). */
const POINT_BYTES = 24;
/** Bytes of a long line that reports one point. */
const METRIC_LINE_BYTES = 128;

/**
 * Computes how much output of an attempt the runner must keep: the rest of the job's limits and one more line. So the job's
 * log reaches its limits before the runner does, and ends with one notice for all attempts.
 */
export function computeOutputLimits(
  { config }: { config: Config },
  job: { logLines: bigint; logBytes: bigint; metricPoints: bigint; namespace: { plan: Plan } },
): { bytes: number; lines: number } {
  const { bytes, lines, metricPoints } = outputLimits({ config }, job.namespace.plan);
  const points = Math.max(0, metricPoints - Number(job.metricPoints));
  return {
    bytes:
      Math.max(0, bytes - Number(job.logBytes)) +
      MAX_STORED_LINE_BYTES +
      points * METRIC_LINE_BYTES,
    lines: Math.max(0, lines - Number(job.logLines)) + 1 + points,
  };
}

function computePointRoom(
  { config }: { config: Config },
  plan: Plan,
  stored: LogTotals,
): PointRoom {
  const { metricPoints } = outputLimits({ config }, plan);
  const storage = storageLimit({ config }, plan);
  const left = Math.max(0, metricPoints - stored.metricPoints);
  const storageLeft = Math.max(0, storage - Number(stored.storageBytes));
  const pointsOfStorage = Math.floor(storageLeft / POINT_BYTES);
  return {
    points: Math.min(left, pointsOfStorage),
    isFull: left === 0,
    reason:
      left <= pointsOfStorage
        ? `the ${plan} plan allows ${metricPoints.toLocaleString('en')} points of metrics per job`
        : `the ${plan} plan allows ${formatBytes(storage)} of storage per namespace`,
  };
}

/** The bytes and lines that a log can still grow by, and for each limit the reason to show when it is reached. */
type LogRoom = { bytes: number; lines: number; reasons: { bytes: string; lines: string } };

function computeRoom({ config }: { config: Config }, plan: Plan, stored: LogTotals): LogRoom {
  const { bytes, lines } = outputLimits({ config }, plan);
  const storage = storageLimit({ config }, plan);
  const logBytesLeft = bytes - stored.bytes;
  const storageBytesLeft = storage - Number(stored.storageBytes);
  return {
    bytes: Math.max(0, Math.min(logBytesLeft, storageBytesLeft)),
    lines: Math.max(0, lines - stored.lines),
    reasons: {
      bytes:
        logBytesLeft <= storageBytesLeft
          ? `the ${plan} plan allows ${formatBytes(bytes)} of log per job`
          : `the ${plan} plan allows ${formatBytes(storage)} of storage per namespace`,
      lines: `the ${plan} plan allows ${lines.toLocaleString('en')} lines of log per job`,
    },
  };
}

function takeFitting(
  lines: readonly LogLine[],
  { bytes, lines: maxLines }: LogRoom,
): readonly LogLine[] {
  let bytesLeft = bytes;
  const end = lines.slice(0, maxLines).findIndex(({ message }) => {
    bytesLeft -= countTextBytes(message);
    return bytesLeft < 0;
  });
  return lines.slice(0, end === -1 ? maxLines : end);
}

function truncationNotice(lines: readonly LogLine[], kept: number, room: LogRoom): LogLine {
  const reason = kept === room.lines ? room.reasons.lines : room.reasons.bytes;
  return {
    timestamp: lines[kept]?.timestamp ?? new Date(),
    message: `The log ends here: ${reason}. Further output of the job is not kept.`,
  };
}

/** Formats bytes in the largest unit that gives an integer. */
function formatBytes(bytes: number): string {
  const units = ['bytes', 'KiB', 'MiB', 'GiB'];
  let unit = 0;
  while (unit < units.length - 1 && bytes >= 1024 && bytes % 1024 === 0) {
    bytes /= 1024;
    unit++;
  }
  return `${bytes.toLocaleString('en')} ${units[unit]}`;
}
