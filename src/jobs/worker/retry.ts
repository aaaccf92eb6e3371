/** Steps that must succeed in the end, whatever stands in their way for a while. */

import { AppError } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { ServerAway } from '../../cluster/cluster.ts';
import { GitUnavailable } from '../../git/processes/run.ts';
import { isDatabaseAway, isDiskFull, isResourceExhausted } from '../../platform/database/outage.ts';
import type { Bus } from '../../platform/events/bus.ts';
import { StorageAway } from '../../platform/storage/storage.ts';
import { RunnerAway, RunnerFault } from '../../runners/runner.ts';

/** Milliseconds between tries: doubling from the first to the longest. */
export type Pauses = { firstMs: number; longestMs: number };

/** While the database, or what runs jobs, is away: it is asked for little, and all waits for it. */
const LONGEST_AWAY_MS = 2_000;

export const PAUSES: Pauses = { firstMs: 500, longestMs: 30_000 };

/**
 * Whether a step failed for something that passes by itself, and is no fault of the job: this machine is short of disk,
 * memory, descriptors or processes; the storage, or the server that has the repository, is away or busy.
 */
export function isPassing(error: unknown): boolean {
  return (
    isResourceExhausted(error) ||
    isDiskFull(error) ||
    error instanceof GitUnavailable ||
    error instanceof StorageAway ||
    error instanceof ServerAway ||
    error instanceof RunnerAway ||
    error instanceof RunnerFault ||
    (error instanceof AppError && error.status === 503)
  );
}

type Options = { bus: Bus; log: Logger; signal: AbortSignal; pauses?: Pauses };

/**
 * Tries `step` until it succeeds. A try that lasted longer than the longest pause had worked for a while, and
 * after it the pauses begin anew.
 * @returns what the step does; undefined when `signal` aborts before
 */
export async function retry<T>(
  what: string,
  step: () => Promise<T>,
  { bus, log, signal, pauses = PAUSES }: Options,
): Promise<T | undefined> {
  let pause = pauses.firstMs;
  let reported = false;
  while (!signal.aborted) {
    const begun = Date.now();
    try {
      return await step();
    } catch (error) {
      if (signal.aborted) break;
      const away = isDatabaseAway(error) || error instanceof RunnerAway;
      if (Date.now() - begun > pauses.longestMs) pause = pauses.firstMs;
      if (away) pause = Math.min(pause, LONGEST_AWAY_MS);
      // That the database or the engine is away is logged once, all else each time.
      log[away && reported ? 'debug' : 'error']({ err: error }, `${what}: again in ${pause} ms`);
      reported = away;
      await pauseFor(bus, pause, signal);
      pause = Math.min(pause * 2, pauses.longestMs);
    }
  }
  return undefined;
}

/** Or until the database is back, whose absence may be what failed. */
async function pauseFor(bus: Bus, ms: number, signal: AbortSignal): Promise<void> {
  const over = AbortSignal.any([signal, AbortSignal.timeout(ms)]);
  for await (const why of bus.wakes('database', over)) if (why === 'wake') return;
}
