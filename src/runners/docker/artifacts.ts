/**
 * What a job left at its `output_path`. In the folders that lie on this machine it is read there, as for a process. Anywhere
 * else in the container the engine sends a tar of it, of which the same is kept: regular files of the job's own user, links,
 * and empty folders.
 */
import { basename, posix } from 'node:path';
import { Readable } from 'node:stream';
import { MAX_OUTPUT_ENTRIES, MOUNTS, tooManyEntries } from '../runner.ts';
import { locate, tarOf } from '../supervisor/tar.ts';
import { TAR_END, type TarEntry, tarHeader, tarPadding } from '../supervisor/tar-format.ts';
import { type Engine, isStatus } from './engine.ts';
import type { Owner } from './place.ts';
import { type Entry, entriesOf } from './streams.ts';

type Source = {
  engine: Engine;
  container: string;
  place: string;
  owner: Owner;
  /** What the engine adds to the numbers of users. */
  firstUid?: number;
  /** The job's folders are in the container, and not here. */
  remote: boolean;
};

/**
 * Null: nothing is there. The stream fails with TooLarge beyond so many entries, and with RunnerAway when the engine breaks
 * off, or sends nothing for `silentMs`.
 */
export async function artifactsOf(
  { engine, container, place, owner, remote, firstUid = 0 }: Source,
  path: string,
  { maxEntries = MAX_OUTPUT_ENTRIES, silentMs }: { maxEntries?: number; silentMs?: number } = {},
): Promise<Readable | null> {
  const at = posix.resolve(MOUNTS.work, path);
  if (!remote && isMounted(at)) {
    const found = await locate(place, path);
    return found === null ? null : tarOf(found, maxEntries);
  }
  try {
    const archive = await engine.stream((docker) =>
      docker.getContainer(container).getArchive({ path: at }),
    );
    if (isLink(archive)) {
      archive.destroy();
      return null;
    }
    const uids = [owner.uid, owner.uid + firstUid];
    return Readable.from(filtered(entriesOf(archive, silentMs), at, uids, maxEntries), {
      objectMode: false,
    });
  } catch (error) {
    // Below what is a file there is nothing either, which the engine takes for a fault of its own.
    const isBelowFile = isStatus(error, 500) && /: not a directory\s*$/.test(String(error));
    if (isStatus(error, 404) || isBelowFile) return null;
    throw error;
  }
}

/** What stands at the path itself, which the engine does not follow: it leads anywhere. */
function isLink(archive: Readable & { headers?: Record<string, string> }): boolean {
  const stat = archive.headers?.['x-docker-container-path-stat'] ?? '';
  const { linkTarget } = JSON.parse(Buffer.from(stat, 'base64').toString() || '{}');
  return Boolean(linkTarget);
}

function isMounted(path: string): boolean {
  return Object.values(MOUNTS).some((mount) => path === mount || path.startsWith(`${mount}/`));
}

/** The engine names everything after the last part of `path`, and a single file too. */
async function* filtered(
  entries: AsyncIterable<Entry>,
  path: string,
  uids: readonly number[],
  maxEntries: number,
): AsyncGenerator<Buffer> {
  const root = basename(path);
  let left = maxEntries;
  /** A folder, until the next entry says whether it is empty. */
  let folder: string | undefined;
  const emptyFolder = (next: string) => {
    if (!folder || next.startsWith(`${folder}/`)) return [];
    return [header(folder, { size: 0, mode: 0o755, type: 'directory' })];
  };
  for await (const entry of entries) {
    const { name: full, type, size = 0, mode = 0, mtime, uid, linkname } = entry.header;
    const inside = full.replace(/\/+$/, '');
    const isFile = type === 'file' && uids.includes(uid);
    const name = inside === root ? (isFile ? root : '') : inside.slice(root.length + 1);
    if (left-- === 0) throw tooManyEntries(maxEntries);
    yield* emptyFolder(name);
    folder = type === 'directory' ? name : undefined;
    if (name && isFile) {
      yield header(name, { size, mode: mode & 0o777, mtime });
      for await (const chunk of entry) yield chunk as Buffer;
      yield tarPadding(size);
      continue;
    }
    if (name && type === 'symlink') {
      const target = Buffer.from(linkname ?? '');
      yield header(name, { size: 0, mode: 0o777, type: 'link', target });
    } else if (name && type !== 'directory')
      yield header(name, { size: 0, mode: 0, type: 'other' });
    entry.resume();
  }
  yield* emptyFolder('');
  yield TAR_END;
}

function header(name: string, entry: Omit<TarEntry, 'name'>): Buffer {
  return tarHeader({ ...entry, name: Buffer.from(name) });
}
