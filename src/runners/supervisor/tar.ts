/**
 * Creates a tar of the files at a job's `output_path`. The job controls their names, contents and links, so the code never
 * opens a file outside the job's folders.
 */
import { closeSync, constants, type Dirent, fstatSync, open, read, readlinkSync } from 'node:fs';
import { lstat, opendir, readlink, realpath } from 'node:fs/promises';
import { basename, join, normalize, relative, sep } from 'node:path';
import { Readable } from 'node:stream';
import { promisify } from 'node:util';
import { Pattern } from '../../base/pattern.ts';
import {
  MAX_OUTPUT_ENTRIES,
  MOUNTS,
  type ReadOptions,
  type Snapshot,
  tooManyEntriesError,
  UnchangedFiles,
  type WantedFiles,
} from '../runner.ts';
import { TAR_END, TarFingerprint, tarHeader, tarPadding } from './tar-format.ts';

/** `owner`: the user that the job ran as; null: files of every user are the job's. */
type OutputPath = { path: string; owner: number | null };

/**
 * Translates a path as the job sees it into a path on this machine; null when no file exists there, or when the path or a
 * link leads outside the job's folders.
 */
export async function locateOutput(dir: string, path: string): Promise<OutputPath | null> {
  const inside = normalize(path.startsWith('/') ? path : join(MOUNTS.work, path));
  const mount = Object.entries(MOUNTS).find(
    ([, at]) => inside === at || inside.startsWith(`${at}/`),
  );
  if (!mount) return null;
  const [folder, at] = mount;
  const root = await realpath(join(dir, folder));
  try {
    const found = await realpath(join(root, relative(at, inside)));
    const isInside = found === root || found.startsWith(root + sep);
    return isInside ? { path: found, owner: (await lstat(root)).uid } : null;
  } catch {
    return null;
  }
}

/**
 * Entry names are bytes, relative to `path`; a single file has its own name. Links keep their targets, and empty folders are
 * entries. Devices, FIFOs, sockets, files of other users and unreadable files are entries without contents, so that the
 * artifact store can count them. The stream fails with ArtifactsNotKept before more than `maxEntries` names are in memory.
 * @param isRunning the job may change files meanwhile: the stream fails when a file changes or disappears while it is read
 */
export function createTar(
  output: OutputPath,
  { maxEntries = MAX_OUTPUT_ENTRIES, isRunning = false, wanted }: TarOptions = {},
): Readable {
  const options = { maxEntries, isRunning, wanted };
  return Readable.from(generateTar(output, options), { objectMode: false });
}

/** Creates the tar of a path after the work has ended, or with `snapshot` a tar while the work may still run. */
export async function openTar(
  output: OutputPath,
  { maxEntries, snapshot, wanted }: ReadOptions = {},
): Promise<Readable> {
  if (snapshot) return createSnapshot(output, snapshot);
  return createTar(output, { ...(maxEntries !== undefined && { maxEntries }), wanted });
}

type TarOptions = { maxEntries?: number; isRunning?: boolean; wanted?: WantedFiles | undefined };
type WalkOptions = Required<Pick<TarOptions, 'maxEntries' | 'isRunning'>>;

/**
 * Creates the tar of a folder while the job may run.
 * @throws UnchangedFiles if its fingerprint is `unless`; ArtifactsNotKept
 */
export async function createSnapshot(output: OutputPath, { unless }: Snapshot): Promise<Readable> {
  if (unless !== null && (await fingerprintFiles(output)) === unless) throw new UnchangedFiles();
  return createTar(output, { isRunning: true });
}

