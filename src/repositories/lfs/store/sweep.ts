/**
 * Garbage collection of the large-file store. Removes, in this order: references of deleted repositories, abandoned
 * uploads, objects without references, chunks without uses, packs without chunks. Each step is one transaction, so that
 * a sweep can stop after any step, and reads a bounded number of rows through a partial index of the rows to process.
 *
 * An upload relies on chunks and objects that it found in the store. It touches the unused ones, and the sweep keeps
 * them for the grace period, so an upload that takes less time than the grace period is not disturbed.
 */
import type pg from 'pg';
import { LARGE_FILE_SWEEP_LOCK } from '../../../base/advisory-locks.ts';
import type { Config } from '../../../base/config/config.ts';
import type { Logger } from '../../../base/log.ts';
import { inPoolTransaction, withConnection } from '../../../platform/database/client.ts';
import type { Storage } from '../../../platform/storage/storage.ts';
import { moveChunks, PackWriter } from './packs.ts';
import {
  type ChunkLocation,
  DamagedChunkError,
  groupIntoRuns,
  inlineVerifier,
  readRun,
} from './read.ts';
import { decodeEntries, SortedHashes } from './recipes.ts';
import { deleteHolders, detachRows } from './references.ts';

export type SweepDeps = { pool: pg.Pool; storage: Storage; log: Logger };

/** In ms. */
export type GracePeriods = {
  /** For objects, chunks and unfinished packs: since the last upload touched them. */
  uploads: number;
  /**
   * For packs without chunks: since they were retired. Readers that looked up a chunk before can still read it, and a
   * backup of the storage has every pack that a backup of the database, at most this much older, refers to.
   */
  retired: number;
};

const BATCH = 1_000;
/** Objects and packs per step, fewer than rows because each may take long. */
const SMALL_BATCH = 20;
const HOUR_MS = 3_600_000;

/** Runs on one server at a time. @returns whether there may be more to do */
export function sweepLargeFiles(
  services: SweepDeps & { config: Config },
  graces: GracePeriods = gracePeriodsOf(services.config),
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

function gracePeriodsOf({ lfsGraceHours }: Config): GracePeriods {
  const grace = lfsGraceHours * HOUR_MS;
  return { uploads: grace, retired: grace };
}

async function sweepOnce(deps: SweepDeps, graces: GracePeriods): Promise<boolean> {
  const mayHaveMore = [
    await detachFromDeletedRepository(deps),
    await removeAbandonedUploads(deps, graces),
    await removeUnreferencedObjects(deps, graces),
    await removeUnusedChunks(deps, graces),
    await rewritePacks(deps),
    await removeRetiredPacks(deps, graces),
    await removeEmptyStores(deps),
  ];
  return mayHaveMore.includes(true);
}

/** Removes a batch of references of one deleted repository. */
async function detachFromDeletedRepository({ pool }: SweepDeps): Promise<boolean> {
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
    await detachRows(
      client,
      repository.id,
      rows.map(({ oid }) => oid),
    );
    const caches = await client.query<{ id: string }>(
      'select id from job_caches where repository_id = $1 order by id limit $2',
      [repository.id, BATCH],
    );
    await deleteHolders(
      client,
      'job_caches',
      repository.id,
      caches.rows.map(({ id }) => id),
    );
    if (rows.length < BATCH && caches.rows.length < BATCH)
      await client.query('delete from deleted_large_files where repository_id = $1', [
        repository.id,
      ]);
    return true;
  });
}

