/**
 * The caches of repositories: rows that refer to objects of the large-file store. A cache never changes: its row is inserted in one
 * transaction after all its bytes are stored, and its key is never written again while the row exists.
 */
import type pg from 'pg';
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { Config } from '../../base/config/config.ts';
import { invalid, notFound } from '../../base/errors.ts';
import { newId } from '../../base/ids.ts';
import { addAuditToStatement, type ChangeBy } from '../../identity/audit.ts';
import { demand, demandAccount, type Viewer } from '../../identity/permissions.ts';
import { type Db, inPoolTransaction } from '../../platform/database/client.ts';
import { NEWEST_FIRST, readCursorPage, type Sorting } from '../../platform/database/keyset.ts';
import type { CursorPage, CursorPageRequest } from '../../platform/database/paging.ts';
import { createStatementParts, runStatement } from '../../platform/database/statement.ts';
import { RESERVED_BYTES, requireStorage } from '../../platform/limits/quotas.ts';
import { deleteHolders, type StoredKey } from '../../repositories/lfs/store/store.ts';
import { demandRepository } from '../../repositories/repositories.ts';

type Deps = { pool: pg.Pool };

/** A cache that an attempt restores. */
export type FoundCache = StoredKey & { id: string; key: string; contentBytes: number };

type Lookup = {
  repositoryId: string;
  scopes: readonly string[];
  path: string;
  key: string;
  restoreKeys: readonly string[];
};

/**
 * Finds the cache with the key, or else the newest one whose key begins with a restore key, the first restore key first. In each
 * step the scopes count in their order.
 */
export async function findCache(
  { pool }: Deps,
  { repositoryId, scopes, path, key, restoreKeys }: Lookup,
): Promise<FoundCache | null> {
  const { rows } = await pool.query<FoundCache>({
    name: 'loam-find-cache',
    text: `
      with scopes as (select * from unnest($2::text[]) with ordinality as s (scope, place)),
        prefixes as (select * from unnest($5::text[]) with ordinality as p (prefix, step)),
        found as (
          select c.*, 0 as step, s.place from scopes s join job_caches c
            on c.repository_id = $1 and c.scope = s.scope and c.path = $3 and c.key = $4
          union all
          select c.*, p.step, s.place from prefixes p cross join scopes s cross join lateral (
            select * from job_caches c where c.repository_id = $1 and c.scope = s.scope and c.path = $3
              and starts_with(c.key, p.prefix) order by c.id desc limit 1
          ) c
        )
      select id, key, store_id as "storeId", oid, size::float8 as size, content_bytes::float8 as "contentBytes"
      from found order by step, place limit 1`,
    values: [repositoryId, scopes, path, key, restoreKeys],
  });
  return rows[0] ?? null;
}

/** Whether a cache with the key exists. */
export async function hasCache(
  { pool }: Deps,
  { repositoryId, scope, path, key }: NewCache,
): Promise<boolean> {
  const { rowCount } = await pool.query(
    'select from job_caches where repository_id = $1 and scope = $2 and path = $3 and key = $4',
    [repositoryId, scope, path, key],
  );
  return rowCount === 1;
}

/** Counts a lookup, and the use of the cache that it has found. @param id null: it has found none */
export async function recordLookup(
  { pool }: Deps,
  repositoryId: string,
  id: string | null,
): Promise<void> {
  await pool.query(
    `with used as (update job_caches set hits = hits + 1, used_at = now() where id = $2)
     insert into cache_lookups as l (repository_id, hits, misses)
     select id, ($2::text is not null)::int, ($2::text is null)::int from repositories where id = $1
     on conflict (repository_id) do update
       set hits = l.hits + excluded.hits, misses = l.misses + excluded.misses`,
    [repositoryId, id],
  );
}

export type NewCache = { repositoryId: string; scope: string; path: string; key: string };

/** Another job has saved the key first. */
export class CacheExists extends Error {
  override name = 'CacheExists';
}

/** The caches of the repository leave no room. */
export class CachesFull extends Error {
  override name = 'CachesFull';
}

/**
 * Inserts the row of a stored cache, in the transaction that holds its object.
 * @throws CacheExists, CachesFull; AppError 403 `quota_exceeded`, 404 if the repository was deleted
 */
