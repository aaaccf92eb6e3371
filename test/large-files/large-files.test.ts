/** The large-file store, through the services of the running app. */
import { createHash, randomBytes } from 'node:crypto';
import { readdir, readFile, readlink, rm, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { deriveGearTable } from '../../src/repositories/lfs/store/chunking.ts';
import { PackWriter } from '../../src/repositories/lfs/store/packs.ts';
import type { LargeFiles } from '../../src/repositories/lfs/store/store.ts';
import type { GracePeriods } from '../../src/repositories/lfs/store/sweep.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { checkStore, sweepAll } from '../support/large-files.ts';

let app: TestApp;
let ada: Client;
let files: LargeFiles;
let shared: string;
let other: string;
let own: string;

const never = new AbortController().signal;
const oidOf = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');
const piecesOf = (bytes: Buffer, length = 65_536) =>
  Readable.from(
    (function* () {
      for (let at = 0; at < bytes.length; at += length) yield bytes.subarray(at, at + length);
    })(),
  );

async function make(name: string, contentAddressed = true): Promise<string> {
  const { body } = await ada.post('/auth/v1/repository/ada', {
    name,
    content_addressed: contentAddressed,
  });
  return body.id;
}

async function put(repository: string, bytes: Buffer, signal = never): Promise<string> {
  const oid = oidOf(bytes);
  await files.put(repository, { oid, size: bytes.length }, piecesOf(bytes), signal);
  return oid;
}

async function read(repository: string, oid: string, range?: { start: number; end: number }) {
  const found = await files.open(repository, oid, range);
  return found && buffer(found.body());
}

const sum = async (sql: string) => Number((await app.pool.query(sql)).rows[0].sum ?? 0);
/** Total bytes of all packs. */
const packed = () => sum('select sum(bytes) from large_packs');
const sizes = async (repository: string) => {
  const { rows } = await app.pool.query(
    `select r.size_bytes - r.large_bytes as git, r.large_bytes as large, n.storage_bytes as stored
     from repositories r join namespaces n on n.id = r.namespace_id where r.id = $1`,
    [repository],
  );
  return { git: +rows[0].git, large: +rows[0].large, stored: +rows[0].stored };
};

beforeAll(async () => {
  app = await startApp();
  files = app.app.services.largeFiles;
  ada = await app.user('ada');
});
afterAll(() => app[Symbol.asyncDispose]());
let count = 0;
beforeEach(async () => {
  count++;
  shared = await make(`shared${count}`);
  other = await make(`other${count}`);
  own = await make(`own${count}`, false);
});

test('an object is readable, whole and by range, in its repository only', async () => {
  for (const length of [0, 1, 8_192, 131_072, 5_000_000]) {
    const bytes = randomBytes(length);
    const oid = await put(shared, bytes);
    expect((await read(shared, oid))?.equals(bytes)).toBe(true);
    expect(await files.sizes(shared, [oid, '0'.repeat(64)])).toEqual(new Map([[oid, length]]));
    for (const [start, end] of [
      [0, 0],
      [0, Math.min(10, length)],
      [length >> 1, length],
      [length >> 2, length >> 1],
      [Math.max(0, length - 1), length],
      [length, length],
    ] as const)
      expect((await read(shared, oid, { start, end }))?.equals(bytes.subarray(start, end))).toBe(
        true,
      );
    await expect(files.open(shared, oid, { start: 0, end: length + 1 })).rejects.toThrow(
      RangeError,
    );
    for (const stranger of [other, own]) {
      expect(await files.open(stranger, oid)).toBeNull();
      expect((await files.sizes(stranger, [oid])).size).toBe(0);
    }
  }
});

test('equal contents are stored once in the shared store, and once per repository with its own store', async () => {
  const bytes = randomBytes(3_000_000);
  const before = await packed();
  const oid = await put(shared, bytes);
  expect((await packed()) - before).toBe(bytes.length);
  await put(other, bytes);
  await put(shared, bytes);
  expect((await packed()) - before).toBe(bytes.length);
  await put(own, bytes);
  expect((await packed()) - before).toBe(2 * bytes.length);
  for (const one of [shared, other, own]) expect((await read(one, oid))?.equals(bytes)).toBe(true);
});

test('an inserted byte adds few new chunks, and a file of one repeated byte needs almost no space', async () => {
  const bytes = randomBytes(6_000_000);
  await put(shared, bytes);
  const before = await packed();
  const changed = Buffer.concat([
    bytes.subarray(0, 3_000_000),
    Buffer.from('x'),
    bytes.subarray(3_000_000),
  ]);
  const oid = await put(other, changed);
  expect((await packed()) - before).toBeLessThan(1_000_000);
  expect((await read(other, oid))?.equals(changed)).toBe(true);
  const even = Buffer.alloc(20_000_000, 'a');
  const evenOid = await put(shared, even);
  expect((await packed()) - before).toBeLessThan(1_300_000);
  expect((await read(shared, evenOid))?.equals(even)).toBe(true);
});

test('clients cannot create contents with unusually many chunks', async () => {
  // Every piece ends at a boundary of a gear table that anybody can compute, but not of the secret one.
  const known = Array.from({ length: 256 }, (_, byte) =>
    createHash('sha256').update(`gear ${byte}`).digest().readInt32BE(),
  );
  const cuts = (end: Buffer) =>
    end.reduce((hash, byte) => ((hash << 1) + (known[byte] as number)) | 0, 0) >>> 16 === 0;
  let end = randomBytes(32);
  while (!cuts(end)) end = randomBytes(32);
  const pieces = Array.from({ length: 500 }, () => Buffer.concat([randomBytes(8_161), end]));
  const oid = await put(shared, Buffer.concat(pieces));
  const { rows } = await app.pool.query<{ bytes: number }>(
    'select sum(length(chunks))::int as bytes from large_recipes where oid = $1',
    [oid],
  );
  expect((rows[0]?.bytes ?? 0) / 36).toBeLessThan(150);
  // With another gear table, no stored chunks would be found.
  const gear = deriveGearTable(new Uint8Array(32));
  expect([gear[0], gear[1], gear[255]]).toEqual([-861235418, 823269103, -1098472411]);
});

test('an upload whose bytes do not match is refused and leaves nothing', async () => {
  const bytes = randomBytes(3_000_000);
  const oid = oidOf(bytes);
  const before = await sizes(shared);
  const rows = () => sum('select count(*) as sum from large_chunks');
  const chunks = await rows();
  const size = bytes.length;
  const refused = (object: object, body = bytes) =>
    files.put(shared, { oid, size, ...object }, piecesOf(body), never);
  for (const [object, field] of [
    [{ oid: oidOf(Buffer.from('other')) }, 'oid'],
    [{ size: size + 1 }, 'size'],
    [{ size: size - 1 }, 'size'],
    [{ size: -1 }, 'size'],
    [{ size: 1.5 }, 'size'],
    [{ size: 2 ** 50 }, 'size'],
    [{ oid: oid.toUpperCase() }, 'oid'],
    [{ oid: '../../etc/passwd' }, 'oid'],
  ] as const)
    await expect(refused(object)).rejects.toMatchObject({ status: 422, field });
  expect(await rows()).toBe(chunks);
  expect(await sizes(shared)).toEqual(before);
  expect(await files.open(shared, oid)).toBeNull();
});

test('an object counts once per repository, for the repository and its namespace, and moves with a transfer', async () => {
  const bytes = randomBytes(1_000_000);
  const before = await sizes(shared);
  const oid = await put(shared, bytes);
  await put(shared, bytes);
  expect(await sizes(shared)).toEqual({
    git: before.git,
    large: 1_000_000,
    stored: before.stored + 1_000_000,
  });
  await app.user(`bob${count}`, 'free');
  const answer = await app.admin.post(`/auth/v1/repository/ada/${shared}/transfer`, {
    new_namespace: `bob${count}`,
  });
  expect(answer.status).toBe(200);
  const moved = await sizes(shared);
  expect(moved.stored).toBe(moved.git + 1_000_000);
  expect((await read(shared, oid))?.equals(bytes)).toBe(true);
  await files.remove(shared, [oid, '0'.repeat(64)]);
  await files.remove(shared, [oid]);
  expect(await sizes(shared)).toEqual({ git: moved.git, large: 0, stored: moved.git });
  expect(await files.open(shared, oid)).toBeNull();
});

test('a full quota refuses an upload before reading it, and a quota that fills meanwhile refuses it at the end', async () => {
  const name = `carl${count}`;
  const carl = await app.user(name, 'free');
  const { body: repository } = await carl.post(`/auth/v1/repository/${name}`, { name: 'r' });
  const set = (bytes: number) =>
    app.pool.query('update namespaces set storage_bytes = $2 where name = $1', [name, bytes]);
  const limit = 2 ** 50;
  await set(limit);
  const bytes = randomBytes(200_000);
  let isRead = false;
  const body = (async function* () {
    isRead = true;
    await set(limit);
    yield bytes;
  })();
  const object = { oid: oidOf(bytes), size: bytes.length };
  const refused = { code: 'quota_exceeded', status: 403 };
  await expect(files.put(repository.id, object, body, never)).rejects.toMatchObject(refused);
  expect(isRead).toBe(false);
  await set(0);
  await expect(files.put(repository.id, object, body, never)).rejects.toMatchObject(refused);
  expect(isRead).toBe(true);
  expect(await files.open(repository.id, object.oid)).toBeNull();
  await set(0);
});

test('concurrent uploads cannot exceed the quota, whether resumable or not', async () => {
  const name = `dora${count}`;
  const dora = await app.user(name, 'free');
  const { body } = await dora.post(`/auth/v1/repository/${name}`, { name: 'r' });
  const id: string = body.id;
  const size = 9 * 2 ** 20;
  await app.pool.query('update namespaces set storage_bytes = $2 where name = $1', [
    name,
    10 * 2 ** 30 - 20 * 2 ** 20,
  ]);
  /** Starts an upload that waits for `go` before its last bytes, and is then interrupted. */
  const begin = (isResumable: boolean) => {
    const bytes = randomBytes(size);
    const begun = Promise.withResolvers<string>();
    const go = Promise.withResolvers<void>();
    const slow = (async function* () {
      yield* piecesOf(bytes.subarray(0, size - 1_000));
      begun.resolve('begun');
      await go.promise;
      throw new Error('the network is gone');
    })();
    const object = { oid: oidOf(bytes), size };
    const ended: Promise<string> = (
      isResumable
        ? files.resume(id, { ...object, from: 0 }, slow, never)
        : files.put(id, object, slow, never)
    ).then(
      () => 'stored',
      (error) => error.code ?? error.message,
    );
    return { object, go, ended, first: Promise.race([begun.promise, ended]) };
  };
  const ranAtOnce = async (isResumable: boolean) => {
    const uploads = Array.from({ length: 6 }, () => begin(isResumable));
    const first = await Promise.all(uploads.map((one) => one.first));
    expect(first.toSorted()).toEqual([...['begun', 'begun'], ...Array(4).fill('quota_exceeded')]);
    for (const { go } of uploads) go.resolve();
    await Promise.all(uploads.map(({ ended }) => ended));
    return uploads.filter((_, i) => first[i] === 'begun');
  };
  await ranAtOnce(false);
  // An interrupted upload that cannot be resumed has released its reservation.
  const [kept] = await ranAtOnce(true);
  if (!kept) throw new Error('none was begun');
  expect(await files.offset(id, kept.object)).toBeGreaterThan(0);
  // A resumable upload keeps its reservation, which only it can use.
  expect(await begin(true).ended).toBe('quota_exceeded');
  expect(await begin(false).ended).toBe('quota_exceeded');
  expect(await sum(`select sum(size) from large_uploads where repository_id = '${id}'`)).toBe(
    2 * size,
  );
  await sweepAll(app.app.services);
  const after = begin(true);
  expect(await after.first).toBe('begun');
  after.go.resolve();
  await after.ended;
});

test('a body that ends early, fails or is aborted leaves nothing', async () => {
  const bytes = randomBytes(9_000_000);
  const object = { oid: oidOf(bytes), size: bytes.length };
  const before = await packed();
  const abort = new AbortController();
  let isClosed = false;
  const silent = (async function* () {
    try {
      yield bytes.subarray(0, 8_500_000);
      abort.abort(new Error('the client has left'));
      await new Promise((resolve) => setTimeout(resolve, 20));
      yield bytes.subarray(8_500_000);
    } finally {
      isClosed = true;
    }
  })();
  await expect(files.put(shared, object, silent, abort.signal)).rejects.toThrow('has left');
  await expect.poll(() => isClosed).toBe(true);
  const broken = (async function* () {
    yield bytes.subarray(0, 8_500_000);
    throw new Error('the network is gone');
  })();
  await expect(files.put(shared, object, broken, never)).rejects.toThrow('network is gone');
  expect(await packed()).toBe(before);
  expect(await sum(`select count(*) as sum from large_packs where state = 'putting'`)).toBe(0);
  await put(shared, bytes);
});

test('the sweep removes a pack that the storage completes after its upload was aborted', async () => {
  const { pool, storage } = app.app.services;
  let key = '';
  const late: typeof storage = {
    ...storage,
    put(to, contents, { signal = never } = {}) {
      key = to;
      void buffer(contents as AsyncIterable<Uint8Array>).catch(() => {});
      const { promise, reject } = Promise.withResolvers<never>();
      signal.addEventListener('abort', () => reject(signal.reason));
      return promise;
    },
  };
  const writer = new PackWriter({ pool, storage: late }, 1, never);
  const bytes = randomBytes(10_000);
  await writer.add([{ hash: createHash('sha256').update(bytes).digest(), bytes }]);
  await writer.abandon();
  // S3 may complete a request that was sent before the abort.
  await storage.put(key, bytes);
  await checkStore(app.app.services);
  await sweepAll(app.app.services);
  expect(await storage.stat(key)).toBeNull();
});

test('a pack whose commit was not confirmed stays in storage, because its chunks may be in the database', async () => {
  const { pool, storage } = app.app.services;
  // The reply to a commit is lost. A failed client is not reused, so it need not be restored.
  const unconfirmed = {
    query: pool.query.bind(pool),
    async connect() {
      const client = await pool.connect();
      const query = client.query.bind(client) as (...sent: unknown[]) => Promise<unknown>;
      const queryAndLose = async (...sent: unknown[]) => {
        const result = await query(...sent);
        if (sent[0] === 'commit') throw new Error('the connection was lost');
        return result;
      };
      return Object.assign(client, { query: queryAndLose });
    },
  } as unknown as typeof pool;
  const writer = new PackWriter({ pool: unconfirmed, storage }, 1, never);
  const bytes = randomBytes(10_000);
  const hash = createHash('sha256').update(bytes).digest();
  await writer.add([{ hash, bytes }]);
  await expect(writer.finish()).rejects.toThrow('the connection was lost');
  await writer.abandon();
  const { rows } = await pool.query(
    'select p.key from large_chunks c join large_packs p on p.id = c.pack_id where c.hash = $1',
    [hash],
  );
  expect(rows).toHaveLength(1);
  expect((await storage.stat(rows[0].key))?.size).toBe(bytes.length);
  await checkStore(app.app.services);
});

test('concurrent puts of one object into several repositories store it once', async () => {
  const bytes = randomBytes(2_000_000);
  const oid = oidOf(bytes);
  await Promise.all([shared, other, shared, other, own, own].map((one) => put(one, bytes)));
  for (const one of [shared, other, own]) {
    expect((await read(one, oid))?.equals(bytes)).toBe(true);
    expect((await sizes(one)).large).toBe(2_000_000);
  }
  const { rows } = await app.pool.query(
    'select holders from large_objects where oid = $1 order by store_id',
    [oid],
  );
  expect(rows).toEqual([{ holders: 2 }, { holders: 1 }]);
});

test('uploading a damaged object again replaces its damaged chunks', async () => {
  const bytes = randomBytes(4_000_000);
  const oid = await put(shared, bytes);
  await put(other, bytes);
  const { rows } = await app.pool.query<{ key: string }>(
    `select p.key from large_packs p where p.state = 'kept' and p.bytes > 3900000
     order by p.id desc limit 1`,
  );
  const path = join(app.config.dataDir, 'storage', rows[0]?.key ?? '');
  const pack = await readFile(path);
  for (const at of [10, 1_500_000, 1_500_001, 3_000_000]) pack[at] = (pack[at] as number) ^ 1;
  await writeFile(path, pack);
  await expect(read(shared, oid)).rejects.toThrow('damaged');
  expect(await files.damaged(shared, [oid])).toEqual(new Set([oid]));
  expect(await files.offset(shared, { oid, size: bytes.length })).toBe(0);
  const before = await packed();
  await put(shared, bytes);
  expect((await read(shared, oid))?.equals(bytes)).toBe(true);
  expect((await read(other, oid))?.equals(bytes)).toBe(true);
  // Only the three or four damaged chunks are stored again.
  expect((await packed()) - before).toBeLessThan(600_000);
  expect(await files.damaged(shared, [oid])).toEqual(new Set());
  // A truncated pack, and a missing one.
  for (const left of [2_000_000, null]) {
    const { rows: packs } = await app.pool.query<{ key: string }>(
      `select distinct p.key, p.bytes from large_chunks c join large_packs p on p.id = c.pack_id
       where p.id >= (select max(id) - 3 from large_packs) order by p.bytes desc limit 1`,
    );
    const file = join(app.config.dataDir, 'storage', packs[0]?.key ?? '');
    await (left === null ? rm(file) : truncate(file, left));
    await expect(read(shared, oid)).rejects.toThrow('damaged');
    await put(shared, bytes);
    expect((await read(other, oid))?.equals(bytes)).toBe(true);
  }
  await sweepAll(app.app.services);
  await checkStore(app.app.services);
});

test('a changed byte in a pack fails the read before the chunk is returned', async () => {
  const bytes = randomBytes(3_000_000);
  const oid = await put(own, bytes);
  const { rows } = await app.pool.query(
    'select key from large_packs where store_id = (select id from large_stores where repository_id = $1)',
    [own],
  );
  const path = join(app.config.dataDir, 'storage', rows[0].key);
  const flip = async (at: number) => {
    const pack = await readFile(path);
    pack[at] = (pack[at] as number) ^ 1;
    await writeFile(path, pack);
  };
  await flip(2_500_000);
  const found = await files.open(own, oid);
  const got: Buffer[] = [];
  await expect(async () => {
    for await (const part of found?.body() ?? []) got.push(part);
  }).rejects.toThrow('damaged');
  const handed = Buffer.concat(got);
  expect(handed.length).toBeLessThan(2_500_001);
  expect(bytes.subarray(0, handed.length).equals(handed)).toBe(true);
  expect((await read(own, oid, { start: 0, end: 2_000_000 }))?.length).toBe(2_000_000);
  await flip(2_500_000);
  expect((await read(own, oid))?.equals(bytes)).toBe(true);
  // Detected before a response begins.
  await flip(10);
  await expect(files.open(own, oid)).rejects.toThrow('damaged');
});

test('readers that stop early, or before their first read, close the packs', async () => {
  const oid = await put(shared, randomBytes(5_000_000));
  const openPacks = async () => {
    const fds = await readdir('/proc/self/fd');
    const paths = fds.map((fd) => readlink(`/proc/self/fd/${fd}`).catch(() => ''));
    const names = await Promise.all(paths);
    return names.filter((name) => name.includes('/storage/lfs/')).length;
  };
  (await files.open(shared, oid))?.body().destroy();
  for await (const _ of (await files.open(shared, oid))?.body() ?? []) break;
  for await (const _ of (await files.open(shared, oid))?.pieces ?? []) break;
  await expect.poll(openPacks).toBe(0);
});

const stores = () => sum('select count(*) as sum from large_stores');
const sweep = (graces?: GracePeriods) => sweepAll(app.app.services, graces);
const check = () => checkStore(app.app.services);
/** An empty shared store that no other test uses. */
async function empty() {
  const { rows } = await app.pool.query('select repository_id as id, oid from large_files');
  for (const { id, oid } of rows) await files.remove(id, [oid]);
  await sweep();
  expect(await check()).toEqual({ objects: 0, chunks: 0, packs: 0, bytes: 0 });
}

test('bytes are deleted when no repository has them, and not before', async () => {
  await empty();
  const bytes = randomBytes(3_000_000);
  const oid = await put(shared, bytes);
  await put(other, bytes);
  await files.remove(shared, [oid]);
  await sweep();
  expect(await files.open(shared, oid)).toBeNull();
  expect((await read(other, oid))?.equals(bytes)).toBe(true);
  await ada.delete(`/auth/v1/repository/ada/${other}`);
  await put(own, bytes);
  const before = await stores();
  await ada.delete(`/auth/v1/repository/ada/${own}`);
  await sweep();
  expect(await check()).toEqual({ objects: 0, chunks: 0, packs: 0, bytes: 0 });
  expect(await stores()).toBe(before - 1);
});

test('within the grace period, an upload can reuse unreferenced chunks and objects', async () => {
  await empty();
  const bytes = randomBytes(1_000_000);
  const oid = await put(shared, bytes);
  await files.remove(shared, [oid]);
  // First its chunks, then the object.
  for (let round = 0; round < 2; round++) {
    await sweep({ uploads: 60_000, retired: 0 });
    await put(other, bytes);
    expect(await packed()).toBe(bytes.length);
    expect((await read(other, oid))?.equals(bytes)).toBe(true);
  }
});

test('a mostly dead pack is rewritten, and readers that looked it up before can still read it', async () => {
  await empty();
  const all = Array.from({ length: 4 }, () => randomBytes(9_000_000));
  // One pack with four objects.
  const joint = Buffer.concat(all);
  const whole = await put(shared, joint);
  for (const part of all.slice(0, 2)) await put(shared, part);
  const [, second] = all as [Buffer, Buffer];
  const oid = oidOf(second);
  const reader = await files.open(shared, oid);
  await files.remove(shared, [whole, oidOf(all[0] as Buffer)]);
  await sweep();
  const { bytes } = await check();
  expect(bytes).toBe(9_000_000);
  expect((await read(shared, oid))?.equals(second)).toBe(true);
  expect((await buffer(reader?.body() ?? Readable.from([]))).equals(second)).toBe(true);
});

test('small packs are merged', async () => {
  await empty();
  const all = Array.from({ length: 24 }, (_, i) => randomBytes(20_000 + i));
  for (const bytes of all) await put(shared, bytes);
  expect((await check()).packs).toBe(24);
  await sweep();
  expect((await check()).packs).toBe(3);
  for (const bytes of all) expect((await read(shared, oidOf(bytes)))?.equals(bytes)).toBe(true);
});

test('a damaged pack does not prevent the merge of other packs', async () => {
  await empty();
  const all = Array.from({ length: 9 }, (_, i) => randomBytes(20_000 + i));
  for (const bytes of all) await put(shared, bytes);
  const { rows } = await app.pool.query('select key from large_packs order by id limit 1');
  await writeFile(join(app.config.dataDir, 'storage', rows[0].key), randomBytes(20_000));
  await sweep();
  await put(shared, randomBytes(20_100));
  await sweep();
  expect((await check()).packs).toBeLessThan(4);
  for (const bytes of all.slice(1))
    expect((await read(shared, oidOf(bytes)))?.equals(bytes)).toBe(true);
});

test('concurrent puts, removals and sweeps lose nothing', async () => {
  await empty();
  const base = randomBytes(300_000);
  const versions = Array.from({ length: 6 }, (_, i) =>
    Buffer.concat([base.subarray(0, 50_000 * i), randomBytes(30_000), base.subarray(50_000 * i)]),
  );
  const repositories = [shared, other, own];
  let left = 60;
  const worker = async (seed: number) => {
    for (let i = seed; left-- > 0; i += 7) {
      const repository = repositories[i % 3] as string;
      const bytes = versions[i % 6] as Buffer;
      const oid = await put(repository, bytes);
      await (await files.open(repository, oid))?.body().destroy();
      if (i % 2 === 0) await files.remove(repository, [oid]);
    }
  };
  const sweeping = (async () => {
    while (left > 0) await sweep({ uploads: 60_000, retired: 0 });
  })();
  await Promise.all([0, 1, 2, 3].map(worker));
  await sweeping;
  await check();
  for (const repository of repositories)
    for (const bytes of versions) {
      const found = await read(repository, oidOf(bytes));
      if (found) expect(found.equals(bytes)).toBe(true);
    }
  await sweep();
  await check();
  await empty();
});
