/** What a container is created with: here, and nowhere else, stands what a job may do. */
import { posix } from 'node:path';
import type Docker from 'dockerode';
import { gpuVariables } from '../gpus.ts';
import { MOUNTS, RunnerFault } from '../runner.ts';
import type { Limits } from '../supervisor/limits.ts';
import { type Engine, EngineError } from './engine.ts';
import type { EngineFacts } from './facts.ts';
import type { Image } from './images.ts';
import { foldersOf, type Owner } from './place.ts';
import { gateFolder, startBarrierOf } from './start-barrier.ts';

/** For `docker ps` of the operator, and for finding what an earlier server left. */
export const LABEL_WORKER = 'loam.worker';
export const LABEL_ATTEMPT = 'loam.attempt';
/** Of a container that never runs, from which a file of its image is read: which start of the server reads it. */
export const LABEL_READER = 'loam.reader';

/** Of an attempt: its container is the only thing of an engine that has this name. */
export function containerName(attempt: string): string {
  return `loam-${attempt}`;
}

export type ContainerSpec = {
  attempt: string;
  worker: string;
  /** Where the job's folders lie on the engine's machine; null: in the container. */
  place: string | null;
  /** Its id, and the folders for which it asks for a volume. */
  image: { id: string; volumes: readonly string[] };
  owner: Owner;
  command: string;
  env: Record<string, string>;
  /** Their UUIDs: numbers change with the order in which a machine finds them. */
  gpus: readonly string[];
  timeoutMs: number;
  /** Between SIGTERM and SIGKILL. */
  graceMs: number;
  limits: Limits;
  /** The control group that it is in with others. */
  parentGroup?: string;
  /** What a log may hold at most: see `logs.ts`. */
  log: { bytes: number; lines: number };
  network: Pick<Docker.HostConfig, 'NetworkMode' | 'Dns'>;
  /** Another than the engine's own. */
  runtime?: string;
};

export function containerOptions(spec: ContainerSpec): Docker.ContainerCreateOptions {
  const { attempt, worker, place, owner, limits, runtime } = spec;
  // Neither the environment nor secrets: labels are shown to everyone who lists containers.
  const labels = { [LABEL_WORKER]: worker, [LABEL_ATTEMPT]: attempt };
  const gate = startBarrierOf({ ...spec, isOpen: place === null });
  const folders = place === null ? [] : mountsOf(place, gate.seenAt);
  const env = {
    HOME: MOUNTS.home,
    TMPDIR: MOUNTS.tmp,
    USER: 'job',
    ...spec.env,
    ...gpuVariables(spec.gpus),
    ...gate.env,
  };
  return {
    name: containerName(attempt),
    Image: spec.image.id,
    Labels: labels,
    Entrypoint: gate.entrypoint,
    Cmd: [],
    Env: Object.entries(env).map(([name, value]) => `${name}=${value}`),
    WorkingDir: MOUNTS.work,
    User: `${owner.uid}:${owner.gid}`,
    Hostname: 'job',
    // What the image says of these is for a service, and not for a job.
    StopSignal: 'SIGTERM',
    Healthcheck: { Test: ['NONE'] },
    Tty: false,
    OpenStdin: false,
    HostConfig: {
      // An init passes signals on, and collects processes that lost their parents.
      Init: true,
      Privileged: false,
      CapDrop: ['ALL'],
      // With the engine's own seccomp profile and masked paths, which hold unless something else is said.
      SecurityOpt: ['no-new-privileges'],
      IpcMode: 'private',
      ...spec.network,
      PublishAllPorts: false,
      ...(spec.parentGroup !== undefined && { CgroupParent: spec.parentGroup }),
      PidsLimit: limits.processes,
      NanoCpus: Math.round(limits.cpus * 1e9),
      Memory: limits.memoryBytes,
      // With memory: no swap beside it.
      MemorySwap: limits.memoryBytes,
      // It counts as memory; the engine's 64 MB are too few for programs that share tensors.
      ShmSize: Math.floor(limits.memoryBytes / 2),
      // A core file is the job's memory, secrets included, written wherever the machine's administrator says. Open files
      // are as many as the engine gives: asked for more than it has itself, it would start nothing.
      Ulimits: [{ Name: 'core', Soft: 0, Hard: 0 }],
      Mounts: [...folders, ...volumesOf(spec.image, folders, labels)],
      LogConfig: { Type: 'json-file', Config: logOptions(spec.log) },
      RestartPolicy: { Name: 'no' },
      AutoRemove: false,
      ...(runtime && { Runtime: runtime }),
      ...(spec.gpus.length > 0 && {
        DeviceRequests: [
          {
            Driver: 'nvidia',
            DeviceIDs: [...spec.gpus],
            Capabilities: [['gpu', 'compute', 'utility']],
          },
        ],
      }),
    },
  };
}