export async function insertCache(
  { config }: { config: Config },
  client: pg.PoolClient,
  stored: StoredKey,
  { repositoryId, scope, path, key, ...more }: NewCache & { jobId: string; contentBytes: number },
): Promise<void> {
  const { rows } = await client.query<{ namespaceId: string; cacheBytes: string }>(
    `select namespace_id as "namespaceId", cache_bytes as "cacheBytes"
     from repositories where id = $1 for no key update`,
    [repositoryId],
  );
  const [repository] = rows;
  if (!repository) throw notFound('Repository');
  const { rowCount } = await client.query(
    `insert into job_caches (id, repository_id, scope, path, key, store_id, oid, size, content_bytes, job_id)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
     on conflict (repository_id, scope, path, key) do nothing`,
    [
      newId('cache'),
      repositoryId,
      scope,
      path,
      key,
      stored.storeId,
      stored.oid,
      stored.size,
      more.contentBytes,
      more.jobId,
    ],
  );
  if (rowCount === 0) throw new CacheExists();
  if (Number(repository.cacheBytes) + stored.size > config.caches.maxBytes) throw new CachesFull();
  const { rows: owners } = await client.query(
    `select plan, storage_bytes + ${RESERVED_BYTES} as "storageBytes"
     from namespaces n where id = $1 for no key update`,
    [repository.namespaceId],
  );
  for (const owner of owners)
    requireStorage({ config }, { ...owner, storageBytes: BigInt(owner.storageBytes) }, stored.size);
  await addCacheBytes(client, repositoryId, stored.size);
}

/** A trigger adds the same number of bytes to the namespace. */
async function addCacheBytes(client: pg.PoolClient, repositoryId: string, bytes: number) {
  await client.query('update repositories set cache_bytes = cache_bytes + $2 where id = $1', [
    repositoryId,
    bytes,
  ]);
}

/** @param change the entry for the audit log @returns how many were removed */
async function removeCaches(
  { pool }: Deps,
  repositoryId: string,
  ids: readonly string[],
  change?: ChangeBy,
): Promise<number> {
  if (ids.length === 0) return 0;
  return inPoolTransaction(pool, async (client) => {
    const { bytes, count } = await deleteHolders(client, 'job_caches', repositoryId, ids);
    if (count > 0) await addCacheBytes(client, repositoryId, -bytes);
    if (count > 0 && change) {
      const statement = createStatementParts();
      addAuditToStatement(statement, [change]);
      await runStatement(client, `with ${statement.parts} select`, statement.values);
    }
    return count;
  });
}

/** A cache whose bytes are damaged or lost is removed, so that a job saves it again. */
export async function removeCache(deps: Deps, repositoryId: string, id: string): Promise<void> {
  await removeCaches(deps, repositoryId, [id]);
}

const BATCH = 100;
/** Of a repository. A lookup may read all of them, once for each restore key. */
export const MAX_CACHES = 10_000;

/**
 * Removes the least recently used caches of a repository until a new one of `bytes` fits.
 * @returns whether it fits
 */
export async function makeRoom(
  { pool, config }: Deps & { config: Config },
  repositoryId: string,
  bytes: number,
): Promise<boolean> {
  if (bytes > config.caches.maxBytes) return false;
  for (;;) {
    const { rows } = await pool.query<{ id: string }>(
      `select id from (
         select id, sum(size) over oldest - size as before, row_number() over oldest as place,
           (select cache_bytes from repositories where id = $1) + $2 - $3 as excess,
           count(*) over () + 1 - ${MAX_CACHES} as surplus
         from job_caches where repository_id = $1 window oldest as (order by used_at, id)
       ) c where (excess > 0 and before < excess) or place <= surplus order by place limit ${BATCH}`,
      [repositoryId, bytes, config.caches.maxBytes],
    );
    if (rows.length === 0) return true;
    await removeCaches(
      { pool },
      repositoryId,
      rows.map(({ id }) => id),
    );
  }
}

