/**
 * Uploads that go on where they broke off. What has come of them lies in packs, as chunks that no object uses, which
 * the sweep leaves alone for the grace period; here stands which they are, and in what order. An upload that goes on
 * reads them again: the SHA-256 of the whole is taken of all bytes in one go, because the state of a hash cannot be kept.
 */

import { AppError, unprocessable } from '../../../base/errors.ts';
import { inPoolTransaction } from '../../../platform/database/client.ts';
import { damagedOf } from './references.ts';
import { textOf } from './chunking.ts';
import { knownChunks } from './packs.ts';
import { chunksOf } from './read.ts';
import { entriesOf, type Recipe, type RecipeEntry } from './recipes.ts';
import { type Given, sizesOf } from './references.ts';
import { type UploadDeps, upload } from './upload.ts';

/** Pages that are looked at together: up to 32 MB of contents each. */
const FEW = 20;

type Key = { repositoryId: string; oid: string };
type Begun = Key & { storeId: number; size: number; bytes: number };

/**
 * Bytes of an object that need not be sent again: those from its beginning that are kept, or all where the repository
 * has it, undamaged. They stay for the grace period from now on.
 * @throws AppError 422 when the repository has an object of that name and another size
 */
export async function offsetOf(
  deps: UploadDeps,
  repositoryId: string,
  { oid, size }: Given,
): Promise<number> {
  const known = (await sizesOf(deps, repositoryId, [oid])).get(oid);
  const isWhole = known !== undefined && !(await damagedOf(deps, repositoryId, [oid])).has(oid);
  if (!isWhole) return (await begunOf(deps, { repositoryId, oid }, size))?.bytes ?? 0;
  if (known !== size) throw unprocessable('size', `the object ${oid} has ${known} bytes`);
  return size;
}

/**
 * As `upload`, of an object whose first `from` bytes came before. When it breaks off, what has come is kept.
 * @throws AppError as `upload`; 409 when other than `from` bytes are kept
 */
export async function resume(
  deps: UploadDeps,
  repositoryId: string,
  { from, ...object }: Given & { from: number },
  body: AsyncIterable<Uint8Array>,
  signal: AbortSignal,
): Promise<void> {
  const { oid, size } = object;
  const key = { repositoryId, oid };
  const begun = await begunOf(deps, key, size);
  const kept = begun?.bytes ?? 0;
  if (from !== kept)
    throw new AppError('conflict', `Upload-Offset: ${kept} bytes of the object are here`);
  let bytes = kept;
  const whole = async function* () {
    if (begun) yield* contentsOf(deps, begun);
    yield* body;
  };
  await upload(deps, repositoryId, object, whole(), signal, {
    kept: () => bytes,
    async save(storeId, recipe) {
      const isAdded = await addTo(deps, { ...key, storeId, size, bytes }, recipe);
      bytes = isAdded ? recipe.size : Number.POSITIVE_INFINITY;
    },
    drop: () => drop(deps, key),
  });
}

/** What is kept of an upload; null where it is nothing, or not all of it is there any more. */
async function begunOf(deps: UploadDeps, key: Key, size: number): Promise<Begun | null> {
  const { rows } = await deps.pool.query<{ storeId: number; size: string; bytes: string }>({
    name: 'loam-touch-upload',
    text: `
      update large_uploads set touched_at = now() where repository_id = $1 and oid = $2
      returning store_id as "storeId", size, bytes`,
    values: [key.repositoryId, key.oid],
  });
  const [row] = rows;
  if (!row) return null;
  const begun = { ...key, storeId: row.storeId, size, bytes: Number(row.bytes) };
  if (Number(row.size) === size && (await hasAll(deps, begun))) return begun;
  await drop(deps, key);
  return null;
}

/** Whether the store has all chunks, which then stay for the grace period at least. */
async function hasAll(deps: UploadDeps, begun: Begun): Promise<boolean> {
  for await (const entries of pagesOf(deps, begun)) {
    const hashes = entries.map(({ hash }) => hash);
    const wanted = new Set(hashes.map(textOf));
    if ((await knownChunks(deps, begun.storeId, hashes)).size < wanted.size) return false;
  }
  return true;
}

async function* contentsOf(deps: UploadDeps, begun: Begun): AsyncGenerator<Uint8Array> {
  for await (const entries of pagesOf(deps, begun))
    for await (const { bytes, free } of chunksOf(deps, begun.storeId, entries)) {
      yield bytes;
      free();
    }
}

async function* pagesOf(
  { pool }: Pick<UploadDeps, 'pool'>,
  { repositoryId, oid }: Key,
): AsyncGenerator<RecipeEntry[]> {
  for (let at = -1; ; ) {
    const { rows } = await pool.query<{ start: string; chunks: Buffer }>(
      `select start, chunks from large_upload_pages
       where repository_id = $1 and oid = $2 and start > $3 order by start limit $4`,
      [repositoryId, oid, at, FEW],
    );
    for (const { chunks } of rows) yield entriesOf(chunks);
    if (rows.length < FEW) return;
    at = Number(rows.at(-1)?.start);
  }
}

/** @returns false when another upload of the object has come further or has ended meanwhile, or the repository is gone */
async function addTo({ pool }: UploadDeps, before: Begun, recipe: Recipe): Promise<boolean> {
  const { repositoryId, oid, storeId, size, bytes } = before;
  return inPoolTransaction(pool, async (client) => {
    const { rowCount } = await client.query(
      // Only `beginUpload` makes the row, which takes room for the whole upload.
      `update large_uploads set bytes = $5, touched_at = now()
       where repository_id = $1 and oid = $2 and size = $3 and store_id = $4 and bytes = $6`,
      [repositoryId, oid, size, storeId, recipe.size, bytes],
    );
    if (rowCount === 0) return false;
    for (const { start, chunks } of recipe.pagesFrom(bytes))
      await client.query(
        `insert into large_upload_pages (repository_id, oid, start, chunks) values ($1, $2, $3, $4)`,
        [repositoryId, oid, start, chunks],
      );
    return true;
  });
}

async function drop({ pool }: UploadDeps, { repositoryId, oid }: Key): Promise<void> {
  await pool.query('delete from large_uploads where repository_id = $1 and oid = $2', [
    repositoryId,
    oid,
  ]);
}
