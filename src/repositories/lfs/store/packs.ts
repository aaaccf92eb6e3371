/**
 * Packs: objects in storage that contain consecutive chunks. The row of a pack is inserted before the upload, so that
 * packs of a killed server are found without listing the storage. The rows of its chunks are inserted after the upload.
 */
import { randomBytes } from 'node:crypto';
import type pg from 'pg';
import { inPoolTransaction } from '../../../platform/database/client.ts';
import type { Storage } from '../../../platform/storage/storage.ts';
import { hashKey } from './chunking.ts';
import { type Chunk, joinAdjacent } from './hashing.ts';

type Deps = { pool: pg.Pool; storage: Storage };

/** Large enough for about a thousand chunks per storage object, small enough to be rewritten in half a second. */
const PACK_BYTES = 64 * 2 ** 20;
/** Smaller packs are merged with other packs of their size tier. */
const SMALL_BYTES = 16 * 2 ** 20;

type Entry = { hash: Buffer; start: number; length: number };
/** `since`: the exact time, as text, of the transaction that inserted the chunks of the pack. */
type CommittedPack = { id: number; since: string };
type OpenPack = {
  id: number;
  key: string;
  contents: LendingQueue;
  stored: Promise<unknown>;
  entries: Entry[];
  bytes: number;
  /** `hashKey` of all entries. */
  hashes: Set<string>;
};

/** Returns which of the chunks the store has. Renews the grace period of the unused ones. */
export async function findKnownChunks(
  { pool }: Pick<Deps, 'pool'>,
  storeId: number,
  hashes: readonly Buffer[],
): Promise<Set<string>> {
  // The sweep can remove an unused row until this statement touches it. The update does not return removed rows.
  const { rows } = await pool.query<{ hash: Buffer }>({
    name: 'loam-known-chunks',
    text: `
      with unused as (
        select hash from large_chunks
        where store_id = $1 and hash = any($2) and unused_since is not null order by hash for update
      ), touched as (
        update large_chunks c set unused_since = now() from unused
        where c.store_id = $1 and c.hash = unused.hash returning c.hash
      )
      select hash from large_chunks
      where store_id = $1 and hash = any($2) and unused_since is null
      union all select hash from touched`,
    values: [storeId, hashes],
  });
  return new Set(rows.map(({ hash }) => hashKey(hash)));
}

/**
 * Writes the chunk rows of a stored pack, in the transaction that commits the pack.
 * @returns the total bytes of the chunks that point to this pack afterwards
 */
export type WriteChunks = (
  client: pg.PoolClient,
  storeId: number,
  pack: StoredPack,
) => Promise<number>;

/** Writes chunks into packs. While one pack is filled, the previous one may still be uploading. */
export class PackWriter {
  readonly #deps: Deps;
  readonly #storeId: number;
  readonly #writeChunks: WriteChunks;
  readonly #stopping = new AbortController();
  readonly #signal: AbortSignal;
  readonly #committed: CommittedPack[] = [];
  readonly #unfinished = new Set<OpenPack>();
  #open: OpenPack | undefined;
  #closing: Promise<void> = Promise.resolve();

  constructor(
    deps: Deps,
    storeId: number,
    signal: AbortSignal,
    writeChunks: WriteChunks = addChunks,
  ) {
    this.#deps = deps;
    this.#storeId = storeId;
    this.#writeChunks = writeChunks;
    this.#signal = AbortSignal.any([signal, this.#stopping.signal]);
  }

