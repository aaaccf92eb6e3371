/**
 * Stores the GPUs and control groups that an attempt has reserved. The record is written into the attempt's folder before
 * their use and is removed with the folder, so a restarted server knows the reservations before it makes new ones. The record
 * is not synced to the disk, because a stop of the machine releases all reservations.
 */
import { createHash } from 'node:crypto';
import { existsSync, writeFileSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { readJsonFile } from '../supervisor/folder.ts';
import { type Cgroup, type GroupPlan, removeAbandonedGroup } from './cgroup.ts';
import type { Cgroups, GroupLimits } from './cgroups.ts';

export type Reservation = {
  /** Indices as nvidia-smi numbers them. */
  gpus: number[];
  cgroup: Cgroup | null;
};

const FILE = 'holds.json';

export function writeReservation(folder: string, reservation: Reservation): void {
  writeFileSync(join(folder, FILE), JSON.stringify(reservation), { mode: 0o600 });
}

export async function readReservation(folder: string): Promise<Reservation> {
  const nothing: Reservation = { gpus: [], cgroup: null };
  // An incomplete file means that the server was killed before it used the reservation, or that the machine lost power.
  return (await readJsonFile<Reservation>(join(folder, FILE)).catch(() => undefined)) ?? nothing;
}

/** Reservations of all attempts with a folder in `dir`. */
export async function readAllReservations(dir: string): Promise<Map<string, Reservation>> {
  const found = new Map<string, Reservation>();
  for (const entry of await readdir(dir, { withFileTypes: true }))
    if (entry.isDirectory() && !entry.name.startsWith('.'))
      found.set(entry.name, await readReservation(join(dir, entry.name)));
  return found;
}

/** The control groups of one server's attempts. */
export type AttemptGroups = {
  groupOf(attempt: string): Cgroup;
  plan(group: Cgroup, limits: GroupLimits): GroupPlan;
  /** Groups of attempts whose folder and reservation were removed. Processes may still run in them. */
  findOrphans(keep: ReadonlySet<string>, reservations: Iterable<Reservation>): Cgroup[];
  removeAbandoned(): void;
};

/** @param dir contains the folders of attempts */
export function openAttemptGroups(cgroups: Cgroups, dir: string): AttemptGroups {
  /** Separates the groups of several servers on one machine. */
  const prefix = `${createHash('sha256').update(dir).digest('hex').slice(0, 8)}-`;

  return {
    groupOf: (attempt) => cgroups.groupOf(prefix + attempt),
    plan: cgroups.plan,
    findOrphans(keep, reservations) {
      const reserved = new Set([...reservations].map(({ cgroup }) => cgroup?.folders[0]));
      return cgroups.names().flatMap((name) => {
        const attempt = name.startsWith(prefix) ? name.slice(prefix.length) : '';
        const group = cgroups.groupOf(name);
        const isKnown = attempt === '' || keep.has(attempt) || reserved.has(group.folders[0]);
        return isKnown || existsSync(join(dir, attempt)) ? [] : [group];
      });
    },
    removeAbandoned() {
      for (const name of cgroups.names()) removeAbandonedGroup(cgroups.groupOf(name));
    },
  };
}
