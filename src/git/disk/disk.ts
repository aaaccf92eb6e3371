/**
 * Storage of bare repositories. Folders are named by id, never by name, so that rename and transfer move no files.
 * Several servers may share the root folder.
 *
 *   <root>/yz/wx/<…wxyz>.git      a repository; the end of its id is random, the beginning is the creation time
 *   <root>/new/<server>/          repositories under construction; renamed into place when complete
 *   <root>/begun/<server>/<id>.*  notes of pending operations, one file for each; they are not yet complete in the database
 *   <root>/trash/<server>/        repositories renamed away from their place; their files are being removed
 *
 * After a crash, the server reads its pending operations at startup. There are only as many as operations that were in
 * progress, so recovery never walks all repositories. Operations belong to the server that began them; when that server
 * is dead, another server takes them over.
 */

import { randomUUID } from 'node:crypto';
import * as fs from 'node:fs';
import {
  mkdir,
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
import { sync, syncTree } from './fsync.ts';

type Person = { name: string; email: string };

type FirstCommit = {
  message: string;
  author: Person;
  /** Files at the root of the tree, by name. */
  files: Record<string, string>;
};

/** An operation on a repository that is noted on disk and not yet complete in the database. */
export type PendingOperation<T = unknown> = {
  /** The id of the repository. */
  id: string;
  /** For the code that finishes or undoes the operation. */
  data: T;
  /** Removes the note. */
  finish(): Promise<void>;
};

/**
 * A pending operation, or a folder in `new` or `trash`, that is older than this belongs to a dead server, because
 * creating or deleting a repository takes seconds.
 */
const ABANDONED_MS = 10 * 60_000;

export class Disk {
  readonly #root: string;
  readonly #new: string;
  readonly #operations: string;
  readonly #trash: string;

  /** `server` is the id under which this process stores its pending operations. */
  constructor(root: string, server: string) {
    this.#root = root;
    this.#new = join(root, 'new', server);
    this.#operations = join(root, 'begun', server);
    this.#trash = join(root, 'trash', server);
  }

  pathOf(id: string): string {
    return join(this.#root, id.slice(-2), id.slice(-4, -2), `${id}.git`);
  }

  /** Creates the folders, and removes repositories that this server was creating or removing when it was killed. */
  async prepare(): Promise<void> {
    for (const folder of [this.#new, this.#trash])
      await rm(folder, { recursive: true, force: true });
    for (const folder of [this.#new, this.#operations, this.#trash])
      await mkdir(folder, { recursive: true });
  }

  /**
   * Creates a bare repository atomically: builds it in another folder, syncs the folder to disk, then renames it into
   * place. `HEAD` names `defaultBranch`, which exists only if there is a first commit.
   * @returns the id of the first commit
   */
  async create(id: string, defaultBranch: string, first?: FirstCommit): Promise<string | null> {
    const gitdir = join(this.#new, `${id}.git`);
    await writeSkeleton(gitdir, defaultBranch);
    const sha = first ? await createFirstCommit(gitdir, defaultBranch, first) : null;
    await syncTree(gitdir);
    const path = this.pathOf(id);
    const shard = dirname(path);
    await mkdir(shard, { recursive: true });
    await rename(gitdir, path);
    // `mkdir` may have created both levels of the shard, so their parents are synced as well.
    for (const folder of [shard, dirname(shard), this.#root]) await sync(folder);
    return sha;
  }

  /**
   * Runs `work` in an empty folder on the disk of the repositories and removes the folder afterwards. If the server is
   * killed, `prepare` or `removeAbandoned` removes the folder.
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

  /** Renames the repository into the trash, which is atomic, then removes its files. Does nothing if there is none. */
  async remove(id: string): Promise<void> {
    await this.discardFolder(this.pathOf(id), id);
  }

  /** Like `remove`, for a folder within the repository with this id. */
  async discardFolder(folder: string, id: string): Promise<void> {
    const trashPath = join(this.#trash, `${id}.${randomUUID()}`);
    await mkdir(this.#trash, { recursive: true });
    try {
      await rename(folder, trashPath);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return;
      throw error;
    }
    await rm(trashPath, { recursive: true, force: true, maxRetries: 3 });
  }

  /** Removes repositories that dead servers were creating or removing, and the empty folders of these servers. */
  async removeAbandoned(): Promise<void> {
    for (const kind of ['new', 'trash']) {
      for (const server of await readdir(join(this.#root, kind))) {
        const folder = join(this.#root, kind, server);
        await removeAbandonedIn(folder);
        // A server whose id changes at each start leaves a folder each time. A live server creates its folder again.
        const isOurs = folder === this.#new || folder === this.#trash;
        if (!isOurs && (await isAbandoned(folder))) await rmdir(folder).catch(() => {});
      }
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
   * Transfers the pending operations of a dead server to this server, one by one: an operation that was yielded belongs
   * to this server, even if the next one fails. Pushes are transferred immediately, because recording a push or removing
   * its files twice does no harm. Other operations are transferred when they are so old that no server can be working on
   * them.
   */
  async *takeOverOperations(server: string): AsyncGenerator<PendingOperation> {
    const folder = join(this.#root, 'begun', server);
    for (const name of await readdir(folder)) {
      const { id, data } = await this.#read(join(folder, name));
      const { kind } = (data ?? {}) as { kind?: unknown };
      const isPush = kind === 'push' || kind === 'receiving';
      if (!isPush && !(await isAbandoned(join(folder, name)))) continue;
      const file = join(this.#operations, name);
      await rename(join(folder, name), file);
      yield { id, data, finish: () => removeNote(file) };
    }
    // Succeeds only if the folder is empty. A server that comes back creates its folder again.
    await rmdir(folder).catch(() => {});
  }

  /**
   * Notes an operation on disk, so that it survives a kill; with `flush`, also a power loss. `finish` removes the
   * note.
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
      // Another server considered this server dead and removed its empty folder.
      await mkdir(this.#operations, { recursive: true });
      await write();
    });
    return { id, data, finish: () => removeNote(file) };
  }

  /** Reads the pending operations of this server. At startup, these are the ones that a crash interrupted. */
  async pendingOperations(): Promise<PendingOperation[]> {
    const names = await readdir(this.#operations);
    return Promise.all(names.map((name) => this.#read(join(this.#operations, name))));
  }

  /** Reads the pending operations of all servers on a repository. */
  async pendingOperationsOf(id: string): Promise<PendingOperation[]> {
    const operations: PendingOperation[] = [];
    for (const server of await readdir(join(this.#root, 'begun'))) {
      const folder = join(this.#root, 'begun', server);
      try {
        for (const name of await readdir(folder))
          if (name.startsWith(`${id}.`)) operations.push(await this.#read(join(folder, name)));
      } catch (error) {
        // The operation was finished meanwhile, or another server took it over.
        if ((error as NodeJS.ErrnoException).code === 'ENOENT') return this.pendingOperationsOf(id);
        throw error;
      }
    }
    return operations;
  }

  async #read(file: string): Promise<PendingOperation> {
    const data = parseNote(await readFile(file, 'utf8'));
    const id = basename(file).split('.')[0] as string;
    return { id, data, finish: () => removeNote(file) };
  }
}

/** Removes the note of an operation. The note may be gone already. */
async function removeNote(file: string): Promise<void> {
  await unlink(file).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw error;
  });
}

async function removeAbandonedIn(folder: string): Promise<void> {
  // The folder may be gone: another server may have removed it.
  for (const name of await readdir(folder).catch(() => [])) {
    const path = join(folder, name);
    if (await isAbandoned(path)) await rm(path, { recursive: true, force: true });
  }
}

async function isAbandoned(path: string): Promise<boolean> {
  const { mtimeMs } = await stat(path).catch(() => ({ mtimeMs: Number.POSITIVE_INFINITY }));
  return Date.now() - mtimeMs > ABANDONED_MS;
}

/** Null for a note that a power loss truncated. The repository id is in its file name. */
function parseNote(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Does what `git init --bare` does, without starting git and without sample hooks. */
async function writeSkeleton(gitdir: string, defaultBranch: string): Promise<void> {
  for (const folder of ['objects/info', 'objects/pack', 'refs/heads', 'refs/tags'])
    await mkdir(join(gitdir, folder), { recursive: true });
  await writeFile(join(gitdir, 'HEAD'), `ref: refs/heads/${defaultBranch}\n`);
  await writeFile(
    join(gitdir, 'config'),
    '[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n',
  );
}

async function createFirstCommit(
  gitdir: string,
  branch: string,
  first: FirstCommit,
): Promise<string> {
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
