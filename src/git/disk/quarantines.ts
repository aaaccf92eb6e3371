/**
 * What is left of pushes that were cut off. Git unpacks a push into a folder beside the objects, its quarantine, and
 * removes it when it ends; but since version 2.38 not when a signal ends it, such as that of a pipe to a server that
 * was killed. It may be as large as the push.
 *
 * Nothing tells from outside which push a quarantine belongs to. So they are removed by the server that has the
 * repository, when no push to it runs there: those there are then belong to none. Should another server still be at
 * one, then its push fails and nothing of it takes effect, because the folder is renamed away as a whole.
 */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { GitExit } from '../../platform/processes/git-started.ts';
import type { Begun, Disk } from './disk.ts';

/** The note of a push from its beginning to its end. */
export type BegunReceiving = { kind: 'receiving' };

export const PREFIX = 'tmp_objdir-';

export class Quarantines {
  readonly #disk: Disk;
  /** How many pushes run here, by repository. */
  readonly #receiving = new Map<string, number>();
  /** Repositories that something was left in. */
  readonly #left = new Set<string>();

  constructor(disk: Disk) {
    this.#disk = disk;
  }

  /**
   * Runs a push. `clean` is called when it may have left something: it calls `remove` on the server that has the
   * repository by then. After the death of this server another does so (`repos/recovery.ts`).
   */
  async during(
    id: string,
    receive: () => Promise<GitExit>,
    clean: () => Promise<void>,
  ): Promise<GitExit> {
    this.#receiving.set(id, (this.#receiving.get(id) ?? 0) + 1);
    let note: Begun | undefined;
    let isWhole = false;
    try {
      // Not synced: what a loss of power leaves is found by its age (`maintenance.ts`).
      note = await this.#disk.begin<BegunReceiving>(id, { kind: 'receiving' }, { flush: false });
      const ending = await receive();
      isWhole = ending.code !== null;
      return ending;
    } finally {
      const others = (this.#receiving.get(id) ?? 1) - 1;
      if (others > 0) this.#receiving.set(id, others);
      else this.#receiving.delete(id);
      if (this.#left.has(id)) await this.remove(id);
      if (!isWhole) await clean();
      await note?.done();
    }
  }

  /** At once, or when the last push to the repository that runs here has ended. */
  async remove(id: string): Promise<void> {
    this.#left.add(id);
    if (this.#receiving.has(id)) return;
    this.#left.delete(id);
    const objects = join(this.#disk.pathOf(id), 'objects');
    // The repository may be gone.
    for (const name of await readdir(objects).catch(() => []))
      if (name.startsWith(PREFIX)) await this.#disk.discard(join(objects, name), id);
  }
}
