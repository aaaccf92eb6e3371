/** Retries startup while the database is unavailable: stopped, restarting, recovering or unreachable for a moment. */
import { setTimeout as delay } from 'node:timers/promises';
import { ConfigError } from '../../base/config/config.ts';
import { isDatabaseUnavailable } from './outage.ts';

/** PostgreSQL restarts or fails over within this time. After that the process manager starts Loam again. */
const TIMEOUT_MS = 60_000;
const PAUSE_MS = 1_000;

type Options = {
  /** Prints a line for the operator; called once. */
  say(line: string): void;
  timeoutMs?: number;
};

/**
 * Runs `start` again whenever it fails because the database is unavailable. `start` must clean up after itself.
 * @throws ConfigError with the reason after `timeoutMs`; every other error of `start` at once
 */
export async function retryStartup<T>(
  start: () => Promise<T>,
  { say, timeoutMs = TIMEOUT_MS }: Options,
): Promise<T> {
  const deadline = Date.now() + timeoutMs;
  for (let said = false; ; said = true) {
    try {
      return await start();
    } catch (error) {
      if (!isDatabaseUnavailable(error)) throw error;
      const line = toLine(error as Error);
      if (Date.now() + PAUSE_MS > deadline) throw new ConfigError(line, { cause: error });
      if (!said)
        say(`${line}. The start waits for the database, for ${timeoutMs / 1000} s at most.`);
      await delay(PAUSE_MS);
    }
  }
}

/** Prisma's messages have several lines; the last one says what happened. */
function toLine(error: Error): string {
  if (error instanceof ConfigError) return error.message;
  const why = error.message.trim().split('\n').at(-1);
  return `The database went away during the start: ${why}`;
}