  /** Whether the chunk was added but is not in the database yet. */
  has(hash: string): boolean {
    return [...this.#unfinished].some(({ hashes }) => hashes.has(hash));
  }

  /** Adds chunks that `has` does not report. Their bytes may be reused afterwards. @throws errors of the storage */
  async add(chunks: readonly Chunk[]): Promise<void> {
    let run: Buffer | undefined;
    for (const { hash, bytes } of chunks) {
      if (this.#open && this.#open.bytes + bytes.length > PACK_BYTES) {
        await this.#write(this.#open, run);
        run = undefined;
        await this.#closing;
        this.#closing = this.#close(this.#open);
        this.#closing.catch(() => {});
        this.#open = undefined;
      }
      this.#open ??= await this.#begin();
      const open = this.#open;
      open.entries.push({ hash, start: open.bytes, length: bytes.length });
      open.hashes.add(hashKey(hash));
      open.bytes += bytes.length;
      const joined = run && joinAdjacent(run, bytes);
      if (!joined) await this.#write(open, run);
      run = joined ?? bytes;
    }
    if (this.#open) await this.#write(this.#open, run);
  }

  /** Resolves when all added chunks are in storage and in the database. */
  async finish(): Promise<void> {
    await this.#closing;
    if (this.#open) await this.#close(this.#open);
    this.#open = undefined;
  }

  /**
   * Removes the added chunks that no other upload relies on. The sweep removes the rows of packs, and everything if
   * this fails.
   * @param keepComplete whether to keep the packs that are complete
   */
  async abandon(keepComplete = false): Promise<void> {
    this.#stopping.abort(new Error('The upload has ended'));
    await this.#closing.catch(() => {});
    for (const { id, key, stored } of this.#unfinished) {
      await stored.catch(() => {});
      // A transaction whose result was lost may have committed. Such a pack is kept.
      if (!(await retireUnfinishedPack(this.#deps, id))) continue;
      // The row stays, because S3 may still complete requests sent before the abort. The sweep finds the key in the row
      // and removes the object again after the grace period.
      await this.#deps.storage.remove(key);
    }
    if (!keepComplete)
      for (const pack of this.#committed) await removeUntouchedChunks(this.#deps, pack);
  }

  async #begin(): Promise<OpenPack> {
    const key = `lfs/${randomBytes(1).toString('hex')}/${randomBytes(16).toString('hex')}`;
    const { rows } = await this.#deps.pool.query<{ id: number }>(
      'insert into large_packs (store_id, key) values ($1, $2) returning id',
      [this.#storeId, key],
    );
    const contents = new LendingQueue();
    const signal = this.#signal;
    const stored = this.#deps.storage.put(key, contents, { atMost: PACK_BYTES, signal });
    // `#write` and `#close` await it; until then a rejection counts as handled.
    stored.catch(() => {});
    const id = rows[0]?.id as number;
    const pack = { id, key, contents, stored, entries: [], bytes: 0, hashes: new Set<string>() };
    this.#unfinished.add(pack);
    return pack;
  }

  async #write({ contents, stored }: OpenPack, bytes?: Buffer): Promise<void> {
    if (bytes) await Promise.race([contents.lend(bytes), stored]);
  }

  async #close(pack: OpenPack): Promise<void> {
    pack.contents.end();
    await pack.stored;
    const since = await commitPack(this.#deps, this.#storeId, pack, this.#writeChunks);
    // Chunks that a rewrite moved stay valid in the new pack, so `abandon` must not remove them.
    if (this.#writeChunks === addChunks) this.#committed.push({ id: pack.id, since });
    this.#unfinished.delete(pack);
  }
}

/** Prevents a later commit of the pack. @returns false if it is committed already */
async function retireUnfinishedPack({ pool }: Pick<Deps, 'pool'>, id: number): Promise<boolean> {
  const { rowCount } = await pool.query(
    `update large_packs set state = 'retired', since = now() where id = $1 and state = 'putting'`,
    [id],
  );
  return rowCount === 1;
}

/** Returns the size tier of a pack, in powers of 4; null for packs that need no merge. */
function sizeTierOf(bytes: number): number | null {
  return bytes >= SMALL_BYTES ? null : Math.floor(Math.log2(Math.max(1, bytes)) / 2);
}

type StoredPack = Pick<OpenPack, 'id' | 'bytes' | 'entries'>;

/** @returns the exact time of the transaction, as text */
async function commitPack(
  { pool }: Pick<Deps, 'pool'>,
  storeId: number,
  pack: StoredPack,
  writeChunks: WriteChunks,
): Promise<string> {
  const { id, bytes } = pack;
  return inPoolTransaction(pool, async (client) => {
    const { rowCount } = await client.query(
      `update large_packs set state = 'kept', since = now(), bytes = $2, tier = $3, changed = true
       where id = $1 and state = 'putting'`,
      [id, bytes, sizeTierOf(bytes)],
    );
    if (rowCount === 0) throw new Error('storing a pack took longer than the grace period');
    const live = await writeChunks(client, storeId, pack);
    const { rows } = await client.query<{ since: string }>(
      'update large_packs set live_bytes = $2 where id = $1 returning now()::text as since',
      [id, live],
    );
    return rows[0]?.since ?? '';
  });
}

/** Chunks that another pack has by now keep pointing there and are dead bytes in this pack. */
export async function addChunks(
  client: pg.PoolClient,
  storeId: number,
  { id, entries }: StoredPack,
): Promise<number> {
  // In hash order, so that two transactions with the same chunks cannot deadlock.
  const { rows } = await client.query<{ live: string }>({
    name: 'loam-add-chunks',
    text: `
      with added as (
        insert into large_chunks (store_id, hash, pack_id, start, length)
        select $1, * from (
          select hash, $2::int, start, length
          from unnest($3::bytea[], $4::int[], $5::int[]) as fresh (hash, start, length) order by hash
        ) sorted
        on conflict (store_id, hash) do update set
          unused_since = case when large_chunks.unused_since is null then null else now() end
        returning pack_id, length
      )
      select coalesce(sum(length), 0) as live from added where pack_id = $2`,
    values: [
      storeId,
      id,
      entries.map(({ hash }) => hash),
      entries.map(({ start }) => start),
      entries.map(({ length }) => length),
    ],
  });
  return Number(rows[0]?.live ?? 0);
}

/** Removes chunks that no other upload has touched since the commit of the pack, in one statement. */
async function removeUntouchedChunks(
  { pool }: Pick<Deps, 'pool'>,
  { id, since }: CommittedPack,
): Promise<void> {
  await pool.query(
    `with unused as (
       select store_id, hash from large_chunks
       where pack_id = $1 and unused_since = $2::timestamptz order by hash for update
     ), removed as (
       delete from large_chunks c using unused
       where c.store_id = unused.store_id and c.hash = unused.hash returning c.length
     )
     update large_packs set changed = true,
       live_bytes = live_bytes - (select coalesce(sum(length), 0) from removed)
     where id = $1`,
    [id, since],
  );
}

/**
 * Points the rows of chunks to this pack, if they are in one of the packs `from` (null: in any). Copies of chunks that
 * have been removed since are dead bytes.
 * @returns the total bytes of the moved chunks
 */
export async function moveChunks(
  client: pg.PoolClient,
  storeId: number,
  { id, entries }: StoredPack,
  from: readonly number[] | null,
): Promise<number> {
  const { rows } = await client.query<{ live: string }>(
    `with fresh as (
       select * from unnest($3::bytea[], $4::int[]) as fresh (hash, start)
     ), locked as (
       select hash, pack_id as was from large_chunks
       where store_id = $1 and hash = any($3) and ($5::int[] is null or pack_id = any($5)) order by hash for update
     ), moved as (
       update large_chunks c set pack_id = $2, start = fresh.start from fresh join locked using (hash)
       where c.store_id = $1 and c.hash = fresh.hash returning c.length, locked.was
     ), sums as (
       select was, sum(length) as bytes from moved group by was
     ), counted as (
       update large_packs p set live_bytes = live_bytes - sums.bytes, changed = true
       from sums where p.id = sums.was
     )
     select coalesce(sum(length), 0) as live from moved`,
    [storeId, id, entries.map(({ hash }) => hash), entries.map(({ start }) => start), from],
  );
  return Number(rows[0]?.live ?? 0);
}

/** A queue with one reader. The memory of a piece returns to the writer when the reader requests the next piece. */
type LentPiece = { piece: Buffer; done: PromiseWithResolvers<void>; next: NextPiece };
type NextPiece = PromiseWithResolvers<LentPiece | null>;

class LendingQueue implements AsyncIterable<Buffer> {
  readonly #first: NextPiece = Promise.withResolvers();
  #last = this.#first;

  /** Resolves when the reader has finished with the piece; never if the reader has stopped. */
  lend(piece: Buffer): Promise<void> {
    const done = Promise.withResolvers<void>();
    const next: NextPiece = Promise.withResolvers();
    this.#last.resolve({ piece, done, next });
    this.#last = next;
    return done.promise;
  }

  end(): void {
    this.#last.resolve(null);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Buffer> {
    for (let at = this.#first; ; ) {
      const given = await at.promise;
      if (!given) return;
      yield given.piece;
      given.done.resolve();
      at = given.next;
    }
  }
}
