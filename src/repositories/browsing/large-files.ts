/** Pointers in directories and files, and the large files of the repository that they lead to. */

import { buffer } from 'node:stream/consumers';
import { parsePointer } from '../../git/objects/pointer.ts';
import { looksBinary, SNIFF_BYTES, type TreeEntry } from '../../git/objects/read.ts';
import type { LargeFiles } from '../lfs/store/store.ts';
import { accessColumns, type Row } from '../repositories.ts';

/** What directories and files are read of. */
export const contentsColumns = { ...accessColumns, largeBytes: true } as const;
export type ContentsRow = Row<typeof contentsColumns>;

/** Repositories without large files need not have their small files read. */
export function hasLargeFiles({ largeBytes }: ContentsRow): boolean {
  return largeBytes > 0n;
}

/** The entries, those that point to a large file of the repository with its size. */
export async function withLargeSizes(
  { largeFiles }: { largeFiles: LargeFiles },
  repositoryId: string,
  entries: TreeEntry[],
): Promise<TreeEntry[]> {
  const oids = entries.flatMap(({ pointer }) => pointer?.oid ?? []);
  if (oids.length === 0) return entries;
  const sizes = await largeFiles.sizes(repositoryId, [...new Set(oids)]);
  return entries.map((entry) => ({
    ...entry,
    size: sizes.get(entry.pointer?.oid ?? '') ?? entry.size,
  }));
}

export type LargeFile = { oid: string; size: number; isText: boolean };

/**
 * The large file that a text points to; null for any other text, and where the repository was not given it.
 * @throws AppError 503 when the storage is away
 */
export async function largeFileOf(
  { largeFiles }: { largeFiles: LargeFiles },
  repositoryId: string,
  text: string,
): Promise<LargeFile | null> {
  const pointer = parsePointer(text);
  if (!pointer) return null;
  const { oid } = pointer;
  const size = (await largeFiles.sizes(repositoryId, [oid])).get(oid);
  if (size === undefined) return null;
  const range = { start: 0, end: Math.min(size, SNIFF_BYTES) };
  const found = await largeFiles.open(repositoryId, oid, range);
  if (!found) return null;
  const head = await buffer(found.body());
  return { oid, size, isText: !looksBinary(head, size > head.length) };
}
