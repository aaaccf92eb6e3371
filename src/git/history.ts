/**
 * A commit's history, newest first. Walking it starts a process, which a commit-graph makes quick; what a
 * walk found out is kept by commit id, because it never changes, and the commits themselves come from the pool.
 */
import { LRUCache } from 'lru-cache';
import type { CatFilePool } from './catfile.ts';
import { type Commit, parseCommit } from './commit.ts';
import { git } from './run.ts';
import type { Turns } from './turns.ts';

export type History = { commits: Commit[]; total: number };

/** What was once found out about a commit's history. It never changes, so only room bounds it. */
export class HistoryCache {
  readonly totals = new LRUCache<string, Promise<number>>({ max: 10_000 });
  readonly pages = new LRUCache<string, Promise<string[]>>({ max: 2_000 });
  readonly turns: Turns;

  constructor(turns: Turns) {
    this.turns = turns;
  }
}

/** A page of a commit's history, newest first, and how many commits it has in all. */
export async function readHistory(
  pool: CatFilePool,
  cache: HistoryCache,
  dir: string,
  commit: string,
  { skip, take }: { skip: number; take: number },
): Promise<History> {
  const { totals, pages, turns } = cache;
  const total = await remember(totals, commit, () => turns.take(() => countCommits(dir, commit)));
  const page = `${commit}+${skip}+${take}`;
  const shas =
    skip >= total
      ? []
      : await remember(pages, page, () => turns.take(() => walk(dir, commit, skip, take)));
  const commits = await readCommits(pool, dir, shas);
  return { commits: commits.filter((commit) => commit !== null), total };
}

/** Each by its id, in one round trip; null for what is no commit. */
export async function readCommits(
  pool: CatFilePool,
  dir: string,
  shas: readonly string[],
): Promise<(Commit | null)[]> {
  const objects = await pool.use(dir, (objects) => objects.read(shas));
  return objects.map((object) =>
    object?.type === 'commit' ? parseCommit(object.oid, object.data) : null,
  );
}

/** Callers at the same time share one promise; a failure is forgotten. */
function remember<T>(
  cache: LRUCache<string, Promise<T>>,
  key: string,
  find: () => Promise<T>,
): Promise<T> {
  const known = cache.get(key);
  if (known) return known;
  const found = find();
  cache.set(key, found);
  found.catch(() => cache.delete(key));
  return found;
}

async function countCommits(dir: string, commit: string): Promise<number> {
  return Number(await git(['rev-list', '--count', commit], { dir }));
}

async function walk(dir: string, commit: string, skip: number, take: number): Promise<string[]> {
  const args = ['rev-list', `--skip=${skip}`, `--max-count=${take}`, commit];
  return (await git(args, { dir })).toString().split('\n').filter(Boolean);
}
