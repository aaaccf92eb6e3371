/** The control groups of one server's attempts. */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { type Cgroup, removeForgotten } from './cgroup.ts';
import type { Cgroups, GroupLimits } from './cgroups.ts';
import type { GroupPlan } from './group-plan.ts';
import type { Reservation } from './reservation.ts';

export type Groups = {
  of(attempt: string): Cgroup;
  plan(group: Cgroup, limits: GroupLimits): GroupPlan;
  /** Those of attempts whose folder was removed, with everything that described them; they may still run. */
  lost(keep: ReadonlySet<string>, holdings: Iterable<Reservation>): Cgroup[];
  removeForgotten(): void;
};

/** @param dir where the folders of attempts lie */
export function openGroups(cgroups: Cgroups, dir: string): Groups {
  /** Servers of one machine have their groups side by side. */
  const prefix = `${createHash('sha256').update(dir).digest('hex').slice(0, 8)}-`;

  return {
    of: (attempt) => cgroups.groupOf(prefix + attempt),
    plan: cgroups.plan,
    lost(keep, holdings) {
      const held = new Set([...holdings].map(({ cgroup }) => cgroup?.folders[0]));
      return cgroups.names().flatMap((name) => {
        const attempt = name.startsWith(prefix) ? name.slice(prefix.length) : '';
        const group = cgroups.groupOf(name);
        const isKnown = attempt === '' || keep.has(attempt) || held.has(group.folders[0]);
        return isKnown || existsSync(join(dir, attempt)) ? [] : [group];
      });
    },
    removeForgotten() {
      for (const name of cgroups.names()) removeForgotten(cgroups.groupOf(name));
    },
  };
}
