/**
 * How much of what a job prints is kept: what its plan allows the log of one job, in bytes and in lines, and what
 * its namespace has room for. The line that would go beyond ends the log, with a last line that says why; the job
 * itself goes on, and its changes of status are still recorded.
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

/** What an attempt prints, on its way into the log of its job. */
export type AttemptLog = {
  /**
   * Stores as many of the lines as the log has room for, and how far they all reach.
   * @returns whether that was stored; not, when the job is deleted or another worker has stored that part.
   */
  append(batch: { lines: readonly LogLine[]; to: LogCursor; progress?: string }): Promise<boolean>;
};

/** As it was when the attempt was taken up: what others store meanwhile is seen with the first lines. */
type OpenedJob = {
  id: string;
  logLines: bigint;
  logBytes: bigint;
  logFull: boolean;
  logUntil: Date | null;
  namespace: { plan: Plan; storageBytes: bigint };
};

/** `from`: how far the attempt's log is stored. */
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
      const last = room && kept.length < lines.length ? [truncationNotice(lines, kept.length, room)] : [];
      full ||= last.length > 0;
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

/** A line is cut at 64 KiB, and then says so. */
const LONGEST_LINE = 64 * 1024 + 100;

/**
 * What a runner is to keep of what an attempt prints: what is left of the job's cap, and a line more, so that it is
 * the log of the job that ends first, with one last line for all attempts.
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

/** What a log may still take, and for each of its bounds what to say when it is reached. */
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
          ? `the ${plan} plan allows ${formatBytes(bytes)} of log a job`
          : `the ${plan} plan allows ${formatBytes(storage)} of storage in a namespace`,
      lines: `the ${plan} plan allows ${lines.toLocaleString('en')} lines of log a job`,
    },
  };
}

/** The first of the lines, as far as they fit. */
function takeFitting(lines: readonly LogLine[], { bytes, lines: count }: LogRoom): readonly LogLine[] {
  let left = bytes;
  const end = lines.slice(0, count).findIndex((line) => {
    left -= textBytes(line);
    return left < 0;
  });
  return lines.slice(0, end === -1 ? count : end);
}

/** In place of the first line that is not kept. */
function truncationNotice(lines: readonly LogLine[], kept: number, room: LogRoom): LogLine {
  const reason = kept === room.lines ? room.why.lines : room.why.bytes;
  return {
    timestamp: lines[kept]?.timestamp ?? new Date(),
    message: `The log ends here: ${reason}. What the job prints from here on is not kept.`,
  };
}

/** In the largest unit that leaves a whole number. */
function formatBytes(bytes: number): string {
  const units = ['bytes', 'KiB', 'MiB', 'GiB'];
  let unit = 0;
  while (unit < units.length - 1 && bytes >= 1024 && bytes % 1024 === 0) {
    bytes /= 1024;
    unit++;
  }
  return `${bytes.toLocaleString('en')} ${units[unit]}`;
}
