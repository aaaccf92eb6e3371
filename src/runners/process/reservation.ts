/**
 * What an attempt holds of this machine beside its folder: GPUs and control groups. It stands in the folder
 * before it is taken and goes with it, so a server that starts again finds what is held before it takes anything.
 * It need not outlive the machine, which gives everything back when it stops: so it is not synced to the disk.
 */

import { createHash } from 'node:crypto';
import { existsSync, writeFileSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { readWhole } from '../supervisor/folder.ts';
import { type Cgroup, removeForgotten } from './cgroup.ts';
import type { Cgroups, GroupLimits } from './cgroups.ts';
import type { GroupPlan } from './group-plan.ts';

export type Reservation = {
  /** As nvidia-smi numbers them. */
  gpus: number[];
  cgroup: Cgroup | null;
};

const FILE = 'holds.json';

export function writeReservation(folder: string, holding: Reservation): void {
  writeFileSync(join(folder, FILE), JSON.stringify(holding), { mode: 0o600 });
}

export async function readReservation(folder: string): Promise<Reservation> {
  const nothing: Reservation = { gpus: [], cgroup: null };
  // One that is cut short was being written when the server was killed, and nothing was taken yet; or a loss of power cut it
  // short, and its machine holds nothing any more.
  return (await readWhole<Reservation>(join(folder, FILE)).catch(() => undefined)) ?? nothing;
}

/** Of every attempt that has a folder in `dir`. */
export async function allReservations(dir: string): Promise<Map<string, Reservation>> {
  const found = new Map<string, Reservation>();
  for (const entry of await readdir(dir, { withFileTypes: true }))
    if (entry.isDirectory() && !entry.name.startsWith('.'))
      found.set(entry.name, await readReservation(join(dir, entry.name)));
  return found;
}

/** The control groups of one server's attempts. */
type Groups = {
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
