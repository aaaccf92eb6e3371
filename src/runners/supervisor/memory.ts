/** The memory of a job where no control group holds it: looked at every second, and ended beyond its limit. */
import { readFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { gigabytes, type Verdict } from './disk.ts';
import { statOf } from './proc.ts';

const LOOK_MS = 1_000;
const PAGE = 4096;

/**
 * Watches until the processes have more memory than `limit` bytes, or until `signal` aborts.
 * @returns null when it was aborted.
 */
export async function watchMemory(
  pids: () => number[],
  limit: number,
  signal: AbortSignal,
): Promise<Verdict | null> {
  for (;;) {
    await delay(LOOK_MS, undefined, { signal }).catch(() => {});
    if (signal.aborted) return null;
    const all = pids();
    // What each has in memory is quick to read, but counts shared pages once for each of them.
    if (sum(all, residentMemory) > limit && sum(all, proportionalMemory) > limit)
      return {
        full: false,
        reason: `The job ran out of memory and was ended. It may use ${gigabytes(limit)}.`,
      };
  }
}

/** A line for the log. @param killed how many processes @param bytes what the job may use */
export function tellOutOfMemory(killed: number, bytes: number): string {
  const who = killed === 1 ? 'a process was' : `${killed} processes were`;
  return `The job ran out of memory: ${who} killed. It may use ${gigabytes(bytes)}.`;
}

function sum(pids: readonly number[], of: (pid: number) => number): number {
  return pids.reduce((total, pid) => total + of(pid), 0);
}

/** Bytes; 0 of a process that is gone. */
export function residentMemory(pid: number): number {
  return Number(statOf(pid)?.fields[21] ?? 0) * PAGE;
}

/** Bytes, with pages that processes share counted once in all; where that is not readable, all of them. */
export function proportionalMemory(pid: number): number {
  try {
    const text = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8');
    return Number(/^Pss: +(\d+) kB/m.exec(text)?.[1] ?? 0) * 1024;
  } catch {
    return residentMemory(pid);
  }
}
