/**
 * Removes quarantines of interrupted pushes. Git unpacks a push into a folder beside the objects, its quarantine, and
 * removes the folder at the end of the push. Since git 2.38, git leaves the folder if a signal ends it, such as SIGPIPE
 * after the server was killed. A quarantine may be as large as the push.
 *
 * The name of a quarantine does not tell which push owns it. So the server that has the repository removes all its
 * quarantines while it runs no push to the repository, because none of them has an owner then. If another server still
 * receives a push, that push fails without any effect, because the folder is renamed away as a whole.
 */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { GitExit } from '../../platform/processes/git-started.ts';
import type { Disk, PendingOperation } from './disk.ts';

/** Note of a push on disk, from its beginning to its end. */
export type PendingReceive = { kind: 'receiving' };

export const QUARANTINE_PREFIX = 'tmp_objdir-';

export class Quarantines {
  readonly #disk: Disk;
  /** Number of pushes that run on this server, by repository id. */
  readonly #receiving = new Map<string, number>();
  /** Repositories that may contain quarantines without an owner. */
  readonly #needsCleanup = new Set<string>();

  constructor(disk: Disk) {
    this.#disk = disk;
  }

  /**
   * Runs a push. Calls `clean` when the push may have left a quarantine; `clean` must call `remove` on the server that
   * has the repository at that time. After a kill of this server, recovery calls `remove` (`repositories/recovery.ts`).
   */
  async runPush(
    id: string,
    receive: () => Promise<GitExit>,
    clean: () => Promise<void>,
  ): Promise<GitExit> {
    this.#receiving.set(id, (this.#receiving.get(id) ?? 0) + 1);
    let note: PendingOperation | undefined;
    let hasExited = false;
    try {
      // Not flushed: maintenance finds quarantines after a power loss by their age (`maintenance.ts`).
      note = await this.#disk.beginOperation<PendingReceive>(
        id,
        { kind: 'receiving' },
        { flush: false },
      );
      const ending = await receive();
      hasExited = ending.code !== null;
      return ending;
    } finally {
      const remaining = (this.#receiving.get(id) ?? 1) - 1;
      if (remaining > 0) this.#receiving.set(id, remaining);
      else this.#receiving.delete(id);
      if (this.#needsCleanup.has(id)) await this.remove(id);
      if (!hasExited) await clean();
      await note?.finish();
    }
  }

  /** Removes all quarantines now, or when the last running push to the repository on this server has ended. */
  async remove(id: string): Promise<void> {
    this.#needsCleanup.add(id);
    if (this.#receiving.has(id)) return;
    this.#needsCleanup.delete(id);
    const objects = join(this.#disk.pathOf(id), 'objects');
    // The repository may be deleted.
    for (const name of await readdir(objects).catch(() => []))
      if (name.startsWith(QUARANTINE_PREFIX))
        await this.#disk.discardFolder(join(objects, name), id);
  }
}
