/**
 * The outbox and the wake-up calls.
 *
 * A state change writes its event in its own transaction (`publish`), so neither exists without the other.
 * Readers keep a cursor and read the table; NOTIFY only tells them when to look again, so a lost call
 * delays a reader by one idle period and loses nothing.
 */
import type { Prisma } from '../../prisma/generated/client.ts';
import { newId } from '../ids.ts';

/** Every transition of a job, and what happens to repositories. Webhooks send some of them under other names. */
export type EventType =
  | `job.${'queued' | 'running' | 'succeeded' | 'failed' | 'cancelled' | 'timed_out' | 'deleted'}`
  | `repository.${'created' | 'renamed' | 'transferred' | 'updated' | 'pushed' | 'deleted'}`;

export type NewEvent = {
  /** Chosen beforehand by who may come to write it twice: ids are unique. Default: a new one. */
  id?: string;
  type: EventType;
  namespaceId: string;
  /** The id of the job or repository. */
  subject: string;
  /** What readers need of the state at that moment; never a secret or a job's `env`. */
  data: Prisma.InputJsonObject;
};

/** What one can wait for. Of `database` one hears only that the connection to it was made again. */
export type Topic = `job:${string}` | `namespace:${string}` | 'queue' | 'database';

type Tx = Pick<Prisma.TransactionClient, 'event' | '$executeRaw'>;

/** Writes the event and wakes its readers when the transaction commits. */
export async function publish(tx: Tx, event: NewEvent): Promise<void> {
  await tx.event.create({ data: { id: newId('evt'), ...event }, select: { seq: true } });
  await wake(tx, `namespace:${event.namespaceId}`);
}

/** Wakes who waits for the topic, on every server, when the transaction commits. */
export async function wake(tx: Pick<Tx, '$executeRaw'>, topic: Topic): Promise<void> {
  await tx.$executeRaw`select pg_notify('loam', ${topic})`;
}

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
