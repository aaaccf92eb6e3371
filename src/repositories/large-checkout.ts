/**
 * Replaces the LFS pointers in a checkout by the large files of the repository, as `git lfs` does, so that jobs
 * need neither the `git lfs` program nor credentials. Pointers to files that the repository does not have stay
 * as they are.
 */

import { createWriteStream } from 'node:fs';
import { pipeline } from 'node:stream/promises';
import type pg from 'pg';
import { type CheckoutLimits, checkSize } from '../git/disk/checkout.ts';
import { type PointerFile, pointerFiles } from '../git/objects/pointer.ts';
import type { Db } from '../platform/database/client.ts';
import type { LargeFiles } from './lfs/store/store.ts';

type Deps = { db: Db; largeFiles: LargeFiles };

/** Pointers per size lookup. */
const BATCH = 1_000;
/** Concurrent reads from storage per checkout. */
const CONCURRENCY = 4;

/** Whether the repository has any large files. */
export async function readHasLargeFiles(
  { pool }: { pool: pg.Pool },
  repositoryId: string,
): Promise<boolean> {
  const { rows } = await pool.query<{ has: boolean }>({
    name: 'loam-has-large-files',
    text: 'select large_bytes > 0 as has from repositories where id = $1',
    values: [repositoryId],
  });
  return rows[0]?.has ?? false;
}

type Input = CheckoutLimits & {
  repositoryId: string;
  /** The checkout's directory. */
  dir: string;
  /** Size of the checkout without large files. */
  bytes: number;
  signal?: AbortSignal;
};

/** @throws CheckoutTooLarge before anything above the limit is written; errors of the storage and the disk */
export async function fetchLargeFiles(
  { largeFiles }: Deps,
  { repositoryId, dir, bytes, signal, ...limits }: Input,
): Promise<void> {
  let sum = bytes;
  const fetchAll = async (batch: readonly PointerFile[]) => {
    const oids = [...new Set(batch.map(({ pointer }) => pointer.oid))];
    const sizes = await largeFiles.sizes(repositoryId, oids);
    const available = batch.filter(({ pointer }) => sizes.has(pointer.oid));
    for (const { pointer } of available) sum += sizes.get(pointer.oid) ?? 0;
    checkSize(sum, limits);
    await forEachConcurrently(available, signal, ({ path, pointer }, ended) =>
      replacePointer(path, () => largeFiles.open(repositoryId, pointer.oid), ended),
    );
  };
  let batch: PointerFile[] = [];
  for await (const file of pointerFiles(dir, signal)) {
    if (batch.push(file) < BATCH) continue;
    await fetchAll(batch);
    batch = [];
  }
  if (batch.length > 0) await fetchAll(batch);
}

/** Overwrites a pointer file and keeps its mode. */
async function replacePointer(
  path: Buffer,
  open: () => ReturnType<LargeFiles['open']>,
  signal: AbortSignal,
): Promise<void> {
  const found = await open();
  // The large file was deleted after the lookup.
  if (!found) return;
  await pipeline(found.body(), createWriteStream(path), { signal });
}

/**
 * Runs `work` for every item with bounded concurrency. If one call fails, aborts the rest and waits for them
 * before throwing.
 */
async function forEachConcurrently<T>(
  items: readonly T[],
  signal: AbortSignal | undefined,
  work: (item: T, signal: AbortSignal) => Promise<void>,
): Promise<void> {
  const failed = new AbortController();
  const ended = signal ? AbortSignal.any([signal, failed.signal]) : failed.signal;
  const remaining = items.values();
  // The workers share one iterator, so each item is processed once.
  const workers = Array.from({ length: CONCURRENCY }, async () => {
    for (const item of remaining) {
      ended.throwIfAborted();
      await work(item, ended);
    }
  });
  for (const worker of workers) worker.catch((error) => failed.abort(error));
  await Promise.allSettled(workers);
  ended.throwIfAborted();
}
