/** Changes of commits, and comparisons of two revisions. */
import { AppError, notFound } from '../../base/errors.ts';
import { lazyAsync } from '../../base/lazy-async.ts';
import type { Commit } from '../../git/objects/commit.ts';
import type {
  AheadBehind,
  Changes,
  ChangedFile as FileShape,
  Patch,
  Range,
} from '../../git/objects/diff.ts';
import { readCommits } from '../../git/objects/history.ts';
import { GitError } from '../../git/processes/run.ts';
import { demand, type Viewer } from '../../identity/permissions.ts';
import {
  type CursorPage,
  type CursorPageRequest,
  checkFirst,
  invalidCursor,
  paginateList,
} from '../../platform/database/paging.ts';
import { type Allowance, takeGitBytes } from '../../platform/limits/reads.ts';
import { defineFolderTask, type RepositoryReadDeps } from '../folder.ts';
import { type AccessRow, accessTarget } from '../repositories.ts';
import { chargeCommits, locateAtRef, type RepositoryCommit } from './contents.ts';

/** The first call of `patch` reads the patches of the whole page. */
export type ChangedFile = FileShape & { patch(): Promise<Patch | null> };

export type RepositoryChanges = Changes & {
  /** Sums over all files; null if there are more files than are listed. */
  additions: number | null;
  deletions: number | null;
  repository: AccessRow;
  range: Range;
};

/**
 * Reads the changes of a commit relative to its first parent; a root commit adds all its files. There is no permission
 * check: the caller got the commit object after one.
 * @throws AppError 422 if it takes too long.
 */
export function readCommitChanges(
  services: RepositoryReadDeps,
  { repository, sha, parents }: RepositoryCommit,
): Promise<RepositoryChanges> {
  return readChanges(services, repository, { from: parents[0] ?? null, to: sha });
}

async function readChanges(
  services: RepositoryReadDeps,
  repository: AccessRow,
  range: Range,
): Promise<RepositoryChanges> {
  const changes = await changesOnServer(services, repository.id, range);
  const sum = (of: 'additions' | 'deletions') =>
    changes.isTruncated ? null : changes.files.reduce((total, file) => total + (file[of] ?? 0), 0);
  return {
    ...changes,
    additions: sum('additions'),
    deletions: sum('deletions'),
    repository,
    range,
  };
}

const changesOnServer = defineComparisonTask('changesIn', ({ git }, dir, range: Range) =>
  git.diffs.changes(dir, range),
);

/** In git's order, by path. @throws AppError 400 */
export function listChangedFiles(
  services: RepositoryReadDeps,
  { files, repository, range }: RepositoryChanges,
  request: CursorPageRequest,
  allowance: Allowance,
): CursorPage<ChangedFile> {
  const { items, ...pageInfo } = paginateList(files, request, ({ path }) =>
    Buffer.from(path).toString('base64url'),
  );
  const page = items.map(({ node }) => node);
  const patches = lazyAsync(async () => {
    return truncateToAllowance(
      await patchesOnServer(services, repository.id, { range, page }),
      allowance,
    );
  });
  const patchOf = async (file: FileShape, at: number) =>
    file.isBinary ? null : ((await patches())[at] ?? null);
  return {
    ...pageInfo,
    items: items.map(({ cursor, node }, at) => ({
      cursor,
      node: { ...node, patch: () => patchOf(node, at) },
    })),
  };
}

type PatchesInput = { range: Range; page: FileShape[] };

const patchesOnServer = defineComparisonTask(
  'patchesIn',
  ({ git }, dir, { range, page }: PatchesInput) => git.diffs.patches(dir, range, page),
);

/** Keeps the patches that fit into the response allowance; marks the rest as truncated. */
async function truncateToAllowance(
  patches: readonly Patch[],
  allowance: Allowance,
): Promise<Patch[]> {
  const sizes = patches.map(({ text }) => Buffer.byteLength(text));
  const bytes = sizes.reduce((sum, size) => sum + size, 0);
  let left = await takeGitBytes(allowance, bytes);
  return patches.map((patch, i) => {
    const size = sizes[i] ?? 0;
    const fits = size <= left;
    if (fits) left -= size;
    return fits ? patch : { text: '', isTruncated: true };
  });
}

export type Comparison = {
  repository: AccessRow;
  base: RepositoryCommit;
  head: RepositoryCommit;
  /** The best common ancestor; null if there is none. */
  mergeBase: RepositoryCommit | null;
  /** Counts the commits that each side has and the other lacks. */
  distance(): Promise<AheadBehind>;
};

