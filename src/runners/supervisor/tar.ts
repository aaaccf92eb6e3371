/**
 * Creates a tar of the files at a job's `output_path`. The job controls their names, contents and links, so the code never
 * opens a file outside the job's folders.
 */
import { constants, type Dirent } from 'node:fs';
import { type FileHandle, lstat, open, opendir, readlink, realpath } from 'node:fs/promises';
import { basename, join, normalize, relative, sep } from 'node:path';
import { Readable } from 'node:stream';
import { MAX_OUTPUT_ENTRIES, MOUNTS, tooManyEntriesError } from '../runner.ts';
import { TAR_END, tarHeader, tarPadding } from './tar-format.ts';

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
 */
export function createTar(output: OutputPath, maxEntries = MAX_OUTPUT_ENTRIES): Readable {
  return Readable.from(generateTar(output, maxEntries), { objectMode: false });
}

/** A folder refers to its parent, because whole paths of many deep folders would take gigabytes; null is the root. */
type Folder = { parent: Folder; name: Buffer } | null;

/** Entries that are read concurrently, so that the thread pool is woken less often per entry. */
const CONCURRENT_READS = 16;
/** Files up to this size are read whole; larger files are streamed. */
const SMALL_FILE_BYTES = 64 * 1024;

async function* generateTar(
  { path, owner }: OutputPath,
  maxEntries: number,
): AsyncGenerator<Buffer> {
  const root = Buffer.from(path);
  if ((await lstat(root)).isFile())
    yield* largeEntry({ file: root, name: Buffer.from(basename(path)), owner });
  // A list of folders instead of recursion, because the job controls the depth.
  else {
    let left = maxEntries;
    for (const folders: Folder[] = [null]; folders.length > 0; ) {
      const folder = folders.pop() as Folder;
      const folderName = relativeName(folder);
      const entries = await nullIfUnreadable(() => listEntries(joinPath(root, folderName), left));
      if (!entries) {
        yield emptyEntry(folderName);
        continue;
      }
      if (entries === 'more') throw tooManyEntriesError(maxEntries);
      left -= entries.length;
      if (entries.length === 0 && folder)
        yield tarHeader({ name: folderName, size: 0, mode: 0o755, type: 'directory' });
      for (let at = 0; at < entries.length; at += CONCURRENT_READS) {
        const wanted: (SourceFile | Buffer)[] = [];
        for (const entry of entries.slice(at, at + CONCURRENT_READS)) {
          const name = joinPath(folderName, entry.name);
          if (entry.isDirectory()) folders.push({ parent: folder, name: entry.name });
          else if (entry.isFile()) wanted.push({ file: joinPath(root, name), name, owner });
          else if (entry.isSymbolicLink()) wanted.push(await linkEntry(joinPath(root, name), name));
          else wanted.push(emptyEntry(name));
        }
        yield* readEntries(wanted);
      }
    }
  }
  yield TAR_END;
}

/** A file whose entry is to be read. */
type SourceFile = { file: Buffer; name: Buffer; owner: number | null };

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
  await using handle = await openFile(wanted);
  const found = handle && (await describe(handle, wanted));
  if (!found) return emptyEntry(wanted.name);
  const { size, header } = found;
  if (size > SMALL_FILE_BYTES) return null;
  if (size === 0) return header;
  const contents = Buffer.allocUnsafe(size);
  for (let at = 0; at < size; ) {
    const { bytesRead } = await handle.read(contents, at, size - at, at);
    if (bytesRead === 0) throw truncatedError();
    at += bytesRead;
  }
  return Buffer.concat([header, contents, tarPadding(size)]);
}

async function* largeEntry(wanted: SourceFile): AsyncGenerator<Buffer> {
  await using handle = await openFile(wanted);
  const found = handle && (await describe(handle, wanted));
  if (!found) return yield emptyEntry(wanted.name);
  const { size, header } = found;
  yield header;
  if (size === 0) return;
  let left = size;
  // Reads only up to the size in the header, because the file may still grow.
  for await (const chunk of handle.createReadStream({
    start: 0,
    end: size - 1,
    autoClose: false,
  })) {
    left -= chunk.length;
    yield chunk;
  }
  if (left > 0) throw truncatedError();
  yield tarPadding(size);
}

/** Null when the file cannot be read. */
function openFile({ file }: SourceFile): Promise<FileHandle | null> {
  const { O_RDONLY, O_NOFOLLOW, O_NONBLOCK } = constants;
  return nullIfUnreadable(() => open(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
}

/** Null for a file of another user: an unconfined job can create a hard link to it if the kernel permits. */
async function describe(handle: FileHandle, { name, owner }: SourceFile) {
  const { size, mode, mtime, uid } = await handle.stat();
  return owner === null || uid === owner
    ? { size, header: tarHeader({ name, size, mode: mode & 0o777, mtime }) }
    : null;
}

function truncatedError(): Error {
  return new Error('a file of the artifacts became shorter while it was read');
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
