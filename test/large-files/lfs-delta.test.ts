/** Uploads of large files as deltas to an older object of the repository. */
import { hash, randomBytes } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Client, startApp, type TestApp } from '../support/harness.ts';

const MIB = 2 ** 20;

let app: TestApp;
let ada: Client;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
});
afterAll(() => app[Symbol.asyncDispose]());

const oidOf = (bytes: Buffer) => hash('sha256', bytes);
const objects = (name: string) => `/ada/${name}.git/info/lfs/objects`;

async function createWithObject(name: string, bytes: Buffer): Promise<void> {
  await ada.post('/auth/v1/repository/ada', { name });
  const put = await ada.request('PUT', `${objects(name)}/${oidOf(bytes)}`, {
    body: bytes as never,
  });
  expect(put.status).toBe(200);
}

function copy(offset: number, length: number): Buffer {
  const header = Buffer.alloc(17);
  header.writeBigUInt64BE(BigInt(offset), 1);
  header.writeBigUInt64BE(BigInt(length), 9);
  return header;
}

function insert(bytes: Buffer): Buffer {
  const header = Buffer.from([1, 0, 0, 0, 0]);
  header.writeUInt32BE(bytes.length, 1);
  return Buffer.concat([header, bytes]);
}

type Upload = {
  base: Buffer | string;
  result: Buffer;
  delta: Buffer[];
  type?: string;
  size?: number;
};

async function upload(name: string, { base, result, delta, type, size }: Upload, client = ada) {
  const baseOid = typeof base === 'string' ? base : oidOf(base);
  const query = `size=${size ?? result.length}&base=${baseOid}`;
  const { status, body } = await client.request(
    'POST',
    `${objects(name)}/${oidOf(result)}/delta?${query}`,
    {
      body: Buffer.concat(delta) as never,
      headers: { 'content-type': type ?? 'application/vnd.loam.delta' },
    },
  );
  return { status, message: body?.message as string | undefined };
}

async function download(name: string, bytes: Buffer) {
  const response = await fetch(`${ada.base}${objects(name)}/${oidOf(bytes)}`, {
    headers: { authorization: ada.authorization ?? '' },
  });
  return { status: response.status, bytes: Buffer.from(await response.arrayBuffer()) };
}

test('an object is assembled from its base and the inserted bytes, also in another order', async () => {
  const base = randomBytes(3 * MIB);
  await createWithObject('model', base);
  const [head, tail] = [randomBytes(100_000), randomBytes(10)];
  const result = Buffer.concat([
    base.subarray(2 * MIB),
    head,
    base.subarray(0, MIB + 17),
    tail,
    base.subarray(5, 6),
  ]);
  const delta = [copy(2 * MIB, MIB), insert(head), copy(0, MIB + 17), insert(tail), copy(5, 1)];
  expect(await upload('model', { base, result, delta })).toMatchObject({ status: 200 });
  expect((await download('model', result)).bytes.equals(result)).toBe(true);
});

test('an empty delta is the empty object, and an empty insertion changes nothing', async () => {
  const base = randomBytes(1_000);
  await createWithObject('edges', base);
  const empty = Buffer.alloc(0);
  expect((await upload('edges', { base, result: empty, delta: [] })).status).toBe(200);
  const delta = [insert(empty), copy(0, 500), insert(empty)];
  expect((await upload('edges', { base, result: base.subarray(0, 500), delta })).status).toBe(200);
});

test('a malformed delta is refused and stores nothing', async () => {
  const base = randomBytes(10_000);
  await createWithObject('bad', base);
  const result = randomBytes(2_000);
  const refusal = async (delta: Buffer[], more: Partial<Upload> = {}) => {
    const { status, message } = await upload('bad', { base, result, delta, ...more });
    return `${status} ${message}`;
  };
  const whole = [insert(result)];
  expect(await refusal([Buffer.from([7])])).toMatch(
    '422 delta: has an instruction of the unknown kind 7',
  );
  expect(await refusal([insert(result).subarray(0, 900)])).toMatch('422 delta: ends within');
  expect(await refusal([copy(0, 500).subarray(0, 9)])).toMatch('422 delta: ends within');
  expect(await refusal([copy(9_999, 2)])).toMatch(
    '422 delta: copies 2 bytes at 9999 of a base of 10000',
  );
  expect(await refusal([copy(2 ** 53, 1)])).toMatch('422 delta: copies');
  expect(await refusal([copy(0, 0)])).toMatch('422 delta: copies 0 bytes');
  expect(await refusal([copy(0, 5_000)])).toMatch('422 delta: yields more than 2000 bytes');
  expect(await refusal([copy(0, 2_000)])).toMatch('422');
  expect(await refusal([insert(result.subarray(1))])).toMatch('422');
  expect(await refusal(whole, { type: 'application/octet-stream' })).toMatch('415 Content-Type');
  expect(await refusal(whole, { base: 'x' })).toMatch('422 base: must be');
  expect(await refusal(whole, { base: oidOf(Buffer.from('unknown')) })).toMatch('404 The object');
  expect(await refusal(whole, { size: Number.NaN })).toMatch('422 size: must be');
  expect((await download('bad', result)).status).toBe(404);
  expect(await refusal(whole)).toMatch('200');
});

test('the base must be an object of the same repository, and uploading needs the right to push', async () => {
  const base = randomBytes(1_000);
  await createWithObject('first', base);
  await ada.post('/auth/v1/repository/ada', { name: 'second' });
  const given = { base, result: base.subarray(1), delta: [copy(1, 999)] };
  expect((await upload('second', given)).status).toBe(404);
  const eve = await app.user('eve');
  expect((await upload('first', given, eve)).status).toBe(404);
});

test('a batch answers a client that can send deltas with that transfer, for uploads only', async () => {
  await createWithObject('batch', randomBytes(10));
  const transferFor = async (operation: string) => {
    const { body } = await ada.request('POST', `${objects('batch')}/batch`, {
      body: JSON.stringify({
        operation,
        transfers: ['basic', 'tus', 'loam-delta'],
        objects: [{ oid: 'a'.repeat(64), size: 5 }],
      }),
      headers: { 'content-type': 'application/vnd.git-lfs+json' },
    });
    return [body.transfer, body.objects[0].actions?.upload?.href];
  };
  expect(await transferFor('upload')).toEqual([
    'loam-delta',
    expect.stringMatching(/objects\/a{64}$/),
  ]);
  expect(await transferFor('download')).toEqual(['basic', undefined]);
});
