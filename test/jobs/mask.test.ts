/** Secrets are masked in logs, in the forms in which programs print them by accident. */
import { monitorEventLoopDelay } from 'node:perf_hooks';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createMask, maskBeginning, maskEnd } from '../../src/jobs/logs/mask.ts';
import { CUT_MARK } from '../../src/runners/runner.ts';

const SECRET = 'tok/en+42 ~!ü?>';
const mask = await createMask({ SECRET });
const LONG = 'The quick brown fox jumps over the lazy dog';
const base64 = (text: string) => Buffer.from(text).toString('base64');
const urlSafe = (text: string) => base64(text).replaceAll('+', '-').replaceAll('/', '_');

test.each([
  ['as it is', SECRET],
  ['base64', base64(SECRET)],
  ['base64 without padding', base64(SECRET).replaceAll('=', '')],
  ['base64 for URLs', urlSafe(SECRET)],
  ['base64 for URLs without padding', Buffer.from(SECRET).toString('base64url')],
  ['hexadecimal', Buffer.from(SECRET).toString('hex')],
  ['hexadecimal in upper case', Buffer.from(SECRET).toString('hex').toUpperCase()],
  ['URL-encoded', encodeURIComponent(SECRET)],
  ['URL-encoded as a form', new URLSearchParams([['', SECRET]]).toString().slice(1)],
  ['URL-encoded in lower case', encodeURIComponent(SECRET).replace(/%../g, (c) => c.toLowerCase())],
  ['in JSON', JSON.stringify(SECRET).slice(1, -1)],
])('a secret is masked: %s', (_form, text) => {
  expect(mask(`before ${text} after ${text}`)).toBe('before *** after ***');
});

test('a secret within other text is masked in base64, wherever it begins and ends', () => {
  for (const before of ['', 'u', 'us', 'use', 'user:'])
    for (const after of ['', '\n', '\r\n', 'and more'])
      for (const encode of [base64, urlSafe]) {
        const whole = encode(before + SECRET + after);
        const shown = mask(`Authorization: Basic ${whole}`);
        // Each character with a bit of the secret is masked, and no other except for padding.
        const from = Math.floor((Buffer.byteLength(before) * 8) / 6);
        const to = Math.ceil((Buffer.byteLength(before + SECRET) * 8) / 6);
        const around = [whole.slice(0, from), whole.slice(to)].map((part) =>
          part.replace(/=+$/, ''),
        );
        expect(shown.replace(/=+$/, '')).toBe(`Authorization: Basic ${around.join('***')}`);
      }
});

test.each(['abcd', 'abcde', 'abcdef', ...[40, 41, 42].map((length) => LONG.slice(0, length))])(
  'base64 of the secret %s with any byte after it is masked to its end',
  async (secret) => {
    const masked = await createMask({ secret });
    for (let byte = 0; byte < 256; byte++) {
      const whole = Buffer.concat([Buffer.from(secret), Buffer.of(byte)]).toString('base64');
      const rest = whole.slice(Math.ceil((secret.length * 8) / 6)).replace(/=+$/, '');
      expect(masked(whole).replace(/=+$/, '')).toBe(`***${rest}`);
    }
  },
);

test('the beginning of a secret is masked where its line was cut', async () => {
  const long = Array.from({ length: 20 }, (_, n) => `part ${n} `).join('');
  const masked = await createMask({ SECRET, long });
  for (const text of [SECRET, long, base64(long), urlSafe(long), base64(SECRET)])
    for (let length = 1; length <= text.length; length++) {
      const shown = masked(`line (${text.slice(0, length)}${CUT_MARK}`);
      expect(shown).toBe(`line (***${CUT_MARK}`);
    }
  expect(masked(`some text?${CUT_MARK}`)).toBe(`some text?${CUT_MARK}`);
  expect(masked(`${SECRET.slice(0, 5)} [cut]`)).toBe(`${SECRET.slice(0, 5)} [cut]`);
});

test('long secrets are masked in wrapped encodings', async () => {
  const key = Array.from({ length: 40 }, (_, n) => `line ${n} of a key ${n * 7919}`).join('\n');
  const masked = await createMask({ key });
  for (const width of [60, 64, 76])
    for (const encoded of [base64(key), base64(`x: ${key}`), Buffer.from(key).toString('hex')]) {
      const lines = encoded.match(new RegExp(`.{1,${width}}`, 'g')) ?? [];
      for (const line of lines.slice(1)) expect(masked(line)).toMatch(/^(\*\*\*|.{1,7})$/);
      expect(masked(lines[0] as string)).toMatch(/^.{0,6}\*\*\*$/);
    }
  for (const line of key.split('\n')) expect(masked(`> ${line}`)).toBe('> ***');
});

