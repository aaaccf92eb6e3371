/**
 * Finds out where control groups can be created, and plans the groups of attempts.
 *
 * Groups are created below the group of this server, so limits that the operator sets for the server include its jobs. This
 * requires root, or a group that is delegated to the server's user (systemd: `Delegate=yes`).
 *
 *   <own>/loam-server         version 2 only: the server's processes. A group that delegates controllers to the groups
 *                             below it must not have processes of its own.
 *   <own>/loam/<attempt>      the limits of an attempt; created before its start, removed after its end
 *   <own>/loam/<attempt>/job  the processes of the job
 */
import { execFile } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { basename, dirname, join, posix } from 'node:path';
import { promisify } from 'node:util';
import { unescapeMountPath } from '../supervisor/folder.ts';
import type { JobLimits } from '../supervisor/limits.ts';
import { GROUP_SHARES, GROUP_WEIGHT } from '../supervisor/priority.ts';
import {
  ATTEMPTS_GROUP,
  applyGroupLimits,
  type Cgroup,
  createGroup,
  type GroupSetting,
  type GroupSettings,
  listJoinFiles,
  removeGroup,
} from './cgroup.ts';

const CONTROLLERS = ['memory', 'cpu', 'pids'] as const;
export type Controller = (typeof CONTROLLERS)[number];

const SERVER_GROUP = 'loam-server';
/** The period of `cpu.cfs_period_us` and `cpu.max`. */
const PERIOD_US = 100_000;

export type GroupLimits = Pick<
  JobLimits,
  'memoryBytes' | 'allJobsMemoryBytes' | 'cpus' | 'processes'
>;

export type Cgroups = {
  version: 1 | 2;
  /** The controllers whose limits can be set here. */
  controllers: Controller[];
  /** The folders for an attempt of this name, without creating them. */
  groupOf(name: string): Cgroup;
  /** The names of all existing groups, including those of other servers on this machine. */
  names(): string[];
  /** Returns the settings that give a group these limits. */
  settingsOf(group: Cgroup, limits: GroupLimits): GroupSettings;
};

/** The hierarchies and groups that the kernel shows to this process. */
type Hierarchy = {
  /** The text of /proc/self/mountinfo. */
  mounts: string;
  /** The text of /proc/self/cgroup. */
  membership: string;
};

/**
 * Tests whether control groups can be created here: permissions and kernels differ in more ways than can be checked, so a
 * group with the limits `trial` is created, joined and removed.
 * @returns `missing`: why no group can be created
 */
export async function findCgroups(trial: GroupLimits): Promise<Cgroups | { missing: string }> {
  if (process.platform !== 'linux') return { missing: 'control groups exist on Linux only' };
  try {
    const found = openCgroups({
      mounts: readFileSync('/proc/self/mountinfo', 'utf8'),
      membership: readFileSync('/proc/self/cgroup', 'utf8'),
    });
    if (!found) return { missing: 'no control groups with memory or pids are mounted' };
    const probe = found.groupOf(`probe-${process.pid}-${Date.now()}`);
    try {
      const settings = found.settingsOf(probe, trial);
      createGroup(probe, settings);
      applyGroupLimits(probe, settings);
      await promisify(execFile)('/bin/sh', [
        '-c',
        'for f; do echo 0 > "$f" || exit 1; done',
        'sh',
        ...listJoinFiles(probe),
      ]);
    } finally {
      await removeGroup(probe);
    }
    return found;
  } catch (error) {
    return { missing: `control groups cannot be created here (${(error as Error).message})` };
  }
}

/**
 * Reads which controllers a hierarchy has, without testing them; null when it has neither memory nor pids.
 * @throws Error when groups cannot be created in it
 */
export function openCgroups({ mounts, membership }: Hierarchy): Cgroups | null {
  const ownFolders = findOwnFolders(mounts, membership);
  return openVersion2(ownFolders) ?? openVersion1(ownFolders);
}

/** The folder of this process in each mounted hierarchy, by controller; version 2 has the key ''. */
type CgroupPaths = Map<string, string>;

function findOwnFolders(mounts: string, membership: string): CgroupPaths {
  const found: CgroupPaths = new Map();
  const own = new Map<string, string>();
  for (const line of membership.trim().split('\n')) {
    const [, controllers = '', ...path] = line.split(':');
    for (const name of controllers.split(',')) own.set(name, path.join(':'));
  }
  for (const line of mounts.trim().split('\n')) {
    const [before = '', after = ''] = line.split(' - ');
    const [, , , root = '/', mountedAt = ''] = before.split(' ').map(unescapeMountPath);
    const [type, , options = ''] = after.split(' ');
    const names = type === 'cgroup2' ? [''] : type === 'cgroup' ? options.split(',') : [];
    for (const name of names) {
      const path = own.get(name);
      if (path === undefined || found.has(name)) continue;
      // In a container the mount may begin at the group of this process.
      const below = posix.relative(root, path);
      found.set(name, below.startsWith('..') ? mountedAt : join(mountedAt, below));
    }
  }
  return found;
}

