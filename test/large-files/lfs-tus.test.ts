/** Resumable uploads: the stock git-lfs with `tus`, and requests that it does not send. */
import { hash, randomBytes } from 'node:crypto';
import { request } from 'node:http';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openCuttableProxy } from '../support/cut.ts';
import { eventually } from '../support/eventually.ts';
import { remote, Workspace } from '../support/git.ts';
import { Client, startApp, type TestApp } from '../support/harness.ts';
import { checkStore, sweepAll } from '../support/large-files.ts';
import { needs } from '../support/needs.ts';
import { freePort } from '../support/ports.ts';
import { type Servers, startServers } from '../support/servers.ts';

const MEDIA_TYPE = 'application/vnd.git-lfs+json';
const MIB = 2 ** 20;

let servers: Servers;
let one: Client;
let two: Client;

beforeAll(async () => {
  servers = await startServers(2);
  [one, two] = servers.clients as [Client, Client];
});
afterAll(() => servers[Symbol.asyncDispose]());

async function create(name: string, more: object = {}): Promise<string> {
  const { status, body } = await one.post('/auth/v1/repository/admin', { name, ...more });
  expect(status).toBe(201);
  return body.id;
}

async function uploadOf(client: Client, name: string, objects: object[], transfers = ['tus']) {
  const { status, body } = await client.request(
    'POST',
    `/admin/${name}.git/info/lfs/objects/batch`,
    {
      body: JSON.stringify({ operation: 'upload', transfers, objects }),
      headers: { 'content-type': MEDIA_TYPE },
    },
  );
  expect(status).toBe(200);
  return body;
}

const objectOf = (bytes: Buffer) => ({ oid: hash('sha256', bytes), size: bytes.length });

/** The upload URL of an object at a server. */
const at = (client: Client, name: string, bytes: Buffer, size = bytes.length) =>
  `${client.base}/admin/${name}.git/info/lfs/uploads/${objectOf(bytes).oid}?size=${size}`;

async function offset(client: Client, url: string): Promise<number> {
  const headers = { 'tus-resumable': '1.0.0' };
  const answer = await client.request('HEAD', url, { headers });
  expect([answer.status, answer.headers.get('tus-resumable')]).toEqual([200, '1.0.0']);
  return Number(answer.headers.get('upload-offset'));
}

/** Sends the bytes from `from`, and aborts at `until` if given. */
function patch(client: Client, url: string, bytes: Buffer, from: number, until?: number) {
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  const req = request(url, {
    method: 'PATCH',
    headers: {
      authorization: client.authorization ?? '',
      'tus-resumable': '1.0.0',
      'upload-offset': from,
      'content-type': 'application/offset+octet-stream',
      'content-length': bytes.length - from,
    },
  });
  req.once('response', (res) => resolve(res.resume().statusCode ?? 0));
  req.once('error', until === undefined ? reject : () => resolve(0));
  const body = bytes.subarray(from, until);
  if (until === undefined) req.end(body);
  else req.write(body, () => req.destroy());
  return promise;
}

/** The offset after an aborted upload, once the server has noticed the abort. */
async function broken(client: Client, name: string, bytes: Buffer, from: number, until: number) {
  const url = at(client, name, bytes);
  expect(await patch(client, url, bytes, from, until)).toBe(0);
  for (const { services } of servers.apps)
    await eventually(() => expect(services.lfs.transfers.counts.running).toBe(0));
  return eventually(async () => {
    const kept = await offset(client, url);
    expect(kept).toBeGreaterThan(from);
    return kept;
  });
}

async function got(client: Client, name: string, bytes: Buffer): Promise<boolean> {
  const url = `${client.base}/admin/${name}.git/info/lfs/objects/${objectOf(bytes).oid}`;
  const answer = await fetch(url, { headers: { authorization: client.authorization ?? '' } });
  const found = Buffer.from(await answer.arrayBuffer());
  return answer.status === 200 && found.equals(bytes);
}

test('an interrupted upload resumes, twice, and at another server', async () => {
  await create('resumed', { content_addressed: true });
  const bytes = randomBytes(40 * MIB);
  expect(await offset(one, at(one, 'resumed', bytes))).toBe(0);
  const kept = await broken(one, 'resumed', bytes, 0, 20 * MIB);
  // Bytes of unfinished chunks, and bytes in transit, are sent again.
  expect(kept).toBeGreaterThan(4 * MIB);
  expect(kept).toBeLessThan(20 * MIB);
  expect(await got(one, 'resumed', bytes)).toBe(false);
  expect(await offset(two, at(two, 'resumed', bytes))).toBe(kept);

  const more = await broken(two, 'resumed', bytes, kept, 34 * MIB);
  expect(await patch(one, at(one, 'resumed', bytes), bytes, kept)).toBe(409);
  expect(await patch(one, at(one, 'resumed', bytes), bytes, more)).toBe(204);
  expect(await offset(two, at(two, 'resumed', bytes))).toBe(bytes.length);
  expect(await got(two, 'resumed', bytes)).toBe(true);
  const { services } = servers.apps[0] as (typeof servers.apps)[0];
  expect((await services.pool.query('select from large_uploads')).rowCount).toBe(0);
  await checkStore(services);
});

