/** What commits change, and how two revisions differ. */
import { AppError, notFound } from '../../base/errors.ts';
import { lazyAsync } from '../../base/lazy-async.ts';
import type { Commit } from '../../git/objects/commit.ts';
import type {
  Changes,
  Distance,
  ChangedFile as FileShape,
  Patch,
  Range,
} from '../../git/objects/diff.ts';
import { readCommits } from '../../git/objects/history.ts';
import { GitError } from '../../git/processes/run.ts';
import { demand, type Viewer } from '../../identity/permissions.ts';
import {
  checkFirst,
  noCursor,
  type Slice,
  type SliceRequest,
  sliceOf,
} from '../../platform/database/paging.ts';
import { type Allowance, takeOfGit } from '../../platform/limits/reads.ts';
import { folderWork, type Reads } from '../folder.ts';
import { type AccessRow, target } from '../repositories.ts';
import { type CommitHere, find, takeCommits } from './contents.ts';

/** `patch` reads those of the whole page at once, the first time that one is asked for. */
export type ChangedFile = FileShape & { patch(): Promise<Patch | null> };

export type ChangesHere = Changes & {
  /** Lines of all files; null when there are more files than are listed. */
  additions: number | null;
  deletions: number | null;
  repository: AccessRow;
  range: Range;
};

/**
 * What a commit changes of its first parent; of a first commit all that is in it. Whoever has the commit was
 * allowed to read it.
 * @throws AppError 422 when it takes too long.
 */
export function changesOf(
  services: Reads,
  { repository, sha, parents }: CommitHere,
): Promise<ChangesHere> {
  return read(services, repository, { from: parents[0] ?? null, to: sha });
}

