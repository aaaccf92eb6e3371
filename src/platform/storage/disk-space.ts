/**
 * Watches the free space of the disks that a server writes to, and refuses writes below a minimum (LOAM_DISK_FLOOR).
 *
 * PostgreSQL stops on a full disk, and git and jobs fail midway. So writes are refused while there is still room for running
 * work and for the database's own log. Operations that free space (deletions, cancellations) and reads are not refused.
 */
import { stat, statfs } from 'node:fs/promises';
import { sleep } from '../../base/backoff.ts';
import { diskFull } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import { runLoop } from '../loop.ts';

/** Interval of checks. Data that is written between two checks must fit into the minimum. */
const CHECK_MS = 2_000;
/** Writes are accepted again above the minimum plus this fraction, so that the state does not change with every file. */
const HYSTERESIS = 0.05;
/** A disk can run out of inodes before it runs out of bytes. File systems without an inode limit report 0 of 0. */
const MIN_INODES = 2_000;

/** Free bytes of a folder's disk; 0 if the disk is nearly out of inodes. */
async function freeBytes(folder: string): Promise<number> {
  const { bavail, bsize, files, ffree } = await statfs(folder);
  return files > 0 && ffree < MIN_INODES ? 0 : bavail * bsize;
}

/** A disk that the server writes to, in bytes. `folder`: the first one on it. */
export type Disk = { folder: string; free: number; total: number; isLow: boolean };

async function readDisks(folders: readonly string[], floor: number): Promise<Disk[]> {
  const disks = new Map<number, Disk>();
  for (const folder of folders) {
    const { dev } = await stat(folder);
    if (disks.has(dev)) continue;
    const [{ bsize, blocks }, free] = await Promise.all([statfs(folder), freeBytes(folder)]);
    disks.set(dev, { folder, free, total: blocks * bsize, isLow: free < floor });
  }
  return [...disks.values()];
}

export type DiskSpace = Disposable & {
  /** Whether less than the minimum is free. */
  readonly low: boolean;
  /** Bytes that can be written before the minimum is reached. */
  readonly room: number;
  /** The disks as they are now. */
  disks(): Promise<Disk[]>;
  /** @throws AppError 500 if less than the minimum is free */
  demand(): void;
  /** Waits until writes are accepted again or `signal` aborts. */
  untilFree(signal: AbortSignal): Promise<void>;
};

type Options = {
  /** Folders whose disks are watched; several may be on one disk. */
  folders: readonly string[];
  /** Minimum of free bytes; 0 disables the check. */
  floor: number;
  log: Logger;
  /** Called when writes are accepted again. */
  onFree(): void;
};

export async function watchDiskSpace({ folders, floor, log, onFree }: Options): Promise<DiskSpace> {
  let low = false;
  let room = Number.POSITIVE_INFINITY;

  async function check(): Promise<void> {
    try {
      const free = Math.min(...(await Promise.all(folders.map(freeBytes))));
      room = Math.max(0, free - floor);
      const wasLow = low;
      low = free < (low ? floor * (1 + HYSTERESIS) : floor);
      if (low && !wasLow) log.error({ free, floor }, 'the disk is nearly full; writes are refused');
      if (wasLow && !low) {
        log.warn({ free, floor }, 'the disk has free space again; writes are accepted');
        onFree();
      }
    } catch (error) {
      log.error({ err: error }, 'cannot determine the free space of the disk');
    }
  }

  const stopping = new AbortController();
  if (floor > 0) {
    await check();
    const { signal } = stopping;
    const name = 'Checking the free space of the disk';
    // Not awaited at the end: a check may hang on a network file system.
    void runLoop({ name, every: CHECK_MS, waitsFirst: true, signal, log }, check);
  }
  return {
    get low() {
      return low;
    },
    get room() {
      return room;
    },
    disks: () => readDisks(folders, floor),
    demand() {
      if (low) throw diskFull();
    },
    async untilFree(signal) {
      while (low && !signal.aborted) await sleep(CHECK_MS / 4, signal);
    },
    [Symbol.dispose]: () => stopping.abort(),
  };
}
