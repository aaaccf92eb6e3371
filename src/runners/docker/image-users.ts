/**
 * Decides which user a container runs as: the user of its image, unless that is root; otherwise a user with no other
 * processes or files.
 *
 * The job's folders are given to that user, so its numeric id must be known. If the image has a user name instead of an id,
 * the name is looked up in the image's own /etc/passwd.
 */
import { addAbortSignal } from 'node:stream';
import { text } from 'node:stream/consumers';
import { Unstartable } from '../runner.ts';
import type { UidRange } from '../supervisor/accounts.ts';
import type { Owner } from './attempt-dir.ts';
import { type Engine, isStatus } from './engine.ts';
import type { Image } from './images.ts';
import { readArchive } from './streams.ts';

/** An id that no machine assigns to a user. Containers without another user run as this one, never as root. */
const NOBODY = 65_532;
const MAX_ID = 2 ** 31 - 1;

/** `isOfImage`: the image may have an account of the user. */
export type ContainerUser = Owner & { isOfImage: boolean };

export type ImageUsers = {
  /**
   * @param account the user of the attempt, when this server is root
   * @throws Unstartable when the image names a user that it does not have; RunnerUnavailable; `signal`'s reason
   */
  resolveUser(image: Image, account: Owner | null, signal: AbortSignal): Promise<ContainerUser>;
};

type Options = {
  /** Images whose user is root run as root in their container. */
  root: boolean;
  /** Ids of attempts, which images must not use: when an attempt ends, all processes with its id are killed. */
  reserved: UidRange;
  /** Labels of containers that are created to read a file of an image. */
  labels: Record<string, string>;
  /** The engine counts as unavailable after this time without a byte of the archive. */
  silentMs?: number;
};

export function openImageUsers(
  engine: Engine,
  { root, reserved, labels, silentMs }: Options,
): ImageUsers {
  /** By image id: the contents of an id never change. */
  const resolved = new Map<string, Owner>();
  const serverUid = process.getuid?.() ?? 0;

  async function resolveImageUser(image: Image, signal: AbortSignal): Promise<Owner> {
    const [user = '', group] = image.user.split(':');
    const readFile = (path: string) =>
      readImageFile(engine, { Image: image.id, Labels: labels }, { path, signal, silentMs });
    const entry = parseEntries(await readFile('/etc/passwd')).find(([name]) => name === user);
    const uid = parseId(user) ?? parseId(entry?.[2]);
    if (uid === undefined)
      throw new Unstartable(`The image names a user that it does not have: "${user}"`);
    if (group === undefined) return { uid, gid: parseId(entry?.[3]) ?? uid };
    const gid =
      parseId(group) ??
      parseId(parseEntries(await readFile('/etc/group')).find(([name]) => name === group)?.[2]);
    if (gid === undefined)
      throw new Unstartable(`The image names a group that it does not have: "${group}"`);
    return { uid, gid };
  }

  return {
    async resolveUser(image, account, signal) {
      // A server that is not root can neither give files to another user nor remove another user's files.
      if (serverUid !== 0)
        return { uid: serverUid, gid: process.getgid?.() ?? serverUid, isOfImage: false };
      let imageUser: Owner = { uid: 0, gid: 0 };
      if (image.user) {
        imageUser = resolved.get(image.id) ?? (await resolveImageUser(image, signal));
        resolved.set(image.id, imageUser);
      }
      const isReserved = imageUser.uid >= reserved.first && imageUser.uid <= reserved.last;
      if (!isReserved && (imageUser.uid !== 0 || root)) return { ...imageUser, isOfImage: true };
      return { ...(account ?? { uid: NOBODY, gid: NOBODY }), isOfImage: false };
    },
  };
}

function parseId(text: string | undefined): number | undefined {
  const number = /^\d+$/.test(text ?? '') ? Number(text) : undefined;
  return number !== undefined && number <= MAX_ID ? number : undefined;
}

/** The lines of a file such as /etc/passwd, split into fields. */
function parseEntries(file: string): string[][] {
  return file.split('\n').map((line) => line.split(':'));
}

/** A larger file counts as missing. */
const MAX_FILE_BYTES = 2 ** 20;

/**
 * Reads a file of an image through a container that is created, never started, and removed.
 * @returns an empty string when the image has no such file
 */
async function readImageFile(
  engine: Engine,
  options: { Image: string; Labels: Record<string, string> },
  { path, signal, silentMs }: { path: string; signal: AbortSignal; silentMs?: number },
): Promise<string> {
  signal.throwIfAborted();
  const { id } = await engine.call((docker) =>
    docker.createContainer({ ...options, Cmd: ['true'] }),
  );
  try {
    const archive = await engine.stream((docker) =>
      docker.getContainer(id).getArchive({ path, abortSignal: signal } as { path: string }),
    );
    addAbortSignal(signal, archive);
    for await (const entry of readArchive(archive, silentMs)) {
      if (entry.header.type !== 'file' || (entry.header.size ?? 0) > MAX_FILE_BYTES) return '';
      return await text(entry);
    }
    return '';
  } catch (error) {
    signal.throwIfAborted();
    if (isStatus(error, 404)) return '';
    throw error;
  } finally {
    await engine.call((docker) => docker.getContainer(id).remove({ force: true, v: true }));
  }
}
