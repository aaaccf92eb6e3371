/**
 * Taking an object: its bytes are cut and hashed as they come, chunks that the store does not have go into packs, and
 * when the whole is what it claims to be, one transaction gives it to the repository. Before that nobody can read it;
 * a few MiB are in memory, whatever its size.
 */
import type pg from 'pg';
import type { Config } from '../../../base/config/config.ts';
import { AppError, unprocessable } from '../../../base/errors.ts';
import type { Logger } from '../../../base/log.ts';
import type { DiskSpace } from '../../../platform/storage/disk-space.ts';
import type { Storage } from '../../../platform/storage/storage.ts';
import { noteRepair, beginUpload, endUpload, type Given, give, keepObject } from './references.ts';
import { type Chunk, type Hashing, TooLong, TooShort } from './hashing.ts';
import { textOf } from './chunking.ts';
import { addChunks, knownChunks, openPackWriter, type PackWriter, moveChunks, type Recorded } from './packs.ts';
import { Recipe, entriesOf } from './recipes.ts';
import { Damaged, placesOf, type RunLocation, readRun, runsOf } from './read.ts';

export type UploadDeps = {
  pool: pg.Pool;
  storage: Storage;
  config: Config;
  space: DiskSpace;
  log: Logger;
} & {
  hashing: Hashing;
};

/** What is kept of an upload when it breaks off. */
export type Progress = {
  /** Bytes of its beginning that are; Infinity: another upload of the object keeps more. */
  kept(): number;
  /** Keeps what the recipe has, all of whose chunks are known. */
  save(storeId: number, recipe: Recipe): Promise<void>;
  /** Keeps nothing any more. */
  drop(): Promise<void>;
};

/** After so much more an upload is kept, should the server be killed: as much is lost then. */
const SAVED_BYTES = 32 * 2 ** 20;
/** Less than this is not worth a row. */
const MIN_SAVED_BYTES = 2 ** 20;

/** Its recipe takes 200 MB of memory while it is taken, and one of 5 GB 15 MB: who uploads cannot choose the cuts. */
const MAX_BYTES = 64 * 2 ** 30;
/** The name of an object: its SHA-256. */
const OID = /^[0-9a-f]{64}$/;

/**
 * @param progress of an upload that can be resumed; then the body begins with what is kept of it
 * @throws AppError 403 `quota_exceeded`, 404, 422 for what is not these bytes, 500 on a full disk, 503
 */
export async function upload(
  deps: UploadDeps,
  repositoryId: string,
  object: Given,
  body: AsyncIterable<Uint8Array>,
  signal: AbortSignal,
  progress?: Progress,
): Promise<void> {
  const { oid, size } = object;
  if (!OID.test(oid)) throw unprocessable('oid', 'must be a SHA-256: 64 of 0-9 and a-f');
  if (!Number.isInteger(size) || size < 0 || size > MAX_BYTES)
    throw unprocessable('size', `must be a number of bytes from 0 to ${MAX_BYTES}`);
  deps.space.demand();
  const storeId = await beginUpload(deps, repositoryId, object);
  const to = { repositoryId, storeId, object };
  try {
    await receive(deps, to, body, signal, progress);
  } catch (error) {
    await endUpload(deps, repositoryId, oid).catch((err) => {
      deps.log.warn({ err }, 'the room of an upload is not given back yet');
    });
    throw error;
  }
}

type Target = { repositoryId: string; storeId: number; object: Given };

