/**
 * The control group of an attempt with its first process in it: made ahead where the server said so, else at the attempt's
 * start. The limits are set then in any case: only then it is known what the attempt may use.
 *
 * Imports nothing but Node and the files beside it: the shim does.
 */
import { type Cgroup, removeIfEmpty } from './cgroup.ts';
import { type FirstProcess, startFirstProcess } from './first-process.ts';
import { type GroupPlan, limitGroup, makeGroup } from './group-plan.ts';
import { type Command, environmentOf } from './launch.ts';

/** A group that is to be made. */
export type GroupToJoin = { group: Cgroup; plan: GroupPlan };

/** What was made of one. `attempt`: which it was made for, if that was known. */
export type Joined = { first: FirstProcess; group: Cgroup; attempt?: string };

/** @returns undefined when it cannot be had now; the start of the attempt tries again, and says why */
export function join({ group, plan }: GroupToJoin, attempt?: string): Joined | undefined {
  try {
    makeGroup(group, plan);
    const first = startFirstProcess(group, environmentOf(attempt));
    return { first, group, ...(attempt !== undefined && { attempt }) };
  } catch {
    removeIfEmpty(group);
    return undefined;
  }
}

/**
 * Gives up what was made. The group of an attempt is left to the server, who knows of it: its next shim may be
 * about to use it.
 */
export async function leave({ first, group, attempt }: Joined): Promise<void> {
  await first.end();
  if (attempt === undefined) removeIfEmpty(group);
}

type Attempt = {
  attempt: string;
  cgroup: Cgroup | null;
  groupPlan?: GroupPlan;
  command: Command;
};

/** Its group, which has its limits then, and the shell in that: those that were made ahead, where they are this attempt's. */
export async function firstProcessOf(
  { attempt, cgroup, groupPlan, command }: Attempt,
  ahead: Joined | undefined,
): Promise<FirstProcess> {
  const isOurs = ahead?.first.isWaiting && ahead.group.folders.join() === cgroup?.folders.join();
  if (ahead && !isOurs) await leave(ahead);
  if (cgroup && groupPlan) {
    if (!isOurs) makeGroup(cgroup, groupPlan);
    limitGroup(cgroup, groupPlan);
  }
  if (ahead && isOurs) return ahead.first;
  const ownSession = command.setup === null;
  return startFirstProcess(cgroup, environmentOf(attempt), { ownSession });
}
