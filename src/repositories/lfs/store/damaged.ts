/**
 * Objects of which storage has lost or changed something. Whoever finds that out while reading notes it, and the next
 * upload of the object stores anew what is not right (`repair.ts`). Nobody looks for damage that no reader has met: to read
 * all chunks of a known object at each upload of it would take as long as storing it.
 */
import type pg from 'pg';

type Deps = { pool: pg.Pool };
type Key = { storeId: number; oid: string };

export async function noteDamage({ pool }: Deps, { storeId, oid }: Key): Promise<void> {
  await pool.query('update large_objects set damaged = true where store_id = $1 and oid = $2', [
    storeId,
    oid,
  ]);
}

/** All of it is in storage again. */
export async function noteRepair({ pool }: Deps, { storeId, oid }: Key): Promise<void> {
  await pool.query('update large_objects set damaged = false where store_id = $1 and oid = $2', [
    storeId,
    oid,
  ]);
}

/** Those objects of a repository that are noted as damaged. */
export async function damagedOf(
  { pool }: Deps,
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
