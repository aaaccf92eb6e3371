/**
 * Searches the files of a commit: their paths, whose list is cached, and their lines, with `git grep`. Both searches
 * have limits for time, results and concurrency.
 */
import { setImmediate as yieldToEventLoop } from 'node:timers/promises';
import { LRUCache } from 'lru-cache';
import { type Caller, FairSemaphore } from '../../platform/limits/fair-semaphore.ts';
import type { GitExit } from '../../platform/processes/git-started.ts';
import { GitError, git, startGit } from '../processes/run.ts';

/** `column`: byte position of the first match, from 1. `text`: the line, truncated. */
export type FoundLine = { path: string; line: number; column: number; text: string };
export type FoundLines = { lines: FoundLine[]; isTruncated: boolean };

type PathSearch = { commit: string; words: readonly string[]; limit: number };

type LineSearch = {
  commit: string;
  /** Directory or file to search; empty for all files. */
  path: string;
  text: string;
  /** Whether `text` is an extended regular expression. */
  isPattern: boolean;
  ignoresCase: boolean;
  limit: number;
};

/** The text is not a valid or acceptable regular expression. */
export class InvalidPattern extends Error {
  override name = 'InvalidPattern';
}

/** `signal` aborts when no caller waits for the results anymore. */
export type Searcher = { caller: Caller; signal?: AbortSignal };

/** A search keeps a core busy. A caller runs one at a time; anonymous callers leave one slot to signed-in callers. */
const AT_ONCE = 2;
const ANONYMOUS_AT_ONCE = 1;
const TIMEOUT_MS = 10_000;
/** Limit for the list of all paths of a commit. */
const MAX_LIST_BYTES = 32 * 2 ** 20;
const MAX_LINE_BYTES = 400;
/** Results per file, so that one file does not fill the answer. */
const MAX_LINES_PER_FILE = 20;
const NEWLINE = 10;
/** Paths checked before the event loop runs other work; they take some milliseconds. */
const PATHS_PER_YIELD = 5_000;
/** Memory limit of `git grep`: a short pattern can take gigabytes. */
const MAX_MEMORY_KB = 1_500_000;
/** Limit for the product of all repetition counts in a pattern. */
const MAX_REPETITIONS = 1_000;

/** Maps packs in small windows, so that the limit applies to the search. Shells without `ulimit -v` set no limit. */
const BOUNDED_GREP_CONFIG = {
  'alias.bounded-grep': `!f() { ulimit -v ${MAX_MEMORY_KB} 2>/dev/null; exec git grep "$@"; }; f`,
  'core.packedGitWindowSize': '32m',
  'core.packedGitLimit': '256m',
};

export class Searches {
  readonly #slots = new FairSemaphore(AT_ONCE, { perKey: 1, waitMs: TIMEOUT_MS });
  /** Anonymous callers need a slot of this semaphore as well. */
  readonly #anonymous = new FairSemaphore(ANONYMOUS_AT_ONCE, { waitMs: TIMEOUT_MS });
  /** Commit id → all paths, each followed by NUL. The size limit counts characters. */
  readonly #paths = new LRUCache<string, string>({
    maxSize: 64 * 2 ** 20,
    sizeCalculation: (list) => list.length + 1,
  });

  /**
   * Finds the paths of a commit that contain all the words, which must be in lower case. Paths whose file name contains
   * all words come first. Returns `limit` + 1 paths if there are more than `limit`.
   * @throws GitError if there are too many paths or git takes too long; QueueTimeout
   */
  paths(
    dir: string,
    { commit, words, limit }: PathSearch,
    { caller, signal }: Searcher,
  ): Promise<string[]> {
    const search = async () => selectPaths(await this.#list(dir, commit, signal), words, limit);
    return this.#runLimited(search, { caller, signal });
  }

  /** All paths of a commit, each followed by NUL. */
  async #list(dir: string, commit: string, signal?: AbortSignal): Promise<string> {
    const cached = this.#paths.get(commit);
    if (cached !== undefined) return cached;
    const args = ['ls-tree', '-r', '-z', '--name-only', '--full-tree', commit];
    const options = { dir, signal, timeoutMs: TIMEOUT_MS, maxBytes: MAX_LIST_BYTES };
    const list = (await git(args, options)).toString();
    this.#paths.set(commit, list);
    return list;
  }

  /**
   * Finds the matching lines of text files, in the order of paths.
   * @throws InvalidPattern; GitError on timeout; QueueTimeout
   */
  lines(dir: string, search: LineSearch, { caller, signal }: Searcher): Promise<FoundLines> {
    return this.#runLimited(() => grep(dir, search, signal), { caller, signal });
  }

  #runLimited<T>(search: () => Promise<T>, { caller, signal }: Searcher): Promise<T> {
    const { key, isAnonymous } = caller;
    const run = () => this.#slots.run(search, { key, signal });
    return isAnonymous ? this.#anonymous.run(run, { key, signal }) : run();
  }
}

