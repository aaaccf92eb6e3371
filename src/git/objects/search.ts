/**
 * Searching the files of a commit: their paths, which are listed once and kept, and their lines, by `git grep`. Both are
 * bounded in time, in what they find, and in how many run at once.
 */
import { setImmediate as others } from 'node:timers/promises';
import { LRUCache } from 'lru-cache';
import { type Caller, FairSemaphore } from '../../platform/limits/fair-semaphore.ts';
import type { GitExit } from '../../platform/processes/git-started.ts';
import { GitError, git, startGit } from '../processes/run.ts';

/** `column`: of the first match in the line, in bytes from 1. `text`: the line, cut. */
export type FoundLine = { path: string; line: number; column: number; text: string };
export type FoundLines = { lines: FoundLine[]; isTruncated: boolean };

export type PathSearch = { commit: string; words: readonly string[]; limit: number };

export type LineSearch = {
  commit: string;
  /** A directory or a file; empty: all. */
  path: string;
  text: string;
  /** Whether `text` is an extended regular expression. */
  isPattern: boolean;
  ignoresCase: boolean;
  limit: number;
};

/** The text is no regular expression. */
export class NoPattern extends Error {
  override name = 'NoPattern';
}

/** Who searches. `signal` aborts when nobody waits for what is found. */
export type Searcher = { caller: Caller; signal?: AbortSignal };

/** Searches keep a core busy each. A caller has one at a time, and the anonymous leave one to the others. */
const AT_ONCE = 2;
const ANONYMOUS_AT_ONCE = 1;
const TIMEOUT_MS = 10_000;
const MAX_LIST_BYTES = 32 * 2 ** 20;
const MAX_LINE_BYTES = 400;
/** Of one file, so that one does not fill the answer. */
const MAX_LINES_PER_FILE = 20;
const NEWLINE = 10;
/** Looked at before other requests have their turn: some milliseconds. */
const PATHS_PER_SLICE = 5_000;
/** Of the process that searches for a pattern: a short one can stand for gigabytes. */
const MAX_MEMORY_KB = 1_500_000;
/** Of all repetitions of a pattern, multiplied. */
const MAX_REPETITIONS = 1_000;

/** Packs are mapped in parts, so that the bound is that of the search. A shell that knows no such bound goes without. */
const BOUNDED_GREP_CONFIG = {
  'alias.bounded-grep': `!f() { ulimit -v ${MAX_MEMORY_KB} 2>/dev/null; exec git grep "$@"; }; f`,
  'core.packedGitWindowSize': '32m',
  'core.packedGitLimit': '256m',
};

export class Searches {
  readonly #turns = new FairSemaphore(AT_ONCE, { perKey: 1, waitMs: TIMEOUT_MS });
  /** Those without credentials need a turn of both. */
  readonly #anonymous = new FairSemaphore(ANONYMOUS_AT_ONCE, { waitMs: TIMEOUT_MS });
  /** By commit. The sizes are of bytes. */
  readonly #paths = new LRUCache<string, string>({
    maxSize: 64 * 2 ** 20,
    sizeCalculation: (list) => list.length + 1,
  });

  /**
   * Paths of a commit that hold each of the words, which are in small letters: those first whose last part does, and one
   * more than `limit` where there are more.
   * @throws GitError when there are too many paths, or it takes too long; NoTurn
   */
  paths(
    dir: string,
    { commit, words, limit }: PathSearch,
    { caller, signal }: Searcher,
  ): Promise<string[]> {
    const search = async () => selectPaths(await this.#list(dir, commit, signal), words, limit);
    return this.#inTurn(search, { caller, signal });
  }

  /** All paths of a commit, a NUL behind each. */
  async #list(dir: string, commit: string, signal?: AbortSignal): Promise<string> {
    const known = this.#paths.get(commit);
    if (known !== undefined) return known;
    const args = ['ls-tree', '-r', '-z', '--name-only', '--full-tree', commit];
    const options = { dir, signal, timeoutMs: TIMEOUT_MS, maxBytes: MAX_LIST_BYTES };
    const list = (await git(args, options)).toString();
    this.#paths.set(commit, list);
    return list;
  }

  /** Lines of text files that match, in the order of paths. @throws NoPattern; GitError when it takes too long; NoTurn */
  lines(dir: string, search: LineSearch, { caller, signal }: Searcher): Promise<FoundLines> {
    return this.#inTurn(() => grep(dir, search, signal), { caller, signal });
  }

  #inTurn<T>(search: () => Promise<T>, { caller, signal }: Searcher): Promise<T> {
    const { key, isAnonymous } = caller;
    const turn = () => this.#turns.run(search, { key, signal });
    return isAnonymous ? this.#anonymous.run(turn, { key, signal }) : turn();
  }
}

