/** The answers of `git cat-file --batch-command`, cut out of its output. */

export type ObjectType = 'blob' | 'tree' | 'commit' | 'tag';
export type ObjectInfo = { oid: string; type: ObjectType; size: number };
export type ObjectData = ObjectInfo & { data: Buffer };

export type Question = {
  command: 'info' | 'contents';
  /** Of contents; larger ones are an error, or `cut` to their beginning. */
  maxBytes: number;
  cut: boolean;
};

const HEADER = /^([0-9a-f]{40}) (blob|tree|commit|tag) (\d+)$/;
const NEWLINE = 10;

/** Cuts the output into answers: `<id> <type> <size>\n[<contents>\n]`, or `<name> missing\n`. */
export class AnswerReader {
  #chunks: Buffer[] = [];
  #size = 0;
  /** The header that was read, while its contents are awaited. */
  #header: ObjectInfo | undefined;
  /** The beginning of contents whose rest is being dropped, and how much of that is still to come. */
  #cut: { data: Buffer; left: number } | undefined;

  push(chunk: Buffer): void {
    this.#chunks.push(chunk);
    this.#size += chunk.length;
  }

  /**
   * The answer to the oldest question; null for a missing object, undefined while it is incomplete.
   * @throws Error when the contents are larger than the question allows.
   */
  take(question: Question, name: string): ObjectInfo | ObjectData | null | undefined {
    const { command, maxBytes, cut } = question;
    if (!this.#header) {
      const header = this.#takeHeader(name);
      if (!header || command === 'info') return header;
      if (header.size > maxBytes && !cut)
        throw new Error(`answered with more than ${maxBytes} bytes`);
      this.#header = header;
    }
    const header = this.#header;
    const data = this.#takeContents(header.size, maxBytes);
    if (!data) return undefined;
    this.#header = undefined;
    return { ...header, data };
  }

  /** Up to `keep` bytes of contents; the rest of them and the newline after them are dropped. */
  #takeContents(size: number, keep: number): Buffer | undefined {
    if (!this.#cut) {
      // Until it is all there, chunks are only counted: joining on each would cost the square of the size.
      if (this.#size < Math.min(size + 1, keep)) return undefined;
      if (size <= keep) {
        if (this.#size < size + 1) return undefined;
        return this.#takeBytes(size + 1).subarray(0, size);
      }
      // Copied: what is kept must not keep the rest in memory.
      this.#cut = { data: Buffer.from(this.#takeBytes(keep)), left: size - keep + 1 };
    }
    const dropped = Math.min(this.#cut.left, this.#size);
    this.#takeBytes(dropped);
    this.#cut.left -= dropped;
    if (this.#cut.left > 0) return undefined;
    const { data } = this.#cut;
    this.#cut = undefined;
    return data;
  }

  #takeHeader(name: string): ObjectInfo | null | undefined {
    const all = this.#joined();
    const end = all.indexOf(NEWLINE);
    if (end < 0) return undefined;
    const match = HEADER.exec(all.toString('latin1', 0, end));
    if (match) {
      this.#takeBytes(end + 1);
      const [, oid = '', type, size] = match;
      return { oid, type: type as ObjectType, size: Number(size) };
    }
    // A miss repeats the name, with all the newlines in it.
    let last = end;
    for (let left = name.split('\n').length - 1; left > 0 && last >= 0; left--)
      last = all.indexOf(NEWLINE, last + 1);
    if (last < 0) return undefined;
    this.#takeBytes(last + 1);
    return null;
  }

  #joined(): Buffer {
    if (this.#chunks.length !== 1) this.#chunks = [Buffer.concat(this.#chunks)];
    return this.#chunks[0] as Buffer;
  }

  #takeBytes(count: number): Buffer {
    const all = this.#joined();
    this.#chunks = count < all.length ? [all.subarray(count)] : [];
    this.#size -= count;
    return all.subarray(0, count);
  }
}
