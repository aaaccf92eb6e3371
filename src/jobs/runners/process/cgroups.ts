/**
 * Where control groups for attempts can be made, and making them.
 *
 * They are made below the group that this server is in, so what its operator allows the server holds for its
 * jobs too. That takes root, or a group that was delegated to our user (systemd: `Delegate=yes`).
 *
 *   <own>/loam-server       version 2 only: the server's processes. A group that shares its controllers out
 *                           must have no process of its own.
 *   <own>/loam/<attempt>    one for each attempt with its limits, made before its start and removed after its end
 *   <own>/loam/<attempt>/job  the processes of the job
 */
import { execFile } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { basename, dirname, join, posix } from 'node:path';
import { promisify } from 'node:util';
import { type Cgroup, foldersOfJob, joinFiles, PARENT, removeGroup } from './cgroup.ts';
import type { Limits } from './limits.ts';
import { mountPath } from './mounts.ts';
import { GROUP_SHARES, GROUP_WEIGHT } from './priority.ts';

export const CONTROLLERS = ['memory', 'cpu', 'pids'] as const;
export type Controller = (typeof CONTROLLERS)[number];

const SERVER = 'loam-server';
/** Of `cpu.cfs_period_us` and `cpu.max`. */
const PERIOD_US = 100_000;

export type GroupLimits = Pick<Limits, 'memoryBytes' | 'allJobsMemoryBytes' | 'cpus' | 'processes'>;

export type Cgroups = {
  version: 1 | 2;
  /** The limits that can be set here. */
  controllers: Controller[];
  /** The groups that an attempt of that name has or would have: to be stored before they are made. */
  groupOf(name: string): Cgroup;
  /** The names of all that exist, of other servers on this machine too. */
  names(): string[];
  /** Makes them. @throws Error when the kernel refuses. */
  create(group: Cgroup, limits: GroupLimits): void;
};

/** What the kernel shows about this process. */
export type Hierarchy = {
  /** As in /proc/self/mountinfo. */
  mounts: string;
  /** As in /proc/self/cgroup. */
  membership: string;
};

/**
 * The control groups that can be made here, or why there are none. One with the limits of `tried` is made, joined
 * and removed, as permissions and kernels differ in more ways than can be asked for.
 */
export async function findCgroups(tried: GroupLimits): Promise<Cgroups | { missing: string }> {
  if (process.platform !== 'linux') return { missing: 'control groups exist on Linux alone' };
  try {
    const found = openCgroups({
      mounts: readFileSync('/proc/self/mountinfo', 'utf8'),
      membership: readFileSync('/proc/self/cgroup', 'utf8'),
    });
    if (!found) return { missing: 'no control groups with memory or pids are mounted' };
    const probe = found.groupOf(`probe-${process.pid}-${Date.now()}`);
    try {
      found.create(probe, tried);
      await promisify(execFile)('/bin/sh', [
        '-c',
        'for f; do echo 0 > "$f" || exit 1; done',
        'sh',
        ...joinFiles(probe),
      ]);
    } finally {
      await removeGroup(probe);
    }
    return found;
  } catch (error) {
    return { missing: `control groups cannot be made here (${(error as Error).message})` };
  }
}

/**
 * What a hierarchy offers, without trying it; null when that is neither memory nor pids.
 * @throws Error when we may not make groups in it.
 */
export function openCgroups({ mounts, membership }: Hierarchy): Cgroups | null {
  const places = placesOf(mounts, membership);
  return openVersion2(places) ?? openVersion1(places);
}

/** Our own folder in each mounted hierarchy, by its controller; version 2 is under ''. */
type Places = Map<string, string>;

function placesOf(mounts: string, membership: string): Places {
  const places: Places = new Map();
  const own = new Map<string, string>();
  for (const line of membership.trim().split('\n')) {
    const [, controllers = '', ...path] = line.split(':');
    for (const name of controllers.split(',')) own.set(name, path.join(':'));
  }
  for (const line of mounts.trim().split('\n')) {
    const [before = '', after = ''] = line.split(' - ');
    const [, , , root = '/', mountedAt = ''] = before.split(' ').map(mountPath);
    const [type, , options = ''] = after.split(' ');
    const names = type === 'cgroup2' ? [''] : type === 'cgroup' ? options.split(',') : [];
    for (const name of names) {
      const path = own.get(name);
      if (path === undefined || places.has(name)) continue;
      // In a container the mount may begin at our own group.
      const below = posix.relative(root, path);
      places.set(name, below.startsWith('..') ? mountedAt : join(mountedAt, below));
    }
  }
  return places;
}

/** Null when the unified hierarchy does not offer what we need: `hybrid` machines keep it in version 1. */
function openVersion2(places: Places): Cgroups | null {
  const place = places.get('');
  if (place === undefined) return null;
  const own = basename(place) === SERVER ? dirname(place) : place;
  const offered = readFileSync(join(own, 'cgroup.controllers'), 'utf8').trim().split(/\s+/);
  const controllers = CONTROLLERS.filter((name) => offered.includes(name));
  if (!controllers.includes('memory') && !controllers.includes('pids')) return null;
  shareOut(own, controllers);

  const parent = join(own, PARENT);
  return {
    version: 2,
    controllers,
    groupOf: (name) => ({ folders: [join(parent, name)] }),
    names: () => foldersIn(parent),
    create(group, limits) {
      const [folder = ''] = group.folders;
      makeBelow(folder, limits, () => {
        enable(parent, controllers);
        set(parent, 'memory.max', limits.allJobsMemoryBytes);
        set(parent, 'cpu.weight', GROUP_WEIGHT);
      });
      set(folder, 'memory.max', limits.memoryBytes);
      set(folder, 'memory.swap.max', 0);
      set(folder, 'cpu.max', `${quotaOf(limits)} ${PERIOD_US}`);
      set(folder, 'pids.max', limits.processes);
      for (const inner of foldersOfJob(group)) mkdirSync(inner);
    },
  };

  function set(folder: string, file: string, value: number | string): void {
    if (offered.includes(file.slice(0, file.indexOf('.')))) setLimit(join(folder, file), value);
  }
}

