/** Which commits brought the lines of a file, and changed a path or the entries of a directory last. */

import { invalid, notFound } from '../../base/errors.ts';
import { lazyAsync } from '../../base/lazy-async.ts';
import { type BlamedLines, blame as blameOf } from '../../git/objects/blame.ts';
import type { Commit } from '../../git/objects/commit.ts';
import { readCommits } from '../../git/objects/history.ts';
import type { DirectoryAt } from '../../git/objects/last-commits.ts';
import type { TreeEntry } from '../../git/objects/read.ts';
import { demand, type Viewer } from '../../identity/permissions.ts';
import type { Allowance } from '../../platform/limits/reads.ts';
import { folderWork, type Reads } from '../folder.ts';
import { type AccessRow, target } from '../repositories.ts';
import { boundedWork } from './changes.ts';
import {
  type CommitHere,
  type ContentsPath,
  checkPath,
  find,
  type Tree,
  takeCommits,
} from './contents.ts';

/** Lines of one answer. */
const MAX_LINES = 2_000;
const TOO_LONG = 'The history is too long to be read in time: ask for fewer lines';

export type BlameRange = { path: string; ref?: string | null; from: number; to?: number | null };
export type Blamed = BlamedLines & { commit: CommitHere | null };

/**
 * @throws AppError 400 for a bad path or lines that are not there, 401, 403, 404 for an unknown ref or what is no file, 422
 *   when it takes too long
 */
export async function blame(
  services: Reads,
  viewer: Viewer,
  repository: AccessRow,
  { path, ref, from, to }: BlameRange,
  allowance: Allowance,
): Promise<Blamed[]> {
  demand(viewer, 'repository.read', target(repository));
  checkPath(path);
  const last = to ?? from + MAX_LINES - 1;
  if (from < 1) throw invalid('from', 'must be 1 or more');
  if (last < from) throw invalid('to', 'must not be before `from`');
  if (last - from >= MAX_LINES)
    throw invalid('to', `must be at most ${MAX_LINES} lines from \`from\``);
  const { id, defaultBranch } = repository;
  const { lines, commits } = await blamed(services, id, {
    ...{ defaultBranch, path, ref, from },
    to: last,
  });
  const bySha = await takeBySha(allowance, repository, commits);
  return lines.map((one) => ({ ...one, commit: bySha.get(one.sha) ?? null }));
}

async function takeBySha(
  allowance: Allowance,
  repository: AccessRow,
  commits: readonly (Commit | null)[],
): Promise<Map<string, CommitHere>> {
  await takeCommits(allowance, commits);
  const here = commits.filter((commit) => commit !== null);
  return new Map(here.map((commit) => [commit.sha, { ...commit, repository }]));
}

type LinesOf = { defaultBranch: string } & Required<Omit<BlameRange, 'ref'>> &
  Pick<BlameRange, 'ref'>;

const blamed = boundedWork(
  'blamed',
  TOO_LONG,
  async ({ git }, dir, { defaultBranch, ref, path, from, to }: LinesOf) => {
    const found = await git.objects.use(dir, (objects) =>
      find(objects, { defaultBranch }, ref, path),
    );
    if (!found) throw notFound('Ref');
    if (found.object?.type !== 'blob') throw notFound('File');
    const { commit } = found;
    // Git has no range in a file without lines.
    if (found.object.size === 0) return { lines: [], commits: [] };
    const range = { commit, path, from, to: to ?? from };
    const lines = await git.turns.take(() => blameOf(dir, range), { key: dir });
    if (!lines) throw invalid('from', 'is beyond the end of the file');
    const shas = [...new Set(lines.map(({ sha }) => sha))];
    return { lines, commits: await readCommits(git.objects, dir, shas) };
  },
);

/**
 * The commit that changed a path last; of the root, the commit itself. Null where nothing was committed yet, and where the
 * history is not read back to it within 5 seconds.
 * @throws AppError 400 for a bad path, 401, 403, 404 for an unknown ref or path
 */
export async function lastCommitOf(
  services: Reads,
  viewer: Viewer,
  repository: AccessRow,
  { path, ref }: ContentsPath,
  allowance: Allowance,
): Promise<CommitHere | null> {
  demand(viewer, 'repository.read', target(repository));
  const inside = path === '/' ? '' : path;
  if (inside) checkPath(inside);
  const { id, defaultBranch } = repository;
  const commit = await lastChange(services, id, { defaultBranch, ref, path: inside });
  if (!commit) return null;
  await takeCommits(allowance, [commit]);
  return { ...commit, repository };
}

type PathAt = { defaultBranch: string; ref?: string | null; path: string };

const lastChange = folderWork('lastChange', async ({ git }, dir, { path, ref, ...at }: PathAt) => {
  const found = await git.objects.use(dir, (objects) => find(objects, at, ref, path));
  if (!found && (ref || path)) throw notFound('Ref');
  if (!found) return null;
  if (!found.object) throw notFound('Path');
  const sha = path === '' ? found.commit : await git.lastCommits.ofPath(dir, found.commit, path);
  const [commit = null] = sha ? await readCommits(git.objects, dir, [sha]) : [];
  return commit;
});

/** `lastCommit` finds those of the whole directory at once, the first time that one is asked for. */
export type EntryHere = TreeEntry & { lastCommit(): Promise<CommitHere | null> };

export function entriesOf(
  services: Reads,
  { repository, commit, path, entries }: Tree,
  allowance: Allowance,
): EntryHere[] {
  const names = entries.map(({ name }) => name);
  const inside = path === '/' ? '' : path;
  const commits = lazyAsync(async () =>
    commit === null
      ? new Map<string, CommitHere>()
      : lastCommits(services, repository, { commit, path: inside, names }, allowance),
  );
  return entries.map((entry) => ({
    ...entry,
    lastCommit: async () => (await commits()).get(entry.name) ?? null,
  }));
}

/** By name; of those that are not found in time there is none. */
async function lastCommits(
  services: Reads,
  repository: AccessRow,
  directory: DirectoryAt,
  allowance: Allowance,
): Promise<Map<string, CommitHere>> {
  const { changed, commits } = await lastChanges(services, repository.id, directory);
  const bySha = await takeBySha(allowance, repository, commits);
  return new Map(
    changed.flatMap(([name, sha]) => {
      const commit = bySha.get(sha);
      return commit ? [[name, commit] as const] : [];
    }),
  );
}

const lastChanges = boundedWork(
  'lastChanges',
  TOO_LONG,
  async ({ git }, dir, directory: DirectoryAt) => {
    const changed = await git.lastCommits.of(dir, directory);
    const shas = [...new Set(changed.map(([, sha]) => sha))];
    return { changed, commits: await readCommits(git.objects, dir, shas) };
  },
);
