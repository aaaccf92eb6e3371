/**
 * Searches a log for a text, page by page. Pages without the text are not parsed: a million lines of 96 bytes take 1.3 s of
 * CPU. A search stops after two seconds and returns the position to continue from, so that a log of 10 GiB does not block the
 * server. Regular expressions are not supported, because backtracking on a crafted line can take unbounded time.
 */
import type pg from 'pg';
import { busy, invalid } from '../../base/errors.ts';
import type { Allowance } from '../../platform/limits/reads.ts';
import {
  countTextBytes,
  decompressPage,
  type LineEntry,
  parsePage,
} from '../record/journal-pages.ts';
import type { JournalPage } from './pages.ts';
import { readJournalStep } from './walk.ts';

export type SearchQuery = {
  text: string;
  matchCase: boolean;
  order: 'asc' | 'desc';
  /** The `seq` of an entry: the search starts after it, in its order. By default it starts at the beginning or the end. */
  after?: number | null;
  first: number;
  /** Number of lines before and after each match. */
  context: number;
};

export type SearchMatch = { line: LineEntry; before: LineEntry[]; after: LineEntry[] };

export type SearchResult = {
  matches: SearchMatch[];
  /** All entries up to this `seq`, in the order of the search, have been searched. */
  searchedTo: number;
  hasMore: boolean;
};

export const MAX_MATCHES = 100;
const MAX_CONTEXT = 10;
const MAX_TEXT_LENGTH = 1_000;
/** Entries that are read before `after` for the context of the first match: some of them are status changes, not lines. */
const CONTEXT_LEAD_ENTRIES = 4 * MAX_CONTEXT;
const MAX_SEARCH_MS = 2_000;

/** @throws AppError 400, and 503 if `signal` aborts because the client has disconnected */
export async function searchLog(
  services: { pool: pg.Pool },
  jobId: string,
  query: SearchQuery,
  allowance: Allowance,
  signal?: AbortSignal,
): Promise<SearchResult> {
  checkQuery(query);
  return new LogSearch(query, allowance).run(services, jobId, signal);
}

class LogSearch {
  readonly #query: SearchQuery;
  readonly #allowance: Allowance;
  readonly #isForwards: boolean;
  /** Converts to lower case, unless case must match. */
  readonly #fold: (text: string) => string;
  readonly #foldedText: string;
  /** The text as it appears in the JSON of a page. A page without it has no line with the text. */
  readonly #jsonText: string;
  readonly #start: number;
  readonly #recent: RecentPages;
  readonly #matches: SearchMatch[] = [];
  /** For each match whose context is incomplete, the lines that follow it in the order of the search. */
  #incomplete: LineEntry[][] = [];
  /** The `seq` of the last match, once the search has enough matches or the allowance is used up; null until then. */
  #stoppedAt: number | null = null;
  /** All entries up to here were read in earlier steps. */
  #from: number;

  constructor(query: SearchQuery, allowance: Allowance) {
    const { text, matchCase, order, after, context } = query;
    this.#query = query;
    this.#allowance = allowance;
    this.#isForwards = order === 'asc';
    this.#fold = matchCase ? (value) => value : foldCase;
    this.#foldedText = this.#fold(text);
    this.#jsonText = this.#fold(JSON.stringify(text).slice(1, -1));
    this.#start = after ?? (this.#isForwards ? 0 : Number.MAX_SAFE_INTEGER);
    this.#recent = new RecentPages(context);
    // Starts a little earlier, so that the context of the first match is complete.
    const lead = context > 0 && after != null ? CONTEXT_LEAD_ENTRIES : 0;
    this.#from = Math.max(0, this.#isForwards ? this.#start - lead : this.#start + lead);
  }

