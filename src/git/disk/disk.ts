/**
 * Storage of bare repositories. Folders are named by id, never by name, so that rename and transfer move no files.
 * Several servers may share the root folder.
 *
 *   repositories/ab/cd/<id>.git          shards from the end of the id: its beginning is the creation time
 *   repositories/new/<server>/           under construction; renamed into place when complete
 *   repositories/begun/<server>/<id>.*   operations on a repository that are not yet in the database
 *   repositories/trash/<server>/         renamed away from its place; being removed
 *
 * After a kill, startup reads the begun operations. Their number is the work in flight, so recovery never walks all
 * repositories. Operations belong to the server that began them; when that server is dead, another one takes them over.
 */
import { randomUUID } from 'node:crypto';
import type { Dirent } from 'node:fs';
import * as fs from 'node:fs';
import {
  mkdir,
  open,
  readdir,
  readFile,
  rename,
  rm,
  rmdir,
  stat,
  unlink,
  writeFile,
} from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { LRUCache } from 'lru-cache';

type Person = { name: string; email: string };

type FirstCommit = {
  message: string;
  author: Person;
  /** Files at the root of the tree, by name. */
  files: Record<string, string>;
};

/** An operation on a repository that has begun. `data` is for the code that finishes the operation. */
export type PendingOperation<T = unknown> = { id: string; data: T; done(): Promise<void> };

/**
 * An operation that is neither finished nor undone after this time belongs to a dead server: transactions that create
 * or delete a repository take seconds.
 */
const ABANDONED_MS = 10 * 60_000;

export class Disk {
  readonly #root: string;
  readonly #new: string;
  readonly #operations: string;
  readonly #trash: string;

  /** `server` is the id under which this process stores its begun operations. */
  constructor(root: string, server: string) {
    this.#root = root;
    this.#new = join(root, 'new', server);
    this.#operations = join(root, 'begun', server);
    this.#trash = join(root, 'trash', server);
  }

