/** How many commits a history has of each of the last weeks: a walk that ends where they begin. */
import { LRUCache } from 'lru-cache';
import type { FairSemaphore } from '../../platform/limits/fair-semaphore.ts';
import { gitLines } from '../processes/run.ts';

/** A year. */
export const WEEKS = 52;
const WEEK_S = 7 * 86_400;
/** 1970 began on a Thursday. */
const FIRST_MONDAY_S = 4 * 86_400;
const WALK_MS = 5_000;

/** `start`: the beginning of a Monday (UTC), in seconds since 1970. */
export type Week = { start: number; commits: number };

export class Activity {
  readonly #turns: FairSemaphore;
  /** By commit and week. */
  readonly #known = new LRUCache<string, Week[]>({ max: 1_000 });

  constructor(turns: FairSemaphore) {
    this.#turns = turns;
  }

  /** Oldest first, by the date of the committer; null where the walk takes longer than 5 seconds. @throws GitError */
  async of(dir: string, commit: string, now = Date.now() / 1_000): Promise<Week[] | null> {
    const thisWeek = Math.floor((now - FIRST_MONDAY_S) / WEEK_S);
    const key = `${commit}@${thisWeek}`;
    const known = this.#known.get(key);
    if (known) return known;
    const first = FIRST_MONDAY_S + (thisWeek - WEEKS + 1) * WEEK_S;
    const weeks = await this.#turns.run(() => count(dir, commit, first), { key: dir });
    if (weeks) this.#known.set(key, weeks);
    return weeks;
  }
}

async function count(dir: string, commit: string, first: number): Promise<Week[] | null> {
  const weeks = Array.from({ length: WEEKS }, (_, i) => ({
    start: first + i * WEEK_S,
    commits: 0,
  }));
  const limit = AbortSignal.timeout(WALK_MS);
  const args = ['rev-list', '--timestamp', `--since=${first}`, commit];
  try {
    // <seconds> <id>
    for await (const line of gitLines(args, { dir, signal: limit })) {
      const at = Math.floor((Number(line.slice(0, line.indexOf(' '))) - first) / WEEK_S);
      const week = weeks[at];
      if (week) week.commits += 1;
    }
  } catch (error) {
    if (!limit.aborted) throw error;
    return null;
  }
  return weeks;
}
