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

import { setImmediate as yieldToEventLoop } from 'node:timers/promises';
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
/** Where a text is cut, a part of a secret up to this length is not masked. */
export const CUT_MARGIN = MAX_PATTERN;

/**
 * Patterns, and whether the character before the first one and after the last one, if it is of base64, has bits of the secret.
 * The bits of `NEIGHBOUR`.
 */
type Patterns = Map<string, number>;
const NEIGHBOUR = { before: 1, after: 2 } as const;
const BASE64_CHARACTER = /[\w+/-]/;

/** Replaces every secret in a text by `***`. Each line of a multi-line secret is masked. */
export type Mask = {
  /** For texts of a few thousand characters. */
  (text: string): string;
  /** For texts of any length: in steps, between which this thread does other work. */
  inSteps(text: string): Promise<string>;
};

/** Patterns that are found or sorted, and characters that are masked, at once: in a few milliseconds. */
const PATTERN_STEP = 2_000;
const MASK_STEP = 8_192;

export async function createMask(secrets: Record<string, string>): Promise<Mask> {
  const patterns: Patterns = new Map();
  let count = 0;
  for (const secret of Object.values(secrets))
    for (const [text, neighbours] of findPatterns(secret)) {
      if (text !== '') patterns.set(text, (patterns.get(text) ?? 0) | neighbours);
      if (++count % PATTERN_STEP === 0) await yieldToEventLoop();
    }
  if (patterns.size === 0)
    return Object.assign((text: string) => text, { inSteps: async (text: string) => text });
  const finder = await createFinder(patterns.keys());
  const mask = (text: string) => {
    const masking = maskInSteps(text, patterns, finder);
    let step = masking.next();
    while (!step.done) step = masking.next();
    return step.value;
  };
  const inSteps = async (text: string) => {
    const masking = maskInSteps(text, patterns, finder);
    let step = masking.next();
    while (!step.done) {
      await yieldToEventLoop();
      step = masking.next();
    }
    return step.value;
  };
  return Object.assign(mask, { inSteps });
}

/** Yields after each step. */
function* maskInSteps(text: string, patterns: Patterns, finder: Finder): Generator<void, string> {
  const cutAt = text.endsWith(CUT_MARK) ? text.length - CUT_MARK.length : undefined;
  const beginning = cutAt === undefined ? -1 : finder.findBeginning(text, cutAt);
  let masked = '';
  let end = -1;
  let copied = 0;
  for (let at = 0; at < text.length; at++) {
    if (at % MASK_STEP === MASK_STEP - 1) yield;
    const length = at === beginning ? (cutAt ?? at) - at : finder.findLength(text, at);
    if (length === 0) continue;
    const neighbours = patterns.get(text.slice(at, at + length)) ?? 0;
    const hasBefore = neighbours & NEIGHBOUR.before && BASE64_CHARACTER.test(text[at - 1] ?? '');
    const from = hasBefore ? at - 1 : at;
    const hasAfter = neighbours & NEIGHBOUR.after && BASE64_CHARACTER.test(text[at + length] ?? '');
    // Occurrences that overlap or touch become one mask.
    if (from > end) masked += text.slice(copied, from) + MASK;
    end = Math.max(end, at + length + (hasAfter ? 1 : 0));
    copied = end;
  }
  return masked + text.slice(copied);
}

/**
 * Masks a text of which a part is shown. A secret that the cut divides would not be found, so more is masked than is shown.
 * @param text all, or at least `max + CUT_MARGIN` characters
 * @returns at most `max` characters from the beginning
 */
export function maskBeginning(text: string, max: number, mask: Mask): string {
  const enough = max + CUT_MARGIN;
  const masked = mask(text.slice(0, enough));
  const whole = text.length < enough ? masked : masked.slice(0, -CUT_MARGIN);
  if (whole.length <= max && text.length <= max) return whole;
  return `${whole.slice(0, max - 1).toWellFormed()}…`;
}

/** As `maskBeginning`, at the end of the text. */
export function maskEnd(text: string, max: number, mask: Mask): string {
  const enough = max + CUT_MARGIN;
  const masked = mask(text.slice(-enough));
  return (text.length < enough ? masked : masked.slice(CUT_MARGIN)).slice(-max).toWellFormed();
}

type Pattern = [text: string, neighbours: number];

/** Finds the forms of a secret in parts of at most `MAX_PATTERN` characters. */
function* findPatterns(secret: string): Generator<Pattern> {
  for (const form of escapedForms(secret)) yield* findParts(form);
  for (const text of new Set([secret, ...secret.split(/\r?\n/)])) {
    yield* findParts(text);
    yield* findEncodedForms(Buffer.from(text));
  }
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

function* findParts(text: string): Generator<Pattern> {
  for (let at = 0; at < text.length; at += MAX_PATTERN) {
    const from = Math.max(0, Math.min(at, text.length - MAX_PATTERN));
    yield [text.slice(from, from + MAX_PATTERN), 0];
  }
}

/** Index: how many bytes before the secret are in its first group of three. Value: how many characters depend on them. */
const DEPENDENT_CHARACTERS = [0, 2, 3] as const;

function* findEncodedForms(bytes: Buffer): Generator<Pattern> {
  const hex = bytes.toString('hex');
  yield* findWindows(hex, 0);
  yield* findWindows(hex.toUpperCase(), 0);
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
      yield* findWindows(form, phase, neighbours);
      const urlSafe = form.replaceAll('+', '-').replaceAll('/', '_');
      if (urlSafe !== form) yield* findWindows(urlSafe, phase, neighbours);
    }
  }
}

