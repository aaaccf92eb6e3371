/**
 * The floor of free space on the disks that a server writes to, below which nothing is begun that writes.
 *
 * PostgreSQL that meets a full disk ends itself, and git and jobs fail half-way. So writes are refused while
 * there is still room for what is under way and for the database's own log. What frees space (deletions,
 * cancellations) is not refused, and reads go on.
 */
import { statfs } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { diskFull } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';

/** One call of statfs each; what is written in between must fit into the floor. */
const CHECK_MS = 2_000;
/** Bytes. */
async function freeOf(folder: string): Promise<number> {
  const { bavail, bsize, files, ffree } = await statfs(folder);
  return files > 0 && ffree < MIN_FILES ? 0 : bavail * bsize;
}

/** Back above the floor by a part of it, so that writes do not come and go with every file that is removed. */
const SLACK = 0.05;
/** A disk may run out of files before it runs out of bytes. File systems without a limit say 0 of 0. */
const MIN_FILES = 2_000;

export type DiskSpace = Disposable & {
  /** Whether less than the floor is free. */
  readonly low: boolean;
  /** Bytes that can be written before the floor is reached. */
  readonly room: number;
  /** @throws AppError 500 when less than the floor is free. */
  demand(): void;
  /** Waits until there is space again, or `signal` aborts. */
  untilFree(signal: AbortSignal): Promise<void>;
};

type Options = {
  /** On the disks that are watched; they may be on one. */
  folders: readonly string[];
  /** In bytes; 0 for none. */
  floor: number;
  log: Logger;
  /** Called when there is space again. */
  onFree(): void;
};

export async function watchDiskSpace({ folders, floor, log, onFree }: Options): Promise<DiskSpace> {
  let low = false;
  let room = Number.POSITIVE_INFINITY;
  let busy = false;

  async function check(): Promise<void> {
    // A network file system that hangs must not gather calls.
    if (busy) return;
    busy = true;
    try {
      const free = Math.min(...(await Promise.all(folders.map(freeOf))));
      room = Math.max(0, free - floor);
      const wasLow = low;
      low = free < (low ? floor * (1 + SLACK) : floor);
      if (low && !wasLow) log.error({ free, floor }, 'the disk is nearly full: writes are refused');
      if (wasLow && !low) {
        log.warn({ free, floor }, 'there is space on the disk again: writes are accepted');
        onFree();
      }
    } catch (error) {
      log.error({ err: error }, 'the free space of the disk is not known');
    } finally {
      busy = false;
    }
  }

  if (floor > 0) await check();
  const timer = floor > 0 ? setInterval(check, CHECK_MS).unref() : undefined;
  return {
    get low() {
      return low;
    },
    get room() {
      return room;
    },
    demand() {
      if (low) throw diskFull();
    },
    async untilFree(signal) {
      while (low && !signal.aborted)
        await delay(CHECK_MS / 4, undefined, { signal }).catch(() => {});
    },
    [Symbol.dispose]: () => clearInterval(timer),
  };
}
