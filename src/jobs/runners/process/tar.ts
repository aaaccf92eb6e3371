/**
 * A tar of what a job left at its `output_path`. The job wrote everything here, names and links included:
 * nothing outside the folders it was given is ever opened.
 */
import { constants, type Dirent } from 'node:fs';
import { lstat, open, opendir, realpath } from 'node:fs/promises';
import { basename, join, normalize, relative, sep } from 'node:path';
import { Readable } from 'node:stream';
import { TAR_END, tarHeader, tarPadding } from '../../artifacts/tar.ts';
import { MAX_OUTPUT_ENTRIES, tooManyEntries } from '../runner.ts';
import { MOUNTS } from './view.ts';

/** `owner`: the user that the job ran under. */
export type Place = { path: string; owner: number };

/**
 * The place on this machine of a path as the job sees it; null when nothing is there, or when it leads
 * outside: by its text, or through a link.
 */
export async function locate(dir: string, path: string): Promise<Place | null> {
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
 * A tar with names, as bytes, relative to `path`; a single file goes under its own name. Links, devices, FIFOs and
 * sockets, files of others, and what cannot be read, are entries without contents, so that whoever keeps the files can count them.
 * It fails with TooLarge beyond so many entries, before it has read more names than that into memory.
 */
export function tarOf(place: Place, maxEntries = MAX_OUTPUT_ENTRIES): Readable {
  return Readable.from(tarred(place, maxEntries), { objectMode: false });
}

/** By its parent, because the paths of many folders in a deep one would take gigabytes; null: `path` itself. */
type Folder = { parent: Folder; name: Buffer } | null;

async function* tarred({ path, owner }: Place, maxEntries: number): AsyncGenerator<Buffer> {
  const root = Buffer.from(path);
  if ((await lstat(root)).isFile()) yield* fileEntry(root, Buffer.from(basename(path)), owner);
  // A list of folders to visit, not recursion: the job chose how deep they go.
  else {
    let left = maxEntries;
    for (const folders: Folder[] = [null]; folders.length > 0; ) {
      const folder = folders.pop() as Folder;
      const folderName = nameOf(folder);
      const entries = await readable(() => entriesOf(under(root, folderName), left));
      if (!entries) {
        yield leftOut(folderName, 'other');
        continue;
      }
      if (entries === 'more') throw tooManyEntries(maxEntries);
      left -= entries.length;
      for (const entry of entries) {
        const name = under(folderName, entry.name);
        if (entry.isDirectory()) folders.push({ parent: folder, name: entry.name });
        else if (entry.isFile()) yield* fileEntry(under(root, name), name, owner);
        else yield leftOut(name, entry.isSymbolicLink() ? 'link' : 'other');
      }
    }
  }
  yield TAR_END;
}

async function* fileEntry(file: Buffer, name: Buffer, owner: number): AsyncGenerator<Buffer> {
  const { O_RDONLY, O_NOFOLLOW, O_NONBLOCK } = constants;
  const opened = await readable(() => open(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
  if (!opened) return yield leftOut(name, 'other');
  await using handle = opened;
  const { size, mode, mtime, uid } = await handle.stat();
  // An unconfined job can make a hard link to what it may not read, where the kernel does not prevent it.
  if (uid !== owner) return yield leftOut(name, 'other');
  yield tarHeader({ name, size, mode: mode & 0o777, mtime });
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
  if (left > 0) throw new Error('a file of the artifacts became shorter while it was read');
  yield tarPadding(size);
}

function leftOut(name: Buffer, type: 'link' | 'other'): Buffer {
  return tarHeader({ name, size: 0, mode: 0, type });
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
  const entries: Dirent<Buffer>[] = [];
  // Its types do not know the encoding that they have for readdir.
  const found = await opendir(folder, { encoding: 'buffer' as BufferEncoding });
  for await (const entry of found as unknown as AsyncIterable<Dirent<Buffer>>) {
    if (entries.length === max) return 'more';
    entries.push(entry);
  }
  return entries.sort((a, b) => Buffer.compare(a.name, b.name));
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
