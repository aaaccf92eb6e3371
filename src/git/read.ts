/**
 * Reading a repository: refs, trees, files, history. Everything here takes the repository's path, answers
 * null for what is not there, and reads through the pool; only walks over history start a process.
 */
import { isUtf8 } from 'node:buffer';
import type { Readable } from 'node:stream';
import { LRUCache } from 'lru-cache';
import type { CatFilePool, Objects } from './catfile.ts';
import { type Commit, parseCommit } from './commit.ts';
import { isRefName } from './names.ts';
import { git, spawnGit } from './run.ts';
import { parseTree, type RawEntry } from './tree.ts';

export type TreeEntry = {
  name: string;
  type: 'file' | 'directory';
  /** Six octal digits. */
  mode: string;
  sha: string;
  /** Null for directories; 0 for submodules, whose content lies elsewhere. */
  size: number | null;
};

export type Blob = { oid: string; size: number };
export type BlobText = Blob & {
  binary: boolean;
  /** The whole of it; null when it is binary or longer than `INLINE_BYTES`. */
  text: string | null;
};

/** Files up to this size are read whole (spec section 8: inline content). */
export const INLINE_BYTES = 2 ** 20;
/** As far as git itself looks for a NUL before it calls a file binary. */
const SNIFF_BYTES = 8_000;
const SUBMODULE = '160000';

/**
 * The commit that a branch, a tag or a commit id names, in that order; a branch may also be given as
 * `refs/heads/…`, and an id shortened to seven digits or more when it is unambiguous.
 */
export function resolveCommit(pool: CatFilePool, dir: string, ref: string): Promise<string | null> {
  return pool.use(dir, (objects) => commitOf(objects, ref));
}

/** As `resolveCommit`, within a reader's turn; `anyKind: false` looks for a branch alone. */
export async function commitOf(
  objects: Objects,
  ref: string,
  anyKind = true,
): Promise<string | null> {
  const names: string[] = [];
  if (isRefName(ref)) names.push(`refs/heads/${ref}`);
  if (anyKind && isRefName(ref)) {
    names.push(`refs/tags/${ref}`);
    if (/^refs\/(heads|tags)\/./.test(ref)) names.push(ref);
  }
  if (anyKind && (ref === 'HEAD' || /^[0-9a-f]{7,40}$/i.test(ref))) names.push(ref);
  const found = await objects.info(names.map((name) => `${name}^{commit}`));
  return found.find((info) => info !== null)?.oid ?? null;
}

/** The commit at the tip of a branch. */
export function branchTip(pool: CatFilePool, dir: string, branch: string): Promise<string | null> {
  return pool.use(dir, (objects) => commitOf(objects, branch, false));
}

/**
 * The entries of a directory in git's order, directories first.
 * @returns null when `path` is no directory of the commit.
 */
export async function readTree(
  objects: Objects,
  commit: string,
  path: string,
): Promise<TreeEntry[] | null> {
  if (!canBePath(path)) return null;
  const [tree] = await objects.info([path ? `${commit}:${path}` : `${commit}^{tree}`]);
  if (tree?.type !== 'tree') return null;
  const [raw] = await objects.read([tree.oid]);
  const entries = raw ? parseTree(raw.data) : [];
  const blobs = entries.filter(({ type, mode }) => type === 'file' && mode !== SUBMODULE);
  const infos = await objects.info(blobs.map(({ sha }) => sha));
  const sizes = new Map(infos.map((info, i) => [blobs[i]?.sha, info?.size ?? 0]));
  const sized = (entry: RawEntry): TreeEntry => ({
    ...entry,
    size: entry.type === 'file' ? (sizes.get(entry.sha) ?? 0) : null,
  });
  return [
    ...entries.filter(({ type }) => type === 'directory').map(sized),
    ...entries.filter(({ type }) => type === 'file').map(sized),
  ];
}

