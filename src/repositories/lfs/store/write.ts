/** Stores a stream whose size and SHA-256 are not known before its end, such as a cache of a job. */
import type pg from 'pg';
import { inPoolTransaction } from '../../../platform/database/client.ts';
import { addChunks, PackWriter } from './packs.ts';
import { Recipe } from './recipes.ts';
import { findStoreOf, holdObject, type StoredKey } from './references.ts';
import { findLostChunks, replaceChunks, storeNewChunks, type UploadDeps } from './upload.ts';

/** A stored object that nothing holds yet. */
export type StoredStream = {
  size: number;
  /**
   * Adds the object in a transaction in which `work` inserts the row that holds it. May be called again if `work` fails.
   * @throws errors of `work`; AppError 503 if the sweep removed chunks meanwhile
   */
  attach(work: (client: pg.PoolClient, key: StoredKey) => Promise<void>): Promise<void>;
};

/** See `LargeFiles.write`. */
export async function writeStream<T>(
  deps: UploadDeps,
  repositoryId: string,
  body: AsyncIterable<Uint8Array>,
  { atMost, signal }: { atMost: number; signal: AbortSignal },
  use: (stored: StoredStream) => Promise<T>,
): Promise<T> {
  deps.space.demand();
  const storeId = await findStoreOf(deps, repositoryId);
  const lost = await findLostChunks(deps, storeId, signal);
  const packs = new PackWriter(deps, storeId, signal, lost.size > 0 ? replaceChunks : addChunks);
  const recipe = new Recipe();
  let oid = '';
  try {
    const hashed = deps.hashing.hash(body, { atMost, cutting: true, signal });
    for await (const { chunks, oid: found, free } of hashed) {
      await storeNewChunks(deps, storeId, chunks, { packs, recipe, lost });
      free();
      oid = found ?? oid;
    }
    await packs.finish();
    signal.throwIfAborted();
    const key = { storeId, oid, size: recipe.size };
    return await use({
      size: recipe.size,
      attach: (work) =>
        inPoolTransaction(deps.pool, async (client) => {
          await holdObject(client, key, recipe);
          await work(client, key);
        }),
    });
  } catch (error) {
    await packs.abandon().catch((err) => {
      deps.log.warn({ err }, 'could not remove the chunks of a stream that was not stored');
    });
    throw error;
  }
}
