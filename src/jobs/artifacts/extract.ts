/**
 * Copies artifacts of jobs and files of repositories into the folder in which a job will run. Nobody else writes to the folder meanwhile, but it
 * may contain hostile links, because its files come from a repository. So every folder on the way is checked, and files and
 * links are only created, never replaced.
 */
import { lstat, lutimes, mkdir, open, readdir, symlink } from 'node:fs/promises';
import { posix } from 'node:path';
import type { Duplex, Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { createGunzip } from 'node:zlib';
import type { Header } from 'tar-stream';
import { entersGitFolder, isHeadFile } from '../../git/names.ts';
import { type Storage, StorageUnavailable } from '../../platform/storage/storage.ts';
import {
  type ArchiveKey,
  archiveKey,
  findMember,
  linkBytes,
  readTar,
  relativeTarget,
} from './store.ts';

/** Why files cannot be copied, for the user of the job. */
export class CannotExtract extends Error {
  override name = 'CannotExtract';
}

/** The copies exceed the limits of the folder. */
export class FolderFull extends CannotExtract {
  override name = 'FolderFull';
}

type Limits = {
  /** Bytes that the copies may take on disk. */
  maxBytes: number;
  /** Files, links and folders. */
  maxEntries: number;
  /** Whether the copies may contain git repositories. Default: no, because a job that runs git in one runs its hooks. */
  mayHaveGit?: boolean;
};

const PREMATURE_CLOSE = 'ERR_STREAM_PREMATURE_CLOSE';

/** Disk block size: the minimum that a file takes on most disks. */
const BLOCK_BYTES = 4096;

/** The folder to which files are copied. Paths are relative to it, with one character for each byte. */
export class InputFolder {
  readonly #dir: Buffer;
  readonly #limits: Limits;
  #bytes = 0;
  #entries = 0;
  /** Paths that are certainly folders, and not links to folders, once the promise is resolved. */
  readonly #folders = new Map([['', Promise.resolve()]]);

  /** @param dir must exist */
  constructor(dir: string, limits: Limits) {
    this.#dir = Buffer.from(`${dir}/`);
    this.#limits = limits;
  }

  /** What the copies take. */
  get used(): { bytes: number; entries: number } {
    return { bytes: this.#bytes, entries: this.#entries };
  }

  addFolder(path: string): Promise<void> {
    return this.#folders.getOrInsertComputed(path, () => this.#createFolder(path));
  }

  async #createFolder(path: string): Promise<void> {
    await this.addFolder(parentOf(path));
    const at = this.#take(path, BLOCK_BYTES);
    const isNew = await mkdir(at).then(
      () => true,
      (error) => ignoreExisting(error, path),
    );
    // `lstat`, because a link could lead out of the folder.
    if (!isNew && !(await lstat(at)).isDirectory())
      throw new CannotExtract(`${show(path)} exists already and is not a folder`);
  }

  /** @throws CannotExtract if it exists and has files in it */
  async addEmptyFolder(path: string): Promise<void> {
    await this.addFolder(path);
    const entries = await readdir(Buffer.concat([this.#dir, Buffer.from(path, 'latin1')]));
    if (entries.length > 0) throw new CannotExtract(`${show(path)} exists already`);
  }

  async addFile(
    path: string,
    { size = 0, mode = 0o644, mtime }: Pick<Header, 'size' | 'mode'> & { mtime?: Date | undefined },
    contents: Readable | Buffer,
    signal: AbortSignal,
  ): Promise<void> {
    await this.addFolder(parentOf(path));
    const at = this.#takeFile(path, Math.ceil(size / BLOCK_BYTES) * BLOCK_BYTES);
    // The server must be able to read the file, to send it to another machine.
    const file = await open(at, 'wx', (mode & 0o777) | 0o600).catch((error) => refuse(error, path));
    if (Buffer.isBuffer(contents)) {
      await using _ = file;
      await file.writeFile(contents);
      if (mtime) await file.utimes(mtime, mtime);
      return;
    }
    // A stream that was destroyed meanwhile emits nothing any more, so `pipeline` would wait without end.
    if (contents.destroyed) {
      await file.close();
      throw Object.assign(new Error('the stream was destroyed'), { code: PREMATURE_CLOSE });
    }
    // Closes the file, also when the pipeline fails.
    await pipeline(contents, file.createWriteStream(), { signal });
    if (mtime) await lutimes(at, mtime, mtime);
  }

  async addLink(path: string, target: string): Promise<void> {
    await this.addFolder(parentOf(path));
    const at = this.#takeFile(path, BLOCK_BYTES);
    if (!this.#limits.mayHaveGit && entersGitFolder(toText(target)))
      throw new CannotExtract(`the link ${show(path)} leads into .git`);
    await symlink(Buffer.from(target, 'latin1'), at).catch((error) => refuse(error, path));
  }

  /** As `#take`, for an entry that is not a folder. */
  #takeFile(path: string, bytes: number): Buffer {
    if (!this.#limits.mayHaveGit && isHeadFile(toText(path)))
      throw new CannotExtract(`${show(path)} would make its folder a git repository`);
    return this.#take(path, bytes);
  }

  /** Counts a new entry. @returns its place on this machine */
  #take(path: string, bytes: number): Buffer {
    const { maxBytes, maxEntries, mayHaveGit = false } = this.#limits;
    // A job that runs git must not run hooks and programs of a configuration that another job wrote.
    if (!mayHaveGit && entersGitFolder(toText(path)))
      throw new CannotExtract(`${show(path)} is inside .git`);
    this.#entries += 1;
    this.#bytes += bytes;
    if (this.#entries > maxEntries)
      throw new FolderFull(`there are more than ${maxEntries} files and folders`);
    if (this.#bytes > maxBytes)
      throw new FolderFull('with them, the working directory is larger than the disk');
    return Buffer.concat([this.#dir, Buffer.from(path, 'latin1')]);
  }
}

/** Files up to this size are written concurrently: creating many files takes much longer than writing their contents. */
const SMALL_FILE_BYTES = 64 * 1024;
const CONCURRENT_FILES = 16;

export type TarEntry = { name: string | null; header: Header; contents: Readable | Buffer };

/**
 * Adds the entries of a tar to a folder, small files concurrently.
 * @param stages the source of the tar, and what converts it
 * @param add adds an entry. `name` is null if it leads outside the folder. A buffer has the whole contents.
 * @param last the name of the entry after which the tar is cut
 * @throws the errors of `stages` and of `add`; the reason of `signal` if it aborts
 */
export async function addEntries(
  stages: readonly [Readable, ...Duplex[]],
  add: (entry: TarEntry) => Promise<void>,
  signal: AbortSignal,
  last: string | null = null,
): Promise<void> {
  const adding: Promise<void>[] = [];
  try {
    for await (const { name, header, contents } of readTar(stages, signal)) {
      if (header.type !== 'file' || (header.size ?? 0) > SMALL_FILE_BYTES)
        await add({ name, header, contents });
      else {
        const added = add({ name, header, contents: await buffer(contents) });
        // Awaited later; until then a rejection counts as handled.
        added.catch(() => {});
        adding.push(added);
        if (adding.length === CONCURRENT_FILES) await adding.shift();
      }
      if (name !== null && name === last) break;
    }
    await Promise.all(adding);
  } finally {
    await Promise.allSettled(adding);
  }
}

function parentOf(path: string): string {
  const parent = posix.dirname(path);
  return parent === '.' ? '' : parent;
}

/** Cut by characters: half of a surrogate pair could not be stored. */
function show(path: string): string {
  const characters = [...toText(path)];
  const end = characters.length > MAX_SHOWN ? '…' : '';
  return JSON.stringify(characters.slice(0, MAX_SHOWN).join('') + end);
}

const MAX_SHOWN = 200;

function ignoreExisting(error: NodeJS.ErrnoException, path: string): false {
  if (error.code === 'EEXIST') return false;
  return refuse(error, path);
}

/** @throws CannotExtract for errors of which the name is the reason; every other error unchanged */
function refuse(error: NodeJS.ErrnoException, path: string): never {
  if (error.code === 'EEXIST') throw new CannotExtract(`${show(path)} exists already`);
  if (error.code === 'ENAMETOOLONG') throw new CannotExtract(`${show(path)} is too long`);
  throw error;
}

/**
 * Copies a file or folder of the artifacts. Links that lead out of `path` are left out, as links that lead out of the artifacts
 * were before.
 * @throws CannotExtract; StorageUnavailable; errors of the disk; the reason of `signal`
 */
export async function extractArtifacts(
  deps: { storage: Storage },
  key: ArchiveKey,
  { path, to }: { path: string; to: string },
  folder: InputFolder,
  signal: AbortSignal,
): Promise<void> {
  // A single file is read without the archive before it.
  const member = path === '' ? null : await findMember(deps, key, path);
  const stored = await deps.storage.open(archiveKey(key), member ?? undefined);
  if (!stored) throw new CannotExtract('they were deleted');
  await extractTar(
    [stored.contents, createGunzip()],
    { path, to },
    folder,
    signal,
    member !== null,
  ).catch((error) => {
    signal.throwIfAborted();
    // The connection to the storage was cut.
    if ((error as NodeJS.ErrnoException).code === PREMATURE_CLOSE)
      throw new StorageUnavailable('the archive ended early', { cause: error });
    throw error;
  });
}

/**
 * Copies a file or folder of a tar. Links that lead out of `path` are left out.
 * @param stages the source of the tar, and what converts it
 * @param isCut the tar ends after a single file
 * @throws CannotExtract; errors of the stages and the disk; the reason of `signal`
 */
export async function extractTar(
  stages: readonly [Readable, ...Duplex[]],
  { path, to }: { path: string; to: string },
  folder: InputFolder,
  signal: AbortSignal,
  isCut = false,
): Promise<void> {
  const [prefix = '', target = ''] = [path, to].map(toBytes);
  const base = target.replace(/\/$/, '');
  let hasFound = path === '';
  const add = async ({ name, header, contents }: TarEntry) => {
    const below = name === null ? null : pathBelow(prefix, name);
    if (below === null) return;
    hasFound = true;
    const place = placeOf({ base, target, below, name: name as string });
    if (header.type === 'directory') await folder.addFolder(below === '' ? base : place);
    else if (header.type === 'symlink') {
      if (below === '') throw new CannotExtract(`${show(prefix)} is a link; name its target`);
      const link = relativeTarget(below, linkBytes(header));
      if (link !== null) await folder.addLink(place, link);
    } else await folder.addFile(place, { size: header.size, mode: header.mode }, contents, signal);
  };
  await addEntries(stages, add, signal, isCut ? prefix : null);
  if (!hasFound) throw new CannotExtract(`${show(prefix)} is not among them`);
}

function toText(bytes: string): string {
  return Buffer.from(bytes, 'latin1').toString();
}

/** One character for each byte, as in the names of `InputFolder`. */
export function toBytes(text: string): string {
  return Buffer.from(text).toString('latin1');
}

/** The path of an entry relative to `prefix`, which is empty for the entry itself; null if it is not below. */
function pathBelow(prefix: string, name: string): string | null {
  if (prefix === '') return name;
  if (name === prefix) return '';
  return name.startsWith(`${prefix}/`) ? name.slice(prefix.length + 1) : null;
}

function placeOf({
  base,
  target,
  below,
  name,
}: {
  base: string;
  target: string;
  below: string;
  name: string;
}): string {
  const isNewName = below === '' && target !== '' && !target.endsWith('/');
  return isNewName ? target : posix.join(base, below === '' ? posix.basename(name) : below);
}