/** Null when the unified hierarchy lacks the controllers, as on `hybrid` machines, which have them in version 1. */
function openVersion2(ownFolders: CgroupPaths): Cgroups | null {
  const current = ownFolders.get('');
  if (current === undefined) return null;
  const own = basename(current) === SERVER_GROUP ? dirname(current) : current;
  const offered = readFileSync(join(own, 'cgroup.controllers'), 'utf8').trim().split(/\s+/);
  const controllers = CONTROLLERS.filter((name) => offered.includes(name));
  if (!controllers.includes('memory') && !controllers.includes('pids')) return null;
  delegateControllers(own, controllers);

  const parent = join(own, ATTEMPTS_GROUP);
  return {
    version: 2,
    controllers,
    groupOf: (name) => ({ folders: [join(parent, name)] }),
    names: () => listFolders(parent),
    settingsOf(_group, limits) {
      const allJobs: GroupSetting[] = [
        ['memory.max', limits.allJobsMemoryBytes],
        ['cpu.weight', GROUP_WEIGHT],
      ];
      const own: GroupSetting[] = [
        ['memory.max', limits.memoryBytes],
        ['memory.swap.max', 0],
        ['cpu.max', `${cpuQuota(limits)} ${PERIOD_US}`],
        ['pids.max', limits.processes],
      ];
      const allJobsSettings = [enableSetting(controllers), ...keepOffered(allJobs)];
      return [{ parent: allJobsSettings, own: keepOffered(own) }];
    },
  };

  function keepOffered(settings: GroupSetting[]): GroupSetting[] {
    return settings.filter(([file]) => offered.includes(file.slice(0, file.indexOf('.'))));
  }
}

function enableSetting(controllers: readonly Controller[]): GroupSetting {
  return ['cgroup.subtree_control', controllers.map((name) => `+${name}`).join(' ')];
}

/** Delegates the controllers to the groups below. Only the root group may do so while it has processes. */
function delegateControllers(own: string, controllers: readonly Controller[]): void {
  const isRoot = readOr(join(own, 'cgroup.type'), null) === null;
  if (!isRoot) {
    const server = join(own, SERVER_GROUP);
    mkdirSync(server, { recursive: true });
    // Rounds are repeated for processes that were forked meanwhile.
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
  const [file, text] = enableSetting(controllers);
  writeFileSync(join(folder, file), String(text));
}

function openVersion1(ownFolders: CgroupPaths): Cgroups | null {
  const controllers = CONTROLLERS.filter((name) => ownFolders.has(name));
  if (!controllers.includes('memory') && !controllers.includes('pids')) return null;
  // `cpuacct` counts CPU seconds and limits nothing. Often it is mounted together with `cpu`.
  const names = [...controllers, 'cpuacct'];
  const owns = [...new Set(names.flatMap((name) => ownFolders.get(name) ?? []))];
  return {
    version: 1,
    controllers,
    groupOf: (name) => ({ folders: owns.map((own) => join(own, ATTEMPTS_GROUP, name)) }),
    names: () => [...new Set(owns.flatMap((own) => listFolders(join(own, ATTEMPTS_GROUP))))],
    settingsOf: ({ folders }, limits) =>
      folders.map((folder) => {
        const parent: GroupSetting[] = [];
        const own: GroupSetting[] = [];
        const holds = (name: Controller) => dirname(dirname(folder)) === ownFolders.get(name);
        if (holds('memory')) {
          // Before Linux 5.11 a group counts the groups below it only with this setting.
          parent.push(['memory.use_hierarchy', 1], ...memorySettings(limits.allJobsMemoryBytes));
          own.push(...memorySettings(limits.memoryBytes));
        }
        if (holds('cpu')) {
          parent.push(['cpu.shares', GROUP_SHARES]);
          own.push(['cpu.cfs_period_us', PERIOD_US], ['cpu.cfs_quota_us', cpuQuota(limits)]);
        }
        if (holds('pids')) own.push(['pids.max', limits.processes]);
        return { parent, own };
      }),
  };
}

/** The second setting limits memory and swap together. */
function memorySettings(bytes: number): GroupSetting[] {
  return [
    ['memory.limit_in_bytes', bytes],
    ['memory.memsw.limit_in_bytes', bytes],
  ];
}

function cpuQuota({ cpus }: GroupLimits): number {
  return Math.round(cpus * PERIOD_US);
}

function listFolders(folder: string): string[] {
  try {
    const entries = readdirSync(folder, { withFileTypes: true });
    return entries.flatMap((entry) => (entry.isDirectory() ? [entry.name] : []));
  } catch {
    // The folder is created with the first group.
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
    // The kernel does not provide the file, or the process is gone.
  }
}
