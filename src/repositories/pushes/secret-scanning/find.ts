/**
 * Finds secrets in text at some 100 MB/s by applying regular expressions only where needed.
 *
 * Tokens contain a run of at least `RUN` token characters, so only every `RUN`-th character is read until one is in a
 * run. Near a run, one expression looks for known prefixes, and only at a prefix is the full pattern tried. Kinds
 * without such a run are searched by a fixed substring, their anchor.
 */

import { createHmac } from 'node:crypto';
import { KINDS, type Kind, looksRandom } from './kinds.ts';

/** `at` is the offset in the text. */
export type Secret = { kind: string; text: string; at: number };

/** Minimum run of token characters: the length of an AWS access key id, the shortest token. */
const RUN = 20;
/** Maximum distance from the start of a token with dot-separated parts to its run. */
const BEFORE_RUN = 72;
/** A match starts at most this far before its anchor and ends at most this far after it. */
const BEFORE_ANCHOR = 48;
const AFTER_ANCHOR = 720;
/** Iterations between yields to the caller. A crafted text can consist of candidates only. */
const YIELD_INTERVAL = 1_000;

const WORD = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const IS_OF_WORD = lookupTable(WORD);
const IS_OF_TOKEN = lookupTable(`${WORD}_-`);
const IS_OF_PARTS = lookupTable(`${WORD}_-.:`);

/** Maps the codes of these characters to 1, all others to 0. */
function lookupTable(chars: string): Uint8Array {
  const table = new Uint8Array(256);
  for (const char of chars) table[char.charCodeAt(0)] = 1;
  return table;
}

type CompiledKind = Required<Pick<Kind, 'name' | 'looksReal'>> & { hint: RegExp; pattern: RegExp };

const compileKinds = (flags: string, kinds: readonly Kind[]): CompiledKind[] =>
  kinds.map(({ name, hint = '', pattern, looksReal = looksRandom }) => ({
    name,
    hint: new RegExp(hint, 'y'),
    pattern: new RegExp(pattern, flags),
    looksReal,
  }));

const KINDS_WITH_HINT = KINDS.filter(({ hint }) => hint);
const TOKENS = compileKinds('y', KINDS_WITH_HINT);
const HINTS = KINDS_WITH_HINT.map(({ hint }) => hint).join('|');

const ANCHORED = Map.groupBy(
  KINDS.flatMap((kind) => (kind.anchors ?? []).map((anchor) => ({ anchor, kind }))),
  ({ anchor }) => anchor,
)
  .entries()
  .map(([anchor, kinds]) => ({
    anchor,
    kinds: compileKinds(
      '',
      kinds.map(({ kind }) => kind),
    ),
  }))
  .toArray();

/**
 * Yields the secrets in a text, which is given as bytes and as the same bytes decoded as Latin-1. Yields null from time
 * to time, so that the caller can yield to the event loop.
 */
export function* findSecrets(bytes: Uint8Array, text: string): Generator<Secret | null> {
  yield* findTokens(bytes, text);
  for (const { anchor, kinds } of ANCHORED) yield* findNearAnchors(text, anchor, kinds);
}

function* findTokens(bytes: Uint8Array, text: string): Generator<Secret | null> {
  const hint = new RegExp(HINTS, 'y');
  let steps = 0;
  let done = 0;
  for (let run = nextRun(bytes, 0); run; run = nextRun(bytes, run.end)) {
    if (++steps % YIELD_INTERVAL === 0) yield null;
    if (!run.isRandomLike) continue;
    for (let at = earliestStart(bytes, run, done); at < run.end; at++) {
      // A token starts at a word boundary.
      if (at > 0 && IS_OF_WORD[bytes[at - 1] as number] === 1) continue;
      if (++steps % YIELD_INTERVAL === 0) yield null;
      hint.lastIndex = at;
      const secret = hint.test(text) ? matchTokenAt(text, at) : null;
      if (!secret) continue;
      yield secret;
      at += secret.text.length - 1;
    }
    done = run.end;
  }
}

/** The earliest possible start of a token that contains this run: its parts may be joined by `.` or `:`. */
function earliestStart(bytes: Uint8Array, { start }: Run, done: number): number {
  const first = Math.max(done, start - BEFORE_RUN);
  let at = start;
  while (at > first && IS_OF_PARTS[bytes[at - 1] as number] === 1) at--;
  return at;
}

type Run = { start: number; end: number; isRandomLike: boolean };

/**
 * Finds the next run of at least `RUN` token characters. It is `isRandomLike` if it contains a digit or no lower-case
 * letter, as random text does and a long identifier rarely does. A separate function: inside a generator the loop is
 * five times slower.
 */
function nextRun(bytes: Uint8Array, from: number): Run | null {
  const { length } = bytes;
  for (let at = from + RUN - 1; at < length; ) {
    if (IS_OF_TOKEN[bytes[at] as number] === 0) {
      at += RUN;
      continue;
    }
    let start = at;
    while (start > from && IS_OF_TOKEN[bytes[start - 1] as number] === 1) start--;
    let end = at + 1;
    // The run may extend to the right of `at`.
    while (end < length && IS_OF_TOKEN[bytes[end] as number] === 1) end++;
    if (end - start >= RUN) return { start, end, isRandomLike: looksRandomRun(bytes, start, end) };
    at = end + RUN;
  }
  return null;
}

function looksRandomRun(bytes: Uint8Array, start: number, end: number): boolean {
  let hasLowerCase = false;
  for (let at = start; at < end; at++) {
    const char = bytes[at] as number;
    if (char >= 48 && char <= 57) return true;
    if (char >= 97) hasLowerCase = true;
  }
  return !hasLowerCase;
}

function matchTokenAt(text: string, at: number): Secret | null {
  for (const { name, hint, pattern, looksReal } of TOKENS) {
    hint.lastIndex = at;
    if (!hint.test(text)) continue;
    pattern.lastIndex = at;
    const match = pattern.exec(text);
    if (match && looksReal(match)) return { kind: name, text: match[0], at };
  }
  return null;
}

function* findNearAnchors(
  text: string,
  anchor: string,
  kinds: readonly CompiledKind[],
): Generator<Secret | null> {
  let done = 0;
  let steps = 0;
  for (let at = text.indexOf(anchor); at >= 0; at = text.indexOf(anchor, at + anchor.length)) {
    if (++steps % YIELD_INTERVAL === 0) yield null;
    const from = Math.max(done, at - BEFORE_ANCHOR);
    const near = text.slice(from, at + AFTER_ANCHOR);
    for (const { name, pattern, looksReal } of kinds) {
      const match = pattern.exec(near);
      // A match that starts after this anchor has its own anchor.
      if (!match || match.index > at - from || !looksReal(match)) continue;
      yield { kind: name, text: match[0], at: from + match.index };
      done = from + match.index + match[0].length;
      break;
    }
  }
}

/**
 * Computes the ids of findings. The same secret has the same id in the same repository, so nothing has to be stored for
 * a rejected push. The ids are keyed with a server secret, because a plain hash would let an attacker guess passwords.
 */
export type FindingIds = (repositoryId: string, kind: string, text: string) => string;

/** Ten characters are 50 bits: enough to distinguish the findings of a repository, and short to type. */
const ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz';
const ID_LENGTH = 10;

export function createFindingIds(key: Uint8Array): FindingIds {
  return (repositoryId, kind, text) => {
    const mac = createHmac('sha256', key).update(JSON.stringify([repositoryId, kind, text]));
    return [...mac.digest().subarray(0, ID_LENGTH)].map((byte) => ALPHABET[byte & 31]).join('');
  };
}