/** Maintenance: removes caches that were not used for `LOAM_CACHE_DAYS`. @returns whether there may be more */
export async function removeUnusedCaches({
  pool,
  config,
}: Deps & { config: Config }): Promise<boolean> {
  const { rows } = await pool.query<{ id: string; repositoryId: string }>(
    `select id, repository_id as "repositoryId" from job_caches
     where used_at < now() - make_interval(days => $1) order by used_at limit ${BATCH}`,
    [config.caches.days],
  );
  for (const [repositoryId, caches] of Map.groupBy(rows, (row) => row.repositoryId))
    await removeCaches(
      { pool },
      repositoryId,
      caches.map(({ id }) => id),
    );
  return rows.length === BATCH;
}

const cacheColumns = {
  id: true,
  scope: true,
  path: true,
  key: true,
  size: true,
  contentBytes: true,
  jobId: true,
  hits: true,
  createdAt: true,
  usedAt: true,
} as const satisfies Prisma.JobCacheSelect;

export type Cache = Prisma.JobCacheGetPayload<{ select: typeof cacheColumns }>;

/** The orders of the list of caches. */
export const CACHE_SORTS = {
  newest: NEWEST_FIRST,
  used: { name: 'used', column: 'usedAt', type: 'time', order: 'desc' },
} as const satisfies Record<string, Sorting>;

/** A repository that was read as part of another query. */
type RepositoryRow = { id: string; namespaceId: string };

/** Lists the caches of a repository. @throws AppError 400, 401, 403 */
export async function sliceCaches(
  { db }: { db: Db },
  viewer: Viewer,
  { id: repositoryId, namespaceId }: RepositoryRow,
  {
    prefix,
    sort,
    ...range
  }: CursorPageRequest & { prefix?: string | null; sort?: keyof typeof CACHE_SORTS | null },
): Promise<CursorPage<Cache>> {
  demand(viewer, 'job.read', { namespaceId, repositoryId });
  const where = { repositoryId, ...(prefix && { key: { startsWith: prefix } }) };
  return readCursorPage(db.jobCache, CACHE_SORTS[sort ?? 'used'], range, {
    where,
    select: cacheColumns,
  });
}

export type CacheUsage = { bytes: number; maxBytes: number; hits: number; misses: number };

/** @throws AppError 401, 403 */
export async function readCacheUsage(
  { pool, config }: Deps & { config: Config },
  viewer: Viewer,
  { id: repositoryId, namespaceId }: RepositoryRow,
): Promise<CacheUsage> {
  demand(viewer, 'job.read', { namespaceId, repositoryId });
  const { rows } = await pool.query<Omit<CacheUsage, 'maxBytes'>>(
    `select r.cache_bytes::float8 as bytes, coalesce(l.hits, 0)::float8 as hits,
       coalesce(l.misses, 0)::float8 as misses
     from repositories r left join cache_lookups l on l.repository_id = r.id where r.id = $1`,
    [repositoryId],
  );
  const { bytes = 0, hits = 0, misses = 0 } = rows[0] ?? {};
  return { bytes, maxBytes: config.caches.maxBytes, hits, misses };
}

const MAX_DELETED = 1_000;

/**
 * Deletes caches of a repository: one by its id, or all that have a key, up to 1,000.
 * @returns their number
 * @throws AppError 400, 401, 403, 404 if there is none
 */
export async function deleteCaches(
  { db, pool }: { db: Db; pool: pg.Pool },
  viewer: Viewer,
  {
    repositoryId: id,
    cacheId,
    key,
  }: { repositoryId: string; cacheId?: string | null; key?: string | null },
): Promise<number> {
  const by = demandAccount(viewer);
  if ((cacheId == null) === (key == null)) throw invalid('id', 'or key is required, and not both');
  const row = await demandRepository(db, viewer, { id }, 'repository.push', { name: true });
  const caches = await db.jobCache.findMany({
    where: {
      repositoryId: id,
      ...(cacheId != null && { id: cacheId }),
      ...(key != null && { key }),
    },
    select: { id: true, key: true, scope: true },
    take: MAX_DELETED,
  });
  const ids = caches.map((cache) => cache.id);
  const count = await removeCaches({ pool }, id, ids, {
    by,
    action: 'cache.delete',
    namespaceIds: [row.namespaceId],
    subject: id,
    name: row.name,
    details: { key: caches[0]?.key ?? null, refs: caches.map(({ scope }) => scope) },
  });
  if (count === 0) throw notFound('Cache', key ?? cacheId);
  return count;
}
