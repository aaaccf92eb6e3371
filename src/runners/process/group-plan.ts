/**
 * Making the control groups of an attempt, as the server has planned them: by the attempt's shim, since the kernel makes one
 * at a time, and the eight folders of version 1 with their limits took 3 ms of the server's thread for each job.
 *
 * Imports nothing but Node and the files beside it: the shim does.
 */
import { mkdirSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { type Cgroup, foldersOfJob } from './cgroup.ts';

/** A file of a group, and what is written to it. */
export type Setting = [file: string, value: string | number];

/** For each folder of the group, as JSON. `parent`: of the group of all attempts, if that has to be made. */
export type GroupPlan = { parent: Setting[]; own: Setting[] }[];

/** Makes those that are not there yet, without limits of their own. @throws Error when the kernel refuses. */
export function makeGroup(group: Cgroup, plan: GroupPlan): void {
  for (const [i, folder] of group.folders.entries()) makeBelow(folder, plan[i]?.parent ?? []);
  for (const inner of foldersOfJob(group)) makeFolder(inner);
}

/** Gives those that were made their limits. @throws Error when the kernel refuses. */
export function limitGroup(group: Cgroup, plan: GroupPlan): void {
  for (const [i, folder] of group.folders.entries())
    for (const setting of plan[i]?.own ?? []) set(folder, setting);
}

/** Parents that this process has given their limits: which folder it was, and which limits. */
const prepared = new Map<string, string>();

/** The parent may be removed by the end of another attempt at any moment: then it is made again. */
function makeBelow(folder: string, settings: readonly Setting[]): void {
  const parent = dirname(folder);
  for (let round = 0; ; round++) {
    try {
      const known = `${statSync(parent, { throwIfNoEntry: false })?.ino} ${settings}`;
      // Who made it may have been killed before it had its limits.
      if (prepared.get(parent) !== known) {
        mkdirSync(parent, { recursive: true });
        for (const setting of settings) set(parent, setting);
        prepared.set(parent, `${statSync(parent).ino} ${settings}`);
      }
      makeFolder(folder);
      return;
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code !== 'ENOENT' || round === 100) throw error;
    }
  }
}

/** It may be there: a shim that was killed before the start of its attempt leaves it to the next. */
function makeFolder(folder: string): void {
  try {
    mkdirSync(folder);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
}

/** Without what a kernel or its configuration may lack: swap accounting, hierarchies that can be switched, shares. */
function set(folder: string, [file, value]: Setting): void {
  try {
    writeFileSync(join(folder, file), String(value));
  } catch (error) {
    if (!OPTIONAL.includes(file)) throw error;
  }
}

const OPTIONAL = [
  'memory.swap.max',
  'memory.memsw.limit_in_bytes',
  'memory.use_hierarchy',
  'cpu.shares',
  'cpu.weight',
];
