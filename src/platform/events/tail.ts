/**
 * One reader of new events for all subscribers in this process with the same query.
 *
 *   catch up   a subscriber reads the database by itself, page by page, from its cursor to the present
 *   cut over   before each of these reads the subscriber marks the end of the shared list. A page that is not full
 *              contains every event of the list up to the mark, so the subscriber continues in the list after its cursor
 *   live       one reader appends new events to the list and wakes the subscribers in groups
 *
 * Without sharing, each wake was a query for every subscriber: 5,000 subscribers, twice a second, exceed what the database
 * can answer. The list is linked, so nodes that all subscribers have passed are garbage collected. A subscriber that falls
 * too far behind is removed from the list and catches up again.
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
  /** Equal for subscribers that can share. */
  key: string;
  topics: readonly Topic[];
  query: EventQuery;
  /** Rows of a page. */
  size: number;
};

type Node = { index: number; cursor: Cursor; event?: OutboxEvent; next?: Node };
/**
 * Nothing else may refer to a node while its subscriber is slow: all nodes after it would stay in memory.
 * `at`: the last node that the subscriber has passed; null while it catches up.
 * `mark`: the end of the list before the current catch-up read; null if it has fallen too far behind.
 * `topic`: readers of one topic are woken together.
 */
type Reader = { at: Node | null; mark: Node | null; topic: Topic };

/** Maximum number of events (at most 20 kB each) that the list keeps for a slow subscriber. */
const MAX_BEHIND = 500;
/**
 * Subscribers that are woken in one turn of the event loop. When 5,000 were woken at once, the process answered no other
 * request for a second, and no subscriber had its event before all had.
 */
const WAKE_GROUP_SIZE = 50;

type Deps = { db: Db; pool: pg.Pool; bus: Bus };

class Tail {
  readonly readers = new Set<Reader>();
  /** Undefined until the start of the list is known. */
  last: Node | undefined;
  failure: { error: unknown } | undefined;
  readonly #stop = new AbortController();
  readonly #bus: Bus;
  readonly #key: string;
  #joined = 0;

  constructor(services: Deps, { key, topics, query, size }: SharedQuery) {
    this.#bus = services.bus;
    this.#key = key;
    this.#read(services, topics, query, size).catch((error) => {
      this.failure = { error };
      for (const { topic } of this.readers) this.#bus.notify(topic);
    });
  }

  join(): Reader {
    const group = Math.floor(this.#joined++ / WAKE_GROUP_SIZE);
    const reader: Reader = { at: null, mark: null, topic: `tail:${group}:${this.#key}` };
    this.readers.add(reader);
    return reader;
  }

  stop(): void {
    this.#stop.abort();
  }

  async #read(services: Deps, topics: readonly Topic[], query: EventQuery, size: number) {
    const { signal } = this.#stop;
    const { xid, seq } = await retryWhileUnavailable(() => cursorAfter(services, null), signal);
    const begin = { xid, seq };
    this.last = { index: 0, cursor: begin };
    await this.#wake();
    for await (const page of followPages(services, topics, query, size, begin, signal)) {
      for (const event of page) this.last = append(this.last, event);
      const { index } = this.last;
      const isFar = (node: Node | null) => node && index - node.index > MAX_BEHIND;
      for (const reader of this.readers) {
        if (isFar(reader.at)) reader.at = null;
        if (isFar(reader.mark)) reader.mark = null;
      }
      await this.#wake();
    }
  }

  async #wake(): Promise<void> {
    for (const topic of new Set([...this.readers].map((reader) => reader.topic))) {
      this.#bus.notify(topic);
      await new Promise(setImmediate);
    }
  }

  /**
   * Marks the end of the list before `reader` reads the database from its cursor on.
   * @returns false if the reader is at that end, so that it continues in the list without a read
   */
  mark(reader: Reader, cursor: Cursor): boolean {
    const { last = null } = this;
    const isBehind = last !== null && isAfter(last.cursor, cursor);
    if (isBehind) reader.mark = last;
    else reader.at = last;
    return isBehind;
  }
}

/** Moves the reader to the next event after `cursor`; null if there is none yet. */
function takeNext(reader: Reader, cursor: Cursor): Required<Pick<Node, 'cursor' | 'event'>> | null {
  while (reader.at?.next) {
    reader.at = reader.at.next;
    const { cursor: reached, event } = reader.at;
    if (event && isAfter(reached, cursor) && !isInSnapshot(reached, cursor))
      return { cursor: reached, event };
  }
  return null;
}

function append(last: Node, { event, cursor }: PositionedEvent): Node {
  last.next = { index: last.index + 1, cursor, event };
  return last.next;
}

const tails = new WeakMap<Bus, Map<string, Tail>>();

/** Joins or starts the shared reader. The last subscriber that is disposed stops it. */
export function joinTail(
  services: Deps,
  followed: SharedQuery,
): Disposable & {
  /** @throws EventsRemoved */
  after(from: Cursor, signal: AbortSignal): AsyncGenerator<OutboxEvent>;
} {
  const { bus } = services;
  const tailsOfBus = tails.get(bus) ?? new Map<string, Tail>();
  tails.set(bus, tailsOfBus);
  const { key } = followed;
  const known = tailsOfBus.get(key);
  const tail = known && !known.failure ? known : new Tail(services, followed);
  tailsOfBus.set(key, tail);
  const reader = tail.join();
  return {
    after: (from, signal) => followTail(services, followed, tail, reader, from, signal),
    [Symbol.dispose]() {
      tail.readers.delete(reader);
      if (tail.readers.size > 0) return;
      tail.stop();
      if (tailsOfBus.get(key) === tail) tailsOfBus.delete(key);
    },
  };
}

async function* followTail(
  services: Deps,
  { query, size }: SharedQuery,
  tail: Tail,
  reader: Reader,
  from: Cursor,
  signal: AbortSignal,
): AsyncGenerator<OutboxEvent> {
  let cursor = from;
  for await (const _ of services.bus.wakes(reader.topic, signal)) {
    if (tail.failure) throw tail.failure.error;
    // Otherwise the start of the list is not known yet; a wake follows when it is.
    while (tail.last && !signal.aborted) {
      if (reader.at) {
        const next = takeNext(reader, cursor);
        if (!next) break;
        cursor = { ...cursor, ...next.cursor };
        yield next.event;
        continue;
      }
      if (!tail.mark(reader, cursor)) continue;
      const page = await retryWhileUnavailable(
        () => readPage(services, query, size, cursor),
        signal,
      );
      for (const { event, cursor: passed } of page.events) {
        cursor = { ...cursor, ...passed };
        yield event;
        if (signal.aborted) return;
      }
      cursor = page.reached;
      if (!page.full) reader.at = reader.mark;
      reader.mark = null;
    }
  }
}
