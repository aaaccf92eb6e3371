/** The TypeScript client library as users get it: one module and its types. */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Webhook } from 'standardwebhooks';
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { toArray } from '../../src/cli/command.ts';
import { Client, JobFailed, LoamError, verifyWebhook } from '../../src/cli/sdk/loam.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client as HttpClient, startApp, type TestApp } from '../support/harness.ts';
import { LoamUser } from '../support/loam-command.ts';
import { needs, SYSTEM_NODE } from '../support/needs.ts';

const ROOT = join(import.meta.dirname, '../..');
const LIBRARY = join(ROOT, 'dist/sdk/loam.js');

let app: TestApp;
let ada: HttpClient;
let client: Client;
const runner = fakeRunner({ images: true, gpus: { 'A100-80GB': 1 } });

beforeAll(async () => {
  app = await startApp({ overrides: { runner } });
  ada = await app.user('ada');
  client = new Client({ url: app.base, token: ada.token });
  await client.repositories.create('model');
});
afterAll(() => app[Symbol.asyncDispose]());
afterEach(() => vi.unstubAllEnvs());

test('a job from its creation to its result', async () => {
  const job = await client.run('echo one;echo two', { image: 'busybox', labels: { kind: 'sdk' } });
  expect(job.name).toMatch(/^echo-one-echo-\w{5}$/);
  const lines: string[] = [];
  for await (const event of job.logs()) if (event.kind === 'line') lines.push(event.message);
  expect(lines).toEqual(['one', 'two']);
  expect(await job.result()).toMatchObject({ status: 'SUCCEEDED', exitCode: 0, gpu: 'NONE' });
  const again = await job.rerun({ newName: 'again' });
  await again.wait();
  const found: string[] = [];
  const filter = { labels: [{ key: 'kind', values: ['sdk'] }] };
  for await (const { name } of client.jobs.list(filter)) found.push(name);
  expect(found).toEqual(['again', job.name]);
  await again.delete();
  await expect(again.info()).rejects.toMatchObject({ code: 'not_found', status: 404 });
});

test('a job that fails, one that is cancelled, and a request that is refused are errors', async () => {
  const failed = await client.run('exit 4', { image: 'busybox', name: 'failing' });
  const error = await failed.result().catch((thrown) => thrown);
  expect(error).toBeInstanceOf(JobFailed);
  expect([error.message, error.job.exitCode]).toEqual(['ada/failing failed with exit code 4', 4]);
  const held = await client.run('hold', { image: 'busybox', name: 'held' });
  const ending = held.wait();
  await eventually(async () => expect((await held.info()).status).toBe('RUNNING'));
  await held.cancel();
  expect((await ending).status).toBe('CANCELLED');
  await expect(held.release()).rejects.toMatchObject({ code: 'conflict', status: 409 });
  const kept = { image: 'busybox', name: 'kept', retries: 1, holdOnFailureMinutes: 5 };
  const info = await (await client.run('exit 0', kept)).result();
  expect(info).toMatchObject({ holdOnFailureMinutes: 5, hold: null, shellAccess: 'ALLOWED' });
  const closed = await client.run('true', { image: 'busybox', shellAccess: 'none' });
  expect((await closed.info()).shellAccess).toBe('NONE');

  const refused = client.run('true', { image: 'busybox', gpu: 'A100-80GB:3' });
  await expect(refused).rejects.toMatchObject({ code: 'invalid_request', field: 'gpuCount' });
  await expect(client.run('true', { gpu: 'T4:x' })).rejects.toBeInstanceOf(LoamError);
  await expect(client.run('true', { image: 'busybox', gpu: 'T5' })).rejects.toMatchObject({
    code: 'invalid_request',
    status: 400,
    field: 'gpu',
    message: expect.stringMatching(/^gpu: must be one of .*A100-80GB.*T4/),
  });
  const stranger = new Client({ url: app.base, token: 'loam_pat_none' });
  await expect(stranger.username()).rejects.toMatchObject({ status: 401 });
  expect(() => new Client({ url: 'ftp://host' })).toThrow(LoamError);
  expect(() => new Client({ url: 'https://user:secret@host' })).toThrow(LoamError);
});