/** Checking half a million paths takes half a second, so the loop yields to other work. */
async function selectPaths(
  list: string,
  words: readonly string[],
  limit: number,
): Promise<string[]> {
  const nameMatches: string[] = [];
  const otherMatches: string[] = [];
  let count = 0;
  for (let at = 0, end = list.indexOf('\0'); end >= 0; at = end + 1, end = list.indexOf('\0', at)) {
    if (++count % PATHS_PER_YIELD === 0) await yieldToEventLoop();
    const path = list.slice(at, end);
    const folded = path.toLowerCase();
    if (!words.every((word) => folded.includes(word))) continue;
    const name = folded.slice(folded.lastIndexOf('/') + 1);
    const paths = words.every((word) => name.includes(word)) ? nameMatches : otherMatches;
    if (paths.length <= limit) paths.push(path);
    if (nameMatches.length > limit) break;
  }
  return [...nameMatches, ...otherMatches].slice(0, limit + 1);
}

async function grep(
  dir: string,
  search: LineSearch,
  callerSignal: AbortSignal | undefined,
): Promise<FoundLines> {
  const { commit, path, text, isPattern, ignoresCase, limit } = search;
  if (isPattern && countRepetitions(text) > MAX_REPETITIONS)
    throw new InvalidPattern(`The repetitions of the pattern exceed ${MAX_REPETITIONS}`);
  const args = ['-n', '-z', '--column', '-I', '--full-name', '--threads=1', '--no-color'];
  args.push(`--max-count=${MAX_LINES_PER_FILE}`, isPattern ? '-E' : '-F');
  if (ignoresCase) args.push('-i');
  args.push('-e', text, commit, '--', ...(path === '' ? [] : [path]));
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const signal = callerSignal ? AbortSignal.any([timeout, callerSignal]) : timeout;
  const env = { GIT_LITERAL_PATHSPECS: '1' };
  const options = { dir, signal, env, config: BOUNDED_GREP_CONFIG };
  using process = await startGit(['bounded-grep', ...args], options);
  process.stdin.end();
  const lines: FoundLine[] = [];
  const splitter = new LineSplitter();
  for await (const chunk of process.stdout as AsyncIterable<Buffer>) {
    for (const line of splitter.push(chunk)) {
      const found = parseFoundLine(line, commit);
      if (found) lines.push(found);
      if (lines.length > limit) return { lines: lines.slice(0, limit), isTruncated: true };
    }
  }
  throwOnFailure(await process.ended, isPattern);
  return { lines, isTruncated: false };
}

/** Exit code 1 means no match. Git exits with 128 for an invalid pattern, or one that exceeds the memory limit. */
function throwOnFailure(ending: GitExit, isPattern: boolean): void {
  if (ending.code === 0 || ending.code === 1) return;
  if (isPattern && ending.code !== null) throw new InvalidPattern(ending.stderr);
  throw new GitError('grep', ending);
}

/** Product of all repetition counts: how often the innermost part is repeated if all repetitions are nested. */
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

/** Splits output into lines and truncates each text to `MAX_LINE_BYTES`, because a line may be as long as the file. */
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

/** The text begins after the third NUL. */
function truncateText(line: Buffer): Buffer {
  let at = -1;
  for (let part = 0; part < 3; part++) {
    at = line.indexOf(0, at + 1);
    if (at < 0) return line;
  }
  return line.subarray(0, at + 1 + MAX_LINE_BYTES);
}
