/**
 * Glob patterns: `*` matches any number of characters except `/`, `**` any number of any characters, `?` one character except `/`.
 */

/** Counts the steps of matching, so that a caller can limit them. */
export type MatchingWork = { steps: number };

const BITS = 32;

/**
 * Follows all places of the pattern that the name can have reached, as bits, so the time is linear in the length of the name.
 * The time of a regular expression, which backtracks, grows with a power of the number of wildcards.
 */
export class Pattern {
  /** The text before the first wildcard. */
  readonly #prefix: string;
  readonly #rest: string;
  /** The text after the last wildcard. */
  readonly #suffix: string;
  #places: Places | undefined;

  constructor(text: string) {
    const start = text.search(/[*?]/);
    this.#prefix = start < 0 ? text : text.slice(0, start);
    this.#rest = text.slice(this.#prefix.length);
    this.#suffix = /[^*?]*$/.exec(this.#rest)?.[0] ?? '';
  }

  matches(name: string, work: MatchingWork = { steps: 0 }): boolean {
    work.steps++;
    if (this.#rest === '') return name === this.#prefix;
    if (!name.startsWith(this.#prefix) || !name.endsWith(this.#suffix)) return false;
    this.#places ??= findPlaces(this.#rest);
    const { count, ofChar, others, stars, globstars } = this.#places;
    const none = new Int32Array(stars.length);
    const reached = new Int32Array(stars.length);
    reached[0] = 1 | ((stars[0] as number) & 1 ? 2 : 0);
    for (let i = this.#prefix.length; i < name.length; i++) {
      const isSlash = name[i] === '/';
      const moving = ofChar.get(name[i] as string) ?? (isSlash ? none : others);
      const staying = isSlash ? globstars : stars;
      let carry = 0;
      let isAlive = 0;
      for (let word = 0; word < reached.length; word++) {
        const now = reached[word] as number;
        const moved = now & (moving[word] as number);
        let next = (moved << 1) | carry | (now & (staying[word] as number));
        // A wildcard may match nothing, so the place after it is reached too.
        const waiting = next & (stars[word] as number);
        next |= waiting << 1;
        carry = (moved | waiting) >>> (BITS - 1);
        reached[word] = next;
        isAlive |= next;
      }
      work.steps += reached.length;
      if (isAlive === 0) return false;
    }
    return isSet(reached, count);
  }
}

/** Each array has a bit for each place: before a token of the pattern, and after the last one. */
type Places = {
  count: number;
  /** The places from which a character leads to the next place. */
  ofChar: ReadonlyMap<string, Int32Array>;
  /** The same for characters, except `/`, that the pattern does not name. */
  others: Int32Array;
  /** Before `*` or `**`. */
  stars: Int32Array;
  /** Before `**`. */
  globstars: Int32Array;
};

function findPlaces(pattern: string): Places {
  const tokens = pattern.match(/\*+|./gs)?.map((token) => token.replace(/^\*{3,}$/, '**')) ?? [];
  const allOf = (...wanted: string[]) => {
    const bits = new Int32Array(Math.ceil((tokens.length + 1) / BITS));
    for (const [place, token] of tokens.entries())
      if (wanted.includes(token))
        bits[place >> 5] = (bits[place >> 5] as number) | (1 << (place % BITS));
    return bits;
  };
  const chars = new Set(tokens.filter((token) => !/^[*?]/.test(token)));
  return {
    count: tokens.length,
    ofChar: new Map(
      [...chars].map((char) => [char, char === '/' ? allOf(char) : allOf(char, '?')]),
    ),
    others: allOf('?'),
    stars: allOf('*', '**'),
    globstars: allOf('**'),
  };
}

function isSet(bits: Int32Array, place: number): boolean {
  return (((bits[place >> 5] as number) >>> (place % BITS)) & 1) === 1;
}
