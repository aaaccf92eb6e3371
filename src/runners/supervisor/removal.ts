/**
 * Removes the files of ended attempts in the background. A job may leave a million files, folders deeper than the longest
 * path, folders without permissions, immutable files, or mounts. Their removal must not occupy a slot or delay a start, so a
 * folder is moved to the trash at once, and its removal is retried until it succeeds.
 */
import { randomUUID } from 'node:crypto';
import { existsSync, renameSync } from 'node:fs';
import { mkdir, readdir, readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { Backoff, sleep } from '../../base/backoff.ts';
import { run } from '../../platform/processes/starter.ts';
import { unescapeMountPath } from './folder.ts';

const PAUSES = { firstMs: 1_000, longestMs: 10 * 60_000 };
/** One `rm` removes all folders of this interval. It takes 5 ms of a core; removal in this thread takes 4 ms for each job. */
const BATCH_MS = 500;

export type Removal = AsyncDisposable & {
  /**
   * Moves a folder to the trash at once and removes it later; does nothing if the folder does not exist.
   * @throws Error when the folder cannot be moved
   */
  discard(folder: string): Promise<void>;
};

/** @param trash may contain folders that the previous server did not remove */
export async function openRemoval(
  trash: string,
  report: (error: unknown, message: string) => void,
): Promise<Removal> {
  await mkdir(trash, { recursive: true, mode: 0o700 });
  const closing = new AbortController();
  const { signal } = closing;
  const tasks = new Set<Promise<void>>();
  /** Only one `rm` runs at a time, so that jobs keep most of the disk's throughput. */
  let last: Promise<void> = Promise.resolve();
  const oneAtATime = (work: () => Promise<void>): Promise<void> => {
    last = last.catch(() => {}).then(work);
    return last;
  };
  function track(task: Promise<void>): void {
    tasks.add(task);
    void task.then(() => tasks.delete(task));
  }

  /** Retries until the removal succeeds. Only the first failure is reported. */
  async function removeWithRetries(folder: string): Promise<void> {
    let reported = false;
    const backoff = new Backoff(PAUSES);
    while (!signal.aborted) {
      try {
        return await oneAtATime(() => removeTree(folder, signal));
      } catch (error) {
        if (!signal.aborted && !reported) report(error, `${folder} is not removed yet`);
        reported = true;
        await sleep(backoff.next(), signal, { ref: false });
      }
    }
  }

  /** Folders of the next batch. */
  let waiting: string[] = [];
  function queueRemoval(name: string): void {
    waiting.push(join(trash, name));
    if (waiting.length === 1) track(sleep(BATCH_MS, signal, { ref: false }).then(removeBatch));
  }

  async function removeBatch(): Promise<void> {
    const folders = waiting;
    waiting = [];
    if (signal.aborted) return;
    try {
      await oneAtATime(() => removeTrees(folders, signal));
    } catch {
      // At least one folder needs more than `rm`, so each is removed separately.
      for (const folder of folders) track(removeWithRetries(folder));
    }
  }

  for (const name of await readdir(trash)) queueRemoval(name);

  return {
    async discard(folder) {
      const name = `${basename(folder)}.${randomUUID()}`;
      // Synchronous: it is one system call, which is faster than a request to Node's thread pool.
      const move = () => renameSync(folder, join(trash, name));
      try {
        move();
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code === 'ENOENT' && !existsSync(folder)) return;
        await clearObstacles(folder, signal);
        move();
      }
      queueRemoval(name);
    },
    async [Symbol.asyncDispose]() {
      closing.abort();
      await Promise.all(tasks);
    },
  };
}

/**
 * Removes a folder with any contents by the program `rm`, which handles paths of any length because it changes from folder to
 * folder. Node's `rm` is limited to paths of 4,096 bytes, and a million files would block its thread pool.
 * @throws Error when files are left
 */
export async function removeTree(folder: string, signal?: AbortSignal): Promise<void> {
  // Mounts first, because `rm` would delete the files of a mounted file system.
  await unmountBelow(folder);
  const remove = () => run('rm', ['-rf', '--', folder], { signal });
  try {
    await remove();
  } catch {
    signal?.throwIfAborted();
    await clearObstacles(folder, signal);
    await remove();
  }
}

/**
 * Removes folders that need no unmounting or changes of permissions.
 * @throws Error when files are left
 */
async function removeTrees(folders: readonly string[], signal: AbortSignal): Promise<void> {
  const mounts = await mountPoints();
  const left = mounts.find((point) => folders.some((folder) => isWithin(point, folder)));
  if (left) throw new Error(`something is mounted at ${left}`);
  await run('rm', ['-rf', '--', ...folders], { signal });
}

/** Removes obstacles to moving or removing a folder, as far as permitted: mounts, permissions, immutable flags. */
async function clearObstacles(folder: string, signal?: AbortSignal): Promise<void> {
  await unmountBelow(folder);
  // Errors are ignored: the next removal shows whether the obstacles are gone.
  const attempt = (program: string, ...args: string[]) =>
    run(program, args, { signal }).catch(() => {});
  // Permissions first: `chattr` cannot enter folders without them.
  await attempt('chmod', '-R', 'u+rwx', '--', folder);
  if (process.getuid?.() !== 0) return;
  await attempt('chattr', '-R', '-f', '-i', '-a', '--', folder);
  await attempt('chmod', '-R', 'u+rwx', '--', folder);
}

/** @throws Error when a mount in the folder cannot be removed */
async function unmountBelow(folder: string): Promise<void> {
  for (const point of await mountsBelow(folder)) await run('umount', ['-l', '--', point]);
  const [left] = await mountsBelow(folder);
  if (left) throw new Error(`something is mounted at ${left}`);
}

/** Mount points in the folder, innermost first. */
async function mountsBelow(folder: string): Promise<string[]> {
  return (await mountPoints()).filter((point) => isWithin(point, folder)).reverse();
}

function isWithin(path: string, folder: string): boolean {
  return path === folder || path.startsWith(`${folder}/`);
}

/** All mount points of this machine. On other systems than Linux a job cannot mount anything. */
async function mountPoints(): Promise<string[]> {
  const text = await readFile('/proc/self/mountinfo', 'utf8').catch(() => '');
  return text.split('\n').map((line) => unescapeMountPath(line.split(' ')[4] ?? ''));
}
