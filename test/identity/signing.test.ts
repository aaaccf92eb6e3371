import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { createSecretBox } from '../../src/jobs/record/secret-box.ts';
import { readKeys } from '../../src/platform/crypto/keys.ts';
import { createSigner } from '../../src/platform/crypto/signed-links.ts';
import { startApp } from '../support/harness.ts';

const query = (url: string) => Object.fromEntries(new URL(url).searchParams);

test('a link works for 15 minutes, and only for its own object and key', () => {
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

test('the key is created once, readable by the owner only', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'loam-key-'));
  try {
    const [first, second] = [await readKeys({ dataDir: dir }), await readKeys({ dataDir: dir })];
    expect(first.derive('signed links')).toEqual(second.derive('signed links'));
    expect(first.derive('signed links')).not.toEqual(first.derive('secrets of jobs'));
    const file = join(dir, 'secret-key');
    expect((await stat(file)).mode & 0o777).toBe(0o600);
    const secretKey = Buffer.from(await readFile(file, 'utf8'), 'base64');
    const given = await readKeys({ dataDir: '/nowhere', secretKey });
    expect(given.derive('recognition')).toEqual(first.derive('recognition'));
  } finally {
    await rm(dir, { recursive: true });
  }
});

test('a file that is not a key is refused', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'loam-key-'));
  try {
    await writeFile(join(dir, 'secret-key'), 'not a key');
    await expect(readKeys({ dataDir: dir })).rejects.toThrow(/^LOAM_DATA_DIR: .*secret-key/);
  } finally {
    await rm(dir, { recursive: true });
  }
});

test('secrets of a job can be opened for that job only', async () => {
  const secretKey = Buffer.alloc(32, 5);
  const box = createSecretBox(await readKeys({ dataDir: '/nowhere', secretKey }));
  const sealed = box.seal('job_1', { A: 'b' });
  expect(box.open('job_1', sealed)).toEqual({ A: 'b' });
  expect(() => box.open('job_2', sealed)).toThrow();
});

test('a server with another key does not start on the same database', async () => {
  await using app = await startApp();
  app.config.secretKey = Buffer.alloc(32, 1);
  await expect(app.restart()).rejects.toThrow(/^LOAM_SECRET_KEY: .* another key/);
  delete app.config.secretKey;
  await app.restart();
  expect((await app.admin.get('/auth/v1/whoami')).status).toBe(200);
});
