/** Checks a push against the protection of branches: the default branch, the branch rules and the jobs that these require. */

import type pg from 'pg';
import type { CommitState } from '../../../prisma/generated/enums.ts';
import { REF_PREFIX } from '../../git/objects/refs.ts';
import { isFastForward, type RepositoryWithQuarantine } from '../../git/objects/walk.ts';
import { type ReceivedRefUpdate, type Verdict, ZERO_ID } from '../../git/transport/hooks.ts';
import type { Account } from '../../identity/permissions.ts';
import { runStatement } from '../../platform/database/statement.ts';
import { matchesPattern } from '../branch-patterns.ts';
import { mayPush, toPusher } from '../branch-protection.ts';
import { createYielder, reject } from './incoming-push.ts';
import type { EnforcedRule } from './rows.ts';

type Protection = {
  namespaceId: string;
  /** Null if the default branch is not protected. */
  defaultBranch: string | null;
  rules: readonly EnforcedRule[];
};

/** Maximum number of fast-forward checks per push, because each starts a git process. */
const MAX_FAST_FORWARD_CHECKS = 500;

/** Rejects the push for the first command that violates a rule. */
export async function checkBranches(
  { namespaceId, defaultBranch, rules }: Protection,
  by: Account,
  commands: readonly ReceivedRefUpdate[],
  quarantined: RepositoryWithQuarantine,
): Promise<Verdict> {
  const updates: { branch: string; command: ReceivedRefUpdate }[] = [];
  const yieldIfDue = createYielder(quarantined.signal);
  const pusher = toPusher(by, namespaceId);
  for (const command of commands) {
    // Matching 100,000 refs against 100 rules takes minutes.
    await yieldIfDue();
    if (!command.ref.startsWith(REF_PREFIX.branch)) continue;
    const branch = command.ref.slice(REF_PREFIX.branch.length);
    const isDefault = branch === defaultBranch;
    const matching = rules.filter(({ pattern }) => matchesPattern(pattern, branch));
    const violated = matching.find((rule) => !mayPush(rule, pusher));
    if (violated)
      return reject(
        `The branch ${branch} is protected: ${describePushers(violated)} to push to it`,
      );
    if (command.after === ZERO_ID && (isDefault || matching.some((rule) => !rule.allowsDeletions)))
      return reject(`The branch ${branch} is protected and cannot be deleted`);
    const mustFastForward = isDefault || matching.some((rule) => !rule.allowsForcePushes);
    if (mustFastForward && command.before !== ZERO_ID && command.after !== ZERO_ID)
      updates.push({ branch, command });
  }
  if (updates.length > MAX_FAST_FORWARD_CHECKS)
    return reject(
      `The push updates ${updates.length} protected branches: push at most ${MAX_FAST_FORWARD_CHECKS} at once`,
    );
  for (const { branch, command } of updates)
    if (!(await isFastForward(quarantined, command.before, command.after)))
      return reject(`The branch ${branch} is protected: only fast-forward pushes are accepted`);
  return { accepted: true };
}

function describePushers({ pattern, pusherIds }: EnforcedRule): string {
  const users = pusherIds.length > 0 ? ' and the users it names' : '';
  return `the rule for ${pattern} allows only administrators${users}`;
}

const STATES: Record<CommitState, string> = {
  success: 'succeeded',
  pending: 'has not ended',
  failure: 'failed',
  error: 'was cancelled',
};

type StateRow = { sha: string; context: string; state: CommitState };

/**
 * Rejects the push for the first branch whose new commit lacks a required job: the jobs must have succeeded on the commit that
 * the branch will point to. Only states that the server itself reported for a run count.
 */
export async function checkRequiredJobs(
  { pool }: { pool: pg.Pool },
  repositoryId: string,
  rules: readonly EnforcedRule[],
  commands: readonly ReceivedRefUpdate[],
  signal: AbortSignal,
): Promise<Verdict> {
  const requiring = rules.filter(({ requiredJobs }) => requiredJobs.length > 0);
  if (requiring.length === 0) return { accepted: true };
  const updates: { branch: string; after: string; jobs: string[] }[] = [];
  const yieldIfDue = createYielder(signal);
  for (const { ref, after } of commands) {
    await yieldIfDue();
    if (after === ZERO_ID || !ref.startsWith(REF_PREFIX.branch)) continue;
    const branch = ref.slice(REF_PREFIX.branch.length);
    const matching = requiring.filter(({ pattern }) => matchesPattern(pattern, branch));
    const jobs = [...new Set(matching.flatMap(({ requiredJobs }) => requiredJobs))];
    if (jobs.length > 0) updates.push({ branch, after, jobs });
  }
  if (updates.length === 0) return { accepted: true };
  const rows = await runStatement<StateRow>(
    pool,
    `select sha, context, state from commit_statuses
     where repository_id = $1 and sha = any($2) and run_id is not null`,
    [repositoryId, [...new Set(updates.map(({ after }) => after))]],
  );
  const states = new Map(rows.map(({ sha, context, state }) => [`${sha} ${context}`, state]));
  for (const { branch, after, jobs } of updates) {
    const missing = jobs.flatMap((job) => {
      const state = states.get(`${after} ${job}`);
      return state === 'success' ? [] : [`${job}: ${state ? STATES[state] : 'has not run'}`];
    });
    if (missing.length > 0)
      return reject(
        `The branch ${branch} takes only commits on which these jobs have succeeded: ${jobs.join(', ')}.`,
        ...missing.map((one) => `  ${one} on ${after.slice(0, 10)}`),
        'Push the commit to another branch first, and push it here when they have succeeded.',
      );
  }
  return { accepted: true };
}
