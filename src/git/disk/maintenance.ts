/**
 * Keeps a repository fast to read after pushes: a commit-graph for walks, few packs, and few loose refs.
 *
 * Packs are joined in geometric progression, so a repository with n pushes has about log2(n) packs, and each object is
 * rewritten at most as many times. One repository runs at a time, and a repository waits in the queue at most once.
 */
import type { Dirent } from 'node:fs';
import { opendir, readdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { LRUCache } from 'lru-cache';
import { git } from '../processes/run.ts';
import type { Tasks } from '../processes/tasks.ts';
import { listPackFiles, type PackFile } from './pack-files.ts';
import { QUARANTINE_PREFIX } from './quarantines.ts';
import type { StaleLocks } from './stale-locks.ts';

const TIMEOUT_MS = 30 * 60_000;
/** With fewer packs than this, joining costs the server more than another pack costs a reader. */
const MANY_PACKS = 12;
/** Git reads every loose ref for a list, however short: a page of 10,000 branches took 240 ms. */
const MANY_LOOSE_REFS = 100;
/** Git walks this many commits without a commit-graph in a few milliseconds; writing one starts a process. */
const MANY_NEW_OBJECTS = 500;
/** Size of an empty pack index, and of each object in a pack index. */
const EMPTY_INDEX_BYTES = 1_072;
const OBJECT_INDEX_BYTES = 28;
/** Age at which files of a killed push are removed; no push takes this long. */
const STALE_MS = 24 * 3_600_000;

/** Number of pushes between two full checks of a repository. Between full checks, only its packs are checked. */
const FULL_CHECK_EVERY = 8;

export class Maintenance {
  readonly #tasks: Tasks;
  readonly #locks: StaleLocks;
  /** Pushes since the last full check, by folder. */
  readonly #pushes = new LRUCache<string, number>({ max: 10_000 });
  readonly #waiting = new Set<string>();
  #busy = false;

  constructor(tasks: Tasks, locks: StaleLocks) {
    this.#tasks = tasks;
    this.#locks = locks;
  }

  /** Schedules maintenance in the background. To be called after refs have moved. */
  schedule(dir: string): void {
    this.#waiting.add(dir);
    if (this.#busy) return;
    this.#busy = true;
    this.#tasks.background(async (signal) => {
      try {
        for (const next of this.#waiting) {
          this.#waiting.delete(next);
          if (!signal.aborted) await this.#maintain(next, signal);
        }
      } finally {
        this.#busy = false;
      }
    });
  }

  async #maintain(dir: string, signal: AbortSignal): Promise<void> {
    try {
      const pushes = this.#pushes.get(dir) ?? 0;
      this.#pushes.set(dir, (pushes + 1) % FULL_CHECK_EVERY);
      const isFullCheck = pushes === 0;
      if (isFullCheck) await removeUnfinished(dir);
      const packs = await listPackFiles(dir);
      const hasManyPacks = packs.filter(({ name }) => name.endsWith('.pack')).length >= MANY_PACKS;
      const hasManyNew = await hasManyNewObjects(dir, packs);
      // Git cannot write files that have a stale lock.
      if (isFullCheck || hasManyPacks || hasManyNew) await this.#locks.removeAll(dir);
      const options = { dir, signal, timeoutMs: TIMEOUT_MS };
      if (hasManyPacks) await git(['repack', '-d', '--geometric=2', '--quiet'], options);
      if (isFullCheck && (await hasManyLooseRefs(dir))) await git(['pack-refs', '--all'], options);
      if (hasManyNew)
        await git(['commit-graph', 'write', '--reachable', '--split', '--no-progress'], options);
    } catch (error) {
      const isDeleted = await stat(join(dir, 'HEAD')).then(
        () => false,
        () => true,
      );
      // A repository that was deleted during the run needs no maintenance.
      if (!isDeleted) throw error;
    }
  }
}

/** Whether the packs that are newer than the commit-graph have so many objects that walking them is slow. */
async function hasManyNewObjects(dir: string, packs: readonly PackFile[]): Promise<boolean> {
  const written = await stat(join(dir, 'objects/info/commit-graphs/commit-graph-chain')).catch(
    () => null,
  );
  const indexes = packs.filter(({ name }) => name.endsWith('.idx'));
  const newIndexes = indexes.filter(({ mtimeMs }) => mtimeMs >= (written?.mtimeMs ?? 0));
  const bytes = newIndexes.reduce((sum, { size }) => sum + size - EMPTY_INDEX_BYTES, 0);
  return bytes >= MANY_NEW_OBJECTS * OBJECT_INDEX_BYTES;
}

/** Stops reading as soon as the answer is known. */
async function hasManyLooseRefs(dir: string): Promise<boolean> {
  let count = 0;
  const folders = [join(dir, 'refs')];
  for (const folder of folders)
    for await (const entry of await opendir(folder).catch(emptyIfMissing)) {
      if (entry.isDirectory()) folders.push(join(folder, entry.name));
      else if (++count >= MANY_LOOSE_REFS) return true;
    }
  return false;
}

/** Git removes a folder together with its last ref. */
function emptyIfMissing(error: NodeJS.ErrnoException): Dirent[] {
  if (error.code === 'ENOENT') return [];
  throw error;
}

/**
 * Removes quarantines that `quarantines.ts` has no note of, for example after a power loss, and packs whose joining
 * was killed.
 */
async function removeUnfinished(dir: string): Promise<void> {
  const among = async (folder: string, isUnfinished: (name: string) => boolean) =>
    (await readdir(join(dir, folder))).filter(isUnfinished).map((name) => join(dir, folder, name));
  const all = [
    ...(await among('objects', (name) => name.startsWith(QUARANTINE_PREFIX))),
    ...(await among('objects/pack', (name) => /^(tmp_|\.tmp-)/.test(name))),
  ];
  for (const path of all) {
    // The push that owned the folder may have ended since the folder was listed.
    const found = await stat(path, { throwIfNoEntry: false });
    if (found && Date.now() - found.mtimeMs > STALE_MS)
      await rm(path, { recursive: true, force: true });
  }
}
