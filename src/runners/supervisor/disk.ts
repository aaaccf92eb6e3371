/** Measures the disk space and files of an attempt, and watches them while it runs. */
import { execFile } from 'node:child_process';
import { readdirSync, type Stats, statSync } from 'node:fs';
import { stat, statfs } from 'node:fs/promises';
import { setTimeout as delay, setImmediate } from 'node:timers/promises';
import { promisify } from 'node:util';

const run = promisify(execFile);

export type DiskUse = { bytes: number; files: number };

/**
 * Measures the bytes on disk and the number of files below the folders. Files that vanish meanwhile are not counted. `du`
 * takes about two seconds for a million files.
 */
export async function measureDiskUse(
  dirs: readonly string[],
  signal?: AbortSignal,
): Promise<DiskUse> {
  // Without an argument `du` would measure the current folder.
  if (dirs.length === 0) return { bytes: 0, files: 0 };
  const bytes = await du(['-sk'], dirs, signal);
  return { bytes: bytes * 1024, files: await du(['-s', '--inodes'], dirs, signal) };
}

/**
 * A job can remove all permissions from its folders. Root can read them nevertheless. For another user `du` runs as the root
 * of a user namespace, which can read all files of that user, where the kernel permits it.
 */
async function du(
  options: readonly string[],
  dirs: readonly string[],
  signal?: AbortSignal,
): Promise<number> {
  // `du` prints an error for each unreadable folder. A job can create a million of them, and output beyond `maxBuffer`
  // would end `du` before its sum.
  const quiet = ['/bin/sh', '-c', 'exec "$@" 2>/dev/null', 'sh'];
  const command = [...quiet, 'du', ...options, '--', ...dirs];
  const inNamespace = ['unshare', '--user', '--map-root-user', ...command];
  const commands = process.getuid?.() === 0 ? [command] : [inNamespace, command];
  for (const [program = '', ...args] of commands) {
    // `du` exits with 1 when a file vanished meanwhile. Its sum is valid nevertheless.
    const { stdout } = await run(program, args, { signal, maxBuffer: 2 ** 20 }).catch(
      (error: { stdout?: string }) => ({ stdout: error.stdout ?? '' }),
    );
    signal?.throwIfAborted();
    const sums = [...stdout.matchAll(/^(\d+)\s/gm)].map(([, sum]) => Number(sum));
    if (sums.length > 0) return sums.reduce((a, b) => a + b, 0);
  }
  return 0;
}

export type DiskLimits = { diskBytes: number; files: number };

/** Interval of reading the free space, which is one system call. */
const POLL_MS = 1_000;
/** Interval of measuring the folders, for growth that is hidden because other programs free the same space. */
const MEASURE_MS = 30_000;
/** The folders are measured at once when the use of the disk has grown by this, or by the rest of the job's limit. */
const GROWN_BYTES = 256 * 2 ** 20;
const GROWN_FILES = 100_000;
/** A pause of nine times its length follows each measurement, so that measuring takes at most a tenth of the time. */
const PAUSE_FACTOR = 9;
/** Jobs are ended when free space is below this multiple of the floor. Below the floor the server refuses all writes. */
const FLOOR_MARGIN = 1.25;

type DiskWatch = DiskLimits & {
  dirs: readonly string[];
  /** Free space below which the server stops writing; 0 for none. */
  floorBytes: number;
  /** The processes of the job. Deleted files that they still have open count too. */
  pids(): number[];
  /** Measures bytes that the job uses outside `dirs`. Called before `pids`. */
  measureOther?(): Promise<number>;
  onMeasured(use: DiskUse): void;
};

/**
 * `reason`: a line for the job's log. `full`: the disk was full, and the job did not exceed a limit of its own. `isLoss`: the
 * attempt is lost, so that the job runs again.
 */
export type StopReason = { reason: string; full: boolean; isLoss?: true };

/**
 * Watches until the job exceeds its limits, or the disk is nearly full, or `signal` aborts.
 * @returns null when aborted
 */
