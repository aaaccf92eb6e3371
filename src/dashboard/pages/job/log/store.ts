/**
 * The log of a job as the page knows it: how many entries there are, those that were looked at lately, and the newest as
 * they come. An entry's `seq` is its place, from 1 and without gaps, so any part can be asked for by itself: a log of a
 * million lines is never in the page as a whole.
 */
import type { Client } from 'urql';
import type { ResultOf } from '../../../graphql/graphql.ts';
import { follow, type LiveState } from '../../../live/follow.ts';
import { isOver, type JobStatus } from '../../../ui/status.tsx';
import { LogEntries, LogLive } from './queries.ts';

export type Entry = NonNullable<
  NonNullable<NonNullable<ResultOf<typeof LogEntries>['job']>['log']>['entries'][number]
>;
export type Line = Extract<Entry, { __typename: 'LogLine' }>;

/** How many are asked for at once: some screens full. */
const PIECE = 500;
/** Some 50 MB at most lines' length. What was looked at longest ago goes first, and is asked for again. */
const MAX_PIECES = 200;
/**
 * How long a page behind others is still sent its lines. Fifty tabs of one browser that were each woken for each line
 * kept the one in sight waiting.
 */
const HIDDEN_MS = 5_000;

/**
 * At least this long between two drawings. A line that comes alone is drawn at once; of thousands a second nobody reads
 * more in sixty drawings than in twenty, and each took 12 ms of a core.
 */
const DRAW_MS = 50;

export type LogOf = { namespace: string; name: string };

export class LogStore {
  /** The `seq` of the newest entry: how many there are. */
  last = 0;
  state: LiveState = 'connecting';
  /** Why a part could not be read; it is tried again when it is looked at again. */
  problem: string | null = null;
  /** Set once the newest entries are here. */
  isOpen = false;
  /** Another number whenever anything here is other than before. */
  version = 0;
  readonly #client: Client;
  readonly #job: LogOf;
  readonly #pieces = new Map<number, (Entry | undefined)[]>();
  readonly #asked = new Set<number>();
  readonly #listeners = new Set<() => void>();
  #told = false;
  #drawnAt = 0;
  #touched = -1;
  #stop = () => {};

  constructor(client: Client, job: LogOf) {
    this.#client = client;
    this.#job = job;
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  readonly read = (): number => this.version;

  /** Undefined: it is being asked for. */
  entry(seq: number): Entry | undefined {
    const number = Math.floor((seq - 1) / PIECE);
    const piece = this.#pieces.get(number);
    const entry = piece?.[(seq - 1) % PIECE];
    if (!entry) void this.#ask(number);
    else if (piece && this.#touched !== number) {
      this.#touched = number;
      this.#pieces.delete(number);
      this.#pieces.set(number, piece);
    }
    return entry;
  }

  /** The entry at or after a moment: that of its first line. */
  async seqAt(at: string): Promise<number | null> {
    const window = await this.#query({ at, first: 1 });
    return window?.entries[0]?.seq ?? null;
  }

  /**
   * Reads the newest entries and follows from there, for as long as the page is looked at: behind others it lets go
   * after a while, and reads the newest entries again when it is back. @returns what ends it
   */
  open(): () => void {
    const stopped = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let paused = false;
    const looked = () => {
      clearTimeout(timer);
      if (document.visibilityState === 'hidden')
        timer = setTimeout(() => {
          paused = this.isOpen && this.state !== 'over';
          if (paused) this.#stop();
        }, HIDDEN_MS);
      else if (paused) {
        paused = false;
        begin();
      }
    };
    const begin = () =>
      void this.#newest(stopped.signal).then(() => {
        if (stopped.signal.aborted || !this.isOpen) return;
        this.#follow();
        looked();
      });
    document.addEventListener('visibilitychange', looked, { signal: stopped.signal });
    begin();
    return () => {
      stopped.abort();
      clearTimeout(timer);
      this.#stop();
    };
  }

  async #newest(stopped: AbortSignal): Promise<void> {
    const window = await this.#query({ last: PIECE });
    if (stopped.aborted || !window) return;
    this.last = Math.max(this.last, window.lastSeq);
    for (const entry of window.entries) this.#put(entry);
    this.isOpen = true;
    this.#tell();
  }

  #follow(): void {
    this.#stop();
    this.#stop = follow(LogLive, {
      variables: () => ({ ...this.#job, after: this.last }),
      onData: ({ jobLogBatches: { entries } }) => {
        for (const entry of entries) {
          // Sent again after a lost connection, at worst.
          if (entry.__typename === 'JobLogEnd' || entry.seq <= this.last) continue;
          this.last = entry.seq;
          this.#put(entry);
        }
        this.#tell();
      },
      onState: (state) => {
        this.state = state;
        this.#tell();
      },
    });
  }

  async #ask(number: number): Promise<void> {
    if (this.#asked.has(number)) return;
    this.#asked.add(number);
    const from = number * PIECE;
    const to = Math.min(from + PIECE, this.last);
    let after = from;
    // An answer ends where its bytes do: very long lines come in several.
    while (after < to) {
      const window = await this.#query({ after, first: to - after });
      if (!window || window.entries.length === 0) break;
      for (const entry of window.entries) this.#put(entry);
      after = window.entries.at(-1)?.seq ?? to;
    }
    this.#asked.delete(number);
    this.#tell();
  }

  async #query(part: { after?: number; first?: number; last?: number; at?: string }) {
    const { data, error } = await this.#client
      .query(LogEntries, { ...this.#job, ...part }, { requestPolicy: 'network-only' })
      .toPromise();
    this.problem = error ? error.message.replace(/^\[\w+\] /, '') : null;
    if (error) this.#tell();
    return data?.job?.log ?? null;
  }

  #put(entry: Entry): void {
    const number = Math.floor((entry.seq - 1) / PIECE);
    let piece = this.#pieces.get(number);
    if (!piece) {
      piece = [];
      this.#pieces.set(number, piece);
      const [oldest] = this.#pieces.keys();
      if (this.#pieces.size > MAX_PIECES && oldest !== undefined) this.#pieces.delete(oldest);
    }
    piece[(entry.seq - 1) % PIECE] = entry;
  }

  /**
   * Once a frame at most, however many lines came. A page behind others has no frames, so there its lines are kept and
   * drawn when it is looked at: fifty tabs cost what the one in sight does.
   */
  #tell(): void {
    if (this.#told) return;
    this.#told = true;
    const wait = this.#drawnAt + DRAW_MS - performance.now();
    if (wait > 0) setTimeout(() => requestAnimationFrame(this.#draw), wait);
    else requestAnimationFrame(this.#draw);
  }

  readonly #draw = (): void => {
    this.#told = false;
    this.#drawnAt = performance.now();
    this.version++;
    for (const each of this.#listeners) each();
  };
}

/** Whether more may come. */
export function mayGrow(status: JobStatus, state: LiveState): boolean {
  return !(isOver(status) && state === 'over');
}