test('other text stays as it is', async () => {
  const line = `epoch 3 loss=0.25 ${base64('something else')} 0123456789abcdef %20 ****`;
  expect(mask(line)).toBe(line);
  expect((await createMask({}))(line)).toBe(line);
  expect((await createMask({ EMPTY: '' }))(line)).toBe(line);
  // The encodings of very short secrets would hide ordinary words.
  expect((await createMask({ PIN: '12' }))('MTI 3132 x12')).toBe('MTI 3132 x***');
});

test('secrets that overlap, contain one another or are repeated are masked completely', async () => {
  const masked = await createMask({ A: 'abcd', B: 'cdef', C: 'abcdefgh', D: 'zz' });
  expect(masked('-abcdef-abcdefgh-abcdabcd-zzz-')).toBe('-***-***-***-***-');
});

test('for any secrets and lines, nothing of a secret is left, and all else is kept', async () => {
  const text = (minLength: number, maxLength: number) =>
    fc.string({ minLength, maxLength, unit: 'grapheme' }).filter((one) => !one.includes('*'));
  const words = fc.array(text(1, 90), { minLength: 1, maxLength: 5 });
  await fc.assert(
    fc.asyncProperty(words, fc.array(text(0, 20)), async (secrets, around) => {
      const masked = await createMask(
        Object.fromEntries(secrets.map((secret, n) => [`S${n}`, secret])),
      );
      const line = around.flatMap((text, n) => [text, secrets[n % secrets.length]]).join('');
      const shown = masked(line);
      expect(await masked.inSteps(line)).toBe(shown);
      for (const secret of secrets) expect(shown).not.toContain(secret);
      // Removing the masks leaves a part of the line, in its order.
      let at = 0;
      for (const part of shown.split('***')) {
        at = line.indexOf(part, at);
        expect(at).toBeGreaterThanOrEqual(0);
        at += part.length;
      }
    }),
  );
});

test('the time for a line is bounded, whatever the secrets are', async () => {
  const nested = Object.fromEntries(
    Array.from({ length: 900 }, (_, n) => [`N${n}`, 'a'.repeat((n % 63) + 1)]),
  );
  const begun = process.cpuUsage();
  expect((await createMask(nested))('a'.repeat(65_536))).toBe('***');
  expect((await createMask({ LONG: 'ab'.repeat(32_000) }))('ab'.repeat(32_000))).toBe('***');
  expect(process.cpuUsage(begun).user).toBeLessThan(5e6);
});

test('masks of many secrets and of long texts hold this thread for moments only', async () => {
  const secrets = {
    // Of patterns that begin with one another, the longest one is found at once.
    ...Object.fromEntries(Array.from({ length: 64 }, (_, n) => [`N${n}`, 'a'.repeat(n + 1)])),
    LINES: Array.from({ length: 3_000 }, (_, n) => `line-${n}`).join('\n'),
  };
  const delay = monitorEventLoopDelay({ resolution: 1 });
  delay.enable();
  const masked = await createMask(secrets);
  const text = `${'a'.repeat(63)}x`.repeat(10_000);
  expect(await masked.inSteps(`${text}line-7`)).toBe(`${'***x'.repeat(10_000)}***`);
  delay.disable();
  // In one step it would take seconds. A busy machine has delays of its own.
  expect(delay.max / 1e6).toBeLessThan(400);
});

test('a part of a text shows no part of a secret', async () => {
  const long = Array.from({ length: 20 }, (_, n) => `part ${n} `).join('');
  const masked = await createMask({ SECRET, long });
  for (const secret of [SECRET, long, base64(long)])
    for (let at = 0; at <= secret.length; at++) {
      const before = '.'.repeat(Math.max(0, 100 - at)) + secret;
      expect(maskBeginning(`${before}${'.'.repeat(300)}`, 100, masked)).toMatch(/^[.*]*…$/);
      const after = secret + '.'.repeat(Math.max(0, 100 - at));
      expect(maskEnd(`${'.'.repeat(300)}${after}`, 100, masked)).toMatch(/^[.*]*$/);
    }
  expect(maskBeginning('short', 5, masked)).toBe('short');
  expect(maskBeginning('longer', 5, masked)).toBe('long…');
  expect(maskEnd('longer', 5, masked)).toBe('onger');
});
