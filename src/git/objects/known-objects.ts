/**
 * Commits and trees of small pushes, and trees of walks, kept by id: what has an id never changes. The tree of a commit that
 * follows on one that was walked differs from it in what its push has brought, so it is walked without a program.
 */
import { LRUCache } from 'lru-cache';
import type { PackedObject } from './small-pack.ts';

export type TreeFile = { path: string; size: number };

type Entry = { name: string; oid: string; isTree: boolean };

/** Of trees and of sizes each, together some 10 MB. Larger trees are listed by a program again and again. */
const MAX_KEPT = 30_000;
/** Of one walk: files and folders. */
export const MAX_WALKED = 5_000;
const MAX_DEPTH = 100;
/** As git writes it, and as some old programs have. */
const TREE_MODE = /^0?40000$/;
const SUBMODULE_MODE = '160000';
const ID_BYTES = 20;

/** The tree of each. */
const commits = new LRUCache<string, string>({ max: 1_000 });
const trees = new LRUCache<string, readonly Entry[]>({
  maxSize: MAX_KEPT,
  sizeCalculation: (entries) => entries.length + 1,
});
const sizes = new LRUCache<string, number>({ max: MAX_KEPT });

export function noteObjects(objects: ReadonlyMap<string, PackedObject>): void {
  for (const [oid, { type, data }] of objects) {
    if (type === 'blob') sizes.set(oid, data.length);
    else if (type === 'tree') trees.set(oid, entriesOf(data));
    else if (type === 'commit') commits.set(oid, treeOf(data));
  }
}

/** The first line of a commit: git refuses a push with one that begins otherwise. */
function treeOf(commit: Buffer): string {
  return /^tree ([0-9a-f]{40})\n/.exec(commit.toString('latin1', 0, 46))?.[1] ?? '';
}

/** A tree's `<mode> <name>\0<id in 20 bytes>`; submodules left out. */
function entriesOf(data: Buffer): Entry[] {
  const entries: Entry[] = [];
  for (let at = 0; at < data.length; ) {
    const [space, end] = [data.indexOf(0x20, at), data.indexOf(0, at)];
    // Such as git itself refuses.
    if (space < 0 || end < 0) break;
    const mode = data.toString('latin1', at, space);
    const name = data.toString('utf8', space + 1, end);
    at = end + 1 + ID_BYTES;
    const oid = data.toString('hex', end + 1, at);
    if (mode !== SUBMODULE_MODE) entries.push({ name, oid, isTree: TREE_MODE.test(mode) });
  }
  return entries;
}

/** Every file of a commit's tree; null where not all of it is known, or it is large: one tree may be in it a million times. */
export function knownTree(commit: string): TreeFile[] | null {
  const root = commits.get(commit);
  const files: TreeFile[] = [];
  let walked = 0;
  const add = (tree: string, prefix: string, depth: number): boolean =>
    trees.get(tree)?.every(({ name, oid, isTree }) => {
      if (++walked > MAX_WALKED) return false;
      if (isTree) return depth < MAX_DEPTH && add(oid, `${prefix}${name}/`, depth + 1);
      const size = sizes.get(oid);
      if (size !== undefined) files.push({ path: prefix + name, size });
      return size !== undefined;
    }) ?? false;
  return root && add(root, '', 0) ? files : null;
}

/** What a program lists of a tree: files with their sizes, and the trees in it. */
export type Listed = { path: string; oid: string; size: number | null };

/** Keeps what a walk to its end has listed, in the order of git: what is in a tree comes after it. */
export function noteListed(listed: readonly Listed[]): void {
  const found = new Map<string, { oid: string; entries: Entry[] }>();
  for (const { path, oid, size } of listed) {
    const slash = path.lastIndexOf('/');
    const isTree = size === null;
    found
      .get(path.slice(0, Math.max(0, slash)))
      ?.entries.push({ name: path.slice(slash + 1), oid, isTree });
    if (isTree) found.set(path, { oid, entries: [] });
    else sizes.set(oid, size);
  }
  for (const { oid, entries } of found.values()) trees.set(oid, entries);
}
