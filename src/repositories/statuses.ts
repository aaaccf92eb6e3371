/**
 * Commit statuses: results of checks, which external systems such as CI servers report for a commit. A commit has one status
 * for each context, the name of a check. Reporting the same context again replaces the status.
 */
import type pg from 'pg';
import type { Prisma } from '../../prisma/generated/client.ts';
import type { CommitState } from '../../prisma/generated/enums.ts';
import { AppError, invalid, notFound } from '../base/errors.ts';
import { isObjectId } from '../git/names.ts';
import { branchTip, resolveCommit } from '../git/objects/resolve.ts';
import { recordAudit } from '../identity/audit.ts';
import { demand, demandAccount, type Viewer } from '../identity/permissions.ts';
import { inTransaction } from '../platform/database/client.ts';
import { coalesce } from '../platform/database/coalesce.ts';
import { runStatement } from '../platform/database/statement.ts';
import { type Allowance, takeAllGitBytes } from '../platform/limits/reads.ts';
import type { RepositoryCommit } from './browsing/contents.ts';
import { defineFolderTask, type RepositoryReadDeps } from './folder.ts';
import {
  accessTarget,
  demandRepository,
  getRepository,
  lockRepository,
  type RepositoryKey,
} from './repositories.ts';

export type CommitStatus = {
  context: string;
  state: CommitState;
  description: string | null;
  targetUrl: string | null;
  /** The name, at that time, of the user who reported the state. */
  creator: string;
  createdAt: Date;
  updatedAt: Date;
};

/** Maximum number of contexts of a commit, because pages that show a commit read all of its statuses. */
const MAX_CONTEXTS = 100;
const MAX_URL = 2_000;

const statusColumns = {
  context: true,
  state: true,
  description: true,
  targetUrl: true,
  creator: true,
  createdAt: true,
  updatedAt: true,
} as const satisfies Prisma.CommitStatusSelect;

type StatusInput = RepositoryKey & {
  sha: string;
  context: string;
  state: CommitState;
  description?: string | null;
  targetUrl?: string | null;
};

/**
 * Creates or replaces the status of a context.
 * @throws AppError 400, 401, 403, 404 for the repository or the commit, 409 if the commit has too many contexts
 */
export async function setCommitStatus(
  services: RepositoryReadDeps,
  viewer: Viewer,
  { sha, context, state, description, targetUrl, ...key }: StatusInput,
): Promise<CommitStatus> {
  const author = demandAccount(viewer);
  const found = await getRepository(services, viewer, key, {});
  demand(viewer, 'repository.push', accessTarget(found));
  if (!isObjectId(sha))
    throw invalid('sha', 'must be a commit id: 40 hexadecimal digits in lower case');
  checkContext('context', context);
  if (description) checkDescription(description);
  if (targetUrl) checkTargetUrl(targetUrl);
  if (!(await isCommit(services, found.id, sha))) throw notFound('Commit', sha);
  const data = {
    state,
    description: description || null,
    targetUrl: targetUrl || null,
    creator: author.username,
    updatedAt: new Date(),
  };
  return inTransaction(services.db, async (tx) => {
    await lockRepository(tx, found.id);
    // Checked again under the lock, because the repository may have been transferred meanwhile.
    const { id, name, namespaceId } = await demandRepository(
      tx,
      viewer,
      { id: found.id },
      'repository.push',
      { name: true },
    );
    const existing = await tx.commitStatus.findUnique({
      where: { repositoryId_sha_context: { repositoryId: id, sha, context } },
      select: { runId: true },
    });
    // Required jobs of branch rules rely on it.
    if (existing?.runId)
      throw new AppError(
        'conflict',
        'context: the state of a job of a run is reported by the server',
        {
          field: 'context',
        },
      );
    const status = await tx.commitStatus.upsert({
      where: { repositoryId_sha_context: { repositoryId: id, sha, context } },
      create: { repositoryId: id, sha, context, createdAt: data.updatedAt, ...data },
      update: data,
      select: statusColumns,
    });
    if ((await tx.commitStatus.count({ where: { repositoryId: id, sha } })) > MAX_CONTEXTS)
      throw new AppError(
        'conflict',
        `context: a commit can have statuses of at most ${MAX_CONTEXTS} contexts`,
        { field: 'context' },
      );
    await recordAudit(tx, author, {
      action: 'commit_status.set',
      namespaceIds: [namespaceId],
      subject: id,
      name,
      details: { sha, context, state },
    });
    return status;
  });
}

/** Whether the object with this id is a commit; an annotated tag, which also resolves to a commit, is not. */
const isCommit = defineFolderTask('isCommit', async ({ git }, dir, sha: string) => {
  return (await resolveCommit(git.objects, dir, sha)) === sha;
});

/** @throws AppError 400 naming `field` */
function checkContext(field: string, context: string): void {
  if (!/^[^\p{C}]{1,100}$/u.test(context) || context.trim() !== context)
    throw invalid(
      field,
      'must be 1 to 100 characters, without control characters, or spaces at either end',
    );
}