export async function watchDisk(
  { dirs, diskBytes, files, floorBytes, pids, measureOther, onMeasured }: DiskWatch,
  signal: AbortSignal,
): Promise<StopReason | null> {
  let use: DiskUse = { bytes: 0, files: 0 };
  let measuredAt = 0;
  let pausedUntil = 0;
  let lowest = { bytes: 0, files: 0 };
  for (let pause = POLL_MS / 4; !signal.aborted; pause = POLL_MS) {
    try {
      await delay(pause, undefined, { signal });
      const now = await readDiskState(dirs[0] as string);
      // Growth counts from the lowest use since the last measurement, because space that other programs free would hide it.
      lowest = {
        bytes: Math.min(lowest.bytes, now.bytes),
        files: Math.min(lowest.files, now.files),
      };
      const isLow = now.free < floorBytes * FLOOR_MARGIN;
      const left = { bytes: diskBytes - use.bytes, files: files - use.files };
      const isDue =
        isLow ||
        Date.now() - measuredAt >= MEASURE_MS ||
        now.bytes - lowest.bytes >= Math.min(left.bytes, GROWN_BYTES) ||
        now.files - lowest.files >= Math.min(left.files, GROWN_FILES);
      if (!isDue || Date.now() < pausedUntil) continue;
      const startedAt = Date.now();
      try {
        const inFolders = await measureDiskUse(dirs, signal);
        const otherBytes = (await measureOther?.()) ?? 0;
        const unlinked = await measureUnlinkedFiles(pids(), (await stat(dirs[0] as string)).dev);
        use = {
          bytes: inFolders.bytes + unlinked.bytes + otherBytes,
          files: inFolders.files + unlinked.files,
        };
      } finally {
        pausedUntil = Date.now() + PAUSE_FACTOR * (Date.now() - startedAt);
      }
      // Set only after success, so that a failed measurement stays due.
      lowest = now;
      measuredAt = startedAt;
      onMeasured(use);
      if (use.bytes > diskBytes)
        return {
          full: false,
          reason: `The job was ended: it keeps ${formatGigabytes(use.bytes)} on disk, and disk_gb allows ${formatGigabytes(diskBytes)}.`,
        };
      if (use.files > files)
        return {
          full: false,
          reason: `The job was ended: it keeps ${use.files} files, and ${files} are allowed with its disk_gb.`,
        };
      // Only a job that uses more than is left is ended, so that small jobs continue.
      if (isLow && use.bytes > now.free)
        return {
          full: true,
          reason: `The job was ended: the server's disk is nearly full, and the job keeps ${formatGigabytes(use.bytes)} on it.`,
        };
    } catch {
      // The signal aborted, or the disk did not answer and the next round tries again.
    }
  }
  return null;
}

/** Reads the use and the free space of the whole disk. */
async function readDiskState(dir: string) {
  const { bsize, blocks, bfree, bavail, files, ffree } = await statfs(dir);
  return {
    bytes: (blocks - bfree) * bsize,
    files: files - ffree,
    free: bavail * bsize,
  };
}

/** Formats a size as `1.5 GB` or `300 MB`. A GB of the API is a GiB. */
export function formatGigabytes(bytes: number): string {
  const gib = bytes / 2 ** 30;
  return gib >= 1 ? `${Math.round(gib * 10) / 10} GB` : `${Math.round(gib * 1024)} MB`;
}

/** Open descriptors and memory mappings; only root can read the latter. */
const OPEN_FILE_FOLDERS = ['fd', 'map_files'];

/**
 * Measures deleted files on the disk `device` that processes still have open, which `du` does not find. A file whose
 * descriptor is only in transit through a socket is not counted.
 */
async function measureUnlinkedFiles(
  pids: readonly number[],
  device: number,
): Promise<{ bytes: number; files: number }> {
  const found = new Map<number, number>();
  for (const pid of pids) {
    for (const folder of OPEN_FILE_FOLDERS.map((name) => `/proc/${pid}/${name}`)) {
      for (const name of listNames(folder)) {
        const stat = tryStat(`${folder}/${name}`);
        if (stat?.isFile() && stat.nlink === 0 && stat.dev === device)
          found.set(stat.ino, stat.blocks * 512);
      }
    }
    // Gives the shim time to copy lines: a job may have thousands of processes.
    await setImmediate();
  }
  return { bytes: [...found.values()].reduce((a, b) => a + b, 0), files: found.size };
}

function listNames(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    // The process has ended, or its files are not readable.
    return [];
  }
}

function tryStat(file: string): Stats | undefined {
  try {
    return statSync(file);
  } catch {
    return undefined;
  }
}
