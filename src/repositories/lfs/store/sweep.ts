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
import { rewritePacks } from './rewrite.ts';

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
