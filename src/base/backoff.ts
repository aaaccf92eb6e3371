/**
 * Pauses between the tries of an action that fails: exponential backoff with full jitter.
 *
 * Each pause is a random time below a limit that doubles with each failure. It is random because servers, workers and agents lose
 * the same database or server at the same moment. With equal pauses, all of them would return in step and overload it again.
 */

/** A random time below `ms`, in milliseconds. */
export function jitter(ms: number): number {
  return Math.ceil(Math.random() * ms);
}

export type BackoffOptions = {
  /** Upper limit of the first pause, in milliseconds. */
  firstMs: number;
  /** Upper limit of every pause, in milliseconds. */
  longestMs: number;
  /** A try that lasted longer than this many milliseconds made progress, so the next pause is a first one. Unset: never. */
  stableMs?: number;
};

export class Backoff {
  readonly #options: BackoffOptions;
  #limitMs: number;
  #triedAt = performance.now();

  constructor(options: BackoffOptions) {
    this.#options = options;
    this.#limitMs = options.firstMs;
  }

  /**
   * Returns the pause before the next try, in milliseconds, and doubles the limit.
   * @param atMostMs upper limit of this pause, for a failure after which a try is cheap or urgent
   */
  next(atMostMs = Number.POSITIVE_INFINITY): number {
    const { longestMs, stableMs = Number.POSITIVE_INFINITY } = this.#options;
    const now = performance.now();
    if (now - this.#triedAt > stableMs) this.reset();
    const limitMs = Math.min(this.#limitMs, atMostMs);
    this.#limitMs = Math.min(2 * limitMs, longestMs);
    const ms = jitter(limitMs);
    this.#triedAt = now + ms;
    return ms;
  }

  /** Makes the next pause a first one. Called after a success. */
  reset(): void {
    this.#limitMs = this.#options.firstMs;
  }

  /** Waits before the next try, or until `signal` aborts. Never rejects. */
  async pause(signal?: AbortSignal): Promise<void> {
    await sleep(this.next(), signal);
  }
}

/**
 * Waits for `ms` milliseconds, or until `signal` aborts. Never rejects.
 * @param options `ref: false`: the wait does not keep the process alive
 */
export function sleep(
  ms: number,
  signal?: AbortSignal,
  { ref = true }: { ref?: boolean } = {},
): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    if (!ref) timer.unref();
    signal?.addEventListener('abort', end);
  });
}