test('an option that does not exist is an error that names the most similar one', async () => {
  // As JavaScript passes it, which TypeScript does not check.
  const run = (options: object) => client.run('true', { image: 'busybox', ...options });
  for (const [options, field, similar] of [
    [{ memoryGB: 8 }, 'memoryGB', 'memoryGb'],
    [{ output_path: 'out' }, 'output_path', 'outputPath'],
    [{ gpus: 'T4' }, 'gpus', 'gpu'],
    [{ array: { size: 2, max_parallel: 1 } }, 'array.max_parallel', 'array.maxParallel'],
    [{ needs: [{ job: 'a', if: 'failed' }] }, 'needs.if', 'needs.job'],
  ] as const)
    await expect(run(options)).rejects.toMatchObject({
      code: 'invalid_request',
      field,
      message: `${field}: there is no such option. Did you mean ${similar}?`,
    });
  const options = { url: app.base, tokn: 'x' };
  expect(() => new Client(options)).toThrow('Did you mean token?');
  for (const none of [undefined, {}, { token: 'x' }, app.base])
    expect(() => new Client(none as never)).toThrow('Client.fromLogin()');
  const { jobs, repositories, webhooks } = client;
  const wrong: Record<string, string> = { state: 'x' };
  expect(() => jobs.list(wrong)).toThrow('Did you mean statuses?');
  await expect(repositories.create('new', wrong)).rejects.toThrow('state: there is no such option');
  await expect(webhooks.update('wh_x', wrong)).rejects.toThrow('state: there is no such option');
  await expect(
    jobs
      .get('ada', 'x')
      .logs({ ...wrong })
      .next(),
  ).rejects.toThrow('state');
});

test('a repository without a namespace is one of the caller', async () => {
  await client.repositories.create('vision');
  for (const repo of ['vision', 'vision@main'])
    expect(await (await client.run('true', { repo })).info()).toMatchObject({
      namespace: 'ada',
      repo: 'ada/vision',
      branch: 'main',
    });
  // The name of a branch may have a slash.
  const missing = client.run('true', { repo: 'vision@feature/x' });
  await expect(missing).rejects.toMatchObject({ code: 'not_found', message: /feature\/x/ });
});

test('many jobs are cancelled, run again and deleted', async () => {
  const labels = { kind: 'many' };
  const selection = {
    namespace: 'ada',
    labels: [{ key: 'kind', values: ['many'] }],
  };
  for (const name of ['many-1', 'many-2'])
    await client.run('hold', { image: 'busybox', name, labels });
  const all = { matched: 2, done: 2, skipped: [] };
  const { jobs } = client;
  expect(await jobs.cancelMany(selection, { dryRun: true })).toEqual(all);
  expect(await jobs.cancelMany(selection)).toEqual(all);
  expect(await jobs.rerunMany(selection)).toEqual(all);
  const names = ['many-1', 'many-2', 'many-1-2', 'none'];
  expect(await jobs.deleteMany({ namespace: 'ada', names })).toMatchObject({
    matched: 3,
    done: 2,
    skipped: [
      { reason: 'WRONG_STATUS', names: ['many-1-2'] },
      { reason: 'NOT_FOUND', names: ['none'] },
    ],
  });
  await expect(jobs.deleteMany({ namespace: 'ada' })).rejects.toMatchObject({
    code: 'invalid_request',
  });
  expect((await jobs.cancelMany({ namespace: 'ada', all: true })).done).toBe(2);
});

test('a job runs with artifacts of another', async () => {
  const first = await client.run('echo x > out/x', { image: 'busybox', outputPath: 'out' });
  await first.result();
  const repository = { repo: 'ada/model', ref: 'main', to: 'code', readOnly: true };
  const inputs = [{ job: first.name, path: 'x', to: 'in/' }, repository];
  const { name } = await client.run('echo ran', { image: 'busybox', inputs });
  const info = await client.jobs.get('ada', name).result();
  expect(info.inputs).toEqual([{ jobName: first.name, path: 'x', to: 'in/' }]);
  const commitSha = expect.stringMatching(/^[0-9a-f]{40}$/);
  expect(info.repositoryInputs).toEqual([{ ...repository, path: '', commitSha }]);
});

