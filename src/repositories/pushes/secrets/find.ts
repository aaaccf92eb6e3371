/**
 * Finding secrets in a text, at some hundred megabytes a second: most of a text is not looked at by any expression.
 *
 * Tokens are long: where every 16th character stands in none of `RUN` characters in a row, there is none. Only where
 * there is such a run, one expression looks for how tokens begin, and only where one begins, its form is tried. The
 * kinds that have no such run are looked for by a text that is always in them.
 */

import { createHmac } from 'node:crypto';
import { KINDS, type Kind, looksRandom } from './kinds.ts';

/** `at`: where it begins in the text. */
export type Secret = { kind: string; text: string; at: number };

/** Of characters of tokens in a row: of an AWS access key id, which is the shortest. */
const RUN = 20;
/** From the beginning of a kind with parts between dots to its run. */
const BEFORE_RUN = 72;
/** A kind begins so far before its anchor at most, and ends so far after it. */
const BEFORE_ANCHOR = 48;
const AFTER_ANCHOR = 720;
/** Found without a pause: a text can be made of them alone. */
const STEP = 1_000;

const WORD = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const IS_OF_WORD = tableOf(WORD);
const IS_OF_TOKEN = tableOf(`${WORD}_-`);
const IS_OF_PARTS = tableOf(`${WORD}_-.:`);

/** 1 for these characters. */
function tableOf(chars: string): Uint8Array {
  const table = new Uint8Array(256);
  for (const char of chars) table[char.charCodeAt(0)] = 1;
  return table;
}

type Compiled = { name: string; hint: RegExp; form: RegExp; isLive: NonNullable<Kind['isLive']> };

const compiled = (flags: string, kinds: readonly Kind[]): Compiled[] =>
  kinds.map(({ name, hint = '', form, isLive = looksRandom }) => ({
    name,
    hint: new RegExp(hint, 'y'),
    form: new RegExp(form, flags),
    isLive,
  }));

const hinted = KINDS.filter(({ hint }) => hint);
const TOKENS = compiled('y', hinted);
const HINTS = hinted.map(({ hint }) => hint).join('|');

const ANCHORED = Map.groupBy(
  KINDS.flatMap((kind) => (kind.anchors ?? []).map((anchor) => ({ anchor, kind }))),
  ({ anchor }) => anchor,
)
  .entries()
  .map(([anchor, kinds]) => ({
    anchor,
    kinds: compiled(
      '',
      kinds.map(({ kind }) => kind),
    ),
  }))
  .toArray();

/**
 * What a text gives away, as bytes and as the same bytes in Latin-1. Yields null now and then, where its caller can let
 * others have their turn.
 */
export function* secretsIn(bytes: Uint8Array, text: string): Generator<Secret | null> {
  yield* tokensIn(bytes, text);
  for (const { anchor, kinds } of ANCHORED) yield* nearAnchor(text, anchor, kinds);
}

function* tokensIn(bytes: Uint8Array, text: string): Generator<Secret | null> {
  const hint = new RegExp(HINTS, 'y');
  let steps = 0;
  let done = 0;
  for (let run = nextRun(bytes, 0); run; run = nextRun(bytes, run.end)) {
    if (++steps % STEP === 0) yield null;
    if (!run.mixed) continue;
    for (let at = beginOf(bytes, run, done); at < run.end; at++) {
      // A kind begins where a word does.
      if (at > 0 && IS_OF_WORD[bytes[at - 1] as number] === 1) continue;
      if (++steps % STEP === 0) yield null;
      hint.lastIndex = at;
      const secret = hint.test(text) ? tokenAt(text, at) : null;
      if (!secret) continue;
      yield secret;
      at += secret.text.length - 1;
    }
    done = run.end;
  }
}

/** Where the first part of a kind whose parts are joined by `.` or `:` may begin that has this run. */
function beginOf(bytes: Uint8Array, { start }: Run, done: number): number {
  const first = Math.max(done, start - BEFORE_RUN);
  let at = start;
  while (at > first && IS_OF_PARTS[bytes[at - 1] as number] === 1) at--;
  return at;
}

type Run = { start: number; end: number; mixed: boolean };

/**
 * The next row of at least `RUN` characters of tokens. `mixed`: it holds a digit, or only capitals, as a random one does
 * and a long name hardly ever. A small function of its own: within a generator the loop is five times slower.
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
    // What is too short before `at` may go on after it.
    while (end < length && IS_OF_TOKEN[bytes[end] as number] === 1) end++;
    if (end - start >= RUN) return { start, end, mixed: isMixed(bytes, start, end) };
    at = end + RUN;
  }
  return null;
}

function isMixed(bytes: Uint8Array, start: number, end: number): boolean {
  let small = false;
  for (let at = start; at < end; at++) {
    const char = bytes[at] as number;
    if (char >= 48 && char <= 57) return true;
    if (char >= 97) small = true;
  }
  return !small;
}

function tokenAt(text: string, at: number): Secret | null {
  for (const { name, hint, form, isLive } of TOKENS) {
    hint.lastIndex = at;
    if (!hint.test(text)) continue;
    form.lastIndex = at;
    const match = form.exec(text);
    if (match && isLive(match)) return { kind: name, text: match[0], at };
  }
  return null;
}

function* nearAnchor(
  text: string,
  anchor: string,
  kinds: readonly Compiled[],
): Generator<Secret | null> {
  let done = 0;
  let steps = 0;
  for (let at = text.indexOf(anchor); at >= 0; at = text.indexOf(anchor, at + anchor.length)) {
    if (++steps % STEP === 0) yield null;
    const from = Math.max(done, at - BEFORE_ANCHOR);
    const near = text.slice(from, at + AFTER_ANCHOR);
    for (const { name, form, isLive } of kinds) {
      const match = form.exec(near);
      // What begins after the anchor has one of its own.
      if (!match || match.index > at - from || !isLive(match)) continue;
      yield { kind: name, text: match[0], at: from + match.index };
      done = from + match.index + match[0].length;
      break;
    }
  }
}

/**
 * The ids of what secret scanning finds. The same secret has the same id in the same repository, so that nothing need be
 * kept of a push that was refused. Under a key of the server, because a password could be guessed from a plain hash of it.
 */
export type FindingIds = (repositoryId: string, kind: string, text: string) => string;

/** Ten of 50 bits: enough to tell the findings of a repository apart, and few to type. */
const ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz';
const CHARACTERS = 10;

export function createFindingIds(key: Uint8Array): FindingIds {
  return (repositoryId, kind, text) => {
    const mac = createHmac('sha256', key).update(JSON.stringify([repositoryId, kind, text]));
    return [...mac.digest().subarray(0, CHARACTERS)].map((byte) => ALPHABET[byte & 31]).join('');
  };
}
