/**
 * Which commit changed each entry of a directory last. A walk through the history, which is kept by commit and path: they
 * never change. It ends when all entries have been met, or its time is over; what is older then is not known.
 */
import { LRUCache } from 'lru-cache';
import type { FairSemaphore } from '../../platform/limits/fair-semaphore.ts';
import { GitError, git, gitLines } from '../processes/run.ts';

export type DirectoryAt = { commit: string; path: string; names: readonly string[] };

/** The name of an entry, and the id of its commit. */
export type EntryCommit = [name: string, sha: string];

/** Of a walk: an entry that has not been changed for long is at the end of it. */
const WALK_MS = 5_000;

export class LastCommits {
  readonly #turns: FairSemaphore;
  /** By commit and path. The sizes are of entries, some 100 bytes each: a directory may have 100,000. */
  readonly #known = new LRUCache<string, EntryCommit[]>({
    maxSize: 200_000,
    sizeCalculation: (found) => found.length + 1,
  });
  readonly #underWay = new Map<string, Promise<EntryCommit[]>>();
  /** By commit and path. */
  readonly #ofPaths = new LRUCache<string, string>({ max: 10_000 });

  constructor(turns: FairSemaphore) {
    this.#turns = turns;
  }

  /** Those that are not known are left out. @throws GitError */
  of(dir: string, at: DirectoryAt): Promise<EntryCommit[]> {
    const key = `${at.commit}:${at.path}`;
    const known = this.#known.get(key);
    if (known) return Promise.resolve(known);
    const walkDirectory = this.#underWay.get(key) ?? this.#walk(key, dir, at);
    this.#underWay.set(key, walkDirectory);
    return walkDirectory;
  }

  /** Of one path; null where it is not found in time. @throws GitError */
  async ofPath(dir: string, commit: string, path: string): Promise<string | null> {
    const key = `${commit}:${path}`;
    const known = this.#ofPaths.get(key);
    if (known) return known;
    const options = { dir, timeoutMs: WALK_MS, env: { GIT_LITERAL_PATHSPECS: '1' } };
    const args = ['rev-list', '--max-count=1', commit, '--', path];
    try {
      const output = await this.#turns.run(() => git(args, options), { key: dir });
      const sha = output.toString().trim();
      if (!sha) return null;
      this.#ofPaths.set(key, sha);
      return sha;
    } catch (error) {
      // Ended because it took too long.
      if (error instanceof GitError && error.code === null) return null;
      throw error;
    }
  }

  async #walk(key: string, dir: string, at: DirectoryAt): Promise<EntryCommit[]> {
    try {
      const { found, isWhole } = await this.#turns.run(() => walk(dir, at), { key: dir });
      if (isWhole) this.#known.set(key, found);
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
    // An empty piece, an id, and the names of that commit, the first of them on a line of its own.
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

/* Who wrote the lines of a file. */

/** Lines in a row that one commit brought. Lines count from 1. */
export type BlamedLines = {
  sha: string;
  line: number;
  count: number;
  /** Where they stood in that commit. */
  oldPath: string;
  oldLine: number;
};

type BlameRange = { commit: string; path: string; from: number; to: number };

const BLAME_TIMEOUT_MS = 20_000;

/**
 * Of the lines from `from` to `to` of a file, as far as it has them; null when it is shorter than `from`.
 * @throws GitError also when it takes too long
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

/** Each entry begins with `<id> <line then> <line now> <count>`, has facts of the commit, and ends with its `filename`. */
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
