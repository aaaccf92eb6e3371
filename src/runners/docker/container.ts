/**
 * Builds the options that a job's container is created with: rights, limits, mounts, devices, environment. All restrictions
 * of a job are set here, except its network (`network.ts`).
 */
import { join, posix } from 'node:path';
import type Docker from 'dockerode';
import { ACCOUNT_FILES } from '../account-files.ts';
import { SHARED_DIR } from '../container/shared-folder.ts';
import { buildEngineWrapper } from '../container/wrapper.ts';
import type { GpuAccess } from '../gpus/gpus.ts';
import { type AttemptSpec, FILES_DIR, MOUNTS, type MountedFolder, RunnerFault } from '../runner.ts';
import type { JobLimits } from '../supervisor/limits.ts';
import { filesDir, listJobFolders, sharedDir } from './attempt-dir.ts';
import { type Engine, EngineError } from './engine.ts';
import type { EngineFacts } from './engine-facts.ts';
import type { ContainerUser } from './image-users.ts';
import type { Image } from './images.ts';

/** Labels by which the operator, in `docker ps`, and a restarted server find containers. */
export const LABEL_WORKER = 'loam.worker';
export const LABEL_ATTEMPT = 'loam.attempt';
/**
 * Label of containers that are never started, and only serve to read files of an image. Its value identifies the server
 * process.
 */
export const LABEL_READER = 'loam.reader';

/** The name identifies the container of an attempt: an engine allows each name once. */
export function containerName(attemptId: string): string {
  return `loam-${attemptId}`;
}

type ContainerSpec = {
  attemptId: string;
  workerId: string;
  /** The attempt's folder; null for a remote engine, where the job's folders are in the container. */
  attemptDir: string | null;
  /** The image's id, and the folders for which it asks for a volume. */
  image: { id: string; volumes: readonly string[] };
  user: ContainerUser;
  files: AttemptSpec['files'];
  /** None on a remote engine. */
  mounts: readonly MountedFolder[];
  /** With UUIDs, because indices depend on the order in which the machine detects its GPUs. */
  gpus: GpuAccess;
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
  const { attemptId, workerId, attemptDir, user } = spec;
  // Labels must not contain environment variables or secrets: everyone who can list containers can read them.
  const labels = { [LABEL_WORKER]: workerId, [LABEL_ATTEMPT]: attemptId };
  const isRemote = attemptDir === null;
  const provided = Object.keys(spec.files).length > 0;
  const mounts = isRemote
    ? []
    : [
        ...mountJobFolders(attemptDir),
        ...(provided ? [mountFolder(filesDir(attemptDir), FILES_DIR, true)] : []),
        ...(user.isOfImage ? [] : mountAccount(attemptDir)),
        ...spec.mounts.map(({ from, to, readOnly }) => mountFolder(from, to, readOnly, true)),
      ];
  const env = {
    // NVIDIA's runtime reads its variables here. All other variables are in the script of the command.
    ...spec.gpus.env,
    // The init forwards SIGTERM to the whole process group of the job, not to its shell alone.
    TINI_KILL_PROCESS_GROUP: '1',
  };
  return {
    name: containerName(attemptId),
    Image: spec.image.id,
    Labels: labels,
    Entrypoint: ['/bin/sh', '-c', buildEngineWrapper(spec)],
    Cmd: [],
    Env: Object.entries(env).map(([name, value]) => `${name}=${value}`),
    WorkingDir: MOUNTS.work,
    User: `${user.uid}:${user.gid}`,
    Hostname: 'job',
    // The image's own stop signal and health check are meant for a service, not for a job.
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
    // The engine's init forwards signals and reaps orphaned processes.
    Init: true,
    Privileged: false,
    CapDrop: ['ALL'],
    // The engine adds its default seccomp profile and masked paths, because none are given here.
    SecurityOpt: ['no-new-privileges'],
    IpcMode: 'private',
    ...network,
    PublishAllPorts: false,
    ...(parentGroup !== undefined && { CgroupParent: parentGroup }),
    PidsLimit: limits.processes,
    NanoCpus: Math.round(limits.cpus * 1e9),
    Memory: limits.memoryBytes,
    // Limits memory and swap together, so the same value means no swap.
    MemorySwap: limits.memoryBytes,
    // Shared memory counts towards `Memory`. The engine's default of 64 MB is too small for programs that share tensors.
    ShmSize: Math.floor(limits.memoryBytes / 2),
    // A core file would contain the job's memory, including secrets. The limit of open files is left to the engine, because a
    // container with a higher limit than the engine itself would not start.
    Ulimits: [{ Name: 'core', Soft: 0, Hard: 0 }],
    Mounts: mounts,
    LogConfig: { Type: 'json-file', Config: logOptions(log) },
    RestartPolicy: { Name: 'no' },
    AutoRemove: false,
    ...(runtime && { Runtime: runtime }),
    ...(gpus.amdDevices.length > 0 && {
      Devices: gpus.amdDevices.map((path) => ({
        PathOnHost: path,
        PathInContainer: path,
        CgroupPermissions: 'rw',
      })),
    }),
    ...(gpus.nvidiaUuids.length > 0 && {
      DeviceRequests: [
        {
          Driver: 'nvidia',
          DeviceIDs: gpus.nvidiaUuids,
          Capabilities: [['gpu', 'compute', 'utility']],
        },
      ],
    }),
  };
}

