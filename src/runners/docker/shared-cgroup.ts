/**
 * A control group around all containers of this server, limited to the memory that the machine has for jobs: one job may use
 * all of that memory, but all jobs together cannot take the server's memory. The group's CPU weight is half of the server's,
 * as for processes (`../supervisor/priority.ts`). The group needs a server that is root and a local engine that manages
 * control groups itself (`cgroupfs`). With systemd, slices are left to the operator.
 */
import { mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Logger } from '../../base/log.ts';
import { unescapeMountPath } from '../supervisor/folder.ts';
import { GROUP_SHARES, GROUP_WEIGHT } from '../supervisor/priority.ts';
import type { EngineFacts } from './engine-facts.ts';

export type SharedCgroup = {
  /**
   * `CgroupParent` of containers; undefined where the group cannot be created.
   * @throws RunnerUnavailable
   */
  cgroupParent(): Promise<string | undefined>;
  /**
   * Called before each start, because an earlier server may have removed the group with its last container.
   * @throws RunnerUnavailable
   */
  applyLimits(): Promise<void>;
  /** Removes the group if it contains no containers. */
  remove(): void;
};

type Options = {
  facts(): Promise<EngineFacts>;
  /** Unique to this server. */
  name: string;
  memoryBytes: number;
  log: Pick<Logger, 'warn'>;
};

export function openSharedCgroup({ facts, name, memoryBytes, log }: Options): SharedCgroup {
  let group: Group | null | undefined;
  async function getGroup(): Promise<Group | null> {
    if (group !== undefined) return group;
    const { isLocal, isRootless, cgroupDriver } = await facts();
    const isSupported =
      isLocal && !isRootless && cgroupDriver === 'cgroupfs' && process.getuid?.() === 0;
    const found = isSupported ? openGroup(name) : null;
    try {
      found?.applyLimits(memoryBytes);
      group = found;
    } catch (error) {
      log.warn(
        `The memory of all containers together is not limited, because their control group cannot be set up: ${(error as Error).message}`,
      );
      group = null;
    }
    return group;
  }
  return {
    cgroupParent: async () => ((await getGroup()) ? `/${name}` : undefined),
    applyLimits: async () => (await getGroup())?.applyLimits(memoryBytes),
    remove: () => group?.remove(),
  };
}

type Group = { applyLimits(bytes: number): void; remove(): void };

/** @returns null where no cgroup hierarchy limits memory. Without one for CPU, containers keep the engine's CPU weights. */
function openGroup(name: string): Group | null {
  const mounts = parseCgroupMounts(readFileSync('/proc/self/mountinfo', 'utf8'));
  const mountWith = (controller: string) =>
    mounts.find(({ controllers }) => controllers.includes(controller))?.path;
  const [memory, cpu] = [mountWith('memory'), mountWith('cpu')];
  const unified = mounts.find(({ type }) => type === 'cgroup2')?.path;
  const root = memory ?? unified;
  if (root === undefined) return null;
  const createGroup = (path: string) => {
    const folder = join(path, name);
    mkdirSync(folder, { recursive: true });
    return folder;
  };
  return {
    applyLimits(bytes) {
      const folder = createGroup(root);
      if (memory) setMemoryLimitV1(folder, bytes);
      else setLimitV2(root, folder, 'memory.max', bytes);
      try {
        if (cpu) writeFileSync(join(createGroup(cpu), 'cpu.shares'), String(GROUP_SHARES));
        else setLimitV2(root, folder, 'cpu.weight', GROUP_WEIGHT);
      } catch {
        // A kernel may refuse to enable the CPU controller, for example while a process has a real-time priority.
      }
    },
    remove() {
      for (const { path } of mounts) {
        try {
          rmdirSync(join(path, name));
        } catch {
          // The group does not exist, or contains containers. The next server with this data folder removes it then.
        }
      }
    },
  };
}

/** In version 2 a controller must be enabled in the parent before its files exist in the group. */
function setLimitV2(root: string, folder: string, file: string, value: number): void {
  const [controller] = file.split('.');
  writeFileSync(join(root, 'cgroup.subtree_control'), `+${controller}`);
  writeFileSync(join(folder, file), String(value));
}

/** Version 1 has one limit for memory and, in kernels that count swap, one for memory with swap. */
function setMemoryLimitV1(folder: string, bytes: number): void {
  const file = (name: string) => join(folder, name);
  const withSwap = 'memory.memsw.limit_in_bytes';
  const countsSwap = readdirSync(folder).includes(withSwap);
  const set = (name: string) => writeFileSync(file(name), String(bytes));
  // The limit with swap must never be below the memory limit, so the order depends on the direction of the change.
  const current = Number(readFileSync(file('memory.limit_in_bytes'), 'utf8'));
  const order =
    bytes > current ? [withSwap, 'memory.limit_in_bytes'] : ['memory.limit_in_bytes', withSwap];
  for (const name of order) if (name !== withSwap || countsSwap) set(name);
}

/** Returns only mounts of whole hierarchies: in a container, a part of a hierarchy may be mounted. */
function parseCgroupMounts(mountinfo: string) {
  return mountinfo.split('\n').flatMap((line) => {
    const [before = '', after = ''] = line.split(' - ');
    const [, , , root, path = ''] = before.split(' ').map(unescapeMountPath);
    const [type = '', , options = ''] = after.split(' ');
    if (!['cgroup', 'cgroup2'].includes(type) || root !== '/') return [];
    return [{ type, path, controllers: type === 'cgroup' ? options.split(',') : [] }];
  });
}
