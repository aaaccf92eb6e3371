/** Files by which a shim or recorder, which outlives the server, claims its attempt and records the result. */
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
import { readProcessIdentity } from './proc.ts';

/** The exit code of a shim that could not start because the disk was full. Nothing of the attempt has run. */
export const DISK_FULL_EXIT = 28;

export type Claim = { pid: number; startTime: string; bootId: string };

/**
 * Tries to claim the attempt for this process. The claim appears complete, by a link, and only once. It is not synced, which
 * would delay the job: after a loss of power it belongs to an earlier boot, even when the file is empty.
 * @returns whether this process has the claim
 */
export function takeClaim(file: string): boolean {
  const own = `${file}.${process.pid}`;
  const text: Claim = { pid: process.pid, ...readProcessIdentity(process.pid) };
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

/** An empty log is not synced, because each sync is three requests to the disk and a wait. */
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

/** Replaces the file atomically. With `folderToSync`, the file is durable when this returns. */
export function writeJsonAtomically(file: string, value: object, folderToSync?: string): void {
  writeFileSync(`${file}.new`, JSON.stringify(value), { flush: folderToSync !== undefined });
  renameSync(`${file}.new`, file);
  if (folderToSync) sync(folderToSync);
}
