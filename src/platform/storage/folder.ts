/** Storage driver for a folder: one file for each key. */
import { randomUUID } from 'node:crypto';
import { createReadStream, type Stats } from 'node:fs';
import { mkdir, open, opendir, rename, rm, rmdir, stat } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { Readable } from 'node:stream';
import { readOrCreateId } from './data-folder.ts';
import {
  ABANDONED_MS,
  type Contents,
  checkKey,
  type Storage,
  type StoredObject,
} from './storage.ts';
import { abortable } from './streams.ts';

/** Folder of unfinished uploads. No key begins with a dot. */
const UNFINISHED = '.unfinished';
/** Size of one read. Reads of 64 KiB take the reading thread twice as long. */
const READ_BYTES = 2 ** 20;
/** How often `moveDurably` creates a folder that a concurrent `remove` deletes. */
const MAX_TRIES = 10;

/** @throws Error if the folder cannot be created */
export async function openFolder(root: string): Promise<Storage> {
  const unfinished = join(root, UNFINISHED);
  await mkdir(unfinished, { recursive: true, mode: 0o700 });
  const pathOf = (key: string) => join(root, checkKey(key));

  async function put(key: string, contents: Contents, signal: AbortSignal = NEVER) {
    const path = pathOf(key);
    const temporary = join(unfinished, randomUUID());
    try {
      const stored = await write(temporary, contents, signal);
      await moveDurably(temporary, path);
      return stored;
    } catch (error) {
      if (contents instanceof Readable) contents.destroy();
      await rm(temporary, { force: true });
      signal.throwIfAborted();
      throw error;
    }
  }

  return {
    description: `the folder ${root}`,
    identity: await readOrCreateId(root, '.storage-id'),
    put: (key, contents, { signal } = {}) => put(key, contents, signal),
    async open(key, range) {
      const file = await nullIfMissing(open(pathOf(key)));
      if (!file) return null;
      try {
        const stored = describe(await file.stat());
        const bytes = range ? range.end - range.start + 1 : stored.size;
        const highWaterMark = Math.max(1, Math.min(READ_BYTES, bytes));
        const contents = createReadStream('', { fd: file, ...range, highWaterMark });
        return { ...stored, contents };
      } catch (error) {
        await file.close();
        throw error;
      }
    },
    async read(key, { start, end }) {
      const file = await nullIfMissing(open(pathOf(key)));
      if (!file) return null;
      let at = start;
      return {
        async into(memory) {
          const bytes = Math.min(memory.length, end + 1 - at);
          const { bytesRead } = await file.read(memory, 0, bytes, at);
          at += bytesRead;
          return bytesRead;
        },
        [Symbol.asyncDispose]: () => file.close(),
      };
    },
    async stat(key) {
      const stats = await nullIfMissing(stat(pathOf(key)));
      return stats && describe(stats);
    },
    list: (prefix) => listFiles(root, prefix),
    async remove(key) {
      const path = pathOf(key);
      await rm(path, { force: true });
      await removeEmpty(dirname(path), root);
    },
    async removeAbandoned() {
      for await (const { name } of await opendir(unfinished)) {
        const path = join(unfinished, name);
        const stats = await nullIfMissing(stat(path));
        if (stats && Date.now() - stats.mtimeMs > ABANDONED_MS) await rm(path, { force: true });
      }
    },
    link: async () => null,
    [Symbol.dispose]() {},
  };
}

const NEVER = new AbortController().signal;

async function* listFiles(
  root: string,
  prefix: string,
): AsyncGenerator<StoredObject & { key: string }> {
  const folders = [join(root, prefix && checkKey(prefix.replace(/\/$/, '')))];
  for (let folder = folders.pop(); folder !== undefined; folder = folders.pop()) {
    const entries = await nullIfMissing(opendir(folder));
    if (!entries) continue;
    for await (const { name } of entries) {
      if (name.startsWith('.')) continue;
      const path = join(folder, name);
      const stats = await nullIfMissing(stat(path));
      if (stats?.isDirectory()) folders.push(path);
      else if (stats) yield { key: relative(root, path), ...describe(stats) };
    }
  }
}

/** Writes piece by piece. A stream would keep each piece, and new memory costs uploads of large files a third more CPU. */
async function write(path: string, contents: Contents, signal: AbortSignal): Promise<StoredObject> {
  signal.throwIfAborted();
  await using file = await open(path, 'wx', 0o600);
  const pieces = contents instanceof Uint8Array ? [contents] : abortable(contents, signal);
  for await (const piece of pieces)
    for (let at = 0; at < piece.length; )
      at += (await file.write(piece, at, piece.length - at)).bytesWritten;
  await file.sync();
  return describe(await file.stat());
}

function describe({ size, mtime, ino }: Stats): StoredObject {
  return {
    size,
    modifiedAt: mtime,
    version: `${ino.toString(36)}-${mtime.getTime().toString(36)}`,
  };
}

/** Moves a file, and syncs the folders whose entries change. */
async function moveDurably(temporary: string, path: string): Promise<void> {
  const folder = dirname(path);
  let firstCreated: string | undefined;
  const move = async () => {
    firstCreated = (await mkdir(folder, { recursive: true, mode: 0o700 })) ?? firstCreated;
    await rename(temporary, path);
    return true;
  };
  for (let tries = 1; !(await nullIfMissing(move())); tries++)
    if (tries === MAX_TRIES)
      throw new Error(`${folder} was removed ${MAX_TRIES} times while a file was moved into it`);
  // The entry of a new folder is in its parent, so the parents of new folders are synced, too.
  const last = firstCreated ? dirname(firstCreated) : folder;
  for (let at = folder; ; at = dirname(at)) {
    await nullIfMissing(syncFolder(at));
    if (at === last) return;
  }
}

async function syncFolder(folder: string): Promise<void> {
  await using handle = await open(folder);
  await handle.sync();
}

/** Removes the folder and its parents up to `root`, as far as they are empty. */
async function removeEmpty(folder: string, root: string): Promise<void> {
  for (let at = folder; at !== root; at = dirname(at)) {
    try {
      await rmdir(at);
    } catch {
      return;
    }
  }
}

/** Returns null if the file does not exist. */
async function nullIfMissing<T>(work: Promise<T>): Promise<T | null> {
  try {
    return await work;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR') return null;
    throw error;
  }
}
