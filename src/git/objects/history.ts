/**
 * A commit's history, newest first. Walking it starts a process, which a commit-graph makes quick; what a
 * walk found out is kept by commit id, because it never changes, and the commits themselves come from the pool.
 */
import { LRUCache } from 'lru-cache';
import type { FairSemaphore } from '../../platform/limits/fair-semaphore.ts';
import { git } from '../processes/run.ts';
import type { CatFilePool, ObjectData, ObjectInfo } from './cat-file.ts';
import { CommitTotals, hasLongHistory } from './commit-counts.ts';
import { type Annotation, type Commit, parseCommit, parseTag } from './commit.ts';
import { readHead } from './read.ts';

/** The most that a page has. */
const CACHED_PAGE = 100;
/** What a page has where nothing else is asked for. */
const DEFAULT_PAGE = 20;
/** Of one push. */
const MAX_TIPS = 10;

export type History = { commits: Commit[]; total: number };

/** What was once found out about a commit's history. It never changes, so only room bounds it. */
export class HistoryCache {
  readonly totals: CommitTotals;
  readonly pages = new LRUCache<string, Promise<string[]>>({ max: 2_000 });
  readonly turns: FairSemaphore;

  constructor(turns: FairSemaphore) {
    this.turns = turns;
    this.totals = new CommitTotals(turns);
  }

  /**
   * Finds out what the first page of each tip needs that a push has moved, and reads it, so that nobody who looks at the
   * push waits for that, nor for the start of a process: the pool keeps this one for half a minute.
   */
  async prepare(pool: CatFilePool, dir: string, tips: readonly string[]): Promise<void> {
    if (!(await hasLongHistory(dir))) return;
    for (const tip of tips.slice(0, MAX_TIPS)) {
      await this.totals.of(dir, tip);
      const ids = await listCommitIds(this, dir, tip, { skip: 0, take: CACHED_PAGE });
      await readCommits(pool, dir, ids.slice(0, DEFAULT_PAGE));
    }
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
  const total = await cache.totals.of(dir, commit);
  const shas = skip >= total ? [] : await listCommitIds(cache, dir, commit, { skip, take });
  const commits = await readCommits(pool, dir, shas);
  return { commits: commits.filter((commit) => commit !== null), total };
}

/** Those within the first are found by one walk. */
async function listCommitIds(
  { pages, turns }: HistoryCache,
  dir: string,
  commit: string,
  { skip, take }: { skip: number; take: number },
): Promise<string[]> {
  const isFirst = skip + take <= CACHED_PAGE;
  const walked = isFirst ? { skip: 0, take: CACHED_PAGE } : { skip, take };
  const page = `${commit}+${walked.skip}+${walked.take}`;
  const ids = await cached(pages, page, () =>
    turns.run(() => walkCommitIds(dir, commit, walked.skip, walked.take), { key: dir }),
  );
  return isFirst ? ids.slice(skip, skip + take) : ids;
}

/** Nearly every commit is smaller: a page of them is read at once, and is less than a megabyte. */
const SMALL_BYTES = 8 * 1024;
/** Of a larger commit this much is shown: anybody who may push makes messages of any size. */
const SHOWN_BYTES = 64 * 1024;
/** The pool's processes send objects whole; of even larger ones a process of its own sends the beginning. */
const POOLED_BYTES = 2 ** 20;

/** Each by its id; null for what is no commit. One over 64 KiB ends with a line that says so. */
export async function readCommits(
  pool: CatFilePool,
  dir: string,
  shas: readonly string[],
): Promise<(Commit | null)[]> {
  const read = await readBeginnings(pool, dir, 'commit', shas);
  return read.map((object) => object && parseCommit(object.oid, object.data, object.size));
}

/** As `readCommits`, of annotated tags, by the ids of the tags themselves. */
export async function readAnnotations(
  pool: CatFilePool,
  dir: string,
  shas: readonly string[],
): Promise<(Annotation | null)[]> {
  const read = await readBeginnings(pool, dir, 'tag', shas);
  return read.map((object) => object && parseTag(object.oid, object.data, object.size));
}

/** What is shown of each: null for what is of another type, and of a larger one the beginning. */
async function readBeginnings(
  pool: CatFilePool,
  dir: string,
  type: 'commit' | 'tag',
  shas: readonly string[],
): Promise<(ObjectData | null)[]> {
  const found = await pool.use(dir, async (objects) => {
    const all = await objects.info(shas);
    const infos = all.map((info) => (info?.type === type ? info : null));
    const usual = infos.filter((info) => info && info.size <= SMALL_BYTES);
    return { infos, usual: await objects.read(idsOf(usual), SMALL_BYTES) };
  });
  const long = found.infos.filter((info) => info && info.size > SMALL_BYTES);
  const longer = long.length > 0 ? await readLarge(pool, dir, idsOf(long)) : [];
  const read = new Map([...found.usual, ...longer].map((object) => [object?.oid, object]));
  return found.infos.map((info) => (info && read.get(info.oid)) ?? null);
}

function readLarge(
  pool: CatFilePool,
  dir: string,
  oids: readonly string[],
): Promise<(ObjectData | null)[]> {
  return pool.useHeavily(dir, async (objects) => {
    const infos = await objects.info(oids);
    const streamed = infos.filter((info) => info !== null && info.size <= POOLED_BYTES);
    const read = await objects.readBeginning(idsOf(streamed), SHOWN_BYTES);
    for (const info of infos)
      if (info && info.size > POOLED_BYTES)
        read.push({ ...info, data: await readHead(dir, info, SHOWN_BYTES) });
    return read;
  });
}

function idsOf(infos: readonly (ObjectInfo | null)[]): string[] {
  return infos.flatMap((info) => info?.oid ?? []);
}

/** Callers at the same time share one promise; a failure is forgotten. */
function cached<T>(
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

async function walkCommitIds(dir: string, commit: string, skip: number, take: number): Promise<string[]> {
  const args = ['rev-list', `--skip=${skip}`, `--max-count=${take}`, commit];
  return (await git(args, { dir })).toString().split('\n').filter(Boolean);
}
