/**
 * Freeing what nobody has. In order: the references of deleted repositories, uploads that nobody resumed, objects without references, chunks
 * without uses, packs without chunks. Nothing here is asked for by a client, so nobody waits for it; every step is a
 * transaction that leaves all as it has to be, and is begun again by whoever sweeps next.
 *
 * Uploads count on what they have found: an upload touches the object or chunks that have no use at the moment, and
 * what was touched stays for the grace period. So no upload that takes less than that is disturbed.
 *
 * Each step takes a bounded number of rows through an index that has only what is to be done.
 */
import type pg from 'pg';
import { LARGE_FILE_SWEEP_LOCK } from '../../../base/advisory-locks.ts';
import type { Config } from '../../../base/config/config.ts';
import type { Logger } from '../../../base/log.ts';
import { inPoolTransaction, withConnection } from '../../../platform/database/client.ts';
import type { Storage } from '../../../platform/storage/storage.ts';
import { entriesOf, Hashes } from './recipes.ts';
import { takeRows } from './references.ts';
import type { Chunk } from './hashing.ts';
import { moveChunks, openPackWriter } from './packs.ts';
import { checkingHere, Damaged, type RunLocation, readRun, runsOf } from './read.ts';

export type SweepDeps = { pool: pg.Pool; storage: Storage; log: Logger };

/** In ms. */
export type Graces = {
  /** Of objects, chunks, and packs that are being put, since an upload counted on them. */
  uploads: number;
  /**
   * Of packs, since their chunks lie elsewhere or are gone. A reader that has looked up a place there finds it; and a
   * copy of the storage has every pack that a copy of the database names which was made that long before.
   */
  retired: number;
};

const BATCH = 1_000;
/** Objects, packs: each is much work by itself. */
const FEW = 20;
const HOUR_MS = 3_600_000;

/** One server at a time. @returns whether there may be more */
export function sweepLargeFiles(
  services: SweepDeps & { config: Config },
  graces: Graces = gracesOf(services.config),
): Promise<boolean> {
  return withConnection(services.pool, async (client) => {
    const lock = `hashtextextended('${LARGE_FILE_SWEEP_LOCK}', 0)`;
    const { rows } = await client.query(`select pg_try_advisory_lock(${lock}) as taken`);
    if (!rows[0].taken) return false;
    try {
      return await sweepOnce(services, graces);
    } finally {
      await client.query(`select pg_advisory_unlock(${lock})`);
    }
  });
}

function gracesOf({ lfsGraceHours }: Config): Graces {
  const grace = lfsGraceHours * HOUR_MS;
  return { uploads: grace, retired: grace };
}

async function sweepOnce(deps: SweepDeps, graces: Graces): Promise<boolean> {
  const left = [
    await takeFromDeleted(deps),
    await removeUploads(deps, graces),
    await removeObjects(deps, graces),
    await removeChunks(deps, graces),
    await rewritePacks(deps),
    await removePacks(deps, graces),
    await removeStores(deps),
  ];
  return left.includes(true);
}

/** Takes objects from a repository that was deleted. */
async function takeFromDeleted({ pool }: SweepDeps): Promise<boolean> {
  return inPoolTransaction(pool, async (client) => {
    const deleted = await client.query<{ id: string }>(
      'select repository_id as id from deleted_large_files order by repository_id limit 1',
    );
    const [repository] = deleted.rows;
    if (!repository) return false;
    const { rows } = await client.query<{ oid: string }>(
      'select oid from large_files where repository_id = $1 order by oid limit $2',
      [repository.id, BATCH],
    );
    await takeRows(
      client,
      repository.id,
      rows.map(({ oid }) => oid),
    );
    if (rows.length < BATCH)
      await client.query('delete from deleted_large_files where repository_id = $1', [
        repository.id,
      ]);
    return true;
  });
}

/** Those that were begun and that nobody went on with. Their chunks go like any others without a use. */
async function removeUploads({ pool }: SweepDeps, { uploads }: Graces): Promise<boolean> {
  const { rowCount } = await pool.query(
    `delete from large_uploads where (repository_id, oid) in (
       select repository_id, oid from large_uploads
       where touched_at < now() - $1 * interval '1 ms' order by touched_at limit $2)
     and touched_at < now() - $1 * interval '1 ms'`,
    [uploads, BATCH],
  );
  return rowCount === BATCH;
}

type ObjectKey = { storeId: number; oid: string };

async function removeObjects({ pool }: SweepDeps, { uploads }: Graces): Promise<boolean> {
  const { rows } = await pool.query<ObjectKey>(
    `select store_id as "storeId", oid from large_objects
     where holders = 0 and touched_at < now() - $1 * interval '1 ms' order by touched_at limit $2`,
    [uploads, FEW],
  );
  for (const key of rows) await removeObject(pool, key, uploads);
  return rows.length === FEW;
}

