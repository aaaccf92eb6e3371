/** `loam volumes`, and volumes of `loam run` and of the libraries. */
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Client as LoamClient } from '../../src/cli/sdk/loam.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LoamUser } from '../support/loam-command.ts';
import { needs } from '../support/needs.ts';
import { type TestVolumes, testVolumes } from '../support/volumes.ts';

const PYTHON = join(import.meta.dirname, '../../src/cli/python');

let volumes: TestVolumes;
let app: TestApp;
let ada: Client;
let user: LoamUser;

beforeAll(async () => {
  volumes = await testVolumes();
  app = await startApp({ config: { volumes: volumes.declared } });
  ada = await app.user('ada');
  user = await LoamUser.open(ada);
});
afterAll(async () => {
  await user?.[Symbol.asyncDispose]();
  await app?.[Symbol.asyncDispose]();
  await volumes?.[Symbol.asyncDispose]();
});

test('volumes are listed', async () => {
  expect((await user.loam(['volumes'])).split('\n').slice(0, 2)).toEqual([
    'data\tread\tnot measured\t',
    'missing\tread\tnot measured\t',
  ]);
  const [first] = JSON.parse(await user.loam(['volumes', '--namespace', 'ada', '--json']));
  expect(first).toMatchObject({ name: 'data', access: 'READ', path: null });
});

test('the TypeScript library names and shows volumes', async () => {
  const client = new LoamClient({ url: app.base, token: ada.token });
  const mounted = [{ name: 'scratch', to: 'out', readOnly: true }];
  const job = await client.run('true', { image: 'busybox', volumes: mounted });
  expect((await job.info()).volumes).toEqual([
    { name: 'scratch', to: '/work/out', readOnly: true },
  ]);
  const wrong = [{ name: 'scratch', at: 'out' }] as never;
  await expect(client.run('true', { image: 'busybox', volumes: wrong })).rejects.toMatchObject({
    code: 'invalid_request',
  });
});

test('the Python library names volumes', async (ctx) => {
  needs(ctx, 'python3');
  const script = `
import loam
client = loam.Client("${app.base}", "${ada.token}")
client.run("true", name="py", image="busybox", volumes=[{"name": "scratch", "to": "/out", "read_only": True}])`;
  await user.exec('env', [`PYTHONPATH=${PYTHON}`, '/usr/bin/python3', '-B', '-c', script]);
  const { job } = await ada.gql(
    '{ job(namespace: "ada", name: "py") { volumes { name to readOnly } } }',
  );
  expect(job.volumes).toEqual([{ name: 'scratch', to: '/out', readOnly: true }]);
});

test('`loam run` mounts volumes, and `loam job` shows them', async () => {
  const run = ['run', '--detach', '--image', 'busybox'];
  await user.loam([
    ...run,
    '--name',
    'uses',
    '-v',
    'data:/data:ro',
    '-v',
    'scratch:out',
    '--',
    'true',
  ]);
  expect(await user.loam(['job', 'uses'])).toMatch(
    /^volumes\tdata:\/data:ro scratch:\/work\/out$/m,
  );
  for (const [value, message] of [
    ['data', 'It must be NAME:TO'],
    ['data:/x:read', 'It must be NAME:TO'],
    ['data:/etc', '--volume: [0].to must not be in /etc'],
    ['nothing:x', 'there is no volume nothing'],
  ] as const)
    await expect(user.loam([...run, '-v', value, '--', 'true']), value).rejects.toThrow(message);
});
