/** What a process tree uses, from /proc. Linux alone: elsewhere there is nothing to read. */
import { proportionalMemory } from '../supervisor/memory.ts';
import { descendants, statOf } from '../supervisor/proc.ts';

/** USER_HZ, which is 100 on every Linux that Node runs on. */
const TICKS_PER_SECOND = 100;

export type TreeUsage = { cpuSeconds: number; memoryBytes: number };

/** Of `root` and all below it; null when it is gone. */
export function usageOfTree(root: number): TreeUsage | null {
  if (!statOf(root)) return null;
  let ticks = 0;
  let memoryBytes = 0;
  for (const pid of [root, ...descendants(root)]) {
    const fields = statOf(pid)?.fields;
    if (!fields) continue;
    // Fields 14 to 17: own user and system time, and that of children that were waited for, so that
    // each second is counted once whether the process that used it is alive or over.
    for (const field of fields.slice(11, 15)) ticks += Number(field);
    memoryBytes += proportionalMemory(pid);
  }
  return { cpuSeconds: ticks / TICKS_PER_SECOND, memoryBytes };
}