/** The fingerprint of the tar that would be created now, without reading the contents of files. */
async function fingerprintFiles({ path }: OutputPath): Promise<string | null> {
  const fingerprint = new TarFingerprint();
  const options = { maxEntries: MAX_OUTPUT_ENTRIES, isRunning: true };
  for await (const { name, at, entries } of walkFolders(Buffer.from(path), options)) {
    const add = (of: Buffer, type: 'directory' | 'fifo') =>
      fingerprint.add({ name: of.toString('latin1'), type });
    if (!entries) add(name, 'fifo');
    else if (entries.length === 0 && name.length > 0) add(name, 'directory');
    for (const entry of entries ?? []) {
      const own = joinPath(name, entry.name);
      const file = joinPath(at, entry.name);
      if (entry.isDirectory()) continue;
      const stat = entry.isFile() ? await lstat(file).catch(() => null) : null;
      const target = entry.isSymbolicLink()
        ? await nullIfUnreadable(() => readlink(file, { encoding: 'buffer' }))
        : null;
      const latin1 = own.toString('latin1');
      if (stat?.isFile())
        fingerprint.add({ name: latin1, type: 'file', size: stat.size, mtime: stat.mtime });
      else if (target)
        fingerprint.add({ name: latin1, type: 'symlink', linkname: target.toString('latin1') });
      else add(own, 'fifo');
    }
  }
  return fingerprint.digest();
}

/** A folder refers to its parent, because whole paths of many deep folders would take gigabytes; null is the root. */
type Folder = { parent: Folder; name: Buffer } | null;

/** Entries that are read concurrently, so that the thread pool is woken less often per entry. */
const CONCURRENT_READS = 16;
/** Files up to this size are read whole; larger files are streamed. */
const SMALL_FILE_BYTES = 64 * 1024;
/** Of a larger file at once. */
const CHUNK_BYTES = 256 * 1024;

/** `at`: the path at which its entries are opened; `entries`: null if it cannot be read. */
type FoundFolder = { name: Buffer; at: Buffer; entries: Dirent<Buffer>[] | null };

/** Lists all folders below `root`, each only until the next one is asked for. */
async function* walkFolders(
  root: Buffer,
  { maxEntries, isRunning }: WalkOptions,
): AsyncGenerator<FoundFolder> {
  let left = maxEntries;
  // A list of folders instead of recursion, because the job controls the depth.
  for (const folders: Folder[] = [null]; folders.length > 0; ) {
    const folder = folders.pop() as Folder;
    const name = relativeName(folder);
    const found = await openFolder(root, joinPath(root, name));
    using opened = found === 'gone' ? null : found;
    // It was listed a moment ago: it may have a new name by now, which was not listed.
    if (isRunning && folder && found === 'gone') throw changedError();
    const entries = opened && (await nullIfUnreadable(() => listEntries(opened.at, left)));
    if (entries === 'more') throw tooManyEntriesError(maxEntries);
    left -= entries?.length ?? 0;
    for (const entry of entries ?? [])
      if (entry.isDirectory()) folders.push({ parent: folder, name: entry.name });
    yield { name, at: opened?.at ?? root, entries };
  }
}

const openFd = promisify(open);
const readFd = promisify(read);

/**
 * An open file or folder. Opening and reading may wait for a disk, so the thread pool does them. `fstat` and `close` are called
 * directly: the kernel answers them from memory, and a call through the pool takes much longer than they do.
 */
class OpenFile {
  readonly fd: number;

  constructor(fd: number) {
    this.fd = fd;
  }

  [Symbol.dispose](): void {
    closeSync(this.fd);
  }
}

/** A folder that is open, and the path at which its entries are opened. */
class OpenFolder extends OpenFile {
  readonly at: Buffer;

  constructor(fd: number, at: Buffer) {
    super(fd);
    this.at = at;
  }
}

/**
 * Opens a folder. A running job can replace a folder by a link at any time, so the path of the open folder is checked, and its
 * entries are opened below it.
 * @returns null when it cannot be read; `gone` when it is not there any more
 */
async function openFolder(root: Buffer, path: Buffer): Promise<OpenFolder | 'gone' | null> {
  const { O_RDONLY, O_NOFOLLOW, O_DIRECTORY } = constants;
  let fd: number;
  try {
    fd = await openFd(path, O_RDONLY | O_NOFOLLOW | O_DIRECTORY);
  } catch (error) {
    const { code = '' } = error as NodeJS.ErrnoException;
    if (['ENOENT', 'ENOTDIR', 'ELOOP'].includes(code)) return 'gone';
    if (UNREADABLE.has(code)) return null;
    throw error;
  }
  // Elsewhere than on Linux, jobs run without a sandbox, and may read what this process may.
  if (process.platform !== 'linux') return new OpenFolder(fd, path);
  const at = Buffer.from(`/proc/self/fd/${fd}`);
  const real = readlinkSync(at, { encoding: 'buffer' });
  const inside = Buffer.concat([root, SEPARATOR]);
  if (real.equals(root) || real.subarray(0, inside.length).equals(inside))
    return new OpenFolder(fd, at);
  closeSync(fd);
  return 'gone';
}

