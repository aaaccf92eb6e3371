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
    const before = text.slice(0, at).split('\n');
    const column = [...(before.at(-1) as string)].length + 1;
    throw new JsonSyntaxError(`line ${before.length}, column ${column}: ${problem}`);
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
  if (!HALF_PAIR.test(text)) return;
  const refuse = (path: string) =>
    invalid(null, `${path.slice(0, 100) || 'The body'}: must not contain half of a surrogate pair`);
  const open = [{ path: '', value }];
  for (let next = open.pop(), count = 0; next; next = open.pop(), count++) {
    const { path, value } = next;
    if (count > MAX_SEARCHED) throw refuse('');
    if (typeof value === 'string' && !value.isWellFormed()) throw refuse(path);
    if (typeof value !== 'object' || value === null) continue;
    if (Array.isArray(value) && value.length > MAX_SEARCHED) throw refuse(path);
    for (const [key, inner] of Object.entries(value))
      open.push({ path: path ? `${path}.${key}` : key, value: inner });
  }
}

/** An escaped half of a pair, or an escaped backslash before such digits. */
const HALF_PAIR =
  /\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]/;
/** Values of a body that are searched for the place, in about 10 ms. */
const MAX_SEARCHED = 20_000;

/** The message contains the position, in lines and characters from 1, and the problem. */
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

const SPACE = /[ \t\n\r]*/y;
const WORD = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/y;

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
    at = matchEnd(SPACE, text, at) ?? at;
    const char = text[at];
    if (char === undefined && expected === 'end') return undefined;
    const wantsValue: boolean = expected === 'value' || expected === 'value or ]';
    const wantsName: boolean = expected === 'name' || expected === 'name or }';
    if (char === '"' && (wantsValue || wantsName)) {
      const string = endOfString(text, at);
      if (typeof string !== 'number') return string;
      at = string;
      expected = wantsName ? 'colon' : afterValue();
      continue;
    }
    const end = wantsValue ? matchEnd(WORD, text, at) : undefined;
    if (end !== undefined) {
      at = end;
      expected = afterValue();
    } else if (wantsValue && (char === '{' || char === '[')) {
      open.push(char);
      at++;
      expected = char === '{' ? 'name or }' : 'value or ]';
    } else if (char !== undefined && /[\]}]/.test(char) && expected.endsWith(`or ${char}`)) {
      open.pop();
      at++;
      expected = afterValue();
    } else if (char === ',' && expected.startsWith('comma')) {
      at++;
      expected = expected === 'comma or }' ? 'name' : 'value';
    } else if (char === ':' && expected === 'colon') {
      at++;
      expected = 'value';
    } else {
      return {
        at,
        problem: `expected ${EXPECTED[expected]}, found ${describeCharacter(text, at)}`,
      };
    }
  }
}

function matchEnd(pattern: RegExp, text: string, at: number): number | undefined {
  pattern.lastIndex = at;
  return pattern.test(text) ? pattern.lastIndex : undefined;
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
    if (!/^(?:["\\/bfnrt]|u[0-9a-fA-F]{4})/.test(text.slice(at + 1, at + 6)))
      return { at, problem: 'this escape is not valid in JSON' };
    at++;
  }
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
