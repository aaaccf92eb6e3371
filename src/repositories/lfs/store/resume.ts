/**
 * Resumable uploads. The received bytes are in packs, as chunks that no object uses, and the sweep keeps such chunks
 * for the grace period; `large_upload_pages` lists them in order. A resumed upload reads the stored bytes again for the
 * SHA-256 of the whole object, because the state of a hash cannot be stored.
 */

import { AppError, unprocessable } from '../../../base/errors.ts';
import { inPoolTransaction } from '../../../platform/database/client.ts';
import { hashKey } from './chunking.ts';
import { findKnownChunks } from './packs.ts';
import { readChunks } from './read.ts';
import { decodeEntries, type Recipe, type RecipeEntry } from './recipes.ts';
import { findDamagedObjects, type NewObject, readSizes } from './references.ts';
import { type UploadDeps, upload } from './upload.ts';

/** Recipe pages per query. A page covers about 32 MB of contents, the interval in which uploads are saved. */
const FEW = 20;

type Key = { repositoryId: string; oid: string };
type PartialUpload = Key & { storeId: number; size: number; bytes: number };

/**
 * Returns how many bytes need not be sent: the stored part, or all if the repository has the undamaged object. Renews
 * the grace period of the stored part.
 * @throws AppError 422 if the repository has the object with another size
 */
export async function readUploadOffset(
  deps: UploadDeps,
  repositoryId: string,
  { oid, size }: NewObject,
): Promise<number> {
  const known = (await readSizes(deps, repositoryId, [oid])).get(oid);
  const isIntact = async () => !(await findDamagedObjects(deps, repositoryId, [oid])).has(oid);
  if (known === undefined || !(await isIntact()))
    return (await touchPartialUpload(deps, { repositoryId, oid }, size))?.bytes ?? 0;
  if (known !== size) throw unprocessable('size', `the object ${oid} has ${known} bytes`);
  return size;
}

/**
 * Like `upload`, for an object whose first `from` bytes are stored. If interrupted, keeps the received bytes.
 * @throws AppError as `upload`; 409 if the number of stored bytes is not `from`
 */
export async function resumeUpload(
  deps: UploadDeps,
  repositoryId: string,
  { from, ...object }: NewObject & { from: number },
  body: AsyncIterable<Uint8Array>,
  signal: AbortSignal,
): Promise<void> {
  const { oid, size } = object;
  const key = { repositoryId, oid };
  const begun = await touchPartialUpload(deps, key, size);
  const kept = begun?.bytes ?? 0;
  if (from !== kept)
    throw new AppError('conflict', `Upload-Offset: must be ${kept}, the number of stored bytes`);
  let bytes = kept;
  const whole = async function* () {
    if (begun) yield* readStoredPart(deps, begun);
    yield* body;
  };
  await upload(deps, repositoryId, object, whole(), signal, {
    kept: () => bytes,
    async save(storeId, recipe) {
      const isAdded = await appendRecipe(deps, { ...key, storeId, size, bytes }, recipe);
      bytes = isAdded ? recipe.size : Number.POSITIVE_INFINITY;
    },
    drop: () => removePartialUpload(deps, key),
  });
}

/** Returns the stored part of an upload and renews its grace period; null if there is none or chunks of it are gone. */
async function touchPartialUpload(
  deps: UploadDeps,
  key: Key,
  size: number,
): Promise<PartialUpload | null> {
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
  if (Number(row.size) === size && (await hasAllChunks(deps, begun))) return begun;
  await removePartialUpload(deps, key);
  return null;
}

/** Whether the store has all chunks of the part. Renews their grace period. */
async function hasAllChunks(deps: UploadDeps, begun: PartialUpload): Promise<boolean> {
  for await (const entries of readPages(deps, begun)) {
    const hashes = entries.map(({ hash }) => hash);
    const wanted = new Set(hashes.map(hashKey));
    if ((await findKnownChunks(deps, begun.storeId, hashes)).size < wanted.size) return false;
  }
  return true;
}

async function* readStoredPart(deps: UploadDeps, begun: PartialUpload): AsyncGenerator<Uint8Array> {
  for await (const entries of readPages(deps, begun))
    for await (const { bytes, free } of readChunks(deps, begun.storeId, entries)) {
      yield bytes;
      free();
    }
}

async function* readPages(
  { pool }: Pick<UploadDeps, 'pool'>,
  { repositoryId, oid }: Key,
): AsyncGenerator<RecipeEntry[]> {
  for (let at = -1; ; ) {
    const { rows } = await pool.query<{ start: string; chunks: Buffer }>(
      `select start, chunks from large_upload_pages
       where repository_id = $1 and oid = $2 and start > $3 order by start limit $4`,
      [repositoryId, oid, at, FEW],
    );
    for (const { chunks } of rows) yield decodeEntries(chunks);
    if (rows.length < FEW) return;
    at = Number(rows.at(-1)?.start);
  }
}

/** @returns false if a concurrent upload of the object has stored more or has ended, or the repository is gone */
async function appendRecipe(
  { pool }: UploadDeps,
  before: PartialUpload,
  recipe: Recipe,
): Promise<boolean> {
  const { repositoryId, oid, storeId, size, bytes } = before;
  return inPoolTransaction(pool, async (client) => {
    const { rowCount } = await client.query(
      // An update, because only `beginUpload` inserts the row, which reserves storage for the whole upload.
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

async function removePartialUpload(
  { pool }: UploadDeps,
  { repositoryId, oid }: Key,
): Promise<void> {
  await pool.query('delete from large_uploads where repository_id = $1 and oid = $2', [
    repositoryId,
    oid,
  ]);
}
