/**
 * Recipes: the list of chunks of an object, in pages of 1,024 chunks (64 MB of contents), so that a read in the middle
 * of a large object loads one page. An entry has 36 bytes: SHA-256, and the length as a big-endian 32-bit number.
 */
import { hashKey } from './chunking.ts';

const PAGE_CHUNKS = 1_024;
const HASH_BYTES = 32;
const ENTRY_BYTES = HASH_BYTES + 4;

export type RecipeEntry = { hash: Buffer; length: number };
export type RecipePage = { start: number; chunks: Buffer };

/** Collects the chunks of an object during its upload. Uses about 3 MB of memory per GB. */
export class Recipe {
  readonly #pages: RecipePage[] = [];
  readonly #hashes = new SortedHashes();
  #used = 0;
  #size = 0;

  get size(): number {
    return this.#size;
  }

  add({ hash, length }: RecipeEntry): void {
    if (this.#used === this.#pages.length * PAGE_CHUNKS)
      this.#pages.push({ start: this.#size, chunks: Buffer.alloc(PAGE_CHUNKS * ENTRY_BYTES) });
    const page = this.#pages.at(-1) as RecipePage;
    const at = (this.#used % PAGE_CHUNKS) * ENTRY_BYTES;
    hash.copy(page.chunks, at);
    page.chunks.writeUInt32BE(length, at + HASH_BYTES);
    this.#used++;
    this.#size += length;
    this.#hashes.add(hash);
  }

  pages(): RecipePage[] {
    const last = this.#pages.length * PAGE_CHUNKS - this.#used;
    return this.#pages.map(({ start, chunks }, i) =>
      i === this.#pages.length - 1
        ? { start, chunks: chunks.subarray(0, chunks.length - last * ENTRY_BYTES) }
        : { start, chunks },
    );
  }

  /** The pages after the first `from` bytes. @throws Error if no chunk begins at `from` */
  pagesFrom(from: number): RecipePage[] {
    const pages = this.pages();
    const first = pages.findLastIndex(({ start }) => start <= from);
    return pages.slice(Math.max(0, first)).flatMap(({ start, chunks }) => {
      let at = start;
      let cut = 0;
      for (; at < from && cut < chunks.length; cut += ENTRY_BYTES)
        at += chunks.readUInt32BE(cut + HASH_BYTES);
      if (cut > 0 && at !== from) throw new Error(`no chunk begins at ${from}`);
      return cut === chunks.length ? [] : { start: at, chunks: chunks.subarray(cut) };
    });
  }

  get hashes(): SortedHashes {
    return this.#hashes;
  }
}

/**
 * A set of hashes that returns them in byte order, in which transactions lock chunk rows. They are grouped by their
 * first byte, because sorting a million hashes at once would block the event loop for a second.
 */
export class SortedHashes {
  readonly #byFirst = new Map<number, Set<string>>();

  add(hash: Buffer): void {
    const first = hash[0] as number;
    this.#byFirst.getOrInsertComputed(first, () => new Set()).add(hashKey(hash));
  }

  *batches(size: number): Generator<Buffer[]> {
    let batch: Buffer[] = [];
    for (let first = 0; first < 256; first++)
      for (const text of [...(this.#byFirst.get(first) ?? [])].sort()) {
        batch.push(Buffer.from(text, 'latin1'));
        if (batch.length < size) continue;
        yield batch;
        batch = [];
      }
    if (batch.length > 0) yield batch;
  }
}

export function decodeEntries(chunks: Buffer): RecipeEntry[] {
  const entries: RecipeEntry[] = [];
  for (let at = 0; at < chunks.length; at += ENTRY_BYTES)
    entries.push({
      hash: chunks.subarray(at, at + HASH_BYTES),
      length: chunks.readUInt32BE(at + HASH_BYTES),
    });
  return entries;
}
