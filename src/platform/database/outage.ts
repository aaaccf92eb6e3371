/**
 * Classifies temporary errors: the database is unavailable (stopped, restarting, unreachable, out of disk or connections),
 * or this machine has run out of a resource. Callers that can wait retry instead of reporting a failure.
 */
import { Backoff } from '../../base/backoff.ts';

const PAUSES = { firstMs: 50, longestMs: 2_000 };

/**
 * Prefixes of SQLSTATEs: 08 connections, 53 resources (disk, memory, connections), 57P server stopped or starting,
 * 58 disk of the server, 25006 read-only standby, 40001 and 40P01 serialization failure and deadlock, 55P03 lock timeout.
 */
const SQLSTATES = /^(?:08|53|57P|58|25006|40001|40P01|55P03)/;
/** Prisma's codes for: unreachable, timed out, closed, no free connection or transaction, write conflict. */
const PRISMA_CODES = new Set([
  'P1001',
  'P1002',
  'P1008',
  'P1017',
  'P2024',
  'P2028',
  'P2034',
  'P2037',
]);
const SOCKET_ERROR =
  /^(?:ECONN\w+|EPIPE|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|ENETDOWN|ENOTFOUND|EAI_AGAIN)$/;
/** Errors that `pg` throws without a code. */
const PG_MESSAGES =
  /connection terminated|query read timeout|connection timeout|timeout expired|timeout exceeded when trying to connect|not queryable|connection error|server has closed the connection|can't reach database/i;

/**
 * A race inside PostgreSQL, reported as an internal error (XX000): one transaction updates a row that another locks for a
 * foreign key, while a third that has updated the row rolls back. PostgreSQL 18.4 reports it about once in 100,000
 * transactions that do nothing else.
 */
const ROW_LOCK_RACE = /new multixact has more than one updating member/;

/** Whether an error, or an error that it wraps, means that the database could not answer. */
export function isDatabaseUnavailable(error: unknown, depth = 0): boolean {
  if (typeof error !== 'object' || error === null || depth > 5) return false;
  const { code, originalCode, message, syscall, cause, errors, meta } = error as Wrapped;
  for (const known of [code, originalCode]) {
    if (typeof known !== 'string') continue;
    if (SQLSTATES.test(known) || PRISMA_CODES.has(known) || SOCKET_ERROR.test(known)) return true;
    // A missing Unix socket. Prisma drops `syscall`.
    if (known === 'ENOENT' && (syscall === 'connect' || `${message}`.includes('connect ENOENT')))
      return true;
  }
  if (typeof message === 'string' && (PG_MESSAGES.test(message) || ROW_LOCK_RACE.test(message)))
    return true;
  const inner = [cause, meta?.driverAdapterError, ...(Array.isArray(errors) ? errors : [])];
  return inner.some((wrapped) => isDatabaseUnavailable(wrapped, depth + 1));
}

/**
 * Whether PostgreSQL has rolled back the transaction because of another one, for instance after `lock_timeout`, so that it
 * certainly had no effect.
 */
export function isRolledBackByConflict(error: unknown): boolean {
  const state = sqlStateOf(error);
  if (state === 'XX000') return ROW_LOCK_RACE.test((error as Error).message);
  return /^(?:40001|40P01|55P03)$/.test(state);
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
 * Whether this machine has run out of a resource that can become free again: disk (full, over quota, read-only after an
 * error), file descriptors, memory, processes.
 */
export function isResourceExhausted(error: unknown): boolean {
  const EXHAUSTED = /^(?:ENOSPC|EDQUOT|EROFS|EIO|ESTALE|EMFILE|ENFILE|ENOMEM|EAGAIN)$/;
  return EXHAUSTED.test(String((error as { code?: unknown } | null)?.code));
}

/** Shown to the user of a job that failed for this reason. */
export const DISK_FULL_MESSAGE = 'The disk of the server is full';

/** Whether the disk or its quota is full, according to PostgreSQL, the kernel or the stderr of a program. */
export function isDiskFull(error: unknown): boolean {
  const { stderr } = (error ?? {}) as { stderr?: unknown };
  return (
    ['53100', 'ENOSPC', 'EDQUOT'].includes(sqlStateOf(error)) ||
    /No space left on device|Disk quota exceeded/.test(String(stderr ?? ''))
  );
}

/** The SQLSTATE of a failed statement from Prisma or `pg`; the code of other errors. */
export function sqlStateOf(error: unknown): string {
  const { code, meta } = (error ?? {}) as { code?: unknown; meta?: { driverAdapterError?: Error } };
  const cause = meta?.driverAdapterError?.cause as { originalCode?: string } | undefined;
  return cause?.originalCode ?? String(code);
}

/**
 * Retries `read` while the database is unavailable. For readers with a cursor, which miss nothing while they wait.
 * @throws every other error of `read`, and `signal.reason` on abort
 */
export async function retryWhileUnavailable<T>(
  read: () => Promise<T>,
  signal: AbortSignal,
): Promise<T> {
  const backoff = new Backoff(PAUSES);
  for (;;) {
    try {
      return await read();
    } catch (error) {
      if (!isDatabaseUnavailable(error)) throw error;
      await backoff.pause(signal);
      signal.throwIfAborted();
    }
  }
}
