/**
 * The attempts of this worker that hold capacity. No attempt holds a slot for ever: its steps are retried while the database is
 * unavailable or a resource is short, any other error that repeats for about a minute fails its job, and its removal from the
 * runner uses at most ten seconds of the slot's time and then continues without the slot.
 */

import { setTimeout as delay } from 'node:timers/promises';
import { isDatabaseUnavailable } from '../../platform/database/outage.ts';
import { RunnerAway } from '../../runners/runner.ts';
import type { HeldCapacity } from './admission.ts';
import { failAttempt, superviseAttempt } from './attempt.ts';
import type { Deps } from './attempt-row.ts';
import type { Claim } from './claim.ts';
import { returnToQueue } from './finish.ts';
import { isTransient, type Pauses, retry } from './retry.ts';

/** Consecutive failures that end an attempt: with the pauses between them, about a minute. */
const MAX_FAILURES = 8;
/** The same for transient failures: about a quarter of an hour. */
const MAX_TRANSIENT_FAILURES = 36;
/** A try that lasted this long made progress, so earlier failures no longer count. */
const PROGRESS_MS = 60_000;
/** Removing an attempt may use its slot for this long, so that starts cannot outrun removals. */
const REMOVAL_MS = 10_000;

type Ids = Pick<Claim, 'attemptId' | 'jobId' | 'machine'>;
type Held = HeldCapacity & { done: Promise<void> };

type Options = {
  pauses: Pauses;
  /** An attempt that has not started is queued again when its machine has not answered for this long. */
  awayMs: number;
  /** Aborts when the server stops. */
  signal: AbortSignal;
  /** Called when an attempt has given up a slot or its GPUs. */
  onFreed(): void;
};

export class HeldAttempts {
  /** All attempts that a sweep of the runner must not remove. The sweep reads the set while it runs. */
  readonly known = new Set<string>();
  readonly #deps: Deps;
  readonly #options: Options;
  /** Attempts that hold a slot. */
  readonly #active = new Map<string, Held>();
  /** Attempts that are over but not removed yet. Their GPUs stay reserved until their processes are certainly gone. */
  readonly #leaving = new Map<string, Held>();

  constructor(deps: Deps, options: Options) {
    this.#deps = deps;
    this.#options = options;
  }

  get slotsUsed(): number {
    return this.#active.size;
  }

  has(attemptId: string): boolean {
    return this.#active.has(attemptId) || this.#leaving.has(attemptId);
  }

  /** The capacity in use. An attempt that is being removed and still has its slot counts as one that has not ended. */
  capacity(): HeldCapacity[] {
    const withoutSlot = [...this.#leaving].filter(([attemptId]) => !this.#active.has(attemptId));
    return [
      ...this.#active.values(),
      ...withoutSlot.map(([, held]) => ({ ...held, leaving: true })),
    ];
  }

  /** Starts to supervise an attempt, which holds a slot until it is over. */
  add({ attemptId, jobId, ...request }: Claim): void {
    this.known.add(attemptId);
    const done = this.#supervise({ attemptId, jobId, machine: request.machine })
      .then((isOver) => (isOver ? this.#remove(attemptId, request) : undefined))
      .finally(() => {
        this.#active.delete(attemptId);
        this.#options.onFreed();
      });
    this.#active.set(attemptId, { ...request, done });
  }

  /** Settles when no attempt is supervised or removed any more. */
  async settled(): Promise<void> {
    await Promise.all([...this.#active.values()].map(({ done }) => done));
    await Promise.all([...this.#leaving.values()].map(({ done }) => done));
  }

  /**
   * Retries a removal until it succeeds or the server stops.
   * @returns `tried` settles when the removal is done, has failed once, or has taken ten seconds
   */
  removeWithRetries(what: string, remove: () => Promise<void>) {
    const firstTry = Promise.withResolvers<void>();
    const done = this.#retry(`Removing ${what}`, () =>
      remove().finally(() => firstTry.resolve()),
    ).then(() => {});
    const timeout = new AbortController();
    const tried = Promise.race([
      firstTry.promise,
      // When the server stops, there may be no first try.
      done,
      delay(REMOVAL_MS, undefined, { signal: timeout.signal }).catch(() => {}),
    ]).finally(() => timeout.abort());
    return { done, tried };
  }

  #retry<T>(what: string, step: () => Promise<T>): Promise<T | undefined> {
    const { bus, log } = this.#deps;
    const { signal, pauses } = this.#options;
    return retry(what, step, { bus, log, signal, pauses });
  }

  /** @returns whether the attempt is over; false when the server stops first */
  async #supervise(attempt: Ids): Promise<boolean> {
    const { attemptId, jobId } = attempt;
    const { log, metrics } = this.#deps;
    const { awayMs, signal } = this.#options;
    let failures = 0;
    let awaySince = Number.POSITIVE_INFINITY;
    const isOver = await this.#retry(`Supervising job ${jobId}`, async () => {
      const startedAt = Date.now();
      try {
        return await superviseAttempt(this.#deps, { attemptId, jobId }, signal);
      } catch (error) {
        if (signal.aborted || isDatabaseUnavailable(error)) throw error;
        const isAway = error instanceof RunnerAway && !this.#hasMachine(attempt.machine);
        awaySince = isAway ? Math.min(awaySince, Date.now()) : Number.POSITIVE_INFINITY;
        if (Date.now() - awaySince > awayMs && (await returnToQueue(this.#deps, attempt))) {
          metrics.attemptEnded('lost');
          return true;
        }
        if (error instanceof RunnerAway) throw error;
        failures = Date.now() - startedAt > PROGRESS_MS ? 1 : failures + 1;
        if (failures < (isTransient(error) ? MAX_TRANSIENT_FAILURES : MAX_FAILURES)) throw error;
        log.error({ err: error, job: jobId }, 'The attempt failed too often and is given up');
        return this.#fail(attempt, error);
      }
    });
    return isOver ?? false;
  }

  #hasMachine(id: string): boolean {
    const { config, runner } = this.#deps;
    return config.jobSlots > 0 && runner.machines.some((machine) => machine.id === id);
  }

  /** @throws Error while the database is unavailable; this counts as one more failure, and the attempt is retried */
  async #fail({ attemptId, jobId }: Ids, cause: unknown): Promise<true> {
    try {
      await failAttempt(this.#deps, attemptId, cause);
    } catch (error) {
      if (isDatabaseUnavailable(error)) throw error;
      // The next start of the server resumes the attempt. Until then it must not keep a slot from other jobs.
      this.#deps.log.error({ err: error, job: jobId }, 'Cannot record the end of the attempt');
    }
    return true;
  }

  /** Settles when the attempt is removed, or when waiting for its removal would hold the slot for too long. */
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
