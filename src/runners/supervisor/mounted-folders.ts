/**
 * Folders of a machine that a job finds in its own file system: mounted by a sandbox or container, or as links where there is
 * neither.
 */
import { lstatSync, mkdirSync, rmdirSync, symlinkSync } from 'node:fs';
import { chmod, lstat, mkdir, realpath } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { MOUNTS, type MountedFolder, Unstartable } from '../runner.ts';

/** Ids of namespaces. */
const SUBFOLDER = /^\w{1,100}$/;

/** Only links of the operator's own path are followed, never what jobs may have put into the volume. */
export async function locateFolder(
  name: string,
  path: string,
  folder: string | null,
): Promise<string> {
  try {
    const root = await realpath(path);
    if (!(await lstat(root)).isDirectory()) throw new Error('it is not a folder');
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
      throw new Error('its subfolder for the namespace is not a folder');
    return own;
  } catch (error) {
    throw new Unstartable(
      `The volume ${name} cannot be used on this machine: ${describeError(error as Error)}.`,
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
 * @param where completes the sentence "jobs … can have volumes only below /work"
 * @throws Unstartable
 */
export function linkVolumes(dir: string, mounts: readonly MountedFolder[], where: string): void {
  for (const mount of mounts) {
    const path = findOwnPath(dir, mount.to);
    if (!path) throw refusePlace(mount.volume, mount.to, where);
    createFolders(path, mount);
    const link = join(path.folder, ...path.names);
    try {
      // Not if the checkout has files there.
      rmdirSync(link);
      symlinkSync(mount.from, link);
    } catch (error) {
      throw refusal(mount, describeError(error as Error));
    }
  }
}

/** The folder of the job that has the path: its name and its own path; undefined for a path elsewhere. */
export function findOwnFolder(to: string): readonly [name: string, at: string] | undefined {
  return Object.entries(MOUNTS).find(([, at]) => to.startsWith(`${at}/`));
}

type OwnPath = { folder: string; names: string[] };

/** A path in the folders of the job; undefined for a path elsewhere. */
function findOwnPath(dir: string, to: string): OwnPath | undefined {
  const found = findOwnFolder(to);
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
        throw refusal(mount, describeError(error as Error));
      if (lstatSync(path).isDirectory()) continue;
      throw refusal(mount, `${relative(dirname(folder), path)} is a file or a link`);
    }
  }
}

/** Jobs without an image have the files of their node, where nothing can be mounted. */
export const ON_NODES = 'without an image on this cluster';

/** @param where as of `linkVolumes` */
export function refusePlace(volume: string, to: string, where: string): Unstartable {
  return new Unstartable(
    `The volume ${volume} cannot be at ${to}: jobs ${where} can have volumes only below ${MOUNTS.work}, for example at ${MOUNTS.work}/data.`,
  );
}

/** Users of jobs do not see paths of the machine, which messages of the system contain. */
function describeError({ code, message }: NodeJS.ErrnoException): string {
  if (code === undefined) return message;
  const known: Record<string, string> = {
    ENOENT: 'its folder does not exist',
    ENOTEMPTY: 'there are files of the checkout at its place',
  };
  return known[code] ?? `the system refuses it (${code})`;
}

function refusal({ volume, to }: MountedFolder, problem: string): Unstartable {
  return new Unstartable(`The volume ${volume} cannot be mounted at ${to}: ${problem}.`);
}