  async run(
    services: { pool: pg.Pool },
    jobId: string,
    signal?: AbortSignal,
  ): Promise<SearchResult> {
    const { order } = this.#query;
    const deadline = performance.now() + MAX_SEARCH_MS;
    for (;;) {
      throwIfClientGone(signal);
      const step = await readJournalStep(services, jobId, { from: this.#from, order });
      for (const page of step.pages) {
        throwIfClientGone(signal);
        await this.#searchPage(page);
        if (this.#isDone) break;
      }
      this.#from = step.lastSeq;
      const isTimedOut = performance.now() > deadline;
      if (this.#isDone || step.isEnd || isTimedOut) return this.#result(step.isEnd);
    }
  }

  get #isDone(): boolean {
    return this.#stoppedAt !== null && this.#incomplete.length === 0;
  }

  #result(isEnd: boolean): SearchResult {
    // The lines around a match are returned oldest first.
    if (!this.#isForwards)
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

  async #searchPage(page: JournalPage): Promise<void> {
    const json = await decompressPage(page);
    const mayMatch = this.#stoppedAt === null && this.#fold(json).includes(this.#jsonText);
    const lines = memoize(() => parseLines(page, json, this.#isForwards));
    if (mayMatch || this.#incomplete.length > 0)
      for (const [index, line] of lines().entries()) {
        // If pages were merged since the last step, this page may begin with lines that were searched already.
        if (!this.#isBeyond(line.seq, this.#from)) continue;
        if (this.#incomplete.length > 0) await this.#addToContexts(line);
        if (this.#stoppedAt !== null || !this.#isBeyond(line.seq, this.#start)) continue;
        if (this.#fold(line.message).includes(this.#foldedText))
          await this.#addMatch(line, lines().slice(0, index));
      }
    this.#recent.add(page, lines);
  }

  /** Whether the search reaches `seq` after `position`. */
  #isBeyond(seq: number, position: number): boolean {
    return this.#isForwards ? seq > position : seq < position;
  }

  /** Adds a line to the incomplete contexts of earlier matches. When the allowance is used up, all contexts end. */
  async #addToContexts(line: LineEntry): Promise<void> {
    const size = countTextBytes(line.message) * this.#incomplete.length;
    const fits = (await this.#allowance.take(size)) === size;
    if (fits) for (const following of this.#incomplete) following.push(line);
    const { context } = this.#query;
    this.#incomplete = fits
      ? this.#incomplete.filter((following) => following.length < context)
      : [];
  }

  async #addMatch(line: LineEntry, earlierInPage: LineEntry[]): Promise<void> {
    const { first, context } = this.#query;
    const preceding = this.#recent.linesBefore(earlierInPage, (seq) =>
      this.#isBeyond(line.seq, seq),
    );
    const size = [line, ...preceding].reduce(
      (sum, entry) => sum + countTextBytes(entry.message),
      0,
    );
    const fits = (await this.#allowance.take(size)) === size;
    const last = this.#matches.at(-1);
    if (last && !fits) {
      this.#stoppedAt = last.line.seq;
      return;
    }
    const following: LineEntry[] = [];
    const [before, after] = this.#isForwards ? [preceding, following] : [following, preceding];
    this.#matches.push({ line, before, after });
    if (context > 0) this.#incomplete.push(following);
    if (this.#matches.length === first) this.#stoppedAt = line.seq;
  }
}

function throwIfClientGone(signal?: AbortSignal): void {
  if (signal?.aborted) throw busy('The client has disconnected');
}

function checkQuery({ text, first, context, after }: SearchQuery): void {
  if (text === '' || text.length > MAX_TEXT_LENGTH)
    throw invalid('text', `must be 1 to ${MAX_TEXT_LENGTH} characters`);
  if (!text.isWellFormed()) throw invalid('text', 'must be well-formed Unicode');
  if (first < 1 || first > MAX_MATCHES) throw invalid('first', `must be from 1 to ${MAX_MATCHES}`);
  if (context < 0 || context > MAX_CONTEXT)
    throw invalid('context', `must be from 0 to ${MAX_CONTEXT}`);
  if (after != null && after < 0) throw invalid('after', 'must be 0 or the seq of an entry');
}

/** Converts to lower case, with one form for both lowercase letters sigma. */
function foldCase(text: string): string {
  return text.toLowerCase().replaceAll('ς', 'σ');
}

/** @returns the lines of a page in the order of the search */
function parseLines(page: JournalPage, json: string, isForwards: boolean): LineEntry[] {
  const lines = parsePage(page, json).filter((entry): entry is LineEntry => entry.kind === 'log');
  return isForwards ? lines : lines.reverse();
}

function memoize<T>(compute: () => T): () => T {
  let result: { value: T } | undefined;
  return () => {
    result ??= { value: compute() };
    return result.value;
  };
}

/** The last pages that the search has read: enough for the context before a match. */
class RecentPages {
  /** Lines of context before a match. */
  readonly #count: number;
  #pages: { count: number; lines: () => LineEntry[] }[] = [];

  constructor(count: number) {
    this.#count = count;
  }

  add(page: JournalPage, lines: () => LineEntry[]): void {
    if (this.#count === 0) return;
    this.#pages.push({ count: page.lines, lines });
    let sum = 0;
    const kept = this.#pages.findLastIndex(({ count }) => {
      sum += count;
      return sum >= this.#count;
    });
    if (kept > 0) this.#pages = this.#pages.slice(kept);
  }

  /**
   * Returns the last lines before a match, in the order of the search.
   * @param inPage the lines before the match in its own page
   * @param isBefore whether a line with this number comes before the match
   */
  linesBefore(inPage: LineEntry[], isBefore: (seq: number) => boolean): LineEntry[] {
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
