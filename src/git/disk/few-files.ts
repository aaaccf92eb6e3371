/**
 * A checkout of few files, as `checkout.ts` makes it, without a program: what is read through a `cat-file` that runs
 * already is written here, as a pack, an index and files. Two programs took 28 ms of a job's start, and four when its
 * commit was new. It is written at once: by Node's threads each step took this one as long, and theirs too. A commit that was
 * read is kept for a while, because many jobs of one commit come after each other; it never changes.
 *
 * Whatever is not plain is left to git: links, submodules, attributes, which change what is written, and names that git
 * may refuse. So a path is made once, below folders that were made here.
 */
import { mkdirSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { LRUCache } from 'lru-cache';
import type { CatFilePool, ObjectData, Objects } from '../objects/cat-file.ts';
import { parseTree } from '../objects/tree.ts';
import {
  bytesOnDisk,
  demandBytes,
  demandFiles,
  makeRepository,
  type Source,
  type Target,
} from './checkout.ts';
import { encodeIndex, encodePack, type Pack } from './formats.ts';

/** Files and folders. */
const FEW = 64;
/** Of all objects, unpacked. */
const FEW_BYTES = 2 ** 20;

/** Git's own names are its own to judge, but for these. */
const NAME = /^(?!\.{1,2}$)(?!\.git)[^/\\:~\0\uFFFD]+$/i;
const COMMON_NAMES = new Set(['.gitignore', '.gitkeep', '.github', '.gitlab-ci.yml']);

type File = { path: string; mode: '100644' | '100755'; sha: string };
type Commit = { objects: ObjectData[]; folders: string[]; files: File[] };

/** What is written for a commit, whatever the checkout. */
type Contents = Pick<Commit, 'folders' | 'files'> & Pack & { blobs: Map<string, Buffer> };

/** In bytes, of all that are kept. */
const KEPT_BYTES = 8 * 2 ** 20;
/** By the folder of the repository and the commit. */
const kept = new LRUCache<string, Contents>({
  maxSize: KEPT_BYTES,
  sizeCalculation: ({ pack, index, blobs }) =>
    pack.length + index.length + blobs.values().reduce((sum, { length }) => sum + length, 0),
});

/**
 * @returns the bytes that it takes of the disk; undefined, with nothing written, where git has to do it
 * @throws as `checkOut`
 */
export async function checkOutFew(
  pool: CatFilePool,
  options: Target & Source,
): Promise<number | undefined> {
  const { from, sha, to, signal } = options;
  // Where reading fails git says why.
  const contents = await contentsOf(pool, from, sha).catch(() => undefined);
  signal?.throwIfAborted();
  if (!contents) return undefined;
  const { folders, files, pack, index, name, blobs } = contents;
  demandFiles(files.length + folders.length, options);
  const sizes = files.map((file) => bytesOnDisk(blobs.get(file.sha)?.length ?? 0));
  const bytes = sizes.reduce((sum, size) => sum + size, 0);
  demandBytes(bytes + folders.length * bytesOnDisk(0), options);
  const gitdir = makeRepository(to, sha);
  const packs = join(gitdir, 'objects/pack');
  writeFileSync(join(packs, `pack-${name}.pack`), pack, { mode: 0o444 });
  writeFileSync(join(packs, `pack-${name}.idx`), index, { mode: 0o444 });
  // Each after the one that it lies in.
  for (const folder of folders) mkdirSync(join(to, folder));
  const entries = files.map((file) => {
    const path = join(to, file.path);
    const mode = file.mode === '100755' ? 0o777 : 0o666;
    writeFileSync(path, blobs.get(file.sha) as Buffer, { mode, flag: 'wx' });
    return { ...file, mode: Number.parseInt(file.mode, 8), stat: statSync(path) };
  });
  writeFileSync(join(gitdir, 'index'), encodeIndex(entries));
  return bytes + pack.length + index.length;
}

/** Undefined where git has to do it. */
async function contentsOf(
  pool: CatFilePool,
  from: string,
  sha: string,
): Promise<Contents | undefined> {
  const key = `${from} ${sha}`;
  const known = kept.get(key);
  if (known) return known;
  // To start one would hold this thread up for longer than git takes.
  if (!pool.hasIdle(from)) return undefined;
  const commit = await pool.use(from, (objects) => readCommit(objects, sha));
  if (!commit) return undefined;
  const { objects, folders, files } = commit;
  // What is read is a piece of something larger, which would be kept with it.
  const blobs = objects.flatMap(({ oid, type, data }) =>
    type === 'blob' ? [[oid, Buffer.from(data)] as const] : [],
  );
  const contents = { ...encodePack(objects), folders, files, blobs: new Map(blobs) };
  kept.set(key, contents);
  return contents;
}

/** Undefined when it is not small or not plain, or when an object of it is missing: git says which. */
async function readCommit(objects: Objects, sha: string): Promise<Commit | undefined> {
  let room = FEW_BYTES;
  const all = new Map<string, ObjectData>();
  const read = async (names: string[]): Promise<(ObjectData | undefined)[]> => {
    const found = await objects.begin(names, room);
    return found.map((object) => {
      if (!object || object.data.length < object.size) return undefined;
      if (!all.has(object.oid)) room -= object.size;
      all.set(object.oid, object);
      return room < 0 ? undefined : object;
    });
  };
  const folders: string[] = [];
  const files: File[] = [];
  const [commit, root] = await read([sha, `${sha}^{tree}`]);
  if (commit?.type !== 'commit' || !root) return undefined;
  let trees = [{ path: '', object: root as ObjectData | undefined }];
  while (trees.length > 0) {
    const below: { path: string; sha: string }[] = [];
    for (const { path, object } of trees) {
      if (object?.type !== 'tree') return undefined;
      for (const { name, mode, sha } of parseTree(object.data)) {
        if (!NAME.test(name) && !COMMON_NAMES.has(name)) return undefined;
        const full = path + name;
        if (mode === '040000') below.push({ path: `${full}/`, sha });
        else if (mode === '100644' || mode === '100755') files.push({ path: full, mode, sha });
        else return undefined;
      }
    }
    folders.push(...below.map(({ path }) => path.slice(0, -1)));
    if (files.length + folders.length > FEW) return undefined;
    const found = await read(below.map((tree) => tree.sha));
    trees = below.map(({ path }, i) => ({ path, object: found[i] }));
  }
  const paths = new Set([...folders, ...files.map(({ path }) => path)]);
  // One name twice, which git takes differently by what they are.
  if (paths.size < folders.length + files.length) return undefined;
  const blobs = await read([...new Set(files.map((file) => file.sha))]);
  if (blobs.some((blob) => blob?.type !== 'blob')) return undefined;
  return { objects: [...all.values()], folders, files };
}
