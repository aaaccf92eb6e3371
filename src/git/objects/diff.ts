/**
 * Compares two commits: the changed files, their line counts and patches. A list of files is cached by the commit ids,
 * because it never changes; patches are read for one page of files at a time.
 *
 * Limits: files in a list, bytes of a patch and of a page of patches, the size of a file that is compared line by line,
 * the number of files tried as renames, and git's run time.
 */
import { LRUCache } from 'lru-cache';
import type { FairSemaphore } from '../../platform/limits/fair-semaphore.ts';
import { GitError, git, gitLines } from '../processes/run.ts';

type FileStatus = 'added' | 'deleted' | 'modified' | 'renamed' | 'type_changed';

export type ChangedFile = {
  path: string;
  /** The former path of a renamed file. */
  oldPath: string | null;
  status: FileStatus;
  /** Six octal digits; null where the file does not exist. */
  oldMode: string | null;
  mode: string | null;
  /** Numbers of lines. Null for files that are not compared line by line, and in a truncated list. */
  additions: number | null;
  deletions: number | null;
  /** Not compared line by line: the file is not text, or too large. */
  isBinary: boolean;
};

export type Changes = {
  files: ChangedFile[];
  /** More files changed than are listed. Lines were not counted. */
  isTruncated: boolean;
};

/** The hunks of one file. `text` is empty where only names or modes changed. */
export type Patch = { text: string; isTruncated: boolean };

/** Two commit ids. `from` is null for a comparison with the empty tree. */
export type Range = { from: string | null; to: string };

export const MAX_FILES = 3_000;
export const MAX_PATCH_BYTES = 64 * 1024;
export const MAX_PAGE_BYTES = 1024 * 1024;
const TIMEOUT_MS = 20_000;
/** Time limit to compare all branches of a page with the default branch. */
const COUNT_ALL_MS = 5_000;
const EMPTY_TREE = '4b825dc642cb6eb9a060e54bf8d69288fbee4904';

const OPTIONS = [
  '-r',
  '-M',
  // Maximum number of files tried as renames; the time grows with its square.
  '-l400',
  '--no-color',
  '--no-ext-diff',
  '--no-textconv',
];
/** Larger files count as binary. */
const CONFIG = { 'core.bigFileThreshold': '2m' };

/** How many commits each of two commits has that the other does not have. */
export type AheadBehind = { ahead: number; behind: number };

export class DiffReader {
  readonly #readSlots: FairSemaphore;
  /** By both commit ids. Sizes count files of about 300 bytes each. */
  readonly #lists = new LRUCache<string, Changes, { dir: string; range: Range }>({
    maxSize: 100_000,
    sizeCalculation: ({ files }) => files.length + 1,
    // Concurrent callers share one read.
    fetchMethod: (_key, _before, { context: { dir, range } }) =>
      this.#readSlots.run(() => readChanges(dir, range), { key: dir }),
    ignoreFetchAbort: true,
  });
  /** By both commit ids. */
  readonly #distances = new LRUCache<string, AheadBehind>({ max: 10_000 });

  constructor(readSlots: FairSemaphore) {
    this.#readSlots = readSlots;
  }

  /** @throws GitError when git takes too long; as `startGit` */
  changes(dir: string, range: Range): Promise<Changes> {
    return this.#lists.forceFetch(`${range.from}..${range.to}`, { context: { dir, range } });
  }

  /** One patch per file. The files must be consecutive in the list of this range. */
  patches(dir: string, range: Range, files: readonly ChangedFile[]): Promise<Patch[]> {
    return this.#readSlots.run(() => readPatches(dir, range, files), { key: dir });
  }

  /** The best common ancestor; null without a common ancestor. */
  async mergeBase(dir: string, base: string, head: string): Promise<string | null> {
    const args = ['merge-base', '--all', base, head];
    const read = () => readLines(args, dir, { none: [1] });
    const bases = await this.#readSlots.run(read, { key: dir });
    return bases[0] ?? null;
  }

  /** Counts the commits that only one of the two commits has. */
  async countAheadBehind(
    dir: string,
    base: string,
    head: string,
    timeoutMs = TIMEOUT_MS,
  ): Promise<AheadBehind> {
    const range = `${base}...${head}`;
    const cached = this.#distances.get(range);
    if (cached) return cached;
    const args = ['rev-list', '--left-right', '--count', range];
    const count = () => readLines(args, dir, { timeoutMs });
    const [counts = ''] = await this.#readSlots.run(count, { key: dir });
    const [behind = 0, ahead = 0] = counts.split('\t').map(Number);
    const distance = { ahead, behind };
    this.#distances.set(range, distance);
    return distance;
  }

  /**
   * Like `countAheadBehind`, for several heads. Omits heads that are not counted within 5 seconds. Counts sequentially,
   * so that a page of branches holds one read slot. Git 2.41 counts all in one process (`%(ahead-behind:…)`), but git
   * 2.38 is supported too.
   */
  async countAheadBehindOfEach(
    dir: string,
    base: string,
    heads: readonly string[],
  ): Promise<[head: string, AheadBehind][]> {
    const deadline = Date.now() + COUNT_ALL_MS;
    const counted: [head: string, AheadBehind][] = [];
    for (const head of heads) {
      const timeoutMs = deadline - Date.now();
      if (timeoutMs <= 0) break;
      try {
        counted.push([head, await this.countAheadBehind(dir, base, head, timeoutMs)]);
      } catch (error) {
        // The timeout ended git.
        if (!(error instanceof GitError) || error.code !== null) throw error;
      }
    }
    return counted;
  }

  /** Commits of `head` that `base` does not have, newest first. */
  commitsBetween(
    dir: string,
    base: string,
    head: string,
    { skip, take }: { skip: number; take: number },
  ): Promise<string[]> {
    const args = ['rev-list', `--skip=${skip}`, `--max-count=${take}`, head, `^${base}`];
    return this.#readSlots.run(() => readLines(args, dir), { key: dir });
  }
}

