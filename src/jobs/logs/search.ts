/**
 * Searching a whole log for a text. Pages go through one after the other: what is unpacked and does not hold the text
 * is dropped before it is read as entries: a million lines of 96 bytes take 1.3 s of CPU, and a few pages of memory.
 *
 * A search ends after two seconds with what it has found, and says from where to go on, so that a log of 10 GiB holds
 * nothing up. There are no patterns: those that backtrack can take for ever over a line that was made for it.
 */
import type pg from 'pg';
import { busy, invalid } from '../../base/errors.ts';
import type { Allowance } from '../../platform/limits/reads.ts';
import { type LogEntry, parsePage, textBytes, unpackPage } from './pages.ts';
import { type WalkedPage, readStep } from './walk.ts';

export type SearchQuery = {
  text: string;
  matchCase: boolean;
  order: 'asc' | 'desc';
  /** The number after which, in this order, it goes on. */
  after?: number | null;
  first: number;
  /** Lines around each match, on either side. */
  context: number;
};

export type Match = { line: LogEntry; before: LogEntry[]; after: LogEntry[] };

export type Found = {
  matches: Match[];
  /** Everything up to this number, in this order, was looked at. */
  searchedTo: number;
  hasMore: boolean;
};

export const MAX_MATCHES = 100;
const MAX_CONTEXT = 10;
const MAX_TEXT = 1_000;
/** Numbers that are gone back for context; changes of the status among them count too. */
const LEAD = 4 * MAX_CONTEXT;
/** Milliseconds of one search. */
const MAX_MS = 2_000;

/** @throws AppError 400, and 503 when `signal` aborts: nobody is there any more who wants the result */
export async function searchLog(
  services: { pool: pg.Pool },
  jobId: string,
  query: SearchQuery,
  allowance: Allowance,
  signal?: AbortSignal,
): Promise<Found> {
  check(query);
  const { text, matchCase, order, after, first, context } = query;
  const fold = matchCase ? (value: string) => value : foldCase;
  const wanted = fold(text);
  // As it stands in a page, which is JSON: a page without it holds no line with it.
  const packed = fold(JSON.stringify(text).slice(1, -1));
  const deadline = performance.now() + MAX_MS;
  const matches: Match[] = [];
  /** Matches whose lines after them, in this order, are still to come. */
  let open: LogEntry[][] = [];
  /** Where it ended although there is more; until then null. */
  let stoppedAt: number | null = null;
  const walked = new Walked(context);
  const forwards = order === 'asc';
  const isBeyond = (seq: number, edge: number) => (forwards ? seq > edge : seq < edge);
  const start = after ?? (forwards ? 0 : Number.MAX_SAFE_INTEGER);
  // A little before, so that the first match has its context too.
  const lead = context > 0 && after != null ? LEAD : 0;
  let from = Math.max(0, forwards ? start - lead : start + lead);

  for (;;) {
    demandClient(signal);
    const step = await readStep(services, jobId, { from, order });
    for (const page of step.pages) {
      demandClient(signal);
      const plain = await unpackPage(page);
      const mayHold = stoppedAt === null && fold(plain).includes(packed);
      const lines = memoize(() => linesOf(page, plain, forwards));
      if (mayHold || open.length > 0)
        for (const [at, line] of lines().entries()) {
          // Pages may be joined meanwhile, and so begin with what was seen before.
          if (!isBeyond(line.seq, from)) continue;
          if (open.length > 0) {
            const size = textBytes(line) * open.length;
            const fits = (await allowance.take(size)) === size;
            if (fits) for (const follows of open) follows.push(line);
            open = fits ? open.filter((follows) => follows.length < context) : [];
          }
          if (stoppedAt !== null || !isBeyond(line.seq, start)) continue;
          if (!fold(line.message).includes(wanted)) continue;
          const before = walked.linesBefore(lines().slice(0, at), (one) => isBeyond(line.seq, one));
          const size = [line, ...before].reduce((sum, one) => sum + textBytes(one), 0);
          const fits = (await allowance.take(size)) === size;
          if (matches.length > 0 && !fits) {
            stoppedAt = (matches.at(-1) as Match).line.seq;
            continue;
          }
          const follows: LogEntry[] = [];
          const [older, newer] = forwards ? [before, follows] : [follows, before];
          matches.push({ line, before: older, after: newer });
          if (context > 0) open.push(follows);
          if (matches.length === first) stoppedAt = line.seq;
        }
      walked.add(page, lines);
      if (stoppedAt !== null && open.length === 0) break;
    }
    from = step.reached;
    const isDone = stoppedAt !== null && open.length === 0;
    const isLate = performance.now() > deadline;
    if (!isDone && !step.isEnd && !isLate) continue;
    // Lines are shown in the order in which they were printed.
    if (!forwards)
      for (const match of matches) {
        match.before.reverse();
        match.after.reverse();
      }
    const searchedTo = stoppedAt ?? from;
    const isWhole = stoppedAt === null && step.isEnd;
    return { matches, searchedTo, hasMore: !isWhole };
  }
}

function demandClient(signal?: AbortSignal): void {
  if (signal?.aborted) throw busy('The client is gone');
}

function check({ text, first, context, after }: SearchQuery): void {
  if (text === '' || text.length > MAX_TEXT)
    throw invalid('text', `must be 1 to ${MAX_TEXT} characters`);
  if (!text.isWellFormed()) throw invalid('text', 'must be text');
  if (first < 1 || first > MAX_MATCHES) throw invalid('first', `must be from 1 to ${MAX_MATCHES}`);
  if (context < 0 || context > MAX_CONTEXT)
    throw invalid('context', `must be from 0 to ${MAX_CONTEXT}`);
  if (after != null && after < 0) throw invalid('after', 'must be 0 or the seq of an entry');
}

/** In lower case, in which a sigma is the same at the end of a word. */
function foldCase(text: string): string {
  return text.toLowerCase().replaceAll('ς', 'σ');
}

function linesOf(page: WalkedPage, plain: string, forwards: boolean): LogEntry[] {
  const lines = parsePage(page, plain).filter((entry): entry is LogEntry => entry.kind === 'log');
  return forwards ? lines : lines.reverse();
}

function memoize<T>(make: () => T): () => T {
  let made: { value: T } | undefined;
  return () => {
    made ??= { value: make() };
    return made.value;
  };
}

/** The pages that the search has just gone through: as many as hold the lines before a match. */
class Walked {
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

  /** The last lines before one, of which `here` are those of its own page; `isBefore` is asked of their numbers. */
  linesBefore(here: LogEntry[], isBefore: (seq: number) => boolean): LogEntry[] {
    if (this.#count === 0) return [];
    const known = new Set(here.map(({ seq }) => seq));
    const found = here.slice(-this.#count);
    for (const { lines } of this.#pages.toReversed()) {
      const missing = this.#count - found.length;
      if (missing === 0) break;
      const others = lines().filter(({ seq }) => isBefore(seq) && !known.has(seq));
      found.unshift(...others.slice(-missing));
    }
    return found;
  }
}
