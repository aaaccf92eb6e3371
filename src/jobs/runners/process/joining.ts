/**
 * The control group of an attempt with its first process in it: made ahead where the server said so, else at the attempt's
 * start. The limits are set then in any case: only then it is known what the attempt may use.
 *
 * Imports nothing but Node and the files beside it: the shim does.
 */
import type { Cgroup } from './cgroup.ts';
import { type FirstProcess, startFirstProcess } from './first-process.ts';
import { type GroupPlan, limitGroup, makeGroup } from './group-plan.ts';
import { type Command, environmentOf } from './launch.ts';

/** A group that is to be made. */
export type GroupToJoin = { group: Cgroup; plan: GroupPlan };

/** @returns undefined when it cannot be had now; the start of the attempt tries again, and says why */
export function joined({ group, plan }: GroupToJoin): FirstProcess | undefined {
  try {
    makeGroup(group, plan);
    return startFirstProcess(group, environmentOf());
  } catch {
    return undefined;
  }
}

type Attempt = { cgroup: Cgroup | null; groupPlan?: GroupPlan; command: Command };

/** Its group, which has its limits then, and the shell in that: those that were made ahead, where they are this attempt's. */
export async function firstProcessOf(
  { cgroup, groupPlan, command }: Attempt,
  ahead: FirstProcess | undefined,
): Promise<FirstProcess> {
  const isOurs = ahead?.isWaiting && ahead.group?.folders.join() === cgroup?.folders.join();
  if (!isOurs) await ahead?.end();
  if (cgroup && groupPlan) {
    if (!isOurs) makeGroup(cgroup, groupPlan);
    limitGroup(cgroup, groupPlan);
  }
  if (ahead && isOurs) return ahead;
  return startFirstProcess(cgroup, environmentOf(), { ownSession: command.setup === null });
}
