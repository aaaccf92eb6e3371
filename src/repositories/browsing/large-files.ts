/** Resolves LFS pointers in directories and files to the repository's large files. */

import { buffer } from 'node:stream/consumers';
import type pg from 'pg';
import { parsePointer } from '../../git/objects/pointer.ts';
import { looksBinary, SNIFF_BYTES, type TreeEntry } from '../../git/objects/read.ts';
import type { LargeFiles } from '../lfs/store/store.ts';
import { accessColumns, type Row } from '../repositories.ts';

/** The columns that reads of directories and files need. */
export const contentsColumns = { ...accessColumns, largeBytes: true } as const;
export type ContentsRow = Row<typeof contentsColumns>;

/** If false, small files need not be checked for LFS pointers. */
export function hasLargeFiles({ largeBytes }: ContentsRow): boolean {
  return largeBytes > 0n;
}

/** Like `hasLargeFiles`, without a loaded row. False if the repository does not exist. */
export async function repositoryHasLargeFiles(
  { pool }: { pool: pg.Pool },
  repositoryId: string,
): Promise<boolean> {
  const { rows } = await pool.query<{ has_large_files: boolean }>({
    name: 'loam-has-large-files',
    text: 'select large_bytes > 0 as has_large_files from repositories where id = $1',
    values: [repositoryId],
  });
  return rows[0]?.has_large_files ?? false;
}

/** Replaces the size of each pointer entry with the size of its large file, if the repository has it. */
export async function addLargeFileSizes(
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

type LargeFile = { oid: string; size: number; isText: boolean };

/**
 * Returns the large file that a text points to; null if the text is not a pointer or the repository does not have the
 * file.
 * @throws AppError 503 if the storage is unavailable
 */
export async function findLargeFile(
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
  return { oid, size, isText: !looksBinary(head, { isTruncated: size > head.length }) };
}
