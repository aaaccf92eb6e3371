/** The volumes that this machine has: those of `LOAM_VOLUMES` whose folders exist. */
import { existsSync, realpathSync } from 'node:fs';
import { lstat, realpath } from 'node:fs/promises';
import { isDeepStrictEqual } from 'node:util';
import type { Config } from '../base/config/config.ts';
import { mayMount } from '../base/config/volumes-file.ts';
import type { Logger } from '../base/log.ts';
import { startLoop } from '../platform/loop.ts';
import { type AttemptSpec, type MountedFolder, Unstartable } from './runner.ts';
import { locateFolder } from './supervisor/mounted-folders.ts';

/** How often is checked which folders exist. */
const CHECK_MS = 10_000;

type MountingJob = Pick<AttemptSpec, 'mounts' | 'job'>;

type Options = {
  volumes: Config['volumes'];
  /** Folders that no job may see. */
  hidden?: readonly string[];
  log: Logger;
};

/** Disposing of it ends the checks. */
export async function openLocalVolumes(options: Options): Promise<LocalVolumes> {
  const opened = new LocalVolumes(options);
  await opened.check();
  opened.start();
  return opened;
}

export class LocalVolumes implements AsyncDisposable {
  readonly #volumes: Config['volumes'];
  readonly #hidden: readonly string[];
  readonly #log: Logger;
  #names: readonly string[] = [];
  /** Checks that have not ended: a network file system may not answer, and each check takes a thread. */
  readonly #open = new Set<string>();
  readonly #warned = new Set<string>();
  #loop: AsyncDisposable | undefined;

  constructor({ volumes, hidden = [], log }: Options) {
    this.#volumes = volumes;
    this.#hidden = hidden.map(resolveIfExists);
    this.#log = log;
  }

  start(): void {
    const options = { name: 'Checking volumes', every: CHECK_MS, waitsFirst: true, log: this.#log };
    if (this.#volumes.hasFile) this.#loop = startLoop(options, () => this.check());
  }

  /** The names of the volumes whose folders exist and have no files of Loam in them. */
  get names(): readonly string[] {
    return this.#names;
  }

  async check(): Promise<void> {
    const found = await Promise.all(
      this.#volumes.current.map(async ({ name, path }) =>
        path !== null && (await this.#exists(path)) ? [name] : [],
      ),
    );
    const names = found.flat();
    if (isDeepStrictEqual(names, this.#names)) return;
    this.#names = names;
    this.#log.info(`Volumes of this machine: ${names.join(', ') || 'none'}`);
  }

  /** A folder whose file system does not answer does not exist. */
  async #exists(path: string): Promise<boolean> {
    if (this.#open.has(path)) return false;
    this.#open.add(path);
    const answered = realpath(path).then(
      async (real) => (await lstat(real)).isDirectory() && !this.#isHidden(real),
      () => false,
    );
    void answered.then(() => this.#open.delete(path));
    const { promise: late, resolve } = Promise.withResolvers<false>();
    const timer = setTimeout(() => resolve(false), CHECK_MS / 2);
    return Promise.race([answered, late]).finally(() => clearTimeout(timer));
  }

  /** Whether the folder has the data folder of this process in it, or is in it. */
  #isHidden(real: string): boolean {
    const found = this.#hidden.find(
      (hidden) => `${hidden}/`.startsWith(`${real}/`) || real.startsWith(`${hidden}/`),
    );
    if (found !== undefined && !this.#warned.has(real)) {
      this.#warned.add(real);
      this.#log.error(`LOAM_VOLUMES: ${real} is not mounted, because of files of Loam in ${found}`);
    }
    return found !== undefined;
  }

  /**
   * Finds the folders of mounts, and creates those of namespaces. The file of this machine decides, because the server of a joined
   * machine has another one.
   * @throws Unstartable
   */
  async locate({ mounts, job: { namespace } }: MountingJob): Promise<MountedFolder[]> {
    const found: MountedFolder[] = [];
    for (const { volume: name, to, readOnly, folder } of mounts) {
      const volume = this.#volumes.find(name);
      if (!volume?.path || !mayMount(volume, namespace))
        throw new Unstartable(
          `This machine does not have the volume ${name} for jobs of ${namespace}.`,
        );
      if (!readOnly && volume.access === 'read')
        throw new Unstartable(`The volume ${name} can only be read on this machine.`);
      if (volume.perNamespace && folder === null)
        throw new Unstartable(
          `The volume ${name} is per_namespace on this machine, but not on the server.`,
        );
      const from = await locateFolder(name, volume.path, folder);
      if (this.#isHidden(from))
        throw new Unstartable(`The volume ${name} has files of Loam, which no job may see.`);
      found.push({ volume: name, from, to, readOnly });
    }
    return found;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#loop?.[Symbol.asyncDispose]();
  }
}

function resolveIfExists(path: string): string {
  return existsSync(path) ? realpathSync(path) : path;
}

/** @param local unset: the machine has no volumes */
export async function locateVolumes(
  local: LocalVolumes | undefined,
  spec: MountingJob,
): Promise<MountedFolder[]> {
  const [first] = spec.mounts;
  if (first && !local)
    throw new Unstartable(`This machine does not have the volume ${first.volume}.`);
  return local?.locate(spec) ?? [];
}
