/**
 * One poller of new events for all subscribers in this process that follow the same query.
 *
 * The poller appends new events to a linked list in memory and wakes the subscribers. A subscriber joins the list in steps:
 *
 *   1. It marks the last node of the list.
 *   2. It reads a page of events from the database, from its cursor on.
 *   3. A page that is not full contains every event up to the mark, so the subscriber continues in the list after the mark
 *      and skips the events that the page contained. After a full page it repeats the steps.
 *
 * Without sharing, each notification would cost one query per subscriber: 5,000 subscribers, twice a second, are more than
 * the database can answer. Nodes that all subscribers have passed are garbage collected. A subscriber that falls too far
 * behind leaves the list and catches up from the database again.
 */

import type pg from 'pg';
import type { Db } from '../database/client.ts';
import { retryWhileUnavailable } from '../database/outage.ts';
import type { Bus, Topic } from './bus.ts';
import { type Cursor, cursorAfter, isAfter, isInSnapshot } from './cursor.ts';
import {
  type EventQuery,
  followPages,
  type OutboxEvent,
  type PositionedEvent,
  readPage,
} from './pages.ts';

type SharedQuery = {
  /** Subscribers whose queries have the same key share one list. */
  key: string;
  topics: readonly Topic[];
  query: EventQuery;
  /** Rows of a page. */
  size: number;
};

type ListNode = { index: number; cursor: Cursor; event?: OutboxEvent; next?: ListNode };

/**
 * A node keeps all later nodes in memory. So nothing but `position` and `mark` may refer to a node while a subscriber waits
 * for its client, and the poller clears both for a subscriber that is too far behind.
 */
type Subscriber = {
  /** The last node that the subscriber has passed; null while it catches up. */
  position: ListNode | null;
  /** The end of the list before the current catch-up read; null if the subscriber has fallen too far behind since. */
  mark: ListNode | null;
  /** Subscribers with the same topic are woken together. */
  topic: Topic;
};

/** Maximum number of events (at most 20 kB each) that the list keeps for a slow subscriber. */
const MAX_EVENTS_BEHIND = 500;
/**
 * Subscribers that are woken in one iteration of the event loop. Waking 5,000 at once blocked all other requests for a second,
 * and the first subscriber received its event only when the last one did.
 */
const WAKE_GROUP_SIZE = 50;

type Deps = { db: Db; pool: pg.Pool; bus: Bus };

/** The shared list of one query, and its poller, which runs from the creation until `stop`. */
class Tail {
  readonly subscribers = new Set<Subscriber>();
  /** The last node of the list; undefined until the poller has created the list. */
  last: ListNode | undefined;
  failure: { error: unknown } | undefined;
  readonly #stop = new AbortController();
  readonly #bus: Bus;
  readonly #key: string;
  #joinCount = 0;

  constructor(services: Deps, { key, topics, query, size }: SharedQuery) {
    this.#bus = services.bus;
    this.#key = key;
    this.#poll(services, topics, query, size).catch((error) => {
      this.failure = { error };
      for (const { topic } of this.subscribers) this.#bus.notify(topic);
    });
  }

  join(): Subscriber {
    const group = Math.floor(this.#joinCount++ / WAKE_GROUP_SIZE);
    const topic = `tail:${group}:${this.#key}` as const;
    const subscriber: Subscriber = { position: null, mark: null, topic };
    this.subscribers.add(subscriber);
    return subscriber;
  }

  stop(): void {
    this.#stop.abort();
  }

  async #poll(services: Deps, topics: readonly Topic[], query: EventQuery, size: number) {
    const { signal } = this.#stop;
    // Without the snapshot of the cursor: the list must contain the new events of all its subscribers.
    const { xid, seq } = await retryWhileUnavailable(() => cursorAfter(services, null), signal);
    const begin = { xid, seq };
    this.last = { index: 0, cursor: begin };
    await this.#wakeSubscribers();
    for await (const page of followPages(services, topics, query, size, begin, signal)) {
      for (const event of page) this.last = append(this.last, event);
      const { index } = this.last;
      const isTooFarBehind = (node: ListNode | null) =>
        node && index - node.index > MAX_EVENTS_BEHIND;
      for (const subscriber of this.subscribers) {
        if (isTooFarBehind(subscriber.position)) subscriber.position = null;
        if (isTooFarBehind(subscriber.mark)) subscriber.mark = null;
      }
      await this.#wakeSubscribers();
    }
  }

  async #wakeSubscribers(): Promise<void> {
    for (const topic of new Set([...this.subscribers].map((subscriber) => subscriber.topic))) {
      this.#bus.notify(topic);
      await new Promise(setImmediate);
    }
  }

  /**
   * Attaches the subscriber to the end of the list if its cursor has reached that end. Otherwise marks the end, and the
   * subscriber must read the database.
   */
  attachOrMark(subscriber: Subscriber, cursor: Cursor): 'attached' | 'marked' {
    const last = this.last ?? null;
    if (last !== null && isAfter(last.cursor, cursor)) {
      subscriber.mark = last;
      return 'marked';
    }
    subscriber.position = last;
    return 'attached';
  }
}

