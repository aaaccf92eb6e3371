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
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { basename, dirname, join, posix } from 'node:path';
import { promisify } from 'node:util';
import { mountPath } from '../supervisor/folder.ts';
import type { Limits } from '../supervisor/limits.ts';
import { GROUP_SHARES, GROUP_WEIGHT } from '../supervisor/priority.ts';
import { type Cgroup, joinFiles, PARENT, removeGroup } from './cgroup.ts';
import { type GroupPlan, limitGroup, makeGroup, type Setting } from './group-plan.ts';

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
  /** How they are made with these limits. */
  plan(group: Cgroup, limits: GroupLimits): GroupPlan;
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
      const plan = found.plan(probe, tried);
      makeGroup(probe, plan);
      limitGroup(probe, plan);
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
type CgroupPaths = Map<string, string>;

function placesOf(mounts: string, membership: string): CgroupPaths {
  const places: CgroupPaths = new Map();
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
function openVersion2(places: CgroupPaths): Cgroups | null {
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
    plan(_group, limits) {
      const together: Setting[] = [
        ['memory.max', limits.allJobsMemoryBytes],
        ['cpu.weight', GROUP_WEIGHT],
      ];
      const own: Setting[] = [
        ['memory.max', limits.memoryBytes],
        ['memory.swap.max', 0],
        ['cpu.max', `${quotaOf(limits)} ${PERIOD_US}`],
        ['pids.max', limits.processes],
      ];
      return [{ parent: [enabling(controllers), ...offeredOf(together)], own: offeredOf(own) }];
    },
  };

  function offeredOf(settings: Setting[]): Setting[] {
    return settings.filter(([file]) => offered.includes(file.slice(0, file.indexOf('.'))));
  }
}

function enabling(controllers: readonly Controller[]): Setting {
  return ['cgroup.subtree_control', controllers.map((name) => `+${name}`).join(' ')];
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
  const [file, text] = enabling(controllers);
  writeFileSync(join(folder, file), String(text));
}

function openVersion1(places: CgroupPaths): Cgroups | null {
  const controllers = CONTROLLERS.filter((name) => places.has(name));
  if (!controllers.includes('memory') && !controllers.includes('pids')) return null;
  /** `cpuacct` limits nothing; it counts the seconds. Often it is mounted together with `cpu`. */
  const owns = [...new Set([...controllers, 'cpuacct'].flatMap((name) => places.get(name) ?? []))];
  return {
    version: 1,
    controllers,
    groupOf: (name) => ({ folders: owns.map((own) => join(own, PARENT, name)) }),
    names: () => [...new Set(owns.flatMap((own) => foldersIn(join(own, PARENT))))],
    plan: ({ folders }, limits) =>
      folders.map((folder) => {
        const parent: Setting[] = [];
        const own: Setting[] = [];
        const holds = (name: Controller) => dirname(dirname(folder)) === places.get(name);
        if (holds('memory')) {
          // Linux before 5.11 counts the children of a group only when that is switched on.
          parent.push(['memory.use_hierarchy', 1], ...memoryOf(limits.allJobsMemoryBytes));
          own.push(...memoryOf(limits.memoryBytes));
        }
        if (holds('cpu')) {
          parent.push(['cpu.shares', GROUP_SHARES]);
          own.push(['cpu.cfs_period_us', PERIOD_US], ['cpu.cfs_quota_us', quotaOf(limits)]);
        }
        if (holds('pids')) own.push(['pids.max', limits.processes]);
        return { parent, own };
      }),
  };
}

/** The second is of memory and swap together. */
function memoryOf(bytes: number): Setting[] {
  return [
    ['memory.limit_in_bytes', bytes],
    ['memory.memsw.limit_in_bytes', bytes],
  ];
}

function quotaOf({ cpus }: GroupLimits): number {
  return Math.round(cpus * PERIOD_US);
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
