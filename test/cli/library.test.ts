/** The TypeScript client library as users get it: one module and its types. */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Webhook } from 'standardwebhooks';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Client, JobFailed, LoamError, verifyWebhook } from '../../src/cli/sdk/loam.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client as HttpClient, startApp, type TestApp } from '../support/harness.ts';
import { LoamUser } from '../support/loam-command.ts';

const ROOT = join(import.meta.dirname, '../..');
const LIBRARY = join(ROOT, 'dist/sdk/loam.js');

let app: TestApp;
let ada: HttpClient;
let client: Client;
const runner = fakeRunner({ images: true });

beforeAll(async () => {
  app = await startApp({ overrides: { runner } });
  ada = await app.user('ada');
  client = new Client({ url: app.base, token: ada.token });
});
afterAll(() => app[Symbol.asyncDispose]());

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

  const refused = client.run('true', { image: 'busybox', gpu: 'A100-80GB:3' });
  await expect(refused).rejects.toMatchObject({ code: 'invalid_request', field: 'gpuCount' });
  await expect(client.run('true', { gpu: 'T4:x' })).rejects.toBeInstanceOf(LoamError);
  const stranger = new Client({ url: app.base, token: 'loam_pat_none' });
  await expect(stranger.username()).rejects.toMatchObject({ status: 401 });
  expect(() => new Client({ url: 'ftp://host' })).toThrow(LoamError);
  expect(() => new Client({ url: 'https://user:secret@host' })).toThrow(LoamError);
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
     // @ts-expect-error there is no such option
     await client.run('true', { repository: 'ada/model' });`,
  );
  const tsc = join(ROOT, 'node_modules/.bin/tsc');
  const options = ['--noEmit', '--strict', '--module', 'nodenext', '--target', 'es2022'];
  await user.exec(tsc, [...options, '--lib', 'es2022,dom', '--types', '', 'program.mts']);
});