/** A later step removes the chunks of these uploads, which have no uses. */
async function removeAbandonedUploads(
  { pool }: SweepDeps,
  { uploads }: GracePeriods,
): Promise<boolean> {
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

async function removeUnreferencedObjects(
  { pool }: SweepDeps,
  { uploads }: GracePeriods,
): Promise<boolean> {
  const { rows } = await pool.query<ObjectKey>(
    `select store_id as "storeId", oid from large_objects
     where holders = 0 and touched_at < now() - $1 * interval '1 ms' order by touched_at limit $2`,
    [uploads, SMALL_BATCH],
  );
  for (const key of rows) await removeObject(pool, key, uploads);
  return rows.length === SMALL_BATCH;
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
    const hashes = new SortedHashes();
    for (let at = -1; ; ) {
      const { rows } = await client.query<{ start: string; chunks: Buffer }>(
        `select start, chunks from large_recipes where store_id = $1 and oid = $2 and start > $3
         order by start limit $4`,
        [storeId, oid, at, SMALL_BATCH],
      );
      for (const { chunks } of rows) for (const { hash } of decodeEntries(chunks)) hashes.add(hash);
      if (rows.length < SMALL_BATCH) break;
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

async function removeUnusedChunks(
  { pool }: SweepDeps,
  { uploads }: GracePeriods,
): Promise<boolean> {
  // Skips locked rows, because an upload is about to use these chunks.
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

/** Retires packs whose upload never finished, and deletes retired packs. */
async function removeRetiredPacks(
  { pool, storage }: SweepDeps,
  { uploads, retired }: GracePeriods,
): Promise<boolean> {
  // Retires first, so that an upload that is still running cannot commit a pack that is being deleted.
  const { rowCount: retiredNow } = await pool.query(
    `update large_packs set state = 'retired', since = now() where id in (
       select id from large_packs
       where state <> 'kept' and state = 'putting' and since < now() - $1 * interval '1 ms'
       order by since limit $2) and state = 'putting'`,
    [uploads, SMALL_BATCH],
  );
  const { rows } = await pool.query<{ id: number; key: string }>(
    `select id, key from large_packs
     where state <> 'kept' and state = 'retired' and since < now() - $1 * interval '1 ms'
     order by since limit $2`,
    [retired, SMALL_BATCH],
  );
  for (const { id, key } of rows) {
    await storage.remove(key);
    await pool.query('delete from large_packs where id = $1', [id]);
  }
  return rows.length === SMALL_BATCH || (retiredNow ?? 0) > 0;
}

/** Removes the empty stores of deleted repositories. */
async function removeEmptyStores({ pool }: SweepDeps): Promise<boolean> {
  const { rowCount } = await pool.query(
    `delete from large_stores s where id in (
       select id from large_stores s where repository_id is null and id > 1
         and not exists (select from large_objects where store_id = s.id)
         and not exists (select from large_chunks where store_id = s.id)
         and not exists (select from large_packs where store_id = s.id)
       limit $1)`,
    [SMALL_BATCH],
  );
  return rowCount === SMALL_BATCH;
}

/*
 * Packs are rewritten if most of their bytes are dead, or if a size tier has eight small packs. So a store has few
 * small packs, and a byte is copied at most once per tier.
 *
 * The live chunks are copied into a new pack, and one transaction moves their rows. Readers of the old pack continue
 * until it is deleted; a reader that no longer finds it looks up the rows again.
 */

type Pack = { id: number; storeId: number; key: string; liveBytes: number };
type ChangedPack = Pack & { bytes: number; tier: number | null; state: string };

const MERGED_PACKS = 8;
/** Examining a pack costs one query. The step ends after one rewrite. */
const EXAMINED_PACKS = 100;

/** Examines changed packs, and rewrites packs at most once. @returns whether there may be more to do */
async function rewritePacks(deps: SweepDeps): Promise<boolean> {
  const { rows } = await deps.pool.query<ChangedPack>(
    `select id, store_id as "storeId", key, bytes, live_bytes as "liveBytes", tier, state
     from large_packs where changed order by id limit $1`,
    [EXAMINED_PACKS],
  );
  for (const pack of rows) {
    if (await retireIfEmpty(deps, pack)) continue;
    const chosen = pack.state === 'kept' ? await choosePacksToRewrite(deps, pack) : [];
    if (chosen.length > 0) await mergePacks(deps, chosen);
    await deps.pool.query(
      'update large_packs set changed = false where id = $1 and live_bytes = $2',
      [pack.id, pack.liveBytes],
    );
    if (chosen.length > 0) return true;
  }
  return rows.length === EXAMINED_PACKS;
}

/** @returns whether the pack had no chunks */
async function retireIfEmpty({ pool }: SweepDeps, { id }: Pack): Promise<boolean> {
  const { rowCount } = await pool.query(
    `update large_packs set state = 'retired', since = now(), changed = false
     where id = $1 and state = 'kept' and live_bytes = 0
       and not exists (select from large_chunks where pack_id = $1)`,
    [id],
  );
  return rowCount === 1;
}

/** Returns the packs to rewrite together because this pack has changed. */
async function choosePacksToRewrite({ pool }: SweepDeps, pack: ChangedPack): Promise<Pack[]> {
  if (pack.liveBytes < pack.bytes / 2) return [pack];
  if (pack.tier === null) return [];
  const { rows } = await pool.query<Pack>(
    `select id, store_id as "storeId", key, live_bytes as "liveBytes" from large_packs
     where store_id = $1 and tier = $2 and state = 'kept' order by id limit $3`,
    [pack.storeId, pack.tier, MERGED_PACKS],
  );
  return rows.length === MERGED_PACKS ? rows : [];
}

async function mergePacks(deps: SweepDeps, packs: readonly Pack[]): Promise<void> {
  const [{ storeId }] = packs as [Pack];
  const ids = packs.map(({ id }) => id);
  const { signal } = new AbortController();
  const writer = new PackWriter(deps, storeId, signal, (client, store, put) =>
    moveChunks(client, store, put, ids),
  );
  try {
    for (const pack of packs) await copyLiveChunks(deps, pack, writer);
    await writer.finish();
  } catch (error) {
    await writer.abandon();
    // The damage is logged already. The pack stays, because its other chunks are readable.
    if (!(error instanceof DamagedChunkError)) throw error;
  }
}

async function copyLiveChunks(
  deps: SweepDeps,
  { id, key }: Pack,
  writer: PackWriter,
): Promise<void> {
  const { rows } = await deps.pool.query<ChunkLocation>(
    'select hash, $2::text as key, start, length from large_chunks where pack_id = $1 order by start',
    [id, key],
  );
  try {
    for (const run of groupIntoRuns(rows)) {
      let at = 0;
      for await (const { chunks, free } of readRun(deps, run, inlineVerifier)) {
        await writer.add(
          chunks.map((bytes) => ({ hash: (run[at++] as ChunkLocation).hash, bytes })),
        );
        free();
      }
      if (at < run.length) throw new DamagedChunkError(`The pack ${key} is missing`);
    }
  } catch (error) {
    // Without a tier, the damaged pack does not block the merge of other packs.
    if (error instanceof DamagedChunkError)
      await deps.pool.query('update large_packs set tier = null where id = $1', [id]);
    throw error;
  }
}
