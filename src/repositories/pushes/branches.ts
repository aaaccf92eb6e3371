/** What pushes may do to branches that are protected. */

import { PREFIX } from '../../git/objects/refs.ts';
import { isFastForward, type Quarantined } from '../../git/objects/walk.ts';
import { type Command, NONE, type Verdict } from '../../git/transport/hooks.ts';
import { type Account, roleIn } from '../../identity/permissions.ts';
import { matches } from '../branch-patterns.ts';
import { refused, takeTurns } from './brought.ts';
import type { HeededRule } from './rows.ts';

export type Protection = {
  namespaceId: string;
  /** Null: it is not protected. */
  defaultBranch: string | null;
  rules: readonly HeededRule[];
};

/** Each is compared by a process of git. */
const MAX_COMPARED = 500;

/** The first command that breaks a rule refuses the push. */
export async function judgeBranches(
  { namespaceId, defaultBranch, rules }: Protection,
  by: Account,
  commands: readonly Command[],
  place: Quarantined,
): Promise<Verdict> {
  const moved: { branch: string; command: Command }[] = [];
  const turn = takeTurns(place.signal);
  for (const command of commands) {
    // 100,000 refs and a hundred rules take minutes.
    await turn();
    if (!command.ref.startsWith(PREFIX.branch)) continue;
    const branch = command.ref.slice(PREFIX.branch.length);
    const isDefault = branch === defaultBranch;
    const matching = rules.filter(({ pattern }) => matches(pattern, branch));
    const closed = matching.find((rule) => !mayPush(rule, by, namespaceId));
    if (closed)
      return refused(`The branch ${branch} is protected: ${whoMay(closed)} may push to it`);
    if (command.after === NONE && (isDefault || matching.some((rule) => !rule.allowsDeletions)))
      return refused(`The branch ${branch} is protected and cannot be deleted`);
    const isForward = isDefault || matching.some((rule) => !rule.allowsForcePushes);
    if (isForward && command.before !== NONE && command.after !== NONE)
      moved.push({ branch, command });
  }
  if (moved.length > MAX_COMPARED)
    return refused(
      `The push moves ${moved.length} protected branches: push at most ${MAX_COMPARED} at once`,
    );
  for (const { branch, command } of moved)
    if (!(await isFastForward(place, command.before, command.after)))
      return refused(`The branch ${branch} is protected: only fast-forward pushes are accepted`);
  return { accepted: true };
}

/** A deploy key is nobody in person: it may push where every writer may. */
function mayPush({ pushRole, pusherIds }: HeededRule, by: Account, namespaceId: string): boolean {
  if (pushRole === 'write') return true;
  if (by.credential.kind === 'deploy') return false;
  return roleIn(by, namespaceId) === 'admin' || pusherIds.includes(by.userId);
}

function whoMay({ pattern, pusherIds }: HeededRule): string {
  const others = pusherIds.length > 0 ? ' and the users it names' : '';
  return `by the rule for ${pattern} only administrators${others}`;
}
