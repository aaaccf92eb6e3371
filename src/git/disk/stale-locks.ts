/**
 * Locks that nobody holds any more. Git locks a file by making `<file>.lock` beside it, and removes that when it ends or a
 * signal ends it, but not when it is killed with SIGKILL, as at the end of a container or where memory runs out. Then
 * every later push to that ref is refused (of `HEAD.lock`: to the default branch), and every later packing of refs.
 *
 * A lock is removed when no program of git that could hold it works in the repository on this machine, and when it is so
 * old that none can hold it on another. All programs of git work in the folder of their repository, so `/proc` tells
 * of them, also of those that have outlived a server. Where there is no `/proc`, age alone decides.
 */
import { readdir, readFile, readlink, realpath, stat, unlink } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';

/** A lock that was made since a look at the programs began is held. */
const FRESH_MS = 2_000;
/** Where other machines may share the folder. Refs are locked for milliseconds; packing a million takes seconds. */
const OF_REFS_MS = 60_000;
/** What maintenance locks, it may hold for as long as it runs (`maintenance.ts`). */
const OF_OBJECTS_MS = 60 * 60_000;

/** Of git, in a repository; they hold no lock. */
const READERS = new Set(
  `archive blame bounded-grep cat-file count-objects diff diff-tree for-each-ref grep log ls-tree merge-base
   index-pack pack-objects rev-list rev-parse show unpack-objects upload-pack`.split(/\s+/),
);
/** Of pushes that are not accepted yet. It is held while the pack of a push from a shallow clone comes. */
const SHALLOW = 'shallow.lock';
/** The file that all refs are packed into, before it takes its place. */
const PACKED = 'packed-refs.new';

/** Between two looks at programs that are to end. */
const LOOK_MS = 20;

type Options = {
  /** No other machine has programs that work in the repositories. */
  isAlone: boolean;
};

export class StaleLocks {
  readonly #isAlone: boolean;
  /** Pushes that run here and were not accepted yet, by process. They may take hours, and lock no ref. */
  readonly #waiting = new Set<number>();
  /** Of two looks at one repository the second must not take a lock for what the first saw. */
  readonly #looking = new Map<string, Promise<void>>();

  constructor({ isAlone }: Options) {
    this.#isAlone = isAlone;
  }

  /** A push that is not accepted yet, until the function that is returned is called. */
  waits(pid: number | undefined): () => void {
    if (pid === undefined) return () => {};
    this.#waiting.add(pid);
    return () => void this.#waiting.delete(pid);
  }

  /** Removes those that would refuse a change of these refs. */
  async removeOf(dir: string, refs: readonly string[]): Promise<void> {
    const top = (await namesIn(dir)).filter((name) => isLock(name) && name !== SHALLOW);
    const held = refs.filter(isWithin).map((ref) => `${ref}.lock`);
    await this.#remove(dir, [...top, ...held]);
  }

  /** Removes all of a repository. */
  async remove(dir: string): Promise<void> {
    const files: string[] = [];
    const folders = ['', 'objects/info', 'objects/info/commit-graphs', 'objects/pack'];
    for (const folder of folders)
      for (const name of await namesIn(join(dir, folder)))
        if (isLock(name)) files.push(join(folder, name));
    for (const name of await namesIn(join(dir, 'refs'), true))
      if (isLock(name)) files.push(join('refs', name));
    await this.#remove(dir, files);
  }

  /**
   * Waits until the programs have ended that may change refs of a repository now, but for pushes that this server has not
   * accepted: those of a server that was killed go on for a moment, and what they did shows only then.
   * @returns whether they have, within `timeoutMs`
   */
  async outlive(dir: string, timeoutMs: number): Promise<boolean> {
    const deadline = Date.now() + timeoutMs;
    const found = (await writersIn(dir)).filter((pid) => !this.#waiting.has(pid));
    for (
      let left = new Set(found);
      left.size > 0;
      left = left.intersection(new Set(await writersIn(dir)))
    ) {
      if (Date.now() > deadline) return false;
      await delay(LOOK_MS);
    }
    return true;
  }

  async #remove(dir: string, files: readonly string[]): Promise<void> {
    const old: string[] = [];
    for (const file of files) if (await this.#isOld(join(dir, file), file)) old.push(file);
    if (old.length === 0) return;
    const before = this.#looking.get(dir) ?? Promise.resolve();
    const look = before.then(() => this.#removeUnheld(dir, old));
    const settled = look.catch(() => {});
    this.#looking.set(dir, settled);
    await look.finally(() => {
      if (this.#looking.get(dir) === settled) this.#looking.delete(dir);
    });
  }

  async #removeUnheld(dir: string, files: readonly string[]): Promise<void> {
    const writers = await writersIn(dir);
    const accepted = writers.filter((pid) => !this.#waiting.has(pid));
    for (const file of files) {
      const holders = file === SHALLOW ? writers : accepted;
      if (holders.length > 0 || !(await this.#isOld(join(dir, file), file))) continue;
      await unlink(join(dir, file)).catch(passIfGone);
    }
  }

  async #isOld(path: string, file: string): Promise<boolean> {
    const found = await stat(path).catch(() => null);
    if (!found?.isFile()) return false;
    const others = file.startsWith('objects/') ? OF_OBJECTS_MS : OF_REFS_MS;
    return Date.now() - found.mtimeMs > (this.#isAlone && hasProcesses ? FRESH_MS : others);
  }
}

/** Git has not looked yet whether what a client sends is a name. */
function isWithin(ref: string): boolean {
  return ref.startsWith('refs/') && !ref.includes('..') && !ref.includes('\0');
}

function isLock(name: string): boolean {
  return name.endsWith('.lock') || name === PACKED;
}

/** None where the folder is not there. */
async function namesIn(folder: string, recursive = false): Promise<string[]> {
  return readdir(folder, { recursive }).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT' || error.code === 'ENOTDIR') return [];
    throw error;
  });
}

const hasProcesses = await readlink('/proc/self/cwd').then(
  () => true,
  () => false,
);

/** Programs of git on this machine that work in the folder, without those that only read. */
async function writersIn(dir: string): Promise<number[]> {
  if (!hasProcesses) return [];
  const folder = await realpath(dir).catch(() => dir);
  const writers: number[] = [];
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    // Those of other users, and those that have ended meanwhile.
    const cwd = await readlink(`/proc/${name}/cwd`).catch(() => null);
    if (cwd !== folder) continue;
    const words = await readFile(`/proc/${name}/cmdline`, 'utf8').catch(() => '');
    const [program = '', command = ''] = words.split('\0');
    const isGit = basename(program).startsWith('git');
    if (isGit && !READERS.has(command)) writers.push(Number(name));
  }
  return writers;
}

function passIfGone(error: NodeJS.ErrnoException): void {
  if (error.code !== 'ENOENT') throw error;
}
