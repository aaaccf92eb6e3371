/** Which branches are protected, and who may push to them: for checks of pushes, and for what depends on such a check. */
import type pg from 'pg';
import type { Role } from '../../prisma/generated/enums.ts';
import { type Account, roleIn } from '../identity/permissions.ts';
import { matchesPattern } from './branch-patterns.ts';

export type PushRule = { pattern: string; pushRole: Role; pusherIds: readonly string[] };

type BranchProtection = {
  namespaceId: string;
  defaultBranch: string;
  /** Null if the default branch is not protected by `branchProtection`. */
  protectedDefault: string | null;
  rules: readonly PushRule[];
};

/** A user with a role in the namespace of the repository. `userId` is null for a deploy key, which belongs to no user. */
export type Pusher = { userId: string | null; role: Role | null };

export function toPusher(by: Account, namespaceId: string): Pusher {
  const userId = by.credential.kind === 'deploy' ? null : by.userId;
  return { userId, role: roleIn(by, namespaceId) };
}

/** A deploy key may push only where every writer may. */
export function mayPush({ pushRole, pusherIds }: PushRule, { userId, role }: Pusher): boolean {
  if (pushRole === 'write') return true;
  return userId !== null && (role === 'admin' || pusherIds.includes(userId));
}

/** Whether a branch is the protected default branch, or has a branch rule. */
export function isProtected(
  { protectedDefault, rules }: BranchProtection,
  branch: string,
): boolean {
  return (
    branch === protectedDefault || rules.some(({ pattern }) => matchesPattern(pattern, branch))
  );
}

/** Whether all rules of a branch allow a member to push to it. */
export function mayPushTo({ rules }: BranchProtection, pusher: Pusher, branch: string): boolean {
  return rules.every((rule) => !matchesPattern(rule.pattern, branch) || mayPush(rule, pusher));
}

/** Reads the protection of a repository; null if the repository does not exist. */
export async function readBranchProtection(
  { pool }: { pool: pg.Pool },
  repositoryId: string,
): Promise<BranchProtection | null> {
  const { rows } = await pool.query<BranchProtection>({
    name: 'loam-branch-protection',
    text: `
      select r.namespace_id as "namespaceId", r.default_branch as "defaultBranch",
        case when r.branch_protection then r.default_branch end as "protectedDefault",
        coalesce((
          select json_agg(json_build_object('pattern', pattern, 'pushRole', push_role, 'pusherIds', pusher_ids))
          from branch_rules where repository_id = r.id
        ), '[]') as rules
      from repositories r where r.id = $1`,
    values: [repositoryId],
  });
  return rows[0] ?? null;
}
