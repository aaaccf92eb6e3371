/** Pushes: what is rejected, what is recorded, and that no record is lost. */
import { execFileSync } from 'node:child_process';
import { hash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { chmod, mkdir, mkdtemp, readdir, readFile, writeFile } from 'node:fs/promises';
import { request } from 'node:http';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { deflateSync, gzipSync } from 'node:zlib';
import pg from 'pg';
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from 'vitest';
import { FLUSH, pktLine } from '../../src/git/transport/pkt-line.ts';
import type { Account } from '../../src/identity/permissions.ts';
import { PushRecorder } from '../../src/repositories/pushes/recorder.ts';
import { createPushRules } from '../../src/repositories/pushes/rules.ts';
import { recoverRepositories, takeOverFromDeadServers } from '../../src/repositories/recovery.ts';
import { eventually } from '../support/eventually.ts';
import { remote, Workspace } from '../support/git.ts';
import { type Answer, type Client, startApp, type TestApp } from '../support/harness.ts';
import { listProcessesNaming } from '../support/processes.ts';
import { pushNote } from '../support/push-note.ts';

const REPOSITORIES = '/auth/v1/repository/ada';
const NONE = '0'.repeat(40);

let app: TestApp;
let workspace: Workspace;
let ada: Client;

beforeAll(async () => {
  app = await startApp();
  workspace = await Workspace.open();
  ada = await app.user('ada');
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

async function create(name: string, more: object = {}): Promise<string> {
  const { status, body } = await ada.post(REPOSITORIES, { name, ...more });
  expect(status).toBe(201);
  return body.id;
}

/** Names and contents of the notes on disk. */
async function notesIn(folder: string): Promise<[name: string, text: string][]> {
  const names = await readdir(folder);
  return Promise.all(names.map(async (name) => [name, await readFile(join(folder, name), 'utf8')]));
}

async function read(id: string) {
  return (await ada.get(`${REPOSITORIES}/${id}`)).body;
}

/** Creates a repository and a clone with one pushed commit. */
async function createWithClone(name: string): Promise<string> {
  const id = await create(name);
  await workspace.clone(ada, `ada/${name}`);
  await workspace.commit(name, { 'a.txt': name });
  await workspace.git(name, 'push', '-q', 'origin', 'HEAD');
  return id;
}

/** The refs of each push event of a repository, oldest first. */
async function pushEvents(id: string): Promise<string[]> {
  const { rows } = await app.app.services.pool.query(
    `select data from events where subject = $1 and type = 'repository.pushed' order by seq`,
    [id],
  );
  return rows.map(({ data }) =>
    data.push.refs.map((r: { ref: string; after: string }) => `${r.ref} ${r.after}`).join(),
  );
}

/** Opens a separate connection, to inject faults or hold locks. */
async function connect(): Promise<pg.Client> {
  const { database } = app.config;
  const client = new pg.Client(database.kind === 'url' ? database.url : '');
  await client.connect();
  return client;
}

test('a ref name with the form of a commit id is rejected, and such an id names the commit', async () => {
  const id = await createWithClone('shadow');
  const first = await workspace.git('shadow', 'rev-parse', 'HEAD~1');
  for (const ref of [`refs/heads/${first}`, `refs/tags/${first.toUpperCase()}`]) {
    const { code, stderr } = await workspace.try('shadow', 'push', 'origin', `HEAD:${ref}`);
    expect(code).not.toBe(0);
    expect(stderr).toContain('has the form of a commit');
  }
  await workspace.git('shadow', 'push', '-q', 'origin', `HEAD:refs/heads/${first.slice(0, 39)}`);
  const refused = await ada.post(REPOSITORIES, { name: 'hex', default_branch: 'a'.repeat(40) });
  expect([refused.status, refused.body.error.message]).toEqual([
    400,
    expect.stringContaining('default_branch'),
  ]);

  // A ref from before such names were rejected.
  const dir = app.app.services.git.disk.pathOf(id);
  execFileSync('git', ['-C', dir, 'update-ref', `refs/heads/${first}`, 'refs/heads/main'], {
    stdio: 'ignore',
  });
  expect((await ada.get(`${REPOSITORIES}/${id}/commits/${first}`)).body.data[0].sha).toBe(first);
  expect((await ada.get(`${REPOSITORIES}/${id}/file/a.txt?ref=${first}`)).status).toBe(404);
  // It can be deleted.
  await workspace.git('shadow', 'push', '-q', 'origin', `:refs/heads/${first}`);
});

test('a name that begins with refs/ is rejected, because it would block pushes to another branch', async () => {
  const id = await createWithClone('prefixed');
  for (const ref of ['heads/refs/heads/main', 'tags/refs/heads/main', 'refs/heads/main']) {
    const { code, stderr } = await workspace.try('prefixed', 'push', 'origin', `HEAD:refs/${ref}`);
    expect([code, stderr], ref).toEqual([1, expect.stringContaining('begins with refs/ twice')]);
  }
  await workspace.git('prefixed', 'push', '-q', 'origin', 'main', 'HEAD:refs/heads/refs');
  const refused = await ada.post(REPOSITORIES, { name: 'x', default_branch: 'refs/heads/main' });
  expect([refused.status, refused.body.error.message]).toEqual([
    400,
    'default_branch: must be a name without refs/ in front, such as main',
  ]);
  await workspace.git('prefixed', 'push', '-q', 'origin', ':refs/heads/refs');
  // A ref from before such names were rejected can be deleted.
  const dir = app.app.services.git.disk.pathOf(id);
  const ref = 'refs/heads/refs/heads/main';
  execFileSync('git', ['-C', dir, 'update-ref', ref, 'refs/heads/main'], { stdio: 'ignore' });
  await workspace.git('prefixed', 'push', '-q', 'origin', `:${ref}`);
});

test('a ref name that reads could not use is rejected, without showing a path of the server', async () => {
  await createWithClone('names');
  const names = ['y'.repeat(241), `${'z/'.repeat(125)}z`, '-x', '@'];
  for (const name of names) {
    const { code, stderr } = await workspace.try(
      'names',
      'push',
      'origin',
      `HEAD:refs/heads/${name}`,
    );
    expect(code).not.toBe(0);
    expect(stderr).toContain('is not a valid name');
    expect(stderr).not.toContain(app.config.dataDir);
  }
  await workspace.git('names', 'push', '-q', 'origin', `HEAD:refs/heads/${'y'.repeat(240)}`);
});

function sendTo(path: string, service: string, body: Buffer): Promise<Answer> {
  return ada.request('POST', `/ada/${path}.git/${service}`, {
    headers: { 'content-type': `application/x-${service}-request`, 'git-protocol': 'version=2' },
    body: body as Buffer<ArrayBuffer>,
  });
}

test('a compressed request above the size limit is rejected while it arrives', async () => {
  await createWithClone('unpacked');
  const tip = await workspace.git('unpacked', 'rev-parse', 'HEAD');
  const send = (service: string, first: string, line: string, count: number) =>
    ada.request('POST', `/ada/unpacked.git/${service}`, {
      headers: {
        'content-type': `application/x-${service}-request`,
        'content-encoding': 'gzip',
        'git-protocol': 'version=2',
      },
      body: gzipSync(first + line.repeat(count) + FLUSH),
    });
  const fetching = `${pktLine('command=fetch')}0001${pktLine(`want ${tip}\n`)}`;
  const have = pktLine(`have ${'1'.repeat(40)}\n`);
  const command = pktLine(`${NONE} ${tip} refs/heads/x`);
  const refused = [
    await send('git-upload-pack', fetching, have, 700_000),
    await send('git-receive-pack', '', command, 200_000),
  ];
  expect(refused.map(({ status, text }) => [status, text])).toEqual([
    [400, expect.stringContaining('32 MiB')],
    [400, expect.stringContaining('16 MiB')],
  ]);
  expect((await send('git-upload-pack', fetching, have, 10_000)).status).toBe(200);
  const { counts } = app.app.services.git.transfers;
  expect(counts).toEqual({ running: 0, waiting: 0 });
});

test.each(['identity', 'gzip'])(
  'a client that leaves in the middle of a push sent as %s leaves nothing',
  async (encoding) => {
    const id = await createWithClone(`left-${encoding}`);
    const { git } = app.app.services;
    const sent = request(`${app.base}/ada/left-${encoding}.git/git-receive-pack`, {
      method: 'POST',
      headers: {
        authorization: ada.authorization as string,
        'content-type': 'application/x-git-receive-pack-request',
        'content-encoding': encoding,
      },
    });
    sent.on('error', () => {});
    const body = `${pktLine(`${NONE} ${'1'.repeat(40)} refs/heads/x\0report-status`)}${FLUSH}PACK`;
    sent.write(encoding === 'gzip' ? gzipSync(body).subarray(0, -4) : body);
    await eventually(() => expect(git.transfers.counts.running).toBe(1));
    sent.destroy();
    await eventually(() => expect(git.transfers.counts.running).toBe(0));
    expect((await read(id)).branches).toBe(1);
  },
);

test('a few kilobytes of deltas that expand to a gigabyte are rejected', async () => {
  const id = await createWithClone('deltas');
  // A file of 16 MiB - 1, and a file of 64 times that size.
  const base = Buffer.alloc(0xffffff);
  const copies = 64;
  const copy = Buffer.from([0xf0, 0xff, 0xff, 0xff]);
  const delta = Buffer.concat([
    varint(base.length),
    varint(base.length * copies),
    ...Array<Buffer>(copies).fill(copy),
  ]);
  const baseId = hash('sha1', Buffer.concat([Buffer.from(`blob ${base.length}\0`), base]), 'hex');
  const body = Buffer.concat([
    Buffer.from('PACK\0\0\0\x02\0\0\0\x02', 'latin1'),
    objectHeader(3, base.length),
    deflateSync(base),
    objectHeader(7, delta.length),
    Buffer.from(baseId, 'hex'),
    deflateSync(delta),
  ]);
  const pack = Buffer.concat([body, Buffer.from(hash('sha1', body, 'hex'), 'hex')]);
  expect(pack.length).toBeLessThan(20_000);
  const command = pktLine(`${NONE} ${'1'.repeat(40)} refs/heads/x\0report-status side-band-64k`);
  const answer = await sendTo(
    'deltas',
    'git-receive-pack',
    Buffer.concat([Buffer.from(command + FLUSH), pack]),
  );
  expect(answer.status).toBe(200);
  expect(answer.text).toContain('attempting to allocate');
  expect(answer.text).toContain('ng refs/heads/x');
  expect((await read(id)).branches).toBe(1);
});

test('a running clone or push ends when the permission is revoked', async () => {
  const id = await createWithClone('revoked');
  // More than the buffers in between can hold.
  await workspace.git('revoked', 'config', 'core.compression', '0');
  await workspace.commit('revoked', { 'big.bin': randomBytes(14_000_000) });
  await workspace.git('revoked', 'push', '-q', 'origin', 'HEAD');
  const before = await workspace.git('revoked', 'rev-parse', 'HEAD');
  const after = await workspace.commit('revoked', { 'c.txt': 'c' });
  const pack = execFileSync('git', ['pack-objects', '--revs', '--stdout', '-q'], {
    cwd: join(workspace.path, 'revoked'),
    input: `${after}\n^${before}\n`,
  });
  const { body } = await ada.post('/auth/v1/pat', { name: 'short-lived' });
  const { services } = app.app;
  const start = (service: string) => {
    const sent = request(`${app.base}/ada/revoked.git/${service}`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${body.token}`,
        'content-type': `application/x-${service}-request`,
        'git-protocol': 'version=2',
      },
    });
    const ended = new Promise((resolve) => sent.once('error', resolve).once('close', resolve));
    return { sent, ended };
  };

  const clone = start('git-upload-pack');
  clone.sent.end(
    `${pktLine('command=fetch')}0001${pktLine(`want ${before}\n`)}${pktLine('done\n')}${FLUSH}`,
  );
  // The response starts, and then the client stops reading.
  const [answer] = await once(clone.sent, 'response');
  const push = start('git-receive-pack');
  const command = pktLine(`${before} ${after} refs/heads/main\0report-status`);
  push.sent.write(Buffer.concat([Buffer.from(command + FLUSH), pack.subarray(0, 20)]));
  await eventually(() => expect(services.git.transfers.counts.running).toBe(2));
  const blocker = await connect();
  try {
    await blocker.query('begin; lock table repositories in access exclusive mode');
    push.sent.end(pack.subarray(20));
    await eventually(async () => {
      const { rows } = await services.pool.query(
        `select from pg_stat_activity where wait_event_type = 'Lock' and query like '%branch_protection%'`,
      );
      expect(rows, 'the push is being judged').toHaveLength(1);
    });
    await ada.delete('/auth/v1/pat/short-lived');
    await push.ended;
    await eventually(() => expect(services.git.transfers.counts.running).toBe(1));
  } finally {
    await blocker.query('rollback');
    await blocker.end();
  }
  await eventually(() =>
    expect([services.git.transfers.counts.running, services.rechecks.streams]).toEqual([0, 0]),
  );
  await expect(buffer(answer)).rejects.toThrow('aborted');
  const dir = services.git.disk.pathOf(id);
  expect(execFileSync('git', ['-C', dir, 'rev-parse', 'main']).toString().trim()).toBe(before);
  expect(await services.git.disk.pendingOperations()).toEqual([]);
});

/** Leaves this many bytes of the plan's storage quota. */
async function leaveRoom(namespace: string, bytes: number): Promise<void> {
  await app.pool.query('update namespaces set storage_bytes = $2 where name = $1', [
    namespace,
    10 * 2 ** 30 - bytes,
  ]);
}

test('concurrent pushes share the storage quota, and reservations of a killed server expire', async () => {
  const fay = await app.user('fay', 'free');
  const { body } = await fay.post('/auth/v1/repository/fay', { name: 'full' });
  await workspace.clone(fay, 'fay/full');
  const branches = Array.from({ length: 4 }, (_, i) => `b${i}`);
  for (const branch of branches) {
    await workspace.git('full', 'checkout', '-q', '-b', branch, 'origin/main');
    await workspace.commit('full', { 'a.bin': randomBytes(3 * 2 ** 20) });
  }
  await leaveRoom('fay', 7 * 2 ** 20);
  await app.pool.query(
    `insert into storage_reservations (id, namespace_id, bytes, expires_at)
     select 'evt_killed', id, 7 << 20, now() - interval '1 s' from namespaces where name = 'fay'`,
  );
  const reserved = async () =>
    (await app.pool.query('select id, bytes from storage_reservations')).rows;
  const blocker = await connect();
  const refusals: string[] = [];
  let pushes: Promise<unknown>[] = [];
  try {
    // No push is recorded before all are checked.
    await blocker.query('begin');
    await blocker.query('select from repositories where id = $1 for update', [body.id]);
    pushes = branches.map(async (branch) => {
      const { code, stderr } = await workspace.try('full', 'push', 'origin', branch);
      if (code !== 0) refusals.push(stderr);
    });
    await eventually(() => expect(refusals).toHaveLength(2));
    expect(await reserved()).toHaveLength(2);
  } finally {
    await blocker.query('rollback');
    await blocker.end();
    await Promise.all(pushes);
  }
  for (const refusal of refusals)
    expect(refusal).toMatch(
      /Storage quota exceeded: the free plan allows 10 GiB in a namespace, 10 GiB are in use/,
    );
  expect((await fay.get(`/auth/v1/repository/fay/${body.id}`)).body.branches).toBe(3);
  await eventually(async () => expect(await reserved()).toEqual([]));
});

test('a pack above the remaining quota is rejected with plan, quota and usage', async () => {
  const gil = await app.user('gil', 'free');
  const { body } = await gil.post('/auth/v1/repository/gil', { name: 'small' });
  await workspace.clone(gil, 'gil/small');
  await workspace.commit('small', { 'a.bin': randomBytes(2 * 2 ** 20) });
  await leaveRoom('gil', 2 ** 20);
  const { code, stderr } = await workspace.try('small', 'push', 'origin', 'HEAD');
  expect(code).toBe(1);
  expect(stderr).toContain(
    'remote: error: Storage quota exceeded: the free plan allows 10 GiB in a namespace, 10 GiB are in use',
  );
  expect(stderr).toContain('this request needs more than is left');
  expect(stderr).not.toContain('maximum allowed size');
  // The same for pushes that the server makes.
  const made = (path: string) =>
    gil.graphql(
      'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
      {
        input: {
          id: body.id,
          branch: 'main',
          message: path,
          changes: [{ path, content: randomBytes(100_000).toString('base64'), encoding: 'BASE64' }],
        },
      },
    );
  expect((await made('fits.bin')).errors).toBeUndefined();
  await leaveRoom('gil', 1_000);
  expect((await made('full.bin')).errors?.[0]?.message).toContain(
    'Storage quota exceeded: the free plan allows 10 GiB in a namespace',
  );
});

test('a push that is ended by a signal leaves nothing on disk', async () => {
  const id = await createWithClone('ended');
  const before = await workspace.git('ended', 'rev-parse', 'HEAD');
  const after = await workspace.commit('ended', { 'b.bin': randomBytes(100_000) });
  const pack = execFileSync('git', ['pack-objects', '--revs', '--stdout', '-q'], {
    cwd: join(workspace.path, 'ended'),
    input: `${after}\n^${before}\n`,
  });
  const objects = join(app.app.services.git.disk.pathOf(id), 'objects');
  const quarantines = async () =>
    (await readdir(objects)).filter((name) => name.startsWith('tmp_objdir-'));
  const sent = request(`${app.base}/ada/ended.git/git-receive-pack`, {
    method: 'POST',
    headers: {
      authorization: ada.authorization ?? '',
      'content-type': 'application/x-git-receive-pack-request',
    },
  });
  const ended = new Promise((resolve) => sent.once('error', resolve).once('close', resolve));
  const command = pktLine(`${before} ${after} refs/heads/main\0report-status`);
  sent.write(Buffer.concat([Buffer.from(command + FLUSH), pack.subarray(0, 50_000)]));
  await eventually(async () => expect(await quarantines()).toHaveLength(1));
  const [running] = listProcessesNaming(id).filter(({ line }) =>
    line.startsWith('git receive-pack '),
  );
  process.kill(running?.pid as number, 'SIGTERM');
  await eventually(async () => {
    expect(await quarantines()).toEqual([]);
    expect(await app.app.services.git.disk.pendingOperations()).toEqual([]);
  });
  sent.destroy();
  await ended;
});

/** Seven bits per byte, least significant first. */
function varint(value: number): Buffer {
  const bytes: number[] = [];
  for (let rest = value; ; rest = Math.floor(rest / 128)) {
    bytes.push(rest < 128 ? rest : (rest % 128) + 128);
    if (rest < 128) return Buffer.from(bytes);
  }
}

/** Object header of a pack: type and four bits of the size, then the rest as `varint`. */
function objectHeader(type: number, size: number): Buffer {
  const first = type * 16 + (size % 16);
  if (size < 16) return Buffer.from([first]);
  return Buffer.concat([Buffer.from([first + 128]), varint(Math.floor(size / 16))]);
}

test('the default branch of an empty repository becomes the configured one, main, master, or the first pushed', async () => {
  await workspace.git('.', 'init', '-q', '-b', 'bisect', 'many');
  await workspace.commit('many', { a: 'a' });
  const branches = ['bisect', 'develop', 'main', 'master', 'named'];
  for (const name of branches.slice(1)) await workspace.git('many', 'branch', name);
  const cases: [pushed: string[], named: string, expected: string][] = [
    [branches, 'named', 'named'],
    [branches, 'other', 'main'],
    [['bisect', 'master', 'named'], 'other', 'master'],
    [['develop', 'bisect'], 'other', 'develop'],
  ];
  for (const [i, [pushed, named, expected]] of cases.entries()) {
    const id = await create(`many-${i}`, { auto_init: false, default_branch: named });
    await workspace.git('many', 'push', '-q', remote(ada, `ada/many-${i}`), ...pushed);
    expect((await read(id)).default_branch, pushed.join()).toBe(expected);
    const { disk } = app.app.services.git;
    expect(execFileSync('git', ['-C', disk.pathOf(id), 'symbolic-ref', 'HEAD']).toString()).toBe(
      `refs/heads/${expected}\n`,
    );
  }
  const id = await create('mirror', { auto_init: false });
  await workspace.git('many', 'push', '-q', '--mirror', remote(ada, 'ada/mirror'));
  expect((await read(id)).default_branch).toBe('main');
});

test('a server error rejects a push with a plain message and the request id, and changes nothing', async () => {
  const id = await createWithClone('faulty');
  const before = await read(id);
  const sha = await workspace.commit('faulty', { 'b.txt': 'b' });
  const blocker = await connect();
  // Only the pre-receive check reads this column.
  await blocker.query('alter table repositories rename column branch_protection to away');
  try {
    const { code, stderr } = await workspace.try(
      'faulty',
      '-c',
      'http.extraHeader=X-Request-Id: the-request',
      'push',
      'origin',
      'HEAD',
    );
    expect(code).not.toBe(0);
    expect(stderr).toContain('remote: The push could not be checked because of a server error');
    expect(stderr).toContain('the-request');
    expect(stderr).not.toMatch(/prisma|branch_protection|column/i);
  } finally {
    await blocker.query('alter table repositories rename column away to branch_protection');
    await blocker.end();
  }
  expect(await read(id)).toEqual(before);
  await workspace.git('faulty', 'push', '-q', 'origin', 'HEAD');
  expect(await pushEvents(id)).toContain(`refs/heads/main ${sha}`);
});

test('a push whose repository is deleted during the check is rejected with that reason', async () => {
  const id = await createWithClone('deleted');
  const { services } = app.app;
  const user = await services.db.user.findUniqueOrThrow({ where: { username: 'ada' } });
  const by: Account = {
    kind: 'account',
    userId: user.id,
    username: 'ada',
    email: '',
    plan: 'free',
    operator: false,
    namespace: { id: '', name: 'ada' },
    roles: new Map(),
    credential: { kind: 'pat', id: '', name: '' },
    scopes: null,
    namespaces: null,
    repositories: null,
  };
  let reads = 0;
  const query: (...asked: unknown[]) => unknown = async (...asked) => {
    const read = await services.pool.query(...(asked as [string]));
    // The second query is `readPushPolicy`.
    if (++reads === 2) expect((await ada.delete(`${REPOSITORIES}/${id}`)).status).toBe(204);
    return read;
  };
  const pool = { query } as typeof services.pool;
  const rules = await createPushRules(
    { ...services, pool },
    {
      repositoryId: id,
      by,
      requestId: 'the-request',
      right: { waitForFreshCheck: () => undefined },
    },
  );
  const quarantine = await mkdtemp(join(workspace.path, 'quarantine-'));
  const { signal } = new AbortController();
  const commands = [{ ref: 'refs/heads/new', before: NONE, after: 'a'.repeat(40) }];
  const verdict = await rules.judge({ commands, quarantine, options: [] }, signal);
  expect(verdict).toEqual({ accepted: false, reasons: ['The repository was deleted'] });
});

test('a push is rejected when the permission cannot be rechecked, for example without a database', async () => {
  const id = await create('unanswered');
  const timeout = AbortSignal.timeout.bind(AbortSignal);
  const spy = vi
    .spyOn(AbortSignal, 'timeout')
    .mockImplementation((ms) => timeout(ms === 10_000 ? 1 : ms));
  onTestFinished(() => spy.mockRestore());
  const fresh = async (signal: AbortSignal) => {
    await once(signal, 'abort');
    signal.throwIfAborted();
  };
  const by = { userId: null, username: 'ada', credential: { kind: 'token', id: 'pat_x' } };
  const rules = await createPushRules(app.app.services, {
    repositoryId: id,
    by: by as unknown as Account,
    requestId: 'the-request',
    right: { waitForFreshCheck: fresh },
  });
  const commands = [{ ref: 'refs/heads/new', before: NONE, after: 'a'.repeat(40) }];
  const push = { commands, quarantine: null, options: [] };
  expect(await rules.judge(push, new AbortController().signal)).toEqual({
    accepted: false,
    reasons: [
      expect.stringContaining('could not be checked'),
      expect.stringContaining('Try again'),
    ],
  });
});

test('a secret is not allowed by a push that is rejected after its checks', async () => {
  const id = await createWithClone('not-allowed');
  await ada.gql(
    `mutation ($input: UpdateRepositoryInput!) { updateRepository(input: $input) { repository { id } } }`,
    { input: { id, secretScanning: true } },
  );
  // Does not look like a secret in this file.
  const key = ['AKIA', 'Z7Q3M2X5K6W4T2PA'].join('');
  const after = await workspace.commit('not-allowed', { 'a.env': `KEY=${key}\n` });
  const { services } = app.app;
  const quarantine = join(workspace.path, 'not-allowed/.git/objects');
  const commands = [{ ref: 'refs/heads/new', before: NONE, after }];
  const { id: userId, namespace } = await services.db.user.findFirstOrThrow({
    where: { username: 'ada' },
    select: { id: true, namespace: { select: { id: true, name: true } } },
  });
  const by = {
    ...{ kind: 'account', userId, username: 'ada', namespace, operator: false, roles: new Map() },
    credential: { kind: 'token', id: 'pat_x', name: 'x' },
    ...{ scopes: null, namespaces: null, repositories: null },
  };
  const judge = async (...options: string[]) => {
    const rules = await createPushRules(services, {
      repositoryId: id,
      by: by as unknown as Account,
      requestId: 'the-request',
      right: {
        waitForFreshCheck: async () => {
          if (options.length > 0) throw new Error('revoked');
        },
      },
    });
    const push = { commands, quarantine, options };
    return JSON.stringify(await rules.judge(push, new AbortController().signal));
  };
  const rejection = await judge();
  expect(rejection).toContain('Secret scanning rejected the push');
  const [, finding] = rejection.match(/finding (\w{10})\)/) ?? [];
  expect(await judge(`secret.allow=${finding}`)).toContain('could not be checked');
  expect(await services.db.allowedSecret.count({ where: { repositoryId: id } })).toBe(0);
});

test('a push of a dead server is recorded although the first try to take it over fails', async () => {
  const id = await createWithClone('taken-over');
  const earlier = await pushEvents(id);
  const { services } = app.app;
  const before = await workspace.git('taken-over', 'rev-parse', 'HEAD');
  const after = await workspace.commit('taken-over', { 'b.txt': 'b' });
  const local = join(workspace.path, 'taken-over');
  execFileSync('git', ['-C', local, 'push', '-q', services.git.disk.pathOf(id), 'HEAD:main']);
  let tries = 0;
  const repository = {
    async findUnique(query: object) {
      tries++;
      if (tries === 1) throw new Error('the connection broke');
      return services.db.repository.findUnique(query as never);
    },
  };
  const folder = join(app.config.dataDir, 'repositories/begun/dead-server');
  await mkdir(folder, { recursive: true });
  const note = pushNote([{ ref: 'refs/heads/main', before, after }]);
  await writeFile(join(folder, `${id}.note`), JSON.stringify(note));
  await using _ = takeOverFromDeadServers(
    { ...services, db: { repository } as unknown as typeof services.db },
    { runAlone: (_, work) => work(new AbortController().signal) },
    [],
  );
  await eventually(async () =>
    expect(await pushEvents(id)).toEqual([...earlier, `refs/heads/main ${after}`]),
  );
  await eventually(async () => expect(await services.git.disk.pendingOperations()).toEqual([]));
  expect(tries).toBe(2);
});

test('a push that arrives during the last try before a stop fails instead of waiting forever', async () => {
  const id = await createWithClone('stopping');
  const { services } = app.app;
  const before = await workspace.git('stopping', 'rev-parse', 'HEAD');
  const [after, last] = ['b', 'c'].map((digit) => digit.repeat(40)) as [string, string];
  const stopping = new AbortController();
  const tasks = { background: (work: (signal: AbortSignal) => unknown) => work(stopping.signal) };
  const operationOf = (from: string, to: string) => ({
    id,
    data: pushNote([{ ref: 'refs/heads/main', before: from, after: to }]),
    finish: async () => {},
  });
  let late: Promise<void> | undefined;
  const pool = {
    query(statement: pg.QueryConfig) {
      late ??= recorder.record(operationOf(after, last), null);
      stopping.abort();
      return services.pool.query(statement);
    },
  };
  const recorder = new PushRecorder({
    log: services.log,
    git: { ...services.git, tasks } as unknown as typeof services.git,
    pool: pool as pg.Pool,
  });
  // Another push seems to have moved the ref on, so this one stays undecided.
  await workspace.commit('stopping', { 'b.txt': 'b' });
  const local = join(workspace.path, 'stopping');
  execFileSync('git', ['-C', local, 'push', '-q', services.git.disk.pathOf(id), 'HEAD:main']);
  await recorder.recover(id, [operationOf(before, after)]);
  await expect(late).rejects.toThrow('stopping');
  expect(recorder.waiting).toBe(0);
});

test('a failed record is retried while the server runs, and writes one event', async () => {
  const id = await createWithClone('later');
  const earlier = await pushEvents(id);
  const sha = await workspace.commit('later', { 'b.txt': 'b' });
  const blocker = await connect();
  await blocker.query(`
    create function refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$;
    create trigger refuse before update of pushed_at on repositories
      for each row when (new.id = '${id}') execute function refuse()`);
  const { services } = app.app;
  try {
    const { code, stderr } = await workspace.try('later', 'push', 'origin', 'HEAD');
    expect(code, 'a push that is not recorded must not succeed').not.toBe(0);
    expect(stderr).not.toContain('refused');
    expect(await pushEvents(id)).toEqual(earlier);
    expect(services.pushes.waiting).toBe(1);
    expect(await services.git.disk.pendingOperations()).toHaveLength(1);
  } finally {
    await blocker.query('drop trigger refuse on repositories');
    await blocker.end();
  }
  await eventually(async () =>
    expect(await pushEvents(id)).toEqual([...earlier, `refs/heads/main ${sha}`]),
  );
  await eventually(async () => expect(await services.git.disk.pendingOperations()).toEqual([]));
  await eventually(() => expect(services.pushes.waiting).toBe(0));
});

test('a push has an event although the next push moved its ref before it was recorded', async () => {
  const id = await createWithClone('moving');
  const earlier = await pushEvents(id);
  const one = await workspace.commit('moving', { 'b.txt': 'b' });
  await using measuring = await blockMeasuring(id);
  const pushes = [workspace.try('moving', 'push', 'origin', 'HEAD')];
  await measuring.begun();
  const dir = app.app.services.git.disk.pathOf(id);
  const at = () => execFileSync('git', ['-C', dir, 'rev-parse', 'main']).toString().trim();
  const two = await workspace.commit('moving', { 'c.txt': 'c' });
  pushes.push(workspace.try('moving', 'push', 'origin', 'HEAD'));
  await eventually(() => expect(at()).toBe(two));
  await measuring.goOn();
  for (const { code } of await Promise.all(pushes)) expect(code).toBe(0);
  expect(await pushEvents(id)).toEqual([
    ...earlier,
    `refs/heads/main ${one}`,
    `refs/heads/main ${two}`,
  ]);
});

test('after a kill each push that took effect has an event, even if its ref moved again', async () => {
  const id = await createWithClone('killed');
  const earlier = await pushEvents(id);
  const { services } = app.app;
  const { disk } = services.git;
  const base = await workspace.git('killed', 'rev-parse', 'HEAD');
  const [one, two] = [
    await workspace.commit('killed', { b: 'b' }),
    await workspace.commit('killed', { c: 'c' }),
  ];
  // The objects and refs exist, but the records do not.
  execFileSync('git', [
    '-C',
    join(workspace.path, 'killed'),
    'push',
    '-q',
    disk.pathOf(id),
    'HEAD:main',
  ]);
  const move = (before: string, after: string, at: string, ref = 'refs/heads/main') =>
    disk.beginOperation(id, pushNote([{ ref, before, after }], at));
  await move(one, two, '2026-01-01T00:00:02.000Z');
  await move(base, one, '2026-01-01T00:00:01.000Z');
  await move(NONE, one, '2026-01-01T00:00:01.500Z', 'refs/heads/never');
  await recoverRepositories(services);
  expect(await pushEvents(id)).toEqual([
    ...earlier,
    `refs/heads/main ${one}`,
    `refs/heads/main ${two}`,
  ]);
  expect(await disk.pendingOperations()).toEqual([]);
});

test('a push has one event although its note outlived its record', async () => {
  const id = await createWithClone('noted');
  const earlier = await pushEvents(id);
  const { services } = app.app;
  const { id: server } = services.cluster.members;
  const folder = join(app.config.dataDir, 'repositories/begun', server);
  const blocker = await connect();
  await blocker.query('begin');
  await blocker.query('select from repositories where id = $1 for update', [id]);
  const sha = await workspace.commit('noted', { 'b.txt': 'b' });
  const pushed = workspace.try('noted', 'push', 'origin', 'HEAD');
  await eventually(() => expect(services.pushes.waiting).toBe(1));
  // A second note only says that a push is being received.
  const [note = '', text = ''] =
    (await notesIn(folder)).find(([, said]) => JSON.parse(said).kind === 'push') ?? [];
  await blocker.query('commit');
  await blocker.end();
  expect((await pushed).code).toBe(0);
  expect(await services.git.disk.pendingOperations()).toEqual([]);
  // The state after a kill between the commit of the record and the removal of the note.
  await writeFile(join(folder, note), text);
  await recoverRepositories(services);
  expect(await pushEvents(id)).toEqual([...earlier, `refs/heads/main ${sha}`]);
  expect(await services.git.disk.pendingOperations()).toEqual([]);
});

test('no transaction is open while git measures the repository', async () => {
  const id = await createWithClone('measured');
  const sha = await workspace.commit('measured', { 'b.txt': 'b' });
  await using measuring = await blockMeasuring(id);
  const pushed = workspace.try('measured', 'push', 'origin', 'HEAD');
  await measuring.begun();
  // A transaction of the push would stay open as long as git is blocked. Those of background work end by themselves.
  await eventually(async () => {
    const { rows } = await app.app.services.pool.query(
      `select query from pg_stat_activity where datname = current_database() and xact_start is not null
        and pid <> pg_backend_pid()`,
    );
    expect(rows).toEqual([]);
  });
  await measuring.goOn();
  expect((await pushed).code).toBe(0);
  expect(await pushEvents(id)).toContain(`refs/heads/main ${sha}`);
});

/**
 * Puts a wrapper for git on the PATH that blocks when refs are listed. A symbolic ref makes the server list refs with
 * git instead of reading the files itself.
 */
async function blockMeasuring(id: string) {
  const dir = app.app.services.git.disk.pathOf(id);
  execFileSync('git', ['-C', dir, 'symbolic-ref', 'refs/notes/other', 'refs/heads/main']);
  const folder = await mkdtemp(join(workspace.path, 'bin-'));
  const script = `#!/bin/sh
case " $* " in *" for-each-ref "*) touch ${folder}/waits; while [ ! -e ${folder}/go ]; do sleep 0.02; done;; esac
PATH="\${PATH#*:}" exec git "$@"
`;
  await writeFile(join(folder, 'git'), script);
  await chmod(join(folder, 'git'), 0o755);
  const { PATH } = process.env;
  process.env.PATH = `${folder}:${PATH}`;
  const goOn = () => writeFile(join(folder, 'go'), '');
  return {
    begun: () => eventually(async () => expect(await readdir(folder)).toContain('waits')),
    goOn,
    async [Symbol.asyncDispose]() {
      await goOn();
      process.env.PATH = PATH;
    },
  };
}

test('a push that failed because its ref had moved has no event, although the ref has the pushed value', async () => {
  const id = await createWithClone('twice');
  const before = await workspace.git('twice', 'rev-parse', 'HEAD');
  const after = await workspace.commit('twice', { 'b.txt': 'b' });
  await workspace.git('twice', 'push', '-q', 'origin', 'HEAD');
  const earlier = await pushEvents(id);
  const command = `${before} ${after} refs/heads/main\0 report-status side-band-64k\n`;
  const empty = Buffer.from('PACK\0\0\0\x02\0\0\0\0', 'latin1');
  const pack = Buffer.concat([empty, hash('sha1', empty, 'buffer')]);
  const answer = await ada.request('POST', '/ada/twice.git/git-receive-pack', {
    body: Buffer.concat([Buffer.from(pktLine(command) + FLUSH), pack]),
    headers: { 'Content-Type': 'application/x-git-receive-pack-request' },
  });
  expect(answer.text).toContain('ng refs/heads/main');
  expect(await pushEvents(id)).toEqual(earlier);
});

test('a push that was sent twice has one event after kills', async () => {
  const id = await createWithClone('repeated');
  const { services } = app.app;
  const { disk } = services.git;
  const before = await workspace.git('repeated', 'rev-parse', 'HEAD');
  const after = await workspace.commit('repeated', { 'b.txt': 'b' });
  const commands = [{ ref: 'refs/heads/main', before, after }];
  const earlier = await pushEvents(id);
  const local = join(workspace.path, 'repeated');
  execFileSync('git', ['-C', local, 'push', '-q', disk.pathOf(id), 'HEAD:main']);
  const noted = (at: string) => disk.beginOperation(id, pushNote(commands, at));
  // Two notes at once, and a third after the first was recorded.
  await noted('2026-01-01T00:00:01.000Z');
  await noted('2026-01-01T00:00:02.000Z');
  await recoverRepositories(services);
  expect(await pushEvents(id)).toEqual([...earlier, `refs/heads/main ${after}`]);
  await noted('2026-01-01T00:00:03.000Z');
  await recoverRepositories(services);
  expect(await pushEvents(id)).toEqual([...earlier, `refs/heads/main ${after}`]);

  // The attempt that moved the ref may be recorded last, with git's report.
  const moved = async (from: string, to: string, at: string) => {
    const push = [{ ref: 'refs/heads/main', before: from, after: to }];
    await services.pushes.record(await disk.beginOperation(id, pushNote(push, at)), push);
  };
  await moved(before, after, '2026-01-01T00:00:04.000Z');
  expect(await pushEvents(id)).toEqual([...earlier, `refs/heads/main ${after}`]);
  // The same update after a revert is a new update.
  await moved(after, before, new Date().toISOString());
  await moved(before, after, new Date().toISOString());
  const tips = [after, before, after].map((tip) => `refs/heads/main ${tip}`);
  expect(await pushEvents(id)).toEqual([...earlier, ...tips]);
});