test('repositories are created, listed, changed and deleted', async () => {
  await app.organization('acme');
  const { repositories } = new Client({ url: app.base, token: app.admin.token });
  const created = await repositories.create('paper', {
    description: 'text',
    visibility: 'PUBLIC',
    defaultBranch: 'trunk',
  });
  expect(created).toMatchObject({
    fullName: 'admin/paper',
    description: 'text',
    defaultBranch: 'trunk',
    cloneUrl: `${app.base}/admin/paper.git`,
  });
  expect(await repositories.rename('admin/paper', 'book')).toMatchObject({ name: 'book' });
  expect(await repositories.setVisibility('admin/book', 'PRIVATE')).toMatchObject({
    visibility: 'PRIVATE',
  });
  expect(await repositories.transfer('admin/book', 'acme')).toMatchObject({ namespace: 'acme' });
  const book = await repositories.get('acme/book');
  expect([book.id, book.fullName]).toEqual([created.id, 'acme/book']);
  expect(await toArray(repositories.list({ namespace: 'acme' }))).toEqual([book]);
  expect(await toArray(repositories.list())).toEqual([book]);
  expect(await toArray(repositories.list({ visibility: 'PUBLIC' }))).toEqual([]);

  const refused = { code: 'invalid_request', field: 'repository' };
  await expect(repositories.get('book')).rejects.toMatchObject(refused);
  const taken = repositories.create('book', { namespace: 'acme' });
  await expect(taken).rejects.toMatchObject({ code: 'already_exists', status: 409 });
  const hidden = client.repositories.get('acme/book');
  await expect(hidden).rejects.toMatchObject({ code: 'not_found', status: 404 });
  await repositories.delete('acme/book');
  expect(await toArray(repositories.list({ namespace: 'acme' }))).toEqual([]);
});

test('webhooks are created, listed, tested, changed and deleted', async () => {
  const { webhooks } = client;
  const created = await webhooks.create('chat', 'https://hooks.example/loam', {
    eventTypes: ['JOB_FAILED'],
    namespaces: ['ada'],
    secret: 'a secret',
  });
  expect(created).toMatchObject({ name: 'chat', active: true, hasSecret: true });
  const { id } = created;
  expect(await webhooks.get(id)).toEqual(created);
  const ping = await webhooks.test(id);
  const again = await webhooks.redeliver(id, ping.id);
  expect([ping.eventType, again.eventId]).toEqual(['PING', ping.eventId]);
  const ids = (await toArray(webhooks.deliveries(id))).map((delivery) => delivery.id);
  expect(ids).toEqual([again.id, ping.id]);
  expect(await toArray(webhooks.deliveries(id, { status: 'SUCCEEDED' }))).toEqual([]);
  const changes = { name: 'off', secret: null, active: false };
  const changed = await webhooks.update(id, changes);
  expect(changed).toMatchObject({ name: 'off', hasSecret: false, eventTypes: ['JOB_FAILED'] });
  await expect(webhooks.test(id)).rejects.toMatchObject({ code: 'conflict', status: 409 });
  expect(await toArray(webhooks.list())).toEqual([changed]);
  expect(await toArray(webhooks.list({ namespace: 'ada' }))).toEqual([changed]);
  await webhooks.delete(id);
  expect(await toArray(webhooks.list())).toEqual([]);
});

test('other requests: who the caller is, REST and GraphQL', async () => {
  const identity = { username: 'ada', email: 'ada@example.com', namespace: 'ada' };
  expect(await client.whoami()).toMatchObject(identity);
  const page = await client.request('GET', '/ada/jobs', { query: { page: 99, status: undefined } });
  expect(page).toMatchObject({ data: [], pagination: { page: 99 } });
  const read = 'query ($name: String!) { namespace(name: $name) { name } }';
  expect(await client.graphql(read, { name: 'ADA' })).toEqual({ namespace: { name: 'ada' } });
  await expect(client.graphql('{ nothing }')).rejects.toMatchObject({ status: 400 });

  // Without a token, an empty list would hide the reason.
  const anonymous = new Client({ url: app.base });
  for (const list of [anonymous.jobs, anonymous.repositories, anonymous.webhooks])
    await expect(toArray<unknown>(list.list())).rejects.toMatchObject({ status: 401 });
  const missing = toArray(client.jobs.list({ namespace: 'nobody' }));
  await expect(missing).rejects.toMatchObject({ code: 'not_found' });
});

