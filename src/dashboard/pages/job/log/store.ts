/**
 * The part of a job's log that the page holds: its length, a cache of recently viewed entries, and new entries as they
 * arrive. The `seq` of entries counts from 1 without gaps, so any range can be loaded by itself and a log of a million
 * lines is never in memory as a whole.
 */
import type { Client } from 'urql';
import type { ResultOf } from '../../../graphql/graphql.ts';
import { type LiveState, subscribe } from '../../../live/follow.ts';
import { LogEntries, LogLive } from './queries.ts';

export type Entry = NonNullable<
  NonNullable<NonNullable<ResultOf<typeof LogEntries>['job']>['log']>['entries'][number]
>;

/** Entries per request: a few screens. */
const PAGE_SIZE = 500;
/** Size of the LRU cache: about 50 MB at usual line lengths. */
const MAX_PAGES = 200;
/**
 * A tab that is hidden for this long ends its subscription: fifty hidden tabs that each woke up for each line slowed
 * down the visible tab.
 */
const HIDDEN_MS = 5_000;

/**
 * Minimum time between two renders. A single line is rendered at once; at thousands of lines per second, 60 renders are
 * no more readable than 20, and each took 12 ms of CPU.
 */
const MIN_RENDER_INTERVAL_MS = 50;

export type JobKey = { namespace: string; name: string };

export class LogStore {
  /** The `seq` of the newest entry, which is also the number of entries. */
  last = 0;
  state: LiveState = 'connecting';
  /** Why a part could not be loaded; it is loaded again when it is viewed again. */
  problem: string | null = null;
  /** Whether the newest entries are loaded. */
  isOpen = false;
  /** Incremented by each change, for `useSyncExternalStore`. */
  version = 0;
  readonly #client: Client;
  readonly #job: JobKey;
  readonly #pages = new Map<number, (Entry | undefined)[]>();
  readonly #loading = new Set<number>();
  readonly #listeners = new Set<() => void>();
  #isRenderScheduled = false;
  #renderedAt = 0;
  #mostRecentPage = -1;
  #unsubscribe = () => {};

  constructor(client: Client, job: JobKey) {
    this.#client = client;
    this.#job = job;
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  readonly read = (): number => this.version;

  /** Returns undefined while the entry is being loaded. */
  entry(seq: number): Entry | undefined {
    const number = Math.floor((seq - 1) / PAGE_SIZE);
    const page = this.#pages.get(number);
    const entry = page?.[(seq - 1) % PAGE_SIZE];
    if (!entry) void this.#loadPage(number);
    else if (page && this.#mostRecentPage !== number) {
      this.#mostRecentPage = number;
      this.#pages.delete(number);
      this.#pages.set(number, page);
    }
    return entry;
  }

  /**
   * Loads the newest entries and subscribes to later entries while the tab is visible. A hidden tab unsubscribes after
   * `HIDDEN_MS` and loads the newest entries when it is visible again. @returns a function that stops both
   */
  open(): () => void {
    const stopped = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let paused = false;
    const onVisibilityChange = () => {
      clearTimeout(timer);
      if (document.visibilityState === 'hidden')
        timer = setTimeout(() => {
          paused = this.isOpen && this.state !== 'over';
          if (paused) this.#unsubscribe();
        }, HIDDEN_MS);
      else if (paused) {
        paused = false;
        start();
      }
    };
    const start = () =>
      void this.#loadNewest(stopped.signal).then(() => {
        if (stopped.signal.aborted || !this.isOpen) return;
        this.#follow();
        onVisibilityChange();
      });
    document.addEventListener('visibilitychange', onVisibilityChange, { signal: stopped.signal });
    start();
    return () => {
      stopped.abort();
      clearTimeout(timer);
      this.#unsubscribe();
    };
  }

  async #loadNewest(stopped: AbortSignal): Promise<void> {
    const window = await this.#query({ last: PAGE_SIZE });
    if (stopped.aborted || !window) return;
    this.last = Math.max(this.last, window.lastSeq);
    for (const entry of window.entries) this.#put(entry);
    this.isOpen = true;
    this.#scheduleRender();
  }

  #follow(): void {
    this.#unsubscribe();
    this.#unsubscribe = subscribe(LogLive, {
      variables: () => ({ ...this.#job, after: this.last }),
      onData: ({ jobLogBatches: { entries } }) => {
        for (const entry of entries) {
          // After a reconnect the server may send entries again.
          if (entry.__typename === 'JobLogEnd' || entry.seq <= this.last) continue;
          this.last = entry.seq;
          this.#put(entry);
        }
        this.#scheduleRender();
      },
      onState: (state) => {
        this.state = state;
        this.#scheduleRender();
      },
    });
  }

  async #loadPage(number: number): Promise<void> {
    if (this.#loading.has(number)) return;
    this.#loading.add(number);
    const from = number * PAGE_SIZE;
    const to = Math.min(from + PAGE_SIZE, this.last);
    let after = from;
    // The server limits the bytes of a response, so very long lines take several requests.
    while (after < to) {
      const window = await this.#query({ after, first: to - after });
      if (!window || window.entries.length === 0) break;
      for (const entry of window.entries) this.#put(entry);
      after = window.entries.at(-1)?.seq ?? to;
    }
    this.#loading.delete(number);
    this.#scheduleRender();
  }

  async #query(part: { after?: number; first?: number; last?: number }) {
    const { data, error } = await this.#client
      .query(LogEntries, { ...this.#job, ...part }, { requestPolicy: 'network-only' })
      .toPromise();
    this.problem = error ? error.message.replace(/^\[\w+\] /, '') : null;
    if (error) this.#scheduleRender();
    return data?.job?.log ?? null;
  }

  #put(entry: Entry): void {
    const number = Math.floor((entry.seq - 1) / PAGE_SIZE);
    let page = this.#pages.get(number);
    if (!page) {
      page = [];
      this.#pages.set(number, page);
      const [oldest] = this.#pages.keys();
      if (this.#pages.size > MAX_PAGES && oldest !== undefined) this.#pages.delete(oldest);
    }
    page[(entry.seq - 1) % PAGE_SIZE] = entry;
  }

  /**
   * Renders at most once per animation frame. A hidden tab has no frames, so its lines are rendered when it becomes
   * visible: fifty tabs cost as much as the visible tab.
   */
  #scheduleRender(): void {
    if (this.#isRenderScheduled) return;
    this.#isRenderScheduled = true;
    const wait = this.#renderedAt + MIN_RENDER_INTERVAL_MS - performance.now();
    if (wait > 0) setTimeout(() => requestAnimationFrame(this.#render), wait);
    else requestAnimationFrame(this.#render);
  }

  readonly #render = (): void => {
    this.#isRenderScheduled = false;
    this.#renderedAt = performance.now();
    this.version++;
    for (const each of this.#listeners) each();
  };
}
