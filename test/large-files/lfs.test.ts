/** Large files: the stock git-lfs against the API, and requests that it does not send. */
import { execFileSync } from 'node:child_process';
import { hash, randomBytes } from 'node:crypto';
import { mkdir, readdir, readFile, readlink, stat, symlink, writeFile } from 'node:fs/promises';
import { request } from 'node:http';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { checkOutLocally } from '../../src/repositories/checkouts.ts';
import { createLfsTokens } from '../../src/repositories/lfs/tokens.ts';
import { eventually } from '../support/eventually.ts';
import { remote, Workspace } from '../support/git.ts';
import { type Answer, type Client, startApp, type TestApp } from '../support/harness.ts';
import { needs } from '../support/needs.ts';
import { expectRefusal } from '../support/refusal.ts';
import { lines, submit, until } from '../support/submit.ts';

const MEDIA_TYPE = 'application/vnd.git-lfs+json';
const SCHEMES = 'Bearer realm="loam", Basic realm="loam"';

let app: TestApp;
let workspace: Workspace;
let ada: Client;
let bob: Client;

beforeAll(async () => {
  app = await startApp({ config: { runner: 'process' } });
  workspace = await Workspace.open();
  ada = await app.user('ada');
  bob = await app.user('bob');
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

async function create(name: string, more: object = {}): Promise<string> {
  const { status, body } = await ada.post('/auth/v1/repository/ada', { name, ...more });
  expect(status).toBe(201);
  return body.id;
}

/** A repository in which git-lfs tracks `*.bin`, and a clone of it. */
async function tracking(name: string, more: object = {}): Promise<string> {
  const id = await create(name, more);
  await workspace.git('.', 'lfs', 'install');
  await workspace.clone(ada, `ada/${name}`);
  await workspace.commit(name, { '.gitattributes': '*.bin filter=lfs diff=lfs merge=lfs -text\n' });
  return id;
}

function lfs(client: Client, path: string, json?: unknown, headers = {}): Promise<Answer> {
  return client.request(json === undefined ? 'GET' : 'POST', `/${path}`, {
    body: json === undefined ? undefined : JSON.stringify(json),
    headers: { 'content-type': MEDIA_TYPE, accept: MEDIA_TYPE, ...headers },
  });
}

function batch(client: Client, repository: string, operation: string, objects: object[]) {
  const body = { operation, transfers: ['basic'], objects };
  return lfs(client, `${repository}.git/info/lfs/objects/batch`, body);
}

function objectOf(bytes: Buffer) {
  return { oid: hash('sha256', bytes), size: bytes.length };
}

function pointerTo(bytes: Buffer): string {
  const { oid, size } = objectOf(bytes);
  return `version https://git-lfs.github.com/spec/v1\noid sha256:${oid}\nsize ${size}\n`;
}

/** Executes the actions of a batch response. */
async function give(client: Client, repository: string, bytes: Buffer): Promise<Answer> {
  const { body } = await batch(client, repository, 'upload', [objectOf(bytes)]);
  const { href, header } = body.objects[0].actions.upload;
  return app.anonymous.request('PUT', href, { headers: header, body: new Uint8Array(bytes) });
}

/** An organization of Ada with Bob as a member. */
async function organization(name: string, role: 'READ' | 'WRITE'): Promise<string> {
  await app.organization(name, { ada: 'ADMIN', bob: role });
  return name;
}

test('git lfs push, clone and fetch of twenty objects at once', async (ctx) => {
  needs(ctx, 'git-lfs');
  await tracking('stock');
  const files = Object.fromEntries(
    Array.from({ length: 20 }, (_, i) => [`${i}.bin`, randomBytes(20_000 + i)]),
  );
  await workspace.commit('stock', files);
  await workspace.git('stock', 'push', '-q', 'origin', 'HEAD');
  await workspace.clone(ada, 'ada/stock', 'stock-again');
  for (const [name, bytes] of Object.entries(files))
    expect(await readFile(join(workspace.path, 'stock-again', name))).toEqual(bytes);
  expect(await workspace.git('stock-again', 'lfs', 'fsck')).toContain('OK');

  const changed = randomBytes(50_000);
  await workspace.commit('stock', { '3.bin': changed });
  await workspace.git('stock', 'push', '-q', 'origin', 'HEAD');
  await workspace.git('stock-again', 'pull', '-q');
  expect(await readFile(join(workspace.path, 'stock-again/3.bin'))).toEqual(changed);
});

test('public repositories need no credentials, and viewers without rights get no token', async (ctx) => {
  needs(ctx, 'git-lfs');
  await tracking('open', { visibility: 'public' });
  const bytes = randomBytes(1_000);
  await workspace.commit('open', { 'a.bin': bytes });
  await workspace.git('open', 'push', '-q', 'origin', 'HEAD');
  await workspace.clone(app.anonymous, 'ada/open', 'open-anonymous');
  expect(await readFile(join(workspace.path, 'open-anonymous/a.bin'))).toEqual(bytes);

  await workspace.git('open', 'remote', 'set-url', 'origin', remote(bob, 'ada/open'));
  await workspace.commit('open', { 'b.bin': randomBytes(1_000) });
  const refused = await workspace.try('open', 'push', '-q', 'origin', 'HEAD');
  expect(refused.code).not.toBe(0);
  expect(refused.stderr).toContain('You may not push in this namespace');
  const wrong = remote(app.client('Bearer loam_pat_wrong'), 'ada/open');
  await workspace.git('open', 'remote', 'set-url', 'origin', wrong);
  const unknown = await workspace.try('open', 'lfs', 'push', '--all', 'origin');
  expect(unknown.code).not.toBe(0);
});

test('a batch reports missing objects, and reveals none of other repositories', async () => {
  await create('batch');
  await create('batch-of-others');
  const bytes = randomBytes(70_000);
  const { oid, size } = objectOf(bytes);
  expect((await give(ada, 'ada/batch-of-others', bytes)).status).toBe(200);

  const asked = await batch(ada, 'ada/batch', 'upload', [{ oid, size }]);
  expect(asked).toMatchObject({ status: 200, body: { transfer: 'basic', hash_algo: 'sha256' } });
  expect(asked.headers.get('content-type')).toContain(MEDIA_TYPE);
  expect(asked.headers.get('x-ratelimit-limit')).toBeNull();
  const [object] = asked.body.objects;
  expect(object).toMatchObject({ oid, size, authenticated: true });
  expect(object.actions.upload).toMatchObject({
    href: `${app.base}/ada/batch.git/info/lfs/objects/${oid}`,
    header: { Authorization: expect.stringMatching(/^Bearer loam_lfs_/) },
    expires_in: 3600,
  });
  const missing = await batch(ada, 'ada/batch', 'download', [{ oid, size }]);
  const unknown = '0'.repeat(64);
  const never = await batch(ada, 'ada/batch', 'download', [{ oid: unknown, size }]);
  expect(missing.body.objects[0].error.code).toBe(404);
  expect(JSON.stringify(missing.body).replaceAll(oid, unknown)).toBe(JSON.stringify(never.body));

  expect((await give(ada, 'ada/batch', bytes)).status).toBe(200);
  const again = await batch(ada, 'ada/batch', 'upload', [{ oid, size }]);
  expect(again.body.objects).toEqual([{ oid, size }]);
  const other = await batch(ada, 'ada/batch', 'upload', [{ oid, size: size + 1 }]);
  expect(other.body.objects[0]).toMatchObject({ error: { code: 422 } });
  const verified = (body: object) => lfs(ada, 'ada/batch.git/info/lfs/objects/verify', body);
  expect((await verified({ oid, size })).status).toBe(200);
  expect((await verified({ oid, size: 1 })).status).toBe(422);
  expect((await verified({ oid: unknown, size })).status).toBe(404);
});

test('an object that a reader found damaged is requested again', async () => {
  const id = await create('mended', { content_addressed: false });
  const bytes = randomBytes(300_000);
  const object = objectOf(bytes);
  expect((await give(ada, 'ada/mended', bytes)).status).toBe(200);
  const { rows } = await app.pool.query<{ key: string }>(
    `select p.key from large_packs p join large_stores s on s.id = p.store_id where s.repository_id = $1`,
    [id],
  );
  await writeFile(join(app.config.dataDir, 'storage', rows[0]?.key ?? ''), 'not this');
  const path = `ada/mended.git/info/lfs/objects/${object.oid}`;
  expect((await lfs(ada, path)).status).toBe(500);
  const asked = await batch(ada, 'ada/mended', 'upload', [object]);
  expect(asked.body.objects[0].actions.upload.href).toBe(`${app.base}/${path}`);
  expect((await give(ada, 'ada/mended', bytes)).status).toBe(200);
  const got = await fetch(`${app.base}/${path}`, {
    headers: { authorization: ada.authorization ?? '' },
  });
  expect(Buffer.from(await got.arrayBuffer()).equals(bytes)).toBe(true);
  const again = await batch(ada, 'ada/mended', 'upload', [object]);
  expect(again.body.objects).toEqual([object]);
});

test('invalid requests are refused with errors in the format of git-lfs', async () => {
  await create('bad');
  const path = 'ada/bad.git/info/lfs/objects/batch';
  const oid = 'a'.repeat(64);
  for (const [body, status] of [
    [[], 400],
    [{}, 400],
    [{ operation: 'delete', objects: [] }, 400],
    [{ operation: 'upload' }, 400],
    [{ operation: 'upload', objects: [null] }, 400],
    [{ operation: 'upload', objects: {} }, 400],
    [{ operation: 'upload', objects: [], transfers: 'basic' }, 400],
    [{ operation: 'upload', objects: [], hash_algo: 'sha1' }, 409],
    [{ operation: 'upload', objects: Array(1_001).fill({ oid, size: 1 }) }, 413],
  ] as const) {
    const answer = await lfs(ada, path, body);
    expect([body, answer.status]).toEqual([body, status]);
    expect(answer.body).toEqual({
      message: expect.any(String),
      documentation_url: `${app.base}/docs/large-files`,
      request_id: answer.headers.get('x-request-id'),
    });
  }
  const type = { 'content-type': 'text/plain' };
  expect((await lfs(ada, path, {}, type)).status).toBe(400);
  const broken = { body: '{', headers: { 'content-type': MEDIA_TYPE } };
  expect((await ada.request('POST', `/${path}`, broken)).status).toBe(400);
  const objects = [
    { oid: '../../etc/passwd', size: 1 },
    { oid: oid.toUpperCase(), size: 1 },
    { oid, size: -1 },
    { oid, size: 1.5 },
    { oid, size: '1' },
    { oid: 7, size: 1 },
    {},
  ];
  const each = await batch(ada, 'ada/bad', 'upload', objects);
  expect(each.status).toBe(200);
  for (const object of each.body.objects) expect(object.error.code).toBe(422);
  expect((await ada.request('DELETE', `/${path}`)).status).toBe(405);
  for (const wrong of ['%00', '..%2f..%2fetc', 'A'.repeat(64), 'x'])
    expect((await lfs(ada, `ada/bad.git/info/lfs/objects/${wrong}`)).status).toBe(422);
  expect((await lfs(ada, 'ada/bad.git/info/lfs/objects/%ff')).status).toBe(400);
});

test('viewers without access get 404, and viewers with read access cannot upload', async () => {
  const owner = await organization('readers', 'READ');
  await ada.post(`/auth/v1/repository/${owner}`, { name: 'data' });
  const objects = [objectOf(Buffer.from('x'))];
  const carl = await app.user('carl');
  const refusals = [
    [carl, 'readers/data', 'download', 404],
    [carl, 'readers/none', 'download', 404],
    [bob, 'readers/data', 'upload', 403],
    [bob, 'readers/data', 'download', 200],
    [app.anonymous, 'readers/data', 'download', 401],
    [app.anonymous, 'readers/none', 'download', 401],
    [app.client('Bearer loam_pat_no'), 'readers/data', 'download', 401],
    [app.client('Bearer loam_lfs_no'), 'readers/data', 'download', 401],
  ] as const;
  for (const [client, repository, operation, status] of refusals) {
    const answer = await batch(client, repository, operation, objects);
    expect([repository, operation, answer.status]).toEqual([repository, operation, status]);
    if (status !== 401) continue;
    // JGit reads only the last header, and supports only Basic.
    expect(answer.headers.get('lfs-authenticate')).toBe(SCHEMES);
    expect(answer.headers.get('www-authenticate')).toBe(SCHEMES);
  }
});

test('a token works for one repository, one operation and large files only, while its account has the rights', async () => {
  const owner = await organization('tokens', 'WRITE');
  for (const name of ['one', 'two'])
    await ada.post(`/auth/v1/repository/${owner}`, { name, visibility: 'private' });
  const bytes = randomBytes(3_000);
  const object = objectOf(bytes);
  expect((await give(bob, 'tokens/one', bytes)).status).toBe(200);
  expect((await give(ada, 'tokens/two', bytes)).status).toBe(200);
  const { body } = await batch(bob, 'tokens/one', 'download', [object]);
  const { href, header } = body.objects[0].actions.download;
  const token = app.client(header.Authorization);
  const got = await token.get(href);
  expect(got).toMatchObject({ status: 200 });
  expect((await token.get(href, { range: 'bytes=1-2' })).status).toBe(206);
  expect((await token.get(href, { range: 'bytes=3000-' })).status).toBe(416);
  expect((await token.get(href.replace('tokens/one', 'tokens/two'))).status).toBe(404);
  expect((await batch(token, 'tokens/one', 'upload', [object])).status).toBe(403);
  // A token cannot be used to get another one.
  const again = (await batch(token, 'tokens/one', 'download', [object])).body.objects[0];
  expect(again.actions.download.header).toEqual(header);
  expect(again.actions.download.expires_in).toBeLessThanOrEqual(3_600);
  expect((await token.request('PUT', href, { body: 'x' })).status).toBe(403);
  expect((await token.get('/auth/v1/whoami')).status).toBe(401);
  expect((await token.get('/tokens/one.git/info/refs?service=git-upload-pack')).status).toBe(401);
  const [head, tail] = [header.Authorization.slice(0, -1), header.Authorization.slice(-1)];
  const forged = [
    head + (tail === 'A' ? 'E' : 'A'),
    header.Authorization.replace('.download.', '.upload.'),
    header.Authorization.replace(/\.\d+\./, '.99999999999.'),
  ];
  for (const one of forged) expect((await app.client(one).get(href)).status).toBe(401);

  await app.admin.gql(
    `mutation ($input: RemoveMemberInput!) { removeMember(input: $input) { id } }`,
    { input: { namespace: 'tokens', username: 'bob' } },
  );
  expect((await token.get(href)).status).toBe(404);
});

test('tokens expire', () => {
  let now = 1_000_000;
  const tokens = createLfsTokens(randomBytes(32), () => now);
  const grant = {
    repositoryId: 'repo_01h455vb4pex5vsknk084sn02q',
    credentialId: 'pat_01h455vb4pex5vsknk084sn02q',
    operation: 'download' as const,
  };
  const token = tokens.issue(grant, 60);
  expect(tokens.read(token)).toEqual({ ...grant, seconds: 60 });
  now += 60_000;
  expect(tokens.read(token)).toBeNull();
  for (const junk of ['', 'loam_lfs_', `${token}x`, 'loam_lfs_a.b.c.d', '\0'])
    expect(tokens.read(junk)).toBeNull();
});

/** Sends the beginning of an upload, then passes the request to `then`. */
function begin(path: string, headers: Record<string, string | number>) {
  const url = new URL(`${app.base}/${path}`);
  const req = request(url, {
    method: 'PUT',
    headers: { authorization: ada.authorization ?? '', ...headers },
  });
  const answer = new Promise<number>((resolve, reject) => {
    req.once('response', (res) => resolve(res.resume().statusCode ?? 0));
    req.once('error', reject);
  });
  answer.catch(() => {});
  return { req, answer };
}

test('uploads of wrong bytes leave nothing, and an aborted upload releases its slot', async () => {
  const id = await create('wrong');
  const bytes = randomBytes(200_000);
  const { oid } = objectOf(bytes);
  const path = `ada/wrong.git/info/lfs/objects/${oid}`;
  const put = (body: Buffer) => ada.request('PUT', `/${path}`, { body: new Uint8Array(body) });
  expect((await put(randomBytes(200_000))).status).toBe(422);
  expect((await put(bytes.subarray(1))).status).toBe(422);
  const chunked = begin(path, { 'transfer-encoding': 'chunked' });
  chunked.req.end('x');
  expect(await chunked.answer).toBe(411);
  const cut = begin(path, { 'content-length': bytes.length });
  cut.req.write(bytes.subarray(0, 100_000));
  const { transfers } = app.app.services.lfs;
  await eventually(() => expect(transfers.counts.running).toBe(1));
  cut.req.destroy();
  await eventually(() => expect(transfers.counts.running).toBe(0));
  const { body } = await batch(ada, 'ada/wrong', 'download', [{ oid, size: bytes.length }]);
  expect(body.objects[0].error.code).toBe(404);
  const { metrics } = app.app.services;
  const counted = async () => {
    const found = (await metrics.text()).matchAll(
      /^loam_large_file_transfers_total.direction="upload",outcome="(\w+)". (\d+)$/gm,
    );
    return Object.fromEntries([...found].map(([, outcome, count]) => [outcome, Number(count)]));
  };
  const before = await counted();
  expect((await put(bytes)).status).toBe(200);
  expect((await put(bytes)).status).toBe(200);
  expect((await put(randomBytes(200_000))).status).toBe(422);
  expect(await counted()).toEqual({
    ...before,
    completed: Number(before.completed) + 2,
    refused: Number(before.refused) + 1,
  });
  expect(before.broken_off).toBeGreaterThanOrEqual(1);
  expect(await metrics.text()).toMatch(/^loam_large_file_bytes_total.direction="upload". \d{6,}$/m);
  expect((await ada.get(`/auth/v1/repository/ada/${id}`)).body.size_bytes).toBe(200_000);
});

test('uploads that exceed the storage of the namespace are refused before they are sent', async () => {
  const free = await app.user('frieda', 'free');
  await free.post('/auth/v1/repository/frieda', { name: 'full' });
  const over = [{ oid: 'b'.repeat(64), size: 11 * 2 ** 30 }];
  const answer = await batch(free, 'frieda/full', 'upload', over);
  expect(answer).toMatchObject({
    status: 507,
    body: {
      message: expect.stringMatching(
        /^Storage quota exceeded: the free plan allows 10 GiB in a namespace, .* and this request needs 11 GiB more$/,
      ),
    },
  });
  const { req, answer: status } = begin(`frieda/full.git/info/lfs/objects/${over[0]?.oid}`, {
    authorization: free.authorization ?? '',
    'content-length': 11 * 2 ** 30,
  });
  req.flushHeaders();
  expect(await status).toBe(507);
  req.destroy();
});

test('git lfs lock, locks and unlock, and pushes that change a file locked by another user', async (ctx) => {
  needs(ctx, 'git-lfs');
  const owner = await organization('studio', 'WRITE');
  const made = await ada.post(`/auth/v1/repository/${owner}`, { name: 'art' });
  const id = made.body.id;
  await workspace.git('.', 'lfs', 'install');
  await workspace.clone(ada, 'studio/art', 'art-ada');
  await workspace.commit('art-ada', {
    '.gitattributes': '*.psd filter=lfs diff=lfs merge=lfs -text lockable\n',
    'a b/ä.psd': randomBytes(500),
    'b.psd': randomBytes(500),
  });
  await workspace.git('art-ada', 'push', '-q', 'origin', 'HEAD');
  await workspace.clone(bob, 'studio/art', 'art-bob');

  expect(await workspace.git('art-ada', 'lfs', 'lock', 'a b/ä.psd')).toContain('Locked');
  const listed = await workspace.git('art-bob', 'lfs', 'locks');
  expect(listed).toMatch(/a b\/ä\.psd\s+ada/);
  const taken = await workspace.try('art-bob', 'lfs', 'lock', 'a b/ä.psd');
  expect(taken.code).not.toBe(0);
  expect(taken.stderr + taken.stdout).toContain('already locked by ada');
  expect(await workspace.git('art-bob', 'lfs', 'lock', 'b.psd')).toContain('Locked');
  const locks = await lfs(ada, 'studio/art.git/info/lfs/locks/verify', {});
  expect(locks.body).toMatchObject({ ours: [{ path: 'a b/ä.psd' }], theirs: [{ path: 'b.psd' }] });

  // Bob's git-lfs would refuse the push itself; the server must refuse it for any client.
  const push = ['-c', 'lfs.locksverify=false', 'push', '-q', 'origin'];
  await workspace.git('art-bob', 'config', 'lfs.setlockablereadonly', 'false');
  await workspace.git('art-bob', 'checkout', '-q', '-b', 'topic');
  await workspace.try('art-bob', 'update-index', '--chmod=+x', 'a b/ä.psd');
  await workspace.git('art-bob', 'commit', '-q', '-m', 'mode');
  const refused = await workspace.try('art-bob', ...push, 'topic');
  expect(refused.code).not.toBe(0);
  expect(refused.stderr).toContain('a b/ä.psd is locked by ada');
  await workspace.git('art-bob', 'reset', '-q', '--hard', 'HEAD~1');

  // The owner of the lock pushes, and another user merges that work.
  await workspace.git('art-ada', 'checkout', '-q', '-b', 'work');
  await workspace.commit('art-ada', { 'a b/ä.psd': randomBytes(600) });
  await workspace.git('art-ada', ...push, 'work');
  await workspace.git('art-bob', 'fetch', '-q');
  await workspace.commit('art-bob', { 'notes.txt': 'x' });
  await workspace.git('art-bob', 'merge', '-q', '--no-edit', 'origin/work');
  await workspace.git('art-bob', ...push, 'topic');

  const theirs = await workspace.try('art-bob', 'lfs', 'unlock', '--force', 'a b/ä.psd');
  expect(theirs.stderr + theirs.stdout).toContain('needs the role admin');
  expect(await workspace.git('art-ada', 'lfs', 'unlock', '--force', 'b.psd')).toContain('Unlocked');
  expect(await workspace.git('art-ada', 'lfs', 'unlock', 'a b/ä.psd')).toContain('Unlocked');
  expect(await workspace.git('art-bob', 'lfs', 'locks')).toBe('');
  await app.admin.delete(`/auth/v1/repository/studio/${id}`);
});

test('a locked file cannot be reverted by a merge, nor by moving a branch back', async () => {
  const owner = await organization('press', 'WRITE');
  const { body } = await ada.post(`/auth/v1/repository/${owner}`, { name: 'art' });
  const file = ':a b/ä.psd';
  await workspace.clone(ada, 'press/art', 'press-ada');
  const first = await workspace.commit('press-ada', { [file]: 'first', 'b.psd': 'b' });
  await workspace.commit('press-ada', { [file]: 'second' });
  const branches = ['main', 'release', 'own'].map((name) => `HEAD:refs/heads/${name}`);
  const old = ['behind', 'late'].map((name) => `${first}:refs/heads/${name}`);
  await workspace.git('press-ada', 'push', '-q', 'origin', ...branches, ...old);
  expect((await lfs(ada, 'press/art.git/info/lfs/locks', { path: file })).status).toBe(201);

  await workspace.git('.', 'clone', '-q', '-b', 'main', remote(bob, 'press/art'), 'press-bob');
  const refused = async (...args: string[]) => {
    const { code, stderr } = await workspace.try('press-bob', 'push', '-q', 'origin', ...args);
    expect([args, code, stderr]).toEqual([args, 1, expect.stringContaining('is locked by ada')]);
    expect(stderr).toContain(file);
  };
  const push = (...args: string[]) => workspace.git('press-bob', 'push', '-q', 'origin', ...args);
  // A merge that takes the older version of the file from one of its parents.
  await workspace.git('press-bob', 'checkout', '-q', '-b', 'merge', first);
  await workspace.commit('press-bob', { 'notes.txt': 'x' });
  await workspace.git('press-bob', 'merge', '-q', '--no-edit', '-s', 'ours', 'origin/main');
  await refused('merge:main');
  // The same in two steps, the first of which moves no branch.
  await push('merge:two-steps');
  await refused('merge:main');
  await refused('-f', `${first}:release`);
  // One of several moved branches, beside an allowed one.
  await refused('-f', 'origin/main:behind', `${first}:own`);

  // Allowed: a merge and a fast-forward to the owner's work, other work on a branch without it, and the owner's push.
  await push('origin/main:behind');
  await workspace.git('press-bob', 'checkout', '-q', '-b', 'topic', first);
  await workspace.commit('press-bob', { 'b.psd': 'changed' });
  await push('topic:late');
  await workspace.git('press-bob', 'merge', '-q', '--no-edit', 'origin/main');
  await push('topic:late');
  await push('topic:main');
  await workspace.git('press-ada', 'push', '-q', '-f', 'origin', `${first}:release`);
  await push('main:release', ':own');
  await app.admin.delete(`/auth/v1/repository/press/${body.id}`);
});

test('a branch cannot be deleted if it alone has changes of a file locked by another user', async () => {
  const owner = await organization('attic', 'WRITE');
  const { body } = await ada.post(`/auth/v1/repository/${owner}`, { name: 'art' });
  await workspace.clone(ada, 'attic/art', 'attic-ada');
  const first = await workspace.commit('attic-ada', { 'a.psd': 'first' });
  await workspace.git('attic-ada', 'push', '-q', 'origin', 'HEAD:main', 'HEAD:refs/heads/old');
  await workspace.commit('attic-ada', { 'a.psd': 'second' });
  await workspace.git('attic-ada', 'push', '-q', 'origin', 'HEAD:main', 'HEAD:refs/heads/copy');
  await workspace.commit('attic-ada', { 'a.psd': 'third' });
  await workspace.git('attic-ada', 'push', '-q', 'origin', 'HEAD:refs/heads/work');
  expect((await lfs(ada, 'attic/art.git/info/lfs/locks', { path: 'a.psd' })).status).toBe(201);

  await workspace.clone(bob, 'attic/art', 'attic-bob');
  const push = (...args: string[]) => workspace.try('attic-bob', 'push', '-q', 'origin', ...args);
  const refusal = { code: 1, stderr: expect.stringContaining('a.psd is locked by ada') };
  expect(await push(':work')).toMatchObject(refusal);
  // Three branches have the second change; one of them must stay.
  expect(await push(':main', ':copy', ':work')).toMatchObject(refusal);
  expect(await push(':copy', ':old')).toMatchObject({ code: 0 });
  // The default branch counts like any other.
  expect(await push(':main', ':work')).toMatchObject(refusal);
  // A new branch keeps the changes.
  expect(await push('origin/work:refs/heads/kept', ':work', ':main')).toMatchObject({ code: 0 });
  expect(await push(`${first}:refs/heads/main`)).toMatchObject({ code: 0 });
  expect(await push(':kept')).toMatchObject(refusal);
  await workspace.git('attic-ada', 'push', '-q', 'origin', ':kept');
  await app.admin.delete(`/auth/v1/repository/attic/${body.id}`);
});

test('objects and locks in GraphQL', async () => {
  const id = await create('graphql');
  const oids: string[] = [];
  for (const text of ['one', 'two', 'three']) {
    expect((await give(ada, 'ada/graphql', Buffer.from(text))).status).toBe(200);
    oids.unshift(objectOf(Buffer.from(text)).oid);
  }
  const lockFile = `mutation ($input: LockLfsFileInput!) { lockLfsFile(input: $input) { lock { id path owner } } }`;
  const lock = (client: Client, path: string) =>
    client.graphql(lockFile, { input: { repositoryId: id, path } });
  const { data } = await lock(ada, 'a.psd');
  expect(data.lockLfsFile.lock).toMatchObject({ path: 'a.psd', owner: 'ada' });
  await expectRefusal(lock(ada, 'a.psd'), 'CONFLICT');
  await expectRefusal(lock(bob, 'b.psd'), 'PERMISSION_DENIED');
  const query = `query ($id: ID!, $after: String) { repository(namespace: "ada", id: $id) {
    sizeBytes
    lfsObjects(first: 2, after: $after) { totalCount nodes { oid sizeBytes givenAt } pageInfo { hasNextPage endCursor } }
    lfsLocks { totalCount nodes { id path owner lockedAt } } } }`;
  const { repository } = await ada.gql(query, { id });
  expect(repository.lfsObjects).toMatchObject({ totalCount: 3, pageInfo: { hasNextPage: true } });
  const after = repository.lfsObjects.pageInfo.endCursor;
  const rest = (await ada.gql(query, { id, after })).repository.lfsObjects.nodes;
  const listed = [...repository.lfsObjects.nodes, ...rest].map(({ oid }) => oid);
  expect(listed).toEqual(oids);
  expect(repository.lfsLocks.nodes).toMatchObject([{ path: 'a.psd', owner: 'ada' }]);

  const remove = `mutation ($input: DeleteLfsObjectsInput!) { deleteLfsObjects(input: $input) { oids } }`;
  const bad = await ada.graphql(remove, { input: { repositoryId: id, oids: ['x'] } });
  await expectRefusal(bad, 'INVALID_REQUEST', 'oids');
  const input = { repositoryId: id, oids: [oids[0], 'f'.repeat(64)] };
  expect((await ada.gql(remove, { input })).deleteLfsObjects.oids).toEqual([oids[0]]);
  const left = (await ada.gql(query, { id })).repository;
  expect(left.lfsObjects.totalCount).toBe(2);
  expect(left.sizeBytes).toBe(repository.sizeBytes - 'three'.length);
});

test('directories and files show the objects of pointers, if the repository has them', async () => {
  const id = await create('pointers');
  const text = Buffer.from('a,b\n'.repeat(10_000));
  const binary = Buffer.concat([Buffer.alloc(9_000, 'x'), randomBytes(400_000)]);
  binary[17] = 0;
  for (const bytes of [text, binary])
    expect((await give(ada, 'ada/pointers', bytes)).status).toBe(200);
  await workspace.clone(ada, 'ada/pointers');
  await workspace.commit('pointers', {
    'data/t.csv': pointerTo(text),
    'data/b .bin': pointerTo(binary),
    'data/no pointer': 'x'.repeat(130),
    'plain.txt': 'plain',
  });
  await workspace.git('pointers', 'push', '-q', 'origin', 'HEAD');
  const base = `/auth/v1/repository/ada/${id}`;
  const { entries } = (await ada.get(`${base}/tree/data`)).body;
  expect(entries).toEqual([
    { name: 'b .bin', type: 'file', size_bytes: binary.length, mode: '100644' },
    { name: 'no pointer', type: 'file', size_bytes: 130, mode: '100644' },
    { name: 't.csv', type: 'file', size_bytes: text.length, mode: '100644' },
  ]);
  const { repository } = await ada.gql(
    `query ($id: ID!) { repository: node(id: $id) { ... on Repository {
       tree(path: "data") { entries { name isLargeFile } }
       file(path: "data/t.csv") { isLargeFile }
       lfsObjects(first: 9) { nodes { oid paths } } } } }`,
    { id },
  );
  expect(repository).toEqual({
    tree: {
      entries: [
        { name: 'b .bin', isLargeFile: true },
        { name: 'no pointer', isLargeFile: false },
        { name: 't.csv', isLargeFile: true },
      ],
    },
    file: { isLargeFile: true },
    lfsObjects: {
      nodes: [
        { oid: objectOf(binary).oid, paths: ['data/b .bin'] },
        { oid: objectOf(text).oid, paths: ['data/t.csv'] },
      ],
    },
  });
  const plain = (await ada.get(`${base}/file/plain.txt`)).body;
  expect(plain).toMatchObject({ content: 'plain', size_bytes: 5 });
  for (const [path, bytes, encoding] of [
    ['data/t.csv', text, 'utf-8'],
    ['data/b .bin', binary, 'binary'],
  ] as const) {
    const { body } = await ada.get(`${base}/file/${path}`);
    expect(body).toMatchObject({ path, size_bytes: bytes.length, encoding });
    expect(body).not.toHaveProperty('content');
    const url: string = body.download_url;
    const whole = await fetch(url);
    expect(Buffer.from(await whole.arrayBuffer()).equals(bytes)).toBe(true);
    expect(Object.fromEntries(whole.headers)).toMatchObject({
      'content-type': 'application/octet-stream',
      'x-content-type-options': 'nosniff',
      'content-disposition': expect.stringMatching(/^attachment; /),
      'content-length': `${bytes.length}`,
      etag: `"${objectOf(bytes).oid}"`,
    });
    const part = await fetch(url, { headers: { range: 'bytes=10-19' } });
    expect(part.status).toBe(206);
    expect(Buffer.from(await part.arrayBuffer()).equals(bytes.subarray(10, 20))).toBe(true);
    const etag = { 'if-none-match': `"${objectOf(bytes).oid}"` };
    expect((await fetch(url, { headers: etag })).status).toBe(304);
    for (const changed of [
      url.replace(/[0-9a-f]{64}/, objectOf(Buffer.from('x')).oid),
      url.replace(/signature=(.)/, (_, first) => `signature=${first === 'A' ? 'B' : 'A'}`),
      url.replace(/expires=\d+/, 'expires=1'),
      url.replace('/large-files/', '/blobs/'),
    ])
      expect([403, 404]).toContain((await fetch(changed)).status);
  }

  // The pointer of a deleted object is shown as the file that git has.
  const { oid } = objectOf(text);
  await ada.gql(
    `mutation ($input: DeleteLfsObjectsInput!) { deleteLfsObjects(input: $input) { oids } }`,
    { input: { repositoryId: id, oids: [oid] } },
  );
  const { body } = await ada.get(`${base}/file/data/t.csv`);
  expect(body).toMatchObject({ content: pointerTo(text), size_bytes: pointerTo(text).length });
  const { entries: after } = (await ada.get(`${base}/tree/data`)).body;
  expect(after.at(-1).size_bytes).toBe(pointerTo(text).length);
});

test('pushes with pointers to missing objects are refused', async () => {
  const id = await create('unknown');
  await workspace.clone(ada, 'ada/unknown');
  const [here, gone] = [randomBytes(1_000), randomBytes(2_000)];
  for (const bytes of [here, gone])
    expect((await give(ada, 'ada/unknown', bytes)).status).toBe(200);
  await workspace.commit('unknown', { 'here.bin': pointerTo(here), 'gone.bin': pointerTo(gone) });
  await workspace.git('unknown', 'push', '-q', 'origin', 'HEAD');

  const missing = Array.from({ length: 7 }, (_, i) => randomBytes(500 + i));
  const files = Object.fromEntries(missing.map((bytes, i) => [`${i}.bin`, pointerTo(bytes)]));
  await workspace.commit('unknown', files);
  const refused = await workspace.try('unknown', 'push', '-q', 'origin', 'HEAD');
  expect(refused.code).not.toBe(0);
  expect(refused.stderr).toContain('refers to 7 large files missing from this repository');
  expect(refused.stderr).toContain('and 2 more');
  expect(refused.stderr).toContain('git lfs push --all');
  // Also with secret scanning, which reads the same files.
  await ada.gql(
    `mutation { updateRepository(input: { id: "${id}", secretScanning: true }) { repository { id } } }`,
  );
  const scanned = await workspace.try('unknown', 'push', '-q', 'origin', 'HEAD');
  expect(scanned.stderr).toContain('refers to 7 large files');
  const [first] = missing as [Buffer];
  await workspace.git('unknown', 'reset', '-q', '--hard', 'HEAD~1');
  // A pointer with another size is another object.
  const text = pointerTo(here).replace('size 1000', 'size 1001');
  await workspace.commit('unknown', { 'other.bin': text });
  expect((await workspace.try('unknown', 'push', '-q', 'origin', 'HEAD')).code).not.toBe(0);
  await workspace.git('unknown', 'reset', '-q', '--hard', 'HEAD~1');
  expect((await give(ada, 'ada/unknown', first)).status).toBe(200);
  await workspace.commit('unknown', { '0.bin': pointerTo(first) });
  await workspace.git('unknown', 'push', '-q', 'origin', 'HEAD');

  // The base of a delta is part of the push, and its object was deleted.
  await ada.gql(
    `mutation ($input: DeleteLfsObjectsInput!) { deleteLfsObjects(input: $input) { oids } }`,
    { input: { repositoryId: id, oids: [objectOf(gone).oid] } },
  );
  await workspace.commit('unknown', { 'gone.bin': pointerTo(here), 'copy.bin': pointerTo(gone) });
  await workspace.git('unknown', 'push', '-q', 'origin', 'HEAD');
});

test('jobs have large files in their checkouts, within their disk limit', async () => {
  const id = await create('in-jobs');
  const files = ['one', 'two', 'three'].map((text) => Buffer.from(text.repeat(100_000)));
  for (const bytes of files) expect((await give(ada, 'ada/in-jobs', bytes)).status).toBe(200);
  await workspace.clone(ada, 'ada/in-jobs');
  const [one, two, three] = files as [Buffer, Buffer, Buffer];
  await workspace.commit('in-jobs', {
    'a/one ü.bin': pointerTo(one),
    'a/again.bin': pointerTo(one),
    'two.bin': pointerTo(two),
    'three.sh': pointerTo(three),
  });
  await workspace.git('in-jobs', 'update-index', '--chmod=+x', 'three.sh');
  await workspace.git('in-jobs', 'commit', '-q', '-m', 'mode');
  await workspace.git('in-jobs', 'push', '-q', 'origin', 'HEAD');
  const command =
    'sha256sum "a/one ü.bin" a/again.bin two.bin three.sh; test -x three.sh && echo x';
  await submit(ada, { namespace: 'ada', repo: 'ada/in-jobs', name: 'sums', command });
  await until(ada, 'ada', 'sums', 'SUCCEEDED');
  const sums = (await lines(ada, 'ada', 'sums')).map((line) => line.split(' ')[0]);
  expect(sums).toEqual([...[one, one, two, three].map((bytes) => objectOf(bytes).oid), 'x']);

  const commitSha = await workspace.git('in-jobs', 'rev-parse', 'HEAD');
  const check = (maxBytes: number) =>
    checkOutLocally(app.app.services, {
      repositoryId: id,
      commitSha,
      hasLargeFiles: true,
      dir: join(workspace.path, `checkout-${maxBytes}`),
      maxBytes,
      maxFiles: 100,
    });
  await expect(check(1_000_000)).rejects.toThrow('larger than the job');
  const written = await readFile(join(workspace.path, 'checkout-1000000/two.bin'), 'utf8');
  expect(written).toBe(pointerTo(two));
  await check(3_000_000);
});

test('archives contain large files in place of their pointers', async (ctx) => {
  needs(ctx, 'unzip');
  await create('archived');
  const long = `${'deep/'.repeat(30)}data.bin`;
  const files = [randomBytes(1_000_001), Buffer.from('text '.repeat(100_000))];
  for (const bytes of files) expect((await give(ada, 'ada/archived', bytes)).status).toBe(200);
  const [one, two] = files as [Buffer, Buffer];
  const lost = randomBytes(1_000);
  expect((await give(ada, 'ada/archived', lost)).status).toBe(200);
  await workspace.clone(ada, 'ada/archived');
  const contents: Record<string, Buffer> = {
    'one ü.bin': one,
    'two.sh': two,
    [long]: one,
    'lost.bin': Buffer.from(pointerTo(lost)),
    'small.txt': randomBytes(130),
    empty: Buffer.alloc(0),
    'plain.txt': Buffer.from('plain '.repeat(50_000)),
  };
  await workspace.commit('archived', {
    ...contents,
    'one ü.bin': pointerTo(one),
    'two.sh': pointerTo(two),
    [long]: pointerTo(one),
  });
  await symlink('plain.txt', join(workspace.path, 'archived/link'));
  await workspace.git('archived', 'add', '.');
  await workspace.git('archived', 'update-index', '--chmod=+x', 'two.sh');
  await workspace.git('archived', 'commit', '-q', '-m', 'more');
  await workspace.git('archived', 'push', '-q', 'origin', 'HEAD');
  const { repository } = await ada.gql(
    `{ repository(namespace: "ada", name: "archived") { id tar: archiveUrl(ref: "main", format: TAR_GZ) zip: archiveUrl(ref: "main", format: ZIP) } }`,
  );
  await ada.gql(
    `mutation ($input: DeleteLfsObjectsInput!) { deleteLfsObjects(input: $input) { oids } }`,
    { input: { repositoryId: repository.id, oids: [objectOf(lost).oid] } },
  );
  for (const [url, unpack] of [
    [repository.tar, ['tar', 'xzf', 'archive']],
    [repository.zip, ['unzip', '-q', 'archive']],
  ] as const) {
    const folder = join(workspace.path, unpack[0]);
    await mkdir(folder);
    await writeFile(join(folder, 'archive'), Buffer.from(await (await fetch(url)).arrayBuffer()));
    execFileSync(unpack[0], unpack.slice(1), { cwd: folder });
    const [name] = (await readdir(folder)).filter((one) => one !== 'archive');
    for (const [path, bytes] of Object.entries(contents)) {
      const found = await readFile(join(folder, name ?? '', path));
      expect([path, found.equals(bytes)]).toEqual([path, true]);
    }
    expect(await readlink(join(folder, name ?? '', 'link'))).toBe('plain.txt');
    expect((await stat(join(folder, name ?? '', 'two.sh'))).mode & 0o111).not.toBe(0);
    expect((await stat(join(folder, name ?? '', 'plain.txt'))).mode & 0o111).toBe(0);
  }
});

test('lock requests are validated, and lock filters match exactly', async () => {
  await create('locks');
  await create('locks-of-another');
  const locks = 'ada/locks.git/info/lfs/locks';
  for (const path of ['', '/a', 'a//b', 'a/../b', '.', 'a\0b', 'x'.repeat(1_025), 7, null])
    expect([path, (await lfs(ada, locks, { path })).status]).toEqual([path, 400]);
  const ids: string[] = [];
  for (const path of ['a', 'b', 'c/d']) {
    const { status, body } = await lfs(ada, locks, { path, ref: { name: 'refs/heads/main' } });
    expect(status).toBe(201);
    expect(body.lock).toEqual({
      id: expect.stringMatching(/^lock_/),
      path,
      locked_at: expect.stringMatching(/Z$/),
      owner: { name: 'ada' },
    });
    ids.push(body.lock.id);
  }
  const again = await lfs(ada, locks, { path: 'a' });
  expect(again).toMatchObject({ status: 409, body: { lock: { id: ids[0] } } });
  const first = await lfs(ada, `${locks}?limit=2`);
  expect(first.body.locks.map(({ path }: { path: string }) => path)).toEqual(['a', 'b']);
  const rest = await lfs(ada, `${locks}?limit=2&cursor=${first.body.next_cursor}`);
  expect(rest.body).toEqual({ locks: [expect.objectContaining({ path: 'c/d' })] });
  expect((await lfs(ada, `${locks}?path=b`)).body.locks).toHaveLength(1);
  expect((await lfs(ada, `${locks}?id=${ids[2]}`)).body.locks).toHaveLength(1);
  expect((await lfs(ada, `${locks}?path=%00`)).body.locks).toHaveLength(0);
  for (const query of [
    'limit=-1',
    'limit=x',
    'cursor=x',
    'path=a&path=b',
    'id=a&id=b',
    'limit=1&limit=2',
  ])
    expect((await lfs(ada, `${locks}?${query}`)).status).toBe(400);
  expect((await lfs(bob, locks)).status).toBe(404);
  expect(
    (await lfs(ada, `ada/locks-of-another.git/info/lfs/locks/${ids[0]}/unlock`, {})).status,
  ).toBe(404);
  const unlock = (id: string, body = {}) => lfs(ada, `${locks}/${id}/unlock`, body);
  expect((await unlock('x')).status).toBe(404);
  expect((await unlock(ids[0] ?? '', { force: 'yes' })).status).toBe(400);
  expect((await unlock(ids[0] ?? '')).body.lock.path).toBe('a');
  expect((await unlock(ids[0] ?? '')).status).toBe(404);
});