function mountsOf(place: string, gateSeenAt: string): Docker.MountSettings[] {
  return [
    ...foldersOf(place).map(({ from, to }) => mount(from, to, false)),
    mount(gateFolder(place), gateSeenAt, true),
  ];
}

/**
 * Volumes for the folders that the image names, which the engine would make by itself and removes with the container. With labels:
 * they show whose one is when the engine was killed in between.
 */
function volumesOf(
  image: ContainerSpec['image'],
  folders: readonly Docker.MountSettings[],
  Labels: Record<string, string>,
): Docker.MountSettings[] {
  const VolumeOptions = { NoCopy: false, Labels, DriverConfig: { Name: '', Options: {} } };
  const named = new Set(image.volumes.map((path) => posix.resolve('/', path)));
  return [...named]
    .filter((path) => folders.every(({ Target }) => Target !== path))
    .map((Target) => ({ Type: 'volume', Source: '', Target, VolumeOptions }));
}

function mount(source: string, target: string, readOnly: boolean): Docker.MountSettings {
  return {
    Type: 'bind',
    Source: source,
    Target: target,
    ReadOnly: readOnly,
    // What is mounted on this machine later does not appear in the job.
    BindOptions: { Propagation: 'rprivate' },
  };
}

/** Of an entry beside its text, which is escaped: binary output takes six bytes for one. */
const ENTRY_BYTES = 128;
const ESCAPED = 6;

/**
 * The engine's file holds the log until it is stored, and is rotated only when it holds more than is ever kept of it: a
 * follower loses lines by a rotation. `blocking`: a job waits for its log, and no line is dropped.
 */
function logOptions({ bytes, lines }: ContainerSpec['log']): Record<string, string> {
  const size = Math.min(bytes * ESCAPED + lines * ENTRY_BYTES, Number.MAX_SAFE_INTEGER);
  return { mode: 'blocking', 'max-size': `${Math.ceil(size / 1024)}k`, 'max-file': '2' };
}

/* Making a container, with the limits that the engine itself can hold it to. */

/** `--storage-opt is supported only for …` of overlay, `Filesystem does not support, or has not enabled quotas` of vfs. */
const CANNOT_LIMIT = /storage.opt|quota/i;

/**
 * @returns what makes a container of which the image's own folders take `diskBytes` at most, where the engine's storage
 *   can do that (overlay over XFS with project quotas, btrfs, ZFS). None tells beforehand, so the first is tried with it.
 *   What is watched (`disk.ts`) is watched all the same: the job's folders are not on that storage.
 * @throws RunnerFault for a failure of the engine's own, RunnerAway
 */
export function openCreation(engine: Engine, facts: () => Promise<EngineFacts>) {
  let isLimiting = true;

  async function create(options: Docker.ContainerCreateOptions): Promise<void> {
    await engine.call((docker) => docker.createContainer(options));
  }

  return async (
    options: Docker.ContainerCreateOptions,
    image: Image,
    diskBytes: number,
  ): Promise<void> => {
    // An overlay counts what the container changed, and the others all that it sees.
    const seen = (await facts()).storage.startsWith('overlay') ? 0 : image.bytes;
    const StorageOpt = { size: String(seen + diskBytes) };
    const limited = { ...options, HostConfig: { ...options.HostConfig, StorageOpt } };
    try {
      if (!isLimiting) return await create(options);
      try {
        await create(limited);
      } catch (error) {
        if (!(error instanceof EngineError && CANNOT_LIMIT.test(error.message))) throw error;
        isLimiting = false;
        await create(options);
      }
    } catch (error) {
      const isFault = error instanceof EngineError && (error.status >= 500 || error.status === 409);
      throw isFault ? new RunnerFault(error.message, { cause: error }) : error;
    }
  };
}
