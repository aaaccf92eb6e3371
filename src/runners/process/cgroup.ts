/**
 * The control groups of one attempt: creating them, measuring and listing their processes, and killing all of them.
 *
 * A process cannot leave its group by forking, by `setsid` or by clearing its environment, so killing the group also ends
 * processes that a walk over /proc does not find. Version 2 of the interface has one folder with all controllers, version 1
 * a folder for each controller. No two controllers have a file of the same name, so both versions are read alike: from the
 * first folder that has the file.
 *
 * The shim imports this file, so it imports only Node and a few small files. File access is synchronous, because the kernel
 * answers from memory.
 */
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { signalOne } from '../supervisor/proc.ts';

/** JSON, because it is stored. The folders are absolute paths. */
export type Cgroup = { folders: string[] };

/** The folder that contains the groups of all attempts. It is removed together with the last group. */
export const ATTEMPTS_GROUP = 'loam';

/**
 * The group of the job's processes, below the attempt's own group. The limits are set one level above, because a job that
 * runs as the server's user can mount the hierarchy in namespaces of its own. The job then sees the group that it is in, and
 * could change the files of that group.
 */
const JOB = 'job';

/** How long to wait for killed processes to disappear: a process in the middle of a write to a slow disk dies late. */
const KILL_TIMEOUT_MS = 5_000;

/** The groups of the job's processes: one in each folder of the group. */
function listJobFolders({ folders }: Cgroup): string[] {
  return folders.map((folder) => join(folder, JOB));
}

/** A process joins a group by writing its pid into this file in each of the group's folders. */
const JOB_PROCS = `${JOB}/cgroup.procs`;

export function listJoinFiles({ folders }: Cgroup): string[] {
  return folders.map((folder) => join(folder, JOB_PROCS));
}

/** Memory now, and CPU time since the group was created; null when the kernel does not account for them here. */
export function readGroupUsage(group: Cgroup): { memoryBytes: number; cpuSeconds: number } | null {
  const used = read(group, 'memory.usage_in_bytes') ?? read(group, 'memory.current');
  const nanoseconds = read(group, 'cpuacct.usage');
  const microseconds = /^usage_usec (\d+)/m.exec(read(group, 'cpu.stat') ?? '')?.[1];
  if (used === null || (nanoseconds === null && microseconds === undefined)) return null;
  // The page cache of files that were read does not count: the kernel frees it when memory is needed.
  const stat = read(group, 'memory.stat') ?? '';
  const cached = (/^total_inactive_file (\d+)/m.exec(stat) ??
    /^inactive_file (\d+)/m.exec(stat))?.[1];
  return {
    memoryBytes: Math.max(0, Number(used) - Number(cached ?? 0)),
    cpuSeconds: nanoseconds === null ? Number(microseconds) / 1e6 : Number(nanoseconds) / 1e9,
  };
}

/** Counts processes of the group that the kernel killed because the group had no memory left. */
export function countOomKills(group: Cgroup): number {
  const inEvents = read(group, 'memory.events');
  if (inEvents !== null) return parseOomKills(inEvents);
  // Version 1 counts a kill only for the group of the process, not for the groups above.
  const counting = group.folders.filter((folder) => existsSync(join(folder, 'memory.oom_control')));
  const texts = counting
    .flatMap(listSubtree)
    .map((folder) => readText(join(folder, 'memory.oom_control')) ?? '');
  return texts.reduce((sum, text) => sum + parseOomKills(text), 0);
}

function parseOomKills(text: string): number {
  return Number(/^oom_kill (\d+)/m.exec(text)?.[1] ?? 0);
}

/**
 * Lists the processes in the group, and in groups that they created below it. A process joins the folders in order and leaves
 * none of them while it lives, so a folder is read only when the folders before it are empty.
 */
export function listGroupPids({ folders }: Cgroup): number[] {
  for (const folder of folders) {
    const pids = listSubtree(folder).flatMap((each) =>
      // The kernel shows a process of another pid namespace as 0.
      (readText(join(each, 'cgroup.procs')) ?? '').split('\n').flatMap((pid) => Number(pid) || []),
    );
    if (pids.length > 0) return [...new Set(pids)];
  }
  return [];
}

