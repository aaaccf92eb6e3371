/**
 * Limits the size of a log: to the bytes and lines that the plan allows for one job, and to the storage left in the
 * namespace. The first line over a limit is replaced by a last line with the reason. The job continues, and its status
 * changes are still recorded.
 */
import type pg from 'pg';
import type { Plan } from '../../../prisma/generated/enums.ts';
import type { Config } from '../../base/config/config.ts';
import type { Db } from '../../platform/database/client.ts';
import { endOfMillisecond } from '../../platform/database/times.ts';
import { logLimits, storageLimit } from '../../platform/limits/quotas.ts';
import type { LogCursor } from '../../runners/runner.ts';
import { appendLines, type LogTotals } from './append.ts';
import { type LogLine, textBytes } from './pages.ts';

type Deps = { pool: pg.Pool; db: Db; config: Config };

/** Writes the output of an attempt to the log of its job. */
type AttemptLog = {
  /**
   * Stores as many of the lines as the log has room for, and the position after all of them.
   * @returns false if nothing was stored: the job is deleted, or another worker has stored these lines
   */
  append(batch: { lines: readonly LogLine[]; to: LogCursor; progress?: string }): Promise<boolean>;
};

/** The job when the log was opened. The first append updates its counts. */
type OpenedJob = {
  id: string;
  logLines: bigint;
  logBytes: bigint;
  logFull: boolean;
  logUntil: Date | null;
  namespace: { plan: Plan; storageBytes: bigint };
};

/** @param job the job, whose limits apply; `from`: the position up to which the attempt's log is stored */
export function openAttemptLog(
  deps: Deps,
  { job, attemptId, from: start }: { job: OpenedJob; attemptId: string; from: LogCursor | null },
): AttemptLog {
  const { id: jobId } = job;
  let full = job.logFull;
  let stored: LogTotals = {
    lines: Number(job.logLines),
    bytes: Number(job.logBytes),
    storageBytes: job.namespace.storageBytes,
    until: job.logUntil && endOfMillisecond(job.logUntil),
  };
  let from = start;
  return {
    async append({ lines, to, progress }) {
      const room = full ? null : computeRoom(deps, job.namespace.plan, stored);
      const kept = room ? takeFitting(lines, room) : [];
      const isCut = room !== null && kept.length < lines.length;
      const last = isCut ? [truncationNotice(lines, kept.length, room)] : [];
      full ||= isCut;
      const { until: after } = stored;
      const batch = {
        jobId,
        attemptId,
        lines: [...kept, ...last],
        after,
        from,
        to,
        progress,
        full,
      };
      const result = await appendLines(deps, batch);
      if (!result) return false;
      stored = result;
      from = to;
      return true;
    },
  };
}

/** The runner truncates lines at 64 KiB and appends a note. */
const LONGEST_LINE = 64 * 1024 + 100;

/**
 * The output that a runner must keep of an attempt: the rest of the job's limit and one line more. So the limit of the job's
 * log is reached first, and the log ends with one notice for all attempts.
 */
export function outputLimits(
  { config }: { config: Config },
  job: { logLines: bigint; logBytes: bigint; namespace: { plan: Plan } },
): { bytes: number; lines: number } {
  const { bytes, lines } = logLimits({ config }, job.namespace.plan);
  return {
    bytes: Math.max(0, bytes - Number(job.logBytes)) + LONGEST_LINE,
    lines: Math.max(0, lines - Number(job.logLines)) + 1,
  };
}

/** The remaining bytes and lines of a log, and for each limit the reason to show when it is reached. */
type LogRoom = { bytes: number; lines: number; why: { bytes: string; lines: string } };

function computeRoom({ config }: { config: Config }, plan: Plan, stored: LogTotals): LogRoom {
  const { bytes, lines } = logLimits({ config }, plan);
  const storage = storageLimit({ config }, plan);
  const ofLog = bytes - stored.bytes;
  const ofNamespace = storage - Number(stored.storageBytes);
  return {
    bytes: Math.max(0, Math.min(ofLog, ofNamespace)),
    lines: Math.max(0, lines - stored.lines),
    why: {
      bytes:
        ofLog <= ofNamespace
          ? `the ${plan} plan allows ${formatBytes(bytes)} of log per job`
          : `the ${plan} plan allows ${formatBytes(storage)} of storage per namespace`,
      lines: `the ${plan} plan allows ${lines.toLocaleString('en')} lines of log per job`,
    },
  };
}

/** Returns the leading lines that fit. */
function takeFitting(
  lines: readonly LogLine[],
  { bytes, lines: count }: LogRoom,
): readonly LogLine[] {
  let left = bytes;
  const end = lines.slice(0, count).findIndex((line) => {
    left -= textBytes(line);
    return left < 0;
  });
  return lines.slice(0, end === -1 ? count : end);
}

/** The line that replaces the first line over the limit. */
function truncationNotice(lines: readonly LogLine[], kept: number, room: LogRoom): LogLine {
  const reason = kept === room.lines ? room.why.lines : room.why.bytes;
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
