/** A start that meets a database which is away: stopped, restarting, recovering, out of reach for a moment. */
import { setTimeout as delay } from 'node:timers/promises';
import { ConfigError } from '../../base/config/config.ts';
import { isDatabaseAway } from './outage.ts';

/** A restart of PostgreSQL, or another machine that takes over, is done by then; whoever watches services starts us again. */
const PATIENCE_MS = 60_000;
const PAUSE_MS = 1_000;

type Options = {
  /** Tells the operator, once. */
  say(line: string): void;
  patienceMs?: number;
};

/**
 * Begins anew, as often as the database is away at whatever step, for a minute. `start` leaves nothing behind when it fails.
 * @throws ConfigError that says why, when it is still away then; and what `start` throws for any other reason
 */
export async function retryStartup<T>(
  start: () => Promise<T>,
  { say, patienceMs = PATIENCE_MS }: Options,
): Promise<T> {
  const deadline = Date.now() + patienceMs;
  for (let said = false; ; said = true) {
    try {
      return await start();
    } catch (error) {
      if (!isDatabaseAway(error)) throw error;
      const line = inOneLine(error as Error);
      if (Date.now() + PAUSE_MS > deadline) throw new ConfigError(line, { cause: error });
      if (!said)
        say(`${line}. The start waits for the database, for ${patienceMs / 1000} s at most.`);
      await delay(PAUSE_MS);
    }
  }
}

/** The last line of Prisma's words is the one that says what happened. */
function inOneLine(error: Error): string {
  if (error instanceof ConfigError) return error.message;
  const why = error.message.trim().split('\n').at(-1);
  return `The database went away during the start: ${why}`;
}
