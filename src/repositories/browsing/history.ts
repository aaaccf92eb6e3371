/** Pages of commits, branches and tags, by cursor. */

import { notFound } from '../../base/errors.ts';
import { lazyAsync } from '../../base/lazy-async.ts';
import type { Annotation } from '../../git/objects/commit.ts';
import type { Week } from '../../git/objects/commit-counts.ts';
import type { AheadBehind } from '../../git/objects/diff.ts';
import { readAnnotations, readCommits, readHistory } from '../../git/objects/history.ts';
import { listRefs, type Ref, type RefKind } from '../../git/objects/refs.ts';
import { locateInBranch } from '../../git/objects/resolve.ts';
import { demand, type Viewer } from '../../identity/permissions.ts';
import {
  type CursorPage,
  type CursorPageRequest,
  checkFirst,
  invalidCursor,
} from '../../platform/database/paging.ts';
import type { Allowance } from '../../platform/limits/reads.ts';
import { defineFolderTask, type RepositoryReadDeps } from '../folder.ts';
import { type AccessRow, accessTarget } from '../repositories.ts';
import { chargeCommits, locateAtRef, type RepositoryCommit } from './contents.ts';

/**
 * Lists the history of a revision, newest first. A cursor continues the history that it was created for, even if the
 * branch has moved. Without a revision: `main`, or else the default branch, which may have no commits.
 * @throws AppError 400, 401, 403, 404 for an unknown revision.
 */
export async function sliceHistory(
  services: RepositoryReadDeps,
  viewer: Viewer,
  repository: AccessRow,
  { revision, first, after }: CursorPageRequest & { revision?: string | null },
  allowance: Allowance,
): Promise<CursorPage<RepositoryCommit>> {
  demand(viewer, 'repository.read', accessTarget(repository));
  const take = checkFirst(first);
  const start = after == null ? null : parseHistoryCursor(after);
  const { id, defaultBranch } = repository;
  const skip = start?.position ?? 0;
  const found = await historyOnServer(services, id, {
    defaultBranch,
    name: start?.sha ?? revision,
    isCursor: start !== null,
    range: { skip, take },
  });
  if (!found) return { items: [], hasNextPage: false, totalCount: () => 0 };
  const { sha, commits, total } = found;
  await chargeCommits(allowance, commits);
  return {
    items: commits.map((commit, i) => ({
      cursor: `${sha}.${skip + i + 1}`,
      node: { ...commit, repository },
    })),
    hasNextPage: skip + take < total,
    totalCount: () => total,
  };
}

type RevisionInput = { defaultBranch: string; name?: string | null };
type HistoryInput = RevisionInput & { isCursor: boolean; range: { skip: number; take: number } };

/** Null if no revision is given and there are no commits. */
const historyOnServer = defineFolderTask(
  'pageOfHistory',
  async ({ git: { objects, history } }, dir, { name, isCursor, range, ...at }: HistoryInput) => {
    const found = await objects.use(dir, (objects) => locateAtRef(objects, at, name, ''));
    if (!found && name) throw isCursor ? invalidCursor() : notFound('Revision');
    if (!found) return null;
    const sha = found.commit;
    return { sha, ...(await readHistory(objects, history, dir, sha, range)) };
  },
);

/** A history cursor: the commit at which the history starts, and the number of commits before the cursor. */
function parseHistoryCursor(cursor: string): { sha: string; position: number } {
  const [, sha, position] = /^([0-9a-f]{40})\.(\d{1,9})$/.exec(cursor) ?? [];
  if (!sha) throw invalidCursor();
  return { sha, position: Number(position) };
}

/** Reads the commit that a revision names. @throws AppError 401, 403, 404. */
export async function readCommit(
  services: RepositoryReadDeps,
  viewer: Viewer,
  repository: AccessRow,
  revision: string,
  allowance: Allowance,
): Promise<RepositoryCommit> {
  demand(viewer, 'repository.read', accessTarget(repository));
  if (!revision) throw notFound('Revision');
  const { id, defaultBranch } = repository;
  const found = await commitOnServer(services, id, { defaultBranch, name: revision });
  await chargeCommits(allowance, [found]);
  return { ...found, repository };
}

const commitOnServer = defineFolderTask(
  'commitOf',
  async ({ git: { objects } }, dir, { name, ...at }: RevisionInput) => {
    const found = await objects.use(dir, (objects) => locateAtRef(objects, at, name, ''));
    const [commit] = found ? await readCommits(objects, dir, [found.commit]) : [];
    if (!commit) throw notFound('Revision');
    return commit;
  },
);