/** Half a million paths take half a second, in which others have their turns. */
async function selectPaths(list: string, words: readonly string[], limit: number): Promise<string[]> {
  const named: string[] = [];
  const rest: string[] = [];
  let count = 0;
  for (let at = 0, end = list.indexOf('\0'); end >= 0; at = end + 1, end = list.indexOf('\0', at)) {
    if (++count % PATHS_PER_SLICE === 0) await others();
    const path = list.slice(at, end);
    const folded = path.toLowerCase();
    if (!words.every((word) => folded.includes(word))) continue;
    const name = folded.slice(folded.lastIndexOf('/') + 1);
    const paths = words.every((word) => name.includes(word)) ? named : rest;
    if (paths.length <= limit) paths.push(path);
    if (named.length > limit) break;
  }
  return [...named, ...rest].slice(0, limit + 1);
}

async function grep(dir: string, search: LineSearch, left?: AbortSignal): Promise<FoundLines> {
  const { commit, path, text, isPattern, ignoresCase, limit } = search;
  if (isPattern && countRepetitions(text) > MAX_REPETITIONS) throw new NoPattern('it repeats too much');
  const args = ['-n', '-z', '--column', '-I', '--full-name', '--threads=1', '--no-color'];
  args.push(`--max-count=${MAX_LINES_PER_FILE}`, isPattern ? '-E' : '-F', ...(ignoresCase ? ['-i'] : []));
  args.push('-e', text, commit, '--', ...(path === '' ? [] : [path]));
  const signal = AbortSignal.any([AbortSignal.timeout(TIMEOUT_MS), ...(left ? [left] : [])]);
  const env = { GIT_LITERAL_PATHSPECS: '1' };
  using process = await startGit(['bounded-grep', ...args], { dir, signal, env, config: BOUNDED_GREP_CONFIG });
  process.stdin.end();
  const lines: FoundLine[] = [];
  const cutter = new LineSplitter();
  for await (const chunk of process.stdout as AsyncIterable<Buffer>) {
    for (const line of cutter.push(chunk)) {
      const found = parseFoundLine(line, commit);
      if (found) lines.push(found);
      if (lines.length > limit) return { lines: lines.slice(0, limit), isTruncated: true };
    }
  }
  throwOnFailure(await process.ended, isPattern);
  return { lines, isTruncated: false };
}

/** 1: nothing was found. What git cannot make of a pattern, or not within its memory, ends it with 128. */
function throwOnFailure(ending: GitExit, isPattern: boolean): void {
  if (ending.code === 0 || ending.code === 1) return;
  if (isPattern && ending.code !== null) throw new NoPattern(ending.stderr);
  throw new GitError('grep', ending);
}

/** How often the innermost of a pattern is repeated, if all its repetitions stood in one another. */
function countRepetitions(pattern: string): number {
  const bounds = [...pattern.matchAll(/\{(\d*),?(\d*)\}/g)];
  return bounds.reduce(
    (product, [, least, most]) => product * Math.max(1, Number(most || least)),
    1,
  );
}

/** `<commit>:<path>\0<line>\0<column>\0<text>` */
function parseFoundLine(bytes: Buffer, commit: string): FoundLine | null {
  const [place = '', line, column, ...text] = bytes.toString('utf8').split('\0');
  if (!column) return null;
  const path = place.slice(commit.length + 1);
  return { path, line: Number(line), column: Number(column), text: text.join('') };
}

/** Lines, each cut to `MAX_LINE` bytes behind its path: one line of a file may be as long as the file. */
class LineSplitter {
  #kept: Buffer = Buffer.alloc(0);

  *push(chunk: Buffer): Generator<Buffer> {
    let at = 0;
    for (;;) {
      const end = chunk.indexOf(NEWLINE, at);
      const piece = chunk.subarray(at, end < 0 ? chunk.length : end);
      const room = Math.max(0, MAX_LINE_BYTES + 4_096 - this.#kept.length);
      if (room > 0) this.#kept = Buffer.concat([this.#kept, piece.subarray(0, room)]);
      if (end < 0) return;
      yield truncateText(this.#kept);
      this.#kept = Buffer.alloc(0);
      at = end + 1;
    }
  }
}

/** What stands behind the third NUL is the text. */
function truncateText(line: Buffer): Buffer {
  let at = -1;
  for (let part = 0; part < 3; part++) {
    at = line.indexOf(0, at + 1);
    if (at < 0) return line;
  }
  return line.subarray(0, at + 1 + MAX_LINE_BYTES);
}
