/** Reading objects: their chunks out of packs, each checked against its SHA-256 before it is handed on. */

import { Readable } from 'node:stream';
import type pg from 'pg';
import type { Logger } from '../../../base/log.ts';
import type { Storage } from '../../../platform/storage/storage.ts';
import { noteDamage } from './damaged.ts';
import type { Hashing } from './hashing.ts';
import { textOf } from './packs.ts';
import { entriesOf, type RecipeEntry } from './recipes.ts';
import { type Checked, Damaged, damage, type RunLocation, readRun, runsOf } from './runs.ts';

type Deps = { pool: pg.Pool; storage: Storage; log: Logger } & { hashing: Hashing };

/** Bytes, the end excluded. */
export type Range = { start: number; end: number };

/** Of reading a chunk whose pack was written anew since its place was looked up. */
const TRIES = 5;

/** An object that is being read, in one of two ways. */
export type Opened = {
  /** Of the whole, in bytes. */
  size: number;
  /** Each is good until the next is asked for. Whoever does not take it all must `return` it. */
  pieces: AsyncGenerator<Buffer>;
  /** The same as a stream, whose pieces stay as they are. A reader who stops must destroy it. */
  body(): Readable;
};

/**
 * Null when the repository was not given it.
 * @throws RangeError for a range that does not lie within; Damaged; what storage throws. What fails later fails the
 * stream, so that no byte is handed on that was not checked.
 */
export async function openObject(
  deps: Deps,
  repositoryId: string,
  oid: string,
  range?: Range,
): Promise<Opened | null> {
  const { rows } = await deps.pool.query<{ storeId: number; size: string }>({
    name: 'loam-find-large-file',
    text: `select store_id as "storeId", size from large_files where repository_id = $1 and oid = $2`,
    values: [repositoryId, oid],
  });
  const [row] = rows;
  if (!row) return null;
  const size = Number(row.size);
  const { start, end } = range ?? { start: 0, end: size };
  if (!(start >= 0 && start <= end && end <= size))
    throw new RangeError(`no range of ${size} bytes: ${start} to ${end}`);
  const contents = read(deps, { storeId: row.storeId, oid }, { start, end });
  // What cannot be read at all is known before an answer begins.
  const first = await contents.next();
  const pieces = (async function* () {
    if (!first.done) yield first.value;
    yield* contents;
  })();
  const body = () => {
    const copies = (async function* () {
      for await (const piece of pieces) yield Buffer.from(piece);
    })();
    const stream = Readable.from(copies, { objectMode: false });
    // Also when nobody has read of it: what has not begun would not end what has.
    stream.once('close', () => void contents.return(undefined).catch(() => {}));
    return stream;
  };
  return { size, pieces, body };
}

type Key = { storeId: number; oid: string };

async function* read(deps: Deps, key: Key, range: Range): AsyncGenerator<Buffer> {
  try {
    yield* readPages(deps, key, range);
  } catch (error) {
    if (error instanceof Damaged) await noteDamage(deps, key);
    throw error;
  }
}

async function* readPages(deps: Deps, key: Key, { start, end }: Range): AsyncGenerator<Buffer> {
  let at = start;
  while (at < end) {
    const page = await pageAt(deps, key, at);
    let from = page.start;
    const wanted: RecipeEntry[] = [];
    /** Bytes of the first of them that come before the range. */
    let before = 0;
    for (const entry of entriesOf(page.chunks)) {
      const to = from + entry.length;
      if (to > at && from < end) {
        if (wanted.length === 0) before = at - from;
        wanted.push(entry);
      }
      from = to;
    }
    for await (const { bytes, free } of chunksOf(deps, key.storeId, wanted)) {
      const part = bytes.subarray(before, before + end - at);
      before = 0;
      at += part.length;
      yield part;
      free();
    }
  }
}

async function pageAt({ pool }: Deps, { storeId, oid }: Key, at: number) {
  const { rows } = await pool.query<{ start: string; chunks: Buffer }>({
    name: 'loam-recipe-page',
    text: `
      select start, chunks from large_recipes where store_id = $1 and oid = $2 and start <= $3
      order by start desc limit 1`,
    values: [storeId, oid, at],
  });
  const [page] = rows;
  const bytes = page ? entriesOf(page.chunks).reduce((sum, { length }) => sum + length, 0) : 0;
  // It is removed with the object, while the last of its readers still reads.
  if (!page || Number(page.start) + bytes <= at) throw new Damaged(`${oid} has no chunk at ${at}`);
  return { start: Number(page.start), chunks: page.chunks };
}

/** The chunks in their order. Those that lie one after the other in a pack are read in one go. */
export async function* chunksOf(
  deps: Deps,
  storeId: number,
  wanted: readonly RecipeEntry[],
): AsyncGenerator<Checked> {
  let done = 0;
  for (let tries = 1; done < wanted.length; tries++) {
    const places = await placesOf(deps, storeId, wanted.slice(done));
    for (const run of runsOf(places)) {
      let isGone = true;
      for await (const checked of readRun(deps, run, deps.hashing.checking)) {
        isGone = false;
        done += checked.chunks.length;
        yield checked;
      }
      if (!isGone) tries = 0;
      else if (tries === TRIES) throw damage(deps, run[0] as RunLocation, 'its pack is gone');
      else break;
    }
  }
}

/** @throws Damaged for a chunk that is not known */
export async function placesOf(
  { pool }: Deps,
  storeId: number,
  wanted: readonly RecipeEntry[],
): Promise<RunLocation[]> {
  const { rows } = await pool.query<RunLocation>({
    name: 'loam-places-of-chunks',
    text: `
      select c.hash, p.key, c.start, c.length from large_chunks c join large_packs p on p.id = c.pack_id
      where c.store_id = $1 and c.hash = any($2)`,
    values: [storeId, wanted.map(({ hash }) => hash)],
  });
  const known = new Map(rows.map((row) => [textOf(row.hash), row]));
  return wanted.map(({ hash, length }) => {
    const place = known.get(textOf(hash));
    if (place?.length !== length) throw new Damaged(`there is no chunk ${hash.toString('hex')}`);
    return place;
  });
}
