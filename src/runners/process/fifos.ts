/** FIFOs for the outputs of jobs. One program makes many, because starting a program for each attempt takes CPU. */
import { existsSync, mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { run } from '../../platform/processes/starter.ts';

const BATCH = 64;

export class Fifos {
  readonly #parent: string;
  /** Of this process alone; undefined before the first FIFO, and when somebody has removed it. */
  #folder: string | undefined;
  readonly #free: string[] = [];
  #count = 0;
  #making: Promise<void> | undefined;

  /** @param parent on the file system of the attempts; what an earlier process left in it is removed */
  constructor(parent: string) {
    this.#parent = parent;
    if (existsSync(parent))
      for (const name of readdirSync(parent))
        rmSync(join(parent, name), { recursive: true, force: true });
  }

  /** Moves a FIFO to this path. None is used twice: a job may have passed an open one to another process. */
  async take(path: string): Promise<void> {
    for (;;) {
      const free = this.#free.pop();
      if (free !== undefined && existsSync(free)) return renameSync(free, path);
      // A server that starts on the same folder while this one stops has removed them.
      if (free !== undefined) continue;
      this.#making ??= this.#make().finally(() => (this.#making = undefined));
      await this.#making;
    }
  }

  async #make(): Promise<void> {
    if (this.#folder === undefined || !existsSync(this.#folder)) {
      mkdirSync(this.#parent, { recursive: true, mode: 0o700 });
      this.#folder = mkdtempSync(join(this.#parent, 'for-'));
    }
    const folder = this.#folder;
    const paths = Array.from({ length: BATCH }, () => join(folder, `${this.#count++}`));
    try {
      await run('mkfifo', ['-m', '600', ...paths]);
    } catch (error) {
      // On a full disk, those that were made must not keep the space that was freed since.
      for (const path of paths) rmSync(path, { force: true });
      throw error;
    }
    this.#free.push(...paths);
  }
}
