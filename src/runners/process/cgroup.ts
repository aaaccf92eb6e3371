/**
 * The control groups of one attempt: what its processes use, which they are, and killing all of them at once.
 *
 * A process cannot leave its group by forking, by `setsid` or by clearing its environment, so killing the group
 * ends what a walk over /proc does not find. Version 2 of the interface has one folder with all controllers,
 * version 1 a folder for each; as no two controllers have a file of the same name, both are read alike: the
 * first folder that has the file.
 *
 * Files are read and written synchronously: they are answered by the kernel out of memory, and the shim
 * imports this.
 */
import { existsSync, readdirSync, readFileSync, rmdirSync, statSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { signalOne } from '../supervisor/proc.ts';

/** JSON, so that it can be stored. The folders are absolute paths; we make nothing in them but the groups. */
export type Cgroup = { folders: string[] };

/** The folder that holds the groups of all attempts. It is removed with the last of them. */
export const PARENT = 'loam';

/**
 * The group below an attempt's own, which the job's processes are in. The limits stand one level above, because a
 * job with the server's own user can mount the hierarchy in namespaces of its own: what it then sees begins with the
 * group that it is in, whose files belong to its user.
 */
const JOB = 'job';

/** How long killed processes may take to be gone: one in the middle of a write to a slow disk needs some. */
const KILL_MS = 5_000;

/** Where the processes of the job are: one folder in each folder of the group. */
export function foldersOfJob({ folders }: Cgroup): string[] {
  return folders.map((folder) => join(folder, JOB));
}

/** In each folder of a group. A process that writes its pid into all of them has joined it. */
export const JOB_PROCS = `${JOB}/cgroup.procs`;

export function joinFiles({ folders }: Cgroup): string[] {
  return folders.map((folder) => join(folder, JOB_PROCS));
}

/** Bytes and seconds since the group was made; null when the kernel does not account for them here. */
export function usageOfGroup(group: Cgroup): { memoryBytes: number; cpuSeconds: number } | null {
  const used = read(group, 'memory.usage_in_bytes') ?? read(group, 'memory.current');
  const nanoseconds = read(group, 'cpuacct.usage');
  const microseconds = /^usage_usec (\d+)/m.exec(read(group, 'cpu.stat') ?? '')?.[1];
  if (used === null || (nanoseconds === null && microseconds === undefined)) return null;
  // Files that were read stay in memory until it is wanted for something else: that is not in use.
  const stat = read(group, 'memory.stat') ?? '';
  const cached = (/^total_inactive_file (\d+)/m.exec(stat) ??
    /^inactive_file (\d+)/m.exec(stat))?.[1];
  return {
    memoryBytes: Math.max(0, Number(used) - Number(cached ?? 0)),
    cpuSeconds: nanoseconds === null ? Number(microseconds) / 1e6 : Number(nanoseconds) / 1e9,
  };
}

/** How many processes of the group the kernel killed because there was no memory left for it. */
export function oomKills(group: Cgroup): number {
  const inEvents = read(group, 'memory.events');
  if (inEvents !== null) return oomKillsIn(inEvents);
  // Version 1 counts them for the group that the process was in, and not for those above.
  const counting = group.folders.filter((folder) => existsSync(join(folder, 'memory.oom_control')));
  const texts = counting
    .flatMap(withFoldersBelow)
    .map((folder) => readText(join(folder, 'memory.oom_control')) ?? '');
  return texts.reduce((sum, text) => sum + oomKillsIn(text), 0);
}

function oomKillsIn(text: string): number {
  return Number(/^oom_kill (\d+)/m.exec(text)?.[1] ?? 0);
}

/**
 * The processes in the group, and in groups that they made below it. A process joins the folders in their order and leaves
 * none while it lives: so the others are looked at only where nothing is in the first.
 */
export function pidsOf({ folders }: Cgroup): number[] {
  for (const folder of folders) {
    const pids = withFoldersBelow(folder).flatMap((each) =>
      // A process of another pid namespace is shown as 0.
      (readText(join(each, 'cgroup.procs')) ?? '').split('\n').flatMap((pid) => Number(pid) || []),
    );
    if (pids.length > 0) return [...new Set(pids)];
  }
  return [];
}

/** By the folder that its processes join first, and leave when they end. To be asked by whoever has started the only one. */
export function hasProcesses({ folders: [first] }: Cgroup): boolean {
  return first !== undefined && pidsOf({ folders: [first] }).length > 0;
}

/**
 * Kills everything in the group. Nothing can start in it afterwards.
 * @throws Error when something is still there after five seconds: it hangs in the kernel.
 */
export async function killGroup(group: Cgroup): Promise<void> {
  for (const deadline = Date.now() + KILL_MS; killOnce(group); await delay(5))
    if (Date.now() > deadline)
      throw new Error(`processes do not die: ${pidsOf(group).slice(0, 10).join(', ')}`);
}

/** One round, without waiting. Returns whether there was anything to kill. */
export function killOnce(group: Cgroup): boolean {
  for (const folder of group.folders) {
    // A fork fails from now on, so a bomb that forks while we walk comes to an end.
    put(join(folder, 'pids.max'), '0');
    // Version 2 since Linux 5.14: all at once, also what is forked meanwhile.
    put(join(folder, 'cgroup.kill'), '1');
  }
  const pids = pidsOf(group);
  for (const pid of pids) signalOne(pid, 'SIGKILL');
  return pids.length > 0;
}

/**
 * Kills what is in the group and removes it.
 * @throws Error when processes do not die, or the kernel keeps the group.
 */
export async function removeGroup(group: Cgroup): Promise<void> {
  // Removed by its shim, as most are when the server comes to it.
  const folders = group.folders.filter((folder) => existsSync(folder));
  if (folders.length === 0) return;
  for (const folder of folders) {
    // The kernel removes none that has processes. Most jobs leave none, and looking for them takes longer.
    if (removeEmpty(folder)) continue;
    await killGroup(group);
    for (const deadline = Date.now() + KILL_MS; ; await delay(5)) {
      try {
        // The innermost first.
        for (const below of withFoldersBelow(folder).reverse()) rmdirSync(below);
        break;
      } catch (error) {
        const { code } = error as NodeJS.ErrnoException;
        if (code === 'ENOENT') break;
        // Dead processes count until they have been waited for.
        if (code !== 'EBUSY' || Date.now() > deadline) throw error;
      }
    }
  }
  for (const parent of folders.map((folder) => dirname(folder)))
    if (basename(parent) === PARENT && foldersIn(parent) === 0) removeFolder(parent);
}

/** Leaves it where anything is in it; a process joins its folders in their order. */
export function removeIfEmpty({ folders }: Cgroup): void {
  folders.every(removeEmpty);
}

/** @returns whether it is gone, perhaps before */
function removeEmpty(folder: string): boolean {
  return [join(folder, JOB), folder].every(removeFolder);
}

/** @returns whether it is gone, perhaps before; not when something is in it */
function removeFolder(folder: string): boolean {
  try {
    rmdirSync(folder);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'ENOENT';
  }
}

/** Longer than any attempt takes from its group to its first process in it. */
const FORGOTTEN_MS = 60 * 60_000;

/**
 * Removes a group in which nothing has run for an hour, whoever made it: a server that was killed together with its
 * shims, and whose data folder is gone, removes none of them any more. No other group is touched.
 */
export function removeForgotten(group: Cgroup): void {
  const before = Date.now() - FORGOTTEN_MS;
  try {
    // The kernel shows no time before that at which the group was made.
    if (group.folders.some((folder) => statSync(folder).mtimeMs > before)) return;
    if (pidsOf(group).length > 0) return;
    // It refuses where there are processes of another pid namespace.
    for (const folder of group.folders)
      for (const below of withFoldersBelow(folder).reverse()) rmdirSync(below);
  } catch {
    // In use, or gone.
  }
}

/** Only where the kernel offers the file: `open` would not make one in its hierarchy, but in a folder it would. */
function put(file: string, text: string): void {
  // An error takes ten times as long as this look, and a group has a dozen of them.
  if (!existsSync(file)) return;
  try {
    writeFileSync(file, text, { flag: 'r+' });
  } catch {
    // This controller or this kernel does not have it.
  }
}

function read({ folders }: Cgroup, name: string): string | null {
  for (const folder of folders) {
    const text = readText(join(folder, name));
    if (text !== null) return text;
  }
  return null;
}

function readText(file: string): string | null {
  // As in `put`.
  if (!existsSync(file)) return null;
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return null;
  }
}

function withFoldersBelow(folder: string): string[] {
  const found = [folder];
  for (const each of found) {
    const count = foldersIn(each);
    const hasJob = count !== undefined && count <= 1 && existsSync(join(each, JOB));
    if (hasJob) found.push(join(each, JOB));
    if (hasJob || count === 0) continue;
    try {
      for (const entry of readdirSync(each, { withFileTypes: true }))
        if (entry.isDirectory()) found.push(join(each, entry.name));
    } catch {
      // It is gone.
    }
  }
  return found;
}

/**
 * How many, by the links to it that each of them has. The files of a group are dozens, so to read their names takes ten times
 * as long. Undefined where folders are no links, as on btrfs, or when it is gone.
 */
function foldersIn(folder: string): number | undefined {
  const stat = statSync(folder, { throwIfNoEntry: false });
  return stat && stat.nlink >= 2 ? stat.nlink - 2 : undefined;
}
