/**
 * Packs: objects of storage in which chunks lie one after the other. A pack is noted before it is put, so that what a
 * killed server left is found without a list of the storage; its chunks get their rows when it is there as a whole.
 */
import { randomBytes } from 'node:crypto';
import type pg from 'pg';
import { inPoolTransaction } from '../../../platform/database/client.ts';
import type { Storage } from '../../../platform/storage/storage.ts';
import { textOf } from './chunking.ts';
import { type Chunk, joined } from './hashing.ts';

export type Deps = { pool: pg.Pool; storage: Storage };

/** Of storage: many chunks an object, and a pack that is mostly dead is written anew in half a second. */
const PACK_BYTES = 64 * 2 ** 20;
/** A smaller one is joined with others of its class. */
const SMALL_BYTES = 16 * 2 ** 20;

type Entry = { hash: Buffer; start: number; length: number };
/** `since`: when its chunks became known, exactly. */
type Kept = { id: number; since: string };
type Open = {
  id: number;
  key: string;
  contents: Handover;
  stored: Promise<unknown>;
  entries: Entry[];
  bytes: number;
  /** Of all entries, as text. */
  hashes: Set<string>;
};

/** Which of these chunks the store has. Those that no object uses are kept for the grace period from now on. */
export async function knownChunks(
  { pool }: Pick<Deps, 'pool'>,
  storeId: number,
  hashes: readonly Buffer[],
): Promise<Set<string>> {
  // A row without uses may be removed by the sweep until it is touched; what it has removed the update does not return.
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
  return new Set(rows.map(({ hash }) => textOf(hash)));
}

export type PackWriter = {
  /** Whether it has taken that chunk and the database does not know it yet. */
  has(hash: string): boolean;
  /** Takes chunks that it does not have, and is done with their bytes when it resolves. @throws what storage throws */
  add(chunks: readonly Chunk[]): Promise<void>;
  /** When it resolves, all that was added is in storage and known. */
  finish(): Promise<void>;
  /**
   * Takes back what nobody else counts on; rows of packs are left to the sweep. Without it the sweep would do all of it.
   * @param keeping leaves what is in storage and known
   */
  abandon(keeping?: boolean): Promise<void>;
};

/**
 * Makes the chunks of a pack that was put known, in the transaction that makes the pack known.
 * @returns bytes of those that lie in this pack from now on
 */
export type Recorded = (client: pg.PoolClient, storeId: number, pack: Put) => Promise<number>;

/** Writes chunks into as many packs as they need, of which the one before the last may still be on its way. */
export function openPackWriter(
  deps: Deps,
  storeId: number,
  signal: AbortSignal,
  record: Recorded = addChunks,
): PackWriter {
  const stopping = new AbortController();
  const either = AbortSignal.any([signal, stopping.signal]);
  const kept: Kept[] = [];
  const unfinished = new Set<Open>();
  let open: Open | undefined;
  let closing: Promise<void> = Promise.resolve();

  async function begin(): Promise<Open> {
    const key = `lfs/${randomBytes(1).toString('hex')}/${randomBytes(16).toString('hex')}`;
    const { rows } = await deps.pool.query<{ id: number }>(
      'insert into large_packs (store_id, key) values ($1, $2) returning id',
      [storeId, key],
    );
    const contents = new Handover();
    const stored = deps.storage.put(key, contents, { atMost: PACK_BYTES, signal: either });
    // Whoever waits for it next hears it.
    stored.catch(() => {});
    const id = rows[0]?.id as number;
    const fresh = { id, key, contents, stored, entries: [], bytes: 0, hashes: new Set<string>() };
    unfinished.add(fresh);
    return fresh;
  }

  async function write({ contents, stored }: Open, bytes?: Buffer): Promise<void> {
    if (bytes) await Promise.race([contents.give(bytes), stored]);
  }

  async function close(pack: Open): Promise<void> {
    pack.contents.end();
    await pack.stored;
    const since = await keepPack(deps, storeId, pack, record);
    // What a rewrite has moved is as good there as where it was.
    if (record === addChunks) kept.push({ id: pack.id, since });
    unfinished.delete(pack);
  }

  return {
    has: (hash) => [...unfinished].some(({ hashes }) => hashes.has(hash)),
    async add(chunks) {
      let run: Buffer | undefined;
      for (const { hash, bytes } of chunks) {
        if (open && open.bytes + bytes.length > PACK_BYTES) {
          await write(open, run);
          run = undefined;
          await closing;
          closing = close(open);
          closing.catch(() => {});
          open = undefined;
        }
        open ??= await begin();
        open.entries.push({ hash, start: open.bytes, length: bytes.length });
        open.hashes.add(textOf(hash));
        open.bytes += bytes.length;
        const longer = run && joined(run, bytes);
        if (!longer) await write(open, run);
        run = longer ?? bytes;
      }
      if (open) await write(open, run);
    },
    async finish() {
      await closing;
      if (open) await close(open);
      open = undefined;
    },
    async abandon(keeping = false) {
      stopping.abort(new Error('the upload has ended'));
      await closing.catch(() => {});
      for (const { id, key, stored } of unfinished) {
        await stored.catch(() => {});
        // Of a transaction that failed we cannot know whether it committed: then the pack is kept.
        if (!(await giveUp(deps, id))) continue;
        // Its row stays: S3 may still finish what was sent before the abort, and the sweep, which finds the key in
        // the row, removes it once more after the grace period.
        await deps.storage.remove(key);
      }
      if (!keeping) for (const pack of kept) await takeBack(deps, pack);
    },
  };
}

