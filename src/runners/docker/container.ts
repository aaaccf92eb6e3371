/** The options that a container is created with. Everything that a job may do in a container is decided in this file. */
import { posix } from 'node:path';
import type Docker from 'dockerode';
import { gpuVariables } from '../gpus.ts';
import { MOUNTS, RunnerFault } from '../runner.ts';
import type { JobLimits } from '../supervisor/limits.ts';
import { listJobFolders, type Owner } from './attempt-dir.ts';
import { type Engine, EngineError } from './engine.ts';
import type { EngineFacts } from './engine-facts.ts';
import type { Image } from './images.ts';
import { barrierDir, buildStartBarrier } from './start-barrier.ts';

/** For the operator's `docker ps`, and for finding containers of an earlier server. */
export const LABEL_WORKER = 'loam.worker';
export const LABEL_ATTEMPT = 'loam.attempt';
/** On containers that never run and serve to read a file of their image. The value identifies the server process. */
export const LABEL_READER = 'loam.reader';

/** The name identifies the container of an attempt: an engine allows each name once. */
export function containerName(attempt: string): string {
  return `loam-${attempt}`;
}

type ContainerSpec = {
  attempt: string;
  worker: string;
  /** Folder of the attempt on the engine's machine; null: the engine is remote, and the job's folders are in the container. */
  attemptDir: string | null;
  /** The image's id, and the folders for which it asks for a volume. */
  image: { id: string; volumes: readonly string[] };
  owner: Owner;
  command: string;
  env: Record<string, string>;
  /** UUIDs, because indices depend on the order in which the machine finds its GPUs. */
  gpus: readonly string[];
  timeoutMs: number;
  /** Time between SIGTERM and SIGKILL. */
  graceMs: number;
  limits: JobLimits;
  /** The control group that all containers of this server share. */
  parentGroup?: string;
  /** Size limit of the log: see `logOptions`. */
  log: { bytes: number; lines: number };
  network: Pick<Docker.HostConfig, 'NetworkMode' | 'Dns'>;
  /** Default: the engine's. */
  runtime?: string;
};

export function buildContainerOptions(spec: ContainerSpec): Docker.ContainerCreateOptions {
  const { attempt, worker, attemptDir, owner } = spec;
  // No environment or secrets: everyone who can list containers sees their labels.
  const labels = { [LABEL_WORKER]: worker, [LABEL_ATTEMPT]: attempt };
  const barrier = buildStartBarrier({ ...spec, isOpen: attemptDir === null });
  const mounts = attemptDir === null ? [] : mountJobFolders(attemptDir, barrier.containerPath);
  const env = {
    HOME: MOUNTS.home,
    TMPDIR: MOUNTS.tmp,
    USER: 'job',
    ...spec.env,
    ...gpuVariables(spec.gpus),
    ...barrier.env,
  };
  return {
    name: containerName(attempt),
    Image: spec.image.id,
    Labels: labels,
    Entrypoint: barrier.entrypoint,
    Cmd: [],
    Env: Object.entries(env).map(([name, value]) => `${name}=${value}`),
    WorkingDir: MOUNTS.work,
    User: `${owner.uid}:${owner.gid}`,
    Hostname: 'job',
    // The image's own settings for these are meant for a service, not for a job.
    StopSignal: 'SIGTERM',
    Healthcheck: { Test: ['NONE'] },
    Tty: false,
    OpenStdin: false,
    HostConfig: buildHostConfig(spec, [...mounts, ...mountVolumes(spec.image, mounts, labels)]),
  };
}

function buildHostConfig(
  { limits, network, parentGroup, log, runtime, gpus }: ContainerSpec,
  mounts: Docker.MountSettings[],
): Docker.HostConfig {
  return {
    // An init forwards signals, and reaps orphaned processes.
    Init: true,
    Privileged: false,
    CapDrop: ['ALL'],
    // The engine adds its default seccomp profile and masked paths unless another is named.
    SecurityOpt: ['no-new-privileges'],
    IpcMode: 'private',
    ...network,
    PublishAllPorts: false,
    ...(parentGroup !== undefined && { CgroupParent: parentGroup }),
    PidsLimit: limits.processes,
    NanoCpus: Math.round(limits.cpus * 1e9),
    Memory: limits.memoryBytes,
    // The sum of memory and swap: the same value means no swap.
    MemorySwap: limits.memoryBytes,
    // Shared memory counts as memory. The engine's default of 64 MB is too small for programs that share tensors.
    ShmSize: Math.floor(limits.memoryBytes / 2),
    // A core file would hold the job's memory, secrets included, at a path that the machine's administrator chose. The
    // limit of open files stays the engine's: a container with a higher limit than the engine itself would not start.
    Ulimits: [{ Name: 'core', Soft: 0, Hard: 0 }],
    Mounts: mounts,
    LogConfig: { Type: 'json-file', Config: logOptions(log) },
    RestartPolicy: { Name: 'no' },
    AutoRemove: false,
    ...(runtime && { Runtime: runtime }),
    ...(gpus.length > 0 && {
      DeviceRequests: [
        {
          Driver: 'nvidia',
          DeviceIDs: [...gpus],
          Capabilities: [['gpu', 'compute', 'utility']],
        },
      ],
    }),
  };
}

