/**
 * JSON as RFC 8259 has it, and where a text is none. V8's own messages name a position for some faults only,
 * and quote the text for the others.
 *
 * `jsonc-parser` was tried. It recurses, so that 100,000 open brackets end in a full stack and not in a place; of
 * a fault within a string or a number it names where that begins; and it counts half characters as columns.
 */

import type { IncomingMessage } from 'node:http';
import { invalid } from '../../base/errors.ts';

/** @throws JsonFault */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    const { at, problem } = findFault(text) ?? { at: 0, problem: 'it is nested too deeply' };
    const before = text.slice(0, at).split('\n');
    const column = [...(before.at(-1) as string)].length + 1;
    throw new JsonFault(`line ${before.length}, column ${column}: ${problem}`);
  }
}

/** As `parseJson`, for the body of a request. @throws AppError 400 that says where the fault is */
export function parseBody(text: string): unknown {
  let body: unknown;
  try {
    body = parseJson(text);
  } catch (fault) {
    throw invalid(null, `The body is not valid JSON: ${(fault as Error).message}`);
  }
  demandWellFormed(text, body);
  return body;
}

/**
 * JSON can hold half of a surrogate pair (`"\ud800"`), which has no form in UTF-8: written to the database, it would silently
 * become another character.
 * @param text the JSON that `value` was parsed from
 * @throws AppError 400 that names the value, such as `variables.input.name`
 */
export function demandWellFormed(text: string, value: unknown): void {
  // Text in UTF-8 has whole characters, so only an escape can be half of one.
  if (!/\\u[dD][89a-fA-F]/.test(text)) return;
  const open = [{ path: '', value }];
  for (let next = open.pop(); next; next = open.pop()) {
    const { path, value } = next;
    if (typeof value === 'string' && !value.isWellFormed())
      throw invalid(
        null,
        `${path.slice(0, 100) || 'The body'}: must not hold half of a surrogate pair`,
      );
    if (typeof value !== 'object' || value === null) continue;
    for (const [key, inner] of Object.entries(value))
      open.push({ path: path ? `${path}.${key}` : key, value: inner });
  }
}

/** Its message says where, in lines and characters from 1, and what is wrong there. */
export class JsonFault extends Error {
  override name = 'JsonFault';
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
type Fault = { at: number; problem: string };

const SPACE = /[ \t\n\r]*/y;
const WORD = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/y;

/** The first fault, or undefined in JSON. Containers are kept on a stack of our own: a body may open a million. */
function findFault(text: string): Fault | undefined {
  const open: ('{' | '[')[] = [];
  let expected: Expected = 'value';
  let at = 0;
  const afterValue = (): Expected => {
    const inner = open.at(-1);
    return inner === undefined ? 'end' : inner === '{' ? 'comma or }' : 'comma or ]';
  };
  for (;;) {
    at = endOf(SPACE, text, at) ?? at;
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
    const end = wantsValue ? endOf(WORD, text, at) : undefined;
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
      return { at, problem: `expected ${EXPECTED[expected]}, found ${shown(text, at)}` };
    }
  }
}

function endOf(pattern: RegExp, text: string, at: number): number | undefined {
  pattern.lastIndex = at;
  return pattern.test(text) ? pattern.lastIndex : undefined;
}

/** The place after the string that begins at `start`. */
function endOfString(text: string, start: number): number | Fault {
  for (let at = start + 1; ; at++) {
    const char = text[at];
    if (char === undefined) return { at: start, problem: 'this string has no end' };
    if (char === '"') return at + 1;
    if (char < ' ') return { at, problem: `${shown(text, at)} in a string must be escaped` };
    if (char !== '\\') continue;
    if (!/^(?:["\\/bfnrt]|u[0-9a-fA-F]{4})/.test(text.slice(at + 1, at + 6)))
      return { at, problem: 'there is no such escape in JSON' };
    at++;
  }
}

function shown(text: string, at: number): string {
  const code = text.codePointAt(at);
  if (code === undefined) return 'the end';
  return code > 0x20 && code < 0x7f
    ? JSON.stringify(String.fromCodePoint(code))
    : `U+${code.toString(16).toUpperCase().padStart(4, '0')}`;
}

/*
 * The whole body of a request whose route takes a short one.
 *
 * `express.json` was tried: it reads a body that is too large to its end before it answers, so that one of no given
 * length is not refused while it is sent.
 */

/** Decisions section 2: larger is 400, because 413 is not in the specification's table. */
export const MAX_BODY_BYTES = 1024 * 1024;

/**
 * What is left of a body that is too large is dropped as it comes, for as long as connections.ts allows.
 * @throws AppError 400 when it is too large, or the client goes before its end
 */
export async function readBytes(req: IncomingMessage): Promise<Buffer<ArrayBuffer>> {
  const tooLarge = () => invalid(null, 'The body is larger than 1 MiB');
  if (Number(req.headers['content-length'] ?? 0) > MAX_BODY_BYTES) throw tooLarge();
  const { promise, resolve, reject } = Promise.withResolvers<Buffer<ArrayBuffer>>();
  const chunks: Buffer[] = [];
  let size = 0;
  req.on('data', (chunk: Buffer) => {
    size += chunk.length;
    if (size <= MAX_BODY_BYTES) chunks.push(chunk);
    else reject(tooLarge());
  });
  req.on('end', () => resolve(Buffer.concat(chunks)));
  // Gone before the end: there is nobody left to answer, but the handler must not wait for ever.
  const early = () => {
    if (!req.readableEnded) reject(invalid(null, 'The body ended early'));
  };
  req.on('error', early).on('close', early);
  return promise;
}
