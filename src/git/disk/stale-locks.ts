/**
 * Removes stale lock files. Git locks a file by creating `<file>.lock` beside it, and removes the lock when git ends,
 * also on SIGTERM, but not on SIGKILL, for example when a container stops or memory runs out. A stale lock makes git
 * reject every later push to that ref (`HEAD.lock`: to the default branch) and every later packing of refs.
 *
 * A lock is removed when no git process that could hold it runs in the repository on this machine, and the lock is too
 * old to be held on another machine. Git processes have the repository as their working directory, so `/proc` shows
 * them, including those that outlived their server. Without `/proc`, only the age decides.
 */
import { readdir, readFile, readlink, realpath, stat, unlink } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { FairSemaphore } from '../../platform/limits/fair-semaphore.ts';

/**
 * Minimum age if no other machine uses the folder. A younger lock may be held by a process started after `/proc` was
 * read.
 */
const LOCAL_LOCK_AGE_MS = 2_000;
/** Minimum age on shared folders. Git locks a ref for milliseconds; packing a million refs takes seconds. */
const REF_LOCK_AGE_MS = 60_000;
/** Minimum age in `objects` on shared folders: maintenance may hold a lock as long as it runs (`maintenance.ts`). */
const OBJECT_LOCK_AGE_MS = 60 * 60_000;

/** Git commands that hold no lock. */
const READ_ONLY_COMMANDS = new Set(
  `archive blame bounded-grep cat-file count-objects diff diff-tree for-each-ref grep log ls-tree merge-base
   index-pack pack-objects rev-list rev-parse show unpack-objects upload-pack`.split(/\s+/),
);
/** A push from a shallow clone holds this lock while its pack arrives, before the push is decided. */
const SHALLOW_LOCK = 'shallow.lock';
/** Git writes packed refs to this file before it renames the file to `packed-refs`. */
const NEW_PACKED_REFS = 'packed-refs.new';

/** Interval at which running git processes are checked. */
const POLL_MS = 20;

type Options = {
  /** No other machine runs git in the repositories. */
  isAlone: boolean;
};

export class StaleLocks {
  readonly #isAlone: boolean;
  /** Process ids of pushes on this server without a verdict yet. They may take hours, and lock no ref. */
  readonly #undecided = new Set<number>();
  /** Serializes removals per repository, because a removal must not act on locks that a concurrent removal found. */
  readonly #removals = new FairSemaphore(Number.POSITIVE_INFINITY, {
    perKey: 1,
    waitMs: Number.POSITIVE_INFINITY,
    maxWaiting: Number.POSITIVE_INFINITY,
  });

  constructor({ isAlone }: Options) {
    this.#isAlone = isAlone;
  }

  /** Marks a push as not decided yet. @returns a function that ends the mark */
  trackUndecidedPush(pid: number | undefined): () => void {
    if (pid === undefined) return () => {};
    this.#undecided.add(pid);
    return () => void this.#undecided.delete(pid);
  }

  /** Removes stale locks that would prevent updates of these refs. */
  async removeBlocking(dir: string, refs: readonly string[]): Promise<void> {
    const topLevelLocks = (await listNames(dir)).filter(
      (name) => isLock(name) && name !== SHALLOW_LOCK,
    );
    const refLocks = refs.filter(isSafeRefPath).map((ref) => `${ref}.lock`);
    await this.#remove(dir, [...topLevelLocks, ...refLocks]);
  }

  /** Removes all stale locks of a repository. */
  async removeAll(dir: string): Promise<void> {
    const files: string[] = [];
    const folders = ['', 'objects/info', 'objects/info/commit-graphs', 'objects/pack'];
    for (const folder of folders)
      for (const name of await listNames(join(dir, folder)))
        if (isLock(name)) files.push(join(folder, name));
    for (const name of await listNames(join(dir, 'refs'), true))
      if (isLock(name)) files.push(join('refs', name));
    await this.#remove(dir, files);
  }

  /**
   * Waits until all git processes that may change refs of the repository have ended, except pushes that this server has
   * not decided yet. Git processes of a killed server continue for a moment, and the refs are final only after that.
   * @returns whether they ended within `timeoutMs`
   */
  async waitForWriters(dir: string, timeoutMs: number): Promise<boolean> {
    const deadline = Date.now() + timeoutMs;
    const found = (await findWriters(dir)).filter((pid) => !this.#undecided.has(pid));
    for (
      let left = new Set(found);
      left.size > 0;
      left = left.intersection(new Set(await findWriters(dir)))
    ) {
      if (Date.now() > deadline) return false;
      await delay(POLL_MS);
    }
    return true;
  }

  async #remove(dir: string, files: readonly string[]): Promise<void> {
    const old: string[] = [];
    for (const file of files) if (await this.#isOld(join(dir, file), file)) old.push(file);
    if (old.length === 0) return;
    await this.#removals.run(() => this.#removeUnheld(dir, old), { key: dir });
  }

  async #removeUnheld(dir: string, files: readonly string[]): Promise<void> {
    const writers = await findWriters(dir);
    const refWriters = writers.filter((pid) => !this.#undecided.has(pid));
    for (const file of files) {
      const holders = file === SHALLOW_LOCK ? writers : refWriters;
      if (holders.length > 0 || !(await this.#isOld(join(dir, file), file))) continue;
      await unlink(join(dir, file)).catch(ignoreMissing);
    }
  }

  async #isOld(path: string, file: string): Promise<boolean> {
    const found = await stat(path).catch(() => null);
    if (!found?.isFile()) return false;
    const sharedAge = file.startsWith('objects/') ? OBJECT_LOCK_AGE_MS : REF_LOCK_AGE_MS;
    return Date.now() - found.mtimeMs > (this.#isAlone && hasProc ? LOCAL_LOCK_AGE_MS : sharedAge);
  }
}

/** Git has not validated the ref names of a client at this point. */
function isSafeRefPath(ref: string): boolean {
  return ref.startsWith('refs/') && !ref.includes('..') && !ref.includes('\0');
}

function isLock(name: string): boolean {
  return name.endsWith('.lock') || name === NEW_PACKED_REFS;
}

/** Returns no names if the folder does not exist. */
async function listNames(folder: string, recursive = false): Promise<string[]> {
  return readdir(folder, { recursive }).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT' || error.code === 'ENOTDIR') return [];
    throw error;
  });
}

const hasProc = await readlink('/proc/self/cwd').then(
  () => true,
  () => false,
);

/** Process ids of git processes on this machine that work in the folder and may write. */
async function findWriters(dir: string): Promise<number[]> {
  if (!hasProc) return [];
  const folder = await realpath(dir).catch(() => dir);
  const writers: number[] = [];
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    // `readlink` fails for processes of other users, and for processes that have ended.
    const cwd = await readlink(`/proc/${name}/cwd`).catch(() => null);
    if (cwd !== folder) continue;
    const cmdline = await readFile(`/proc/${name}/cmdline`, 'utf8').catch(() => '');
    const [program = '', command = ''] = cmdline.split('\0');
    const isGit = basename(program).startsWith('git');
    if (isGit && !READ_ONLY_COMMANDS.has(command)) writers.push(Number(name));
  }
  return writers;
}

function ignoreMissing(error: NodeJS.ErrnoException): void {
  if (error.code !== 'ENOENT') throw error;
}