async function* generateTar(
  { path, owner }: OutputPath,
  { maxEntries, isRunning, wanted: filter }: WalkOptions & Pick<TarOptions, 'wanted'>,
): AsyncGenerator<Buffer> {
  const root = Buffer.from(path);
  const pattern = filter?.pattern === undefined ? null : new Pattern(filter.pattern);
  const source = { owner, isRunning, maxBytes: filter?.maxFileBytes ?? Number.POSITIVE_INFINITY };
  if (!isRunning && (await lstat(root)).isFile()) {
    const name = Buffer.from(basename(path));
    yield* largeEntry({ ...source, file: root, name });
  } else
    for await (const { name: folder, at, entries } of walkFolders(root, {
      maxEntries,
      isRunning,
    })) {
      if (!entries) {
        if (!filter) yield emptyEntry(folder);
        continue;
      }
      if (entries.length === 0 && folder.length > 0 && !filter)
        yield tarHeader({ name: folder, size: 0, mode: 0o755, type: 'directory' });
      for (let start = 0; start < entries.length; start += CONCURRENT_READS) {
        const wanted: (SourceFile | Buffer)[] = [];
        for (const entry of entries.slice(start, start + CONCURRENT_READS)) {
          const name = joinPath(folder, entry.name);
          const file = joinPath(at, entry.name);
          if (pattern && !pattern.matches(name.toString())) continue;
          if (entry.isFile()) wanted.push({ ...source, file, name });
          else if (entry.isSymbolicLink())
            wanted.push(filter ? emptyEntry(name) : await linkEntry(file, name));
          else if (!entry.isDirectory()) wanted.push(emptyEntry(name));
        }
        yield* readEntries(wanted);
      }
    }
  yield TAR_END;
}

/** A file whose entry is to be read. */
type SourceFile = {
  file: Buffer;
  name: Buffer;
  owner: number | null;
  isRunning: boolean;
  maxBytes: number;
};

/** Yields entries in order. Adjacent small entries are joined, because each chunk costs its readers a wait. */
async function* readEntries(all: readonly (SourceFile | Buffer)[]): AsyncGenerator<Buffer> {
  const reading = all.map((each) => (Buffer.isBuffer(each) ? each : smallEntry(each)));
  // All files are closed, even when one of them fails.
  await Promise.allSettled(reading);
  let small: Buffer[] = [];
  for (const [at, entry] of (await Promise.all(reading)).entries()) {
    if (entry) small.push(entry);
    else {
      if (small.length > 0) yield Buffer.concat(small);
      small = [];
      yield* largeEntry(all[at] as SourceFile);
    }
  }
  if (small.length > 0) yield Buffer.concat(small);
}

/** Null for a large file, which is not read. */
async function smallEntry(wanted: SourceFile): Promise<Buffer | null> {
  using opened = await openFile(wanted);
  const found = opened && describe(opened, wanted);
  if (!found) return emptyEntry(wanted.name);
  const { size, header } = found;
  if (size > SMALL_FILE_BYTES) return null;
  if (size === 0) return header;
  const contents = Buffer.allocUnsafe(size);
  for (let at = 0; at < size; ) {
    const { bytesRead } = await readFd(opened.fd, contents, at, size - at, at);
    if (bytesRead === 0) throw changedError();
    at += bytesRead;
  }
  requireUnchanged(opened, wanted, found);
  return Buffer.concat([header, contents, tarPadding(size)]);
}

async function* largeEntry(wanted: SourceFile): AsyncGenerator<Buffer> {
  using opened = await openFile(wanted);
  const found = opened && describe(opened, wanted);
  if (!found) return yield emptyEntry(wanted.name);
  const { size, header } = found;
  yield header;
  if (size === 0) return;
  // Reads only up to the size in the header, because the file may still grow.
  for (let at = 0; at < size; ) {
    const chunk = Buffer.allocUnsafe(Math.min(size - at, CHUNK_BYTES));
    const { bytesRead } = await readFd(opened.fd, chunk, 0, chunk.length, at);
    if (bytesRead === 0) throw changedError();
    at += bytesRead;
    yield chunk.subarray(0, bytesRead);
  }
  requireUnchanged(opened, wanted, found);
  yield tarPadding(size);
}

