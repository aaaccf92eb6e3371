/**
 * Removing the files of ended attempts in the background: a job may leave a million files, folders deeper than any
 * path may be long, folders without permissions, files that may not be removed, or mounts. None of it holds a slot
 * or a start: a folder is renamed away at once, and removed later, again and again until it is gone.
 */
import { randomUUID } from 'node:crypto';
import { existsSync, renameSync } from 'node:fs';
import { mkdir, readdir, readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { run } from '../../platform/processes/starter.ts';
import { mountPath } from './folder.ts';

/** What could not be removed is tried again after this, doubling. */
const FIRST_PAUSE_MS = 1_000;
const MAX_PAUSE_MS = 10 * 60_000;
/** A program takes 5 ms of a core, and this thread would take 4 for a job of few files: so one removes those of several. */
const GATHER_MS = 500;

export type Removal = AsyncDisposable & {
  /**
   * Takes a folder away at once and removes it later; nothing happens when there is none.
   * @throws Error when it cannot be taken away.
   */
  discard(folder: string): Promise<void>;
};

/** Works in the folder `trash`, beginning with what an earlier server left there. */
export async function openRemoval(
  trash: string,
  report: (error: unknown, what: string) => void,
): Promise<Removal> {
  await mkdir(trash, { recursive: true, mode: 0o700 });
  const closing = new AbortController();
  const { signal } = closing;
  const tasks = new Set<Promise<void>>();
  /** One `rm` at a time, so that it leaves most of the disk to the jobs. */
  let last: Promise<void> = Promise.resolve();
  const inTurn = (work: () => Promise<void>): Promise<void> => {
    last = last.catch(() => {}).then(work);
    return last;
  };
  function own(task: Promise<void>): void {
    tasks.add(task);
    void task.then(() => tasks.delete(task));
  }

  /** Until it succeeds. A failure is reported once. */
  async function removeAtLast(folder: string): Promise<void> {
    let reported = false;
    for (let pause = FIRST_PAUSE_MS; !signal.aborted; pause = Math.min(2 * pause, MAX_PAUSE_MS)) {
      try {
        return await inTurn(() => removeTree(folder, signal));
      } catch (error) {
        if (!signal.aborted && !reported) report(error, `${folder} is not removed yet`);
        reported = true;
        await rest(pause, signal);
      }
    }
  }

  /** Those that come soon after each other go together. */
  let waiting: string[] = [];
  function removeLater(name: string): void {
    waiting.push(join(trash, name));
    if (waiting.length === 1) own(rest(GATHER_MS, signal).then(removeWaiting));
  }

  async function removeWaiting(): Promise<void> {
    const folders = waiting;
    waiting = [];
    if (signal.aborted) return;
    try {
      await inTurn(() => removeTrees(folders, signal));
    } catch {
      // One of them does not go as the others do.
      for (const folder of folders) own(removeAtLast(folder));
    }
  }

  for (const name of await readdir(trash)) removeLater(name);

  return {
    async discard(folder) {
      const name = `${basename(folder)}.${randomUUID()}`;
      // At once: it is one step, and Node's threads take this one longer to ask.
      const move = () => renameSync(folder, join(trash, name));
      try {
        move();
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code === 'ENOENT' && !existsSync(folder)) return;
        await release(folder, signal);
        move();
      }
      removeLater(name);
    },
    async [Symbol.asyncDispose]() {
      closing.abort();
      await Promise.all(tasks);
    },
  };
}

/** Does not hold the process: what is left is removed after the next start. */
function rest(ms: number, signal: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, ms);
  timer.unref();
  const end = () => resolve();
  signal.addEventListener('abort', end, { once: true });
  if (signal.aborted) resolve();
  return promise.finally(() => {
    clearTimeout(timer);
    signal.removeEventListener('abort', end);
  });
}

/**
 * Removes a folder whatever is in it, by `rm`, which goes from folder to folder: paths of Node's own
 * `rm` end at 4,096 bytes, and a million files would keep its threads from everything else.
 * @throws Error when something is left.
 */
export async function removeTree(folder: string, signal?: AbortSignal): Promise<void> {
  // First, or what is mounted would be emptied.
  await unmountBelow(folder);
  const remove = () => run('rm', ['-rf', '--', folder], { signal });
  try {
    await remove();
  } catch {
    signal?.throwIfAborted();
    await release(folder, signal);
    await remove();
  }
}

/** Removes folders in which nothing is in the way. @throws Error when something is left */
async function removeTrees(folders: readonly string[], signal: AbortSignal): Promise<void> {
  const mounts = await mountPoints();
  const left = mounts.find((point) => folders.some((folder) => isWithin(point, folder)));
  if (left) throw new Error(`something is mounted at ${left}`);
  await run('rm', ['-rf', '--', ...folders], { signal });
}

/** Undoes what keeps a folder from being moved or removed, as far as we may. */
async function release(folder: string, signal?: AbortSignal): Promise<void> {
  await unmountBelow(folder);
  // Each has its errors; what counts is whether the folder can be removed now.
  const attempt = (program: string, ...args: string[]) =>
    run(program, args, { signal }).catch(() => {});
  // Permissions first: without them the files that may not be changed are not found.
  await attempt('chmod', '-R', 'u+rwx', '--', folder);
  if (process.getuid?.() !== 0) return;
  await attempt('chattr', '-R', '-f', '-i', '-a', '--', folder);
  await attempt('chmod', '-R', 'u+rwx', '--', folder);
}

/** @throws Error when something is mounted in the folder and stays. */
async function unmountBelow(folder: string): Promise<void> {
  for (const point of await mountsBelow(folder)) await run('umount', ['-l', '--', point]);
  const [left] = await mountsBelow(folder);
  if (left) throw new Error(`something is mounted at ${left}`);
}

/** The innermost first. */
async function mountsBelow(folder: string): Promise<string[]> {
  return (await mountPoints()).filter((point) => isWithin(point, folder)).reverse();
}

function isWithin(path: string, folder: string): boolean {
  return path === folder || path.startsWith(`${folder}/`);
}

/** Of this machine. Elsewhere than on Linux a job cannot mount anything. */
async function mountPoints(): Promise<string[]> {
  const text = await readFile('/proc/self/mountinfo', 'utf8').catch(() => '');
  return text.split('\n').map((line) => mountPath(line.split(' ')[4] ?? ''));
}
