/**
 * What passes by itself: the database being away (stopped, restarting, out of reach, out of disk or connections),
 * this machine being short of something. Whoever can wait for it does, instead of taking it for a fault of what
 * was being done.
 */
import { setTimeout as delay } from 'node:timers/promises';

const FIRST_PAUSE_MS = 50;
const MAX_PAUSE_MS = 2_000;

/**
 * SQLSTATEs by their beginning: 08 connections, 53 resources (disk, memory, connections), 57P the server is
 * stopped or starting, 58 its own disk; and 25006 read-only (a standby), 40001 and 40P01 a lost race, 55P03 a lock
 * that somebody held for long.
 */
const SQLSTATES = /^(?:08|53|57P|58|25006|40001|40P01|55P03)/;
/** Of Prisma: not reached, timed out, closed, no free connection or transaction, a lost race. */
const PRISMA = new Set(['P1001', 'P1002', 'P1008', 'P1017', 'P2024', 'P2028', 'P2034', 'P2037']);
const SOCKET =
  /^(?:ECONN\w+|EPIPE|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|ENETDOWN|ENOTFOUND|EAI_AGAIN)$/;
/** What pg throws without a code. */
const MESSAGES =
  /connection terminated|query read timeout|connection timeout|timeout expired|timeout exceeded when trying to connect|not queryable|connection error|server has closed the connection|can't reach database/i;

/** Whether an error, or one that it wraps, means that the database could not be asked. */
export function isDatabaseAway(error: unknown, depth = 0): boolean {
  if (typeof error !== 'object' || error === null || depth > 5) return false;
  const { code, originalCode, message, syscall, cause, errors, meta } = error as Wrapped;
  for (const one of [code, originalCode]) {
    if (typeof one !== 'string') continue;
    if (SQLSTATES.test(one) || PRISMA.has(one) || SOCKET.test(one)) return true;
    // Of a Unix socket that is not there; Prisma passes it on without `syscall`.
    if (one === 'ENOENT' && (syscall === 'connect' || `${message}`.includes('connect ENOENT')))
      return true;
  }
  if (typeof message === 'string' && MESSAGES.test(message)) return true;
  const inner = [cause, meta?.driverAdapterError, ...(Array.isArray(errors) ? errors : [])];
  return inner.some((one) => isDatabaseAway(one, depth + 1));
}

/** Whether PostgreSQL has undone the transaction for another's sake, so that it is known not to be done. */
export function isLostRace(error: unknown): boolean {
  return /^(?:40001|40P01|55P03)$/.test(String((error as { code?: unknown } | null)?.code));
}

/** Whether a statement was given up because somebody else had locked for longer than it was to wait (`lock_timeout`). */
export function isStillLocked(error: unknown): boolean {
  return (error as { code?: unknown } | null)?.code === '55P03';
}

type Wrapped = {
  code?: unknown;
  originalCode?: unknown;
  message?: unknown;
  syscall?: unknown;
  cause?: unknown;
  errors?: unknown;
  meta?: { driverAdapterError?: unknown };
};

/**
 * Whether this machine was short of something that comes back: disk (full, over quota, read-only after an error),
 * file descriptors, memory, processes.
 */
export function isResourceExhausted(error: unknown): boolean {
  const SHORT = /^(?:ENOSPC|EDQUOT|EROFS|EIO|ESTALE|EMFILE|ENFILE|ENOMEM|EAGAIN)$/;
  return SHORT.test(String((error as { code?: unknown } | null)?.code));
}

/** The reason that the user of a job gets which failed for it. */
export const DISK_FULL_MESSAGE = 'The disk of the server is full';

/** Whether the disk or its quota is full, as PostgreSQL, the kernel or the output of a program says. */
export function isDiskFull(error: unknown): boolean {
  const { stderr } = (error ?? {}) as { stderr?: unknown };
  return (
    ['53100', 'ENOSPC', 'EDQUOT'].includes(sqlState(error)) ||
    /No space left on device|Disk quota exceeded/.test(String(stderr ?? ''))
  );
}

/** The SQLSTATE of a failed statement, from an error of Prisma or of `pg`; of any other error its code. */
export function sqlState(error: unknown): string {
  const { code, meta } = (error ?? {}) as { code?: unknown; meta?: { driverAdapterError?: Error } };
  const cause = meta?.driverAdapterError?.cause as { originalCode?: string } | undefined;
  return cause?.originalCode ?? String(code);
}

/**
 * Reads, and while the database is away reads again. For those who follow something: they stand at a cursor
 * and lose nothing by waiting.
 * @throws what `read` throws for any other reason, and `signal.reason` when it aborts
 */
export async function untilAnswered<T>(read: () => Promise<T>, signal: AbortSignal): Promise<T> {
  for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(pause * 2, MAX_PAUSE_MS)) {
    try {
      return await read();
    } catch (error) {
      if (!isDatabaseAway(error)) throw error;
      await delay(pause, undefined, { signal }).catch(() => {});
      signal.throwIfAborted();
    }
  }
}
