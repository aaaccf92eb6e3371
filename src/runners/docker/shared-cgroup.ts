/**
 * A control group that all containers of this server are in, with the memory that the machine has for jobs. Several
 * that asked for more than the machine has share it: each may use all of it, and together they would take the server's.
 * Of the processors they have half of the server's share together, as processes have (`../supervisor/priority.ts`).
 *
 * It is made where the engine makes its own groups, which takes an engine of this machine that manages them itself
 * (`cgroupfs`) and a server that is root. With systemd, slices are the operator's.
 */
import { mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Logger } from '../../base/log.ts';
import { mountPath } from '../supervisor/folder.ts';
import { GROUP_SHARES, GROUP_WEIGHT } from '../supervisor/priority.ts';
import type { EngineFacts } from './facts.ts';

export type SharedCgroup = {
  /** `CgroupParent` of containers; undefined where it cannot be had. @throws RunnerAway */
  parent(): Promise<string | undefined>;
  /** Before each start: the group may have gone with the last container of an earlier server. @throws RunnerAway */
  hold(): Promise<void>;
  /** Removes it, unless containers are left. */
  remove(): void;
};

type Options = {
  /** Asks the engine what it is. */
  facts(): Promise<EngineFacts>;
  /** Of this server alone. */
  name: string;
  memoryBytes: number;
  log: Pick<Logger, 'warn'>;
};

export function openSharedCgroup({ facts, name, memoryBytes, log }: Options): SharedCgroup {
  let group: Group | null | undefined;
  async function find(): Promise<Group | null> {
    if (group !== undefined) return group;
    const { local, rootless, cgroupDriver } = await facts();
    const can = local && !rootless && cgroupDriver === 'cgroupfs' && process.getuid?.() === 0;
    const found = can ? groupOf(name) : null;
    try {
      found?.hold(memoryBytes);
      group = found;
    } catch (error) {
      log.warn(`Containers together have no limit of memory: ${(error as Error).message}`);
      group = null;
    }
    return group;
  }
  return {
    parent: async () => ((await find()) ? `/${name}` : undefined),
    hold: async () => (await find())?.hold(memoryBytes),
    remove: () => group?.remove(),
  };
}

type Group = { hold(bytes: number): void; remove(): void };

/** Null where no hierarchy has memory. Where none shares processors out, containers have what the engine gives them. */
function groupOf(name: string): Group | null {
  const mounts = mountsOf(readFileSync('/proc/self/mountinfo', 'utf8'));
  const having = (controller: string) =>
    mounts.find(({ controllers }) => controllers.includes(controller))?.path;
  const [memory, cpu] = [having('memory'), having('cpu')];
  const unified = mounts.find(({ type }) => type === 'cgroup2')?.path;
  const root = memory ?? unified;
  if (root === undefined) return null;
  const made = (path: string) => {
    const folder = join(path, name);
    mkdirSync(folder, { recursive: true });
    return folder;
  };
  return {
    hold(bytes) {
      const folder = made(root);
      if (memory) setLimit(folder, bytes);
      else setUnified(root, folder, 'memory.max', bytes);
      try {
        if (cpu) writeFileSync(join(made(cpu), 'cpu.shares'), String(GROUP_SHARES));
        else setUnified(root, folder, 'cpu.weight', GROUP_WEIGHT);
      } catch {
        // A kernel refuses to share processors out where a process of another has a real-time priority, for example.
      }
    },
    remove() {
      for (const { path } of mounts) {
        try {
          rmdirSync(join(path, name));
        } catch {
          // It is not there, or containers are in it: the next server on this data folder has it.
        }
      }
    },
  };
}

/** Version 2: what a group has to be given, its parent has to share out. */
function setUnified(root: string, folder: string, file: string, value: number): void {
  const [controller] = file.split('.');
  writeFileSync(join(root, 'cgroup.subtree_control'), `+${controller}`);
  writeFileSync(join(folder, file), String(value));
}

/** Version 1: memory first, and memory with swap beside it, which not every kernel counts. */
function setLimit(folder: string, bytes: number): void {
  const file = (name: string) => join(folder, name);
  const withSwap = 'memory.memsw.limit_in_bytes';
  const counts = readdirSync(folder).includes(withSwap);
  // Neither may be below the other while they are changed.
  const set = (name: string) => writeFileSync(file(name), String(bytes));
  const now = Number(readFileSync(file('memory.limit_in_bytes'), 'utf8'));
  const order =
    bytes > now ? [withSwap, 'memory.limit_in_bytes'] : ['memory.limit_in_bytes', withSwap];
  for (const name of order) if (name !== withSwap || counts) set(name);
}

/** Those of whole hierarchies: in a container there may be a part of one. */
function mountsOf(mountinfo: string) {
  return mountinfo.split('\n').flatMap((line) => {
    const [before = '', after = ''] = line.split(' - ');
    const [, , , root, path = ''] = before.split(' ').map(mountPath);
    const [type = '', , options = ''] = after.split(' ');
    if (!['cgroup', 'cgroup2'].includes(type) || root !== '/') return [];
    return [{ type, path, controllers: type === 'cgroup' ? options.split(',') : [] }];
  });
}
