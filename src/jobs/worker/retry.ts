/** Retries the steps of a worker that must succeed in the end. */

import { AppError } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { ServerUnavailable } from '../../cluster/cluster.ts';
import { GitUnavailable } from '../../git/processes/run.ts';
import {
  isDatabaseUnavailable,
  isDiskFull,
  isResourceExhausted,
} from '../../platform/database/outage.ts';
import type { Bus } from '../../platform/events/bus.ts';
import { StorageUnavailable } from '../../platform/storage/storage.ts';
import { RunnerAway, RunnerFault } from '../../runners/runner.ts';

/** Milliseconds between tries. They double from the first to the longest. */
export type Pauses = { firstMs: number; longestMs: number };

/** The longest pause while the database or the runner is unavailable: a try costs them little, and all work waits for them. */
const MAX_AWAY_PAUSE_MS = 2_000;

export const PAUSES: Pauses = { firstMs: 500, longestMs: 30_000 };

/**
 * Whether an error is likely to pass and is not the job's fault: this machine is short of disk, memory, descriptors or
 * processes, or the storage or the server that has the repository is unavailable or busy.
 */
export function isTransient(error: unknown): boolean {
  return (
    isResourceExhausted(error) ||
    isDiskFull(error) ||
    error instanceof GitUnavailable ||
    error instanceof StorageUnavailable ||
    error instanceof ServerUnavailable ||
    error instanceof RunnerAway ||
    error instanceof RunnerFault ||
    (error instanceof AppError && error.status === 503)
  );
}

type Options = { bus: Bus; log: Logger; signal: AbortSignal; pauses?: Pauses };

/**
 * Retries `step` until it succeeds. A try that lasted longer than the longest pause made progress, so the pauses start again
 * from the first.
 * @returns the result of the step; undefined when `signal` aborts first
 */
export async function retry<T>(
  what: string,
  step: () => Promise<T>,
  { bus, log, signal, pauses = PAUSES }: Options,
): Promise<T | undefined> {
  let pause = pauses.firstMs;
  let wasAway = false;
  while (!signal.aborted) {
    const startedAt = Date.now();
    try {
      return await step();
    } catch (error) {
      if (signal.aborted) break;
      const isAway = isDatabaseUnavailable(error) || error instanceof RunnerAway;
      if (Date.now() - startedAt > pauses.longestMs) pause = pauses.firstMs;
      if (isAway) pause = Math.min(pause, MAX_AWAY_PAUSE_MS);
      // An unavailable database or engine is logged as an error only once; any other error each time.
      const level = isAway && wasAway ? 'debug' : 'error';
      log[level]({ err: error }, `${what} failed; the next try is in ${pause} ms`);
      wasAway = isAway;
      await pauseFor(bus, pause, signal);
      pause = Math.min(pause * 2, pauses.longestMs);
    }
  }
  return undefined;
}

/** Waits for `ms`, or until the database is available again, because its outage may have caused the failure. */
async function pauseFor(bus: Bus, ms: number, signal: AbortSignal): Promise<void> {
  const over = AbortSignal.any([signal, AbortSignal.timeout(ms)]);
  for await (const why of bus.wakes('database', over)) if (why === 'wake') return;
}
