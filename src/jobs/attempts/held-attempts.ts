/**
 * The attempts of this worker that hold capacity. No attempt holds a slot forever:
 * - Its steps are retried while the database is unavailable or a resource is exhausted.
 * - Any other error that repeats for about a minute fails its job.
 * - Its removal from the runner keeps the slot for at most ten seconds, and then continues without a slot.
 */

import { sleep } from '../../base/backoff.ts';
import { isDatabaseUnavailable } from '../../platform/database/outage.ts';
import { listClusters, RunnerUnavailable } from '../../runners/runner.ts';
import type { HeldCapacity } from '../queue/admission.ts';
import type { ClaimedAttempt } from '../queue/claim.ts';
import { listUsableMachines } from '../queue/worker-capacity.ts';
import { superviseAttempt } from './attempt.ts';
import type { Deps } from './attempt-row.ts';
import { failAttempt, returnToQueue } from './finish.ts';
import { isTransient, type RetryPauses, retry } from './retry.ts';

/** Consecutive failures that end an attempt: with the pauses between them, about a minute. */
const MAX_FAILURES = 10;
/** The same for transient failures: about a quarter of an hour. */
const MAX_TRANSIENT_FAILURES = 66;
/** A try that lasted this long made progress, so earlier failures no longer count. */
const PROGRESS_MS = 60_000;
/** A removal keeps the attempt's slot for this long, so that attempts are not started faster than they are removed. */
const REMOVAL_MS = 10_000;

type AttemptIds = Pick<ClaimedAttempt, 'attemptId' | 'jobId' | 'machine'>;
type HeldAttempt = HeldCapacity & { done: Promise<void> };

type Options = {
  pauses: RetryPauses;
  /** An attempt that has not started is queued again when its machine has not answered for this long. */
  awayMs: number;
  /** Aborts when the server stops. */
  signal: AbortSignal;
  /** Called when an attempt has given up a slot or its GPUs. */
  onFreed(): void;
};

export class HeldAttempts {
  /** Ids of the attempts that the runner's sweep of orphans must not remove. The sweep reads the set while it runs. */
  readonly known = new Set<string>();
  readonly #deps: Deps;
  readonly #options: Options;
  /** Attempts that hold a slot, or a place among the jobs of a cluster. */
  readonly #active = new Map<string, HeldAttempt>();
  /** Ended attempts that are being removed. Their GPUs stay allocated until their processes have certainly ended. */
  readonly #leaving = new Map<string, HeldAttempt>();

  constructor(deps: Deps, options: Options) {
    this.#deps = deps;
    this.#options = options;
  }

