/**
 * Git LFS pointers (docs/spec.md of git-lfs, version 1): small text files that stand for large files in git. Pointers
 * with extensions (`ext-…` lines) are not treated as pointers, because their stored object is the output of a program
 * on the client, not the file.
 */
import { constants } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { gitLines } from '../processes/run.ts';

export type Pointer = {
  /** SHA-256 of the contents, hexadecimal; not a git object id. */
  oid: string;
  /** In bytes. */
  size: number;
};

/** Length of a pointer in bytes, with a size of 1 to 16 digits, a final newline, and at most one CR per line. */
export const POINTER_BYTES = { min: 126, max: 144 };

const POINTER_FORMAT =
  /^version https:\/\/git-lfs\.github\.com\/spec\/v1\r?\noid sha256:([0-9a-f]{64})\r?\nsize (\d{1,16})\s*$/;

/** Whether a blob of this size may be a pointer; other blobs need not be read. */
export function canBePointer(bytes: number): boolean {
  return bytes >= POINTER_BYTES.min && bytes <= POINTER_BYTES.max;
}

/** Null for text that is not a pointer. */
export function parsePointer(text: string): Pointer | null {
  const [, oid, digits] = canBePointer(text.length) ? (POINTER_FORMAT.exec(text) ?? []) : [];
  const size = Number(digits);
  return oid && Number.isSafeInteger(size) ? { oid, size } : null;
}

const LS_TREE_FORMAT = '--format=%(objectmode) %(objectsize) %(path)';

export type PointerFile = {
  /** Bytes, because names need not be UTF-8. */
  path: Buffer;
  pointer: Pointer;
};

/**
 * Yields the pointers in the checkout at `dir`, which must be unmodified: their list comes from `HEAD`, their text from
 * the files. Reads only files that have the size of a pointer.
 * @throws GitError
 */
export async function* listPointerFiles(
  dir: string,
  signal?: AbortSignal,
): AsyncGenerator<PointerFile> {
  const args = ['ls-tree', '-r', '-z', '--full-tree', LS_TREE_FORMAT, 'HEAD'];
  const options = { dir: join(dir, '.git'), signal };
  const entries = gitLines(args, options, { separator: '\0', encoding: 'latin1' });
  for await (const entry of entries) {
    // Regular files have the modes 100644 and 100755.
    const [, size, name] = /^100\d{3} +(\d+) (.*)$/s.exec(entry) ?? [];
    if (!name || !canBePointer(Number(size))) continue;
    const path = Buffer.concat([Buffer.from(`${dir}/`), Buffer.from(name, 'latin1')]);
    const pointer = parsePointer(await readWithoutFollowing(path));
    if (pointer) yield { path, pointer };
  }
}

/** Does not follow a symbolic link, which could lead out of the checkout. */
async function readWithoutFollowing(path: Buffer): Promise<string> {
  await using file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW);
  return file.readFile('latin1');
}