test('the token of the environment is sent to the server of the environment only', async () => {
  await using user = await LoamUser.open();
  vi.stubEnv('XDG_CONFIG_HOME', user.home);
  vi.stubEnv('LOAM_URL', app.base);
  vi.stubEnv('LOAM_TOKEN', ada.token);
  expect(await (await Client.fromLogin()).username()).toBe('ada');
  const elsewhere = Client.fromLogin({ url: 'https://elsewhere.example' });
  await expect(elsewhere).rejects.toMatchObject({ code: 'authentication_failed' });
  vi.stubEnv('LOAM_URL', '');
  await expect(Client.fromLogin()).rejects.toMatchObject({ code: 'invalid_request', field: 'url' });
  await user.write('loam/credentials.json', '{');
  await expect(Client.fromLogin()).rejects.toThrow(/is damaged/);
});

test('a list asks for a page when it is reached, and for no more than its limit', async () => {
  const asked: unknown[] = [];
  const endless = new Client({
    url: app.base,
    async fetch(_, init) {
      const { first, after } = JSON.parse(`${init?.body}`).variables;
      asked.push([first, after]);
      const nodes = Array(first).fill({ name: 'job' });
      const pageInfo = { hasNextPage: true, endCursor: `after ${asked.length}` };
      return Response.json({ data: { viewer: { jobs: { nodes, pageInfo } } } });
    },
  });
  for await (const _ of endless.jobs.list()) break;
  expect(asked).toEqual([[100, null]]);
  expect(await toArray(endless.jobs.list({}, { limit: 130 }))).toHaveLength(130);
  expect(asked.slice(1)).toEqual([
    [100, null],
    [30, 'after 2'],
  ]);
});

test('a job is created once, although the answer was lost', async () => {
  let lost = 0;
  const flaky = new Client({
    url: app.base,
    token: ada.token,
    async fetch(input, init) {
      const response = await fetch(input, init);
      if (!`${init?.body}`.includes('createJob') || lost++ > 0) return response;
      throw new TypeError('fetch failed', { cause: new Error('socket hang up') });
    },
  });
  const job = await flaky.run('echo once', { image: 'busybox', name: 'once' });
  expect([job.name, lost]).toEqual(['once', 2]);
  const { rows } = await app.pool.query(`select from jobs where name like 'once%'`);
  expect(rows).toHaveLength(1);
});

test('a hostile log ends with an error, and not with the memory', async () => {
  const flood = (event: string) =>
    new Client({
      url: app.base,
      token: 'x',
      fetch: async () => new Response(event, { headers: { 'content-type': 'text/event-stream' } }),
    });
  const read = async (event: string) => {
    for await (const _ of flood(event).jobs.get('a', 'b').logs());
  };
  for (const event of [
    `data: ${'x'.repeat(2 ** 21)}`,
    'data: x\n'.repeat(2 ** 20),
    'id: 1\nevent: log\ndata: 5\n\n',
    'id: one\nevent: log\ndata: {}\n\n',
  ])
    await expect(read(event), event.slice(0, 20)).rejects.toMatchObject({ code: 'bad_answer' });
});

