/**
 * References from repositories to objects. One transaction changes a reference together with the counts of the object,
 * of its chunks, and of the bytes of the repository and its namespace.
 *
 * All transactions lock in one order: the object, its chunks in hash order, the repository, the namespace.
 */
import type pg from 'pg';
import type { Plan } from '../../../../prisma/generated/enums.ts';
import type { Config } from '../../../base/config/config.ts';
import { type AppError, busy, notFound } from '../../../base/errors.ts';
import { newId } from '../../../base/ids.ts';
import { inPoolTransaction, violatesReference } from '../../../platform/database/client.ts';
import { RESERVED_BYTES, requireStorage } from '../../../platform/limits/quotas.ts';
import { reserveStorage } from '../../../platform/limits/storage.ts';
import type { Recipe, RecipePage } from './recipes.ts';

type Deps = { pool: pg.Pool; config: Config };

/** Rows per statement. */
const BATCH = 1_000;
/** The store of all repositories with `content_addressed`. */
const SHARED_STORE = 1;

/** An object of the store. Who knows it has the right to read it. */
export type StoredKey = { storeId: number; oid: string; size: number };

export type NewObject = { oid: string; size: number; givenById?: string | null };

/**
 * Reserves the whole size of an upload in the namespace's storage (`limits/storage.ts`), until the upload completes, is
 * cancelled, or is not continued for the grace period. Uploads of one object to one repository share the reservation.
 * @returns the id of the repository's store
 * @throws AppError 404, 403 `quota_exceeded`
 */
export async function beginUpload(
  deps: Deps,
  repositoryId: string,
  { oid, size }: NewObject,
): Promise<number> {
  const { rows } = await deps.pool.query<{ shared: boolean; given: boolean; namespaceId: string }>({
    name: 'loam-store-for',
    text: `
      select r.content_addressed as shared, r.namespace_id as "namespaceId",
        exists (select from large_files where repository_id = r.id and oid = $2) as given
      from repositories r where r.id = $1`,
    values: [repositoryId, oid],
  });
  const [row] = rows;
  if (!row) throw notFound('Repository');
  const storeId = await findStore(deps, repositoryId, row.shared);
  // An object that the repository has is counted already.
  await reserveStorage(deps, row.namespaceId, row.given ? 0 : size, async (client) => {
    await client.query(
      `delete from large_uploads
       where repository_id = $1 and oid = $2 and (size <> $3 or store_id <> $4)`,
      [repositoryId, oid, size, storeId],
    );
    await client.query(
      `insert into large_uploads (repository_id, oid, size, store_id, bytes)
       select id, $2, $3, $4, 0 from repositories where id = $1
       on conflict (repository_id, oid) do update set touched_at = now()`,
      [repositoryId, oid, size, storeId],
    );
  }).catch((error) => {
    throw violatesReference(error, 'repository_id') ? notFound('Repository') : error;
  });
  return storeId;
}

/** Releases the reservation of an upload, unless bytes of it are kept. */
export async function cancelUpload(
  { pool }: Pick<Deps, 'pool'>,
  repositoryId: string,
  oid: string,
): Promise<void> {
  await pool.query(
    'delete from large_uploads where repository_id = $1 and oid = $2 and bytes = 0',
    [repositoryId, oid],
  );
}

/** @param isShared `content_addressed` of the repository @throws AppError 404 */
async function findStore(
  deps: Pick<Deps, 'pool'>,
  repositoryId: string,
  isShared: boolean,
): Promise<number> {
  return isShared ? SHARED_STORE : findOrCreateStore(deps, repositoryId);
}

/** @returns the id of the store of a repository @throws AppError 404 */
export async function findStoreOf(
  { pool }: Pick<Deps, 'pool'>,
  repositoryId: string,
): Promise<number> {
  const { rows } = await pool.query<{ shared: boolean }>(
    'select content_addressed as shared from repositories where id = $1',
    [repositoryId],
  );
  if (!rows[0]) throw notFound('Repository');
  return findStore({ pool }, repositoryId, rows[0].shared);
}

async function findOrCreateStore(
  { pool }: Pick<Deps, 'pool'>,
  repositoryId: string,
): Promise<number> {
  const find = 'select id from large_stores where repository_id = $1';
  const { rows } = await pool.query<{ id: number }>(find, [repositoryId]);
  if (rows[0]) return rows[0].id;
  await pool.query(
    `insert into large_stores (repository_id) select id from repositories where id = $1
     on conflict do nothing`,
    [repositoryId],
  );
  const made = await pool.query<{ id: number }>(find, [repositoryId]);
  if (!made.rows[0]) throw notFound('Repository');
  return made.rows[0].id;
}

/** Returns what the store has of the object, and renews the grace period of the object. */
export async function touchObject(
  { pool }: Deps,
  storeId: number,
  oid: string,
): Promise<'nothing' | 'all' | 'damaged'> {
  const { rows } = await pool.query<{ damaged: boolean }>({
    name: 'loam-keep-object',
    text: `
      update large_objects set touched_at = now() where store_id = $1 and oid = $2
      returning damaged`,
    values: [storeId, oid],
  });
  const [row] = rows;
  if (!row) return 'nothing';
  return row.damaged ? 'damaged' : 'all';
}

