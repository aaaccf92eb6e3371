/** Wakes readers in this process when a notification of PostgreSQL names their topic. */

/** What a reader can wait for. */
export type Topic =
  /** Events of a namespace, of one job or repository, or of all namespaces. */
  | `namespace:${string}`
  | `subject:${string}`
  | 'events'
  /** The log of a job. */
  | `job:${string}`
  /** New events of a list that subscribers share (`tail.ts`). */
  | `tail:${string}`
  /** The job queue. */
  | 'queue'
  /** Changes of jobs on which others depend. */
  | 'job-changes'
  /** Triggers of runs. */
  | 'runs'
  /** The runs of a repository. */
  | `runs:${string}`
  /** Due deliveries of all webhooks, or all changes of the deliveries of one webhook. */
  | 'deliveries'
  | `webhook:${string}`
  /** The machines that have joined. */
  | 'machines'
  /** The list of servers. */
  | 'servers'
  /** The database connection was restored. */
  | 'database';

/** One notification for the three topics of an event, because each notification costs the writing transaction a statement. */
export function eventNotification(namespaceId: string, subject: string) {
  return `event:${namespaceId}:${subject}` as const;
}

/** Payload of NOTIFY. */
export type NotifyPayload = Topic | ReturnType<typeof eventNotification>;

function topicsOf(notification: string): string[] {
  const [kind, namespaceId, subject] = notification.split(':');
  return kind === 'event'
    ? ['events', `namespace:${namespaceId}`, `subject:${subject}`]
    : [notification];
}

/** The waiting readers of this process, by topic. */
export class Bus {
  readonly #waiting = new Map<string, Set<() => void>>();

  readonly #closing = new AbortController();

  /** Ends the waiting of all readers, so that a stopping server does not wait for subscriptions. */
  close(): void {
    this.#closing.abort();
  }

  /** Aborts when the server stops. */
  get closing(): AbortSignal {
    return this.#closing.signal;
  }

  /** Whether the bus was closed because the server stops. */
  get isClosed(): boolean {
    return this.#closing.signal.aborted;
  }

  /** Number of readers of all topics; tests check it for leaks. */
  get waiters(): number {
    return this.#waiting.values().reduce((sum, set) => sum + set.size, 0);
  }

  /** Wakes the readers of a notification; null wakes all readers, because notifications may have been missed. */
  notify = (notification: string | null): void => {
    const topics = notification === null ? this.#waiting.keys() : topicsOf(notification);
    for (const topic of topics) for (const wakeUp of this.#waiting.get(topic) ?? []) wakeUp();
  };

  /**
   * Yields `'start'` at once, `'wake'` after a notification of one of the topics, and `'idle'` after `idleMs` without a
   * notification (a function is called before each wait). Notifications that arrive while the reader is busy are coalesced.
   * Ends when `reader` aborts or the bus is closed.
   *
   * The topics are registered before the first yield, and the reader must read its table after each yield, so it misses no row.
   */
  async *wakes(
    topics: Topic | readonly Topic[],
    reader: AbortSignal,
    idleMs: number | (() => number) = 15_000,
  ): AsyncGenerator<'start' | 'wake' | 'idle'> {
    const signal = AbortSignal.any([reader, this.#closing.signal]);
    let pending = false;
    let wakeUp = () => {
      pending = true;
    };
    const onNotification = () => wakeUp();
    for (const topic of [topics].flat())
      this.#waiting.set(topic, (this.#waiting.get(topic) ?? new Set()).add(onNotification));
    signal.addEventListener('abort', onNotification);
    try {
      yield 'start';
      while (!signal.aborted) {
        const why = pending ? 'wake' : await waitForWake();
        pending = false;
        if (!signal.aborted) yield why;
      }
    } finally {
      signal.removeEventListener('abort', onNotification);
      for (const topic of [topics].flat()) {
        const set = this.#waiting.get(topic);
        set?.delete(onNotification);
        if (set?.size === 0) this.#waiting.delete(topic);
      }
    }

    function waitForWake(): Promise<'wake' | 'idle'> {
      return new Promise((resolve) => {
        const settle = (why: 'wake' | 'idle') => {
          clearTimeout(timer);
          wakeUp = () => {
            pending = true;
          };
          resolve(why);
        };
        const ms = typeof idleMs === 'number' ? idleMs : idleMs();
        const timer = setTimeout(settle, ms, 'idle' as const);
        wakeUp = () => settle('wake');
      });
    }
  }
}
