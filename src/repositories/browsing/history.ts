/** What a repository's commits and refs are, page by page. */

import { notFound } from '../../base/errors.ts';
import { lazyAsync } from '../../base/lazy-async.ts';
import type { Week } from '../../git/objects/activity.ts';
import type { Annotation } from '../../git/objects/commit.ts';
import type { Distance } from '../../git/objects/diff.ts';
import { readAnnotations, readCommits, readHistory } from '../../git/objects/history.ts';
import { listRefs, type Ref, type RefKind } from '../../git/objects/refs.ts';
import { locateInBranch } from '../../git/objects/resolve.ts';
import { demand, type Viewer } from '../../identity/permissions.ts';
import {
  checkFirst,
  noCursor,
  type Slice,
  type SliceRequest,
} from '../../platform/database/paging.ts';
import type { Allowance } from '../../platform/limits/reads.ts';
import { folderWork, type Reads } from '../folder.ts';
import { type AccessRow, target } from '../repositories.ts';
import { type CommitHere, find, takeCommits } from './contents.ts';

/**
 * The history of a revision, newest first, page by page: what follows a cursor is the history that it was made
 * for, also when the branch has moved on meanwhile. Without a revision it is that of `main`, or else of the
 * default branch, where nothing may have been committed yet.
 * @throws AppError 400, 401, 403, 404 for an unknown revision.
 */
export async function history(
  services: Reads,
  viewer: Viewer,
  repository: AccessRow,
  { revision, first, after }: SliceRequest & { revision?: string | null },
  allowance: Allowance,
): Promise<Slice<CommitHere>> {
  demand(viewer, 'repository.read', target(repository));
  const take = checkFirst(first);
  const start = after == null ? null : readPosition(after);
  const { id, defaultBranch } = repository;
  const skip = start?.position ?? 0;
  const found = await pageOfHistory(services, id, {
    defaultBranch,
    name: start?.sha ?? revision,
    isCursor: start !== null,
    range: { skip, take },
  });
  if (!found) return { items: [], hasNextPage: false, totalCount: () => 0 };
  const { sha, commits, total } = found;
  await takeCommits(allowance, commits);
  return {
    items: commits.map((commit, i) => ({
      cursor: `${sha}.${skip + i + 1}`,
      node: { ...commit, repository },
    })),
    hasNextPage: skip + take < total,
    totalCount: () => total,
  };
}

type Named = { defaultBranch: string; name?: string | null };
type PageOfHistory = Named & { isCursor: boolean; range: { skip: number; take: number } };

/** Null when no revision is named and nothing was committed yet. */
const pageOfHistory = folderWork(
  'pageOfHistory',
  async ({ git: { objects, history } }, dir, { name, isCursor, range, ...at }: PageOfHistory) => {
    const found = await objects.use(dir, (objects) => find(objects, at, name, ''));
    if (!found && name) throw isCursor ? noCursor() : notFound('Revision');
    if (!found) return null;
    const sha = found.commit;
    return { sha, ...(await readHistory(objects, history, dir, sha, range)) };
  },
);

/** A cursor in a history: where it began, and how many commits were shown. */
function readPosition(cursor: string): { sha: string; position: number } {
  const [, sha, position] = /^([0-9a-f]{40})\.(\d{1,9})$/.exec(cursor) ?? [];
  if (!sha) throw noCursor();
  return { sha, position: Number(position) };
}

/** What a revision names. @throws AppError 401, 403, 404. */
export async function commit(
  services: Reads,
  viewer: Viewer,
  repository: AccessRow,
  revision: string,
  allowance: Allowance,
): Promise<CommitHere> {
  demand(viewer, 'repository.read', target(repository));
  if (!revision) throw notFound('Revision');
  const { id, defaultBranch } = repository;
  const found = await commitOf(services, id, { defaultBranch, name: revision });
  await takeCommits(allowance, [found]);
  return { ...found, repository };
}

const commitOf = folderWork(
  'commitOf',
  async ({ git: { objects } }, dir, { name, ...at }: Named) => {
    const found = await objects.use(dir, (objects) => find(objects, at, name, ''));
    const [commit] = found ? await readCommits(objects, dir, [found.commit]) : [];
    if (!commit) throw notFound('Revision');
    return commit;
  },
);

/**
 * How many commits a revision has of each of the last weeks, oldest first. Null where nothing was committed yet, and where
 * counting takes longer than 5 seconds.
 * @throws AppError 401, 403, 404 for an unknown revision
 */
