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
import type { Network } from './namespace.ts';

/** A group that is to be made. */
export type GroupToJoin = { group: Cgroup; plan: GroupPlan };

/** What was made of one. `attempt`: which it was made for, if that was known. `network`: where the process is already. */
export type Joined = { first: FirstProcess; group: Cgroup; attempt?: string; network?: Network };

/**
 * @param kept the network that the attempt will have, if it is there already
 * @returns undefined when it cannot be had now; the start of the attempt tries again, and says why
 */
export function join(
  { group, plan }: GroupToJoin,
  attempt?: string,
  kept?: Network,
): Joined | undefined {
  try {
    makeGroup(group, plan);
    const made = { group, ...(attempt !== undefined && { attempt }) };
    const forked = kept?.shell(group).fork(group);
    if (kept && forked) return { ...made, first: forked, network: kept };
    return { ...made, first: startFirstProcess(group, environmentOf(attempt)) };
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

export type First = { first: FirstProcess; isInNetwork: boolean };

/** Its group, which has its limits then, and the shell in that: those that were made ahead, where they are this attempt's. */
export async function firstProcessOf(
  { attempt, cgroup, groupPlan, command }: Attempt,
  network: Network | null,
  ahead: Joined | undefined,
): Promise<First> {
  const isOurs =
    ahead?.first.isWaiting &&
    ahead.group.folders.join() === cgroup?.folders.join() &&
    (ahead.network === undefined || ahead.network === network);
  if (ahead && !isOurs) await leave(ahead);
  if (cgroup && groupPlan) {
    if (!isOurs) makeGroup(cgroup, groupPlan);
    limitGroup(cgroup, groupPlan);
  }
  if (ahead && isOurs) return { first: ahead.first, isInNetwork: ahead.network !== undefined };
  const ownSession = command.setup === null;
  const first = startFirstProcess(cgroup, environmentOf(attempt), { ownSession });
  return { first, isInNetwork: false };
}