/** From then on its chunks cannot become known any more. @returns whether they have not yet */
async function giveUp({ pool }: Pick<Deps, 'pool'>, id: number): Promise<boolean> {
  const { rowCount } = await pool.query(
    `update large_packs set state = 'retired', since = now() where id = $1 and state = 'putting'`,
    [id],
  );
  return rowCount === 1;
}

/** The class of size of a pack, in steps of 4; null for one that is large enough. */
export function tierOf(bytes: number): number | null {
  return bytes >= SMALL_BYTES ? null : Math.floor(Math.log2(Math.max(1, bytes)) / 2);
}

export type Put = Pick<Open, 'id' | 'bytes' | 'entries'>;

/** @returns the time of its transaction, exactly */
async function keepPack(
  { pool }: Pick<Deps, 'pool'>,
  storeId: number,
  pack: Put,
  record: Recorded,
): Promise<string> {
  const { id, bytes } = pack;
  return inPoolTransaction(pool, async (client) => {
    const { rowCount } = await client.query(
      `update large_packs set state = 'kept', since = now(), bytes = $2, tier = $3, changed = true
       where id = $1 and state = 'putting'`,
      [id, bytes, tierOf(bytes)],
    );
    if (rowCount === 0) throw new Error('storing a pack took longer than the grace period');
    const live = await record(client, storeId, pack);
    const { rows } = await client.query<{ since: string }>(
      'update large_packs set live_bytes = $2 where id = $1 returning now()::text as since',
      [id, live],
    );
    return rows[0]?.since ?? '';
  });
}

/** What another pack has meanwhile is dead in this one. */
export async function addChunks(
  client: pg.PoolClient,
  storeId: number,
  { id, entries }: Put,
): Promise<number> {
  // In the order of the hashes, so that two that have the same chunks do not wait for each other.
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

/** Removes the rows of those chunks that no upload has counted on since they became known, in one statement. */
async function takeBack({ pool }: Pick<Deps, 'pool'>, { id, since }: Kept): Promise<void> {
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
 * From now on chunks lie in this pack that were in one of `from`, or in any other. What was removed meanwhile is dead in it.
 * @returns bytes of those
 */
export async function moveChunks(
  client: pg.PoolClient,
  storeId: number,
  { id, entries }: Put,
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

/** Pieces for one reader, each of which is lent: its memory is the giver's again when the reader asks for the next. */
type Given = { piece: Buffer; done: PromiseWithResolvers<void>; next: Next };
type Next = PromiseWithResolvers<Given | null>;

class Handover implements AsyncIterable<Buffer> {
  readonly #first: Next = Promise.withResolvers();
  #last = this.#first;

  /** Resolves when the reader is done with it; never where nobody reads any more. */
  give(piece: Buffer): Promise<void> {
    const done = Promise.withResolvers<void>();
    const next: Next = Promise.withResolvers();
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
