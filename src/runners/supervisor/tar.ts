/**
 * A tar of what a job left at its `output_path`. The job wrote everything here, names and links included:
 * nothing outside the folders it was given is ever opened.
 */
import { constants, type Dirent } from 'node:fs';
import { type FileHandle, lstat, open, opendir, readlink, realpath } from 'node:fs/promises';
import { basename, join, normalize, relative, sep } from 'node:path';
import { Readable } from 'node:stream';
import { MAX_OUTPUT_ENTRIES, MOUNTS, tooManyEntries } from '../runner.ts';
import { TAR_END, tarHeader, tarPadding } from './tar-format.ts';

/** `owner`: the user that the job ran under. */
export type OutputPath = { path: string; owner: number };

/**
 * The place on this machine of a path as the job sees it; null when nothing is there, or when it leads
 * outside: by its text, or through a link.
 */
export async function locate(dir: string, path: string): Promise<OutputPath | null> {
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
 * A tar with names, as bytes, relative to `path`; a single file goes under its own name. Links have their targets, wherever
 * they lead, and empty folders are entries. Devices, FIFOs and sockets, files of others, and what cannot be read, are entries
 * without contents, so that whoever keeps the files can count them.
 * It fails with TooLarge beyond so many entries, before it has read more names than that into memory.
 */
export function tarOf(place: OutputPath, maxEntries = MAX_OUTPUT_ENTRIES): Readable {
  return Readable.from(tarred(place, maxEntries), { objectMode: false });
}

/** By its parent, because the paths of many folders in a deep one would take gigabytes; null: `path` itself. */
type Folder = { parent: Folder; name: Buffer } | null;

/** Entries that are read at once: each step of one alone, a thread is woken for it and another for its answer. */
const AT_ONCE = 16;
/** Bytes of a file that is read whole; what is larger is read by itself. */
const SMALL = 64 * 1024;

async function* tarred({ path, owner }: OutputPath, maxEntries: number): AsyncGenerator<Buffer> {
  const root = Buffer.from(path);
  if ((await lstat(root)).isFile())
    yield* largeEntry({ file: root, name: Buffer.from(basename(path)), owner });
  // A list of folders to visit, not recursion: the job chose how deep they go.
  else {
    let left = maxEntries;
    for (const folders: Folder[] = [null]; folders.length > 0; ) {
      const folder = folders.pop() as Folder;
      const folderName = nameOf(folder);
      const entries = await readable(() => entriesOf(under(root, folderName), left));
      if (!entries) {
        yield leftOut(folderName);
        continue;
      }
      if (entries === 'more') throw tooManyEntries(maxEntries);
      left -= entries.length;
      if (entries.length === 0 && folder)
        yield tarHeader({ name: folderName, size: 0, mode: 0o755, type: 'directory' });
      for (let at = 0; at < entries.length; at += AT_ONCE) {
        const others: (Wanted | Buffer)[] = [];
        for (const entry of entries.slice(at, at + AT_ONCE)) {
          const name = under(folderName, entry.name);
          if (entry.isDirectory()) folders.push({ parent: folder, name: entry.name });
          else if (entry.isFile()) others.push({ file: under(root, name), name, owner });
          else if (entry.isSymbolicLink()) others.push(await linkEntry(under(root, name), name));
          else others.push(leftOut(name));
        }
        yield* entriesOfAll(others);
      }
    }
  }
  yield TAR_END;
}

/** A file that is to be an entry. */
type Wanted = { file: Buffer; name: Buffer; owner: number };

/** In their order, the small ones in one piece: those who take it apart and pass it on wait for each piece. */
async function* entriesOfAll(all: readonly (Wanted | Buffer)[]): AsyncGenerator<Buffer> {
  const reading = all.map((one) => (Buffer.isBuffer(one) ? one : smallEntry(one)));
  // Nothing is open any more, whichever of them fails.
  await Promise.allSettled(reading);
  let small: Buffer[] = [];
  for (const [at, entry] of (await Promise.all(reading)).entries()) {
    if (entry) small.push(entry);
    else {
      if (small.length > 0) yield Buffer.concat(small);
      small = [];
      yield* largeEntry(all[at] as Wanted);
    }
  }
  if (small.length > 0) yield Buffer.concat(small);
}

/** Null for one that is not small, of which nothing was read. */
async function smallEntry(wanted: Wanted): Promise<Buffer | null> {
  await using handle = await openFile(wanted);
  const found = handle && (await describe(handle, wanted));
  if (!found) return leftOut(wanted.name);
  const { size, header } = found;
  if (size > SMALL) return null;
  if (size === 0) return header;
  const contents = Buffer.allocUnsafe(size);
  for (let at = 0; at < size; ) {
    const { bytesRead } = await handle.read(contents, at, size - at, at);
    if (bytesRead === 0) throw becameShorter();
    at += bytesRead;
  }
  return Buffer.concat([header, contents, tarPadding(size)]);
}

async function* largeEntry(wanted: Wanted): AsyncGenerator<Buffer> {
  await using handle = await openFile(wanted);
  const found = handle && (await describe(handle, wanted));
  if (!found) return yield leftOut(wanted.name);
  const { size, header } = found;
  yield header;
  if (size === 0) return;
  let left = size;
  // To the size in the header and no further, should it still grow.
  for await (const chunk of handle.createReadStream({
    start: 0,
    end: size - 1,
    autoClose: false,
  })) {
    left -= chunk.length;
    yield chunk;
  }
  if (left > 0) throw becameShorter();
  yield tarPadding(size);
}

/** Null when it cannot be read. */
function openFile({ file }: Wanted): Promise<FileHandle | null> {
  const { O_RDONLY, O_NOFOLLOW, O_NONBLOCK } = constants;
  return readable(() => open(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
}

/** Null for another's: an unconfined job can make a hard link to what it may not read, where the kernel does not prevent it. */
async function describe(handle: FileHandle, { name, owner }: Wanted) {
  const { size, mode, mtime, uid } = await handle.stat();
  return uid === owner
    ? { size, header: tarHeader({ name, size, mode: mode & 0o777, mtime }) }
    : null;
}

function becameShorter(): Error {
  return new Error('a file of the artifacts became shorter while it was read');
}

function leftOut(name: Buffer): Buffer {
  return tarHeader({ name, size: 0, mode: 0, type: 'other' });
}

async function linkEntry(file: Buffer, name: Buffer): Promise<Buffer> {
  const target = await readable(() => readlink(file, { encoding: 'buffer' }));
  return target ? tarHeader({ name, size: 0, mode: 0o777, type: 'link', target }) : leftOut(name);
}

const EMPTY = Buffer.alloc(0);
const SEPARATOR = Buffer.from(sep);

function under(folder: Buffer, name: Buffer): Buffer {
  if (folder.length === 0 || name.length === 0) return folder.length === 0 ? name : folder;
  return Buffer.concat([folder, SEPARATOR, name]);
}

/** Relative to the folder that everything lies in, whose own is empty. */
function nameOf(folder: Folder): Buffer {
  const names: Buffer[] = [];
  for (let at = folder; at; at = at.parent) names.unshift(SEPARATOR, at.name);
  return names.length === 0 ? EMPTY : Buffer.concat(names.slice(1));
}

/** In the order of their names; `more` when there are more than `max`. */
async function entriesOf(folder: Buffer, max: number): Promise<Dirent<Buffer>[] | 'more'> {
  const entries: { entry: Dirent<Buffer>; key: string }[] = [];
  // Its types do not know the encoding that they have for readdir.
  const found = await opendir(folder, { encoding: 'buffer' as BufferEncoding });
  for await (const entry of found as unknown as AsyncIterable<Dirent<Buffer>>) {
    if (entries.length === max) return 'more';
    // A character for each byte: buffers took six times as long to compare, and nobody else has a turn meanwhile.
    entries.push({ entry, key: entry.name.toString('latin1') });
  }
  return entries.sort((a, b) => (a.key < b.key ? -1 : 1)).map(({ entry }) => entry);
}

/** What a job can do to its own files; anything else is a fault of the machine. */
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

/** Null when it cannot be read. */
async function readable<T>(read: () => Promise<T>): Promise<T | null> {
  try {
    return await read();
  } catch (error) {
    if (UNREADABLE.has((error as NodeJS.ErrnoException).code ?? '')) return null;
    throw error;
  }
}
