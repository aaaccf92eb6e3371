/**
 * Writing packs anew: those that are mostly dead bytes, and small ones of a class of size as soon as there are eight.
 * So every byte is copied once for each class that it goes through, and a store has few small packs.
 *
 * The chunks are copied into a new pack, and one transaction moves their rows. Whoever reads the old pack goes on, until
 * it is removed; whoever does not find it looks up the rows again.
 */
import type pg from 'pg';
import type { Logger } from '../../../base/log.ts';
import type { Storage } from '../../../platform/storage/storage.ts';
import type { Chunk } from './hashing.ts';
import { moveChunks, openPackWriter } from './packs.ts';
import { checkingHere, Damaged, type RunLocation, readRun, runsOf } from './runs.ts';

type Deps = { pool: pg.Pool; storage: Storage; log: Logger };
type Pack = { id: number; storeId: number; key: string; liveBytes: number };
type Changed = Pack & { bytes: number; tier: number | null; state: string };

const JOINED_AT_ONCE = 8;
/** Each is a look at a row; after a rewrite, others have their turn. */
const LOOKED_AT = 100;

/** Looks at packs that have changed, and writes anew at most once. @returns whether there may be more */
export async function rewritePacks(deps: Deps): Promise<boolean> {
  const { rows } = await deps.pool.query<Changed>(
    `select id, store_id as "storeId", key, bytes, live_bytes as "liveBytes", tier, state
     from large_packs where changed order by id limit $1`,
    [LOOKED_AT],
  );
  for (const pack of rows) {
    if (await retire(deps, pack)) continue;
    const chosen = pack.state === 'kept' ? await choose(deps, pack) : [];
    if (chosen.length > 0) await rewrite(deps, chosen);
    await deps.pool.query(
      'update large_packs set changed = false where id = $1 and live_bytes = $2',
      [pack.id, pack.liveBytes],
    );
    if (chosen.length > 0) return true;
  }
  return rows.length === LOOKED_AT;
}

/** @returns whether nothing lies in it, so that it can go */
async function retire({ pool }: Deps, { id }: Pack): Promise<boolean> {
  const { rowCount } = await pool.query(
    `update large_packs set state = 'retired', since = now(), changed = false
     where id = $1 and state = 'kept' and live_bytes = 0
       and not exists (select from large_chunks where pack_id = $1)`,
    [id],
  );
  return rowCount === 1;
}

/** The packs that are to be written anew because of this one. */
async function choose({ pool }: Deps, pack: Changed): Promise<Pack[]> {
  if (pack.liveBytes < pack.bytes / 2) return [pack];
  if (pack.tier === null) return [];
  const { rows } = await pool.query<Pack>(
    `select id, store_id as "storeId", key, live_bytes as "liveBytes" from large_packs
     where store_id = $1 and tier = $2 and state = 'kept' order by id limit $3`,
    [pack.storeId, pack.tier, JOINED_AT_ONCE],
  );
  return rows.length === JOINED_AT_ONCE ? rows : [];
}

async function rewrite(deps: Deps, packs: readonly Pack[]): Promise<void> {
  const [{ storeId }] = packs as [Pack];
  const ids = packs.map(({ id }) => id);
  const { signal } = new AbortController();
  const writer = openPackWriter(deps, storeId, signal, (client, store, put) =>
    moveChunks(client, store, put, ids),
  );
  try {
    for (const pack of packs) await copy(deps, pack, writer.add);
    await writer.finish();
  } catch (error) {
    await writer.abandon();
    // It is logged, and the pack stays as it is: who reads what is not damaged in it still can.
    if (!(error instanceof Damaged)) throw error;
  }
}

async function copy(
  deps: Deps,
  { id, key }: Pack,
  add: (chunks: Chunk[]) => Promise<void>,
): Promise<void> {
  const { rows } = await deps.pool.query<RunLocation>(
    'select hash, $2::text as key, start, length from large_chunks where pack_id = $1 order by start',
    [id, key],
  );
  try {
    for (const run of runsOf(rows)) {
      let at = 0;
      for await (const { chunks, free } of readRun(deps, run, checkingHere)) {
        await add(chunks.map((bytes) => ({ hash: (run[at++] as RunLocation).hash, bytes })));
        free();
      }
      if (at < run.length) throw new Damaged(`the pack ${key} is gone`);
    }
  } catch (error) {
    // It must not keep others from being joined for ever.
    if (error instanceof Damaged)
      await deps.pool.query('update large_packs set tier = null where id = $1', [id]);
    throw error;
  }
}
