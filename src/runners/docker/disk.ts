/**
 * Watching what a container keeps on the disk. In the folders that lie on this machine it is counted as for a process;
 * in the image's own folders, and in all of a container on another machine, the engine counts.
 */
import { setTimeout as delay } from 'node:timers/promises';
import type Docker from 'dockerode';
import { type DiskLimits, diskUse, gigabytes, watchDisk } from '../supervisor/disk.ts';
import type { Engine } from './engine.ts';
import { foldersOf } from './place.ts';
import { processesOf } from './processes.ts';

export type DiskWatchOptions = {
  engine: Engine;
  container: string;
  place: string;
  /** The container is on another machine. */
  remote: boolean;
  /** Whether its processes are of this machine; false until that is known. */
  isLocal(): boolean;
  limits: DiskLimits;
  /** Free space on our disk below which the server stops writing. */
  floorBytes: number;
  measured(bytes: number): void;
};

/** How often an engine on another machine is asked, … */
const ASK_MS = 2_000;
/** … which takes a tenth of the time at most. */
const REST = 9;

/**
 * Watches until the container keeps more than it may, or until `signal` aborts.
 * @returns the log's line about why it is ended; null when it was aborted
 */
export async function watchDiskOf(
  options: DiskWatchOptions,
  signal: AbortSignal,
): Promise<string | null> {
  if (options.remote) return watchElsewhere(options, signal);
  const { engine, container, place, isLocal, limits, floorBytes, measured } = options;
  let pid = 0;
  const verdict = await watchDisk(
    {
      dirs: foldersOf(place).map(({ from }) => from),
      diskBytes: limits.diskBytes,
      files: limits.files,
      floorBytes,
      pids: () => (isLocal() ? processesOf(pid) : []),
      async beside() {
        const seen = await inspected(engine, container);
        pid = seen.State.Pid;
        // Of volumes that the image asks for the engine tells no size here.
        const volumes = isLocal() ? volumesOf(seen).map(({ Source }) => Source) : [];
        const inVolumes = await diskUse(volumes);
        return (seen.SizeRw ?? 0) + inVolumes.bytes;
      },
      measured: ({ bytes }) => measured(bytes),
    },
    signal,
  );
  return verdict?.reason ?? null;
}

async function watchElsewhere(
  { engine, container, limits: { diskBytes }, measured }: DiskWatchOptions,
  signal: AbortSignal,
): Promise<string | null> {
  for (let pause = ASK_MS / 4; !signal.aborted; ) {
    await delay(pause, undefined, { signal }).catch(() => {});
    if (signal.aborted) break;
    const begun = Date.now();
    try {
      const seen = await inspected(engine, container);
      const bytes = (seen.SizeRw ?? 0) + (await sizeOfVolumes(engine, seen));
      measured(bytes);
      if (bytes > diskBytes)
        return `The job was ended: it keeps ${gigabytes(bytes)} on disk, and disk_gb allows ${gigabytes(diskBytes)}.`;
    } catch {
      // The engine does not answer just now, or the container is gone: whoever waits for its end knows.
    }
    pause = Math.max(ASK_MS, REST * (Date.now() - begun));
  }
  return null;
}

type Volume = { Name: string; UsageData?: { Size?: number } };
type Inspected = Docker.ContainerInspectInfo & { SizeRw?: number };

function inspected(engine: Engine, container: string): Promise<Inspected> {
  return engine.call((docker) => docker.getContainer(container).inspect({ size: true } as object));
}

function volumesOf({ Mounts }: Inspected) {
  return Mounts.filter(({ Type }) => Type === 'volume');
}

/** Those that the image asks for. The engine walks all that it has for it, so it is not asked without need. */
async function sizeOfVolumes(engine: Engine, seen: Inspected): Promise<number> {
  const names = volumesOf(seen).map(({ Name }) => Name);
  if (names.length === 0) return 0;
  const { Volumes } = await engine.call((docker) => docker.df());
  const own = ((Volumes ?? []) as Volume[]).filter(({ Name }) => names.includes(Name));
  return own.reduce((sum, { UsageData }) => sum + Math.max(0, UsageData?.Size ?? 0), 0);
}
