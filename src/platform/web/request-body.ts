/**
 * Parses JSON (RFC 8259) and reports where a text is invalid. V8's messages have a position for some errors only, and quote
 * the text for other errors.
 *
 * `jsonc-parser` was rejected: it recurses, so 100,000 open brackets overflow the stack instead of giving a position; for an
 * error inside a string or number it reports the beginning; and it counts UTF-16 code units as columns.
 */

import type { IncomingMessage } from 'node:http';
import { type AppError, busy, invalid } from '../../base/errors.ts';

/** @throws JsonSyntaxError */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    const { at, problem } = findError(text) ?? { at: 0, problem: 'it is nested too deeply' };
    throw new JsonSyntaxError(`${describePosition(text, at)}: ${problem}`);
  }
}

/** Like `parseJson`, for the body of a request. @throws AppError 400 with the position of the error */
export function parseBody(text: string): unknown {
  let body: unknown;
  try {
    body = parseJson(text);
  } catch (fault) {
    throw invalid(null, `The body is not valid JSON: ${(fault as Error).message}`);
  }
  requireWellFormed(text, body);
  return body;
}

/**
 * Refuses half of a surrogate pair (`"\ud800"`), which JSON allows. It cannot be encoded in UTF-8, so the database would
 * silently store another character.
 * @param text the JSON that `value` was parsed from
 * @throws AppError 400 that names the value, such as `variables.input.name`
 */
export function requireWellFormed(text: string, value: unknown): void {
  // UTF-8 text has whole characters, so only an escape can be half of a surrogate pair. Many clients escape whole pairs.
  if (!HALF_PAIR.test(text) || !HALF_PAIR.test(text.replaceAll('\\\\', '  '))) return;
  const path = findHalfPair(value).slice(0, 100);
  throw invalid(null, `${path || 'The body'}: must not contain half of a surrogate pair`);
}

/** An escaped half of a pair; also an escaped backslash before the same digits. */
const HALF_PAIR =
  /\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]/;
/** Values of a body that are searched for the place, in about 10 ms. */
const MAX_SEARCHED_VALUES = 20_000;

/** Returns the path of the value; empty if it was not found among the first values, or is the name of a value. */
function findHalfPair(body: unknown): string {
  const open = [{ path: '', value: body }];
  let count = 0;
  for (let next = open.pop(); next; next = open.pop()) {
    const { path, value } = next;
    if (typeof value === 'string' && !value.isWellFormed()) return path;
    if (typeof value !== 'object' || value === null) continue;
    if (Array.isArray(value) && value.length > MAX_SEARCHED_VALUES) return '';
    for (const key in value) {
      if (++count > MAX_SEARCHED_VALUES) return '';
      const inner = (value as Record<string, unknown>)[key];
      open.push({ path: path ? `${path}.${key}` : key, value: inner });
    }
  }
  return '';
}

/** The message contains the position and the problem. */
export class JsonSyntaxError extends Error {
  override name = 'JsonSyntaxError';
}

const EXPECTED = {
  value: 'a value',
  'value or ]': 'a value or "]"',
  name: 'a name in double quotes',
  'name or }': 'a name in double quotes or "}"',
  colon: 'a colon',
  'comma or }': 'a comma or "}"',
  'comma or ]': 'a comma or "]"',
  end: 'nothing more',
};
type Expected = keyof typeof EXPECTED;
type JsonError = { at: number; problem: string };

const WORD = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/y;
const HEX_ESCAPE = /u[0-9a-fA-F]{4}/y;

/** Only so many characters are searched for the error, in about 20 ms, because nothing else runs meanwhile. */
const MAX_SEARCHED_CHARACTERS = 2 ** 18;

/** Finds the first error; undefined for valid JSON. Not recursive, because a body may open a million brackets. */
function findError(text: string): JsonError | undefined {
  const open: ('{' | '[')[] = [];
  let expected: Expected = 'value';
  let at = 0;
  const afterValue = (): Expected => {
    const inner = open.at(-1);
    return inner === undefined ? 'end' : inner === '{' ? 'comma or }' : 'comma or ]';
  };
  for (;;) {
    const char = text[at];
    if (char === ' ' || char === '\n' || char === '\t' || char === '\r') {
      at++;
      continue;
    }
    if (char === undefined && expected === 'end') return undefined;
    if (at >= MAX_SEARCHED_CHARACTERS) return { at, problem: 'the error is here or later' };
    const wantsValue: boolean = expected === 'value' || expected === 'value or ]';
    const wantsName: boolean = expected === 'name' || expected === 'name or }';
    if (char === '"' && (wantsValue || wantsName)) {
      const string = endOfString(text, at);
      if (typeof string !== 'number') return string;
      at = string;
      expected = wantsName ? 'colon' : afterValue();
    } else if (wantsValue && (char === '{' || char === '[')) {
      open.push(char);
      at++;
      expected = char === '{' ? 'name or }' : 'value or ]';
    } else if ((char === '}' || char === ']') && expected.endsWith(char)) {
      open.pop();
      at++;
      expected = afterValue();
    } else if (char === ',' && expected.startsWith('comma')) {
      at++;
      expected = expected === 'comma or }' ? 'name' : 'value';
    } else if (char === ':' && expected === 'colon') {
      at++;
      expected = 'value';
    } else if (wantsValue && matches(WORD, text, at)) {
      at = WORD.lastIndex;
      expected = afterValue();
    } else {
      return {
        at,
        problem: `expected ${EXPECTED[expected]}, found ${describeCharacter(text, at)}`,
      };
    }
  }
}

