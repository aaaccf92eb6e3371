/**
 * The volumes that this machine has (`LOAM_VOLUMES`), and how the attempts on it get them: mounted by a sandbox or container, or
 * as links where there is neither.
 */
import { lstatSync, mkdirSync, rmdirSync, symlinkSync } from 'node:fs';
import { chmod, lstat, mkdir, realpath, stat } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import type { Config } from '../base/config/config.ts';
import type { Logger } from '../base/log.ts';
import { startLoop } from '../platform/loop.ts';
import { MOUNTS, Unstartable, type VolumeMount } from './runner.ts';

/** A folder of this machine, and where the job finds it. */
export type MountedFolder = { volume: string; from: string; to: string; readOnly: boolean };

/** How often is checked which folders exist. */
const CHECK_MS = 10_000;

/** Ids of namespaces. */
const SUBFOLDER = /^\w{1,100}$/;

type Options = { volumes: Config['volumes']; log: Logger };

/** Disposing of it ends the checks. */
export async function openLocalVolumes(options: Options): Promise<LocalVolumes> {
  const opened = new LocalVolumes(options);
  await opened.check();
  opened.start();
  return opened;
}

export class LocalVolumes implements AsyncDisposable {
  readonly #volumes: Config['volumes'];
  readonly #log: Logger;
  #names: readonly string[] = [];
  /** Checks that have not ended: a network file system may not answer, and each check takes a thread. */
  readonly #open = new Set<string>();
  #loop: AsyncDisposable | undefined;

  constructor({ volumes, log }: Options) {
    this.#volumes = volumes;
    this.#log = log;
  }

  start(): void {
    const options = { name: 'Checking volumes', every: CHECK_MS, waitsFirst: true, log: this.#log };
    if (this.#volumes.hasFile) this.#loop = startLoop(options, () => this.check());
  }

  /** Those whose folders exist. */
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
    const answered = stat(path).then(
      (found) => found.isDirectory(),
      () => false,
    );
    void answered.then(() => this.#open.delete(path));
    const { promise: late, resolve } = Promise.withResolvers<false>();
    const timer = setTimeout(() => resolve(false), CHECK_MS / 2);
    return Promise.race([answered, late]).finally(() => clearTimeout(timer));
  }

  /**
   * Finds the folders of mounts, and creates those of namespaces.
   * @throws Unstartable
   */
  async locate(mounts: readonly VolumeMount[]): Promise<MountedFolder[]> {
    const found: MountedFolder[] = [];
    for (const { volume: name, to, readOnly, folder } of mounts) {
      const volume = this.#volumes.find(name);
      if (!volume?.path) throw new Unstartable(`This machine does not have the volume ${name}.`);
      if (!readOnly && volume.access === 'read')
        throw new Unstartable(`The volume ${name} can only be read on this machine.`);
      const from = await locateFolder(name, volume.path, folder);
      found.push({ volume: name, from, to, readOnly });
    }
    return found;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#loop?.[Symbol.asyncDispose]();
  }
}

/** @param local unset: the machine has no volumes */
export async function locateVolumes(
  local: LocalVolumes | undefined,
  mounts: readonly VolumeMount[],
): Promise<MountedFolder[]> {
  const [first] = mounts;
  if (first && !local)
    throw new Unstartable(`This machine does not have the volume ${first.volume}.`);
  return local?.locate(mounts) ?? [];
}

/** Only links of the operator's own path are followed, never what jobs may have put into the volume. */
async function locateFolder(name: string, path: string, folder: string | null): Promise<string> {
  try {
    const root = await realpath(path);
    if (!(await lstat(root)).isDirectory()) throw new Error(`${path} is not a folder`);
    if (folder === null) return root;
    if (!SUBFOLDER.test(folder)) throw new Error('its subfolder has no valid name');
    const own = join(root, folder);
    const isNew = await mkdir(own).then(
      () => true,
      (error) => {
        if (error.code === 'EEXIST') return false;
        throw error;
      },
    );
    // Jobs of a namespace run as different users.
    if (isNew) await chmod(own, 0o777);
    if (!(await lstat(own)).isDirectory())
      throw new Error(`the folder of the namespace, ${own}, is not a folder`);
    return own;
  } catch (error) {
    throw new Unstartable(
      `The volume ${name} cannot be used on this machine: ${(error as Error).message}.`,
    );
  }
}

/**
 * Creates the mount points that are in folders of the job, where the checkout may have files and links.
 * @param dir contains the folders of `MOUNTS`
 * @throws Unstartable
 */
export function createMountPoints(dir: string, mounts: readonly MountedFolder[]): void {
  for (const mount of mounts) {
    const path = findOwnPath(dir, mount.to);
    if (path) createFolders(path, mount);
  }
}

/**
 * Links the volumes into the folders of the job, where nothing can be mounted.
 * @param dir contains the folders of `MOUNTS`
 * @param where completes the sentence "Jobs … cannot mount it elsewhere"
 * @throws Unstartable
 */
export function linkVolumes(dir: string, mounts: readonly MountedFolder[], where: string): void {
  for (const mount of mounts) {
    const path = findOwnPath(dir, mount.to);
    if (!path)
      throw new Unstartable(
        `The volume ${mount.volume} cannot be at ${mount.to}: jobs ${where} can have volumes in ${MOUNTS.work} only, for example at ${MOUNTS.work}/data.`,
      );
    createFolders(path, mount);
    const link = join(path.folder, ...path.names);
    try {
      // Not if the checkout has files there.
      rmdirSync(link);
      symlinkSync(mount.from, link);
    } catch (error) {
      throw refusal(mount, (error as Error).message);
    }
  }
}

type OwnPath = { folder: string; names: string[] };

/** A path in the folders of the job; undefined for a path elsewhere. */
function findOwnPath(dir: string, to: string): OwnPath | undefined {
  const found = Object.entries(MOUNTS).find(([, at]) => to.startsWith(`${at}/`));
  return found && { folder: join(dir, found[0]), names: relative(found[1], to).split('/') };
}

/** Follows no link. Nothing else changes the folders before the job begins. */
function createFolders({ folder, names }: OwnPath, mount: MountedFolder): void {
  let path = folder;
  for (const name of names) {
    path = join(path, name);
    try {
      mkdirSync(path);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST')
        throw refusal(mount, (error as Error).message);
      if (lstatSync(path).isDirectory()) continue;
      throw refusal(mount, `${relative(dirname(folder), path)} is a file or a link`);
    }
  }
}

function refusal({ volume, to }: MountedFolder, problem: string): Unstartable {
  return new Unstartable(`The volume ${volume} cannot be mounted at ${to}: ${problem}.`);
}
