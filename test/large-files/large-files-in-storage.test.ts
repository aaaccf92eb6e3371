/** The large-file store on S3, on an S3 server that goes away, and on a full disk. */
import { execFileSync } from 'node:child_process';
import { hash, randomBytes } from 'node:crypto';
import { mkdtempDisposable } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { expect, test } from 'vitest';
import { toClientError } from '../../src/platform/web/error-response.ts';
import { openCuttableProxy } from '../support/cut.ts';
import { startApp, type TestApp } from '../support/harness.ts';
import { checkStore, sweepAll } from '../support/large-files.ts';
import { needs } from '../support/needs.ts';
import { startS3 } from '../support/s3-server.ts';

const { signal } = new AbortController();
const object = (bytes: Buffer) => ({ oid: hash('sha256', bytes), size: bytes.length });

async function repositoryOf({ admin }: TestApp): Promise<string> {
  return (await admin.post('/auth/v1/repository/admin', { name: 'large' })).body.id;
}

/** The error of a failed upload. */
async function refused(work: Promise<void>): Promise<{ status: number; message: string }> {
  const error = await work.then(
    () => new Error('it was taken'),
    (error: unknown) => error,
  );
  const { status, message } = toClientError(error);
  return { status, message };
}

test('packs are stored in S3; while S3 is unavailable, uploads fail and nothing is lost', async (ctx) => {
  needs(ctx, 'ceph');
  await using server = await startS3();
  await using way = openCuttableProxy();
  const port = Number(new URL(server.config.endpoint ?? '').port);
  server.config.endpoint = `http://${await way.before(port)}`;
  await using app = await startApp({ config: { storage: { kind: 's3', ...server.config } } });
  const { services } = app.app;
  const { largeFiles: files } = services;
  const repository = await repositoryOf(app);

  const bytes = randomBytes(20_000_000);
  const { oid } = object(bytes);
  await files.put(repository, object(bytes), Readable.from([bytes]), signal);
  const read = async (range?: { start: number; end: number }) =>
    buffer((await files.open(repository, oid, range))?.body() ?? Readable.from([]));
  expect((await read()).equals(bytes)).toBe(true);
  const [start, end] = [9_999_000, 12_345_678];
  expect((await read({ start, end })).equals(bytes.subarray(start, end))).toBe(true);

  const other = randomBytes(20_000_000);
  const body = async function* () {
    yield other.subarray(0, 12_000_000);
    await way.cut();
    yield other.subarray(12_000_000);
  };
  const away = await refused(files.put(repository, object(other), body(), signal));
  expect(away.status).toBe(503);
  await expect(files.open(repository, oid)).rejects.toThrow();
  await way.mend();
  expect((await read()).equals(bytes)).toBe(true);
  await files.put(repository, object(other), Readable.from([other]), signal);
  await sweepAll(services);
  expect(await checkStore(services)).toMatchObject({ objects: 2, bytes: 40_000_000 });
  await files.remove(repository, [oid, object(other).oid]);
  await sweepAll(services);
  expect((await checkStore(services)).packs).toBe(0);
});

test('an upload that fills the disk fails and leaves no files', async (ctx) => {
  needs(ctx, 'root', 'mount');
  await using folder = await mkdtempDisposable(`${tmpdir()}/loam-full-`);
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=16m', 'none', folder.path]);
  using _ = { [Symbol.dispose]: () => void execFileSync('umount', [folder.path]) };
  await using app = await startApp({
    config: { storage: { kind: 'folder', path: folder.path }, diskFloor: 0 },
  });
  const { services } = app.app;
  const { largeFiles: files } = services;
  const repository = await repositoryOf(app);
  const put = (bytes: Buffer) =>
    files.put(repository, object(bytes), Readable.from([bytes]), signal);
  const small = randomBytes(6_000_000);
  await put(small);
  const full = await refused(put(randomBytes(30_000_000)));
  expect(full).toMatchObject({ status: 500, message: expect.stringContaining('disk') });
  await sweepAll(services);
  expect(await checkStore(services)).toMatchObject({ objects: 1, bytes: 6_000_000 });
  await put(randomBytes(6_000_000));
  const found = await files.open(repository, object(small).oid);
  expect((await buffer(found?.body() ?? Readable.from([]))).equals(small)).toBe(true);
});
