/**
 * Replaces the LFS pointers in a checkout with the large files (LFS objects) that they name, as `git lfs` does, so
 * that jobs need neither the `git lfs` program nor credentials. Pointers to files that the repository does not have
 * stay as they are.
 */

import { createWriteStream } from 'node:fs';
import { pipeline } from 'node:stream/promises';
import { type CheckoutLimits, checkSize } from '../git/disk/checkout.ts';
import { listPointerFiles, type PointerFile } from '../git/objects/pointer.ts';
import type { LargeFiles } from './lfs/store/store.ts';

const POINTERS_PER_LOOKUP = 1_000;
/** Concurrent reads from storage per checkout. */
const CONCURRENCY = 4;

type Input = CheckoutLimits & {
  repositoryId: string;
  /** The checkout's directory. */
  dir: string;
  /** Size of the checkout without large files. */
  bytes: number;
  signal?: AbortSignal;
};

/**
 * Fetches the large files of a checkout in batches. The size is checked before each batch, so files of earlier batches
 * may have been written when it throws.
 * @returns the size of the checkout with large files
 * @throws CheckoutTooLarge; errors of the storage and the disk
 */
export async function fetchLargeFiles(
  { largeFiles }: { largeFiles: LargeFiles },
  { repositoryId, dir, bytes, signal, ...limits }: Input,
): Promise<number> {
  let totalBytes = bytes;
  const fetchAll = async (batch: readonly PointerFile[]) => {
    const oids = [...new Set(batch.map(({ pointer }) => pointer.oid))];
    const sizes = await largeFiles.sizes(repositoryId, oids);
    const available = batch.filter(({ pointer }) => sizes.has(pointer.oid));
    for (const { pointer } of available) totalBytes += sizes.get(pointer.oid) ?? 0;
    checkSize(totalBytes, limits);
    await forEachConcurrently(available, signal, ({ path, pointer }, abort) =>
      replacePointer(path, () => largeFiles.open(repositoryId, pointer.oid), abort),
    );
  };
  let batch: PointerFile[] = [];
  for await (const file of listPointerFiles(dir, signal)) {
    batch.push(file);
    if (batch.length < POINTERS_PER_LOOKUP) continue;
    await fetchAll(batch);
    batch = [];
  }
  if (batch.length > 0) await fetchAll(batch);
  return totalBytes;
}

/** Overwrites a pointer file and keeps its mode. */
async function replacePointer(
  path: Buffer,
  open: () => ReturnType<LargeFiles['open']>,
  signal: AbortSignal,
): Promise<void> {
  const found = await open();
  // The large file was deleted after the lookup, so its pointer stays.
  if (!found) return;
  await pipeline(found.body(), createWriteStream(path), { signal });
}

/**
 * Runs `work` for every item with bounded concurrency. If one call fails, aborts the rest and waits for them
 * before throwing the first error.
 */
async function forEachConcurrently<T>(
  items: readonly T[],
  signal: AbortSignal | undefined,
  work: (item: T, signal: AbortSignal) => Promise<void>,
): Promise<void> {
  const failure = new AbortController();
  const abort = signal ? AbortSignal.any([signal, failure.signal]) : failure.signal;
  const remaining = items.values();
  // The workers share one iterator, so each item is processed once.
  const workers = Array.from({ length: CONCURRENCY }, async () => {
    for (const item of remaining) {
      abort.throwIfAborted();
      await work(item, abort);
    }
  });
  for (const worker of workers) worker.catch((error) => failure.abort(error));
  await Promise.allSettled(workers);
  // Throws the first error, which is the reason of the abort.
  abort.throwIfAborted();
}
