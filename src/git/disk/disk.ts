/**
 * Where repositories lie: bare, by id and never by name, so that rename and transfer move nothing. Several servers
 * may share the folder.
 *
 *   repositories/ab/cd/<id>.git          shards from the id's end: its beginning is the time of creation
 *   repositories/new/<server>/           being built; renamed into place when whole
 *   repositories/begun/<server>/<id>.*   what was begun with a repository and is not yet in the database
 *   repositories/trash/<server>/         renamed away from its place; being removed
 *
 * What was begun is what a start after a kill reads: its size is that of the work in flight, so recovery never has
 * to walk all repositories. It belongs to the server that began it; when that one is dead, another takes it.
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
import { LRUCache } from 'lru-cache';
import { sync, syncTree } from './sync.ts';

export type Person = { name: string; email: string };

export type FirstCommit = {
  message: string;
  author: Person;
  /** At the root of the tree, by name. */
  files: Record<string, string>;
};

/** Something begun with a repository. `data` is whatever the one who finishes it needs. */
export type Begun<T = unknown> = { id: string; data: T; done(): Promise<void> };

/**
 * What is neither finished nor undone for so long was left by a server that is dead: the transactions of others that
 * create or delete a repository take seconds.
 */
const ABANDONED_MS = 10 * 60_000;

export class Disk {
  readonly #root: string;
  readonly #new: string;
  readonly #begun: string;
  readonly #trash: string;

  /** `server` is the id under which this process keeps what it has begun. */
  constructor(root: string, server: string) {
    this.#root = root;
    this.#new = join(root, 'new', server);
    this.#begun = join(root, 'begun', server);
    this.#trash = join(root, 'trash', server);
  }