async function removeObject(
  pool: SweepDeps['pool'],
  { storeId, oid }: ObjectKey,
  uploads: number,
): Promise<void> {
  await inPoolTransaction(pool, async (client) => {
    const { rowCount } = await client.query(
      `delete from large_objects where store_id = $1 and oid = $2
         and holders = 0 and touched_at < now() - $3 * interval '1 ms'`,
      [storeId, oid, uploads],
    );
    if (rowCount === 0) return;
    const hashes = new Hashes();
    for (let at = -1; ; ) {
      const { rows } = await client.query<{ start: string; chunks: Buffer }>(
        `select start, chunks from large_recipes where store_id = $1 and oid = $2 and start > $3
         order by start limit $4`,
        [storeId, oid, at, FEW],
      );
      for (const { chunks } of rows) for (const { hash } of entriesOf(chunks)) hashes.add(hash);
      if (rows.length < FEW) break;
      at = Number(rows.at(-1)?.start);
    }
    for (const batch of hashes.batches(BATCH))
      await client.query(
        `with locked as (
           select hash from large_chunks where store_id = $1 and hash = any($2) order by hash for update
         )
         update large_chunks c set uses = uses - 1,
           unused_since = case when uses = 1 then clock_timestamp() end
         from locked where c.store_id = $1 and c.hash = locked.hash`,
        [storeId, batch],
      );
    await client.query('delete from large_recipes where store_id = $1 and oid = $2', [
      storeId,
      oid,
    ]);
  });
}

async function removeChunks({ pool }: SweepDeps, { uploads }: Graces): Promise<boolean> {
  // What an upload has locked it uses from now on.
  const { rows } = await pool.query<{ count: string }>(
    `with unused as (
       select store_id, hash from large_chunks
       where unused_since < now() - $1 * interval '1 ms'
       order by unused_since limit $2 for update skip locked
     ), removed as (
       delete from large_chunks c using unused
       where c.store_id = unused.store_id and c.hash = unused.hash returning c.pack_id, c.length
     ), sums as (
       select pack_id, sum(length) as bytes from removed group by pack_id
     ), counted as (
       update large_packs p set live_bytes = live_bytes - sums.bytes, changed = true
       from sums where p.id = sums.pack_id
     )
     select count(*) as count from removed`,
    [uploads, BATCH],
  );
  return Number(rows[0]?.count) === BATCH;
}

/** Those that were never put to their end, and those that nothing names any more. */
async function removePacks(
  { pool, storage }: SweepDeps,
  { uploads, retired }: Graces,
): Promise<boolean> {
  // First, because an upload that goes on after all must not make chunks known whose pack is being removed.
  const { rowCount: givenUp } = await pool.query(
    `update large_packs set state = 'retired', since = now() where id in (
       select id from large_packs
       where state <> 'kept' and state = 'putting' and since < now() - $1 * interval '1 ms'
       order by since limit $2) and state = 'putting'`,
    [uploads, FEW],
  );
  const { rows } = await pool.query<{ id: number; key: string }>(
    `select id, key from large_packs
     where state <> 'kept' and state = 'retired' and since < now() - $1 * interval '1 ms'
     order by since limit $2`,
    [retired, FEW],
  );
  for (const { id, key } of rows) {
    await storage.remove(key);
    await pool.query('delete from large_packs where id = $1', [id]);
  }
  return rows.length === FEW || (givenUp ?? 0) > 0;
}

/** Those of repositories that were deleted, as soon as they are empty. */
async function removeStores({ pool }: SweepDeps): Promise<boolean> {
  const { rowCount } = await pool.query(
    `delete from large_stores s where id in (
       select id from large_stores s where repository_id is null and id > 1
         and not exists (select from large_objects where store_id = s.id)
         and not exists (select from large_chunks where store_id = s.id)
         and not exists (select from large_packs where store_id = s.id)
       limit $1)`,
    [FEW],
  );
  return rowCount === FEW;
}

/**
 * Writing packs anew: those that are mostly dead bytes, and small ones of a class of size as soon as there are eight.
 * So every byte is copied once for each class that it goes through, and a store has few small packs.
 *
 * The chunks are copied into a new pack, and one transaction moves their rows. Whoever reads the old pack goes on, until
 * it is removed; whoever does not find it looks up the rows again.
 */
type Pack = { id: number; storeId: number; key: string; liveBytes: number };
type Changed = Pack & { bytes: number; tier: number | null; state: string };

const JOINED_AT_ONCE = 8;
/** Each is a look at a row; after a rewrite, others have their turn. */
const LOOKED_AT = 100;

/** Looks at packs that have changed, and writes anew at most once. @returns whether there may be more */
async function rewritePacks(deps: SweepDeps): Promise<boolean> {
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
async function retire({ pool }: SweepDeps, { id }: Pack): Promise<boolean> {
  const { rowCount } = await pool.query(
    `update large_packs set state = 'retired', since = now(), changed = false
     where id = $1 and state = 'kept' and live_bytes = 0
       and not exists (select from large_chunks where pack_id = $1)`,
    [id],
  );
  return rowCount === 1;
}

/** The packs that are to be written anew because of this one. */
async function choose({ pool }: SweepDeps, pack: Changed): Promise<Pack[]> {
  if (pack.liveBytes < pack.bytes / 2) return [pack];
  if (pack.tier === null) return [];
  const { rows } = await pool.query<Pack>(
    `select id, store_id as "storeId", key, live_bytes as "liveBytes" from large_packs
     where store_id = $1 and tier = $2 and state = 'kept' order by id limit $3`,
    [pack.storeId, pack.tier, JOINED_AT_ONCE],
  );
  return rows.length === JOINED_AT_ONCE ? rows : [];
}

async function rewrite(deps: SweepDeps, packs: readonly Pack[]): Promise<void> {
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
  deps: SweepDeps,
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
