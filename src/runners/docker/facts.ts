/**
 * What an engine is: which machine it has for jobs, and whether that is the one that this server runs on.
 *
 * The address does not tell. A socket may be forwarded to another machine, and `tcp://` may lead to this one, or out
 * of a container to its host. So the engine is asked whether it sees a file that we have just made.
 */
import { randomUUID } from 'node:crypto';
import { rm, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { thisMachine } from '../supervisor/limits.ts';
import { type Engine, isStatus } from './engine.ts';

export type EngineFacts = {
  /** As `Docker Engine 28.2.2`. */
  version: string;
  /** Our folders are the engine's too, and so are their users: they can be mounted into its containers. */
  local: boolean;
  /** It runs as an ordinary user, or maps the users of its containers: to this machine they are others than to the job. */
  remapped: boolean;
  /** What it adds to the numbers of a container's users, in archives of it too. */
  firstUid: number;
  /** What its machine has for jobs. */
  cpus: number;
  memoryBytes: number;
  /** Of its control groups: `cgroupfs`, `systemd`, `none`. */
  cgroupDriver: string;
  /** Runs as an ordinary user. */
  rootless: boolean;
  /** How it stores images and what containers change of them: `overlay2`, `btrfs`. */
  storage: string;
  /** What runs a container that asks for nothing else: `runc`. */
  runtime: string;
};

const KERNELS = /^(?:runc|crun|youki|nvidia|io\.containerd\.runc\.v\d+)$/;

/**
 * Whether a program runs containers on the kernel of its machine. Others (runsc, Kata) have networks of their own making,
 * which carry packets past that one's rules, and FIFOs of their own.
 */
export function sharesKernel(runtime: string): boolean {
  return KERNELS.test(runtime);
}

/** Of a machine's memory, as of our own: the rest is for the engine and the kernel. */
const SHARE_OF_JOBS = 0.9;
/** A busy engine takes seconds to count what it has. */
const FIND_MS = 30_000;
/** There is no such one: a container of it is never made. */
const NO_IMAGE = 'loam.invalid/none';

/**
 * @param folder one of ours, which exists
 * @throws RunnerAway
 */
export async function factsOf(engine: Engine, folder: string): Promise<EngineFacts> {
  const [{ Version, Platform }, info] = await Promise.all([
    engine.call((docker) => docker.version(), FIND_MS),
    engine.call((docker) => docker.info(), FIND_MS),
  ]);
  const isSet = (option: string) =>
    (info.SecurityOptions ?? []).some((one: string) => new RegExp(`\\b${option}\\b`).test(one));
  const rootless = isSet('rootless');
  const remapped = rootless || isSet('userns');
  const local = !remapped && (await sees(engine, folder));
  const machine = { cpus: info.NCPU, memoryBytes: Math.floor(info.MemTotal * SHARE_OF_JOBS) };
  return {
    version: `${Platform?.Name || 'Docker'} ${Version}`,
    local,
    ...(local ? thisMachine() : machine),
    cgroupDriver: info.CgroupDriver,
    storage: info.Driver,
    rootless,
    remapped,
    // Where it keeps such ones has a name of the first user and group. One without root is among the mapped users itself.
    firstUid: remapped ? Number(/\/(\d+)\.\d+$/.exec(info.DockerRootDir)?.[1] ?? 0) : 0,
    runtime: basename(info.DefaultRuntime || 'runc'),
  };
}

async function sees(engine: Engine, folder: string): Promise<boolean> {
  const file = join(folder, `.probe-${randomUUID()}`);
  const isUnix = engine.host.startsWith('unix:');
  // An engine that does not look before it looks for the image does not tell.
  if (await canMount(engine, `${file}-not`)) return isUnix;
  await writeFile(file, '');
  try {
    return await canMount(engine, file);
  } finally {
    await rm(file, { force: true });
  }
}

/** A container is refused for what it is to mount before it is refused for its image. */
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