  pathOf(id: string): string {
    return join(this.#root, id.slice(-2), id.slice(-4, -2), `${id}.git`);
  }

  /** Makes the folders, and removes what this server left half built or half removed when it was killed. */
  async prepare(): Promise<void> {
    for (const folder of [this.#new, this.#trash])
      await rm(folder, { recursive: true, force: true });
    for (const folder of [this.#new, this.#begun, this.#trash])
      await mkdir(folder, { recursive: true });
    await this.#takeOverEarlier();
  }

  /** Versions for one server alone had no folder for each. */
  async #takeOverEarlier(): Promise<void> {
    for (const kind of ['new', 'trash'])
      for (const name of await readdir(join(this.#root, kind)))
        if (name.startsWith('repo_'))
          await rm(join(this.#root, kind, name), { recursive: true, force: true });
    for (const name of await readdir(join(this.#root, 'begun')))
      if (name.startsWith('repo_'))
        await rename(join(this.#root, 'begun', name), join(this.#begun, name));
  }

  /**
   * Makes a bare repository, whole or not at all: built aside, synced, renamed into place.
   * `HEAD` names `defaultBranch`, which exists only when there is a first commit.
   * @returns the first commit's id.
   */
  async create(id: string, defaultBranch: string, first?: FirstCommit): Promise<string | null> {
    const gitdir = join(this.#new, `${id}.git`);
    await writeSkeleton(gitdir, defaultBranch);
    const sha = first ? await commit(gitdir, defaultBranch, first) : null;
    await syncTree(gitdir);
    const place = this.pathOf(id);
    await mkdir(dirname(place), { recursive: true });
    await rename(gitdir, place);
    await sync(dirname(place));
    return sha;
  }

  /** Work in an empty folder on the disk of the repositories, which goes with it; what a kill leaves is removed later. */
  async inScratch<T>(work: (folder: string) => Promise<T>): Promise<T> {
    const folder = join(this.#new, `scratch.${randomUUID()}`);
    await mkdir(folder, { recursive: true });
    try {
      return await work(folder);
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  }

  /** Takes the repository away at once, then removes its files. Nothing happens when there is none. */
  async remove(id: string): Promise<void> {
    await this.discard(this.pathOf(id), id);
  }

  /** The same for a folder within a repository. */
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

  /** Removes what servers that do not come back were building or removing. */
  async removeAbandoned(): Promise<void> {
    for (const kind of ['new', 'trash'])
      for (const server of await readdir(join(this.#root, kind))) {
        const folder = join(this.#root, kind, server);
        // A server that starts makes its folder anew.
        for (const name of await readdir(folder).catch(() => [])) {
          const path = join(folder, name);
          if (await isAbandoned(path)) await rm(path, { recursive: true, force: true });
        }
        // Of servers that come with a new data folder each time. It is made again where it is needed.
        const isOurs = folder === this.#new || folder === this.#trash;
        if (!isOurs && (await isAbandoned(folder))) await rmdir(folder).catch(() => {});
      }
  }

  /** Servers that began something and have not finished it, this one left out. */
  async othersWithBegun(): Promise<string[]> {
    const servers: string[] = [];
    for (const name of await readdir(join(this.#root, 'begun'))) {
      const folder = join(this.#root, 'begun', name);
      if (folder !== this.#begun && (await readdir(folder)).length > 0) servers.push(name);
    }
    return servers;
  }

  /**
   * Makes ours what a dead server has begun: pushes at once, because to record one twice does no harm, nor to remove
   * twice what one left; the rest when it is old enough that nobody can be at it any more.
   */
  async takeOver(server: string): Promise<Begun[]> {
    const folder = join(this.#root, 'begun', server);
    const taken: Begun[] = [];
    for (const name of await readdir(folder)) {
      const { data } = await this.#read(join(folder, name));
      const { kind } = (data ?? {}) as { kind?: unknown };
      const isPush = kind === 'push' || kind === 'receiving';
      if (!isPush && !(await isAbandoned(join(folder, name)))) continue;
      await rename(join(folder, name), join(this.#begun, name));
      taken.push(await this.#read(join(this.#begun, name)));
    }
    // For good when it is empty: a server that comes back makes it again.
    await rmdir(folder).catch(() => {});
    return taken;
  }

  /** Remembers, across a kill, that something was begun; `done` forgets it. `flush`: across a loss of power, too. */
  async begin<T>(id: string, data: T, { flush = true } = {}): Promise<Begun<T>> {
    const file = join(this.#begun, `${id}.${randomUUID()}`);
    const write = () => writeFile(file, JSON.stringify(data), { flush });
    await write().catch(async (error) => {
      if (error.code !== 'ENOENT') throw error;
      // Another server took this one for dead, and its empty folder away.
      await mkdir(this.#begun, { recursive: true });
      await write();
    });
    return { id, data, done: () => forget(file) };
  }

  /** What was begun before this start and not done. */
  async begun(): Promise<Begun[]> {
    const names = await readdir(this.#begun);
    return Promise.all(names.map((name) => this.#read(join(this.#begun, name))));
  }

  async #read(file: string): Promise<Begun> {
    const data = parse(await readFile(file, 'utf8'));
    const id = basename(file).split('.')[0] as string;
    return { id, data, done: () => forget(file) };
  }
}

/** Of a note. It may be gone. */
async function forget(file: string): Promise<void> {
  await unlink(file).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw error;
  });
}

async function isAbandoned(path: string): Promise<boolean> {
  const { mtimeMs } = await stat(path).catch(() => ({ mtimeMs: Number.POSITIVE_INFINITY }));
  return Date.now() - mtimeMs > ABANDONED_MS;
}

/** A note cut short by a loss of power still says which repository to look at. */
function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** What `git init --bare` makes, without its process, samples and templates. */
async function writeSkeleton(gitdir: string, defaultBranch: string): Promise<void> {
  for (const folder of ['objects/info', 'objects/pack', 'refs/heads', 'refs/tags'])
    await mkdir(join(gitdir, folder), { recursive: true });
  await writeFile(join(gitdir, 'HEAD'), `ref: refs/heads/${defaultBranch}\n`);
  await writeFile(
    join(gitdir, 'config'),
    '[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n',
  );
}

async function commit(gitdir: string, branch: string, first: FirstCommit): Promise<string> {
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

/** The files of a repository's packs. What has such a name never changes, so each is looked at once. */
export type PackFile = { name: string; size: number; mtimeMs: number };

const NAME = /^pack-.*\.(?:pack|idx)$/;

/** By path; a repository has two for each of its packs, which maintenance keeps few. */
const known = new LRUCache<string, PackFile>({ max: 10_000 });

/** Those that are removed meanwhile are left out. @throws Error when the folder cannot be read */
export async function packFiles(dir: string): Promise<PackFile[]> {
  const folder = join(dir, 'objects/pack');
  const names = (await readdir(folder)).filter((name) => NAME.test(name));
  const files = await Promise.all(names.map((name) => look(folder, name)));
  return files.filter((file) => file !== null);
}

async function look(folder: string, name: string): Promise<PackFile | null> {
  const path = join(folder, name);
  const before = known.get(path);
  if (before) return before;
  const found = await stat(path).catch(() => null);
  if (!found) return null;
  const file = { name, size: found.size, mtimeMs: found.mtimeMs };
  known.set(path, file);
  return file;
}
