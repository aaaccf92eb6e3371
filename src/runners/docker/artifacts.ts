/**
 * Reads the artifacts of a job: the files at its `output_path`. Paths in folders that are mounted from this machine are read
 * directly, as for a process. For other paths the engine sends a tar of the container's files, which is filtered by the same
 * rules: it keeps regular files of the job's own user, links, and empty folders.
 */
import { basename, posix } from 'node:path';
import { Readable } from 'node:stream';
import { Pattern } from '../../base/pattern.ts';
import {
  MAX_OUTPUT_ENTRIES,
  MOUNTS,
  type ReadOptions,
  tooManyEntriesError,
  type WantedFiles,
} from '../runner.ts';
import { locateOutput, openTar } from '../supervisor/tar.ts';
import { TAR_END, type TarEntry, tarHeader, tarPadding } from '../supervisor/tar-format.ts';
import type { Owner } from './attempt-dir.ts';
import { type Engine, isStatus } from './engine.ts';
import { type ArchiveEntry, readArchive } from './streams.ts';

type Source = {
  engine: Engine;
  container: string;
  attemptDir: string;
  owner: Owner;
  /** Number that the engine adds to user ids. */
  uidOffset?: number;
  /** The job's folders are in the container, not on this machine. */
  remote: boolean;
};

type RemoteOptions = ReadOptions & { silentMs?: number };

/**
 * @returns null when the path does not exist. The stream fails with ArtifactsNotKept beyond `maxEntries`, and with
 *   RunnerUnavailable when the engine interrupts the transfer or sends nothing for `silentMs`
 */
export async function readArtifacts(
  { engine, container, attemptDir, owner, remote, uidOffset = 0 }: Source,
  path: string,
  { maxEntries = MAX_OUTPUT_ENTRIES, silentMs, snapshot, wanted }: RemoteOptions = {},
): Promise<Readable | null> {
  const absolutePath = posix.resolve(MOUNTS.work, path);
  if (!remote && isMounted(absolutePath)) {
    const found = await locateOutput(attemptDir, path);
    return found && openTar(found, { maxEntries, snapshot, wanted });
  }
  try {
    const archive = await engine.stream((docker) =>
      docker.getContainer(container).getArchive({ path: absolutePath }),
    );
    if (isLink(archive)) {
      archive.destroy();
      return null;
    }
    const uids = [owner.uid, owner.uid + uidOffset];
    const entries = readArchive(archive, silentMs);
    const rules = { uids, maxEntries, wanted };
    return Readable.from(filterArchive(entries, absolutePath, rules), { objectMode: false });
  } catch (error) {
    // For a path below a file the engine answers 500; such a path does not exist.
    const isBelowFile = isStatus(error, 500) && /: not a directory\s*$/.test(String(error));
    if (isStatus(error, 404) || isBelowFile) return null;
    throw error;
  }
}

/** Whether the path itself is a link, which is not followed because it may lead anywhere. */
function isLink(archive: Readable & { headers?: Record<string, string> }): boolean {
  const stat = archive.headers?.['x-docker-container-path-stat'] ?? '';
  const { linkTarget } = JSON.parse(Buffer.from(stat, 'base64').toString() || '{}');
  return Boolean(linkTarget);
}

function isMounted(path: string): boolean {
  return Object.values(MOUNTS).some((mount) => path === mount || path.startsWith(`${mount}/`));
}

type FilterRules = {
  uids: readonly number[];
  maxEntries: number;
  wanted: WantedFiles | undefined;
};

/** Entry names of the engine begin with the last part of `path`, even if that is a single file; this prefix is removed. */
async function* filterArchive(
  entries: AsyncIterable<ArchiveEntry>,
  path: string,
  { uids, maxEntries, wanted }: FilterRules,
): AsyncGenerator<Buffer> {
  const root = basename(path);
  const pattern = wanted?.pattern === undefined ? null : new Pattern(wanted.pattern);
  let left = maxEntries;
  /** The previous entry, if it was a folder: the next entry shows whether it is empty. */
  let folder: string | undefined;
  const emptyFolder = (next: string) => {
    if (!folder || wanted || next.startsWith(`${folder}/`)) return [];
    return [header(folder, { size: 0, mode: 0o755, type: 'directory' })];
  };
  for await (const entry of entries) {
    const { name: fullName, type, size = 0, mode = 0, mtime, uid, linkname } = entry.header;
    const entryPath = fullName.replace(/\/+$/, '');
    const isOwn = type === 'file' && uids.includes(uid);
    const isFile = isOwn && size <= (wanted?.maxFileBytes ?? size);
    const inside = entryPath === root ? (isOwn ? root : '') : entryPath.slice(root.length + 1);
    const name = pattern && !pattern.matches(inside) ? '' : inside;
    if (left-- === 0) throw tooManyEntriesError(maxEntries);
    yield* emptyFolder(name);
    folder = type === 'directory' ? name : undefined;
    if (name && isFile) {
      yield header(name, { size, mode: mode & 0o777, mtime });
      for await (const chunk of entry) yield chunk as Buffer;
      yield tarPadding(size);
      continue;
    }
    if (name && type === 'symlink' && !wanted) {
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
