/**
 * What a worker token and the secret of a machine give, and no more (docs/machines.md). The machines are played by the test, so
 * they can send anything.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { PLAN_LIMITS } from '../../src/base/config/plans.ts';
import { eventually } from '../support/eventually.ts';
import { FORGED_FACTS, forgeMachine, sendJoin } from '../support/forged-machine.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { cancel, job, lines, submit, until, variables } from '../support/submit.ts';

let app: TestApp;
let ada: Client;
let eve: Client;

beforeAll(async () => {
  app = await startApp({ config: { runner: 'none' } });
  ada = await app.user('ada');
  eve = await app.user('eve');
  await ada.repository('ada/code');
});
afterAll(() => app[Symbol.asyncDispose]());

async function createToken(client: Client, namespace?: string) {
  const { createWorkerToken } = await client.gql(
    `mutation ($input: CreateWorkerTokenInput!) {
      createWorkerToken(input: $input) { token workerToken { id } } }`,
    { input: { name: 'box', ...(namespace && { namespace }) } },
  );
  return { token: createWorkerToken.token, id: createWorkerToken.workerToken.id };
}

const removeMachine = (name: string) =>
  app.admin.gql(
    'mutation ($input: RemoveMachineInput!) { removeMachine(input: $input) { __typename } }',
    { input: { name, force: true } },
  );

const revoke = (id: string) =>
  app.admin.gql(
    'mutation ($input: RevokeWorkerTokenInput!) { revokeWorkerToken(input: $input) { __typename } }',
    { input: { id } },
  );

let count = 0;
/** A machine for the jobs of ada, unless the token is another one. Removed at the end of the test. */
async function machine(token?: string) {
  const name = `box-${++count}`;
  const made = await forgeMachine(app.base, token ?? (await createToken(ada, 'ada')).token, name);
  onTestFinished(async () => {
    await removeMachine(name).catch(() => {});
  });
  return made;
}

/** A job of ada that waits. Cancelled at the end of the test. */
async function newJob(input: { name: string; client?: Client; namespace?: string }) {
  const { name, client = ada, namespace = 'ada' } = input;
  const secrets = variables({ PASSWORD: `secret of ${name}` });
  await submit(client, { namespace, name, image: 'busybox', command: 'true', secrets });
  onTestFinished(async () => void (await cancel(client, namespace, name)));
}