function mountJobFolders(attemptDir: string): Docker.MountSettings[] {
  return [
    ...listJobFolders(attemptDir).map(({ from, to }) => mountFolder(from, to, false)),
    mountFolder(sharedDir(attemptDir), SHARED_DIR, true),
  ];
}

function mountAccount(attemptDir: string): Docker.MountSettings[] {
  return ACCOUNT_FILES.map((name) =>
    mountFolder(join(sharedDir(attemptDir), name), `/etc/${name}`, true),
  );
}

/**
 * Labelled volumes for the folders that the image declares. The engine would create and remove unlabelled volumes itself; the
 * labels let a server find volumes that remain when the engine is killed between removing the container and its volumes.
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

/** @param isVolume without the file systems below it, which would not be read-only on earlier engines */
function mountFolder(
  source: string,
  target: string,
  readOnly: boolean,
  isVolume = false,
): Docker.MountSettings {
  return {
    Type: 'bind',
    Source: source,
    Target: target,
    ReadOnly: readOnly,
    // Mounts that are made on this machine later do not appear in the container.
    BindOptions: { Propagation: 'rprivate', ...(isVolume && { NonRecursive: true }) },
  };
}

/** Overhead of a log entry beside its text. */
const ENTRY_BYTES = 128;
/** Escaping turns a byte of binary output into at most six. */
const ESCAPE_FACTOR = 6;

/**
 * The engine's log file keeps the lines until Loam has stored them. `max-size` exceeds the job's log limit, so that the file
 * is not rotated before: with rotation a follower lost 195,000 of 300,000 lines. `blocking`: a full buffer blocks the job,
 * and no line is dropped.
 */
function logOptions({ bytes, lines }: ContainerSpec['log']): Record<string, string> {
  const size = Math.min(bytes * ESCAPE_FACTOR + lines * ENTRY_BYTES, Number.MAX_SAFE_INTEGER);
  return { mode: 'blocking', 'max-size': `${Math.ceil(size / 1024)}k`, 'max-file': '2' };
}

/**
 * Errors of storage drivers without quotas: overlay says `--storage-opt is supported only for …`, vfs says `Filesystem does
 * not support, or has not enabled quotas`.
 */
const QUOTA_UNSUPPORTED = /storage.opt|quota/i;

/**
 * Creates containers with a quota for changes to the image's folders, where the engine's storage has quotas (overlay over XFS
 * with project quotas, btrfs, ZFS). No engine reports this, so quotas are used until the engine refuses one. `disk-watch.ts`
 * watches the disk use in any case, because the job's folders are not on that storage.
 */
export class ContainerCreator {
  readonly #engine: Engine;
  readonly #getFacts: () => Promise<EngineFacts>;
  #supportsQuota = true;

  constructor(engine: Engine, getFacts: () => Promise<EngineFacts>) {
    this.#engine = engine;
    this.#getFacts = getFacts;
  }

  /** @throws RunnerFault for a failure of the engine itself; RunnerUnavailable */
  async create(
    options: Docker.ContainerCreateOptions,
    image: Image,
    diskBytes: number,
  ): Promise<void> {
    // The quota of overlay counts changes only; other storage drivers count the files of the image too.
    const { storage } = await this.#getFacts();
    const imageBytes = storage.startsWith('overlay') ? 0 : image.bytes;
    try {
      if (this.#supportsQuota && (await this.#createWithQuota(options, imageBytes + diskBytes)))
        return;
      await this.#send(options);
    } catch (error) {
      // 409: the engine still has a container with this name.
      const isFault = error instanceof EngineError && (error.status >= 500 || error.status === 409);
      throw isFault ? new RunnerFault(error.message, { cause: error }) : error;
    }
  }

  /** @returns false when the engine's storage has no quotas */
  async #createWithQuota(options: Docker.ContainerCreateOptions, bytes: number): Promise<boolean> {
    const StorageOpt = { size: String(bytes) };
    try {
      await this.#send({ ...options, HostConfig: { ...options.HostConfig, StorageOpt } });
      return true;
    } catch (error) {
      if (!(error instanceof EngineError && QUOTA_UNSUPPORTED.test(error.message))) throw error;
      this.#supportsQuota = false;
      return false;
    }
  }

  async #send(options: Docker.ContainerCreateOptions): Promise<void> {
    await this.#engine.call((docker) => docker.createContainer(options));
  }
}