export async function activity(
  services: Reads,
  viewer: Viewer,
  repository: AccessRow,
  revision?: string | null,
): Promise<Week[] | null> {
  demand(viewer, 'repository.read', target(repository));
  const { id, defaultBranch } = repository;
  return activityOf(services, id, { defaultBranch, name: revision });
}

const activityOf = folderWork('activityOf', async ({ git }, dir, { name, ...at }: Named) => {
  const found = await git.objects.use(dir, (objects) => find(objects, at, name, ''));
  if (!found && name) throw notFound('Revision');
  return found && git.activity.of(dir, found.commit);
});

/** What they read is that of the whole page, at once, the first time that one is asked for. */
export type RefAndCommit = Ref & {
  commit(): Promise<CommitHere | null>;
  /** Of a branch, from the default branch; null of tags, and where it is not counted within 5 seconds. */
  distance(): Promise<Distance | null>;
  /** Null for all but annotated tags. */
  annotation(): Promise<Annotation | null>;
};

/** By name, page by page. `totalCount` is the record's. @throws AppError 400, 401, 403. */
export async function refs(
  services: Reads,
  viewer: Viewer,
  repository: AccessRow,
  { kind, totalCount, first, after }: SliceRequest & { kind: RefKind; totalCount: number },
  allowance: Allowance,
): Promise<Slice<RefAndCommit>> {
  demand(viewer, 'repository.read', target(repository));
  const take = checkFirst(first);
  const start = after == null ? null : readRefCursor(after);
  const found = await pageOfRefs(services, repository.id, { kind, after: start, limit: take + 1 });
  const page = found.slice(0, take);
  const commits = lazyAsync(async () => {
    const shas = [...new Set(page.map(({ sha }) => sha))];
    const commits = await commitsOf(services, repository.id, shas);
    await takeCommits(allowance, commits);
    return new Map(shas.map((sha, i) => [sha, commits[i] ?? null]));
  });
  const commitAt = async (sha: string) => {
    const commit = (await commits()).get(sha);
    return commit ? { ...commit, repository } : null;
  };
  const annotations = lazyAsync(async () => {
    const shas = page.flatMap(({ tag }) => tag ?? []);
    const found = await annotationsOf(services, repository.id, shas);
    await takeCommits(allowance, found);
    return new Map(found.map((one) => [one?.sha, one]));
  });
  const annotationOf = async (tag: string | null) =>
    tag === null ? null : ((await annotations()).get(tag) ?? null);
  const distances = lazyAsync(async () => {
    const shas = [...new Set(page.map(({ sha }) => sha))];
    const { id, defaultBranch } = repository;
    return new Map(await distancesOf(services, id, { defaultBranch, shas }));
  });
  return {
    items: page.map((ref, i) => ({
      cursor: refCursor(ref.name, (start?.position ?? 0) + i + 1),
      node: {
        ...ref,
        commit: () => commitAt(ref.sha),
        annotation: () => annotationOf(ref.tag),
        distance: async () =>
          kind === 'branch' ? ((await distances()).get(ref.sha) ?? null) : null,
      },
    })),
    hasNextPage: found.length > take,
    totalCount: () => totalCount,
  };
}

type PageOfRefs = { kind: RefKind } & Parameters<typeof listRefs>[2];

const pageOfRefs = folderWork('pageOfRefs', ({ git }, dir, { kind, ...range }: PageOfRefs) =>
  git.turns.take(() => listRefs(dir, kind, range), { key: dir }),
);

const commitsOf = folderWork('commitsOf', ({ git }, dir, shas: string[]) =>
  readCommits(git.objects, dir, shas),
);

const annotationsOf = folderWork('annotationsOf', ({ git }, dir, shas: string[]) =>
  readAnnotations(git.objects, dir, shas),
);

type DistancesOf = { defaultBranch: string; shas: string[] };

const distancesOf = folderWork(
  'distancesOf',
  async ({ git }, dir, { defaultBranch, shas }: DistancesOf) => {
    const base = await git.objects.use(dir, (objects) =>
      locateInBranch(objects, defaultBranch, ''),
    );
    return base ? git.diffs.apartFrom(dir, base.commit, shas) : [];
  },
);

function refCursor(name: string, position: number): string {
  return Buffer.from(`${position} ${name}`).toString('base64url');
}

function readRefCursor(cursor: string): { name: string; position: number } {
  const text = Buffer.from(cursor, 'base64url').toString();
  const [, position, name] = /^(\d{1,9}) (.+)$/s.exec(text) ?? [];
  if (!name) throw noCursor();
  return { name, position: Number(position) };
}
