/**
 * Branch protection rules of a repository. Each applies to the branches whose name matches its pattern. A push must
 * satisfy every matching rule, and for the default branch also `branchProtection`.
 */

import type { Role } from '../../prisma/generated/enums.ts';
import { AppError, invalid, notFound } from '../base/errors.ts';
import { resolveUser } from '../identity/accounts.ts';
import { recordAudit } from '../identity/audit.ts';
import { demand, demandAccount, type Viewer } from '../identity/permissions.ts';
import type { Db } from '../platform/database/client.ts';
import { inTransaction } from '../platform/database/client.ts';
import { readCursorPage, type Sorting } from '../platform/database/keyset.ts';
import type { CursorPage, CursorPageRequest } from '../platform/database/paging.ts';
import { validatePattern } from './branch-patterns.ts';
import { demandAdminAccess } from './lifecycle.ts';
import {
  type AccessRow,
  accessTarget,
  lockRepository,
  type RepositoryId,
  type Row,
  type Select,
} from './repositories.ts';

export type BranchRule = {
  pattern: string;
  pushRole: Role;
  pusherIds: string[];
  allowsForcePushes: boolean;
  allowsDeletions: boolean;
  /** Jobs of `.loam/jobs.yml` that must have succeeded on a commit before it is pushed. */
  requiredJobs: string[];
  updatedAt: Date;
};

type Deps = { db: Db };

/** Limits per repository and per rule, because each push reads all rules. */
const MAX_RULES = 100;
const MAX_PUSHERS = 100;
const MAX_JOBS = 20;

const BY_PATTERN: Sorting = {
  name: 'pattern',
  column: 'pattern',
  type: 'text',
  order: 'asc',
  id: 'pattern',
};

const ruleColumns = {
  pattern: true,
  pushRole: true,
  pusherIds: true,
  allowsForcePushes: true,
  allowsDeletions: true,
  requiredJobs: true,
  updatedAt: true,
} as const;

/** Lists the rules by pattern, for viewers who may read the repository. @throws AppError 400, 401, 403 */
export async function sliceBranchRules(
  { db }: Deps,
  viewer: Viewer,
  row: AccessRow,
  range: CursorPageRequest,
): Promise<CursorPage<BranchRule>> {
  demand(viewer, 'repository.read', accessTarget(row));
  const where = { repositoryId: row.id };
  return readCursorPage(db.branchRule, BY_PATTERN, range, { where, select: ruleColumns });
}

/** Names of the listed pushers. Deleted users are left out. */
export async function listPusherNames({ db }: Deps, { pusherIds }: BranchRule): Promise<string[]> {
  if (pusherIds.length === 0) return [];
  const rows = await db.user.findMany({
    where: { id: { in: pusherIds } },
    select: { username: true },
    orderBy: { username: 'asc' },
  });
  return rows.map(({ username }) => username);
}

type RuleInput = RepositoryId & {
  pattern: string;
  pushRole: Role;
  pushers: readonly string[];
  allowsForcePushes: boolean;
  allowsDeletions: boolean;
  requiredJobs: readonly string[];
};

/**
 * Creates or replaces the rule of a pattern. Pushes that were already checked are not affected.
 * @throws AppError 400, 401, 403, 404 for the repository or a pusher, 409 if the repository has too many rules
 */
export async function setBranchRule<S extends Select>(
  { db }: Deps,
  viewer: Viewer,
  {
    pattern,
    pushers,
    pushRole,
    allowsForcePushes,
    allowsDeletions,
    requiredJobs: jobs,
    ...key
  }: RuleInput,
  select: S,
): Promise<Row<S>> {
  const author = demandAccount(viewer);
  const problem = validatePattern(pattern);
  if (problem) throw invalid('pattern', problem);
  if (pushRole === 'read') throw invalid('pushRole', 'must be WRITE or ADMIN');
  if (pushers.length > MAX_PUSHERS)
    throw invalid('pushers', `must have at most ${MAX_PUSHERS} names`);
  const requiredJobs = [...new Set(jobs)];
  checkJobs(requiredJobs);
  return inTransaction(db, async (tx) => {
    await lockRepository(tx, key.id);
    const { id, name, namespaceId } = await demandAdminAccess(tx, viewer, key);
    const users = await Promise.all(pushers.map((username) => resolveUser(tx, username)));
    const pusherIds = [...new Set(users.map(({ userId }) => userId))];
    const data = {
      pushRole,
      pusherIds,
      allowsForcePushes,
      allowsDeletions,
      requiredJobs,
      updatedAt: new Date(),
    };
    await tx.branchRule.upsert({
      where: { repositoryId_pattern: { repositoryId: id, pattern } },
      create: { repositoryId: id, pattern, ...data },
      update: data,
    });
    if ((await tx.branchRule.count({ where: { repositoryId: id } })) > MAX_RULES)
      throw new AppError(
        'conflict',
        `A repository may have at most ${MAX_RULES} branch rules; delete one first`,
      );
    await recordAudit(tx, author, {
      action: 'branch_rule.set',
      namespaceIds: [namespaceId],
      subject: id,
      name,
      details: {
        pattern,
        pushRole,
        pushers: [...pushers],
        allowsForcePushes,
        allowsDeletions,
        ...(requiredJobs.length > 0 && { requiredJobs }),
      },
    });
    const row = await tx.repository.findUniqueOrThrow({ where: { id }, select });
    return row as unknown as Row<S>;
  });
}

/** @throws AppError 400 naming `requiredJobs` */
function checkJobs(names: readonly string[]): void {
  if (names.length > MAX_JOBS) throw invalid('requiredJobs', `must have at most ${MAX_JOBS} names`);
  if (names.some((name) => !/^[A-Za-z0-9][A-Za-z0-9_-]{0,59}$/.test(name)))
    throw invalid('requiredJobs', 'must be names of jobs in .loam/jobs.yml');
}

/** @throws AppError 401, 403, 404 for the repository or the rule */
export async function deleteBranchRule<S extends Select>(
  { db }: Deps,
  viewer: Viewer,
  { pattern, ...key }: RepositoryId & { pattern: string },
  select: S,
): Promise<Row<S>> {
  const author = demandAccount(viewer);
  return inTransaction(db, async (tx) => {
    const { id, name, namespaceId } = await demandAdminAccess(tx, viewer, key);
    const where = { repositoryId: id, pattern };
    const { count } = validatePattern(pattern)
      ? { count: 0 }
      : await tx.branchRule.deleteMany({ where });
    if (count === 0) throw notFound('Rule');
    await recordAudit(tx, author, {
      action: 'branch_rule.delete',
      namespaceIds: [namespaceId],
      subject: id,
      name,
      details: { pattern },
    });
    const row = await tx.repository.findUniqueOrThrow({ where: { id }, select });
    return row as unknown as Row<S>;
  });
}
