/** One contract test for both storage drivers; S3 is tested with Ceph's gateway. */
import { createHash, randomBytes } from 'node:crypto';
import { mkdtemp, readdir, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { openFolder } from '../../src/platform/storage/folder.ts';
import { openStorage } from '../../src/platform/storage/open.ts';
import { openS3 } from '../../src/platform/storage/s3.ts';
import { removeAll, type Storage, StorageUnavailable } from '../../src/platform/storage/storage.ts';
import { has, needs } from '../support/needs.ts';
import { startS3 } from '../support/s3-server.ts';

const cleanup = new AsyncDisposableStack();
afterAll(() => cleanup.disposeAsync());

const root = await mkdtemp(join(tmpdir(), 'loam-storage-'));
cleanup.defer(() => rm(root, { recursive: true }));
const server = has('ceph') ? cleanup.use(await startS3()) : undefined;

const DRIVERS = {
  folder: () => openFolder(root),
  s3: () => openS3(server?.config ?? { bucket: '', prefix: '' }),
};

describe.each(['folder', 's3'] as const)('storage: %s', (driver) => {
  let storage: Storage;
  beforeEach(async (ctx) => {
    if (driver === 's3') needs(ctx, 'ceph');
    storage = await DRIVERS[driver]();
    await removeAll(storage, '');
    return () => storage[Symbol.dispose]();
  });

  const keys = async (prefix = '') =>
    (await Array.fromAsync(storage.list(prefix))).map(({ key }) => key).sort();
  const read = async (key: string, range?: { start: number; end: number }) => {
    const found = await storage.open(key, range);
    return found && { ...found, contents: await buffer(found.contents) };
  };

  test('an object can be read, whole and in part, until it is removed', async () => {
    const text = Buffer.from('0123456789');
    const stored = await storage.put('a/b/c.txt', text);
    expect(stored.size).toBe(10);
    expect(Date.now() - stored.modifiedAt.getTime()).toBeLessThan(60_000);
    expect(await storage.stat('a/b/c.txt')).toEqual(stored);
    expect(await read('a/b/c.txt')).toEqual({ ...stored, contents: text });
    expect(await read('a/b/c.txt', { start: 3, end: 5 })).toEqual({
      ...stored,
      contents: Buffer.from('345'),
    });
    await storage.put('a/empty', Buffer.alloc(0));
    expect(await read('a/empty')).toMatchObject({ size: 0, contents: Buffer.alloc(0) });
    await storage.put('aa/other', text);
    expect(await keys()).toEqual(['a/b/c.txt', 'a/empty', 'aa/other']);
    expect(await keys('a/')).toEqual(['a/b/c.txt', 'a/empty']);
    await storage.remove('a/b/c.txt');
    await storage.remove('a/b/c.txt');
    expect(await read('a/b/c.txt')).toBeNull();
    expect(await storage.stat('a/b/c.txt')).toBeNull();
    expect(await keys('a/b/')).toEqual([]);
    await removeAll(storage, 'a/');
    expect(await keys()).toEqual(['aa/other']);
  });

  test('a range is read into memory of the reader, which may stop early', async () => {
    const contents = randomBytes(3_000_000);
    await storage.put('large', contents);
    {
      await using reading = await storage.read('large', { start: 7, end: 2_500_000 });
      const memory = new Uint8Array(new SharedArrayBuffer(1_000_000));
      const parts: Buffer[] = [];
      for (let bytes = -1; reading && bytes !== 0; ) {
        bytes = await reading.into(memory);
        parts.push(Buffer.from(memory.slice(0, bytes)));
      }
      expect(Buffer.concat(parts).equals(contents.subarray(7, 2_500_001))).toBe(true);
    }
    {
      await using reading = await storage.read('large', { start: 0, end: 2_999_999 });
      expect(await reading?.into(new Uint8Array(10))).toBeGreaterThan(0);
    }
    expect(await storage.read('nothing', { start: 0, end: 1 })).toBeNull();
  });

  test('other contents under the same key have another version', async () => {
    const first = await storage.put('key', Buffer.from('one'));
    const second = await storage.put('key', Buffer.from('two'));
    expect(second.version).not.toBe(first.version);
    expect((await read('key'))?.contents.toString()).toBe('two');
  });

  test('a stream of unknown size is stored unchanged', async () => {
    const hash = createHash('sha256');
    const stream = Readable.from(
      (function* () {
        for (let i = 0; i < 300; i++) {
          const chunk = randomBytes(100_000 + i);
          hash.update(chunk);
          yield chunk;
        }
      })(),
    );
    const { size } = await storage.put('large', stream);
    expect(size).toBe(300 * 100_000 + (299 * 300) / 2);
    const back = createHash('sha256');
    for await (const chunk of (await storage.open('large'))?.contents ?? []) back.update(chunk);
    expect(back.digest('hex')).toBe(hash.digest('hex'));
  });

  test('a reader may stop early', async () => {
    await storage.put('large', randomBytes(20_000_000));
    const found = await storage.open('large');
    for await (const _ of found?.contents ?? []) break;
    await expect.poll(() => found?.contents.destroyed).toBe(true);
  });

  test.each([100, 20_000_000])(
    'an upload that fails after %d bytes changes nothing',
    async (bytes) => {
      await storage.put('kept', Buffer.from('before'));
      const broken = () =>
        Readable.from(
          (async function* () {
            for (let sent = 0; sent < bytes; sent += 1_000_000)
              yield randomBytes(Math.min(1_000_000, bytes));
            throw new Error('the source is gone');
          })(),
        );
      await expect(storage.put('kept', broken())).rejects.toThrow('the source is gone');
      await expect(storage.put('new', broken())).rejects.toThrow('the source is gone');
      expect(await keys()).toEqual(['kept']);
      expect((await read('kept'))?.contents.toString()).toBe('before');
    },
  );

  test('an aborted upload changes nothing', async () => {
    await storage.put('kept', Buffer.from('before'));
    const abort = new AbortController();
    const endless = Readable.from(
      (async function* () {
        for (let i = 0; ; i++) {
          if (i === 20) abort.abort(new Error('not any more'));
          yield randomBytes(1_000_000);
          await delay(1);
        }
      })(),
    );
    const { signal } = abort;
    await expect(storage.put('kept', endless, { signal })).rejects.toThrow('not any more');
    await expect(storage.put('kept', Buffer.from('x'), { signal })).rejects.toThrow('not any more');
    expect((await read('kept'))?.contents.toString()).toBe('before');
    expect(endless.destroyed).toBe(true);
  });

  test('of concurrent uploads to one key, one is stored completely', async () => {
    const all = Array.from({ length: 8 }, (_, i) => Buffer.alloc(200_000, i));
    await Promise.all(all.map((contents) => storage.put('shared/key', contents)));
    const { contents } = (await read('shared/key')) ?? { contents: Buffer.alloc(0) };
    expect(all.some((one) => one.equals(contents))).toBe(true);
  });

  test('concurrent uploads and removals in one folder', async () => {
    const rounds = async (name: string) => {
      for (let i = 0; i < 40; i++) {
        await storage.put(`deep/er/${name}`, Buffer.from(name));
        await storage.remove(`deep/er/${name}`);
      }
    };
    await Promise.all(['a', 'b', 'c'].map(rounds));
    expect(await keys()).toEqual([]);
  });

  test('a list of more than a thousand objects', async () => {
    const names = Array.from({ length: 1_100 }, (_, i) => `many/${i}`);
    for (let at = 0; at < names.length; at += 100)
      await Promise.all(names.slice(at, at + 100).map((key) => storage.put(key, Buffer.from('x'))));
    expect((await keys('many/')).length).toBe(1_100);
    await removeAll(storage, 'many/');
    expect(await keys()).toEqual([]);
  });

  test.each(['', '/a', 'a//b', 'a/', '../a', 'a/../b', '.hidden', 'a b', 'a\0b'])(
    '%j is not a valid key',
    async (key) => {
      await expect(async () => storage.put(key, Buffer.from('x'))).rejects.toThrow(
        'invalid storage key',
      );
      await expect(async () => storage.open(key)).rejects.toThrow('invalid storage key');
    },
  );

  test('a download link works without credentials, if the driver supports links', async () => {
    await storage.put('a/file', Buffer.from('0123456789'));
    const link = await storage.link('a/file', 60, 'été.txt');
    if (driver === 'folder') return expect(link).toBeNull();
    const response = await fetch(link as string, { headers: { range: 'bytes=2-4' } });
    expect(response.status).toBe(206);
    expect(await response.text()).toBe('234');
    expect(response.headers.get('content-disposition')).toContain("UTF-8''%C3%A9t%C3%A9.txt");
  });

  test('removeAbandoned does not remove running uploads', async () => {
    const slow = Readable.from(
      (async function* () {
        for (let i = 0; i < 20; i++) {
          yield randomBytes(1_000_000);
          if (i === 15) await storage.removeAbandoned();
        }
      })(),
    );
    expect((await storage.put('slow', slow)).size).toBe(20_000_000);
    await storage.removeAbandoned();
    expect(await keys()).toEqual(['slow']);
  });
});

test('a folder: uploads that were interrupted more than a day ago are removed', async () => {
  using storage = await openFolder(root);
  await removeAll(storage, '');
  const unfinished = join(root, '.unfinished');
  for (const [name, hours] of [
    ['old', 25],
    ['young', 23],
  ] as const) {
    const file = join(unfinished, name);
    await writeFile(file, 'x');
    const time = new Date(Date.now() - hours * 60 * 60_000);
    await utimes(file, time, time);
  }
  await storage.removeAbandoned();
  expect(await readdir(unfinished)).toEqual(['young']);
  expect(await Array.fromAsync(storage.list(''))).toEqual([]);
});

test('a folder that cannot be created is refused with its path, and a created folder is private', async () => {
  const inPlace = (path: string) => openStorage({ storage: { kind: 'folder', path } });
  const refused = { message: expect.stringMatching(/^LOAM_STORAGE: cannot write to /) };
  for (const path of ['/proc/loam/deep', '/dev/null/x', `/tmp/${'x'.repeat(300)}`])
    await expect(inPlace(path)).rejects.toMatchObject(refused);
  const path = join(root, 'made', 'deep');
  (await inPlace(path))[Symbol.dispose]();
  expect((await stat(path)).mode & 0o777).toBe(0o700);
});

test('s3: a server that does not answer is unavailable, and a missing bucket is an error', async (ctx) => {
  needs(ctx, 'ceph');
  const config = server?.config ?? { bucket: '', prefix: '' };
  await expect(openS3({ ...config, endpoint: 'http://127.0.0.1:1' })).rejects.toThrow(
    StorageUnavailable,
  );
  await expect(openS3({ ...config, bucket: 'nobodys' })).rejects.toThrow(
    'LOAM_STORAGE: s3://nobodys/some/prefix does not exist; create the bucket first',
  );
  const credentials = { accessKeyId: 'testkey', secretAccessKey: 'wrong' };
  await expect(openS3({ ...config, credentials })).rejects.toThrow(
    'denies access with these credentials',
  );
});
