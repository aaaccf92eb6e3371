/**
 * Reads directories and files: small objects through the shared `cat-file` processes (`ObjectReader`), large files as
 * streams from a git process of their own.
 */
import { isUtf8 } from 'node:buffer';
import type { Readable } from 'node:stream';
import { GitError, startGit } from '../processes/run.ts';
import type { ObjectInfo, ObjectReader } from './cat-file.ts';
import { canBePointer, type Pointer, parsePointer } from './pointer.ts';

export type TreeEntry = {
  name: string;
  /** Symbolic links and submodules are files; `mode` tells them apart. */
  type: 'file' | 'directory';
  /** Six octal digits. */
  mode: string;
  /** The object id, called `sha` as in the API. */
  sha: string;
  /** Null for directories; 0 for submodules, whose contents are in another repository. */
  size: number | null;
  /** Set for Git LFS pointers if `readTree` was called with `withPointers`. */
  pointer?: Pointer;
};

/** Larger files are not returned inline, but by a link. */
export const INLINE_BYTES = 2 ** 20;
/** Git searches this many bytes for a NUL to decide whether a file is binary. */
export const SNIFF_BYTES = 8_000;
const SUBMODULE = '160000';
const LINK = '120000';

/** Largest tree object that can be listed: about 100,000 entries, 10 MB of JSON. */
export const MAX_TREE_BYTES = 4 * 2 ** 20;
/** Tree objects above this size (about 3,000 entries) are read through `useForLargeObjects` (`cat-file.ts`). */
export const SMALL_TREE_BYTES = 128 * 1024;

/**
 * Reads the entries of a directory in git's order, directories first. `withPointers`: whether to look for Git LFS
 * pointers, which reads all files that have the size of a pointer.
 */
export async function readTree(
  objects: ObjectReader,
  tree: string,
  { withPointers }: { withPointers: boolean },
): Promise<TreeEntry[]> {
  const [raw] = await objects.read([tree], MAX_TREE_BYTES);
  if (!raw) throw new Error(`the object ${tree} is missing`);
  const entries = parseTree(raw.data);
  const blobs = entries.filter(({ type, mode }) => type === 'file' && mode !== SUBMODULE);
  const infos = await objects.info(blobs.map(({ sha }) => sha));
  const sizes = new Map(infos.map((info, i) => [blobs[i]?.sha, info?.size ?? 0]));
  const pointers = withPointers
    ? await readPointers(
        objects,
        blobs.filter(({ sha, mode }) => mode !== LINK && canBePointer(sizes.get(sha) ?? 0)),
      )
    : new Map<string, Pointer>();
  const toTreeEntry = (entry: RawEntry): TreeEntry => {
    const pointer = entry.mode === LINK ? undefined : pointers.get(entry.sha);
    const size = entry.type === 'file' ? (sizes.get(entry.sha) ?? 0) : null;
    return { ...entry, size, ...(pointer && { pointer }) };
  };
  return [
    ...entries.filter(({ type }) => type === 'directory').map(toTreeEntry),
    ...entries.filter(({ type }) => type === 'file').map(toTreeEntry),
  ];
}

/** Pointers read together: about 140 KB. */
const POINTERS_PER_READ = 1_000;

/** Returns the pointers among the blobs, by blob id. */
export async function readPointers(
  objects: ObjectReader,
  blobs: readonly { sha: string }[],
): Promise<Map<string, Pointer>> {
  const found = new Map<string, Pointer>();
  for (let at = 0; at < blobs.length; at += POINTERS_PER_READ) {
    const batch = blobs.slice(at, at + POINTERS_PER_READ);
    const answers = await objects.read(batch.map(({ sha }) => sha));
    for (const [i, answer] of answers.entries()) {
      const pointer = answer && parsePointer(answer.data.toString('latin1'));
      const sha = batch[i]?.sha;
      if (pointer && sha) found.set(sha, pointer);
    }
  }
  return found;
}

/**
 * Reads the text of a file of up to `INLINE_BYTES`. Returns null if the file is binary.
 * @throws Error if it is larger
 */
export async function readText(objects: ObjectReader, oid: string): Promise<string | null> {
  const [answer] = await objects.read([oid], INLINE_BYTES);
  if (!answer) throw new Error(`the object ${oid} is missing`);
  return looksBinary(answer.data, { isTruncated: false }) ? null : answer.data.toString('utf8');
}

/** Whether a large file is text, judged by its first 8,000 bytes. */
export async function looksLikeText(dir: string, oid: string): Promise<boolean> {
  const head = await readHead(dir, { oid, type: 'blob' }, SNIFF_BYTES);
  return !looksBinary(head, { isTruncated: true });
}

/**
 * Streams the contents of a file of any size. Destroying the stream ends the process. If git fails, the stream ends
 * early without an error, so callers must compare its length with the size of the file.
 * @throws FolderMissing, GitUnavailable
 */
export async function openBlob(dir: string, oid: string): Promise<Readable> {
  const process = await startGit(['cat-file', 'blob', oid], { dir });
  process.stdin.end();
  process.stdout.once('close', () => process.end());
  return process.stdout;
}

/**
 * Reads the first `bytes` bytes of an object that is at least that large, then ends git.
 * @throws as `startGit`; GitError
 */
export async function readHead(
  dir: string,
  { oid, type }: Pick<ObjectInfo, 'oid' | 'type'>,
  bytes: number,
): Promise<Buffer> {
  using process = await startGit(['cat-file', type, oid], { dir });
  process.stdin.end();
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of process.stdout as AsyncIterable<Buffer>) {
    chunks.push(chunk);
    size += chunk.length;
    if (size >= bytes) return Buffer.concat(chunks).subarray(0, bytes);
  }
  throw new GitError('cat-file', await process.ended);
}

/** Judges a file by its first bytes. `isTruncated`: the file continues, so the bytes may end within a character. */
export function looksBinary(bytes: Buffer, { isTruncated }: { isTruncated: boolean }): boolean {
  if (bytes.subarray(0, SNIFF_BYTES).includes(0)) return true;
  if (!isTruncated) return !isUtf8(bytes);
  return ![0, 1, 2, 3].some((dropped) => isUtf8(bytes.subarray(0, bytes.length - dropped)));
}

type RawEntry = {
  name: string;
  type: 'file' | 'directory';
  /** Six octal digits, as git prints it; the tree object omits the leading zero. */
  mode: string;
  sha: string;
};

const SPACE = 32;
/** Length of a SHA-1. */
const ID_BYTES = 20;

/**
 * Parses a tree object: a sequence of `<mode> <name>\0<20 bytes>`. isomorphic-git cannot be used, because it parses
 * only objects that it reads from the disk itself, and returns entries in another order.
 *
 * Names are UTF-8 by convention. Other bytes become U+FFFD, and such a file cannot be requested by path.
 */
export function parseTree(data: Buffer): RawEntry[] {
  const entries: RawEntry[] = [];
  for (let at = 0; at < data.length; ) {
    const space = data.indexOf(SPACE, at);
    const end = data.indexOf(0, space);
    if (space < 0 || end < 0) throw new Error('The tree object is malformed');
    const mode = data.toString('latin1', at, space).padStart(6, '0');
    entries.push({
      name: data.toString('utf8', space + 1, end),
      type: mode === '040000' ? 'directory' : 'file',
      mode,
      sha: data.toString('hex', end + 1, end + 1 + ID_BYTES),
    });
    at = end + 1 + ID_BYTES;
  }
  return entries;
}
