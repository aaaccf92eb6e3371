/**
 * Pointers of git-lfs (docs/spec.md of git-lfs, version 1): the small text that stands in git where a large file would.
 * Those with extensions are no pointers here: what they lead to is not the file, but what a program of the client's
 * made of it.
 */
import { constants } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { gitLines } from '../processes/run.ts';

export type Pointer = {
  /** SHA-256 of the contents, in hexadecimal. */
  oid: string;
  /** In bytes. */
  size: number;
};

/** Of a pointer, in bytes: its text with a size of 1 to 16 digits, and at most a CR a line. */
export const POINTER_BYTES = { min: 126, max: 144 };

const POINTER_FORMAT =
  /^version https:\/\/git-lfs\.github\.com\/spec\/v1\r?\noid sha256:([0-9a-f]{64})\r?\nsize (\d{1,16})\s*$/;

/** Whether a blob of this size may be one, so that others need not be read. */
export function canBePointer(bytes: number): boolean {
  return bytes >= POINTER_BYTES.min && bytes <= POINTER_BYTES.max;
}

/** Null for any other text. */
export function parsePointer(text: string): Pointer | null {
  const [, oid, digits] = canBePointer(text.length) ? (POINTER_FORMAT.exec(text) ?? []) : [];
  const size = Number(digits);
  return oid && Number.isSafeInteger(size) ? { oid, size } : null;
}

/** Pointers of git-lfs among the files of a fresh checkout, in which nobody works yet. */
export type PointerFile = {
  /** As bytes: names need not be UTF-8. */
  path: Buffer;
  pointer: Pointer;
};

/** Those of the commit that is checked out in `dir`. Only files of a pointer's size are read. @throws GitError */
export async function* pointerFiles(
  dir: string,
  signal?: AbortSignal,
): AsyncGenerator<PointerFile> {
  const args = ['ls-tree', '-r', '-z', '--full-tree', LS_TREE_FORMAT, 'HEAD'];
  const options = { dir: join(dir, '.git'), signal };
  const entries = gitLines(args, options, { separator: '\0', encoding: 'latin1' });
  for await (const entry of entries) {
    const [, size, name] = /^100\d{3} +(\d+) (.*)$/s.exec(entry) ?? [];
    if (!name || !canBePointer(Number(size))) continue;
    const path = Buffer.concat([Buffer.from(`${dir}/`), Buffer.from(name, 'latin1')]);
    const pointer = parsePointer(await readShort(path));
    if (pointer) yield { path, pointer };
  }
}

const LS_TREE_FORMAT = '--format=%(objectmode) %(objectsize) %(path)';

async function readShort(path: Buffer): Promise<string> {
  await using file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW);
  return file.readFile('latin1');
}