/** Null when the file cannot be read. */
async function openFile({ file, isRunning }: SourceFile): Promise<OpenFile | null> {
  const { O_RDONLY, O_NOFOLLOW, O_NONBLOCK } = constants;
  return nullIfUnreadable(async () => {
    try {
      return new OpenFile(await openFd(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
    } catch (error) {
      // It was listed a moment ago: it may have a new name by now, which was not listed.
      if (isRunning && (error as NodeJS.ErrnoException).code === 'ENOENT') throw changedError();
      throw error;
    }
  });
}

function requireUnchanged(
  { fd }: OpenFile,
  { isRunning }: SourceFile,
  before: { size: number; mtimeMs: number },
): void {
  if (!isRunning) return;
  const { size, mtimeMs } = fstatSync(fd);
  if (size !== before.size || mtimeMs !== before.mtimeMs) throw changedError();
}

/** Null for a file that is too large, or of another user: an unconfined job can create a hard link to it if the kernel permits. */
function describe({ fd }: OpenFile, { name, owner, maxBytes }: SourceFile) {
  const { size, mode, mtime, mtimeMs, uid } = fstatSync(fd);
  return (owner === null || uid === owner) && size <= maxBytes
    ? { size, mtimeMs, header: tarHeader({ name, size, mode: mode & 0o777, mtime }) }
    : null;
}

function changedError(): Error {
  return new Error('a file changed while it was read');
}

function emptyEntry(name: Buffer): Buffer {
  return tarHeader({ name, size: 0, mode: 0, type: 'other' });
}

async function linkEntry(file: Buffer, name: Buffer): Promise<Buffer> {
  const target = await nullIfUnreadable(() => readlink(file, { encoding: 'buffer' }));
  return target
    ? tarHeader({ name, size: 0, mode: 0o777, type: 'link', target })
    : emptyEntry(name);
}

const EMPTY = Buffer.alloc(0);
const SEPARATOR = Buffer.from(sep);

function joinPath(folder: Buffer, name: Buffer): Buffer {
  if (folder.length === 0 || name.length === 0) return folder.length === 0 ? name : folder;
  return Buffer.concat([folder, SEPARATOR, name]);
}

/** The path relative to the root, which itself has an empty name. */
function relativeName(folder: Folder): Buffer {
  const names: Buffer[] = [];
  for (let at = folder; at; at = at.parent) names.unshift(SEPARATOR, at.name);
  return names.length === 0 ? EMPTY : Buffer.concat(names.slice(1));
}

/** Sorted by name; `more` when there are more than `max`. */
async function listEntries(folder: Buffer, max: number): Promise<Dirent<Buffer>[] | 'more'> {
  const entries: { entry: Dirent<Buffer>; key: string }[] = [];
  // The types of opendir lack the encoding `buffer`, which those of readdir have.
  const found = await opendir(folder, { encoding: 'buffer' as BufferEncoding });
  for await (const entry of found as unknown as AsyncIterable<Dirent<Buffer>>) {
    if (entries.length === max) return 'more';
    // Compared as latin1 strings, one character per byte: comparing buffers blocked this thread six times as long.
    entries.push({ entry, key: entry.name.toString('latin1') });
  }
  return entries.sort((a, b) => (a.key < b.key ? -1 : 1)).map(({ entry }) => entry);
}

/** Errors that a job can cause with its own files. Other errors are failures of the machine. */
const UNREADABLE = new Set([
  'EACCES',
  'EPERM',
  'ENOENT',
  'ENOTDIR',
  'EISDIR',
  'ELOOP',
  'ENXIO',
  'ENAMETOOLONG',
]);

/** Null when the file cannot be read. */
async function nullIfUnreadable<T>(read: () => Promise<T>): Promise<T | null> {
  try {
    return await read();
  } catch (error) {
    if (UNREADABLE.has((error as NodeJS.ErrnoException).code ?? '')) return null;
    throw error;
  }
}