/**
 * Adds an object to a repository.
 * @param recipe its chunks, which are all in the store; null if the store has the object
 * @throws AppError 403 `quota_exceeded`, 404 if the repository no longer exists, 503 if the upload took longer than
 * the grace period and the sweep removed the chunks or the object
 */
export function attachObject(
  deps: Deps,
  repositoryId: string,
  storeId: number,
  object: NewObject,
  recipe: Recipe | null,
): Promise<void> {
  const { oid, size, givenById = null } = object;
  return inPoolTransaction(deps.pool, async (client) => {
    if (recipe) await addObject(client, storeId, object, recipe);
    else if (!(await lockObject(client, storeId, oid))) throw dependencyRemoved();
    const { rows } = await client.query<{ namespaceId: string }>(
      `select namespace_id as "namespaceId" from repositories where id = $1 for no key update`,
      [repositoryId],
    );
    const [repository] = rows;
    if (!repository) throw notFound('Repository');
    await client.query({
      name: 'loam-end-upload',
      text: 'delete from large_uploads where repository_id = $1 and oid = $2',
      values: [repositoryId, oid],
    });
    const { rowCount } = await client.query({
      name: 'loam-give',
      text: `
        insert into large_files (id, repository_id, oid, size, store_id, given_by_id)
        values ($1, $2, $3, $4, $5, $6) on conflict (repository_id, oid) do nothing`,
      values: [newId('lfo'), repositoryId, oid, size, storeId, givenById],
    });
    if (rowCount === 0) return;
    await client.query(
      'update large_objects set holders = holders + 1 where store_id = $1 and oid = $2',
      [storeId, oid],
    );
    const { rows: owners } = await client.query<{ plan: Plan; storageBytes: string }>(
      `select plan, storage_bytes + ${RESERVED_BYTES} as "storageBytes"
       from namespaces n where id = $1 for no key update`,
      [repository.namespaceId],
    );
    for (const owner of owners)
      requireStorage(deps, { ...owner, storageBytes: BigInt(owner.storageBytes) }, size);
    await countBytes(client, repositoryId, size);
  });
}

/**
 * Adds a stored object for a row that refers to it, such as a cache. Runs in the transaction that inserts the row, before it locks
 * a repository. The row is deleted by `deleteHolders`.
 * @throws AppError 503 if the sweep removed chunks meanwhile
 */
export async function holdObject(
  client: pg.PoolClient,
  { storeId, oid, size }: StoredKey,
  recipe: Recipe,
): Promise<void> {
  await addObject(client, storeId, { oid, size }, recipe);
  await client.query(
    'update large_objects set holders = holders + 1 where store_id = $1 and oid = $2',
    [storeId, oid],
  );
}

/**
 * Deletes rows that hold objects. The sweep deletes the bytes of objects that nothing else holds.
 * @param ids of rows of the repository; others are skipped
 * @returns the sum of their sizes, which the caller subtracts from the count of the repository
 */
export async function deleteHolders(
  client: pg.PoolClient,
  table: 'job_caches',
  repositoryId: string,
  ids: readonly string[],
): Promise<{ bytes: number; count: number }> {
  // As in `detachRows`: only rows whose object is locked here.
  const locked = await client.query<{ id: string }>(
    `select h.id from large_objects o join ${table} h on h.store_id = o.store_id and h.oid = o.oid
     where h.repository_id = $1 and h.id = any($2) order by o.store_id, o.oid for update of o`,
    [repositoryId, ids],
  );
  const { rows } = await client.query<{ bytes: string; count: string }>(
    `with removed as (
       delete from ${table} where id = any($1) returning store_id, oid, size
     ), counted as (
       update large_objects o set holders = holders - of_object.n
       from (select store_id, oid, count(*)::int as n from removed group by store_id, oid) of_object
       where o.store_id = of_object.store_id and o.oid = of_object.oid
     )
     select coalesce(sum(size), 0) as bytes, count(*) as count from removed`,
    [locked.rows.map(({ id }) => id)],
  );
  return { bytes: Number(rows[0]?.bytes ?? 0), count: Number(rows[0]?.count ?? 0) };
}

function dependencyRemoved(): AppError {
  return busy('Stored parts of the object were removed during the upload; upload it again', 1);
}

async function lockObject(client: pg.PoolClient, storeId: number, oid: string): Promise<boolean> {
  const { rowCount } = await client.query({
    name: 'loam-lock-object',
    text: 'select from large_objects where store_id = $1 and oid = $2 for update',
    values: [storeId, oid],
  });
  return rowCount === 1;
}