test.each([
  ['base64', `whsec_${Buffer.from('a secret of some bytes').toString('base64')}`, undefined],
  ['text', 'a secret that is no base64', { format: 'raw' }],
] as const)(
  'webhooks are verified as Standard Webhooks has it, with %s',
  async (_, secret, how) => {
    const body = '{"type":"job.succeeded","data":"ünïcödé"}';
    const now = new Date();
    const headers = {
      'Webhook-Id': 'msg_1',
      'webhook-timestamp': `${Math.floor(now.getTime() / 1_000)}`,
      'webhook-signature': `v1,AAAA v2,x ${new Webhook(secret, how).sign('msg_1', now, body)}`,
    };
    const payload = { type: 'job.succeeded', data: 'ünïcödé' };
    expect(await verifyWebhook(headers, body, secret)).toEqual(payload);
    const bytes = new TextEncoder().encode(body);
    expect(await verifyWebhook(new Headers(headers), bytes, secret)).toEqual(payload);
    const later = new Date(now.getTime() + 301_000);
    for (const refused of [
      () => verifyWebhook(headers, `${body} `, secret),
      () => verifyWebhook({ ...headers, 'Webhook-Id': 'msg_2' }, body, secret),
      () => verifyWebhook({ ...headers, 'webhook-signature': '' }, body, secret),
      () => verifyWebhook(headers, body, secret, { now: later }),
      () => verifyWebhook(headers, body, 'c29tZXRoaW5nIGVsc2U='),
    ])
      await expect(refused()).rejects.toThrow(/webhook-/);
  },
);

test.for([
  { version: 26, node: process.execPath },
  { version: 20, node: SYSTEM_NODE },
])(
  'the first example of the reference runs in Node $version, with the credential of the command',
  async ({ version, node }, ctx) => {
    if (version === 20) needs(ctx, 'node20');
    await using user = await LoamUser.open(ada);
    const page = await readFile(join(ROOT, 'docs/typescript.md'), 'utf8');
    const [, example = ''] = /```js\n(import .*?)```/s.exec(page) ?? [];
    const program = example.replace('python3 train.py', 'echo step 1; echo 0.5 > out/loss.txt');
    expect(program).not.toBe(example);
    await user.write('program.mjs', program);
    await user.write('loam.js', (await app.anonymous.get('/sdk/loam.js')).text);
    await user.write('package.json', '{"type": "module"}');
    expect(await user.exec(node, ['program.mjs'])).toBe('step 1\n');
    expect(await readFile(join(user.home, 'results/loss.txt'), 'utf8')).toBe('0.5\n');
    expect(await user.exec(node, ['-p', 'process.versions.node'])).toMatch(`${version}.`);
  },
);

test('the built library runs without dependencies, and its types pass a strict check', async () => {
  const source = await readFile(LIBRARY, 'utf8');
  expect(source).not.toMatch(/^\s*(import|export) .* from /m);
  await using user = await LoamUser.open();
  const program = `import { Client } from ${JSON.stringify(LIBRARY)};
    const client = new Client({ url: ${JSON.stringify(app.base)}, token: process.env.TOKEN });
    const job = await client.run('echo built', { image: 'busybox' });
    for await (const event of job.logs()) if (event.kind === 'line') console.log(event.message);
    console.log((await job.result()).status);`;
  await user.write('program.mjs', program);
  const started = user.node([join(user.home, 'program.mjs')], { env: { TOKEN: ada.token } });
  expect(await started.result()).toMatchObject({ code: 0, stdout: 'built\nSUCCEEDED\n' });

  await user.write('loam.d.ts', await readFile(join(ROOT, 'dist/sdk/loam.d.ts'), 'utf8'));
  await writeFile(
    join(user.home, 'program.mts'),
    `import { Client, type JobInfo } from './loam.js';
     const client = new Client({ url: 'https://loam.example' });
     const job = await client.run('true', { repo: 'ada/model', gpu: 'A100-80GB:2' });
     const info: JobInfo = await job.result();
     export const code: number | null = info.exitCode;
     await client.repositories.create('model', { visibility: 'PUBLIC' });
     const { viewer } = await client.graphql<{ viewer: { username: string } }>('{ viewer { username } }');
     export const name: string = viewer.username;
     // @ts-expect-error there is no such option
     await client.run('true', { repository: 'ada/model' });`,
  );
  const tsc = join(ROOT, 'node_modules/.bin/tsc');
  const options = ['--noEmit', '--strict', '--module', 'nodenext', '--target', 'es2022'];
  await user.exec(tsc, [...options, '--lib', 'es2022,dom', '--types', '', 'program.mts']);
});
