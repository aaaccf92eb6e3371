/**
 * Gives jobs a lower CPU priority than the server, because each job waits for the server at its start and end. With 8 short
 * jobs at a time on a busy machine, the server's thread waited 10 ms a job for a core when jobs had a third of its share, and
 * 27 to 30 ms with equal shares. Jobs still use idle cores fully.
 *
 * Jobs get half of the server's share, so that they progress when other programs keep every core busy: with a quarter, and
 * three test runs on two cores, a sandbox took seconds to start. Three settings are made, because the kernel uses only one of
 * them: that of the control group of all jobs if it exists; else that of the shim's session, where sessions have equal shares
 * (`autogroup`); else that of each process. None needs special rights.
 */
import { writeFileSync } from 'node:fs';
import { getPriority, setPriority } from 'node:os';

/** Nice value for a process and a session. Each step divides the share by 1.25; child processes inherit it. */
const NICE = 3;
const MAX_NICE = 19;
/** CPU share of the control group of all jobs, in versions 1 and 2 of the interface, whose defaults are 1,024 and 100. */
export const GROUP_SHARES = 512;
export const GROUP_WEIGHT = 50;

let isProcessNice = false;
/** Also true where the kernel has no session priorities or refuses them. */
let isSessionNice = false;

/** For a process with a session of its own. Called repeatedly, because the kernel limits the rate of these changes. */
export function lowerPriority(): void {
  if (isSessionNice) return;
  try {
    // Relative to the inherited priority of the server, which may be lower than normal.
    if (!isProcessNice) setPriority(Math.min(MAX_NICE, getPriority() + NICE));
    isProcessNice = true;
    writeFileSync('/proc/self/autogroup', String(NICE));
    isSessionNice = true;
  } catch (error) {
    // Any other error: the kernel has no session priorities.
    isSessionNice = (error as NodeJS.ErrnoException).code !== 'EAGAIN';
  }
}