/** Inserts the object and its recipe, unless another upload has inserted it. */
async function addObject(
  client: pg.PoolClient,
  storeId: number,
  { oid, size }: NewObject,
  recipe: Recipe,
): Promise<void> {
  const { rows } = await client.query<{ added: boolean }>({
    name: 'loam-add-object',
    text: `
      insert into large_objects (store_id, oid, size, holders) values ($1, $2, $3, 0)
      on conflict (store_id, oid) do update set touched_at = now() returning xmax = 0 as added`,
    values: [storeId, oid, size],
  });
  if (!rows[0]?.added) return;
  for (const batch of recipe.hashes.batches(BATCH)) {
    const used = await client.query({
      name: 'loam-use-chunks',
      text: `
        with locked as (
          select hash from large_chunks where store_id = $1 and hash = any($2) order by hash for update
        )
        update large_chunks c set uses = uses + 1, unused_since = null from locked
        where c.store_id = $1 and c.hash = locked.hash`,
      values: [storeId, batch],
    });
    if (used.rowCount !== batch.length) throw dependencyRemoved();
  }
  await addRecipe(client, storeId, oid, recipe.pages());
}

async function addRecipe(
  client: pg.PoolClient,
  storeId: number,
  oid: string,
  pages: readonly RecipePage[],
): Promise<void> {
  for (const { start, chunks } of pages)
    await client.query({
      name: 'loam-add-recipe',
      text: 'insert into large_recipes (store_id, oid, start, chunks) values ($1, $2, $3, $4)',
      values: [storeId, oid, start, chunks],
    });
}

/** A trigger adds the same number of bytes to the namespace. */
async function countBytes(client: pg.PoolClient, repositoryId: string, bytes: number) {
  await client.query(
    `update repositories set large_bytes = large_bytes + $2, size_bytes = size_bytes + $2
     where id = $1`,
    [repositoryId, bytes],
  );
}

/** Removes objects from a repository. Skips objects that it does not have. */
export async function detachObjects(
  { pool }: Pick<Deps, 'pool'>,
  repositoryId: string,
  oids: readonly string[],
): Promise<void> {
  for (let at = 0; at < oids.length; at += BATCH)
    await inPoolTransaction(pool, async (client) => {
      const removed = await detachRows(client, repositoryId, oids.slice(at, at + BATCH));
      await countBytes(client, repositoryId, -removed);
    });
}

/** Like `detachObjects`, but leaves the byte count of the repository to the caller. @returns the removed bytes */
export async function detachRows(
  client: pg.PoolClient,
  repositoryId: string,
  oids: readonly string[],
): Promise<number> {
  // Deletes only references whose object is locked here. A concurrent `attachObject` holds the object's lock while it
  // waits for the reference, so deleting a reference without that lock could deadlock.
  const locked = await client.query<{ oid: string }>(
    `select f.oid from large_objects o join large_files f on f.store_id = o.store_id and f.oid = o.oid
     where f.repository_id = $1 and f.oid = any($2) order by o.store_id, o.oid for update of o`,
    [repositoryId, oids],
  );
  const { rows } = await client.query<{ bytes: string }>(
    `with removed as (
       delete from large_files where repository_id = $1 and oid = any($2)
       returning store_id, oid, size
     ), counted as (
       update large_objects o set holders = holders - 1 from removed
       where o.store_id = removed.store_id and o.oid = removed.oid
     )
     select coalesce(sum(size), 0) as bytes from removed`,
    [repositoryId, locked.rows.map(({ oid }) => oid)],
  );
  return Number(rows[0]?.bytes ?? 0);
}

/** Sizes of the objects that the repository has. */
export async function readSizes(
  { pool }: Pick<Deps, 'pool'>,
  repositoryId: string,
  oids: readonly string[],
): Promise<Map<string, number>> {
  const { rows } = await pool.query<{ oid: string; size: string }>({
    name: 'loam-large-sizes',
    text: 'select oid, size from large_files where repository_id = $1 and oid = any($2)',
    values: [repositoryId, oids],
  });
  return new Map(rows.map(({ oid, size }) => [oid, Number(size)]));
}

type ObjectKey = { storeId: number; oid: string };

/**
 * Readers call this for objects whose bytes the storage has lost or changed; the next upload of the object replaces the
 * damaged chunks. Uploads do not verify other known objects: that would take as long as storing them.
 */
export async function markDamaged(
  { pool }: Pick<Deps, 'pool'>,
  { storeId, oid }: ObjectKey,
): Promise<void> {
  await pool.query('update large_objects set damaged = true where store_id = $1 and oid = $2', [
    storeId,
    oid,
  ]);
}

export async function markRepaired(
  { pool }: Pick<Deps, 'pool'>,
  { storeId, oid }: ObjectKey,
): Promise<void> {
  await pool.query('update large_objects set damaged = false where store_id = $1 and oid = $2', [
    storeId,
    oid,
  ]);
}

export async function findDamagedObjects(
  { pool }: Pick<Deps, 'pool'>,
  repositoryId: string,
  oids: readonly string[],
): Promise<Set<string>> {
  const { rows } = await pool.query<{ oid: string }>({
    name: 'loam-damaged-files',
    text: `
      select f.oid from large_files f join large_objects o on o.store_id = f.store_id and o.oid = f.oid
      where f.repository_id = $1 and f.oid = any($2) and o.damaged`,
    values: [repositoryId, oids],
  });
  return new Set(rows.map(({ oid }) => oid));
}
