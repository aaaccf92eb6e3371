/** Tracks work that outlives its request. Disposal waits for the work, and aborts it after a timeout. */

/** How long work may continue after shutdown has begun. */
const STOP_TIMEOUT_MS = 10_000;

export class Tasks {
  readonly #stopping = new AbortController();
  readonly #running = new Set<Promise<unknown>>();
  readonly #onError: (error: unknown) => void;

  /** `onError` receives errors of background work, except those after an abort at shutdown. */
  constructor(onError: (error: unknown) => void) {
    this.#onError = onError;
  }

  /** Runs `work` and returns its result. `work` should end soon after its signal aborts. */
  run<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const running = work(this.#stopping.signal);
    const settled = running
      .catch(() => {})
      .finally(() => {
        this.#running.delete(settled);
      });
    this.#running.add(settled);
    return running;
  }

  /** Like `run`, for work whose result nobody awaits. */
  background(work: (signal: AbortSignal) => Promise<void>): void {
    this.run(work).catch((error) => {
      if (!this.#stopping.signal.aborted) this.#onError(error);
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const timer = setTimeout(() => this.#stopping.abort(), STOP_TIMEOUT_MS);
    while (this.#running.size > 0) await Promise.all(this.#running);
    clearTimeout(timer);
    this.#stopping.abort();
  }
}
