/**
 * Masks secrets in log lines: as they are, and as base64, hexadecimal, URL-encoded and JSON text.
 *
 * Base64 of a text that contains a secret depends on where the secret begins, modulo three bytes. So the characters that depend
 * on the secret alone are searched for, at each of the three positions. The characters beside them may have bits of the secret
 * and of the text around it: they are masked, too. Long encodings are masked in short overlapping parts, so that
 * lines are masked that are wrapped at any multiple of four characters, as `base64`, `openssl` and `xxd` do.
 *
 * A line that was cut at its maximum length may end within a secret: then the beginning of the secret is masked.
 *
 * This protects against accidents. It cannot stop a program that wants to reveal a secret in another form.
 */

import { CUT_MARK } from '../../runners/runner.ts';

const MASK = '***';

/** Encodings shorter than this are not masked: they would hide ordinary words and numbers. */
const MIN_ENCODED = 6;
/** Length and distance of the parts of a long encoding, and the length of the shortest part at its ends. */
const WINDOW = 16;
const STEP = 4;
const MIN_WINDOW = 8;
/** Longer texts are masked in parts of this length, which bounds the time for a line. */
const MAX_PATTERN = 64;

/**
 * Patterns, and whether the character before the first one and after the last one, if it is of base64, has bits of the secret.
 * The bits of `NEIGHBOUR`.
 */
type Patterns = Map<string, number>;
const NEIGHBOUR = { before: 1, after: 2 } as const;
const BASE64_CHARACTER = /[\w+/-]/;

/** Returns a function that replaces every secret in a text by `***`. Each line of a multi-line secret is masked. */
export function createMask(secrets: Record<string, string>): (text: string) => string {
  const patterns: Patterns = new Map();
  for (const secret of Object.values(secrets)) {
    for (const form of escapedForms(secret)) addParts(patterns, form);
    for (const text of new Set([secret, ...secret.split(/\r?\n/)])) {
      addParts(patterns, text);
      addEncodedForms(patterns, Buffer.from(text));
    }
  }
  patterns.delete('');
  if (patterns.size === 0) return (text) => text;
  const finder = createFinder([...patterns.keys()]);
  return (text) => {
    const cutAt = text.endsWith(CUT_MARK) ? text.length - CUT_MARK.length : undefined;
    const beginning = cutAt === undefined ? -1 : finder.findBeginning(text, cutAt);
    let masked = '';
    let end = -1;
    let copied = 0;
    for (let at = 0; at < text.length; at++) {
      const length = at === beginning ? (cutAt ?? at) - at : finder.findLength(text, at);
      if (length === 0) continue;
      const neighbours = patterns.get(text.slice(at, at + length)) ?? 0;
      const hasBefore = neighbours & NEIGHBOUR.before && BASE64_CHARACTER.test(text[at - 1] ?? '');
      const from = hasBefore ? at - 1 : at;
      const hasAfter =
        neighbours & NEIGHBOUR.after && BASE64_CHARACTER.test(text[at + length] ?? '');
      // Occurrences that overlap or touch become one mask.
      if (from > end) masked += text.slice(copied, from) + MASK;
      end = Math.max(end, at + length + (hasAfter ? 1 : 0));
      copied = end;
    }
    return masked + text.slice(copied);
  };
}

/** As a JSON string, and percent-encoded by the rules of JavaScript, of RFC 3986, of paths and of forms. */
function escapedForms(secret: string): string[] {
  const uri = encodeURIComponent(secret);
  const strict = uri.replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
  const encoded = [uri, strict, strict.replaceAll('%2F', '/')];
  const form = new URLSearchParams([['', secret]]).toString().slice('='.length);
  const forms = [form, ...encoded.flatMap((text) => [text, text.replaceAll('%20', '+')])];
  const lower = forms.map((text) => text.replace(/%../g, (code) => code.toLowerCase()));
  return [JSON.stringify(secret).slice(1, -1), ...forms, ...lower];
}

function addParts(patterns: Patterns, text: string): void {
  for (let at = 0; at < text.length; at += MAX_PATTERN) {
    const from = Math.max(0, Math.min(at, text.length - MAX_PATTERN));
    addPattern(patterns, text.slice(from, from + MAX_PATTERN));
  }
}

/** Index: how many bytes before the secret are in its first group of three. Value: how many characters depend on them. */
const DEPENDENT_CHARACTERS = [0, 2, 3] as const;