test('wrong bytes are discarded, abandoned uploads are swept, and both use storage until then', async () => {
  const id = await create('left', { content_addressed: true });
  const { services } = servers.apps[0] as (typeof servers.apps)[0];
  const before = await checkStore(services);
  const bytes = randomBytes(12 * MIB);
  const kept = await broken(one, 'left', bytes, 0, 11 * MIB);
  const other = Buffer.concat([bytes.subarray(0, kept), randomBytes(bytes.length - kept)]);
  // The SHA-256 is that of other bytes.
  expect(await patch(one, at(one, 'left', bytes), other, kept)).toBe(422);
  expect(await offset(one, at(one, 'left', bytes))).toBe(0);

  await broken(one, 'left', bytes, 0, 11 * MIB);
  const small = randomBytes(1_000);
  await services.pool.query(`update namespaces set plan = 'free' where name = 'admin'`);
  await services.pool.query('update large_uploads set size = size + (10::bigint << 30)');
  expect(await patch(one, at(one, 'left', small), small, 0)).toBe(507);
  await services.pool.query('update large_uploads set size = size - (10::bigint << 30)');
  expect(await patch(one, at(one, 'left', small), small, 0)).toBe(204);
  await services.pool.query(`update namespaces set plan = 'unlimited' where name = 'admin'`);
  await services.largeFiles.remove(id, [objectOf(small).oid]);

  await sweepAll(services);
  expect(await offset(one, at(one, 'left', bytes))).toBe(0);
  expect(await checkStore(services)).toEqual(before);
  await broken(one, 'left', bytes, 0, 11 * MIB);
  expect((await one.delete(`/auth/v1/repository/admin/${id}`)).status).toBeLessThan(300);
  expect((await services.pool.query('select from large_upload_pages')).rowCount).toBe(0);
});

test('a batch offers tus to clients that support it, and invalid requests are refused', async () => {
  await create('asked');
  const bytes = randomBytes(1_000);
  const object = objectOf(bytes);
  const [asked] = (await uploadOf(one, 'asked', [object])).objects;
  expect(asked.actions.upload.href).toBe(at(one, 'asked', bytes));
  expect(await uploadOf(one, 'asked', [object])).toMatchObject({ transfer: 'tus' });
  expect(await uploadOf(one, 'asked', [object], ['basic'])).toMatchObject({ transfer: 'basic' });
  // The stock client does not send this.
  const empty = objectOf(Buffer.alloc(0));
  expect(await uploadOf(one, 'asked', [object, empty])).toMatchObject({ transfer: 'basic' });

  const send = (headers: Record<string, string>, url = at(one, 'asked', bytes)) => {
    const all = {
      'tus-resumable': '1.0.0',
      'upload-offset': '0',
      'content-type': 'application/offset+octet-stream',
      ...headers,
    };
    return one.request('PATCH', url, { headers: all, body: new Uint8Array(bytes) });
  };
  const statuses = [
    send({ 'tus-resumable': '0.2.2' }),
    send({ 'content-type': 'text/plain' }),
    send({ 'upload-offset': '-1' }),
    send({ 'upload-offset': '1' }),
    send({ 'upload-offset': '0x0' }),
    send({}, at(one, 'asked', bytes, 1_001)),
    send({}, at(one, 'asked', bytes).replace(/size=.*/, '')),
    send({}, at(one, 'asked', bytes).replace(/uploads\/\w+/, 'uploads/x')),
    one.request('GET', at(one, 'asked', bytes)),
    send({ authorization: '' }),
  ].map(async (answer) => (await answer).status);
  expect(await Promise.all(statuses)).toEqual([412, 415, 400, 400, 400, 400, 400, 422, 405, 401]);
  expect((await send({})).status).toBe(204);
  expect(await got(two, 'asked', bytes)).toBe(true);
});

test('the stock client resumes automatically after a broken connection', async (ctx) => {
  needs(ctx, 'git-lfs');
  await using way = openCuttableProxy();
  const port = await freePort();
  const base = `http://${await way.before(port)}`;
  await using app: TestApp = await startApp({ config: { port, baseUrl: base } });
  await using workspace = await Workspace.open();
  const ada = await app.user('ada');
  await ada.post('/auth/v1/repository/ada', { name: 'stock' });
  await workspace.git(
    '.',
    'clone',
    '-q',
    remote(new Client(base, ada.authorization), 'ada/stock'),
    'stock',
  );
  for (const words of [
    ['lfs', 'install', '--local'],
    ['config', 'lfs.tustransfers', 'true'],
  ])
    await workspace.git('stock', ...words);
  await workspace.commit('stock', {
    '.gitattributes': '*.bin filter=lfs diff=lfs merge=lfs -text\n',
  });
  const bytes = randomBytes(96 * MIB);
  await workspace.commit('stock', { 'a.bin': bytes });
  // git-lfs reports its transfers in its trace, which has no setting.
  const push = 'alias.traced=!GIT_TRANSFER_TRACE=1 git push origin HEAD';
  const pushing = workspace.try('stock', '-c', push, '-c', 'lfs.activitytimeout=5', 'traced');
  const kept = async () =>
    (await app.pool.query('select from large_uploads where bytes > 0')).rowCount;
  await eventually(async () => expect(await kept()).toBe(1));
  await way.cut();
  await way.mend();
  const { code, stderr } = await pushing;
  expect(code, stderr).toBe(0);
  expect(stderr).toMatch(/tus.io resuming upload "\w+" from \d{8}/);
  const client = new Client(app.base, ada.authorization);
  const url = `${client.base}/ada/stock.git/info/lfs/objects/${objectOf(bytes).oid}`;
  const answer = await fetch(url, { headers: { authorization: client.authorization ?? '' } });
  expect(Buffer.from(await answer.arrayBuffer()).equals(bytes)).toBe(true);
});