async function read(services: Reads, repository: AccessRow, range: Range): Promise<ChangesHere> {
  const changes = await changesIn(services, repository.id, range);
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

const changesIn = comparison('changesIn', ({ git }, dir, range: Range) =>
  git.diffs.changes(dir, range),
);

/** In the order of git: by path. @throws AppError 400 */
export function changedFiles(
  services: Reads,
  { files, repository, range }: ChangesHere,
  request: SliceRequest,
  allowance: Allowance,
): Slice<ChangedFile> {
  const { items, ...slice } = sliceOf(files, request, ({ path }) =>
    Buffer.from(path).toString('base64url'),
  );
  const page = items.map(({ node }) => node);
  const patches = lazyAsync(async () => {
    return fitting(await patchesIn(services, repository.id, { range, page }), allowance);
  });
  const patchOf = async (file: FileShape, at: number) =>
    file.isBinary ? null : ((await patches())[at] ?? null);
  return {
    ...slice,
    items: items.map(({ cursor, node }, at) => ({
      cursor,
      node: { ...node, patch: () => patchOf(node, at) },
    })),
  };
}

type PatchesIn = { range: Range; page: FileShape[] };

const patchesIn = comparison('patchesIn', ({ git }, dir, { range, page }: PatchesIn) =>
  git.diffs.patches(dir, range, page),
);

/** The patches that the answer has room for, and of the others that they are there. */
async function fitting(patches: readonly Patch[], allowance: Allowance): Promise<Patch[]> {
  const bytes = patches.reduce((sum, { text }) => sum + text.length, 0);
  let left = await takeOfGit(allowance, bytes);
  return patches.map((patch) => {
    const fits = patch.text.length <= left;
    if (fits) left -= patch.text.length;
    return fits ? patch : { text: '', isTruncated: true };
  });
}

export type Comparison = {
  repository: AccessRow;
  base: CommitHere;
  head: CommitHere;
  /** The best common ancestor; null when the two have none. */
  mergeBase: CommitHere | null;
  /** How many commits each has that the other has not. */
  apart(): Promise<Distance>;
};

/** How `head` differs from `base`. @throws AppError 401, 403, 404 for an unknown revision, 422 when it takes too long. */
export async function compare(
  services: Reads,
  viewer: Viewer,
  repository: AccessRow,
  revisions: { base: string; head: string },
): Promise<Comparison> {
  demand(viewer, 'repository.read', target(repository));
  const { id, defaultBranch } = repository;
  const apart = await endsOf(services, id, { defaultBranch, ...revisions });
  const here = (commit: Commit) => ({ ...commit, repository });
  const [base, head] = [here(apart.base), here(apart.head)];
  return {
    repository,
    base,
    head,
    mergeBase: apart.mergeBase && here(apart.mergeBase),
    apart: lazyAsync(() => distance(services, id, { base: base.sha, head: head.sha })),
  };
}

type Ends = { base: string; head: string };

const endsOf = comparison(
  'endsOf',
  async (
    { git: { objects, diffs } },
    dir,
    { defaultBranch, ...revisions }: Ends & { defaultBranch: string },
  ) => {
    const [base = '', head = ''] = await objects.use(dir, (objects) =>
      Promise.all(
        [revisions.base, revisions.head].map(async (name) => {
          const at = name ? await find(objects, { defaultBranch }, name, '') : null;
          if (!at) throw notFound('Revision');
          return at.commit;
        }),
      ),
    );
    const merged = await diffs.mergeBase(dir, base, head);
    const shas = [base, head, merged].filter((sha) => typeof sha === 'string');
    const [first, second, third = null] = await readCommits(objects, dir, shas);
    if (!first || !second) throw notFound('Revision');
    return { base: first, head: second, mergeBase: third };
  },
);

const distance = comparison('distance', ({ git }, dir, { base, head }: Ends) =>
  git.diffs.apart(dir, base, head),
);

/** What `head` changes since the two parted; where they never met, what it changes of `base`. */
export function changesBetween(
  services: Reads,
  { repository, base, head, mergeBase }: Comparison,
): Promise<ChangesHere> {
  return read(services, repository, { from: (mergeBase ?? base).sha, to: head.sha });
}

/** The commits of `head` that `base` has not, newest first. @throws AppError 400 */
export async function commitsBetween(
  services: Reads,
  { repository, base, head, apart }: Comparison,
  { first, after }: SliceRequest,
  allowance: Allowance,
): Promise<Slice<CommitHere>> {
  const take = checkFirst(first);
  const skip = after == null ? 0 : readPosition(after);
  const { commits, hasNextPage } = await commitsApart(services, repository.id, {
    ends: { base: base.sha, head: head.sha },
    skip,
    take,
  });
  await takeCommits(allowance, commits);
  return {
    items: commits.flatMap((commit, i) =>
      commit ? [{ cursor: String(skip + i + 1), node: { ...commit, repository } }] : [],
    ),
    hasNextPage,
    totalCount: async () => (await apart()).ahead,
  };
}

type CommitsApart = { ends: Ends; skip: number; take: number };

const commitsApart = comparison(
  'commitsApart',
  async ({ git: { objects, diffs } }, dir, { ends, skip, take }: CommitsApart) => {
    const range = { skip, take: take + 1 };
    const shas = await diffs.commitsBetween(dir, ends.base, ends.head, range);
    const commits = await readCommits(objects, dir, shas.slice(0, take));
    return { commits, hasNextPage: shas.length > take };
  },
);

function readPosition(cursor: string): number {
  if (!/^\d{1,9}$/.test(cursor)) throw noCursor();
  return Number(cursor);
}

/** A function, so that it can be called above. */
function comparison<In, Out>(
  name: string,
  work: Parameters<typeof boundedWork<In, Out>>[2],
): ReturnType<typeof boundedWork<In, Out>> {
  return boundedWork<In, Out>(name, 'The two are too far apart to be compared in time', work);
}

/* Reading that may take too long. */

/** As `folderWork`. @throws AppError 422 with `tooLong` when git was ended because it took too long or said too much */
export function boundedWork<In, Out>(
  name: string,
  tooLong: string,
  work: Parameters<typeof folderWork<In, Out>>[1],
): ReturnType<typeof folderWork<In, Out>> {
  return folderWork<In, Out>(name, async (services, dir, input, signal) => {
    try {
      return await work(services, dir, input, signal);
    } catch (error) {
      // A signal ended it, which is ours.
      if (!(error instanceof GitError) || error.code !== null) throw error;
      throw new AppError('invalid_request', tooLong, { status: 422 });
    }
  });
}
