/** Artifacts on an S3 server: storing, listing, downloads, redirects and removal. */
import { execFileSync } from 'node:child_process';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { openCuttableProxy } from '../support/cut.ts';
import { eventually } from '../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { has, needs } from '../support/needs.ts';
import { listCommandLines } from '../support/processes.ts';
import { type S3Server, startS3 } from '../support/s3-server.ts';
import { job, lines, remove, submit, until } from '../support/submit.ts';

const cleanup = new AsyncDisposableStack();
const way = cleanup.use(openCuttableProxy());
let server: S3Server;
let app: TestApp;
let ada: Client;

beforeAll(async () => {
  if (!has('ceph')) return;
  server = cleanup.use(await startS3());
  const port = Number(new URL(server.config.endpoint ?? '').port);
  server.config.endpoint = `http://${await way.before(port)}`;
  app = cleanup.use(
    await startApp({ config: { runner: 'process', storage: { kind: 's3', ...server.config } } }),
  );
  ada = await app.user('ada');
  await ada.post('/auth/v1/repository/ada', { name: 'code', auto_init: true });
});
beforeEach((ctx) => needs(ctx, 'ceph'));
afterAll(() => cleanup.disposeAsync());

const keys = async () => {
  const all = await Array.fromAsync(app.app.services.storage.list(''));
  return all.map(({ key }) => key.split('/').at(-1)).sort();
};

async function finished(name: string, command: string) {
  await submit(ada, { namespace: 'ada', name, repo: 'ada/code', command, outputPath: 'out' });
  return until(ada, 'ada', name, 'SUCCEEDED');
}

test('artifacts are stored, downloaded whole and in part, and removed with their job', async () => {
  const { artifacts } = await finished(
    'made',
    'mkdir -p out/deep; echo alpha > out/a.txt; head -c 9000000 /dev/urandom > out/deep/b.bin',
  );
  expect(await keys()).toEqual(['artifacts.tar.gz', 'index.json']);
  const whole = Buffer.from(await (await fetch(artifacts.downloadUrl)).arrayBuffer());
  expect(whole.length).toBe(artifacts.sizeBytes);
  const list = execFileSync('tar', ['-tz'], { input: whole, encoding: 'utf8' });
  expect(list).toBe('a.txt\ndeep/b.bin\n');

  const part = await fetch(artifacts.downloadUrl, { headers: { range: 'bytes=8500000-8500009' } });
  expect([part.status, part.headers.get('content-range')]).toEqual([
    206,
    `bytes 8500000-8500009/${whole.length}`,
  ]);
  expect(Buffer.from(await part.arrayBuffer())).toEqual(whole.subarray(8_500_000, 8_500_010));
  const etag = part.headers.get('etag') ?? '';
  const again = await ada.get(artifacts.downloadUrl, { 'if-none-match': etag });
  expect(again.status).toBe(304);

  const { job } = await ada.gql(
    '{ job(namespace: "ada", name: "made") { artifacts { files { nodes { path downloadUrl } } } } }',
  );
  const [first] = job.artifacts.files.nodes;
  expect(await (await fetch(first.downloadUrl)).text()).toBe('alpha\n');
  await remove(ada, 'ada', 'made', true);
  expect(await keys()).toEqual([]);
  expect((await fetch(artifacts.downloadUrl)).status).toBe(404);
});

test('a download is redirected to the S3 server if the operator allows it', async () => {
  const { artifacts } = await finished('linked', 'echo x > out');
  app.app.services.config.storageRedirect = true;
  const sent = await fetch(artifacts.downloadUrl, { redirect: 'manual' });
  expect(sent.status).toBe(302);
  expect(sent.headers.get('location')).toContain(server.config.endpoint);
  const followed = await fetch(artifacts.downloadUrl);
  expect(
    execFileSync('tar', ['-xzO'], { input: Buffer.from(await followed.arrayBuffer()) }).toString(),
  ).toBe('x\n');
  expect(followed.headers.get('content-disposition')).toContain('.tar.gz');
  const stranger = await fetch(artifacts.downloadUrl.split('?')[0], { redirect: 'manual' });
  expect(stranger.status).toBe(401);
  app.app.services.config.storageRedirect = false;
});

test('only the last attempt of a job leaves artifacts', async () => {
  const command = 'echo x > out; exit 3';
  const input = {
    namespace: 'ada',
    name: 'retried',
    repo: 'ada/code',
    command,
    outputPath: 'out',
    retries: 1,
  };
  await submit(ada, input);
  const { id, attempts } = await until(ada, 'ada', 'retried', 'FAILED');
  expect(attempts.nodes).toHaveLength(2);
  // Superseded artifacts are removed after the job has moved to its next status.
  await eventually(async () => {
    const all = await Array.fromAsync(app.app.services.storage.list('artifacts/'));
    expect(all.filter(({ key }) => key.includes(id))).toHaveLength(2);
  });
});

test('while the S3 server does not answer, downloads fail with a clear error and a job waits to store its artifacts', async () => {
  const { artifacts } = await finished('before', 'echo x > out');
  await finished(
    'large',
    'mkdir -p out/deep; echo a > out/a; head -c 9000000 /dev/zero > out/deep/b.bin',
  );
  await way.cut();
  const away = await ada.get(artifacts.downloadUrl);
  expect([away.status, away.body.error.code, away.headers.has('retry-after')]).toEqual([
    503,
    'internal_error',
    true,
  ]);
  const command = 'echo up; echo x > out; sleep 0.7654';
  await submit(ada, {
    namespace: 'ada',
    name: 'late',
    repo: 'ada/code',
    command,
    outputPath: 'out',
  });
  await eventually(async () => expect(await lines(ada, 'ada', 'late')).toEqual(['up']));
  await eventually(() => expect(listCommandLines('sleep 0.7654')).toEqual([]));
  expect((await job(ada, 'ada', 'late')).status).toBe('RUNNING');
  // So does a job whose inputs are on it.
  await submit(ada, {
    namespace: 'ada',
    name: 'heir',
    repo: 'ada/code',
    command: 'cat in/out; cksum < b.bin',
    inputs: [
      { job: 'before', to: 'in' },
      { job: 'large', path: 'deep/b.bin' },
    ],
  });
  await eventually(async () =>
    expect((await job(ada, 'ada', 'heir')).progress).toBe('copying inputs'),
  );
  await way.mend();
  expect((await until(ada, 'ada', 'late', 'SUCCEEDED')).artifacts.fileCount).toBe(1);
  await until(ada, 'ada', 'heir', 'SUCCEEDED');
  expect(await lines(ada, 'ada', 'heir')).toEqual(['x', '3592558632 9000000']);
  expect((await ada.get(artifacts.downloadUrl)).status).toBe(200);
});