/**
 * @param phase the distance from the beginning of `form` to the first position at which a line may be wrapped
 * @param neighbours of the whole form
 */
function* findWindows(form: string, phase: number, neighbours = 0): Generator<Pattern> {
  const count = (neighbours & NEIGHBOUR.before ? 1 : 0) + (neighbours & NEIGHBOUR.after ? 1 : 0);
  if (form.length + count >= MIN_ENCODED && form.length <= WINDOW) yield [form, neighbours];
  for (let at = phase - WINDOW; at < form.length; at += STEP) {
    const part = form.slice(Math.max(0, at), Math.max(0, at + WINDOW));
    if (part.length < MIN_WINDOW) continue;
    const before = at <= 0 ? neighbours & NEIGHBOUR.before : 0;
    const after = at + WINDOW >= form.length ? neighbours & NEIGHBOUR.after : 0;
    yield [part, before | after];
  }
}

type Finder = {
  /** The length of the longest pattern at a position; 0 if there is none. */
  findLength(text: string, at: number): number;
  /** The first position from which the text up to `end` is the beginning of a pattern; -1 if there is none. */
  findBeginning(text: string, end: number): number;
};

/**
 * Patterns with the same first two characters, sorted.
 * @property lengths for each pattern, the lengths of all patterns that it begins with, as 64 bits: two numbers
 */
type Bucket = { sorted: string[]; lengths: Uint32Array };

/** The time depends on the length of a line, and hardly on the patterns. */
async function createFinder(patterns: Iterable<string>): Promise<Finder> {
  const singles = new Set<number>();
  const firsts = new Set<number>();
  const groups = new Map<number, string[]>();
  // Most positions of a line are dismissed by their first two characters.
  const isPair = new Uint8Array(65_536);
  let count = 0;
  for (const pattern of patterns) {
    const first = pattern.charCodeAt(0);
    if (pattern.length === 1) singles.add(first);
    else {
      const second = pattern.charCodeAt(1);
      firsts.add(first);
      isPair[lowBytes(first, second)] = 1;
      groups.getOrInsertComputed(keyOf(first, second), () => []).push(pattern);
    }
    if (++count % PATTERN_STEP === 0) await yieldToEventLoop();
  }
  const buckets = new Map<number, Bucket>();
  for (const [key, group] of groups) {
    buckets.set(key, createBucket(group));
    count += group.length;
    if (count > PATTERN_STEP) {
      count = 0;
      await yieldToEventLoop();
    }
  }
  return {
    findLength(text, at) {
      const first = text.charCodeAt(at);
      const single = singles.has(first) ? 1 : 0;
      const second = text.charCodeAt(at + 1);
      if (!isPair[lowBytes(first, second)]) return single;
      const bucket = buckets.get(keyOf(first, second));
      return bucket ? findLongest(bucket, text.slice(at, at + MAX_PATTERN)) || single : single;
    },
    findBeginning(text, end) {
      for (let at = Math.max(0, end - MAX_PATTERN + 1); at < end - 1; at++) {
        const rest = text.slice(at, end);
        const bucket = buckets.get(keyOf(text.charCodeAt(at), text.charCodeAt(at + 1)));
        // Patterns that begin with `rest` are the next ones in the order.
        if (bucket?.sorted[countUpTo(bucket, rest)]?.startsWith(rest)) return at;
      }
      return end > 0 && firsts.has(text.charCodeAt(end - 1)) ? end - 1 : -1;
    },
  };
}

function lowBytes(first: number, second: number): number {
  return ((first & 255) << 8) | (second & 255);
}

function keyOf(first: number, second: number): number {
  return first * 65_536 + second;
}

function createBucket(patterns: string[]): Bucket {
  const sorted = patterns.sort();
  const lengths = new Uint32Array(2 * sorted.length);
  /** Indexes of patterns, each of which begins with the one before. */
  const prefixes: number[] = [];
  for (const [index, pattern] of sorted.entries()) {
    while (prefixes.length > 0 && !pattern.startsWith(sorted[prefixes.at(-1) as number] as string))
      prefixes.pop();
    const before = prefixes.at(-1);
    for (const word of [0, 1])
      lengths[2 * index + word] = before === undefined ? 0 : (lengths[2 * before + word] as number);
    const bit = pattern.length - 1;
    lengths[2 * index + (bit >> 5)] =
      (lengths[2 * index + (bit >> 5)] as number) | (1 << (bit & 31));
    prefixes.push(index);
  }
  return { sorted, lengths };
}

/** The number of patterns that are not after `text` in the order. */
function countUpTo({ sorted }: Bucket, text: string): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((sorted[middle] as string) <= text) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The length of the longest pattern that `text` begins with; 0 if there is none. */
function findLongest(bucket: Bucket, text: string): number {
  const index = countUpTo(bucket, text) - 1;
  if (index < 0) return 0;
  // All such patterns are the last one that is not after `text`, or prefixes of it.
  const candidate = bucket.sorted[index] as string;
  let common = 2;
  while (common < candidate.length && candidate.charCodeAt(common) === text.charCodeAt(common))
    common++;
  const upTo = (bits: number, count: number) => (count >= 32 ? bits : bits & ((1 << count) - 1));
  const high = common > 32 ? upTo(bucket.lengths[2 * index + 1] as number, common - 32) : 0;
  if (high !== 0) return 64 - Math.clz32(high);
  return 32 - Math.clz32(upTo(bucket.lengths[2 * index] as number, Math.min(common, 32)));
}
