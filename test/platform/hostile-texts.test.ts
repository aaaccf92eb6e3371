/**
 * Texts of users that would take minutes if the time of reading them were not linear: the time limit of the test ends it then.
 * And bodies that would take the memory of the server.
 */
import type { IncomingMessage } from 'node:http';
import { PassThrough } from 'node:stream';
import { expect, test } from 'vitest';
import type { AppError } from '../../src/base/errors.ts';
import { parseAllowedImages, parseImageReference } from '../../src/base/image-reference.ts';
import { Pattern } from '../../src/base/pattern.ts';
import { parseCommit } from '../../src/git/objects/commit.ts';
import { parseBody, readBodyBytes } from '../../src/platform/web/request-body.ts';
import { eventually } from '../support/eventually.ts';

test('a commit whose author consists of <', () => {
  const line = `${'<'.repeat(1_000_000)} 1 +0000`;
  const commit = `tree ${'a'.repeat(40)}\nauthor ${line}\ncommitter ${line}\n\nMessage`;
  expect(parseCommit('b'.repeat(40), Buffer.from(commit))).toMatchObject({ message: 'Message' });
  const usual = commit.replaceAll(line, 'Ada  Lovelace <ada@example.com> 1 +0000');
  expect(parseCommit('b'.repeat(40), Buffer.from(usual)).author).toEqual({
    name: 'Ada  Lovelace',
    email: 'ada@example.com',
    date: new Date(1_000),
  });
});

test('the name of an image against a list with many wildcards', () => {
  const allowed = parseAllowedImages([`registry.example.com/${'**a'.repeat(9)}/b`]);
  const image = parseImageReference(`registry.example.com/${'a'.repeat(230)}`);
  if (!image || 'wrong' in allowed) throw new Error('The list is valid');
  expect(allowed(image)).toBe(false);
});

test('a name against a pattern with many wildcards', () => {
  expect(new Pattern(`${'**a*'.repeat(60)}0?z`).matches(`${'a'.repeat(100_000)}0`)).toBe(false);
});

test('bodies with many escapes', () => {
  const numbers = Array.from({ length: 100_000 }, (_, i) => i);
  const text = (escaped: string) => `{"text":"${escaped}","numbers":${JSON.stringify(numbers)}}`;
  expect(parseBody(text('\\ud83d\\ude00'))).toEqual({ text: '😀', numbers });
  for (const half of ['\\ud83d', 'a\\ude00', '\\ud83d\\ud83d\\ude00'])
    expect(() => parseBody(text(half))).toThrow('must not contain half of a surrogate pair');
  // The backslash is escaped, not half of a pair.
  expect(parseBody(text('\\\\ud800'))).toEqual({ text: '\\ud800', numbers });
  expect(() => parseBody(text('\\ud83d\\\\\\ude00'))).toThrow('The body: must not contain half');
  expect(() => parseBody('{"\\ud800":1}')).toThrow('The body: must not contain half');
});

test('long bodies are not searched to their end for the error', () => {
  const values = '[1,\n'.repeat(2 ** 18);
  expect(() => parseBody(`${values}x`)).toThrow('line 65537, column 1: the error is here or later');
  expect(() => parseBody(`[x,${values}`)).toThrow('line 1, column 2: expected a value or "]"');
});

test('bodies that clients have not sent to their end', async () => {
  const chunk = Buffer.alloc(2 ** 20 - 1);
  const outcomes: unknown[] = [];
  const send = (bytes: Buffer) => {
    const body = Object.assign(new PassThrough(), { headers: {} });
    const index = outcomes.push('open') - 1;
    readBodyBytes(body as unknown as IncomingMessage).then(
      (all) => (outcomes[index] = all.length),
      (error: AppError) => (outcomes[index] = error.status),
    );
    body.write(bytes);
    return body;
  };
  const small = send(Buffer.alloc(16_384));
  const large = Array.from({ length: 130 }, () => send(chunk));
  await eventually(() => expect(outcomes.slice(0, 4)).toEqual(['open', 503, 503, 'open']));
  for (const body of [small, ...large]) body.end();
  await eventually(() =>
    expect(outcomes).toEqual([
      ...[16_384, 503, 503],
      ...Array.from({ length: 128 }, () => chunk.length),
    ]),
  );
  // Their memory counts no more.
  const later = send(chunk);
  later.destroy();
  send(chunk).end();
  await eventually(() => expect(outcomes.slice(-2)).toEqual([400, chunk.length]));
});
