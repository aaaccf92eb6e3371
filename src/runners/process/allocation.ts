/**
 * Stores the GPUs and control groups that are allocated to an attempt. The file is written into the attempt's folder before
 * their use and is removed with the folder, so a restarted server knows the allocations before it makes new ones. The file
 * is not synced to the disk, because a stop of the machine releases all allocations.
 */
import { createHash } from 'node:crypto';
import { existsSync, writeFileSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { readJsonFile } from '../supervisor/folder.ts';
import { type Cgroup, type GroupSettings, removeAbandonedGroup } from './cgroup.ts';
import type { Cgroups, GroupLimits } from './cgroups.ts';

export type Allocation = {
  /** Indices on this machine (`../gpus/gpus.ts`). */
  gpus: number[];
  /** Their model; unset without a GPU, and in files of earlier versions. */
  gpu?: string;
  cgroup: Cgroup | null;
};

/** The name of earlier versions, kept because attempts of those versions may be running. */
const FILE = 'holds.json';

export function writeAllocation(folder: string, allocation: Allocation): void {
  writeFileSync(join(folder, FILE), JSON.stringify(allocation), { mode: 0o600 });
}

export async function readAllocation(folder: string): Promise<Allocation> {
  const nothing: Allocation = { gpus: [], cgroup: null };
  // An incomplete file means that the server was killed before it used the allocation, or that the machine lost power.
  return (await readJsonFile<Allocation>(join(folder, FILE)).catch(() => undefined)) ?? nothing;
}

/** Allocations of all attempts with a folder in `dir`. */
export async function readAllAllocations(dir: string): Promise<Map<string, Allocation>> {
  const found = new Map<string, Allocation>();
  for (const entry of await readdir(dir, { withFileTypes: true }))
    if (entry.isDirectory() && !entry.name.startsWith('.'))
      found.set(entry.name, await readAllocation(join(dir, entry.name)));
  return found;
}

/** The control groups of one server's attempts. */
export type AttemptGroups = {
  groupOf(attempt: string): Cgroup;
  settingsOf(group: Cgroup, limits: GroupLimits): GroupSettings;
  /** Groups of attempts whose folder and allocation were removed. Processes may still run in them. */
  findOrphans(keep: ReadonlySet<string>, allocations: Iterable<Allocation>): Cgroup[];
  removeAbandoned(): void;
};

/** @param dir contains the folders of attempts */
export function openAttemptGroups(cgroups: Cgroups, dir: string): AttemptGroups {
  /** Separates the groups of several servers on one machine. */
  const prefix = `${createHash('sha256').update(dir).digest('hex').slice(0, 8)}-`;

  return {
    groupOf: (attempt) => cgroups.groupOf(prefix + attempt),
    settingsOf: cgroups.settingsOf,
    findOrphans(keep, allocations) {
      const allocated = new Set([...allocations].map(({ cgroup }) => cgroup?.folders[0]));
      return cgroups.names().flatMap((name) => {
        const attempt = name.startsWith(prefix) ? name.slice(prefix.length) : '';
        const group = cgroups.groupOf(name);
        const isKnown = attempt === '' || keep.has(attempt) || allocated.has(group.folders[0]);
        return isKnown || existsSync(join(dir, attempt)) ? [] : [group];
      });
    },
    removeAbandoned() {
      for (const name of cgroups.names()) removeAbandonedGroup(cgroups.groupOf(name));
    },
  };
}
