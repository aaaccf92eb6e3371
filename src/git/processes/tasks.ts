/** Work that outlives the request which began it, with an owner: disposing waits for it, then ends it. */

/** How long work may go on after the server was asked to stop. */
const PATIENCE_MS = 10_000;

export class Tasks {
  readonly #stopping = new AbortController();
  readonly #running = new Set<Promise<unknown>>();
  readonly #report: (error: unknown) => void;

  /** `report` gets what background work throws, unless it was because we are stopping. */
  constructor(report: (error: unknown) => void) {
    this.#report = report;
  }

  /** Runs `work` and answers as it does; it should end soon after its signal aborts. */
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

  /** As `run`, for work that nobody waits for. */
  background(work: (signal: AbortSignal) => Promise<void>): void {
    this.run(work).catch((error) => {
      if (!this.#stopping.signal.aborted) this.#report(error);
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const timer = setTimeout(() => this.#stopping.abort(), PATIENCE_MS);
    while (this.#running.size > 0) await Promise.all(this.#running);
    clearTimeout(timer);
    this.#stopping.abort();
  }
}
