/**
 * Checks a push against the jobs that branch rules require: they must have succeeded on the commit that the branch will point
 * to. Only states that the server itself reported for a run count.
 */
import type pg from 'pg';
import type { CommitState } from '../../../prisma/generated/enums.ts';
import { REF_PREFIX } from '../../git/objects/refs.ts';
import { type ReceivedRefUpdate, type Verdict, ZERO_ID } from '../../git/transport/hooks.ts';
import { runStatement } from '../../platform/database/statement.ts';
import { matchesPattern } from '../branch-patterns.ts';
import { createYielder, reject } from './incoming-push.ts';
import type { EnforcedRule } from './rows.ts';

const STATES: Record<CommitState, string> = {
  success: 'succeeded',
  pending: 'has not ended',
  failure: 'failed',
  error: 'was cancelled',
};

type StateRow = { sha: string; context: string; state: CommitState };

/** Rejects the push for the first branch whose new commit lacks a required job. */
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