function addEncodedForms(patterns: Patterns, bytes: Buffer): void {
  const hex = bytes.toString('hex');
  addWindows(patterns, hex, 0);
  addWindows(patterns, hex.toUpperCase(), 0);
  for (const [before, dependent] of DEPENDENT_CHARACTERS.entries()) {
    const base64 = Buffer.concat([Buffer.alloc(before), bytes]).toString('base64');
    const bits = (before + bytes.length) * 8;
    // Whatever follows the secret, and where it is the end of the text, with and without padding.
    const lengths = [Math.floor(bits / 6), base64.indexOf('='), undefined];
    for (const [index, length] of lengths.entries()) {
      if (length === -1) continue;
      const form = base64.slice(dependent, length);
      const phase = (STEP - dependent) % STEP;
      const after = index === 0 && bits % 6 > 0 ? NEIGHBOUR.after : 0;
      const neighbours = (before > 0 ? NEIGHBOUR.before : 0) | after;
      addWindows(patterns, form, phase, neighbours);
      const urlSafe = form.replaceAll('+', '-').replaceAll('/', '_');
      addWindows(patterns, urlSafe, phase, neighbours);
    }
  }
}

/**
 * @param phase the distance from the beginning of `form` to the first position at which a line may be wrapped
 * @param neighbours of the whole form
 */
function addWindows(patterns: Patterns, form: string, phase: number, neighbours = 0): void {
  const count = (neighbours & NEIGHBOUR.before ? 1 : 0) + (neighbours & NEIGHBOUR.after ? 1 : 0);
  if (form.length + count >= MIN_ENCODED && form.length <= WINDOW)
    addPattern(patterns, form, neighbours);
  for (let at = phase - WINDOW; at < form.length; at += STEP) {
    const part = form.slice(Math.max(0, at), Math.max(0, at + WINDOW));
    if (part.length < MIN_WINDOW) continue;
    const before = at <= 0 ? neighbours & NEIGHBOUR.before : 0;
    const after = at + WINDOW >= form.length ? neighbours & NEIGHBOUR.after : 0;
    addPattern(patterns, part, before | after);
  }
}

function addPattern(patterns: Patterns, text: string, neighbours = 0): void {
  patterns.set(text, (patterns.get(text) ?? 0) | neighbours);
}

type Finder = {
  /** The length of the longest pattern at a position; 0 if there is none. */
  findLength(text: string, at: number): number;
  /** The first position from which the text up to `end` is the beginning of a pattern; -1 if there is none. */
  findBeginning(text: string, end: number): number;
};

/** The time depends on the length of a line, and hardly on the number of patterns. */
function createFinder(patterns: string[]): Finder {
  const sorted = patterns.sort();
  /** For each pattern, the longest other pattern that it begins with, by index; -1 if there is none. */
  const prefixes: number[] = [];
  for (const [index, pattern] of sorted.entries()) {
    let prefix = index - 1;
    while (prefix >= 0 && !pattern.startsWith(sorted[prefix] as string))
      prefix = prefixes[prefix] as number;
    prefixes.push(prefix);
  }
  // Most positions of a line are dismissed by their first two characters.
  const isSingle = new Uint8Array(256);
  const isPair = new Uint8Array(65_536);
  const pairOf = (first: number, second: number) => ((first & 255) << 8) | (second & 255);
  for (const pattern of sorted)
    if (pattern.length === 1) isSingle[pattern.charCodeAt(0) & 255] = 1;
    else isPair[pairOf(pattern.charCodeAt(0), pattern.charCodeAt(1))] = 1;

  /** The number of patterns that are not after `text` in the order. */
  const countUpTo = (text: string) => {
    let low = 0;
    let high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((sorted[middle] as string) <= text) low = middle + 1;
      else high = middle;
    }
    return low;
  };

  return {
    findLength(text, at) {
      const first = text.charCodeAt(at);
      if (!isSingle[first & 255] && !isPair[pairOf(first, text.charCodeAt(at + 1))]) return 0;
      const rest = text.slice(at, at + MAX_PATTERN);
      // All patterns at this position are the last one that is not after `rest`, or prefixes of it.
      let found = countUpTo(rest) - 1;
      while (found >= 0 && !rest.startsWith(sorted[found] as string))
        found = prefixes[found] as number;
      return found < 0 ? 0 : (sorted[found] as string).length;
    },
    findBeginning(text, end) {
      for (let at = Math.max(0, end - MAX_PATTERN + 1); at < end; at++) {
        const rest = text.slice(at, end);
        // Patterns that begin with `rest` are the next ones in the order.
        if (sorted[countUpTo(rest)]?.startsWith(rest)) return at;
      }
      return -1;
    },
  };
}
