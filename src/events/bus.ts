/** Who waits for what, in this process: readers of tables are woken here when something was said of their topic. */

/** What one can wait for. Of `database` one hears only that the connection to it was made again. */
export type Topic = `job:${string}` | `namespace:${string}` | 'queue' | 'database';

/** Wakers by topic, in this process. */
export class Bus {
  readonly #waiting = new Map<string, Set<() => void>>();

  readonly #closing = new AbortController();

  /** Ends all readers, so that a server that stops does not wait for those who follow something. */
  close(): void {
    this.#closing.abort();
  }

  /** Aborts when the server stops, and readers end. */
  get closing(): AbortSignal {
    return this.#closing.signal;
  }

  /** Whether readers have ended because the server stops. */
  get closed(): boolean {
    return this.#closing.signal.aborted;
  }

  /** How many readers there are, of all topics: one that was left behind shows here. */
  get waiters(): number {
    return this.#waiting.values().reduce((sum, set) => sum + set.size, 0);
  }

  /** Feeds a notification in; null wakes everyone, because some may have been missed. */
  hear = (topic: string | null): void => {
    const sets = topic === null ? this.#waiting.values() : [this.#waiting.get(topic) ?? []];
    for (const set of sets) for (const call of set) call();
  };

  /**
   * Yields `'start'` at once, `'wake'` after something was said about one of the topics, and `'idle'` after
   * `idleMs` of silence; calls that come while the reader is busy become one. Ends when `reader` aborts,
   * or the bus is closed.
   *
   * The reader reads its table after each, so what was written before the first yield is not missed.
   */
  async *wakes(
    topics: Topic | readonly Topic[],
    reader: AbortSignal,
    idleMs = 15_000,
  ): AsyncGenerator<'start' | 'wake' | 'idle'> {
    const signal = AbortSignal.any([reader, this.#closing.signal]);
    let pending = false;
    let call = () => {
      pending = true;
    };
    const ring = () => call();
    for (const topic of [topics].flat())
      this.#waiting.set(topic, (this.#waiting.get(topic) ?? new Set()).add(ring));
    signal.addEventListener('abort', ring);
    try {
      yield 'start';
      while (!signal.aborted) {
        const why = pending ? 'wake' : await silence();
        pending = false;
        if (!signal.aborted) yield why;
      }
    } finally {
      signal.removeEventListener('abort', ring);
      for (const topic of [topics].flat()) {
        const set = this.#waiting.get(topic);
        set?.delete(ring);
        if (set?.size === 0) this.#waiting.delete(topic);
      }
    }

    function silence(): Promise<'wake' | 'idle'> {
      return new Promise((resolve) => {
        const settle = (why: 'wake' | 'idle') => {
          clearTimeout(timer);
          call = () => {
            pending = true;
          };
          resolve(why);
        };
        const timer = setTimeout(settle, idleMs, 'idle' as const);
        call = () => settle('wake');
      });
    }
  }
}
