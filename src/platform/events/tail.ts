/**
 * What comes, read once for all subscribers in this process who follow the same.
 *
 *   catch up   a subscriber reads the database by itself, page by page, from its place to the present
 *   cut over   before each of these reads it marks the end of the shared list; a read that is not full has found all
 *              that was in the list by then, so it goes on in the list, after its place
 *   live       one reader appends what comes to the list, and wakes the subscribers, some at a time
 *
 * Without this each wake was a query for every subscriber: 5,000 of them, twice a second, are more than the database
 * answers. The list is linked, and nobody holds what all have passed. A subscriber that stands too far behind its end
 * is taken off it, and catches up again.
 */

import type pg from 'pg';
import type { Db } from '../database/client.ts';
import { untilAnswered } from '../database/outage.ts';
import type { Bus, Topic } from './bus.ts';
import { type Cursor, cursorAfter, isAfter, isInSnapshot } from './cursor.ts';
import { type OutboxEvent, type Placed, type Query, readPage, readPages } from './pages.ts';

export type Followed = {
  /** The same for those who follow the same. */
  key: string;
  topics: readonly Topic[];
  query: Query;
  /** Rows of a page. */
  size: number;
};

type Node = { index: number; place: Cursor; event?: OutboxEvent; next?: Node };
/**
 * Nothing else may hold a node while its subscriber takes its time: the list behind that node would stay in memory.
 * `at`: the last node that it has passed; null while it catches up.
 * `mark`: the end of the list before what is read to catch up; null when it is too far behind by then.
 * `topic`: those of one are woken together.
 */
type Reader = { at: Node | null; mark: Node | null; topic: Topic };

/** Events that are held for a subscriber which does not take them: of 20 kB at most. */
const MAX_BEHIND = 500;
/**
 * Subscribers that are woken before others have their turn. Woken all at once, 5,000 of them kept the process for a
 * second in which no other request was answered, and none of them had its event before all had.
 */
const WOKEN = 50;

type Deps = { db: Db; pool: pg.Pool; bus: Bus };

class Tail {
  readonly readers = new Set<Reader>();
  /** Undefined until it is known where the list begins. */
  last: Node | undefined;
  failure: { error: unknown } | undefined;
  readonly #stop = new AbortController();
  readonly #bus: Bus;
  readonly #key: string;
  #joined = 0;

  constructor(services: Deps, { key, topics, query, size }: Followed) {
    this.#bus = services.bus;
    this.#key = key;
    this.#read(services, topics, query, size).catch((error) => {
      this.failure = { error };
      for (const { topic } of this.readers) this.#bus.notify(topic);
    });
  }

  join(): Reader {
    const group = Math.floor(this.#joined++ / WOKEN);
    const reader: Reader = { at: null, mark: null, topic: `tail:${group}:${this.#key}` };
    this.readers.add(reader);
    return reader;
  }

  stop(): void {
    this.#stop.abort();
  }

  async #read(services: Deps, topics: readonly Topic[], query: Query, size: number) {
    const { signal } = this.#stop;
    const { xid, seq } = await untilAnswered(() => cursorAfter(services, null), signal);
    const begin = { xid, seq };
    this.last = { index: 0, place: begin };
    await this.#wake();
    for await (const page of readPages(services, topics, query, size, begin, signal)) {
      for (const each of page) this.last = append(this.last, each);
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
   * Marks the end of the list, before `reader` reads the database from its place on.
   * @returns false when there is nothing to read, because it stands at that end: it goes on in the list then
   */
  mark(reader: Reader, place: Cursor): boolean {
    const { last = null } = this;
    const isBehind = last !== null && isAfter(last.place, place);
    if (isBehind) reader.mark = last;
    else reader.at = last;
    return isBehind;
  }
}

/** The next of the list that is after `place`, which the reader passes; null when there is none yet. */
function takeNext(reader: Reader, place: Cursor): Required<Pick<Node, 'place' | 'event'>> | null {
  while (reader.at?.next) {
    reader.at = reader.at.next;
    const { place: reached, event } = reader.at;
    if (event && isAfter(reached, place) && !isInSnapshot(reached, place))
      return { place: reached, event };
  }
  return null;
}

function append(last: Node, { event, place }: Placed): Node {
  last.next = { index: last.index + 1, place, event };
  return last.next;
}

const tails = new WeakMap<Bus, Map<string, Tail>>();

/** To be disposed by who follows no more; the last one ends it. */
export function joinTail(
  services: Deps,
  followed: Followed,
): Disposable & {
  /** @throws EventsRemoved */
  after(from: Cursor, signal: AbortSignal): AsyncGenerator<OutboxEvent>;
} {
  const { bus } = services;
  const ofBus = tails.get(bus) ?? new Map<string, Tail>();
  tails.set(bus, ofBus);
  const { key } = followed;
  const known = ofBus.get(key);
  const tail = known && !known.failure ? known : new Tail(services, followed);
  ofBus.set(key, tail);
  const reader = tail.join();
  return {
    after: (from, signal) => readOn(services, followed, tail, reader, from, signal),
    [Symbol.dispose]() {
      tail.readers.delete(reader);
      if (tail.readers.size > 0) return;
      tail.stop();
      if (ofBus.get(key) === tail) ofBus.delete(key);
    },
  };
}

async function* readOn(
  services: Deps,
  { query, size }: Followed,
  tail: Tail,
  reader: Reader,
  from: Cursor,
  signal: AbortSignal,
): AsyncGenerator<OutboxEvent> {
  let place = from;
  for await (const _ of services.bus.wakes(reader.topic, signal)) {
    if (tail.failure) throw tail.failure.error;
    // Else it is not known yet where the list begins, and we are woken then.
    while (tail.last && !signal.aborted) {
      if (reader.at) {
        const next = takeNext(reader, place);
        if (!next) break;
        place = { ...place, ...next.place };
        yield next.event;
        continue;
      }
      if (!tail.mark(reader, place)) continue;
      const page = await untilAnswered(() => readPage(services, query, size, place), signal);
      for (const { event, place: passed } of page.events) {
        place = { ...place, ...passed };
        yield event;
        if (signal.aborted) return;
      }
      place = page.reached;
      if (!page.full) reader.at = reader.mark;
      reader.mark = null;
    }
  }
}
