/**
 * Searches a log for a text, page by page. A page without the text is dropped before it is parsed: a million lines of 96 bytes
 * take 1.3 s of CPU. A search ends after two seconds with the position to continue from, so that a log of 10 GiB does not
 * block the server. There are no regular expressions, because backtracking on a crafted line can take for ever.
 */
import type pg from 'pg';
import { busy, invalid } from '../../base/errors.ts';
import type { Allowance } from '../../platform/limits/reads.ts';
import { type LogEntry, parsePage, textBytes, unpackPage } from './pages.ts';
import { readStep, type WalkedPage } from './walk.ts';

export type SearchQuery = {
  text: string;
  matchCase: boolean;
  order: 'asc' | 'desc';
  /** The number after which the search continues, in its order. */
  after?: number | null;
  first: number;
  /** Number of lines before and after each match. */
  context: number;
};

export type Match = { line: LogEntry; before: LogEntry[]; after: LogEntry[] };

export type Found = {
  matches: Match[];
  /** All entries up to this number, in the order of the search, were searched. */
  searchedTo: number;
  hasMore: boolean;
};

export const MAX_MATCHES = 100;
const MAX_CONTEXT = 10;
const MAX_TEXT = 1_000;
/** Entries that are read before `after` for context. More than the lines, because status changes count too. */
const LEAD = 4 * MAX_CONTEXT;
/** Maximum duration of one search. */
const MAX_MS = 2_000;

/** @throws AppError 400, and 503 if `signal` aborts because the client is gone */
export async function searchLog(
  services: { pool: pg.Pool },
  jobId: string,
  query: SearchQuery,
  allowance: Allowance,
  signal?: AbortSignal,
): Promise<Found> {
  checkQuery(query);
  return new LogSearch(query, allowance).run(services, jobId, signal);
}

class LogSearch {
  readonly #query: SearchQuery;
  readonly #allowance: Allowance;
  readonly #forwards: boolean;
  readonly #fold: (text: string) => string;
  readonly #wanted: string;
  /** The text as JSON, which is the format of a page: a page without it has no line with the text. */
  readonly #encoded: string;
  readonly #start: number;
  readonly #recent: RecentPages;
  readonly #matches: Match[] = [];
  /** For each match whose context is incomplete, the lines that follow it in the order of the search. */
  #incomplete: LogEntry[][] = [];
  /** The last match if the search stopped before the end of the log; null until then. */
  #stoppedAt: number | null = null;
  /** The position before the current step. */
  #from: number;

  constructor(query: SearchQuery, allowance: Allowance) {
    const { text, matchCase, order, after, context } = query;
    this.#query = query;
    this.#allowance = allowance;
    this.#forwards = order === 'asc';
    this.#fold = matchCase ? (value) => value : foldCase;
    this.#wanted = this.#fold(text);
    this.#encoded = this.#fold(JSON.stringify(text).slice(1, -1));
    this.#start = after ?? (this.#forwards ? 0 : Number.MAX_SAFE_INTEGER);
    this.#recent = new RecentPages(context);
    // A little earlier, so that the first match has its context too.
    const lead = context > 0 && after != null ? LEAD : 0;
    this.#from = Math.max(0, this.#forwards ? this.#start - lead : this.#start + lead);
  }

