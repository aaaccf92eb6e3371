/** Invariants of the store of large files. */
import { expect } from 'vitest';
import type { Services } from '../../src/app.ts';
import {
  type GracePeriods,
  type SweepDeps,
  sweepLargeFiles,
} from '../../src/repositories/lfs/store/sweep.ts';

/**
 * No grace period. The database rounds times to milliseconds, so what has just been retired may lie half of one in the future,
 * and a sweep with a grace period of 0 would leave it.
 */
const NO_GRACE: GracePeriods = { uploads: -1, retired: -1 };

/** Sweeps until nothing is left to do. By default without a grace period: only while nobody uploads. */
export async function sweepAll(
  services: SweepDeps & Pick<Services, 'config'>,
  graces = NO_GRACE,
): Promise<void> {
  while (await sweepLargeFiles(services, graces)) {
    // The condition does the work.
  }
}

/** What holds objects. */
const HOLDERS =
  'select store_id, oid from large_files union all select store_id, oid from job_caches';

const HASH_BYTES = 32;
const ENTRY_BYTES = HASH_BYTES + 4;

/** Compares stored counts with the counted rows, and packs with the storage. @returns what the store contains */
export async function checkStore({ pool, storage }: Pick<Services, 'pool' | 'storage'>) {
  const rows = async <Row>(sql: string) => (await pool.query(sql)).rows as Row[];

  const holders = await rows(`
    select o.oid, o.holders, count(f.oid)::int as files from large_objects o
    left join (${HOLDERS}) f using (store_id, oid) group by o.store_id, o.oid, o.holders
    having o.holders <> count(f.oid)`);
  expect(holders, 'holders of objects').toEqual([]);
  const missing = await rows(`
    select f.oid from (${HOLDERS}) f left join large_objects o using (store_id, oid) where o.oid is null`);
  expect(missing, 'files without an object').toEqual([]);

  const recipes = await rows<{ store: number; oid: string; chunks: Buffer }>(
    'select store_id as store, oid, chunks from large_recipes order by store_id, oid, start',
  );
  const uses = new Map<string, Set<string>>();
  for (const { store, oid, chunks } of recipes)
    for (let at = 0; at < chunks.length; at += ENTRY_BYTES) {
      const chunk = `${store} ${chunks.toString('hex', at, at + HASH_BYTES)}`;
      uses.set(chunk, (uses.get(chunk) ?? new Set()).add(oid));
    }
  const chunks = await rows<{ chunk: string; uses: number; unused: boolean; kept: boolean }>(`
    select c.store_id || ' ' || encode(c.hash, 'hex') as chunk, uses, unused_since is not null as unused,
      p.state is not distinct from 'kept' as kept
    from large_chunks c left join large_packs p on p.id = c.pack_id`);
  for (const { chunk, uses: counted, unused, kept } of chunks) {
    expect(counted, `uses of ${chunk}`).toBe(uses.get(chunk)?.size ?? 0);
    expect(unused, `unused ${chunk}`).toBe(counted === 0);
    expect(kept, `pack of ${chunk}`).toBe(true);
    uses.delete(chunk);
  }
  expect([...uses.keys()], 'chunks of recipes that have no row').toEqual([]);

  const live = await rows(`
    select p.id, p.live_bytes, coalesce(sum(c.length), 0)::int as sum from large_packs p
    left join large_chunks c on c.pack_id = p.id group by p.id having p.live_bytes <> coalesce(sum(c.length), 0)`);
  expect(live, 'live bytes of packs').toEqual([]);
  const packs = await rows<{ key: string; bytes: number; state: string }>(
    'select key, bytes, state from large_packs',
  );
  const stored = new Map<string, number>();
  for await (const { key, size } of storage.list('lfs/')) stored.set(key, size);
  for (const { key, bytes, state } of packs) {
    if (state === 'kept') expect(stored.get(key), `pack ${key}`).toBe(bytes);
    stored.delete(key);
  }
  expect([...stored.keys()], 'objects of storage that no row names').toEqual([]);
  const counted = await rows(`
    select r.id, r.large_bytes::int as counted, coalesce(sum(f.size), 0)::int as sum from repositories r
    left join large_files f on f.repository_id = r.id group by r.id
    having r.large_bytes <> coalesce(sum(f.size), 0)`);
  expect(counted, 'bytes of repositories').toEqual([]);
  const cached = await rows(`
    select r.id, r.cache_bytes::int as counted, coalesce(sum(c.size), 0)::int as sum from repositories r
    left join job_caches c on c.repository_id = r.id group by r.id
    having r.cache_bytes <> coalesce(sum(c.size), 0)`);
  expect(cached, 'bytes of caches').toEqual([]);
  const objects = await rows('select from large_objects');
  return {
    objects: objects.length,
    chunks: chunks.length,
    packs: packs.length,
    bytes: packs.reduce((sum, { bytes }) => sum + bytes, 0),
  };
}
