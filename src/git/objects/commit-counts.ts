/**
 * Counts the commits of a history, including its tip, and the commits of each week. Totals never change, so they are
 * cached by commit id in memory. Totals of long histories are also cached in a file of the repository, which survives
 * restarts and is shared by all servers that use the folder.
 *
 * A total is computed from the most recently cached total: minus the commits that only the cached history has, plus the
 * commits that only the new history has. After any push, also a forced one, git walks only the difference.
 */
import { randomUUID } from 'node:crypto';
import { readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { LRUCache } from 'lru-cache';
import { FairSemaphore } from '../../platform/limits/fair-semaphore.ts';
import { listPackFiles } from '../disk/pack-files.ts';
import { GitError, git, gitLines } from '../processes/run.ts';

const TOTALS_FILE = 'loam-totals';
/** Git counts shorter histories within milliseconds. */
const LONG_HISTORY = 5_000;
/** Totals in the file: current tips of branches, and some earlier tips. */
const MAX_TOTALS = 100;
/** Size of the pack indexes for this many objects; each takes at least 28 bytes. */
const LONG_INDEX_BYTES = LONG_HISTORY * 28;
/** Does not match an incomplete line, which a power loss may leave. */
const TOTAL_LINE = /^([0-9a-f]{40}) (\d+)\n/gm;

export class CommitTotals {
  readonly #cache = new LRUCache<string, number, { dir: string }>({
    max: 10_000,
    fetchMethod: (commit, _before, { context: { dir } }) => this.#find(dir, commit),
    ignoreFetchAbort: true,
  });
  readonly #readSlots: FairSemaphore;
  /** Serializes writes to each file. */
  readonly #writes = new FairSemaphore(Number.POSITIVE_INFINITY, { perKey: 1 });

  constructor(readSlots: FairSemaphore) {
    this.#readSlots = readSlots;
  }

  /** Concurrent callers share one count. @throws as `git` */
  countCommits(dir: string, commit: string): Promise<number> {
    return this.#cache.forceFetch(commit, { context: { dir } });
  }

  async #find(dir: string, commit: string): Promise<number> {
    const kept = await readTotals(dir);
    const known = kept.get(commit);
    if (known !== undefined) return known;
    const last = [...kept].at(-1);
    const total = await this.#readSlots.run(() => countFrom(dir, commit, last), { key: dir });
    if (total >= LONG_HISTORY) await this.#keep(dir, commit, total);
    return total;
  }

  #keep(dir: string, commit: string, total: number): Promise<void> {
    const write = () => writeTotal(dir, commit, total);
    // The file is only a cache. Writing fails when the disk is full, or the repository was deleted.
    return this.#writes.run(write, { key: dir }).catch(() => {});
  }
}

async function countFrom(
  dir: string,
  commit: string,
  last: readonly [commit: string, total: number] | undefined,
): Promise<number> {
  if (!last) return countAll(dir, commit);
  const [base, total] = last;
  try {
    const args = ['rev-list', '--count', '--left-right', `${base}...${commit}`];
    const [less, more] = (await git(args, { dir })).toString().split('\t').map(Number);
    return total - (less as number) + (more as number);
  } catch (error) {
    if (!(error instanceof GitError)) throw error;
    // The commit of the cached total no longer exists.
    return countAll(dir, commit);
  }
}

async function countAll(dir: string, commit: string): Promise<number> {
  return Number(await git(['rev-list', '--count', commit], { dir }));
}

/** Whether counting may take longer than a reader should wait for. */
export async function hasLongHistory(dir: string): Promise<boolean> {
  let bytes = 0;
  for (const { name, size } of await listPackFiles(dir).catch(() => []))
    if (name.endsWith('.idx')) bytes += size;
  return bytes >= LONG_INDEX_BYTES;
}

/** In the order of counting, the most recent last. */
async function readTotals(dir: string): Promise<Map<string, number>> {
  const text = await readFile(join(dir, TOTALS_FILE), 'latin1').catch(() => '');
  const lines = text.matchAll(TOTAL_LINE);
  return new Map(Array.from(lines, ([, commit = '', total]) => [commit, Number(total)]));
}

async function writeTotal(dir: string, commit: string, total: number): Promise<void> {
  const kept = [...(await readTotals(dir)), [commit, total] as const].slice(-MAX_TOTALS);
  const file = join(dir, TOTALS_FILE);
  const temporary = `${file}.${randomUUID()}`;
  try {
    await writeFile(temporary, kept.map(([id, count]) => `${id} ${count}\n`).join(''), {
      flush: true,
    });
    await rename(temporary, file);
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
}

/** One year, at whose beginning the walk for the commits per week stops. */
export const WEEKS = 52;
const WEEK_S = 7 * 86_400;
/** 1970 began on a Thursday. */
const FIRST_MONDAY_S = 4 * 86_400;
const WALK_MS = 5_000;

/** `start`: Monday 0:00 UTC, in seconds since 1970. */
export type Week = { start: number; commits: number };

export class Activity {
  readonly #readSlots: FairSemaphore;
  /** By commit and current week. */
  readonly #cache = new LRUCache<string, Week[]>({ max: 1_000 });

  constructor(readSlots: FairSemaphore) {
    this.#readSlots = readSlots;
  }

  /** Oldest week first, by committer date. Null when the walk takes longer than 5 seconds. @throws GitError */
  async countByWeek(dir: string, commit: string, now = Date.now() / 1_000): Promise<Week[] | null> {
    const thisWeek = Math.floor((now - FIRST_MONDAY_S) / WEEK_S);
    const key = `${commit}@${thisWeek}`;
    const cached = this.#cache.get(key);
    if (cached) return cached;
    const first = FIRST_MONDAY_S + (thisWeek - WEEKS + 1) * WEEK_S;
    const weeks = await this.#readSlots.run(() => countByWeek(dir, commit, first), { key: dir });
    if (weeks) this.#cache.set(key, weeks);
    return weeks;
  }
}

async function countByWeek(dir: string, commit: string, first: number): Promise<Week[] | null> {
  const weeks = Array.from({ length: WEEKS }, (_, i) => ({
    start: first + i * WEEK_S,
    commits: 0,
  }));
  const limit = AbortSignal.timeout(WALK_MS);
  const args = ['rev-list', '--timestamp', `--since=${first}`, commit];
  try {
    // <seconds> <commit id>
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
