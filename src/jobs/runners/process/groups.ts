/** The control groups of one server's attempts, and those that are made before there is an attempt. */
import { createHash, randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { HARDWARE_DEFAULTS } from '../../hardware.ts';
import { type Cgroup, removeForgotten, removeGroup } from './cgroup.ts';
import type { Cgroups, GroupLimits } from './cgroups.ts';
import type { Confinement } from './confinement.ts';
import type { Holding } from './holding.ts';
import type { GroupToJoin } from './joining.ts';
import { limitsOf } from './limits.ts';
import type { Aheads } from './shims.ts';

export type Groups = {
  /** Of an attempt for which none was made ahead. */
  of(attempt: string): Cgroup;
  toJoin(group: Cgroup, limits: GroupLimits): GroupToJoin;
  /** One for whichever attempt is next, until that has taken it, or it is given up. */
  ahead(place: string): GroupToJoin;
  /** The attempt that takes what is reserved for this folder holds it from now on. */
  taken(place: string): void;
  giveUp(place: string): Promise<void>;
  /** Those of attempts whose folder was removed, with everything that described them; they may still run. */
  lost(keep: ReadonlySet<string>, holdings: Iterable<Holding>): Cgroup[];
  removeForgotten(): void;
};

/** @param dir where the folders of attempts lie */
export function openGroups(cgroups: Cgroups, dir: string): Groups {
  /** Servers of one machine have their groups side by side. */
  const prefix = `${createHash('sha256').update(dir).digest('hex').slice(0, 8)}-`;
  /** By the folder that they are reserved for. */
  const reserved = new Map<string, GroupToJoin>();
  const toJoin = (group: Cgroup, limits: GroupLimits) => ({
    group,
    plan: cgroups.plan(group, limits),
  });

  return {
    of: (attempt) => cgroups.groupOf(prefix + attempt),
    toJoin,
    ahead(place) {
      // Never again the same: an attempt that has outlived its server may still be in one.
      const group = cgroups.groupOf(prefix + randomUUID());
      const made = toJoin(group, limitsOf({ ...HARDWARE_DEFAULTS, gpu: 'none' }));
      reserved.set(place, made);
      return made;
    },
    taken: (place) => void reserved.delete(place),
    async giveUp(place) {
      const made = reserved.get(place);
      reserved.delete(place);
      if (made) await removeGroup(made.group);
    },
    lost(keep, holdings) {
      const held = [...holdings].map(({ cgroup }) => cgroup);
      const ahead = [...reserved.values()].map(({ group }) => group);
      const known = new Set([...held, ...ahead].map((group) => group?.folders[0]));
      return cgroups.names().flatMap((name) => {
        const attempt = name.startsWith(prefix) ? name.slice(prefix.length) : '';
        const group = cgroups.groupOf(name);
        const isKnown = attempt === '' || keep.has(attempt) || known.has(group.folders[0]);
        return isKnown || existsSync(join(dir, attempt)) ? [] : [group];
      });
    },
    removeForgotten() {
      for (const name of cgroups.names()) removeForgotten(cgroups.groupOf(name));
    },
  };
}

/** What is reserved before there is an attempt, with a control group where there are any. */
export function withGroups(aheads: Confinement['aheads'], groups: Groups | null): Aheads {
  return {
    async reserve() {
      const ahead = await aheads.reserve();
      return ahead && { ...ahead, group: groups?.ahead(ahead.place) ?? null };
    },
    keep(attempt) {
      const place = aheads.keep(attempt);
      return { place, group: groups?.ahead(place) ?? null };
    },
    async release(place) {
      await aheads.release(place);
      await groups?.giveUp(place);
    },
  };
}