/** Lets the groups below have the controllers. The root alone may do that and hold processes too. */
function shareOut(own: string, controllers: readonly Controller[]): void {
  const isRoot = readOr(join(own, 'cgroup.type'), null) === null;
  if (!isRoot) {
    const server = join(own, SERVER);
    mkdirSync(server, { recursive: true });
    // Again for what was forked meanwhile.
    for (let round = 0; round < 10; round++) {
      const pids = (readOr(join(own, 'cgroup.procs'), '') ?? '').split('\n').filter(Boolean);
      if (pids.length === 0) break;
      for (const pid of pids)
        tryTo(() => writeFileSync(join(server, 'cgroup.procs'), pid, { flag: 'a' }));
    }
  }
  enable(own, controllers);
}

function enable(folder: string, controllers: readonly Controller[]): void {
  const text = controllers.map((name) => `+${name}`).join(' ');
  writeFileSync(join(folder, 'cgroup.subtree_control'), text);
}

function openVersion1(places: Places): Cgroups | null {
  const controllers = CONTROLLERS.filter((name) => places.has(name));
  if (!controllers.includes('memory') && !controllers.includes('pids')) return null;
  /** `cpuacct` limits nothing; it counts the seconds. Often it is mounted together with `cpu`. */
  const owns = [...new Set([...controllers, 'cpuacct'].flatMap((name) => places.get(name) ?? []))];
  return {
    version: 1,
    controllers,
    groupOf: (name) => ({ folders: owns.map((own) => join(own, PARENT, name)) }),
    names: () => [...new Set(owns.flatMap((own) => foldersIn(join(own, PARENT))))],
    create(group, limits) {
      for (const folder of group.folders) {
        const memory = dirname(dirname(folder)) === places.get('memory');
        const cpu = dirname(dirname(folder)) === places.get('cpu');
        makeBelow(folder, limits, () => {
          // Linux before 5.11 counts the children of a group only when that is switched on.
          if (memory) setLimit(join(dirname(folder), 'memory.use_hierarchy'), 1);
          if (memory) setMemory(dirname(folder), limits.allJobsMemoryBytes);
          if (cpu) setLimit(join(dirname(folder), 'cpu.shares'), GROUP_SHARES);
        });
        if (memory) setMemory(folder, limits.memoryBytes);
        if (cpu) {
          setLimit(join(folder, 'cpu.cfs_period_us'), PERIOD_US);
          setLimit(join(folder, 'cpu.cfs_quota_us'), quotaOf(limits));
        }
        if (dirname(dirname(folder)) === places.get('pids'))
          setLimit(join(folder, 'pids.max'), limits.processes);
      }
      for (const inner of foldersOfJob(group)) mkdirSync(inner);
    },
  };

  function setMemory(folder: string, bytes: number): void {
    setLimit(join(folder, 'memory.limit_in_bytes'), bytes);
    // Memory and swap together.
    setLimit(join(folder, 'memory.memsw.limit_in_bytes'), bytes);
  }
}

/** Without what a kernel or its configuration may lack: swap accounting, hierarchies that can be switched, shares. */
function setLimit(file: string, value: number | string): void {
  try {
    writeFileSync(file, String(value));
  } catch (error) {
    if (!OPTIONAL.includes(basename(file))) throw error;
  }
}

const OPTIONAL = [
  ...['memory.swap.max', 'memory.memsw.limit_in_bytes', 'memory.use_hierarchy'],
  ...['cpu.shares', 'cpu.weight'],
];

function quotaOf({ cpus }: GroupLimits): number {
  return Math.round(cpus * PERIOD_US);
}

/** Parents that this process has given their limits: which folder it was, and which limits. */
const prepared = new Map<string, string>();

/** The parent may be removed by the end of another attempt at any moment: then it is made again. */
function makeBelow(
  folder: string,
  { allJobsMemoryBytes }: GroupLimits,
  prepareParent: () => void,
): void {
  const parent = dirname(folder);
  for (let round = 0; ; round++) {
    try {
      const known = `${statSync(parent, { throwIfNoEntry: false })?.ino} ${allJobsMemoryBytes}`;
      // Who made it may have been killed before it had its limits.
      if (prepared.get(parent) !== known) {
        mkdirSync(parent, { recursive: true });
        prepareParent();
        prepared.set(parent, `${statSync(parent).ino} ${allJobsMemoryBytes}`);
      }
      mkdirSync(folder);
      return;
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code !== 'ENOENT' || round === 100) throw error;
    }
  }
}

function foldersIn(folder: string): string[] {
  try {
    const entries = readdirSync(folder, { withFileTypes: true });
    return entries.flatMap((entry) => (entry.isDirectory() ? [entry.name] : []));
  } catch {
    // It is made with the first group.
    return [];
  }
}

function readOr<T>(file: string, fallback: T): string | T {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return fallback;
  }
}

function tryTo(step: () => void): void {
  try {
    step();
  } catch {
    // The kernel does not offer it, or the process is gone.
  }
}
