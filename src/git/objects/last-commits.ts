/**
 * Finds the last commit that changed each entry of a directory, or each line of a file (blame). For a directory, git
 * walks through the history; the result is cached by commit and path, because it never changes. The walk ends when all
 * entries are found, or at its timeout; the remaining entries are then unknown.
 */
import { LRUCache } from 'lru-cache';
import type { FairSemaphore } from '../../platform/limits/fair-semaphore.ts';
import { GitError, git, gitLines } from '../processes/run.ts';

export type DirectoryAt = { commit: string; path: string; names: readonly string[] };

/** The name of an entry, and the id of the commit that last changed it. */
type EntryCommit = [name: string, sha: string];

/** Time limit of a walk: an entry that was not changed for years is found at the end of the history. */
const WALK_MS = 5_000;

export class LastCommits {
  readonly #readSlots: FairSemaphore;
  /** By commit and path. Sizes count entries of about 100 bytes each; a directory may have 100,000 entries. */
  readonly #ofDirectories = new LRUCache<string, EntryCommit[]>({
    maxSize: 200_000,
    sizeCalculation: (found) => found.length + 1,
  });
  readonly #underWay = new Map<string, Promise<EntryCommit[]>>();
  /** By commit and path. */
  readonly #ofPaths = new LRUCache<string, string>({ max: 10_000 });

  constructor(readSlots: FairSemaphore) {
    this.#readSlots = readSlots;
  }

  /** Omits entries whose commit is unknown. @throws GitError */
  ofDirectory(dir: string, at: DirectoryAt): Promise<EntryCommit[]> {
    const key = `${at.commit}:${at.path}`;
    const cached = this.#ofDirectories.get(key);
    if (cached) return Promise.resolve(cached);
    const walkDirectory = this.#underWay.get(key) ?? this.#walk(key, dir, at);
    this.#underWay.set(key, walkDirectory);
    return walkDirectory;
  }

  /** The last commit that changed a path; null when it is not found in time. @throws GitError */
  async ofPath(dir: string, commit: string, path: string): Promise<string | null> {
    const key = `${commit}:${path}`;
    const cached = this.#ofPaths.get(key);
    if (cached) return cached;
    const options = { dir, timeoutMs: WALK_MS, env: { GIT_LITERAL_PATHSPECS: '1' } };
    const args = ['rev-list', '--max-count=1', commit, '--', path];
    try {
      const output = await this.#readSlots.run(() => git(args, options), { key: dir });
      const sha = output.toString().trim();
      if (!sha) return null;
      this.#ofPaths.set(key, sha);
      return sha;
    } catch (error) {
      // The timeout ended git.
      if (error instanceof GitError && error.code === null) return null;
      throw error;
    }
  }

  async #walk(key: string, dir: string, at: DirectoryAt): Promise<EntryCommit[]> {
    try {
      const { found, isWhole } = await this.#readSlots.run(() => walk(dir, at), { key: dir });
      if (isWhole) this.#ofDirectories.set(key, found);
      return found;
    } finally {
      this.#underWay.delete(key);
    }
  }
}

async function walk(
  dir: string,
  { commit, path, names }: DirectoryAt,
): Promise<{ found: EntryCommit[]; isWhole: boolean }> {
  const left = new Set(names);
  const found: EntryCommit[] = [];
  const prefix = path === '' ? '' : `${path}/`;
  const args = ['log', '--format=%x00%H', '--name-only', '-z', '--no-renames', commit, '--'];
  if (path !== '') args.push(path);
  const limit = AbortSignal.timeout(WALK_MS);
  const options = { dir, signal: limit, env: { GIT_LITERAL_PATHSPECS: '1' } };
  let sha = '';
  let isId = false;
  try {
    // Per commit: an empty record, the id, and the names, of which the first begins with a line break.
    for await (const piece of gitLines(args, options, { separator: '\0' })) {
      if (piece === '') {
        isId = true;
      } else if (isId) {
        sha = piece;
        isId = false;
      } else {
        const [name = ''] = piece.replace(/^\n/, '').slice(prefix.length).split('/', 1);
        if (left.delete(name)) found.push([name, sha]);
      }
      if (left.size === 0) break;
    }
  } catch (error) {
    if (!limit.aborted) throw error;
  }
  return { found, isWhole: !limit.aborted };
}

/* Blame */

/** Consecutive lines that come from one commit. Line numbers start at 1. */
export type BlamedLines = {
  sha: string;
  line: number;
  count: number;
  /** Path and first line of these lines in that commit. */
  oldPath: string;
  oldLine: number;
};

type BlameRange = { commit: string; path: string; from: number; to: number };

const BLAME_TIMEOUT_MS = 20_000;

/**
 * Blames the lines from `from` to `to` of a file, up to its end; null when the file is shorter than `from`.
 * @throws GitError, also when git takes too long
 */
export async function blame(
  dir: string,
  { commit, path, from, to }: BlameRange,
): Promise<BlamedLines[] | null> {
  const args = ['blame', '--incremental', '-L', `${from},${to}`, commit, '--', path];
  try {
    const output = await git(args, { dir, timeoutMs: BLAME_TIMEOUT_MS });
    return parseBlame(output.toString()).sort((a, b) => a.line - b.line);
  } catch (error) {
    if (error instanceof GitError && /has only \d+ lines?$/m.test(error.stderr)) return null;
    throw error;
  }
}

/** An entry begins with `<id> <old line> <line> <count>`, has commit headers, and ends with `filename <path>`. */
function parseBlame(output: string): BlamedLines[] {
  const all: BlamedLines[] = [];
  for (const text of output.split('\n')) {
    const [, sha = '', oldLine, line, count] =
      /^([0-9a-f]{40}) (\d+) (\d+) (\d+)$/.exec(text) ?? [];
    const last = all.at(-1);
    if (sha)
      all.push({
        sha,
        oldLine: Number(oldLine),
        line: Number(line),
        count: Number(count),
        oldPath: '',
      });
    else if (last && text.startsWith('filename ')) last.oldPath = text.slice('filename '.length);
  }
  return all;
}
