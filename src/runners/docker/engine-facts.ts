/**
 * Reads properties of an engine: the capacity of its machine for jobs, and whether that is the machine of this server.
 *
 * The address does not tell whether it is the same machine: a socket may be forwarded to another machine, and `tcp://` may
 * lead to this machine, or from a container to its host. So Loam tests whether the engine sees a file that was just created.
 */
import { randomUUID } from 'node:crypto';
import { rm, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { readMachineCapacity } from '../supervisor/limits.ts';
import { type Engine, isStatus } from './engine.ts';

export type EngineFacts = {
  /** For example `Docker Engine 28.2.2`. */
  version: string;
  /** The engine sees this server's folders and user ids, so that folders can be mounted into containers. */
  isLocal: boolean;
  /** The engine is rootless or uses user namespaces, so that user ids in containers differ from those on the machine. */
  isRemapped: boolean;
  /** Number that the engine adds to user ids of a container, also in archives. */
  uidOffset: number;
  /** Capacity for jobs. */
  cpus: number;
  memoryBytes: number;
  /** `cgroupfs`, `systemd` or `none`. */
  cgroupDriver: string;
  /** The engine runs as an ordinary user. */
  isRootless: boolean;
  /** Storage driver of images and containers: `overlay2`, `btrfs`. */
  storage: string;
  /** Default runtime of containers: `runc`. */
  runtime: string;
};

const KERNEL_RUNTIMES = /^(?:runc|crun|youki|nvidia|io\.containerd\.runc\.v\d+)$/;

/**
 * Whether a runtime runs containers on the kernel of its machine. Other runtimes (runsc, Kata) have network stacks of
 * their own, which bypass the kernel's firewall rules, and FIFOs of their own.
 */
export function sharesKernel(runtime: string): boolean {
  return KERNEL_RUNTIMES.test(runtime);
}

/** Share of a remote machine's memory for jobs, the same as on this machine. The rest is for the engine and the kernel. */
const SHARE_OF_JOBS = 0.9;
/** A busy engine takes seconds to count its containers and images. */
const FACTS_TIMEOUT_MS = 30_000;
/** An image that cannot exist, so that the engine never creates a container from it. */
const NO_IMAGE = 'loam.invalid/none';

/**
 * @param folder an existing folder of this server
 * @throws RunnerUnavailable
 */
export async function readEngineFacts(engine: Engine, folder: string): Promise<EngineFacts> {
  const [{ Version, Platform }, info] = await Promise.all([
    engine.call((docker) => docker.version(), FACTS_TIMEOUT_MS),
    engine.call((docker) => docker.info(), FACTS_TIMEOUT_MS),
  ]);
  const hasOption = (option: string) =>
    (info.SecurityOptions ?? []).some((text: string) => new RegExp(`\\b${option}\\b`).test(text));
  const isRootless = hasOption('rootless');
  const isRemapped = isRootless || hasOption('userns');
  const isLocal = !isRemapped && (await seesFolder(engine, folder));
  const machine = { cpus: info.NCPU, memoryBytes: Math.floor(info.MemTotal * SHARE_OF_JOBS) };
  return {
    version: `${Platform?.Name || 'Docker'} ${Version}`,
    isLocal,
    ...(isLocal ? readMachineCapacity() : machine),
    cgroupDriver: info.CgroupDriver,
    storage: info.Driver,
    isRootless,
    isRemapped,
    // The data folder of an engine with user namespaces is named after the first user and group id. A rootless engine is
    // inside the mapping itself, and so adds nothing.
    uidOffset: isRemapped ? Number(/\/(\d+)\.\d+$/.exec(info.DockerRootDir)?.[1] ?? 0) : 0,
    runtime: basename(info.DefaultRuntime || 'runc'),
  };
}

async function seesFolder(engine: Engine, folder: string): Promise<boolean> {
  const file = join(folder, `.probe-${randomUUID()}`);
  const isUnix = engine.host.startsWith('unix:');
  // An engine that checks the image before the mounts accepts even a missing file. Then only the address decides.
  if (await canMount(engine, `${file}-not`)) return isUnix;
  await writeFile(file, '');
  try {
    return await canMount(engine, file);
  } finally {
    await rm(file, { force: true });
  }
}

/** The engine checks the mounts of a container before its image, so a 404 for the image means that the source exists. */
async function canMount(engine: Engine, source: string): Promise<boolean> {
  const Mounts = [{ Type: 'bind' as const, Source: source, Target: '/probe', ReadOnly: true }];
  try {
    const { id } = await engine.call((docker) =>
      docker.createContainer({ Image: NO_IMAGE, HostConfig: { Mounts } }),
    );
    await engine.call((docker) => docker.getContainer(id).remove({ force: true }));
    return true;
  } catch (error) {
    if (isStatus(error, 404)) return true;
    if (isStatus(error, 400, 500)) return false;
    throw error;
  }
}
