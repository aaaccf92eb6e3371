/** Wakes the readers of tables in this process when a notification of the database names their topic. */

/**
 * What a reader can wait for: the events of a namespace, of one job or repository, or all of them; a job's journal;
 * the queue; the deliveries of webhooks that are due, and all those of one webhook; what comes to a list that
 * subscribers share (`tail.ts`). A reader of `database` is woken only when the connection to it was made again.
 */
export type Topic =
  | `namespace:${string}`
  | `subject:${string}`
  | 'events'
  | `job:${string}`
  | `tail:${string}`
  | 'queue'
  | 'deliveries'
  | `webhook:${string}`
  | 'servers'
  | 'database';

/** One notification serves all readers of an event: each costs the writing transaction a statement. */
export function eventNotification(namespaceId: string, subject: string) {
  return `event:${namespaceId}:${subject}` as const;
}

/** What is sent with NOTIFY. */
export type Notification = Topic | ReturnType<typeof eventNotification>;

function topicsOf(notification: string): string[] {
  const [kind, namespaceId, subject] = notification.split(':');
  return kind === 'event'
    ? ['events', `namespace:${namespaceId}`, `subject:${subject}`]
    : [notification];
}

/** The readers that wait in this process, by topic. */
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

  /** How many readers there are, of all topics: tests see here whether one was left behind. */
  get waiters(): number {
    return this.#waiting.values().reduce((sum, set) => sum + set.size, 0);
  }

  /** Takes a notification in; null wakes every reader, because some may have been missed. */
  notify = (notification: string | null): void => {
    const topics = notification === null ? this.#waiting.keys() : topicsOf(notification);
    for (const topic of topics) for (const call of this.#waiting.get(topic) ?? []) call();
  };

  /**
   * Yields `'start'` at once, `'wake'` after a notification named one of the topics, and `'idle'` after `idleMs`
   * without one; a function is asked for it each time. Notifications that come while the reader is busy become one.
   * Ends when `reader` aborts, or the bus is closed.
   *
   * The reader reads its table after each, so what was written before the first yield is not missed.
   */
  async *wakes(
    topics: Topic | readonly Topic[],
    reader: AbortSignal,
    idleMs: number | (() => number) = 15_000,
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
        const ms = typeof idleMs === 'number' ? idleMs : idleMs();
        const timer = setTimeout(settle, ms, 'idle' as const);
        call = () => settle('wake');
      });
    }
  }
}
