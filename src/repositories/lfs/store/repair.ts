/** Storing anew what storage has lost or changed of an object, which is found by reading all of it. */
import type pg from 'pg';
import type { Logger } from '../../../base/log.ts';
import type { Storage } from '../../../platform/storage/storage.ts';
import type { Hashing } from './hashing.ts';
import { addChunks, moveChunks, type Recorded, textOf } from './packs.ts';
import { placesOf } from './read.ts';
import { entriesOf } from './recipes.ts';
import { Damaged, type RunLocation, readRun, runsOf } from './runs.ts';

type Deps = { pool: pg.Pool; storage: Storage; log: Logger } & { hashing: Hashing };
type Key = { storeId: number; oid: string };

/** The chunks of an object that are not in storage as they were put, as text. All of it is read. */
export async function damagedChunks(
  deps: Deps,
  { storeId, oid }: Key,
  signal: AbortSignal,
): Promise<ReadonlySet<string>> {
  const damaged = new Set<string>();
  for (let after = -1; ; ) {
    signal.throwIfAborted();
    const { rows } = await deps.pool.query<{ start: string; chunks: Buffer }>(
      `select start, chunks from large_recipes where store_id = $1 and oid = $2 and start > $3
       order by start limit 1`,
      [storeId, oid, after],
    );
    const [page] = rows;
    if (!page) return damaged;
    for (const run of runsOf(await placesOf(deps, storeId, entriesOf(page.chunks))))
      for await (const { hash } of damagedIn(deps, run)) damaged.add(textOf(hash));
    after = Number(page.start);
  }
}

async function* damagedIn(deps: Deps, run: readonly RunLocation[]): AsyncGenerator<RunLocation> {
  for (let at = 0; at < run.length; ) {
    const begun = at;
    try {
      for await (const { chunks, free } of readRun(deps, run.slice(at), deps.hashing.checking)) {
        at += chunks.length;
        free();
      }
      // Its pack is gone.
      if (at === begun) return yield* run.slice(at);
    } catch (error) {
      const { place } = error instanceof Damaged ? error : {};
      if (!place) throw error;
      yield place;
      // Those before it in the same batch were found right.
      at = run.indexOf(place) + 1;
    }
  }
}

/** As `addChunks`; what was known lies in the new pack from then on. */
export const addAnew: Recorded = async (client, storeId, pack) => {
  await moveChunks(client, storeId, pack, null);
  return addChunks(client, storeId, pack);
};