async function receive(
  deps: UploadDeps,
  { repositoryId, storeId, object }: Target,
  body: AsyncIterable<Uint8Array>,
  signal: AbortSignal,
  progress?: Progress,
): Promise<void> {
  const { oid, size } = object;
  const found = await keepObject(deps, storeId, oid);
  // How much is kept of an upload must not tell whether the store has the object already.
  const isKnown = !progress && found === 'all';
  const lost = found === 'damaged' ? await damagedChunks(deps, { storeId, oid }, signal) : null;
  // What can be resumed is stored to its end although its client has left.
  const until = progress ? NEVER : signal;
  const packs = isKnown ? null : openPackWriter(deps, storeId, until, lost ? addAnew : addChunks);
  const recipe = isKnown ? null : new Recipe();
  /** Bytes whose chunks all are known, or in packs. */
  let taken = 0;
  const save = async () => {
    if (!progress || !packs || !recipe) return;
    // An offset at the end would say that the repository has the object.
    if (recipe.size !== taken || taken >= size) return;
    await packs.finish();
    await progress.save(storeId, recipe);
  };
  const unsaved = () => taken - (progress?.kept() ?? taken);
  try {
    // Whoever sends the bytes of an object that the store has proves that they have it, and nothing is cut.
    const hashed = deps.hashing.hash(body, { size, cutting: !isKnown, signal });
    for await (const { chunks, oid: found, free } of hashed) {
      if (found !== undefined && found !== oid)
        throw unprocessable('oid', `is not the SHA-256 of the bytes, which is ${found}`);
      if (packs && recipe) await takeIn(deps, storeId, chunks, { packs, recipe, lost });
      free();
      taken = recipe?.size ?? 0;
      if (unsaved() >= SAVED_BYTES) await save();
    }
    await packs?.finish();
    signal.throwIfAborted();
    if (lost) await noteRepair(deps, { storeId, oid });
    await give(deps, repositoryId, storeId, object, recipe);
  } catch (error) {
    const refusal = refusalOf(error, size);
    const isWrong =
      error instanceof Damaged ||
      (refusal instanceof AppError && refusal.status === 422 && !(error instanceof TooShort));
    await leave(isWrong).catch((err) => {
      deps.log.warn({ err }, 'what an upload left is not removed, or not kept, yet');
    });
    throw refusal;
  }

  /** Takes back what came, or keeps it for an upload that goes on. */
  async function leave(isWrong: boolean): Promise<void> {
    try {
      if (isWrong) await progress?.drop();
      else if (unsaved() >= MIN_SAVED_BYTES) await save();
    } finally {
      // Another upload of the object that keeps more does not count what has come of this one.
      const isKept = progress !== undefined && !isWrong && Number.isFinite(progress.kept());
      await packs?.abandon(isKept);
    }
  }
}

const NEVER = new AbortController().signal;

/** Notes the chunks in the recipe, and stores those that the store does not have, or has `lost`. */
async function takeIn(
  deps: UploadDeps,
  storeId: number,
  chunks: readonly Chunk[],
  { packs, recipe, lost }: { packs: PackWriter; recipe: Recipe; lost: ReadonlySet<string> | null },
): Promise<void> {
  for (const { hash, bytes } of chunks) recipe.add({ hash, length: bytes.length });
  const asked = chunks.filter(({ hash }) => !packs.has(textOf(hash)));
  if (asked.length === 0) return;
  const hashes = asked.map(({ hash }) => hash);
  const known = await knownChunks(deps, storeId, hashes);
  // The same chunk may stand in a batch twice.
  const fresh = new Map<string, Chunk>();
  for (const chunk of asked) {
    const text = textOf(chunk.hash);
    const isThere = known.has(text) && !lost?.has(text);
    if (!isThere && !fresh.has(text)) fresh.set(text, chunk);
  }
  await packs.add([...fresh.values()]);
}

function refusalOf(error: unknown, size: number): unknown {
  if (error instanceof TooLong)
    return unprocessable('size', `is ${size}, and there are more bytes`);
  if (error instanceof TooShort)
    return unprocessable('size', `is ${size}, and there are ${error.bytes} bytes`);
  return error;
}

/* Storing anew what storage has lost or changed of an object, which is found by reading all of it. */

/** The chunks of an object that are not in storage as they were put, as text. All of it is read. */
async function damagedChunks(
  deps: UploadDeps,
  { storeId, oid }: { storeId: number; oid: string },
  signal: AbortSignal,
): Promise<ReadonlySet<string>> {
  const damaged = new Set<string>();
  for (let after = -1; ; ) {
    signal.throwIfAborted();
    const { rows } = await deps.pool.query<{ start: string; chunks: Buffer }>(
      `select start, chunks from large_recipes where store_id = $1 and oid = $2 and start > $3
       order by start limit 1`,
      [storeId, oid, after],
    );
    const [page] = rows;
    if (!page) return damaged;
    for (const run of runsOf(await placesOf(deps, storeId, entriesOf(page.chunks))))
      for await (const { hash } of damagedIn(deps, run)) damaged.add(textOf(hash));
    after = Number(page.start);
  }
}

async function* damagedIn(deps: UploadDeps, run: readonly RunLocation[]): AsyncGenerator<RunLocation> {
  for (let at = 0; at < run.length; ) {
    const begun = at;
    try {
      for await (const { chunks, free } of readRun(deps, run.slice(at), deps.hashing.checking)) {
        at += chunks.length;
        free();
      }
      // Its pack is gone.
      if (at === begun) return yield* run.slice(at);
    } catch (error) {
      const { place } = error instanceof Damaged ? error : {};
      if (!place) throw error;
      yield place;
      // Those before it in the same batch were found right.
      at = run.indexOf(place) + 1;
    }
  }
}

/** As `addChunks`; what was known lies in the new pack from then on. */
const addAnew: Recorded = async (client, storeId, pack) => {
  await moveChunks(client, storeId, pack, null);
  return addChunks(client, storeId, pack);
};