/**
 * Counts the commits of a revision in each of the last weeks, oldest first. Null if there are no commits, or if
 * counting takes longer than 5 seconds.
 * @throws AppError 401, 403, 404 for an unknown revision
 */
export async function readCommitActivity(
  services: RepositoryReadDeps,
  viewer: Viewer,
  repository: AccessRow,
  revision?: string | null,
): Promise<Week[] | null> {
  demand(viewer, 'repository.read', accessTarget(repository));
  const { id, defaultBranch } = repository;
  return activityOnServer(services, id, { defaultBranch, name: revision });
}

const activityOnServer = defineFolderTask(
  'activityOf',
  async ({ git }, dir, { name, ...at }: RevisionInput) => {
    const found = await git.objects.use(dir, (objects) => locateAtRef(objects, at, name, ''));
    if (!found && name) throw notFound('Revision');
    return found && git.activity.countByWeek(dir, found.commit);
  },
);

/** The first call of a method reads the values of the whole page. */
export type RefWithDetails = Ref & {
  commit(): Promise<RepositoryCommit | null>;
  /** Distance of a branch from the default branch; null for tags, and if counting takes longer than 5 seconds. */
  distance(): Promise<AheadBehind | null>;
  /** Null except for annotated tags. */
  annotation(): Promise<Annotation | null>;
};

/** Lists branches or tags by name. `totalCount` comes from the repository's row. @throws AppError 400, 401, 403. */
export async function sliceRefs(
  services: RepositoryReadDeps,
  viewer: Viewer,
  repository: AccessRow,
  { kind, totalCount, first, after }: CursorPageRequest & { kind: RefKind; totalCount: number },
  allowance: Allowance,
): Promise<CursorPage<RefWithDetails>> {
  demand(viewer, 'repository.read', accessTarget(repository));
  const take = checkFirst(first);
  const start = after == null ? null : parseRefCursor(after);
  const found = await refsOnServer(services, repository.id, {
    kind,
    after: start,
    limit: take + 1,
  });
  const page = found.slice(0, take);
  const commits = lazyAsync(async () => {
    const shas = [...new Set(page.map(({ sha }) => sha))];
    const commits = await commitsOnServer(services, repository.id, shas);
    await chargeCommits(allowance, commits);
    return new Map(shas.map((sha, i) => [sha, commits[i] ?? null]));
  });
  const commitAt = async (sha: string) => {
    const commit = (await commits()).get(sha);
    return commit ? { ...commit, repository } : null;
  };
  const annotations = lazyAsync(async () => {
    const shas = page.flatMap(({ tag }) => tag ?? []);
    const found = await annotationsOnServer(services, repository.id, shas);
    await chargeCommits(allowance, found);
    return new Map(found.map((one) => [one?.sha, one]));
  });
  const annotationOf = async (tag: string | null) =>
    tag === null ? null : ((await annotations()).get(tag) ?? null);
  const distances = lazyAsync(async () => {
    const shas = [...new Set(page.map(({ sha }) => sha))];
    const { id, defaultBranch } = repository;
    return new Map(await distancesOnServer(services, id, { defaultBranch, shas }));
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

type RefsInput = { kind: RefKind } & Parameters<typeof listRefs>[2];

const refsOnServer = defineFolderTask('pageOfRefs', ({ git }, dir, { kind, ...range }: RefsInput) =>
  git.readSlots.run(() => listRefs(dir, kind, range), { key: dir }),
);

const commitsOnServer = defineFolderTask('commitsOf', ({ git }, dir, shas: string[]) =>
  readCommits(git.objects, dir, shas),
);

const annotationsOnServer = defineFolderTask('annotationsOf', ({ git }, dir, shas: string[]) =>
  readAnnotations(git.objects, dir, shas),
);

type DistancesInput = { defaultBranch: string; shas: string[] };

const distancesOnServer = defineFolderTask(
  'distancesOf',
  async ({ git }, dir, { defaultBranch, shas }: DistancesInput) => {
    const base = await git.objects.use(dir, (objects) =>
      locateInBranch(objects, defaultBranch, ''),
    );
    return base ? git.diffs.countAheadBehindOfEach(dir, base.commit, shas) : [];
  },
);

function refCursor(name: string, position: number): string {
  return Buffer.from(`${position} ${name}`).toString('base64url');
}

function parseRefCursor(cursor: string): { name: string; position: number } {
  const text = Buffer.from(cursor, 'base64url').toString();
  const [, position, name] = /^(\d{1,9}) (.+)$/s.exec(text) ?? [];
  if (!name) throw invalidCursor();
  return { name, position: Number(position) };
}
