/**
 * Folders of repositories that several jobs of this machine mount, so that none of them waits for a copy. Each is named after the
 * repository and the tree, whose contents never change:
 *
 *   <repository>-<tree>/files   the files, owned by the server
 *   <repository>-<tree>/users   an empty file for each attempt that has mounted it, named by its id
 *   <repository>-<tree>/bytes   the size on disk
 *
 * A folder is filled under a temporary name, and renamed when its files are on the disk. Its time of change is that of its last use.
 * Above the limit, the folders that were not used for the longest time are removed, except those of attempts that have not ended.
 */
import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdir, readdir, readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type pg from 'pg';
import type { Logger } from '../../base/log.ts';

const run = promisify(execFile);

const TEMPORARY = 'tmp-';

type Filled = {
  bytes: number;
  /** False if another fill may give other files: then no other attempt gets these. */
  isComplete: boolean;
};

export class InputCache {
  readonly #dir: string;
  readonly #maxBytes: number;
  readonly #pool: pg.Pool;
  readonly #log: Logger;
  readonly #filling = new Map<string, Promise<string>>();
  /** A folder is neither taken nor removed while another one is. */
  #turn: Promise<unknown> = Promise.resolve();
  #isOpen = false;

  /** @param dir need not exist */
  constructor(
    dir: string,
    { maxBytes, pool, log }: { maxBytes: number; pool: pg.Pool; log: Logger },
  ) {
    this.#dir = dir;
    this.#maxBytes = maxBytes;
    this.#pool = pool;
    this.#log = log;
  }

  /**
   * Finds a folder, or creates it with `fill`. It stays until the attempt has ended.
   * @returns the path of its files
   */
  async acquire(
    { key, attemptId, signal }: { key: string; attemptId: string; signal: AbortSignal },
    fill: (dir: string) => Promise<Filled>,
  ): Promise<string> {
    await this.#alone(() => this.#open());
    for (;;) {
      signal.throwIfAborted();
      const found = await this.#alone(() => this.#take(key, attemptId));
      if (found) return found;
      const other = this.#filling.get(key);
      if (!other) {
        const filling = this.#fill(key, attemptId, fill).finally(() => this.#filling.delete(key));
        this.#filling.set(key, filling);
        const path = await filling;
        await this.#removeUnused().catch((error) =>
          this.#log.error({ err: error }, 'Cannot remove inputs of earlier jobs'),
        );
        return path;
      }
      // If it fails, this attempt tries it, because the reason may be the end of the other attempt.
      await Promise.race([other.catch(() => {}), aborted(signal)]);
    }
  }

  /** Removes what the previous process has left incomplete. */
  async #open(): Promise<void> {
    if (this.#isOpen) return;
    await mkdir(this.#dir, { recursive: true, mode: 0o700 });
    for (const name of await readdir(this.#dir))
      if (name.startsWith(TEMPORARY)) await this.#remove(name);
    this.#isOpen = true;
  }

  async #take(key: string, attemptId: string): Promise<string | null> {
    const folder = join(this.#dir, key);
    try {
      await writeFile(join(folder, 'users', attemptId), '');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
      throw error;
    }
    const now = new Date();
    await utimes(folder, now, now);
    return join(folder, 'files');
  }

  async #fill(
    key: string,
    attemptId: string,
    fill: (dir: string) => Promise<Filled>,
  ): Promise<string> {
    const temporary = TEMPORARY + randomUUID();
    const folder = join(this.#dir, temporary);
    try {
      for (const name of ['', 'files', 'users']) await mkdir(join(folder, name));
      const { bytes, isComplete } = await fill(join(folder, 'files'));
      // Jobs run as other users.
      await run('chmod', ['-R', 'a+rX,go-w', join(folder, 'files')]);
      await writeFile(join(folder, 'bytes'), `${bytes}`);
      await writeFile(join(folder, 'users', attemptId), '');
      // After a power failure, a folder with this name must have all its contents.
      await run('sync', ['-f', folder]);
      const name = isComplete ? key : `${key}-${temporary}`;
      await rename(folder, join(this.#dir, name));
      return join(this.#dir, name, 'files');
    } catch (error) {
      await this.#remove(temporary);
      throw error;
    }
  }

  async #removeUnused(): Promise<void> {
    const names = await readdir(this.#dir);
    const folders = await Promise.all(
      names
        .filter((name) => !name.startsWith(TEMPORARY))
        .map(async (name) => {
          const bytes = Number(await readFile(join(this.#dir, name, 'bytes'), 'utf8'));
          return { name, bytes, usedAt: (await stat(join(this.#dir, name))).mtimeMs };
        }),
    );
    let total = folders.reduce((sum, { bytes }) => sum + bytes, 0);
    for (const { name, bytes } of folders.toSorted((a, b) => a.usedAt - b.usedAt)) {
      if (total <= this.#maxBytes) return;
      const removing = TEMPORARY + randomUUID();
      const isUnused = await this.#alone(async () => {
        if (await this.#isUsed(name)) return false;
        await rename(join(this.#dir, name), join(this.#dir, removing));
        return true;
      });
      if (!isUnused) continue;
      await this.#remove(removing);
      total -= bytes;
    }
  }

  async #isUsed(name: string): Promise<boolean> {
    const users = await readdir(join(this.#dir, name, 'users'));
    const { rows } = await this.#pool.query(
      'select from job_attempts where id = any ($1) and ended_at is null limit 1',
      [users],
    );
    return rows.length > 0;
  }

  #remove(name: string): Promise<void> {
    return rm(join(this.#dir, name), { recursive: true, force: true });
  }

  #alone<T>(work: () => Promise<T>): Promise<T> {
    const working = this.#turn.then(work);
    this.#turn = working.catch(() => {});
    return working;
  }
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    signal.addEventListener('abort', () => resolve(), { once: true });
  });
}