/** Compares `head` with `base`. @throws AppError 401, 403, 404 for an unknown revision, 422 if it takes too long. */
export async function compareRevisions(
  services: RepositoryReadDeps,
  viewer: Viewer,
  repository: AccessRow,
  revisions: { base: string; head: string },
): Promise<Comparison> {
  demand(viewer, 'repository.read', accessTarget(repository));
  const { id, defaultBranch } = repository;
  const found = await comparisonOnServer(services, id, { defaultBranch, ...revisions });
  const withRepository = (commit: Commit) => ({ ...commit, repository });
  const [base, head] = [withRepository(found.base), withRepository(found.head)];
  return {
    repository,
    base,
    head,
    mergeBase: found.mergeBase && withRepository(found.mergeBase),
    distance: lazyAsync(() => distanceOnServer(services, id, { base: base.sha, head: head.sha })),
  };
}

type RevisionPair = { base: string; head: string };

const comparisonOnServer = defineComparisonTask(
  'endsOf',
  async (
    { git: { objects, diffs } },
    dir,
    { defaultBranch, ...revisions }: RevisionPair & { defaultBranch: string },
  ) => {
    const [base = '', head = ''] = await objects.use(dir, (objects) =>
      Promise.all(
        [revisions.base, revisions.head].map(async (name) => {
          const at = name ? await locateAtRef(objects, { defaultBranch }, name, '') : null;
          if (!at) throw notFound('Revision');
          return at.commit;
        }),
      ),
    );
    const mergeBaseSha = await diffs.mergeBase(dir, base, head);
    const shas = [base, head, mergeBaseSha].filter((sha) => typeof sha === 'string');
    const [first, second, third = null] = await readCommits(objects, dir, shas);
    if (!first || !second) throw notFound('Revision');
    return { base: first, head: second, mergeBase: third };
  },
);

const distanceOnServer = defineComparisonTask(
  'distance',
  ({ git }, dir, { base, head }: RevisionPair) => git.diffs.countAheadBehind(dir, base, head),
);

/** Reads what `head` changes since the merge base; without one, relative to `base`. */
export function readComparisonChanges(
  services: RepositoryReadDeps,
  { repository, base, head, mergeBase }: Comparison,
): Promise<RepositoryChanges> {
  return readChanges(services, repository, { from: (mergeBase ?? base).sha, to: head.sha });
}

/** Lists the commits of `head` that `base` lacks, newest first. @throws AppError 400 */
export async function listComparisonCommits(
  services: RepositoryReadDeps,
  { repository, base, head, distance }: Comparison,
  { first, after }: CursorPageRequest,
  allowance: Allowance,
): Promise<CursorPage<RepositoryCommit>> {
  const take = checkFirst(first);
  const skip = after == null ? 0 : parseCursor(after);
  const { commits, hasNextPage } = await commitsOnServer(services, repository.id, {
    ends: { base: base.sha, head: head.sha },
    skip,
    take,
  });
  await chargeCommits(allowance, commits);
  return {
    items: commits.flatMap((commit, i) =>
      commit ? [{ cursor: String(skip + i + 1), node: { ...commit, repository } }] : [],
    ),
    hasNextPage,
    totalCount: async () => (await distance()).ahead,
  };
}

type CommitsInput = { ends: RevisionPair; skip: number; take: number };

const commitsOnServer = defineComparisonTask(
  'commitsApart',
  async ({ git: { objects, diffs } }, dir, { ends, skip, take }: CommitsInput) => {
    const range = { skip, take: take + 1 };
    const shas = await diffs.commitsBetween(dir, ends.base, ends.head, range);
    const commits = await readCommits(objects, dir, shas.slice(0, take));
    return { commits, hasNextPage: shas.length > take };
  },
);

function parseCursor(cursor: string): number {
  if (!/^\d{1,9}$/.test(cursor)) throw invalidCursor();
  return Number(cursor);
}

/** A function declaration, because it is used before this line. */
function defineComparisonTask<In, Out>(
  name: string,
  work: Parameters<typeof defineBoundedFolderTask<In, Out>>[2],
): ReturnType<typeof defineBoundedFolderTask<In, Out>> {
  return defineBoundedFolderTask<In, Out>(
    name,
    'The revisions differ too much to be compared in time',
    work,
  );
}

/**
 * Like `defineFolderTask`, for tasks with limits.
 * @throws AppError 422 with the message `tooLong` if git exceeded its time or output limit
 */
export function defineBoundedFolderTask<In, Out>(
  name: string,
  tooLong: string,
  work: Parameters<typeof defineFolderTask<In, Out>>[1],
): ReturnType<typeof defineFolderTask<In, Out>> {
  return defineFolderTask<In, Out>(name, async (services, dir, input, signal) => {
    try {
      return await work(services, dir, input, signal);
    } catch (error) {
      // Without an exit code, git was ended by a signal, which comes from our limits.
      if (!(error instanceof GitError) || error.code !== null) throw error;
      throw new AppError('invalid_request', tooLong, { status: 422 });
    }
  });
}
