/** Reads an attempt's files that a shim writes, and waits for their changes. */
import { type FSWatcher, readFileSync, watch } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import type { ProcessIdentity } from './claim.ts';
import {
  killMarked,
  listMarkedPids,
  readBootId,
  readProcessStat,
  USES_LIMIT_MARK,
} from './proc.ts';

/**
 * Reads a JSON file that is written atomically; undefined while it does not exist. The read is synchronous, because the file
 * is small and in the page cache: a request to Node's thread pool blocks this thread as long, and occupies a pool thread too.
 */
export async function readJsonFile<T>(file: string): Promise<T | undefined> {
  try {
    return JSON.parse(readFileSync(file, 'utf8'));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}

/** A claim of no existing process. */
const DEAD_CLAIM: ProcessIdentity = { pid: 0, startTime: '0', bootId: '' };

/** Undefined when there is no claim. A file that a loss of power emptied counts as the claim of a dead process. */
export async function readClaim(file: string): Promise<ProcessIdentity | undefined> {
  return readJsonFile<ProcessIdentity>(file).catch((error) => {
    if (error instanceof SyntaxError) return DEAD_CLAIM;
    throw error;
  });
}

/** Whether the process still runs. The pid alone may belong to another process by now. */
export function isAlive({ pid, startTime, bootId }: ProcessIdentity): boolean {
  if (!startTime) return pidExists(pid);
  const stat = readProcessStat(pid);
  // An ended shim stays in the process table until its parent reads its exit code.
  if (!stat || stat.state === 'Z' || stat.state === 'X') return false;
  return stat.startTime === startTime && readBootId() === bootId;
}

function pidExists(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

/** Kills processes that a dead shim left behind, so that no process of a lost attempt continues. */
export async function killStrays(attempt: string): Promise<void> {
  const deadline = Date.now() + 5_000;
  // A single pass may miss processes of a fork bomb. A root server finds them by their user.
  const passes = USES_LIMIT_MARK ? 2 : 1;
  for (let empty = 0; ; ) {
    empty = killMarked(attempt) ? 0 : empty + 1;
    if (empty === passes) return;
    if (Date.now() > deadline)
      throw new Error(`processes of ${attempt} do not die: ${listMarkedPids(attempt)}`);
    if (empty === 0) await delay(10);
  }
}

/**
 * Longest wait for a change. Callers then check whether a process still runs, because inotify reports changes of files, but
 * not the end of a process that is not a child.
 */
const POLL_MS = 1_000;

export type Changes = Disposable & {
  /** Settles with true after a change since the last call, or with false after a second without one. */
  next(): Promise<boolean>;
};

/**
 * Watches a folder. Disposing of the watcher, or aborting `signal`, settles a pending `next`.
 * @param names files to watch; unset: all. A filter saves wakeups, because a shim makes about twenty changes for each job
 */
export function watchChanges(dir: string, signal: AbortSignal, names?: readonly string[]): Changes {
  let changed = false;
  let wake: (() => void) | undefined;
  const notify = () => {
    changed = true;
    wake?.();
  };
  let watcher: FSWatcher | undefined;
  try {
    watcher = watch(dir, { persistent: false }, (_, name) => {
      if (!names || name === null || names.includes(name)) notify();
    });
    // The folder may be removed while it is watched. The check every second remains.
    watcher.on('error', () => {});
  } catch {
    // This machine has no inotify watch left. The check every second remains.
  }
  signal.addEventListener('abort', notify);
  return {
    async next() {
      if (!changed && !signal.aborted) {
        const { promise, resolve } = Promise.withResolvers<void>();
        wake = resolve;
        const timer = setTimeout(resolve, POLL_MS);
        await promise;
        clearTimeout(timer);
        wake = undefined;
      }
      const isNew = changed;
      changed = false;
      return isNew;
    },
    [Symbol.dispose]() {
      signal.removeEventListener('abort', notify);
      watcher?.close();
      notify();
    },
  };
}

/** Decodes a path of /proc/self/mountinfo, where special characters are octal escapes such as `\040`. */
export function unescapeMountPath(text: string): string {
  return text.replace(/\\(\d{3})/g, (_, digits) => String.fromCharCode(Number.parseInt(digits, 8)));
}
