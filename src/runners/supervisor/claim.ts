/** How a small process that outlives the server says that it has taken up its work, and what came of it. */
import {
  closeSync,
  fsyncSync,
  linkSync,
  openSync,
  renameSync,
  statSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { identityOf } from './proc.ts';

/** Exit code of one that could not begin because the disk was full: nothing has run. */
export const DISK_FULL_EXIT = 28;

export type Claim = { pid: number; startTime: string; bootId: string };

/**
 * Whether it is ours: the claim is complete the moment it exists, and exists once. Not synced, which a job would wait for:
 * what outlives a loss of power is of an earlier start of the machine, and so is the claim, even when nothing is left in it.
 */
export function claim(file: string): boolean {
  const own = `${file}.${process.pid}`;
  const text: Claim = { pid: process.pid, ...identityOf(process.pid) };
  writeFileSync(own, JSON.stringify(text));
  try {
    linkSync(own, file);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  } finally {
    unlinkSync(own);
  }
}

/** Each sync is three requests to the disk and a wait: a log that has nothing in it needs none. */
export function syncLog(file: string): void {
  if (!statSync(file, { throwIfNoEntry: false })?.size) return;
  sync(file);
}

function sync(path: string): void {
  const opened = openSync(path, 'r');
  try {
    fsyncSync(opened);
  } finally {
    closeSync(opened);
  }
}

/** The file appears whole. On the disk for good when a folder to sync is named. */
export function writeWhole(file: string, value: object, folderToSync?: string): void {
  writeFileSync(`${file}.new`, JSON.stringify(value), { flush: folderToSync !== undefined });
  renameSync(`${file}.new`, file);
  if (folderToSync) sync(folderToSync);
}
