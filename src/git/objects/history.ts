/**
 * Pages of a commit's history, newest first. A walk starts a git process, which a commit-graph makes fast. The ids that
 * it finds are cached by commit id, because they never change; the commits are read through the `cat-file` pool.
 */
import { LRUCache } from 'lru-cache';
import type { FairSemaphore } from '../../platform/limits/fair-semaphore.ts';
import { git } from '../processes/run.ts';
import type { CatFilePool, ObjectData, ObjectInfo } from './cat-file.ts';
import { type Annotation, type Commit, parseCommit, parseTag } from './commit.ts';
import { CommitTotals, hasLongHistory } from './commit-counts.ts';
import { readHead } from './read.ts';

/** Number of commits found by the first walk, and the maximum size of a page. */
const CACHED_PAGE = 100;
/** Default page size. */
const DEFAULT_PAGE = 20;
/** Maximum number of tips of a push whose history is cached in advance. */
const MAX_TIPS = 10;

type History = { commits: Commit[]; total: number };

/**
 * Caches totals and pages of commit ids. They never change, so only their number is limited. `ignoreFetchAbort`, here and in
 * the other caches of this folder: an eviction must not fail the callers that share a read.
 */
export class HistoryCache {
  readonly totals: CommitTotals;
  /** The context of `fetch` is the function that walks the history. Concurrent callers share one walk. */
  readonly pages = new LRUCache<string, string[], () => Promise<string[]>>({
    max: 2_000,
    fetchMethod: (_page, _before, { context: walk }) => walk(),
    ignoreFetchAbort: true,
  });
  readonly readSlots: FairSemaphore;

  constructor(readSlots: FairSemaphore) {
    this.readSlots = readSlots;
    this.totals = new CommitTotals(readSlots);
  }

  /**
   * Warms the caches for the first page of each tip that a push has moved, so that viewers of the push do not wait.
   * Also starts a `cat-file` process, which the pool keeps for half a minute.
   */
  async prepare(pool: CatFilePool, dir: string, tips: readonly string[]): Promise<void> {
    if (!(await hasLongHistory(dir))) return;
    for (const tip of tips.slice(0, MAX_TIPS)) {
      await this.totals.countCommits(dir, tip);
      const ids = await listCommitIds(this, dir, tip, { skip: 0, take: CACHED_PAGE });
      await readCommits(pool, dir, ids.slice(0, DEFAULT_PAGE));
    }
  }
}

/** Reads a page of a commit's history, newest first, and the total number of its commits. */
export async function readHistory(
  pool: CatFilePool,
  cache: HistoryCache,
  dir: string,
  commit: string,
  { skip, take }: { skip: number; take: number },
): Promise<History> {
  const total = await cache.totals.countCommits(dir, commit);
  const shas = skip >= total ? [] : await listCommitIds(cache, dir, commit, { skip, take });
  const commits = await readCommits(pool, dir, shas);
  return { commits: commits.filter((commit) => commit !== null), total };
}

/** One cached walk serves all pages within the first 100 commits. */
async function listCommitIds(
  { pages, readSlots }: HistoryCache,
  dir: string,
  commit: string,
  { skip, take }: { skip: number; take: number },
): Promise<string[]> {
  const isCachedPage = skip + take <= CACHED_PAGE;
  const walked = isCachedPage ? { skip: 0, take: CACHED_PAGE } : { skip, take };
  const page = `${commit}+${walked.skip}+${walked.take}`;
  const walk = () => walkCommitIds(dir, commit, walked.skip, walked.take);
  const ids = await pages.forceFetch(page, { context: () => readSlots.run(walk, { key: dir }) });
  return isCachedPage ? ids.slice(skip, skip + take) : ids;
}

/** Nearly every commit is smaller. A page of such commits has less than a megabyte and is read in one request. */
const SMALL_BYTES = 8 * 1024;
/** Larger commits are truncated to this size, because pushed messages can have any size. */
const SHOWN_BYTES = 64 * 1024;
/** Pool processes send objects completely. The beginning of a larger object is read by a separate process. */
const POOLED_BYTES = 2 ** 20;

/** Reads commits by id; null for other objects. The message of a commit over 64 KiB ends with a line that says so. */
export async function readCommits(
  pool: CatFilePool,
  dir: string,
  shas: readonly string[],
): Promise<(Commit | null)[]> {
  const read = await readBeginnings(pool, dir, 'commit', shas);
  return read.map((object) => object && parseCommit(object.oid, object.data, object.size));
}

/** Like `readCommits`, for annotated tags, by the ids of the tag objects. */
export async function readAnnotations(
  pool: CatFilePool,
  dir: string,
  shas: readonly string[],
): Promise<(Annotation | null)[]> {
  const read = await readBeginnings(pool, dir, 'tag', shas);
  return read.map((object) => object && parseTag(object.oid, object.data, object.size));
}

/** Reads the shown part of each object: null for another type, the beginning of a large object. */
async function readBeginnings(
  pool: CatFilePool,
  dir: string,
  type: 'commit' | 'tag',
  shas: readonly string[],
): Promise<(ObjectData | null)[]> {
  const found = await pool.use(dir, async (objects) => {
    const all = await objects.info(shas);
    const infos = all.map((info) => (info?.type === type ? info : null));
    const small = infos.filter((info) => info && info.size <= SMALL_BYTES);
    return { infos, small: await objects.read(idsOf(small), SMALL_BYTES) };
  });
  const large = idsOf(found.infos.filter((info) => info && info.size > SMALL_BYTES));
  const beginnings = large.length > 0 ? await readLarge(pool, dir, large) : [];
  const read = new Map([...found.small, ...beginnings].map((object) => [object?.oid, object]));
  return found.infos.map((info) => (info && read.get(info.oid)) ?? null);
}

function readLarge(
  pool: CatFilePool,
  dir: string,
  oids: readonly string[],
): Promise<(ObjectData | null)[]> {
  return pool.useForLargeObjects(dir, async (objects) => {
    const infos = await objects.info(oids);
    const pooled = infos.filter((info) => info !== null && info.size <= POOLED_BYTES);
    const read = await objects.readBeginning(idsOf(pooled), SHOWN_BYTES);
    for (const info of infos)
      if (info && info.size > POOLED_BYTES)
        read.push({ ...info, data: await readHead(dir, info, SHOWN_BYTES) });
    return read;
  });
}

function idsOf(infos: readonly (ObjectInfo | null)[]): string[] {
  return infos.flatMap((info) => info?.oid ?? []);
}

async function walkCommitIds(
  dir: string,
  commit: string,
  skip: number,
  take: number,
): Promise<string[]> {
  const args = ['rev-list', `--skip=${skip}`, `--max-count=${take}`, commit];
  return (await git(args, { dir })).toString().split('\n').filter(Boolean);
}