function mountJobFolders(attemptDir: string, barrierPath: string): Docker.MountSettings[] {
  return [
    ...listJobFolders(attemptDir).map(({ from, to }) => mountFolder(from, to, false)),
    mountFolder(barrierDir(attemptDir), barrierPath, true),
  ];
}

/**
 * Volumes for the folders that the image declares. The engine would create them itself and remove them with the container;
 * ours have labels, so that volumes are found whose engine was killed between the two removals.
 */
function mountVolumes(
  image: ContainerSpec['image'],
  mounts: readonly Docker.MountSettings[],
  Labels: Record<string, string>,
): Docker.MountSettings[] {
  const VolumeOptions = { NoCopy: false, Labels, DriverConfig: { Name: '', Options: {} } };
  const paths = new Set(image.volumes.map((path) => posix.resolve('/', path)));
  return [...paths]
    .filter((path) => mounts.every(({ Target }) => Target !== path))
    .map((Target) => ({ Type: 'volume', Source: '', Target, VolumeOptions }));
}

function mountFolder(source: string, target: string, readOnly: boolean): Docker.MountSettings {
  return {
    Type: 'bind',
    Source: source,
    Target: target,
    ReadOnly: readOnly,
    // Later mounts on this machine do not appear in the container.
    BindOptions: { Propagation: 'rprivate' },
  };
}

/** Overhead of a log entry beside its text. */
const ENTRY_BYTES = 128;
/** Growth of binary output when it is escaped: six bytes for one. */
const ESCAPE_FACTOR = 6;

/**
 * The engine's log file keeps the lines until they are stored, and is rotated only at a size that is never kept: with
 * rotation a follower lost 195,000 of 300,000 lines. `blocking`: a full buffer blocks the job, and no line is dropped.
 */
function logOptions({ bytes, lines }: ContainerSpec['log']): Record<string, string> {
  const size = Math.min(bytes * ESCAPE_FACTOR + lines * ENTRY_BYTES, Number.MAX_SAFE_INTEGER);
  return { mode: 'blocking', 'max-size': `${Math.ceil(size / 1024)}k`, 'max-file': '2' };
}

/** `--storage-opt is supported only for …` of overlay, `Filesystem does not support, or has not enabled quotas` of vfs. */
const QUOTA_UNSUPPORTED = /storage.opt|quota/i;

/**
 * @returns a function that creates containers whose image folders can hold `diskBytes`, where the engine's storage has
 *   quotas (overlay over XFS with project quotas, btrfs, ZFS). No engine reports this, so the first container is tried with
 *   a quota. `disk-watch.ts` watches in any case: the job's folders are not on that storage.
 * @throws RunnerFault for a failure of the engine itself; RunnerUnavailable
 */
export function openContainerCreator(engine: Engine, getFacts: () => Promise<EngineFacts>) {
  let supportsQuota = true;

  async function create(options: Docker.ContainerCreateOptions): Promise<void> {
    await engine.call((docker) => docker.createContainer(options));
  }

  return async (
    options: Docker.ContainerCreateOptions,
    image: Image,
    diskBytes: number,
  ): Promise<void> => {
    // The quota of overlay counts changes only; other storage drivers count the files of the image too.
    const imageBytes = (await getFacts()).storage.startsWith('overlay') ? 0 : image.bytes;
    const StorageOpt = { size: String(imageBytes + diskBytes) };
    const withQuota = { ...options, HostConfig: { ...options.HostConfig, StorageOpt } };
    try {
      if (!supportsQuota) return await create(options);
      try {
        await create(withQuota);
      } catch (error) {
        if (!(error instanceof EngineError && QUOTA_UNSUPPORTED.test(error.message))) throw error;
        supportsQuota = false;
        await create(options);
      }
    } catch (error) {
      const isFault = error instanceof EngineError && (error.status >= 500 || error.status === 409);
      throw isFault ? new RunnerFault(error.message, { cause: error }) : error;
    }
  };
}
