/** The folder of an attempt, as the server sees it: reading what the shim wrote, and waiting for changes. */
import { type FSWatcher, readFileSync, watch } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import type { Claim } from './claim.ts';
import { bootIdNow, killMarked, MARKS_LIMITS, markedPids, statOf } from './proc.ts';

/**
 * Reads a file that the shim writes whole; undefined while it does not exist. Read at once: it is small, and was just
 * written. By Node's threads it took this one as long, and theirs too.
 */
export async function readWhole<T>(file: string): Promise<T | undefined> {
  try {
    return JSON.parse(readFileSync(file, 'utf8'));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}

/** Of a process that is gone. */
const VOID: Claim = { pid: 0, startTime: '0', bootId: '' };

/** Undefined: there is none. A loss of power may have emptied one. */
export async function readClaim(file: string): Promise<Claim | undefined> {
  return readWhole<Claim>(file).catch((error) => {
    if (error instanceof SyntaxError) return VOID;
    throw error;
  });
}

/** Whether the process that made the claim still runs: its pid alone may be another's by now. */
export function isAlive({ pid, startTime, bootId }: Claim): boolean {
  if (!startTime) return answers(pid);
  const stat = statOf(pid);
  // A shim that has ended stays in the process table until its exit code is read.
  if (!stat || stat.state === 'Z' || stat.state === 'X') return false;
  return stat.startTime === startTime && bootIdNow() === bootId;
}

function answers(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

/** Kills what a dead shim left running, so that an attempt said to be lost is really over. */
export async function killStrays(attempt: string): Promise<void> {
  const deadline = Date.now() + 5_000;
  // A single pass may miss processes of a job that forks without end. As root we find them by their user.
  const passes = MARKS_LIMITS ? 2 : 1;
  for (let empty = 0; ; ) {
    empty = killMarked(attempt) ? 0 : empty + 1;
    if (empty === passes) return;
    if (Date.now() > deadline)
      throw new Error(`processes of ${attempt} do not die: ${markedPids(attempt)}`);
    if (empty === 0) await delay(10);
  }
}

/** inotify reports files; nothing reports the end of a process that is no child of ours: it is looked for this often. */
const LOOK_MS = 1_000;

export type Changes = Disposable & {
  /** Settles after the next change since the last call with true, or with false after a second without one. */
  next(): Promise<boolean>;
};

/**
 * Watches a folder. Disposing it, or aborting `signal`, settles a waiting `next`.
 * @param names of the files that matter; unset: all. A shim makes some twenty changes for each job
 */
export function changesOf(dir: string, signal: AbortSignal, names?: readonly string[]): Changes {
  let changed = false;
  let wake: (() => void) | undefined;
  const ring = () => {
    changed = true;
    wake?.();
  };
  let watcher: FSWatcher | undefined;
  try {
    watcher = watch(dir, { persistent: false }, (_, name) => {
      if (!names || name === null || names.includes(name)) ring();
    });
    // The folder may be removed while it is watched; it is still looked at every second.
    watcher.on('error', () => {});
  } catch {
    // No inotify watch left on this machine: looking every second is all there is.
  }
  signal.addEventListener('abort', ring);
  return {
    async next() {
      if (!changed && !signal.aborted) {
        const { promise, resolve } = Promise.withResolvers<void>();
        wake = resolve;
        const timer = setTimeout(resolve, LOOK_MS);
        await promise;
        clearTimeout(timer);
        wake = undefined;
      }
      const isNew = changed;
      changed = false;
      return isNew;
    },
    [Symbol.dispose]() {
      signal.removeEventListener('abort', ring);
      watcher?.close();
      ring();
    },
  };
}

/** A path as /proc/self/mountinfo has it, where spaces and the like stand as `\040`. */
export function mountPath(text: string): string {
  return text.replace(/\\(\d{3})/g, (_, digits) => String.fromCharCode(Number.parseInt(digits, 8)));
}