/** Reads only the folder that processes join first. The caller must have started the only process that joins the group. */
export function hasProcesses({ folders: [first] }: Cgroup): boolean {
  return first !== undefined && listGroupPids({ folders: [first] }).length > 0;
}

/**
 * Kills all processes of the group. None can start in it afterwards.
 * @throws Error when a process still exists after five seconds, because it hangs in the kernel
 */
export async function killGroup(group: Cgroup): Promise<void> {
  for (const deadline = Date.now() + KILL_TIMEOUT_MS; killGroupOnce(group); await delay(5))
    if (Date.now() > deadline)
      throw new Error(`processes do not die: ${listGroupPids(group).slice(0, 10).join(', ')}`);
}

/** Sends one SIGKILL to each process, without waiting. @returns whether the group had processes */
export function killGroupOnce(group: Cgroup): boolean {
  for (const folder of group.folders) {
    // Forks fail from now on, so a fork bomb cannot outrun the kill.
    writeIfOffered(join(folder, 'pids.max'), '0');
    // Version 2 since Linux 5.14: kills all processes at once, also new ones.
    writeIfOffered(join(folder, 'cgroup.kill'), '1');
  }
  const pids = listGroupPids(group);
  for (const pid of pids) signalOne(pid, 'SIGKILL');
  return pids.length > 0;
}

/**
 * Kills the processes of the group and removes it.
 * @throws Error when processes do not die, or the kernel refuses to remove the group
 */
export async function removeGroup(group: Cgroup): Promise<void> {
  // In most cases the shim has removed the group already.
  const folders = group.folders.filter((folder) => existsSync(folder));
  if (folders.length === 0) return;
  for (const folder of folders) {
    // The kernel refuses to remove a group with processes. Trying is faster than listing processes, and most jobs leave no
    // process.
    if (removeEmpty(folder)) continue;
    await killGroup(group);
    for (const deadline = Date.now() + KILL_TIMEOUT_MS; ; await delay(5)) {
      try {
        // The kernel removes only groups without subgroups, so the innermost group is removed first.
        for (const below of listSubtree(folder).reverse()) rmdirSync(below);
        break;
      } catch (error) {
        const { code } = error as NodeJS.ErrnoException;
        if (code === 'ENOENT') break;
        // Dead processes count until their parent has reaped them.
        if (code !== 'EBUSY' || Date.now() > deadline) throw error;
      }
    }
  }
  for (const parent of folders.map((folder) => dirname(folder)))
    if (basename(parent) === ATTEMPTS_GROUP && countSubfolders(parent) === 0) removeFolder(parent);
}

/** @returns whether the group does not exist any more */
function removeEmpty(folder: string): boolean {
  return [join(folder, JOB), folder].every(removeFolder);
}

/** @returns whether the folder does not exist any more; false when it is in use */
function removeFolder(folder: string): boolean {
  try {
    rmdirSync(folder);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'ENOENT';
  }
}

/** Longer than any attempt takes from the creation of its group to the start of its first process. */
const ABANDONED_MS = 60 * 60_000;

/**
 * Removes a group of any server that has no processes and is older than an hour. A server that was killed together with its
 * shims, and whose data folder is gone, cannot remove its own groups.
 */
export function removeAbandonedGroup(group: Cgroup): void {
  const before = Date.now() - ABANDONED_MS;
  try {
    // The modification time is never before the creation of the group.
    if (group.folders.some((folder) => statSync(folder).mtimeMs > before)) return;
    if (listGroupPids(group).length > 0) return;
    // The kernel refuses when there are processes of another pid namespace.
    for (const folder of group.folders)
      for (const below of listSubtree(folder).reverse()) rmdirSync(below);
  } catch {
    // The group is in use, or gone.
  }
}

