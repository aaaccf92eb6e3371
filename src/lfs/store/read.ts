/** Reading objects: their chunks out of packs, each checked against its SHA-256 before it is handed on. */
import { hash as hashOf } from 'node:crypto';
import { Readable } from 'node:stream';
import type { Services } from '../../services.ts';
import { joined } from './hashing.ts';
import { textOf } from './packs.ts';
import { entriesOf, type RecipeEntry } from './recipes.ts';

type Deps = Pick<Services, 'pool' | 'storage' | 'log'>;

/** What was stored is not what is there: a disk or an S3 server has lost or changed it. */
export class Damaged extends Error {
  override name = 'Damaged';
}

/** Bytes, the end excluded. */
export type Range = { start: number; end: number };

/** Of reading a chunk whose pack was written anew since its place was looked up. */
const TRIES = 5;

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
): Promise<{ size: number; body: Readable } | null> {
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
  const all = (async function* () {
    if (!first.done) yield first.value;
    yield* contents;
  })();
  const body = Readable.from(all, { objectMode: false });
  // Also when nobody has read of it: `all` has not begun then, and would not end what has.
  body.once('close', () => void contents.return(undefined).catch(() => {}));
  return { size, body };
}

/** As few as they can be without copying. */
function* inPieces(chunks: readonly Buffer[]): Generator<Buffer> {
  let piece: Buffer | undefined;
  for (const chunk of chunks) {
    const longer = piece && joined(piece, chunk);
    if (piece && !longer) yield piece;
    piece = longer ?? chunk;
  }
  if (piece) yield piece;
}

type Key = { storeId: number; oid: string };

async function* read(deps: Deps, key: Key, { start, end }: Range): AsyncGenerator<Buffer> {
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
    for await (const chunks of chunksOf(deps, key.storeId, wanted))
      for (const piece of inPieces(chunks)) {
        const part = piece.subarray(before, before + end - at);
        before = 0;
        at += part.length;
        yield part;
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

/** Where a chunk lies; `key`: of its pack. */
export type Place = { hash: Buffer; key: string; start: number; length: number };

/** The chunks in their order. Those that lie one after the other in a pack are read in one go. */
async function* chunksOf(
  deps: Deps,
  storeId: number,
  wanted: readonly RecipeEntry[],
): AsyncGenerator<Buffer[]> {
  let done = 0;
  for (let tries = 1; done < wanted.length; tries++) {
    const places = await placesOf(deps, storeId, wanted.slice(done));
    for (const run of runsOf(places)) {
      let isGone = true;
      for await (const chunks of readRun(deps, run)) {
        isGone = false;
        done += chunks.length;
        yield chunks;
      }
      if (!isGone) tries = 0;
      else if (tries === TRIES) throw damaged(deps, run[0] as Place, 'its pack is gone');
      else break;
    }
  }
}

async function placesOf(
  { pool }: Deps,
  storeId: number,
  wanted: readonly RecipeEntry[],
): Promise<Place[]> {
  const { rows } = await pool.query<Place>({
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

export function runsOf(places: readonly Place[]): Place[][] {
  const runs: Place[][] = [];
  for (const place of places) {
    const before = runs.at(-1)?.at(-1);
    if (before?.key === place.key && before.start + before.length === place.start)
      runs.at(-1)?.push(place);
    else runs.push([place]);
  }
  return runs;
}

/**
 * The chunks that lie one after the other in a pack, checked, as many at a time as storage gives. Nothing at all when
 * the pack is gone. @throws Damaged
 */
export async function* readRun(deps: Deps, run: readonly Place[]): AsyncGenerator<Buffer[]> {
  const [first, last] = [run[0] as Place, run.at(-1) as Place];
  const bounds = { start: first.start, end: last.start + last.length - 1 };
  const found = await deps.storage.open(first.key, bounds);
  if (!found) return;
  let at = 0;
  /** The beginning of a chunk whose end has not come. */
  let parts: Buffer[] = [];
  let held = 0;
  try {
    for await (let piece of found.contents as AsyncIterable<Buffer>) {
      const chunks: Buffer[] = [];
      for (let place = run[at]; place && held + piece.length >= place.length; place = run[at]) {
        const rest = piece.subarray(0, place.length - held);
        const chunk = held === 0 ? rest : Buffer.concat([...parts, rest]);
        piece = piece.subarray(rest.length);
        parts = [];
        held = 0;
        at++;
        if (!hashOf('sha256', chunk, 'buffer').equals(place.hash))
          throw damaged(deps, place, 'its bytes are not those that were stored');
        chunks.push(chunk);
      }
      if (piece.length > 0) parts.push(piece);
      held += piece.length;
      if (chunks.length > 0) yield chunks;
    }
  } finally {
    found.contents.destroy();
  }
  const missing = run[at];
  if (missing) throw damaged(deps, missing, 'its pack is too short');
}

function damaged({ log }: Deps, { hash, key, start, length }: Place, why: string): Damaged {
  const chunk = hash.toString('hex');
  const error = new Damaged(`a chunk of large files is damaged: ${why}`);
  log.error({ err: error, chunk, key, start, length }, 'a large file cannot be read');
  return error;
}
