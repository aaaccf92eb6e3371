/**
 * What an attempt holds of this machine beside its folder: GPUs and control groups. It stands in the folder
 * before it is taken and goes with it, so a server that starts again finds what is held before it takes anything.
 * It need not outlive the machine, which gives everything back when it stops: so it is not synced to the disk.
 */
import { writeFileSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { readWhole } from '../supervisor/folder.ts';
import type { Cgroup } from './cgroup.ts';

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
