/** Directories and files. All but what is too large to hold is read through the pool. */
import { isUtf8 } from 'node:buffer';
import type { Readable } from 'node:stream';
import { GitError, startGit } from '../processes/run.ts';
import type { ObjectInfo, Objects } from './cat-file.ts';
import { canBePointer, type Pointer, parsePointer } from './pointer.ts';

export type TreeEntry = {
  name: string;
  type: 'file' | 'directory';
  /** Six octal digits. */
  mode: string;
  sha: string;
  /** Null for directories; 0 for submodules, whose content lies elsewhere. */
  size: number | null;
  /** Of a file that is one, where they were asked for. */
  pointer?: Pointer;
};

/** Files up to this size are read whole (spec section 8: inline content). */
export const INLINE_BYTES = 2 ** 20;
/** As far as git itself looks for a NUL before it calls a file binary. */
export const SNIFF_BYTES = 8_000;
const SUBMODULE = '160000';
const LINK = '120000';

/** Of a tree object: some 100,000 entries, 10 MB of JSON. Larger ones cannot be listed. */
export const MAX_TREE_BYTES = 4 * 2 ** 20;
/** Larger ones are read through `useHeavily`: some 3,000 entries. */
export const LIGHT_TREE_BYTES = 128 * 1024;

/**
 * The entries of a directory in git's order, directories first.
 * @param pointers whether to look for pointers of git-lfs, for which files of their size are read
 */
export async function readTree(
  objects: Objects,
  tree: string,
  { pointers }: { pointers: boolean },
): Promise<TreeEntry[]> {
  const [raw] = await objects.read([tree], MAX_TREE_BYTES);
  if (!raw) throw new Error(`the object ${tree} is missing`);
  const entries = parseTree(raw.data);
  const blobs = entries.filter(({ type, mode }) => type === 'file' && mode !== SUBMODULE);
  const infos = await objects.info(blobs.map(({ sha }) => sha));
  const sizes = new Map(infos.map((info, i) => [blobs[i]?.sha, info?.size ?? 0]));
  const found = pointers
    ? await readPointers(
        objects,
        blobs.filter(({ sha, mode }) => mode !== LINK && canBePointer(sizes.get(sha) ?? 0)),
      )
    : new Map<string, Pointer>();
  const sized = (entry: RawEntry): TreeEntry => {
    const pointer = entry.mode === LINK ? undefined : found.get(entry.sha);
    const size = entry.type === 'file' ? (sizes.get(entry.sha) ?? 0) : null;
    return { ...entry, size, ...(pointer && { pointer }) };
  };
  return [
    ...entries.filter(({ type }) => type === 'directory').map(sized),
    ...entries.filter(({ type }) => type === 'file').map(sized),
  ];
}

/** By the id of the blob. */
async function readPointers(
  objects: Objects,
  blobs: readonly RawEntry[],
): Promise<Map<string, Pointer>> {
  const found = new Map<string, Pointer>();
  for (let at = 0; at < blobs.length; at += POINTERS_AT_ONCE) {
    const batch = blobs.slice(at, at + POINTERS_AT_ONCE);
    const answers = await objects.read(batch.map(({ sha }) => sha));
    for (const [i, answer] of answers.entries()) {
      const pointer = answer && parsePointer(answer.data.toString('latin1'));
      const sha = batch[i]?.sha;
      if (pointer && sha) found.set(sha, pointer);
    }
  }
  return found;
}

/** Of some 140 bytes each. */
const POINTERS_AT_ONCE = 1_000;

/** A file that is short enough to be read whole: its text, or null when it is binary. */
export async function readText(objects: Objects, oid: string): Promise<string | null> {
  const [answer] = await objects.read([oid], INLINE_BYTES);
  if (!answer) throw new Error(`the object ${oid} is missing`);
  return looksBinary(answer.data, false) ? null : answer.data.toString('utf8');
}

/** Whether a longer file is text, by its first 8,000 bytes: it is not read to its end. */
export async function looksLikeText(dir: string, oid: string): Promise<boolean> {
  return !looksBinary(await readHead(dir, { oid, type: 'blob' }, SNIFF_BYTES), true);
}

/**
 * The contents of a file of any size as a stream; destroying it ends the process. A stream that ends before
 * the file does is a failure of git's.
 * @throws FolderMissing, GitUnavailable
 */
export async function openBlob(dir: string, oid: string): Promise<Readable> {
  const process = await startGit(['cat-file', 'blob', oid], { dir });
  process.stdin.end();
  process.stdout.once('close', () => process.end());
  return process.stdout;
}

/** The first bytes of an object that is larger, which is not read on. @throws as `startGit`; GitError */
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

/** Judged by the first bytes of a file. `cut`: they are the beginning of more, and may end within a character. */
export function looksBinary(bytes: Buffer, cut: boolean): boolean {
  if (bytes.subarray(0, SNIFF_BYTES).includes(0)) return true;
  if (!cut) return !isUtf8(bytes);
  return ![0, 1, 2, 3].some((bite) => isUtf8(bytes.subarray(0, bytes.length - bite)));
}

/**
 * The binary form of a tree: `<mode> <name>\0<20 bytes>`, again and again. isomorphic-git parses what it reads from the disk
 * itself, not bytes from `cat-file`, and in another order.
 */
type RawEntry = {
  name: string;
  type: 'file' | 'directory';
  /** Six octal digits, as git shows it; the object leaves out the leading zero. */
  mode: string;
  sha: string;
};

const SPACE = 32;
const ID_BYTES = 20;

/** Names are UTF-8 by convention; other bytes become U+FFFD, and such a file cannot be asked for by path. */
export function parseTree(data: Buffer): RawEntry[] {
  const entries: RawEntry[] = [];
  for (let at = 0; at < data.length; ) {
    const space = data.indexOf(SPACE, at);
    const end = data.indexOf(0, space);
    if (space < 0 || end < 0) throw new Error('a tree object is malformed');
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
