/** Blame of files, and the last commit that changed a path or each entry of a directory. */

import { invalid, notFound } from '../../base/errors.ts';
import { lazyAsync } from '../../base/lazy-async.ts';
import type { Commit } from '../../git/objects/commit.ts';
import { readCommits } from '../../git/objects/history.ts';
import {
  type BlamedLines,
  blame as blameOf,
  type DirectoryAt,
} from '../../git/objects/last-commits.ts';
import type { TreeEntry } from '../../git/objects/read.ts';
import { demand, type Viewer } from '../../identity/permissions.ts';
import type { Allowance } from '../../platform/limits/reads.ts';
import { defineFolderTask, type RepositoryReadDeps } from '../folder.ts';
import { type AccessRow, accessTarget } from '../repositories.ts';
import { defineBoundedFolderTask } from './changes.ts';
import {
  type ContentsPath,
  chargeCommits,
  checkPath,
  locateAtRef,
  normalizePath,
  type PathAt,
  type RepositoryCommit,
  type Tree,
} from './contents.ts';

/** Lines per response. */
const MAX_LINES = 2_000;
const TOO_LONG = 'The history is too long to be read in time; request fewer lines';

type BlameRange = { path: string; ref?: string | null; from: number; to?: number | null };
export type BlameHunk = BlamedLines & { commit: RepositoryCommit | null };

/**
 * @throws AppError 400 for an invalid path or a line range outside the file, 401, 403, 404 for an unknown ref or a path
 *   that is not a file, 422 if it takes too long
 */
export async function blame(
  services: RepositoryReadDeps,
  viewer: Viewer,
  repository: AccessRow,
  { path, ref, from, to }: BlameRange,
  allowance: Allowance,
): Promise<BlameHunk[]> {
  demand(viewer, 'repository.read', accessTarget(repository));
  checkPath(path);
  const last = to ?? from + MAX_LINES - 1;
  if (from < 1) throw invalid('from', 'must be 1 or more');
  if (last < from) throw invalid('to', 'must not be before `from`');
  if (last - from >= MAX_LINES)
    throw invalid('to', `must be less than ${MAX_LINES} lines after \`from\``);
  const { id, defaultBranch } = repository;
  const { lines, commits } = await blameOnServer(services, id, {
    defaultBranch,
    path,
    ref,
    from,
    to: last,
  });
  const bySha = await chargeBySha(allowance, repository, commits);
  return lines.map((hunk) => ({ ...hunk, commit: bySha.get(hunk.sha) ?? null }));
}

async function chargeBySha(
  allowance: Allowance,
  repository: AccessRow,
  commits: readonly (Commit | null)[],
): Promise<Map<string, RepositoryCommit>> {
  await chargeCommits(allowance, commits);
  const present = commits.filter((commit) => commit !== null);
  return new Map(present.map((commit) => [commit.sha, { ...commit, repository }]));
}

type BlameInput = { defaultBranch: string } & Required<Omit<BlameRange, 'ref'>> &
  Pick<BlameRange, 'ref'>;

const blameOnServer = defineBoundedFolderTask(
  'blamed',
  TOO_LONG,
  async ({ git }, dir, { defaultBranch, ref, path, from, to }: BlameInput) => {
    const found = await git.objects.use(dir, (objects) =>
      locateAtRef(objects, { defaultBranch }, ref, path),
    );
    if (!found) throw notFound('Ref');
    if (found.object?.type !== 'blob') throw notFound('File');
    const { commit } = found;
    // Git rejects a line range in an empty file.
    if (found.object.size === 0) return { lines: [], commits: [] };
    const range = { commit, path, from, to: to ?? from };
    const lines = await git.readSlots.run(() => blameOf(dir, range), { key: dir });
    if (!lines) throw invalid('from', 'is beyond the end of the file');
    const shas = [...new Set(lines.map(({ sha }) => sha))];
    return { lines, commits: await readCommits(git.objects, dir, shas) };
  },
);

/**
 * Finds the last commit that changed a path; for the root, the commit itself. Null if the repository has no commits, or
 * if the commit is not found within 5 seconds.
 * @throws AppError 400 for an invalid path, 401, 403, 404 for an unknown ref or path
 */
export async function findLastCommit(
  services: RepositoryReadDeps,
  viewer: Viewer,
  repository: AccessRow,
  { path, ref }: ContentsPath,
  allowance: Allowance,
): Promise<RepositoryCommit | null> {
  demand(viewer, 'repository.read', accessTarget(repository));
  const normalizedPath = normalizePath(path);
  const { id, defaultBranch } = repository;
  const commit = await lastCommitOnServer(services, id, {
    defaultBranch,
    ref,
    path: normalizedPath,
  });
  if (!commit) return null;
  await chargeCommits(allowance, [commit]);
  return { ...commit, repository };
}

const lastCommitOnServer = defineFolderTask(
  'lastChange',
  async ({ git }, dir, { path, ref, ...at }: PathAt) => {
    const found = await git.objects.use(dir, (objects) => locateAtRef(objects, at, ref, path));
    if (!found && (ref || path)) throw notFound('Ref');
    if (!found) return null;
    if (!found.object) throw notFound('Path');
    const sha = path === '' ? found.commit : await git.lastCommits.ofPath(dir, found.commit, path);
    const [commit = null] = sha ? await readCommits(git.objects, dir, [sha]) : [];
    return commit;
  },
);

/** The first call of `lastCommit` finds the commits of all entries of the directory. */
export type EntryWithLastCommit = TreeEntry & { lastCommit(): Promise<RepositoryCommit | null> };

export function addLastCommits(
  services: RepositoryReadDeps,
  { repository, commit, path, entries }: Tree,
  allowance: Allowance,
): EntryWithLastCommit[] {
  const names = entries.map(({ name }) => name);
  const normalizedPath = normalizePath(path);
  const commits = lazyAsync(async () =>
    commit === null
      ? new Map<string, RepositoryCommit>()
      : lastCommits(services, repository, { commit, path: normalizedPath, names }, allowance),
  );
  return entries.map((entry) => ({
    ...entry,
    lastCommit: async () => (await commits()).get(entry.name) ?? null,
  }));
}

/** Entry name → commit. Entries whose commit is not found in time are omitted. */
async function lastCommits(
  services: RepositoryReadDeps,
  repository: AccessRow,
  directory: DirectoryAt,
  allowance: Allowance,
): Promise<Map<string, RepositoryCommit>> {
  const { changed, commits } = await lastCommitsOnServer(services, repository.id, directory);
  const bySha = await chargeBySha(allowance, repository, commits);
  return new Map(
    changed.flatMap(([name, sha]) => {
      const commit = bySha.get(sha);
      return commit ? [[name, commit] as const] : [];
    }),
  );
}

const lastCommitsOnServer = defineBoundedFolderTask(
  'lastChanges',
  TOO_LONG,
  async ({ git }, dir, directory: DirectoryAt) => {
    const changed = await git.lastCommits.ofDirectory(dir, directory);
    const shas = [...new Set(changed.map(([, sha]) => sha))];
    return { changed, commits: await readCommits(git.objects, dir, shas) };
  },
);