/** @throws AppError 400 naming `description` */
function checkDescription(description: string): void {
  if (!/^[^\p{Cc}\p{Cs}]{1,200}$/u.test(description))
    throw invalid('description', 'must be at most 200 characters, without control characters');
}

/** The dashboard makes a link of it, so it must not be a script. @throws AppError 400 naming `targetUrl` */
function checkTargetUrl(url: string): void {
  if (url.length > MAX_URL) throw invalid('targetUrl', `must be at most ${MAX_URL} characters`);
  if (!/^https?:\/\/[^\s\p{C}]+$/iu.test(url) || !URL.canParse(url))
    throw invalid('targetUrl', 'must be an http or https URL');
}

/** `failure` if a check failed, else `pending` if a check is pending, else `success`. */
type RollupState = Exclude<CommitState, 'error'>;
export type StatusRollup = { commit: RepositoryCommit; state: RollupState };

/** Combines the statuses of a commit, which the viewer was allowed to read. Null without a status. */
export async function findStatusRollup(
  services: { pool: pg.Pool },
  commit: RepositoryCommit,
): Promise<StatusRollup | null> {
  const state = await rollupOf(services.pool, commit.repository.id, commit.sha);
  return state ? { commit, state } : null;
}

/** Lists the statuses of a commit by context. @throws AppError 400, 503 if the response is too large */
export async function listStatuses(
  { pool }: { pool: pg.Pool },
  { commit: { repository, sha } }: StatusRollup,
  allowance: Allowance,
): Promise<CommitStatus[]> {
  const statuses = (await statusesOf(pool, repository.id, sha)) ?? [];
  const lengths = statuses.map(
    ({ context, description, targetUrl }) =>
      context.length + (description?.length ?? 0) + (targetUrl?.length ?? 0),
  );
  await takeAllGitBytes(
    allowance,
    lengths.reduce((sum, length) => sum + length, 0),
  );
  return statuses;
}

const rollupOf = batchByCommit<RollupState>(async (pool, repositoryId, shas) => {
  const rows = await runStatement<{ sha: string; state: RollupState }>(
    pool,
    `select sha, case when bool_or(state in ('failure', 'error')) then 'failure'
       when bool_or(state = 'pending') then 'pending' else 'success' end as state
     from commit_statuses where repository_id = $1 and sha = any($2) group by sha`,
    [repositoryId, shas],
  );
  return new Map(rows.map(({ sha, state }) => [sha, state]));
});

const statusesOf = batchByCommit<CommitStatus[]>(async (pool, repositoryId, shas) => {
  const rows = await runStatement<CommitStatus & { sha: string }>(
    pool,
    `select sha, context, state, description, target_url as "targetUrl", creator,
       created_at as "createdAt", updated_at as "updatedAt"
     from commit_statuses where repository_id = $1 and sha = any($2) order by context`,
    [repositoryId, shas],
  );
  return Map.groupBy(rows, ({ sha }) => sha);
});

type ReadByCommit<T> = (
  pool: pg.Pool,
  repositoryId: string,
  shas: string[],
) => Promise<Map<string, T>>;

/**
 * Commits of one repository that are requested in the same iteration of the event loop, such as those of a page, share one
 * statement.
 */
function batchByCommit<T>(read: ReadByCommit<T>) {
  const coalesced = coalesce<Map<string, T>>();
  const requested = new Map<string, Set<string>>();
  return async (pool: pg.Pool, repositoryId: string, sha: string): Promise<T | null> => {
    const shas = requested.getOrInsertComputed(repositoryId, () => new Set()).add(sha);
    const found = await coalesced(repositoryId, () => {
      requested.delete(repositoryId);
      return read(pool, repositoryId, [...shas]);
    });
    return found.get(sha) ?? null;
  };
}

/**
 * Finds the state of the last commit of a branch: of one context, or else of all. Without a branch: of the default branch.
 * @throws AppError 400, 401, 404 for the repository or the branch
 */
export async function findBranchState(
  services: RepositoryReadDeps,
  viewer: Viewer,
  { branch, context, ...key }: RepositoryKey & { branch?: string; context?: string },
): Promise<{ state: CommitState | null; isPublic: boolean }> {
  const { id, defaultBranch, visibility } = await getRepository(services, viewer, key, {});
  if (context !== undefined) checkContext('job', context);
  const sha = await branchTipOnServer(services, id, branch ?? defaultBranch);
  if (!sha) throw notFound('Branch', branch ?? defaultBranch);
  const isPublic = visibility === 'public';
  if (context === undefined) return { state: await rollupOf(services.pool, id, sha), isPublic };
  const status = await services.db.commitStatus.findUnique({
    where: { repositoryId_sha_context: { repositoryId: id, sha, context } },
    select: { state: true },
  });
  return { state: status?.state ?? null, isPublic };
}

const branchTipOnServer = defineFolderTask('branchTip', ({ git }, dir, branch: string) =>
  branchTip(git.objects, dir, branch),
);
