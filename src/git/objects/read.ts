/** Reads directories and files. Objects too large for memory are streamed; all others go through the pool. */
import { isUtf8 } from 'node:buffer';
import type { Readable } from 'node:stream';
import { GitError, startGit } from '../processes/run.ts';
import type { ObjectInfo, ObjectReader } from './cat-file.ts';
import { canBePointer, type Pointer, parsePointer } from './pointer.ts';

export type TreeEntry = {
  name: string;
  type: 'file' | 'directory';
  /** Six octal digits. */
  mode: string;
  sha: string;
  /** Null for directories; 0 for submodules, whose contents are in another repository. */
  size: number | null;
  /** Set for Git LFS pointers when `readTree` was called with `pointers`. */
  pointer?: Pointer;
};

/** Files up to this size are returned inline: above 1 MB, responses may omit `content`. */
export const INLINE_BYTES = 2 ** 20;
/** Git searches this many bytes for a NUL to decide whether a file is binary. */
export const SNIFF_BYTES = 8_000;
const SUBMODULE = '160000';
const LINK = '120000';

/** Largest tree object that can be listed: about 100,000 entries, 10 MB of JSON. */
export const MAX_TREE_BYTES = 4 * 2 ** 20;
/** Tree objects above this size (about 3,000 entries) are read through `useHeavily`. */
export const LIGHT_TREE_BYTES = 128 * 1024;

/**
 * The entries of a directory in git's order, directories first.
 * @param pointers whether to look for Git LFS pointers, which reads all files that have the size of a pointer
 */
export async function readTree(
  objects: ObjectReader,
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

/** Pointers by blob id. */
async function readPointers(
  objects: ObjectReader,
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

/** Pointers have about 140 bytes each. */
const POINTERS_AT_ONCE = 1_000;

/** The text of a file up to `INLINE_BYTES`; null when the file is binary. */
export async function readText(objects: ObjectReader, oid: string): Promise<string | null> {
  const [answer] = await objects.read([oid], INLINE_BYTES);
  if (!answer) throw new Error(`the object ${oid} is missing`);
  return looksBinary(answer.data, false) ? null : answer.data.toString('utf8');
}

/** Whether a large file is text, judged by its first 8,000 bytes. */
export async function looksLikeText(dir: string, oid: string): Promise<boolean> {
  return !looksBinary(await readHead(dir, { oid, type: 'blob' }, SNIFF_BYTES), true);
}

/**
 * Streams the contents of a file of any size. Destroying the stream ends the process. A stream that is shorter than the
 * file means that git has failed.
 * @throws FolderMissing, GitUnavailable
 */
export async function openBlob(dir: string, oid: string): Promise<Readable> {
  const process = await startGit(['cat-file', 'blob', oid], { dir });
  process.stdin.end();
  process.stdout.once('close', () => process.end());
  return process.stdout;
}

/** The first bytes of a larger object. Git is ended after these bytes. @throws as `startGit`; GitError */
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

/** Judges a file by its first bytes. `cut`: the file continues, so the bytes may end within a character. */
export function looksBinary(bytes: Buffer, cut: boolean): boolean {
  if (bytes.subarray(0, SNIFF_BYTES).includes(0)) return true;
  if (!cut) return !isUtf8(bytes);
  return ![0, 1, 2, 3].some((bite) => isUtf8(bytes.subarray(0, bytes.length - bite)));
}

/**
 * A tree object is a sequence of `<mode> <name>\0<20 bytes>`. isomorphic-git cannot be used: it parses only objects
 * that it reads from the disk itself, and returns entries in another order.
 */
type RawEntry = {
  name: string;
  type: 'file' | 'directory';
  /** Six octal digits, as git prints it; the tree object omits the leading zero. */
  mode: string;
  sha: string;
};

const SPACE = 32;
const ID_BYTES = 20;

/** Names are UTF-8 by convention. Other bytes become U+FFFD, and such a file cannot be requested by path. */
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
