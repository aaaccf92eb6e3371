/**
 * Keeps a repository quick to read after pushes: a commit-graph for walks, few packs, and few files of refs.
 *
 * Packs are joined in geometric progression, so a repository of n pushes has about log2(n) of them and each
 * object is rewritten as many times at most. One repository at a time, and never twice for one that waits.
 */
import type { Dirent } from 'node:fs';
import { opendir, readdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { git } from '../processes/run.ts';
import type { Tasks } from '../processes/tasks.ts';
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

export class Maintenance {
  readonly #tasks: Tasks;
  readonly #locks: StaleLocks;
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
          if (!signal.aborted) await maintain(next, this.#locks, signal);
        }
      } finally {
        this.#busy = false;
      }
    });
  }
}

async function maintain(dir: string, locks: StaleLocks, signal: AbortSignal): Promise<void> {
  try {
    await sweepUnfinished(dir);
    await locks.remove(dir);
    if ((await countPacks(dir)) >= MANY_PACKS)
      await git(['repack', '-d', '--geometric=2', '--quiet'], {
        dir,
        signal,
        timeoutMs: TIMEOUT_MS,
      });
    if (await hasManyLooseRefs(dir))
      await git(['pack-refs', '--all'], { dir, signal, timeoutMs: TIMEOUT_MS });
    if (await hasManyNewObjects(dir))
      await git(['commit-graph', 'write', '--reachable', '--split', '--no-progress'], {
        dir,
        signal,
        timeoutMs: TIMEOUT_MS,
      });
  } catch (error) {
    const gone = await stat(join(dir, 'HEAD')).then(
      () => false,
      () => true,
    );
    // Deleted meanwhile: nothing is left to keep.
    if (!gone) throw error;
  }
}

async function countPacks(dir: string): Promise<number> {
  const files = await readdir(join(dir, 'objects/pack'));
  return files.filter((file) => file.endsWith('.pack')).length;
}

/** Whether the packs that came since the commit-graph was written have so many that a walk over them takes long. */
async function hasManyNewObjects(dir: string): Promise<boolean> {
  const written = await stat(join(dir, 'objects/info/commit-graphs/commit-graph-chain')).catch(
    () => null,
  );
  const folder = join(dir, 'objects/pack');
  let bytes = 0;
  for (const name of await readdir(folder)) {
    if (!name.endsWith('.idx')) continue;
    const found = await stat(join(folder, name)).catch(() => null);
    if (found && found.mtimeMs >= (written?.mtimeMs ?? 0)) bytes += found.size - EMPTY_INDEX_BYTES;
  }
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
