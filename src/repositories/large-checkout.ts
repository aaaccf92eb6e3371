/**
 * Large files of a checkout: each pointer that leads to one of the repository is replaced by it, as `git lfs` would,
 * whose program and credentials no job needs for it. A pointer to what the repository does not have stays as it is.
 */

import { createWriteStream } from 'node:fs';
import { pipeline } from 'node:stream/promises';
import type pg from 'pg';
import { demandBytes, type Limits } from '../git/disk/checkout.ts';
import { type PointerFile, pointerFiles } from '../git/objects/pointer.ts';
import type { Db } from '../platform/database/client.ts';
import type { LargeFiles } from './lfs/store/store.ts';

type Deps = { db: Db; largeFiles: LargeFiles };

/** Pointers that are looked up at once. */
const BATCH = 1_000;
/** Files of a checkout that are read from storage at once. */
const AT_ONCE = 4;

/** Whether the repository has any. */
export async function hasLargeFiles(
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

type Input = Limits & {
  repositoryId: string;
  /** Of the checkout. */
  dir: string;
  /** That it takes of the disk without them. */
  bytes: number;
  signal?: AbortSignal;
};

/** @throws CheckoutTooLarge, before what would be too much is written; what the storage and the disk fail with */
export async function fetchLargeFiles(
  { largeFiles }: Deps,
  { repositoryId, dir, bytes, signal, ...limits }: Input,
): Promise<void> {
  let sum = bytes;
  const fetchAll = async (batch: readonly PointerFile[]) => {
    const oids = [...new Set(batch.map(({ pointer }) => pointer.oid))];
    const sizes = await largeFiles.sizes(repositoryId, oids);
    const here = batch.filter(({ pointer }) => sizes.has(pointer.oid));
    for (const { pointer } of here) sum += sizes.get(pointer.oid) ?? 0;
    demandBytes(sum, limits);
    await eachInTurn(here, signal, ({ path, pointer }, ended) =>
      replace(path, () => largeFiles.open(repositoryId, pointer.oid), ended),
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

/** Writes over a pointer, whose mode stays. */
async function replace(
  path: Buffer,
  open: () => ReturnType<LargeFiles['open']>,
  signal: AbortSignal,
): Promise<void> {
  const found = await open();
  // It was deleted meanwhile.
  if (!found) return;
  await pipeline(found.body(), createWriteStream(path), { signal });
}

/** Does `work` with each item, some at once. When one fails the others are ended, and have ended when this throws. */
async function eachInTurn<T>(
  items: readonly T[],
  signal: AbortSignal | undefined,
  work: (item: T, signal: AbortSignal) => Promise<void>,
): Promise<void> {
  const failed = new AbortController();
  const ended = signal ? AbortSignal.any([signal, failed.signal]) : failed.signal;
  const left = items.values();
  // They share the iterator, so that each takes the next item that none has taken.
  const workers = Array.from({ length: AT_ONCE }, async () => {
    for (const item of left) {
      ended.throwIfAborted();
      await work(item, ended);
    }
  });
  for (const worker of workers) worker.catch((error) => failed.abort(error));
  await Promise.allSettled(workers);
  ended.throwIfAborted();
}
