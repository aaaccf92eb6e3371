/**
 * Which of the server and its jobs waits where both want a core: the jobs, since each waits for the server at its start and at its
 * end. With 8 short jobs in flight beside other programs the server's thread waited for a core 10 ms a job where jobs had a
 * third of its share, and 27 to 30 where they had as much. A core that nobody else wants is theirs as before. Requests beside
 * jobs that compute without end were as quick without it, where there are control groups.
 *
 * Half of the server's share, so that jobs go on where other programs keep every core busy: with a quarter, beside three test
 * runs on two cores, a sandbox took seconds to start. It takes three settings, because the kernel looks at one of them alone:
 * at the control group of all jobs where there is one; else, where sessions have equal shares (`autogroup`), at that of the
 * shim; else at each process. None of them takes a right.
 */
import { writeFileSync } from 'node:fs';
import { getPriority, setPriority } from 'node:os';

/** Of a process, and of a session; each step is 1.25 times less, and what a job starts inherits it. */
const NICE = 3;
const LEAST = 19;
/** Of the control group of all jobs, where others have 1,024 in version 1 and 100 in version 2 of the interface. */
export const GROUP_SHARES = 512;
export const GROUP_WEIGHT = 50;

let isProcessNice = false;
/** Or need not be, or cannot. */
let isSessionNice = false;

/** For a process that has a session of its own; to be called again, since the kernel takes only some of many at once. */
export function giveWay(): void {
  if (isSessionNice) return;
  try {
    // The server itself may have been started with less than others.
    if (!isProcessNice) setPriority(Math.min(LEAST, getPriority() + NICE));
    isProcessNice = true;
    writeFileSync('/proc/self/autogroup', String(NICE));
    isSessionNice = true;
  } catch (error) {
    // Without the file the kernel knows no such shares.
    isSessionNice = (error as NodeJS.ErrnoException).code !== 'EAGAIN';
  }
}
