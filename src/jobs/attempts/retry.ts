/** Retries the steps of a worker with exponential backoff until they succeed or the server stops. */

import { Backoff } from '../../base/backoff.ts';
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
import { RunnerFault, RunnerUnavailable } from '../../runners/runner.ts';

/** Limits of the random pauses between tries, in milliseconds, which double from the first to the longest. */
export type RetryPauses = { firstMs: number; longestMs: number };

/** Longest pause while the database or the runner is unavailable: a try is cheap, and all work waits for them. */
const MAX_UNAVAILABLE_PAUSE_MS = 2_000;

export const DEFAULT_PAUSES: RetryPauses = { firstMs: 500, longestMs: 30_000 };

/**
 * Whether an error is likely to pass and was not caused by the job: this machine is short of disk, memory, file descriptors or
 * processes, or the storage, the runner or the server that has the repository is unavailable or busy.
 */
export function isTransient(error: unknown): boolean {
  return (
    isResourceExhausted(error) ||
    isDiskFull(error) ||
    error instanceof GitUnavailable ||
    error instanceof StorageUnavailable ||
    error instanceof ServerUnavailable ||
    error instanceof RunnerUnavailable ||
    error instanceof RunnerFault ||
    (error instanceof AppError && error.status === 503)
  );
}

/** Whether a result of a job is stored by a later try. On a full disk it is not: the log of the job says why. */
export function isStoredLater(error: unknown): boolean {
  return isDatabaseUnavailable(error) || (isTransient(error) && !isDiskFull(error));
}

type Options = { bus: Bus; log: Logger; signal: AbortSignal; pauses?: RetryPauses };

/**
 * Retries `step` until it succeeds. After a try that lasted longer than the longest pause, and so made progress, the pauses
 * start again from the first.
 * @param activity the subject of the log message, such as `Claiming jobs`
 * @returns the result of the step; undefined when `signal` aborts first
 */
export async function retry<T>(
  activity: string,
  step: () => Promise<T>,
  { bus, log, signal, pauses = DEFAULT_PAUSES }: Options,
): Promise<T | undefined> {
  const backoff = new Backoff({ ...pauses, stableMs: pauses.longestMs });
  let wasUnavailable = false;
  while (!signal.aborted) {
    try {
      return await step();
    } catch (error) {
      if (signal.aborted) break;
      const isUnavailable = isDatabaseUnavailable(error) || error instanceof RunnerUnavailable;
      const pause = backoff.next(isUnavailable ? MAX_UNAVAILABLE_PAUSE_MS : undefined);
      // An unavailable database or engine is logged as an error only once; any other error each time.
      const level = isUnavailable && wasUnavailable ? 'debug' : 'error';
      log[level]({ err: error }, `${activity} failed; the next try is in ${pause} ms`);
      wasUnavailable = isUnavailable;
      await pauseFor(bus, pause, signal);
    }
  }
  return undefined;
}

/** Waits for `ms`, or until the database is available again, because its outage may have caused the failure. */
async function pauseFor(bus: Bus, ms: number, signal: AbortSignal): Promise<void> {
  const ended = AbortSignal.any([signal, AbortSignal.timeout(ms)]);
  for await (const reason of bus.wakes('database', ended)) if (reason === 'wake') return;
}
