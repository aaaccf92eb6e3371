/**
 * Watches the disk use of a container. Folders that are mounted from this machine are measured as for a process. For the
 * image's own folders, and for all folders of a remote container, the engine reports the size.
 */
import type Docker from 'dockerode';
import { sleep } from '../../base/backoff.ts';
import { type DiskLimits, formatGigabytes, measureDiskUse, watchDisk } from '../supervisor/disk.ts';
import { listJobFolders } from './attempt-dir.ts';
import { listContainerProcesses } from './container-processes.ts';
import type { Engine } from './engine.ts';

type DiskWatchOptions = {
  engine: Engine;
  container: string;
  attemptDir: string;
  /** The container runs on another machine. */
  remote: boolean;
  /** Whether the container's processes run on this machine; false until that is known. */
  isLocal(): boolean;
  limits: DiskLimits;
  /** Free space on the server's disk below which the server stops writing. */
  floorBytes: number;
  onMeasured(bytes: number): void;
};

/** Shortest interval between requests to a remote engine. */
const REMOTE_INTERVAL_MS = 2_000;
/** The pause is at least nine times as long as the last request took, so that requests take at most a tenth of the time. */
const PAUSE_FACTOR = 9;

/**
 * Watches until the container exceeds its limit, or until `signal` aborts.
 * @returns a line for the job's log that says why the job was ended; null when aborted
 */
export async function watchContainerDisk(
  options: DiskWatchOptions,
  signal: AbortSignal,
): Promise<string | null> {
  if (options.remote) return watchRemoteDisk(options, signal);
  const { engine, container, attemptDir, isLocal, limits, floorBytes, onMeasured } = options;
  let initPid = 0;
  const verdict = await watchDisk(
    {
      dirs: listJobFolders(attemptDir).map(({ from }) => from),
      diskBytes: limits.diskBytes,
      files: limits.files,
      floorBytes,
      pids: () => (isLocal() ? listContainerProcesses(initPid) : []),
      async measureOther() {
        const info = await inspectWithSize(engine, container);
        initPid = info.State.Pid;
        // `inspect` reports no size of volumes, so those that the image asks for are measured here.
        const volumes = isLocal() ? listVolumes(info).map(({ Source }) => Source) : [];
        const inVolumes = await measureDiskUse(volumes);
        return (info.SizeRw ?? 0) + inVolumes.bytes;
      },
      onMeasured: ({ bytes }) => onMeasured(bytes),
    },
    signal,
  );
  return verdict?.reason ?? null;
}

async function watchRemoteDisk(
  { engine, container, limits: { diskBytes }, onMeasured }: DiskWatchOptions,
  signal: AbortSignal,
): Promise<string | null> {
  for (let pause = REMOTE_INTERVAL_MS / 4; !signal.aborted; ) {
    await sleep(pause, signal);
    if (signal.aborted) break;
    const startedAt = Date.now();
    try {
      const info = await inspectWithSize(engine, container);
      const bytes = (info.SizeRw ?? 0) + (await measureVolumes(engine, info));
      onMeasured(bytes);
      if (bytes > diskBytes)
        return `The job was ended: it keeps ${formatGigabytes(bytes)} on disk, and disk_gb allows ${formatGigabytes(diskBytes)}.`;
    } catch {
      // The engine is unavailable or the container is gone. `superviseContainer` handles both.
    }
    pause = Math.max(REMOTE_INTERVAL_MS, PAUSE_FACTOR * (Date.now() - startedAt));
  }
  return null;
}

type Volume = { Name: string; UsageData?: { Size?: number } };
type SizedContainer = Docker.ContainerInspectInfo & { SizeRw?: number };

function inspectWithSize(engine: Engine, container: string): Promise<SizedContainer> {
  return engine.call((docker) => docker.getContainer(container).inspect({ size: true } as object));
}

function listVolumes({ Mounts }: SizedContainer) {
  return Mounts.filter(({ Type }) => Type === 'volume');
}

/** Asks the engine only for containers with volumes: to answer `df` it walks the files of all containers and images. */
async function measureVolumes(engine: Engine, info: SizedContainer): Promise<number> {
  const names = listVolumes(info).map(({ Name }) => Name);
  if (names.length === 0) return 0;
  const { Volumes } = await engine.call((docker) => docker.df());
  const own = ((Volumes ?? []) as Volume[]).filter(({ Name }) => names.includes(Name));
  return own.reduce((sum, { UsageData }) => sum + Math.max(0, UsageData?.Size ?? 0), 0);
}