test('a worker token and the secret of a machine open neither the API nor a repository', async () => {
  const { token } = await createToken(app.admin);
  const { secret, id } = await machine(token);
  const folder = await mkdtemp(join(tmpdir(), 'loam-stolen-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  await using workspace = await Workspace.open();
  for (const credential of [token, secret, `${id}$${secret}`]) {
    for (const scheme of ['Bearer', 'API-Key']) {
      const thief = app.client(`${scheme} ${credential}`);
      expect((await thief.get('/auth/v1/repository/ada/code')).status).toBe(401);
      expect((await thief.post('/auth/v1/repository/ada', { name: 'mine' })).status).toBe(401);
      expect((await thief.graphql('{ viewer { username } }')).errors).toMatchObject([
        { extensions: { code: 'AUTHENTICATION_FAILED' } },
      ]);
    }
    for (const user of ['ada', 'admin', id]) {
      const url = new URL(`${app.base}/ada/code.git`);
      Object.assign(url, { username: user, password: encodeURIComponent(credential) });
      await expect(workspace.git('.', 'ls-remote', url.href)).rejects.toThrow();
    }
  }
});

test('a machine gets the jobs of its namespace only', async () => {
  await newJob({ name: 'theirs', client: eve, namespace: 'eve' });
  const box = await machine();
  await box.poll();
  await newJob({ name: 'ours' });
  const attempt = await box.take();
  expect(await attempt.claim()).toMatchObject({
    status: 200,
    text: expect.stringContaining('secret of ours'),
  });
  await attempt.send('POST begin');
  expect((await box.poll({ attempts: [{ id: attempt.id }] })).attempts).toHaveLength(1);
  expect((await job(eve, 'eve', 'theirs')).status).toBe('QUEUED');
});

test('the keys of caches have the system and the architecture that the machine reports', async () => {
  const facts = { ...FORGED_FACTS, os: 'darwin', arch: 'riscv64' };
  const box = await machine();
  await box.poll({ facts });
  // biome-ignore lint/suspicious/noTemplateCurlyInString: keys have variables.
  const cache = [{ path: 'deps', key: 'of-${os}-${arch}' }];
  const input = { namespace: 'ada', name: 'keyed', repo: 'ada/code', command: 'true', cache };
  await submit(ada, input);
  onTestFinished(async () => void (await cancel(ada, 'ada', 'keyed')));
  await eventually(async () => {
    expect((await box.poll({ facts })).attempts).toHaveLength(1);
  });
  const query = '{ job(namespace: "ada", name: "keyed") { caches { resolvedKey } } }';
  expect(await ada.gql(query)).toEqual({ job: { caches: [{ resolvedKey: 'of-darwin-riscv64' }] } });
});

test('an attempt of another machine of the same token is out of reach', async () => {
  const { token } = await createToken(ada, 'ada');
  const one = await machine(token);
  await one.poll();
  await newJob({ name: 'first' });
  const first = await one.take();
  await first.begin();
  await app.admin.gql(
    'mutation ($input: DrainMachineInput!) { drainMachine(input: $input) { __typename } }',
    { input: { name: one.name } },
  );
  const two = await machine(token);
  await two.poll();
  await newJob({ name: 'second' });
  const second = await two.take();
  expect(second.id).not.toBe(first.id);
  for (const options of [
    { token },
    { token: two.secret },
    { token: one.secret },
    { token: second.token },
    { token: second.token, nonce: second.nonce },
  ])
    for (const answer of [
      await first.claim(options),
      await first.send('GET checkout', options),
      await first.send('POST begin', options),
      await first.log('forged', options),
      await first.exit(0, options),
      await first.send('GET control?seen=', options),
      await first.send('PUT output?request=1', { ...options, body: 'tar' }),
    ])
      expect(answer.status).toBe(401);
  // The right token does not help a second program, which has not claimed the attempt.
  expect((await first.claim({ nonce: crypto.randomUUID() })).status).toBe(409);
  expect((await first.log('forged', { nonce: crypto.randomUUID() })).status).toBe(409);

  const lies = { id: first.id, lost: 'it is gone', gpus: [0], progress: 'nothing' };
  await two.poll({ attempts: [lies] });
  await two.poll({ attempts: [] });
  expect((await job(ada, 'ada', 'first')).status).toBe('RUNNING');
  expect(await lines(ada, 'ada', 'first')).toEqual([]);
});

test('a revoked token admits no machine, and its machines and their attempts are refused at once', async () => {
  const { token, id } = await createToken(app.admin, 'ada');
  const box = await machine(token);
  await box.poll();
  await newJob({ name: 'revoked' });
  const attempt = await box.take();
  await attempt.begin();
  await until(ada, 'ada', 'revoked', 'RUNNING');
  const orders = await box.poll({ attempts: [{ id: attempt.id }] });
  const waiting = box.send({ attempts: [{ id: attempt.id }], seen: orders.version });
  await revoke(id);
  expect((await waiting).status).not.toBe(200);
  expect((await box.send()).status).toBe(401);
  expect((await attempt.log('late')).status).toBe(410);
  expect((await attempt.exit(0)).status).toBe(410);
  expect((await attempt.send('GET control?seen=')).status).toBe(410);
  expect(await sendJoin(app.base, { token, name: 'again', facts: FORGED_FACTS })).toMatchObject({
    status: 401,
    text: expect.stringContaining('was revoked, or has expired'),
  });
  await until(ada, 'ada', 'revoked', 'QUEUED');
  expect(await lines(ada, 'ada', 'revoked')).toEqual(['The machine was removed']);
});

test('an expired token admits no machine; those that have joined stay', async () => {
  const { token, id } = await createToken(app.admin);
  const box = await machine(token);
  await app.pool.query(`update worker_tokens set expires_at = now() where id = $1`, [id]);
  expect((await sendJoin(app.base, { token, name: 'late', facts: FORGED_FACTS })).status).toBe(401);
  await box.poll();
});

test('a copy of a machine is refused while the machine reports', async () => {
  const box = await machine();
  await box.poll();
  const refused = await box.send({}, { instance: 'copy' });
  expect(refused).toMatchObject({ status: 503, text: expect.stringContaining('copy of it') });
  await box.poll();
  await app.pool.query(
    `update machines set last_seen_at = now() - interval '2 minutes' where id = $1`,
    [box.id],
  );
  expect((await box.send({ seen: '' }, { instance: 'after the boot' })).status).toBe(200);
  expect((await box.send()).status).toBe(503);
});

test('a machine that gets the name of a removed one gets none of its attempts', async () => {
  const box = await machine((await createToken(app.admin)).token);
  await box.poll();
  await newJob({ name: 'of-eve', client: eve, namespace: 'eve' });
  const attempt = await box.take();
  await removeMachine(box.name);
  const { token } = await createToken(ada, 'ada');
  const next = await forgeMachine(app.base, token, box.name);
  onTestFinished(() => removeMachine(box.name));
  expect((await next.poll()).attempts).toEqual([]);
  expect((await attempt.claim()).status).toBe(410);
  expect((await job(eve, 'eve', 'of-eve')).status).toBe('QUEUED');
});

test('a machine that polls without end has one open request, and the server goes on', async () => {
  const box = await machine();
  const { version } = await box.poll();
  const statuses = new Map<number, number>();
  const flood = Array.from({ length: 300 }, async () => {
    const { status } = await box.send({ seen: version });
    statuses.set(status, (statuses.get(status) ?? 0) + 1);
  });
  await eventually(() => {
    const answered = [...statuses.values()].reduce((sum, n) => sum + n, 0);
    expect(answered).toBeGreaterThanOrEqual(299);
  });
  expect([...statuses.keys()].every((status) => [200, 429, 503].includes(status))).toBe(true);
  await box.poll();
  await Promise.all(flood);
});

const deep = (levels: number) => `${'['.repeat(levels)}${']'.repeat(levels)}`;
const gpus = (length: number, name: (i: number) => string) =>
  Array.from({ length }, (_, index) => ({ index, name: name(index), uuid: '', memoryBytes: 1 }));

test.each<[string, unknown]>([
  ['nothing', ''],
  ['no JSON', '{"facts": '],
  ['a list', []],
  ['null', null],
  ['100,000 lists in each other', deep(100_000)],
  ['deep JSON in a name', `{"facts": {"hostname": ${deep(100_000)}}}`],
  ['two megabytes', JSON.stringify({ seen: 'x'.repeat(2 ** 21) })],
  ['compressed JSON', gzipSync('{}').toString('latin1')],
  ['half of a character', '{"seen": "\\ud800"}'],
  ['no facts', { facts: null }],
  ['more attempts than it may have', { attempts: Array(4_097).fill({ id: 'a' }) }],
  ['an attempt with a path as id', { attempts: [{ id: '../../etc' }] }],
  ['GPU indices that are no numbers', { attempts: [{ id: 'a', gpus: ['0'] }] }],
  ['negative memory', { facts: { ...FORGED_FACTS, memoryBytes: -1 } }],
  ['more memory than numbers count', { facts: { ...FORGED_FACTS, memoryBytes: 2 ** 60 } }],
  ['a million vCPUs', { facts: { ...FORGED_FACTS, cpus: 1_000_000 } }],
  ['100 GPUs', { facts: { ...FORGED_FACTS, gpus: gpus(100, () => 'L4') } }],
  ['20 models of GPUs', { facts: { ...FORGED_FACTS, gpus: gpus(20, (i) => `Model ${i}`) } }],
  ['a note without end', { facts: { ...FORGED_FACTS, notes: ['x'.repeat(501)] } }],
  ['100 notes', { facts: { ...FORGED_FACTS, notes: Array(100).fill('x') } }],
  ['a load beyond 100 %', { load: { cpuPercent: 101, memoryBytes: 1, gpuPercent: null } }],
])('a report of %s is refused', async (_, report) => {
  const box = await forgeMachine(app.base, (await createToken(app.admin)).token, `bad-${++count}`);
  const isObject = typeof report === 'object' && report !== null && !Array.isArray(report);
  const text = typeof report === 'string' ? report : JSON.stringify(report);
  const answer = await box.send(isObject ? { ...report } : text);
  expect(answer.status).toBe(400);
  expect(JSON.parse(answer.text).error.message).toBeTruthy();
  // As the body of a request without a valid token.
  expect((await sendJoin(app.base, text)).status).toBe(400);
  await removeMachine(box.name);
});

test('texts of a machine are stored as one line of text, and its names have their form', async () => {
  const { token } = await createToken(app.admin);
  const hostname = '<script>alert(1)</script>\u0000\u001b[31m\nline';
  for (const name of ['', 'UPPER', '../up', 'a b', '-a', 'local', 'a'.repeat(64), '<b>'])
    expect(await sendJoin(app.base, { token, name, facts: FORGED_FACTS })).toMatchObject({
      status: 400,
      text: expect.stringContaining('name'),
    });
  const facts = { ...FORGED_FACTS, hostname, notes: ['\u202eevil\r\nSet-Cookie: a'] };
  const name = 'texts';
  const joined = await sendJoin(app.base, { token, name, facts, __proto__: { admin: true } });
  expect(joined.status).toBe(201);
  onTestFinished(() => removeMachine(name));
  const { rows } = await app.pool.query(`select facts from machines where name = $1`, [name]);
  expect(rows[0].facts).toMatchObject({
    hostname: '<script>alert(1)</script> [31m line',
    notes: ['\u202eevil Set-Cookie: a'],
  });
});

test('a machine that offers everything gets no more than it may have', async () => {
  const box = await machine();
  const facts = { ...FORGED_FACTS, cpus: 65_536, memoryBytes: 2 ** 52, slots: 100_000 };
  await newJob({ name: 'tempted', client: eve, namespace: 'eve' });
  await box.poll({ facts });
  await newJob({ name: 'large' });
  const { attempts } = await eventually(async () => {
    const orders = await box.poll({ facts });
    expect(orders.attempts).not.toEqual([]);
    return orders;
  });
  expect(attempts).toHaveLength(1);
  // It holds attempts that nobody gave it: as many as a report may name.
  const invented = Array.from({ length: 4_000 }, (_, i) => ({ id: `att_${i}`, lost: 'x' }));
  expect((await box.poll({ facts, attempts: invented })).attempts).toHaveLength(1);
});

test('facts that have not changed are not stored again', async () => {
  const box = await machine();
  await box.poll();
  const version = async () => {
    const { rows } = await app.pool.query(`select xmin::text from machines where id = $1`, [
      box.id,
    ]);
    return rows[0].xmin;
  };
  const before = await version();
  await box.poll();
  expect(await version()).toBe(before);
});

test('guesses of worker tokens are limited as requests without a credential', async () => {
  await using limited = await startApp({ config: { rateLimits: PLAN_LIMITS } });
  const guesses = await Promise.all(
    Array.from({ length: 30 }, (_, i) =>
      sendJoin(limited.base, { token: `loam_worker_${i}`, name: 'a', facts: FORGED_FACTS }),
    ),
  );
  expect(new Set(guesses.map(({ status }) => status))).toEqual(new Set([401, 429]));
  expect(guesses.filter(({ status }) => status === 401).length).toBeLessThanOrEqual(20);
});