function matches(pattern: RegExp, text: string, at: number): boolean {
  pattern.lastIndex = at;
  return pattern.test(text);
}

/** The position after the string that begins at `start`. */
function endOfString(text: string, start: number): number | JsonError {
  for (let at = start + 1; ; at++) {
    const char = text[at];
    if (char === undefined) return { at: start, problem: 'this string is not closed' };
    if (char === '"') return at + 1;
    if (char < ' ')
      return { at, problem: `${describeCharacter(text, at)} in a string must be escaped` };
    if (char !== '\\') continue;
    const escaped = text[at + 1] ?? ' ';
    if (!'"\\/bfnrt'.includes(escaped) && !matches(HEX_ESCAPE, text, at + 1))
      return { at, problem: 'this escape is not valid in JSON' };
    at++;
  }
}

/** In lines and characters from 1. */
function describePosition(text: string, end: number): string {
  let [line, column] = [1, 1];
  for (let at = 0; at < end; at++) {
    const code = text.codePointAt(at) as number;
    if (code > 0xffff) at++;
    if (code === 10) [line, column] = [line + 1, 1];
    else column++;
  }
  return `line ${line}, column ${column}`;
}

function describeCharacter(text: string, at: number): string {
  const code = text.codePointAt(at);
  if (code === undefined) return 'the end';
  return code > 0x20 && code < 0x7f
    ? JSON.stringify(String.fromCodePoint(code))
    : `U+${code.toString(16).toUpperCase().padStart(4, '0')}`;
}

/*
 * Reads the whole body of a request whose route accepts short bodies.
 *
 * `express.json` was rejected: it reads a body that is too large to its end before it responds, so a body of unknown length
 * is not refused while the client sends it.
 */

/** A larger body gets 400, because the API contract has no 413. */
const MAX_BODY_BYTES = 1024 * 1024;
/** Bodies up to this size are never refused, so that those who send large ones cannot keep others from the API. */
const SMALL_BODY_BYTES = 16 * 1024;
/** Of all larger bodies together that clients have not sent to their end. */
const MAX_OPEN_BYTES = 128 * 2 ** 20;

/** The bytes of each larger body that is being received, oldest first, with what refuses it. */
const openBodies = new Map<(error: AppError) => void, number>();
let openBytes = 0;

function closeBody(refuse: (error: AppError) => void): void {
  openBytes -= openBodies.get(refuse) ?? 0;
  openBodies.delete(refuse);
}

/** Refuses the oldest bodies if all take too much: clients that keep them open gain nothing by that. */
function growBody(refuse: (error: AppError) => void, size: number): void {
  openBytes += size - (openBodies.get(refuse) ?? 0);
  openBodies.set(refuse, size);
  for (const oldest of openBodies.keys()) {
    if (openBytes <= MAX_OPEN_BYTES) return;
    closeBody(oldest);
    oldest(busy('Clients send too much at once', 1));
  }
}

/**
 * The rest of a body that is refused is discarded as it arrives, within the limits of connections.ts.
 * @throws AppError 400 if the body is too large or the client disconnects before its end; 503 if the bodies of all clients take
 *   too much memory
 */
export async function readBodyBytes(req: IncomingMessage): Promise<Buffer<ArrayBuffer>> {
  const tooLarge = () => invalid(null, 'The body is larger than 1 MiB');
  if (Number(req.headers['content-length'] ?? 0) > MAX_BODY_BYTES) throw tooLarge();
  const { promise, resolve, reject } = Promise.withResolvers<Buffer<ArrayBuffer>>();
  let chunks: Buffer[] | null = [];
  let size = 0;
  const refuse = (error: AppError) => {
    chunks = null;
    reject(error);
  };
  req.on('data', (chunk: Buffer) => {
    if (chunks === null) return;
    size += chunk.length;
    if (size > MAX_BODY_BYTES) {
      closeBody(refuse);
      return refuse(tooLarge());
    }
    chunks.push(chunk);
    if (size > SMALL_BODY_BYTES) growBody(refuse, size);
  });
  req.on('end', () => {
    closeBody(refuse);
    if (chunks) resolve(Buffer.concat(chunks));
  });
  // If the client disconnects, no response is needed, but the handler must not wait forever.
  const onEarlyEnd = () => {
    closeBody(refuse);
    if (!req.readableEnded) refuse(invalid(null, 'The body ended early'));
  };
  req.on('error', onEarlyEnd).on('close', onEarlyEnd);
  return promise;
}
