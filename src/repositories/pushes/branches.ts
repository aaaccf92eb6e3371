/** Checks a push against the protection of branches: the default branch and the branch rules. */

import { REF_PREFIX } from '../../git/objects/refs.ts';
import { isFastForward, type RepositoryWithQuarantine } from '../../git/objects/walk.ts';
import { type ReceivedRefUpdate, type Verdict, ZERO_ID } from '../../git/transport/hooks.ts';
import type { Account } from '../../identity/permissions.ts';
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
