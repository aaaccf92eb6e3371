/**
 * Keeps a repository quick to read after pushes: a commit-graph for walks, few packs, and few files of refs.
 *
 * Packs are joined in geometric progression, so a repository of n pushes has about log2(n) of them and each
 * object is rewritten as many times at most. One repository at a time, and never twice for one that waits.
 */
import type { Dirent } from 'node:fs';
import { opendir, readdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { LRUCache } from 'lru-cache';
import { git } from '../processes/run.ts';
import type { Tasks } from '../processes/tasks.ts';
import { type PackFile, packFiles } from './disk.ts';
import { PREFIX } from './quarantines.ts';
import type { StaleLocks } from './stale-locks.ts';

const TIMEOUT_MS = 30 * 60_000;
/** Below this, another pack costs a reader less than joining them costs us. */
const MANY_PACKS = 12;
/** Git reads each of them for a list, however short: a page of 10,000 branches took 240 ms. */
const MANY_LOOSE_REFS = 100;
/** Git reads as many commits without a commit-graph in a few milliseconds. To write one takes a program of its own. */
const MANY_OBJECTS = 500;
/** Of the index of a pack, and of each object in it. */
const EMPTY_INDEX_BYTES = 1_072;
const OBJECT_INDEX_BYTES = 28;
/** What a push leaves when it is killed; no push takes this long. */
const STALE_MS = 24 * 3_600_000;

/** Pushes between two looks at all of a repository. Between them only its packs are looked at. */
const LOOK_EVERY = 8;

export class Maintenance {
  readonly #tasks: Tasks;
  readonly #locks: StaleLocks;
  /** Pushes since the last look at all, by folder. */
  readonly #pushes = new LRUCache<string, number>({ max: 10_000 });
  readonly #waiting = new Set<string>();
  #busy = false;

  constructor(tasks: Tasks, locks: StaleLocks) {
    this.#tasks = tasks;
    this.#locks = locks;
  }

  /** Call it after refs have moved. Returns at once. */
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
      this.#pushes.set(dir, (pushes + 1) % LOOK_EVERY);
      const isWhole = pushes === 0;
      if (isWhole) await sweepUnfinished(dir);
      const packs = await packFiles(dir);
      const hasManyPacks = packs.filter(({ name }) => name.endsWith('.pack')).length >= MANY_PACKS;
      const hasManyNew = await hasManyNewObjects(dir, packs);
      // Git could not write what is locked.
      if (isWhole || hasManyPacks || hasManyNew) await this.#locks.remove(dir);
      const options = { dir, signal, timeoutMs: TIMEOUT_MS };
      if (hasManyPacks) await git(['repack', '-d', '--geometric=2', '--quiet'], options);
      if (isWhole && (await hasManyLooseRefs(dir))) await git(['pack-refs', '--all'], options);
      if (hasManyNew)
        await git(['commit-graph', 'write', '--reachable', '--split', '--no-progress'], options);
    } catch (error) {
      const gone = await stat(join(dir, 'HEAD')).then(
        () => false,
        () => true,
      );
      // Deleted meanwhile: nothing is left to keep.
      if (!gone) throw error;
    }
  }
}

/** Whether the packs that came since the commit-graph was written have so many that a walk over them takes long. */
async function hasManyNewObjects(dir: string, packs: readonly PackFile[]): Promise<boolean> {
  const written = await stat(join(dir, 'objects/info/commit-graphs/commit-graph-chain')).catch(
    () => null,
  );
  const indexes = packs.filter(({ name }) => name.endsWith('.idx'));
  const fresh = indexes.filter(({ mtimeMs }) => mtimeMs >= (written?.mtimeMs ?? 0));
  const bytes = fresh.reduce((sum, { size }) => sum + size - EMPTY_INDEX_BYTES, 0);
  return bytes >= MANY_OBJECTS * OBJECT_INDEX_BYTES;
}

/** Looks no further than it must. */
async function hasManyLooseRefs(dir: string): Promise<boolean> {
  let count = 0;
  const folders = [join(dir, 'refs')];
  for (const folder of folders)
    for await (const entry of await opendir(folder).catch(noneIfGone)) {
      if (entry.isDirectory()) folders.push(join(folder, entry.name));
      else if (++count >= MANY_LOOSE_REFS) return true;
    }
  return false;
}

/** Git removes a folder with the last ref in it. */
function noneIfGone(error: NodeJS.ErrnoException): Dirent[] {
  if (error.code === 'ENOENT') return [];
  throw error;
}

/** Quarantines that `quarantines.ts` did not hear of, as after a loss of power, and packs that were being joined at a kill. */
async function sweepUnfinished(dir: string): Promise<void> {
  const among = async (folder: string, isUnfinished: (name: string) => boolean) =>
    (await readdir(join(dir, folder))).filter(isUnfinished).map((name) => join(dir, folder, name));
  const all = [
    ...(await among('objects', (name) => name.startsWith(PREFIX))),
    ...(await among('objects/pack', (name) => /^(tmp_|\.tmp-)/.test(name))),
  ];
  for (const path of all) {
    // None of a push that has ended meanwhile.
    const found = await stat(path, { throwIfNoEntry: false });
    if (found && Date.now() - found.mtimeMs > STALE_MS)
      await rm(path, { recursive: true, force: true });
  }
}
