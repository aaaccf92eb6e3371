import { mkdtemp, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { createSigner, openSigner } from '../src/crypto/signed-links.ts';

const query = (url: string) => Object.fromEntries(new URL(url).searchParams);

test('a link works for 15 minutes, for its own thing and under its own key alone', () => {
  let now = Date.parse('2026-01-01T00:00:30Z');
  const signer = createSigner(new Uint8Array(32), () => now);
  const url = signer.signUrl('https://loam.test/x?a=1', 'blob:a');
  expect(url).toMatch(/\?a=1&expires=\d+&signature=[\w-]{43}$/);
  expect(signer.verify('blob:a', query(url))).toBe(true);
  expect(signer.verify('blob:b', query(url))).toBe(false);
  expect(createSigner(new Uint8Array(32).fill(1), () => now).verify('blob:a', query(url))).toBe(
    false,
  );
  expect(signer.verify('blob:a', { ...query(url), expires: '99999999999' })).toBe(false);
  now += 10_000;
  expect(signer.signUrl('https://loam.test/x?a=1', 'blob:a')).toBe(url);
  now += 15 * 60_000 - 10_000;
  expect(signer.verify('blob:a', query(url))).toBe(true);
  now += 60_000;
  expect(signer.verify('blob:a', query(url))).toBe(false);
});

test.each([
  {},
  { expires: '1' },
  { expires: ['99999999999'], signature: 'x' },
  { expires: '1e99', signature: '' },
  { expires: '99999999999', signature: '€' },
])('%j is no signature', (given) => {
  expect(createSigner(new Uint8Array(32)).verify('blob:a', given)).toBe(false);
});

test('the key is made once, for the owner alone', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'loam-key-'));
  try {
    const first = await openSigner(dir);
    const second = await openSigner(dir);
    expect(second.verify('a', query(first.signUrl('https://loam.test/', 'a')))).toBe(true);
    expect((await stat(join(dir, 'signing-key'))).mode & 0o777).toBe(0o600);
  } finally {
    await rm(dir, { recursive: true });
  }
});
