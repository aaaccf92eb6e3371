/**
 * Gives jobs a lower CPU priority than the server, because each job waits for the server at its start and end. With 8 short
 * jobs in flight beside other programs, the server's thread waited for a core for 10 ms a job when jobs had a third of its
 * share, and for 27 to 30 ms with equal shares. Jobs still use idle cores fully.
 *
 * Jobs get half of the server's share, so that they progress when other programs keep every core busy: with a quarter,
 * beside three test runs on two cores, a sandbox took seconds to start. There are three settings, because the kernel uses
 * only one: the control group of all jobs if there is one; else the shim's session, where sessions have equal shares
 * (`autogroup`); else each process. None needs special rights.
 */
import { writeFileSync } from 'node:fs';
import { getPriority, setPriority } from 'node:os';

/** For a process and a session. Each step divides the share by 1.25; child processes inherit it. */
const NICE = 3;
const MAX_NICE = 19;
/** For the control group of all jobs. The defaults are 1,024 in version 1 and 100 in version 2 of the interface. */
export const GROUP_SHARES = 512;
export const GROUP_WEIGHT = 50;

let isProcessNice = false;
/** Also true where the kernel has no session priorities or refuses them. */
let isSessionNice = false;

/** For a process with a session of its own. Call it repeatedly, because the kernel limits the rate of such changes. */
export function lowerPriority(): void {
  if (isSessionNice) return;
  try {
    // Relative to the server, which may have been started with a lower priority.
    if (!isProcessNice) setPriority(Math.min(MAX_NICE, getPriority() + NICE));
    isProcessNice = true;
    writeFileSync('/proc/self/autogroup', String(NICE));
    isSessionNice = true;
  } catch (error) {
    // Any other error: the kernel has no session priorities.
    isSessionNice = (error as NodeJS.ErrnoException).code !== 'EAGAIN';
  }
}
