/** Retries startup while the database is unavailable: stopped, restarting, recovering or temporarily unreachable. */
import { Backoff } from '../../base/backoff.ts';
import { ConfigError } from '../../base/config/config.ts';
import { isDatabaseUnavailable } from './outage.ts';

/** PostgreSQL usually restarts or fails over within this time. Later, the process manager starts Loam again. */
const TIMEOUT_MS = 60_000;
const PAUSES = { firstMs: 1_000, longestMs: 1_000 };

type Options = {
  /** Prints a line for the operator; called once. */
  report(line: string): void;
  timeoutMs?: number;
};

/**
 * Runs `start` again whenever it fails because the database is unavailable. A failed `start` must leave nothing open.
 * @throws ConfigError with the reason after `timeoutMs`; every other error of `start` at once
 */
export async function retryStartup<T>(
  start: () => Promise<T>,
  { report, timeoutMs = TIMEOUT_MS }: Options,
): Promise<T> {
  const deadline = Date.now() + timeoutMs;
  const backoff = new Backoff(PAUSES);
  for (let isReported = false; ; isReported = true) {
    try {
      return await start();
    } catch (error) {
      if (!isDatabaseUnavailable(error)) throw error;
      const line = describe(error as Error);
      if (Date.now() + PAUSES.longestMs > deadline) throw new ConfigError(line, { cause: error });
      if (!isReported)
        report(`${line}. The start waits for the database, for ${timeoutMs / 1000} s at most.`);
      await backoff.pause();
    }
  }
}

/** One line. Prisma's messages have several lines, of which the last one contains the reason. */
function describe(error: Error): string {
  if (error instanceof ConfigError) return error.message;
  const reason = error.message.trim().split('\n').at(-1);
  return `The database became unavailable during startup: ${reason}`;
}