type EventNode = Required<Pick<ListNode, 'cursor' | 'event'>>;

/** Moves the subscriber to the next event after `cursor`; null if there is none yet. */
function takeNext(subscriber: Subscriber, cursor: Cursor): EventNode | null {
  while (subscriber.position?.next) {
    subscriber.position = subscriber.position.next;
    const { cursor: passed, event } = subscriber.position;
    // A subscriber that started "now" must not see the transactions that were visible at its start.
    if (event && isAfter(passed, cursor) && !isInSnapshot(passed, cursor))
      return { cursor: passed, event };
  }
  return null;
}

function append(last: ListNode, { event, cursor }: PositionedEvent): ListNode {
  last.next = { index: last.index + 1, cursor, event };
  return last.next;
}

const tailsByBus = new WeakMap<Bus, Map<string, Tail>>();

/** Joins the list of the query, which the first subscriber creates. Its poller stops when the last subscriber is disposed. */
export function joinTail(
  services: Deps,
  sharedQuery: SharedQuery,
): Disposable & {
  /** @throws EventsRemoved */
  after(from: Cursor, signal: AbortSignal): AsyncGenerator<OutboxEvent>;
} {
  const { bus } = services;
  const tails = tailsByBus.getOrInsertComputed(bus, () => new Map());
  const { key } = sharedQuery;
  const running = tails.get(key);
  // Only the subscribers of a failed list see its error.
  const tail = running && !running.failure ? running : new Tail(services, sharedQuery);
  tails.set(key, tail);
  const subscriber = tail.join();
  return {
    after: (from, signal) => followTail(services, sharedQuery, tail, subscriber, from, signal),
    [Symbol.dispose]() {
      tail.subscribers.delete(subscriber);
      if (tail.subscribers.size > 0) return;
      tail.stop();
      if (tails.get(key) === tail) tails.delete(key);
    },
  };
}

async function* followTail(
  services: Deps,
  { query, size }: SharedQuery,
  tail: Tail,
  subscriber: Subscriber,
  from: Cursor,
  signal: AbortSignal,
): AsyncGenerator<OutboxEvent> {
  let cursor = from;
  /** Keeps the snapshot of `from`. */
  const advanceTo = ({ xid, seq }: Cursor) => {
    cursor = { ...cursor, xid, seq };
  };
  for await (const _ of services.bus.wakes(subscriber.topic, signal)) {
    if (tail.failure) throw tail.failure.error;
    // Without a list, the subscriber waits: the poller wakes it when it has created the list.
    while (tail.last && !signal.aborted) {
      if (subscriber.position) {
        const next = takeNext(subscriber, cursor);
        if (!next) break;
        advanceTo(next.cursor);
        yield next.event;
        continue;
      }
      if (tail.attachOrMark(subscriber, cursor) === 'attached') continue;
      const page = await retryWhileUnavailable(
        () => readPage(services, query, size, cursor),
        signal,
      );
      for (const { event, cursor: passed } of page.events) {
        advanceTo(passed);
        yield event;
        if (signal.aborted) return;
      }
      advanceTo(page.reached);
      if (!page.isFull) subscriber.position = subscriber.mark;
      subscriber.mark = null;
    }
  }
}
