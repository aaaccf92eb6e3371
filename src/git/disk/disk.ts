/**
 * Where repositories lie: bare, by id and never by name, so that rename and transfer move nothing.
 *
 *   repositories/ab/cd/<id>.git   shards from the id's end: its beginning is the time of creation
 *   repositories/new/             being built; renamed into place when whole
 *   repositories/trash/           renamed away from its place; being removed
 *   repositories/begun/<id>.*     what was begun with a repository and is not yet in the database
 *
 * The last folder is what a start after a kill reads: its size is that of the work in flight, so recovery
 * never has to walk all repositories.
 */
import { randomUUID } from 'node:crypto';
import * as fs from 'node:fs';
import { mkdir, open, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import isomorphicGit from 'isomorphic-git';

export type Person = { name: string; email: string };

export type FirstCommit = {
  message: string;
  author: Person;
  /** At the root of the tree, by name. */
  files: Record<string, string>;
};

/** Something begun with a repository. `data` is whatever the one who finishes it needs. */
export type Begun<T = unknown> = { id: string; data: T; done(): Promise<void> };

export class Disk {
  readonly #root: string;

  constructor(root: string) {
    this.#root = root;
  }

  pathOf(id: string): string {
    return join(this.#root, id.slice(-2), id.slice(-4, -2), `${id}.git`);
  }

  /** Makes the folders, and empties those that hold what a killed server left half done. */
  async prepare(): Promise<void> {
    await rm(join(this.#root, 'new'), { recursive: true, force: true });
    for (const name of ['new', 'trash', 'begun'])
      await mkdir(join(this.#root, name), { recursive: true });
  }

  /**
   * Makes a bare repository, whole or not at all: built aside, synced, renamed into place.
   * `HEAD` names `defaultBranch`, which exists only when there is a first commit.
   * @returns the first commit's id.
   */
  async create(id: string, defaultBranch: string, first?: FirstCommit): Promise<string | null> {
    const gitdir = join(this.#root, 'new', `${id}.git`);
    await writeSkeleton(gitdir, defaultBranch);
    const sha = first ? await commit(gitdir, defaultBranch, first) : null;
    await syncTree(gitdir);
    const place = this.pathOf(id);
    await mkdir(dirname(place), { recursive: true });
    await rename(gitdir, place);
    await sync(dirname(place));
    return sha;
  }

  /** Takes the repository away at once, then removes its files. Nothing happens when there is none. */
  async remove(id: string): Promise<void> {
    const grave = join(this.#root, 'trash', `${id}.${randomUUID()}`);
    try {
      await rename(this.pathOf(id), grave);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return;
      throw error;
    }
    await rm(grave, { recursive: true, force: true, maxRetries: 3 });
  }

  /** Removes what earlier removals left behind when they were cut off. */
  async emptyTrash(): Promise<void> {
    for (const name of await readdir(join(this.#root, 'trash')))
      await rm(join(this.#root, 'trash', name), { recursive: true, force: true });
  }

  /** Remembers, across a kill, that something was begun; `done` forgets it. */
  async begin<T>(id: string, data: T): Promise<Begun<T>> {
    const file = join(this.#root, 'begun', `${id}.${randomUUID()}`);
    await writeFile(file, JSON.stringify(data), { flush: true });
    return { id, data, done: () => rm(file, { force: true }) };
  }

  /** What was begun before this start and not done. */
  async begun(): Promise<Begun[]> {
    const folder = join(this.#root, 'begun');
    return Promise.all(
      (await readdir(folder)).map(async (name) => {
        const file = join(folder, name);
        const text = await readFile(file, 'utf8');
        const done = () => rm(file, { force: true });
        return { id: name.split('.')[0] as string, data: parse(text), done };
      }),
    );
  }
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

async function syncTree(folder: string): Promise<void> {
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) await syncTree(path);
    else await sync(path);
  }
  await sync(folder);
}

/** Of a file or a folder. */
async function sync(path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
