/** What is in the folders of an attempt, in bytes on the disk and files, and watching both while it runs. */
import { execFile } from 'node:child_process';
import { readdirSync, type Stats, statSync } from 'node:fs';
import { stat, statfs } from 'node:fs/promises';
import { setTimeout as delay, setImmediate } from 'node:timers/promises';
import { promisify } from 'node:util';

const run = promisify(execFile);

export type DiskUse = { bytes: number; files: number };

/**
 * Bytes on the disk and files below the folders; what vanishes meanwhile is not there. A million files take
 * `du` about two seconds.
 */
export async function diskUse(dirs: readonly string[], signal?: AbortSignal): Promise<DiskUse> {
  // Without a name it would look at the folder that we are in.
  if (dirs.length === 0) return { bytes: 0, files: 0 };
  const bytes = await du(['-sk'], dirs, signal);
  return { bytes: bytes * 1024, files: await du(['-s', '--inodes'], dirs, signal) };
}

/**
 * A job can take all permissions from its folders. As root nothing is hidden from us; else `du` runs as the
 * root of a user namespace, which may read whatever its own user has, where the kernel lets us have one.
 */
async function du(
  options: readonly string[],
  dirs: readonly string[],
  signal?: AbortSignal,
): Promise<number> {
  // It complains of each folder that it cannot read. A job can make a million of those, and what a program says
  // beyond `maxBuffer` would end it before the sum.
  const quiet = ['/bin/sh', '-c', 'exec "$@" 2>/dev/null', 'sh'];
  const command = [...quiet, 'du', ...options, '--', ...dirs];
  const inNamespace = ['unshare', '--user', '--map-root-user', ...command];
  const commands = process.getuid?.() === 0 ? [command] : [inNamespace, command];
  for (const [program = '', ...args] of commands) {
    // It ends with 1 when a file vanished while it looked; its sum is good all the same.
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

/** The free space is looked at this often, which is one system call. */
const LOOK_MS = 1_000;
/** The folders are walked at least this often, because others may free what the job takes, … */
const WALK_MS = 30_000;
/** … at once when as much as this was taken by anyone on the disk, or as is left to the job, … */
const GROWN_BYTES = 256 * 2 ** 20;
const GROWN_FILES = 100_000;
/** … and never for more than a tenth of the time. */
const REST = 9;
/** Jobs are ended a little before the floor is reached, below which the server refuses all writes. */
const BEFORE_FLOOR = 1.25;

export type DiskWatch = DiskLimits & {
  dirs: readonly string[];
  /** Free space below which the server stops writing; 0 for none. */
  floorBytes: number;
  /** The processes of the job: files that they have open and that have no name count too. */
  pids(): number[];
  /** Bytes that the job keeps elsewhere. Asked before `pids`. */
  beside?(): Promise<number>;
  measured(use: DiskUse): void;
};

/** The log's line about why a job ended; `full`: because the disk was full, and not for the job's own limits. */
export type Verdict = { reason: string; full: boolean };

/**
 * Watches until the folders hold more than they may, or until `signal` aborts.
 * @returns null when it was aborted.
 */
export async function watchDisk(
  { dirs, diskBytes, files, floorBytes, pids, beside, measured }: DiskWatch,
  signal: AbortSignal,
): Promise<Verdict | null> {
  let use: DiskUse = { bytes: 0, files: 0 };
  let walkedAt = 0;
  let restUntil = 0;
  let then = { bytes: 0, files: 0 };
  for (let pause = LOOK_MS / 4; !signal.aborted; pause = LOOK_MS) {
    try {
      await delay(pause, undefined, { signal });
      const now = await taken(dirs[0] as string);
      // What others give back meanwhile hides what this job takes: it is counted from the least that there was.
      then = { bytes: Math.min(then.bytes, now.bytes), files: Math.min(then.files, now.files) };
      const isLow = now.free < floorBytes * BEFORE_FLOOR;
      const left = { bytes: diskBytes - use.bytes, files: files - use.files };
      const due =
        isLow ||
        Date.now() - walkedAt >= WALK_MS ||
        now.bytes - then.bytes >= Math.min(left.bytes, GROWN_BYTES) ||
        now.files - then.files >= Math.min(left.files, GROWN_FILES);
      if (!due || Date.now() < restUntil) continue;
      const begun = Date.now();
      try {
        const named = await diskUse(dirs, signal);
        const elsewhere = (await beside?.()) ?? 0;
        const unlinked = await unlinkedUse(pids(), (await stat(dirs[0] as string)).dev);
        use = {
          bytes: named.bytes + unlinked.bytes + elsewhere,
          files: named.files + unlinked.files,
        };
      } finally {
        restUntil = Date.now() + REST * (Date.now() - begun);
      }
      // Not before: what could not be looked at is still due.
      then = now;
      walkedAt = begun;
      measured(use);
      if (use.bytes > diskBytes)
        return {
          full: false,
          reason: `The job was ended: it keeps ${gigabytes(use.bytes)} on disk, and disk_gb allows ${gigabytes(diskBytes)}.`,
        };
      if (use.files > files)
        return {
          full: false,
          reason: `The job was ended: it keeps ${use.files} files, and ${files} are allowed with its disk_gb.`,
        };
      // Of several jobs the small ones are spared.
      if (isLow && use.bytes > now.free)
        return {
          full: true,
          reason: `The job was ended: the server's disk is nearly full, and the job keeps ${gigabytes(use.bytes)} on it.`,
        };
    } catch {
      // Aborted; or the disk does not answer just now, and is looked at again.
    }
  }
  return null;
}

/** What all on this disk have taken together, and what is left. */
async function taken(dir: string) {
  const { bsize, blocks, bfree, bavail, files, ffree } = await statfs(dir);
  return {
    bytes: (blocks - bfree) * bsize,
    files: files - ffree,
    free: bavail * bsize,
  };
}

/** As `1.5 GB` or `300 MB`; the GB of the contract are GiB here. */
export function gigabytes(bytes: number): string {
  const gib = bytes / 2 ** 30;
  return gib >= 1 ? `${Math.round(gib * 10) / 10} GB` : `${Math.round(gib * 1024)} MB`;
}

/* Files that processes have open and that have no name any more: no walk over folders finds them. */

/** Descriptors, and what is mapped into memory; the second is shown to root alone. */
const OPEN = ['fd', 'map_files'];

/**
 * Bytes and number of such files on the disk `device`. A descriptor that is on its way through a socket, and that no
 * process has open meanwhile, is not seen.
 */
async function unlinkedUse(
  pids: readonly number[],
  device: number,
): Promise<{ bytes: number; files: number }> {
  const found = new Map<number, number>();
  for (const pid of pids) {
    for (const folder of OPEN.map((name) => `/proc/${pid}/${name}`)) {
      for (const name of namesIn(folder)) {
        const stat = statOf(`${folder}/${name}`);
        if (stat?.isFile() && stat.nlink === 0 && stat.dev === device)
          found.set(stat.ino, stat.blocks * 512);
      }
    }
    // A job has thousands of processes at most, and whoever asks has lines to copy meanwhile.
    await setImmediate();
  }
  return { bytes: [...found.values()].reduce((a, b) => a + b, 0), files: found.size };
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    // The process has ended, or we may not read its files.
    return [];
  }
}

function statOf(file: string): Stats | undefined {
  try {
    return statSync(file);
  } catch {
    return undefined;
  }
}
