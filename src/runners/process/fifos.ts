/** FIFOs for the outputs of jobs. One program makes many, because starting a program for each attempt takes CPU. */
import { mkdirSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { run } from '../../platform/processes/starter.ts';

const BATCH = 64;

export class Fifos {
  readonly #folder: string;
  readonly #free: string[] = [];
  #count = 0;
  #making: Promise<void> | undefined;

  /** @param folder on the file system of the attempts; FIFOs that an earlier process left in it are removed */
  constructor(folder: string) {
    rmSync(folder, { recursive: true, force: true });
    mkdirSync(folder, { mode: 0o700 });
    this.#folder = folder;
  }

  /** Moves a FIFO to this path. None is used twice: a job may have passed an open one to another process. */
  async take(path: string): Promise<void> {
    for (let free = this.#free.pop(); ; free = this.#free.pop()) {
      if (free !== undefined) return renameSync(free, path);
      this.#making ??= this.#make().finally(() => (this.#making = undefined));
      await this.#making;
    }
  }

  async #make(): Promise<void> {
    const paths = Array.from({ length: BATCH }, () => join(this.#folder, `${this.#count++}`));
    await run('mkfifo', ['-m', '600', ...paths]);
    this.#free.push(...paths);
  }
}