  async run(services: { pool: pg.Pool }, jobId: string, signal?: AbortSignal): Promise<Found> {
    const { order } = this.#query;
    const deadline = performance.now() + MAX_MS;
    for (;;) {
      demandClient(signal);
      const step = await readStep(services, jobId, { from: this.#from, order });
      for (const page of step.pages) {
        demandClient(signal);
        await this.#searchPage(page);
        if (this.#isDone) break;
      }
      this.#from = step.reached;
      const isLate = performance.now() > deadline;
      if (this.#isDone || step.isEnd || isLate) return this.#result(step.isEnd);
    }
  }

  get #isDone(): boolean {
    return this.#stoppedAt !== null && this.#incomplete.length === 0;
  }

  #result(isEnd: boolean): Found {
    // The lines around a match are returned oldest first.
    if (!this.#forwards)
      for (const match of this.#matches) {
        match.before.reverse();
        match.after.reverse();
      }
    const isWhole = this.#stoppedAt === null && isEnd;
    return {
      matches: this.#matches,
      searchedTo: this.#stoppedAt ?? this.#from,
      hasMore: !isWhole,
    };
  }

  async #searchPage(page: WalkedPage): Promise<void> {
    const plain = await unpackPage(page);
    const mayMatch = this.#stoppedAt === null && this.#fold(plain).includes(this.#encoded);
    const lines = memoize(() => parseLines(page, plain, this.#forwards));
    if (mayMatch || this.#incomplete.length > 0)
      for (const [at, line] of lines().entries()) {
        // After a merge of pages meanwhile, a page may begin with lines that were searched before.
        if (!this.#isBeyond(line.seq, this.#from)) continue;
        if (this.#incomplete.length > 0) await this.#addToContexts(line);
        if (this.#stoppedAt !== null || !this.#isBeyond(line.seq, this.#start)) continue;
        if (this.#fold(line.message).includes(this.#wanted))
          await this.#addMatch(line, lines().slice(0, at));
      }
    this.#recent.add(page, lines);
  }

  #isBeyond(seq: number, edge: number): boolean {
    return this.#forwards ? seq > edge : seq < edge;
  }

  /** Adds a line to the context of earlier matches; all contexts end when the allowance is used up. */
  async #addToContexts(line: LogEntry): Promise<void> {
    const size = textBytes(line) * this.#incomplete.length;
    const fits = (await this.#allowance.take(size)) === size;
    if (fits) for (const following of this.#incomplete) following.push(line);
    const { context } = this.#query;
    this.#incomplete = fits
      ? this.#incomplete.filter((following) => following.length < context)
      : [];
  }

  async #addMatch(line: LogEntry, earlierInPage: LogEntry[]): Promise<void> {
    const { first, context } = this.#query;
    const preceding = this.#recent.linesBefore(earlierInPage, (seq) =>
      this.#isBeyond(line.seq, seq),
    );
    const size = [line, ...preceding].reduce((sum, entry) => sum + textBytes(entry), 0);
    const fits = (await this.#allowance.take(size)) === size;
    const last = this.#matches.at(-1);
    if (last && !fits) {
      this.#stoppedAt = last.line.seq;
      return;
    }
    const following: LogEntry[] = [];
    const [before, after] = this.#forwards ? [preceding, following] : [following, preceding];
    this.#matches.push({ line, before, after });
    if (context > 0) this.#incomplete.push(following);
    if (this.#matches.length === first) this.#stoppedAt = line.seq;
  }
}

function demandClient(signal?: AbortSignal): void {
  if (signal?.aborted) throw busy('The client is gone');
}

function checkQuery({ text, first, context, after }: SearchQuery): void {
  if (text === '' || text.length > MAX_TEXT)
    throw invalid('text', `must be 1 to ${MAX_TEXT} characters`);
  if (!text.isWellFormed()) throw invalid('text', 'must be well-formed Unicode');
  if (first < 1 || first > MAX_MATCHES) throw invalid('first', `must be from 1 to ${MAX_MATCHES}`);
  if (context < 0 || context > MAX_CONTEXT)
    throw invalid('context', `must be from 0 to ${MAX_CONTEXT}`);
  if (after != null && after < 0) throw invalid('after', 'must be 0 or the seq of an entry');
}

/** Converts to lower case; both lowercase forms of sigma become one. */
function foldCase(text: string): string {
  return text.toLowerCase().replaceAll('ς', 'σ');
}

function parseLines(page: WalkedPage, plain: string, forwards: boolean): LogEntry[] {
  const lines = parsePage(page, plain).filter((entry): entry is LogEntry => entry.kind === 'log');
  return forwards ? lines : lines.reverse();
}

function memoize<T>(compute: () => T): () => T {
  let result: { value: T } | undefined;
  return () => {
    result ??= { value: compute() };
    return result.value;
  };
}

/** The last pages of the search: as many as hold the context before a match. */
class RecentPages {
  readonly #count: number;
  #pages: { count: number; lines: () => LogEntry[] }[] = [];

  constructor(count: number) {
    this.#count = count;
  }

  add(page: WalkedPage, lines: () => LogEntry[]): void {
    if (this.#count === 0) return;
    this.#pages.push({ count: page.lines, lines });
    let held = 0;
    const kept = this.#pages.findLastIndex(({ count }) => {
      held += count;
      return held >= this.#count;
    });
    if (kept > 0) this.#pages = this.#pages.slice(kept);
  }

  /**
   * The last lines before a match.
   * @param inPage those in the page of the match; `isBefore`: whether a line with this number comes before the match
   */
  linesBefore(inPage: LogEntry[], isBefore: (seq: number) => boolean): LogEntry[] {
    if (this.#count === 0) return [];
    const known = new Set(inPage.map(({ seq }) => seq));
    const found = inPage.slice(-this.#count);
    for (const { lines } of this.#pages.toReversed()) {
      const missing = this.#count - found.length;
      if (missing === 0) break;
      const earlier = lines().filter(({ seq }) => isBefore(seq) && !known.has(seq));
      found.unshift(...earlier.slice(-missing));
    }
    return found;
  }
}
