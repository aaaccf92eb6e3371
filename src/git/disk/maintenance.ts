/**
 * Keeps a repository quick to read after pushes: a commit-graph for walks, and few packs.
 *
 * Packs are joined in geometric progression, so a repository of n pushes has about log2(n) of them and each
 * object is rewritten as many times at most. One repository at a time, and never twice for one that waits.
 */
import { readdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { git } from '../processes/run.ts';
import type { Tasks } from '../processes/tasks.ts';
import { PREFIX } from './quarantines.ts';

const TIMEOUT_MS = 30 * 60_000;
/** Below this, another pack costs a reader less than joining them costs us. */
const MANY_PACKS = 12;
/** What a push leaves when it is killed; no push takes this long. */
const STALE_MS = 24 * 3_600_000;

export class Maintenance {
  readonly #tasks: Tasks;
  readonly #waiting = new Set<string>();
  #busy = false;

  constructor(tasks: Tasks) {
    this.#tasks = tasks;
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
          if (!signal.aborted) await maintain(next, signal);
        }
      } finally {
        this.#busy = false;
      }
    });
  }
}

async function maintain(dir: string, signal: AbortSignal): Promise<void> {
  try {
    await sweepQuarantines(dir);
    if ((await countPacks(dir)) >= MANY_PACKS)
      await git(['repack', '-d', '--geometric=2', '--quiet'], {
        dir,
        signal,
        timeoutMs: TIMEOUT_MS,
      });
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

/** What `quarantines.ts` did not hear of, as after a loss of power. */
async function sweepQuarantines(dir: string): Promise<void> {
  for (const name of await readdir(join(dir, 'objects'))) {
    if (!name.startsWith(PREFIX)) continue;
    const folder = join(dir, 'objects', name);
    // None of a push that has ended meanwhile.
    const found = await stat(folder, { throwIfNoEntry: false });
    if (found && Date.now() - found.mtimeMs > STALE_MS)
      await rm(folder, { recursive: true, force: true });
  }
}