  /** Attempts on clusters use no slots. */
  get slotsUsed(): number {
    const clusters = new Set(listClusters(this.#deps.runner).map(({ id }) => id));
    if (clusters.size === 0) return this.#active.size;
    return this.#active
      .values()
      .reduce((used, { machine }) => (clusters.has(machine) ? used : used + 1), 0);
  }

  /** Counts the attempts of each cluster, waiting or running, by the id of its machine. */
  countClusterJobs(): Map<string, number> {
    const counts = new Map(listClusters(this.#deps.runner).map(({ id }) => [id, 0]));
    for (const { machine } of this.#active.values()) {
      const count = counts.get(machine);
      if (count !== undefined) counts.set(machine, count + 1);
    }
    return counts;
  }

  has(attemptId: string): boolean {
    return this.#active.has(attemptId) || this.#leaving.has(attemptId);
  }

  /** Lists the capacity in use. An attempt that is being removed counts as running while it still has its slot. */
  capacity(): HeldCapacity[] {
    const withoutSlot = [...this.#leaving].filter(([attemptId]) => !this.#active.has(attemptId));
    return [
      ...this.#active.values(),
      ...withoutSlot.map(([, held]) => ({ ...held, isLeaving: true })),
    ];
  }

  /** Starts to supervise an attempt, which holds a slot until it has ended. */
  add({ attemptId, jobId, ...request }: ClaimedAttempt): void {
    this.known.add(attemptId);
    const done = this.#supervise({ attemptId, jobId, machine: request.machine })
      .then((hasEnded) => (hasEnded ? this.#remove(attemptId, request) : undefined))
      .finally(() => {
        this.#active.delete(attemptId);
        this.#options.onFreed();
      });
    this.#active.set(attemptId, { ...request, done });
  }

  /** Resolves when no attempt is supervised or being removed any more. */
  async settled(): Promise<void> {
    await Promise.all([...this.#active.values()].map(({ done }) => done));
    await Promise.all([...this.#leaving.values()].map(({ done }) => done));
  }

  /**
   * Retries a removal until it succeeds or the server stops.
   * @param subject what is removed, for the log
   * @returns `done` resolves after the last try; `tried` when the first try has ended or has taken ten seconds
   */
  removeWithRetries(subject: string, remove: () => Promise<void>) {
    const firstTry = Promise.withResolvers<void>();
    const done = this.#retry(`Removing ${subject}`, () =>
      remove().finally(() => firstTry.resolve()),
    ).then(() => {});
    const timeout = new AbortController();
    const tried = Promise.race([
      firstTry.promise,
      // When the server stops, there may be no first try.
      done,
      sleep(REMOVAL_MS, timeout.signal),
    ]).finally(() => timeout.abort());
    return { done, tried };
  }

  #retry<T>(activity: string, step: () => Promise<T>): Promise<T | undefined> {
    const { bus, log } = this.#deps;
    const { signal, pauses } = this.#options;
    return retry(activity, step, { bus, log, signal, pauses });
  }

  /** @returns whether the attempt has ended; false when the server stops first */
  async #supervise(attempt: AttemptIds): Promise<boolean> {
    const { attemptId, jobId } = attempt;
    const { log, metrics } = this.#deps;
    const { awayMs, signal } = this.#options;
    let failures = 0;
    let awaySince = Number.POSITIVE_INFINITY;
    const hasEnded = await this.#retry(`Supervising job ${jobId}`, async () => {
      const startedAt = Date.now();
      try {
        return await superviseAttempt(this.#deps, { attemptId, jobId }, signal);
      } catch (error) {
        if (signal.aborted || isDatabaseUnavailable(error)) throw error;
        const isAway = error instanceof RunnerUnavailable && !this.#hasMachine(attempt.machine);
        awaySince = isAway ? Math.min(awaySince, Date.now()) : Number.POSITIVE_INFINITY;
        if (Date.now() - awaySince > awayMs && (await returnToQueue(this.#deps, attempt))) {
          metrics.attemptEnded('lost');
          return true;
        }
        if (error instanceof RunnerUnavailable) throw error;
        failures = Date.now() - startedAt > PROGRESS_MS ? 1 : failures + 1;
        if (failures < (isTransient(error) ? MAX_TRANSIENT_FAILURES : MAX_FAILURES)) throw error;
        log.error(
          { err: error, job: jobId },
          'Supervising the attempt failed too often; its job fails',
        );
        return this.#fail(attempt, error);
      }
    });
    return hasEnded ?? false;
  }

  #hasMachine(id: string): boolean {
    const { config, runner } = this.#deps;
    return listUsableMachines(runner, config.jobSlots).some((machine) => machine.id === id);
  }

  /** @throws Error while the database is unavailable; the caller then retries */
  async #fail({ attemptId, jobId }: AttemptIds, cause: unknown): Promise<true> {
    try {
      await failAttempt(this.#deps, attemptId, cause);
    } catch (error) {
      if (isDatabaseUnavailable(error)) throw error;
      // The next start of the server resumes the attempt. Until then it must not keep a slot from other jobs.
      this.#deps.log.error({ err: error, job: jobId }, 'Cannot record the end of the attempt');
    }
    return true;
  }

  /** Resolves when the slot of an ended attempt can be reused: after its removal, or after `REMOVAL_MS`. */
  async #remove(attemptId: string, capacity: HeldCapacity): Promise<void> {
    const { done, tried } = this.removeWithRetries(`attempt ${attemptId}`, () =>
      this.#deps.runner.remove({ attempt: attemptId }),
    );
    const removed = done.then(() => {
      this.#leaving.delete(attemptId);
      this.known.delete(attemptId);
      this.#options.onFreed();
    });
    this.#leaving.set(attemptId, { ...capacity, done: removed });
    await tried;
  }
}
