/** Writes the files by which a shim, which outlives the server, claims its attempt and records the result. */
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

/** The exit code of a shim that could not start because the disk was full. No part of the attempt has run. */
export const DISK_FULL_EXIT = 28;

/** Identifies a process for ever: start time and boot id distinguish it from later processes with the same pid. */
export type ProcessIdentity = { pid: number; startTime: string; bootId: string };

/**
 * Tries to claim the attempt for this process. A link makes the complete claim appear at once, and only once. The file is not
 * synced, which would delay the job: after a loss of power the claim belongs to an earlier boot, even if the file is empty.
 * @returns whether this process has the claim
 */
export function takeClaim(file: string): boolean {
  const ownFile = `${file}.${process.pid}`;
  const claim: ProcessIdentity = { pid: process.pid, ...readProcessIdentity(process.pid) };
  writeFileSync(ownFile, JSON.stringify(claim));
  try {
    linkSync(ownFile, file);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  } finally {
    unlinkSync(ownFile);
  }
}

/** Syncs a log that is not empty: a sync takes three requests to the disk and a wait. */
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
