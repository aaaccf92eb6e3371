/**
 * Who a container runs as. The user that the image names, unless that is root; else one that nobody else is.
 *
 * The job's folders are made that user's, so its number has to be known; an image may say a name, which stands in the
 * image's own /etc/passwd.
 */
import { addAbortSignal } from 'node:stream';
import { text } from 'node:stream/consumers';
import { Unstartable } from '../runner.ts';
import type { UidRange } from '../supervisor/accounts.ts';
import { type Engine, isStatus } from './engine.ts';
import type { Image } from './images.ts';
import type { Owner } from './place.ts';
import { entriesOf } from './streams.ts';

/** Nobody on any machine; a container is never root for want of a better one. */
const NOBODY = 65_532;
/** Numbers for which the kernel has room. */
const MAX_ID = 2 ** 31 - 1;

export type Users = {
  /**
   * @param account the ids of the attempt, when this server is root
   * @throws Unstartable when the image names a user that it does not have; RunnerAway; `signal`'s reason
   */
  ownerOf(image: Image, account: Owner | null, signal: AbortSignal): Promise<Owner>;
};

type Options = {
  /** What an image wants to run as root runs as root in its container. */
  root: boolean;
  /** Those of attempts: all processes of one are killed when its attempt ends, wherever they run. */
  reserved: UidRange;
  /** Of containers that are made to read a file of an image. */
  labels: Record<string, string>;
  /** Without a byte of an image: then its engine is away. */
  silentMs?: number;
};

export function openUsers(engine: Engine, { root, reserved, labels, silentMs }: Options): Users {
  /** By the image's id, whose contents never change. */
  const known = new Map<string, Owner>();
  const uid = process.getuid?.() ?? 0;

  async function named(image: Image, signal: AbortSignal): Promise<Owner> {
    const [user = '', group] = image.user.split(':');
    const at = (path: string) =>
      readFrom(engine, { Image: image.id, Labels: labels }, { path, signal, silentMs });
    const entry = linesOf(await at('/etc/passwd')).find(([name]) => name === user);
    const owner = idOf(user) ?? idOf(entry?.[2]);
    if (owner === undefined)
      throw new Unstartable(`The image names a user that it does not have: "${user}"`);
    if (group === undefined) return { uid: owner, gid: idOf(entry?.[3]) ?? owner };
    const gid =
      idOf(group) ?? idOf(linesOf(await at('/etc/group')).find(([name]) => name === group)?.[2]);
    if (gid === undefined)
      throw new Unstartable(`The image names a group that it does not have: "${group}"`);
    return { uid: owner, gid };
  }

  return {
    async ownerOf(image, account, signal) {
      // It could neither give files to another user nor remove that one's.
      if (uid !== 0) return { uid, gid: process.getgid?.() ?? uid };
      let wanted: Owner = { uid: 0, gid: 0 };
      if (image.user) {
        wanted = known.get(image.id) ?? (await named(image, signal));
        known.set(image.id, wanted);
      }
      const isReserved = wanted.uid >= reserved.first && wanted.uid <= reserved.last;
      if (!isReserved && (wanted.uid !== 0 || root)) return wanted;
      return account ?? { uid: NOBODY, gid: NOBODY };
    },
  };
}

function idOf(text: string | undefined): number | undefined {
  const number = /^\d+$/.test(text ?? '') ? Number(text) : undefined;
  return number !== undefined && number <= MAX_ID ? number : undefined;
}

function linesOf(file: string): string[][] {
  return file.split('\n').map((line) => line.split(':'));
}

/** Of a larger one the beginning. */
const MAX_BYTES = 2 ** 20;

/** A file of an image, read from a container of it that never runs; empty when it has none. */
async function readFrom(
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
    for await (const entry of entriesOf(archive, silentMs)) {
      if (entry.header.type !== 'file' || (entry.header.size ?? 0) > MAX_BYTES) return '';
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