/** @returns null when `path` is no file of the commit. */
export async function findBlob(
  objects: Objects,
  commit: string,
  path: string,
): Promise<Blob | null> {
  if (!canBePath(path)) return null;
  const [info] = await objects.info([`${commit}:${path}`]);
  return info?.type === 'blob' ? { oid: info.oid, size: info.size } : null;
}

/**
 * Whether a file is text, and the text of a short one. A longer one is judged by its first 8,000 bytes, for
 * which it is not read to its end.
 */
export async function readText(pool: CatFilePool, dir: string, blob: Blob): Promise<BlobText> {
  if (blob.size > INLINE_BYTES) {
    const head = await blobHead(dir, blob.oid);
    return { ...blob, binary: isBinary(head, true), text: null };
  }
  const [answer] = await pool.use(dir, (objects) => objects.read([blob.oid], INLINE_BYTES));
  if (!answer) throw new Error(`the object ${blob.oid} is missing`);
  const binary = isBinary(answer.data, false);
  return { ...blob, binary, text: binary ? null : answer.data.toString('utf8') };
}

/** The contents of a file of any size as a stream; destroying it ends the process. */
export function openBlob(dir: string, oid: string): Readable {
  const child = spawnGit(['cat-file', 'blob', oid], { dir });
  child.stderr.resume();
  child.stdin.end();
  const { stdout } = child;
  stdout.once('close', () => child.kill('SIGKILL'));
  return stdout;
}

export type History = { commits: Commit[]; total: number };

/** What was once found out about a commit's history. It never changes, so only room bounds it. */
export class HistoryCache {
  readonly totals = new LRUCache<string, Promise<number>>({ max: 10_000 });
  readonly pages = new LRUCache<string, Promise<string[]>>({ max: 2_000 });
}

/** A page of a commit's history, newest first, and how many commits it has in all. */
export async function readHistory(
  pool: CatFilePool,
  cache: HistoryCache,
  dir: string,
  commit: string,
  { skip, take }: { skip: number; take: number },
): Promise<History> {
  const total = await remember(cache.totals, commit, () => countCommits(dir, commit));
  const page = `${commit}+${skip}+${take}`;
  const shas =
    skip >= total ? [] : await remember(cache.pages, page, () => walk(dir, commit, skip, take));
  const objects = await pool.use(dir, (objects) => objects.read(shas));
  const commits = objects.flatMap((object) =>
    object ? [parseCommit(object.oid, object.data)] : [],
  );
  return { commits, total };
}

/** Git takes a leading `./` for a path from the working tree, and ends when there is none. */
function canBePath(path: string): boolean {
  return !path.split('/').includes('.');
}

async function blobHead(dir: string, oid: string): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let size = 0;
  // Leaving the loop destroys the stream, and with it the process.
  for await (const chunk of openBlob(dir, oid)) {
    chunks.push(chunk);
    size += chunk.length;
    if (size >= SNIFF_BYTES) break;
  }
  return Buffer.concat(chunks).subarray(0, SNIFF_BYTES);
}

/** Callers at the same time share one promise; a failure is forgotten. */
function remember<T>(
  cache: LRUCache<string, Promise<T>>,
  key: string,
  find: () => Promise<T>,
): Promise<T> {
  const known = cache.get(key);
  if (known) return known;
  const found = find();
  cache.set(key, found);
  found.catch(() => cache.delete(key));
  return found;
}

/** `cut`: the bytes are the beginning of more, and may end within a character. */
function isBinary(bytes: Buffer, cut: boolean): boolean {
  if (bytes.subarray(0, SNIFF_BYTES).includes(0)) return true;
  if (!cut) return !isUtf8(bytes);
  return ![0, 1, 2, 3].some((bite) => isUtf8(bytes.subarray(0, bytes.length - bite)));
}

async function countCommits(dir: string, commit: string): Promise<number> {
  return Number(await git(['rev-list', '--count', commit], { dir }));
}

async function walk(dir: string, commit: string, skip: number, take: number): Promise<string[]> {
  const args = ['rev-list', `--skip=${skip}`, `--max-count=${take}`, commit];
  return (await git(args, { dir })).toString().split('\n').filter(Boolean);
}
