/** Requests that are repeated while the server restarts or the network is away. */
import { LoamError } from './errors.ts';

const FIRST_LIMIT_MS = 500;
const MAX_LIMIT_MS = 5_000;
/** An error of the server itself may stay, so such answers are not awaited longer. */
const MAX_INTERNAL_ERRORS_MS = 30_000;

/** For calls that repeat their requests while the server restarts or the network is away, without a limit of time. */
export type RetryOptions = {
  /** Ends the call with the reason of the signal. */
  signal?: AbortSignal | undefined;
  /** Called before each wait. */
  onRetry?: ((error: LoamError) => void) | undefined;
  /** Called when a try succeeds after a failure. */
  onRecovered?: (() => void) | undefined;
};

/**
 * Counts the failures in a row, and waits longer after each: a random time below 0.5 s, doubling to 5 s, after the time for
 * which the server asks. With equal pauses, all clients of a server that restarts would return in step and overload it.
 */
export class Backoff {
  readonly #options: RetryOptions;
  #limitMs = FIRST_LIMIT_MS;
  #failed = false;
  /** When the first of the internal errors in a row was answered, in milliseconds of the clock of this process. */
  #internalErrorsSince: number | undefined;

  constructor(options: RetryOptions = {}) {
    this.#options = options;
  }

  /** Waits before the next try. @throws the error itself, if the same request cannot succeed later */
  async afterFailure(error: unknown): Promise<void> {
    this.#options.signal?.throwIfAborted();
    if (!(error instanceof LoamError) || !error.isTemporary) throw error;
    if (error.code === 'internal_error') {
      this.#internalErrorsSince ??= performance.now();
      if (performance.now() - this.#internalErrorsSince > MAX_INTERNAL_ERRORS_MS) throw error;
    }
    this.#failed = true;
    this.#options.onRetry?.(error);
    const asked = Math.min((error.retryAfter ?? 0) * 1_000, 60_000);
    const pause = Math.random() * this.#limitMs;
    this.#limitMs = Math.min(this.#limitMs * 2, MAX_LIMIT_MS);
    await sleep(asked + pause, this.#options.signal);
  }

  succeeded(): void {
    if (this.#failed) this.#options.onRecovered?.();
    this.#failed = false;
    this.#internalErrorsSince = undefined;
    this.#limitMs = FIRST_LIMIT_MS;
  }
}

/** Repeats an action, which must be safe to repeat, while its failure is temporary. */
export async function retry<T>(act: () => Promise<T>, options?: RetryOptions): Promise<T> {
  const backoff = new Backoff(options);
  for (;;) {
    try {
      const result = await act();
      backoff.succeeded();
      return result;
    } catch (error) {
      await backoff.afterFailure(error);
    }
  }
}

/** @throws the reason of the signal */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const onAbort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', onAbort);
      resolve();
    }, ms);
    signal?.addEventListener('abort', onAbort, { once: true });
  });
}