/** Writes the file if the kernel provides it. In a plain folder, as in tests, `open` would create the file. */
function writeIfOffered(file: string, text: string): void {
  // An exception takes ten times as long as this check, and a group has a dozen files.
  if (!existsSync(file)) return;
  try {
    writeFileSync(file, text, { flag: 'r+' });
  } catch {
    // This controller or this kernel does not have the file.
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
  // Checked for the same reason as in `writeIfOffered`.
  if (!existsSync(file)) return null;
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return null;
  }
}

function listSubtree(folder: string): string[] {
  const found = [folder];
  for (const each of found) {
    const count = countSubfolders(each);
    const hasJob = count !== undefined && count <= 1 && existsSync(join(each, JOB));
    if (hasJob) found.push(join(each, JOB));
    if (hasJob || count === 0) continue;
    try {
      for (const entry of readdirSync(each, { withFileTypes: true }))
        if (entry.isDirectory()) found.push(join(each, entry.name));
    } catch {
      // The folder is gone.
    }
  }
  return found;
}

/**
 * Derives the number from the link count, because each subfolder links to its parent. Listing the dozens of files of a group
 * takes ten times as long. Undefined where subfolders do not count as links, as on btrfs, or when the folder is gone.
 */
function countSubfolders(folder: string): number | undefined {
  const stat = statSync(folder, { throwIfNoEntry: false });
  return stat && stat.nlink >= 2 ? stat.nlink - 2 : undefined;
}

/*
 * Creates the control groups of an attempt with the settings that the server has computed. The shim runs this code, because the
 * kernel creates one group at a time: the eight folders of version 1 with their limits took 3 ms of the server's thread for
 * each job.
 */

/** A file of a group, and the value to write to it. */
export type GroupSetting = [file: string, value: string | number];

/** Settings for each folder of the group, as JSON. `parent`: settings of the group of all attempts, if it must be created. */
export type GroupSettings = { parent: GroupSetting[]; own: GroupSetting[] }[];

/** Creates the missing groups, without limits. @throws Error when the kernel refuses */
export function createGroup(group: Cgroup, settings: GroupSettings): void {
  for (const [i, folder] of group.folders.entries())
    makeFolderInParent(folder, settings[i]?.parent ?? []);
  for (const inner of listJobFolders(group)) makeFolder(inner);
}

/** Sets the limits of the attempt's group. @throws Error when the kernel refuses */
export function applyGroupLimits(group: Cgroup, settings: GroupSettings): void {
  for (const [i, folder] of group.folders.entries())
    for (const setting of settings[i]?.own ?? []) writeSetting(folder, setting);
}

/** Parents whose settings this process has written: path → inode and settings. */
const preparedParents = new Map<string, string>();

/** Creates the parent again if it disappears: the end of another attempt may remove it at any moment. */
function makeFolderInParent(folder: string, settings: readonly GroupSetting[]): void {
  const parent = dirname(folder);
  for (let round = 0; ; round++) {
    try {
      const current = `${statSync(parent, { throwIfNoEntry: false })?.ino} ${settings}`;
      // An existing parent may lack its settings: the process that created it may have been killed before it wrote them.
      if (preparedParents.get(parent) !== current) {
        mkdirSync(parent, { recursive: true });
        for (const setting of settings) writeSetting(parent, setting);
        preparedParents.set(parent, `${statSync(parent).ino} ${settings}`);
      }
      makeFolder(folder);
      return;
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code !== 'ENOENT' || round === 100) throw error;
    }
  }
}

/** The folder may exist already, from a shim that was killed before the start of its attempt. */
function makeFolder(folder: string): void {
  try {
    mkdirSync(folder);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
}

/** Ignores errors of optional settings. */
function writeSetting(folder: string, [file, value]: GroupSetting): void {
  try {
    writeFileSync(join(folder, file), String(value));
  } catch (error) {
    if (!OPTIONAL_SETTINGS.includes(file)) throw error;
  }
}

/** Settings that a kernel or its configuration may lack: swap accounting, hierarchical accounting, CPU shares. */
const OPTIONAL_SETTINGS = [
  'memory.swap.max',
  'memory.memsw.limit_in_bytes',
  'memory.use_hierarchy',
  'cpu.shares',
  'cpu.weight',
];