/** The output lines of a command. Empty when the command exits with one of the codes in `none`. */
async function readLines(
  args: string[],
  dir: string,
  { none = [], timeoutMs = TIMEOUT_MS }: { none?: readonly number[]; timeoutMs?: number } = {},
): Promise<string[]> {
  try {
    const output = await git(args, { dir, timeoutMs });
    return output.toString().split('\n').filter(Boolean);
  } catch (error) {
    if (error instanceof GitError && error.code !== null && none.includes(error.code)) return [];
    throw error;
  }
}

async function readChanges(dir: string, { from, to }: Range): Promise<Changes> {
  const args = ['diff-tree', ...OPTIONS, '-z', '--raw', '--numstat', from ?? EMPTY_TREE, to];
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const pieces = gitLines(args, { dir, signal, config: CONFIG }, { separator: '\0' });
  const files: ChangedFile[] = [];
  const counted = new Map<string, Pick<ChangedFile, 'additions' | 'deletions' | 'isBinary'>>();
  const next = async () => (await pieces.next()).value as string;
  for await (const piece of pieces) {
    if (piece.startsWith(':')) {
      if (files.length === MAX_FILES) return { files, isTruncated: true };
      files.push(await readEntry(piece, next));
    } else {
      // <additions> <deletions> <path>. For a rename the path is empty, and the old and new path follow.
      const [additions, deletions, path] = piece.split('\t');
      const [, renamed] = path ? [] : [await next(), await next()];
      const name = path || renamed || '';
      const isBinary = additions === '-';
      counted.set(name, {
        additions: isBinary ? null : Number(additions),
        deletions: isBinary ? null : Number(deletions),
        isBinary,
      });
    }
  }
  return {
    files: files.map((file) => ({ ...file, ...counted.get(file.path) })),
    isTruncated: false,
  };
}

const STATUS: Record<string, FileStatus> = {
  A: 'added',
  D: 'deleted',
  M: 'modified',
  R: 'renamed',
  T: 'type_changed',
};

/** `:<old mode> <new mode> <old id> <new id> <status>`, then the path; for a rename the old and the new path. */
async function readEntry(header: string, next: () => Promise<string>): Promise<ChangedFile> {
  const [oldMode = '', mode, , , letter = ''] = header.slice(1).split(' ');
  const status = STATUS[letter.charAt(0)] ?? 'modified';
  const first = await next();
  const path = status === 'renamed' ? await next() : first;
  return {
    path,
    oldPath: status === 'renamed' ? first : null,
    status,
    oldMode: status === 'added' ? null : oldMode,
    mode: status === 'deleted' ? null : (mode ?? null),
    additions: null,
    deletions: null,
    isBinary: false,
  };
}

async function readPatches(
  dir: string,
  { from, to }: Range,
  files: readonly ChangedFile[],
): Promise<Patch[]> {
  const [first] = files;
  if (!first) return [];
  const args = ['diff-tree', ...OPTIONS, '-p', `--skip-to=${first.path}`, from ?? EMPTY_TREE, to];
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const options = { dir, signal, config: CONFIG };
  // Git lists a type change as two files, one deleted and one added.
  const owners = files.flatMap((file, i) => (file.status === 'type_changed' ? [i, i] : [i]));
  const patches = files.map(() => new PatchCollector());
  let at = -1;
  let bytes = 0;
  for await (const line of gitLines(args, options, { encoding: 'latin1' })) {
    if (line.startsWith('diff --git ')) {
      at++;
      if (at === owners.length) break;
      patches[owners[at] as number]?.begin();
      continue;
    }
    const patch = patches[owners[at] as number];
    bytes += patch?.add(line) ?? 0;
    if (bytes > MAX_PAGE_BYTES) {
      // Patches that were not read completely are marked as truncated.
      for (const left of new Set(owners.slice(at))) patches[left]?.cut();
      break;
    }
  }
  return patches.map((patch) => patch.read());
}

/** Collects the hunks of a file up to `MAX_PATCH_BYTES`. Lines are Latin-1, one character per byte. */
class PatchCollector {
  #lines: string[] = [];
  #bytes = 0;
  #inHunks = false;
  #cut = false;

  /** Call at the header of a file. */
  begin(): void {
    this.#inHunks = false;
  }

  /** @returns the number of bytes that were kept */
  add(line: string): number {
    this.#inHunks ||= line.startsWith('@@ ');
    if (!this.#inHunks || this.#cut) return 0;
    const size = line.length + 1;
    if (this.#bytes + size > MAX_PATCH_BYTES) {
      this.#cut = true;
      return 0;
    }
    this.#lines.push(line);
    this.#bytes += size;
    return size;
  }

  cut(): void {
    this.#cut = true;
  }

  read(): Patch {
    const text = this.#lines.map((line) => `${line}\n`).join('');
    return { text: Buffer.from(text, 'latin1').toString(), isTruncated: this.#cut };
  }
}