  pathOf(id: string): string {
    return join(this.#root, id.slice(-2), id.slice(-4, -2), `${id}.git`);
  }

  /** Creates the folders, and removes files that this server was building or removing when it was killed. */
  async prepare(): Promise<void> {
    for (const folder of [this.#new, this.#trash])
      await rm(folder, { recursive: true, force: true });
    for (const folder of [this.#new, this.#operations, this.#trash])
      await mkdir(folder, { recursive: true });
    await this.#takeOverEarlier();
  }

  /** Earlier versions supported only one server and had no folder for each server. */
  async #takeOverEarlier(): Promise<void> {
    for (const kind of ['new', 'trash'])
      for (const name of await readdir(join(this.#root, kind)))
        if (name.startsWith('repo_'))
          await rm(join(this.#root, kind, name), { recursive: true, force: true });
    for (const name of await readdir(join(this.#root, 'begun')))
      if (name.startsWith('repo_'))
        await rename(join(this.#root, 'begun', name), join(this.#operations, name));
  }

  /**
   * Creates a bare repository atomically: builds in another folder, syncs, then renames into place. `HEAD` names
   * `defaultBranch`, which exists only when there is a first commit.
   * @returns the id of the first commit
   */
  async create(id: string, defaultBranch: string, first?: FirstCommit): Promise<string | null> {
    const gitdir = join(this.#new, `${id}.git`);
    await writeSkeleton(gitdir, defaultBranch);
    const sha = first ? await commitFirst(gitdir, defaultBranch, first) : null;
    await syncTree(gitdir);
    const place = this.pathOf(id);
    await mkdir(dirname(place), { recursive: true });
    await rename(gitdir, place);
    await sync(dirname(place));
    return sha;
  }

  /**
   * Runs `work` in an empty folder on the repositories' disk and removes the folder afterwards. After a kill, the
   * folder is removed later.
   */
  async withScratchFolder<T>(work: (folder: string) => Promise<T>): Promise<T> {
    const folder = join(this.#new, `scratch.${randomUUID()}`);
    await mkdir(folder, { recursive: true });
    try {
      return await work(folder);
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  }

  /** Moves the repository away at once, then removes its files. Does nothing when there is no repository. */
  async remove(id: string): Promise<void> {
    await this.discard(this.pathOf(id), id);
  }

  /** Like `remove`, for a folder within a repository. */
  async discard(folder: string, id: string): Promise<void> {
    const grave = join(this.#trash, `${id}.${randomUUID()}`);
    await mkdir(this.#trash, { recursive: true });
    try {
      await rename(folder, grave);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return;
      throw error;
    }
    await rm(grave, { recursive: true, force: true, maxRetries: 3 });
  }

  /** Removes files that dead servers were building or removing. */
  async removeAbandoned(): Promise<void> {
    for (const kind of ['new', 'trash'])
      for (const server of await readdir(join(this.#root, kind))) {
        const folder = join(this.#root, kind, server);
        // A server creates its folder again when it starts.
        for (const name of await readdir(folder).catch(() => [])) {
          const path = join(folder, name);
          if (await isAbandoned(path)) await rm(path, { recursive: true, force: true });
        }
        // Left by servers that start with a new data folder each time. The folder is created again when needed.
        const isOurs = folder === this.#new || folder === this.#trash;
        if (!isOurs && (await isAbandoned(folder))) await rmdir(folder).catch(() => {});
      }
  }

  /** Other servers that have unfinished operations. */
  async serversWithPendingOperations(): Promise<string[]> {
    const servers: string[] = [];
    for (const name of await readdir(join(this.#root, 'begun'))) {
      const folder = join(this.#root, 'begun', name);
      if (folder !== this.#operations && (await readdir(folder)).length > 0) servers.push(name);
    }
    return servers;
  }

  /**
   * Transfers the operations of a dead server to this one. Pushes are transferred at once, because recording a push or
   * removing its leftovers twice does no harm. Other operations are transferred when they are so old that nobody can be
   * working on them.
   */
  async takeOver(server: string): Promise<PendingOperation[]> {
    const folder = join(this.#root, 'begun', server);
    const taken: PendingOperation[] = [];
    for (const name of await readdir(folder)) {
      const { data } = await this.#read(join(folder, name));
      const { kind } = (data ?? {}) as { kind?: unknown };
      const isPush = kind === 'push' || kind === 'receiving';
      if (!isPush && !(await isAbandoned(join(folder, name)))) continue;
      await rename(join(folder, name), join(this.#operations, name));
      taken.push(await this.#read(join(this.#operations, name)));
    }
    // Succeeds only when the folder is empty; a server that comes back creates it again.
    await rmdir(folder).catch(() => {});
    return taken;
  }

  /**
   * Records an operation so that it survives a kill; `done` removes the record. With `flush` it also survives a power
   * loss.
   */
  async beginOperation<T>(
    id: string,
    data: T,
    { flush = true } = {},
  ): Promise<PendingOperation<T>> {
    const file = join(this.#operations, `${id}.${randomUUID()}`);
    const write = () => writeFile(file, JSON.stringify(data), { flush });
    await write().catch(async (error) => {
      if (error.code !== 'ENOENT') throw error;
      // Another server took this server for dead and removed its empty folder.
      await mkdir(this.#operations, { recursive: true });
      await write();
    });
    return { id, data, done: () => removeRecord(file) };
  }

  /** Operations that began before this start and are not done. */
  async pendingOperations(): Promise<PendingOperation[]> {
    const names = await readdir(this.#operations);
    return Promise.all(names.map((name) => this.#read(join(this.#operations, name))));
  }

  async #read(file: string): Promise<PendingOperation> {
    const data = parseRecord(await readFile(file, 'utf8'));
    const id = basename(file).split('.')[0] as string;
    return { id, data, done: () => removeRecord(file) };
  }
}

/** Removes the record of an operation. The record may be gone already. */
async function removeRecord(file: string): Promise<void> {
  await unlink(file).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw error;
  });
}

async function isAbandoned(path: string): Promise<boolean> {
  const { mtimeMs } = await stat(path).catch(() => ({ mtimeMs: Number.POSITIVE_INFINITY }));
  return Date.now() - mtimeMs > ABANDONED_MS;
}

/** A record that a power loss cut short still names its repository. */
function parseRecord(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Creates the same files as `git init --bare`, without a process, sample hooks and templates. */
async function writeSkeleton(gitdir: string, defaultBranch: string): Promise<void> {
  for (const folder of ['objects/info', 'objects/pack', 'refs/heads', 'refs/tags'])
    await mkdir(join(gitdir, folder), { recursive: true });
  await writeFile(join(gitdir, 'HEAD'), `ref: refs/heads/${defaultBranch}\n`);
  await writeFile(
    join(gitdir, 'config'),
    '[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n',
  );
}

async function commitFirst(gitdir: string, branch: string, first: FirstCommit): Promise<string> {
  const { default: isomorphicGit } = await import('isomorphic-git');
  const tree = await Promise.all(
    Object.entries(first.files).map(async ([path, text]) => {
      const oid = await isomorphicGit.writeBlob({ fs, gitdir, blob: Buffer.from(text) });
      return { mode: '100644', path, oid, type: 'blob' as const };
    }),
  );
  return isomorphicGit.commit({
    fs,
    gitdir,
    ref: `refs/heads/${branch}`,
    message: first.message,
    author: { ...first.author, timezoneOffset: 0 },
    tree: await isomorphicGit.writeTree({ fs, gitdir, tree }),
    parent: [],
  });
}

/** A pack file of a repository. A file with such a name never changes, so each is looked up once. */
export type PackFile = { name: string; size: number; mtimeMs: number };

const PACK_FILE_NAME = /^pack-.*\.(?:pack|idx)$/;

/** By path. A repository has two entries for each pack; maintenance keeps the number of packs small. */
const packFileCache = new LRUCache<string, PackFile>({ max: 10_000 });

/** Leaves out packs that are removed meanwhile. @throws Error when the folder cannot be read */
export async function listPackFiles(dir: string): Promise<PackFile[]> {
  const folder = join(dir, 'objects/pack');
  const names = (await readdir(folder)).filter((name) => PACK_FILE_NAME.test(name));
  const files = await Promise.all(names.map((name) => statPackFile(folder, name)));
  return files.filter((file) => file !== null);
}

async function statPackFile(folder: string, name: string): Promise<PackFile | null> {
  const path = join(folder, name);
  const before = packFileCache.get(path);
  if (before) return before;
  const found = await stat(path).catch(() => null);
  if (!found) return null;
  const file = { name, size: found.size, mtimeMs: found.mtimeMs };
  packFileCache.set(path, file);
  return file;
}

/* Syncs files and folders, so that they survive a power loss. */

/** Syncs one file or folder. */
async function sync(path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** Like `sync`; does nothing when the path does not exist. */
export async function syncIfExists(path: string): Promise<void> {
  await sync(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT' && error.code !== 'ENOTDIR') throw error;
  });
}

/** Syncs a folder and everything in it. Skips files that are removed meanwhile. */
export async function syncTree(folder: string): Promise<void> {
  for (const entry of await entriesOf(folder)) {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) await syncTree(path);
    else await syncIfExists(path);
  }
  await syncIfExists(folder);
}

async function entriesOf(folder: string): Promise<Dirent[]> {
  try {
    return await readdir(folder, { withFileTypes: true });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
}
