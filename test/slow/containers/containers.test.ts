/** Jobs in containers through the whole server: with an image, with a repository, and with both. */

import { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { createGunzip } from 'node:zlib';
import { extract } from 'tar-stream';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { BUSYBOX, DOCKER, docker } from '../../support/docker.ts';
import { eventually } from '../../support/eventually.ts';
import { Workspace } from '../../support/git.ts';
import { type Client, startApp, type TestApp } from '../../support/harness.ts';
import { has, needs } from '../../support/needs.ts';
import { followStream } from '../../support/sse.ts';
import {
  cancel,
  type JobInput,
  job,
  lines,
  submit,
  until,
  variables,
} from '../../support/submit.ts';

beforeEach((ctx) => needs(ctx, 'docker'));

let app: TestApp;
let ada: Client;
let head: string;

beforeAll(async () => {
  if (!has('docker')) return;
  app = await startApp({ config: { runner: 'auto', docker: DOCKER } });
  ada = await app.user('ada');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
  await using workspace = await Workspace.open();
  await workspace.clone(ada, 'ada/code');
  head = await workspace.commit('code', { 'src/main.txt': 'hello\n' });
  await workspace.git('code', 'push', '-q', 'origin', 'HEAD');
});
afterAll(() => app?.[Symbol.asyncDispose]());

/** Runs in a container unless `image` is undefined. */
const run = (name: string, command: string, more: Partial<JobInput> = {}) =>
  submit(ada, { namespace: 'ada', image: BUSYBOX, name, command, ...more });
const said = (name: string) => lines(ada, 'ada', name);
const ends = (name: string, status: string) => until(ada, 'ada', name, status);

test('a job runs in its image, with its environment, and with minimal privileges', async () => {
  const created = await ada.post('/auth/v1/seed/ada/jobs', {
    name: 'look',
    image: BUSYBOX,
    gpu: 'none',
    cpu: 2,
    memory_gb: 2,
    command: [
      'id -u; whoami',
      'pwd; echo "$GREETING $TOKEN $CPU_CORES $MEMORY_GB $HOME $TMPDIR"',
      'touch /work/a /tmp/a "$HOME"/a && echo written',
      'grep -E "^(CapEff|CapBnd|NoNewPrivs|Seccomp):" /proc/self/status',
      'env | grep -c LOAM_; env | grep -c TINI_; echo "$c$n$s$how"',
      'echo $(ls /.loam); touch /.loam/x 2>&1',
      'ls /var/run/docker.sock 2>/dev/null | wc -l',
      'exit 7',
    ].join('\n'),
    env: { GREETING: 'hi', TOKEN: 'there', c: 'c', n: 'n', s: 's', how: 'so' },
  });
  expect(created.status).toBe(201);
  expect(created.body).toMatchObject({ status: 'queued', image: BUSYBOX, repo: null });
  expect(await ends('look', 'FAILED')).toMatchObject({ exitCode: 7 });
  const [uid, ...rest] = await said('look');
  expect(Number(uid)).toBeGreaterThan(1000);
  expect(rest).toEqual([
    'job',
    '/work',
    'hi there 2 2 /home/job /tmp',
    'written',
    'CapEff:\t0000000000000000',
    'CapBnd:\t0000000000000000',
    'NoNewPrivs:\t1',
    'Seccomp:\t2',
    '0',
    '0',
    'cnsso',
    'end environment err group out passwd start',
    'touch: /.loam/x: Read-only file system',
    '0',
  ]);
});

test('the name and labels of a container contain neither environment nor secrets', async () => {
  await run('labelled', 'echo up; sleep 600', {
    cpu: 2,
    memoryGb: 1,
    env: variables({ PASSWORD: 'hunter2-env' }),
    secrets: variables({ KEY: 'hunter2-secret' }),
  });
  await eventually(async () => expect(await said('labelled')).toEqual(['up']));
  const { rows } = await app.pool.query(
    `select a.id, a.runner from job_attempts a join jobs j on j.id = a.job_id where j.name = 'labelled'`,
  );
  expect(rows[0].runner).toBe('docker');
  const inspect = (format: string) =>
    docker('inspect', '--format', `{{json ${format}}}`, `loam-${rows[0].id}`);
  const shown = [await inspect('.Name'), await inspect('.Config.Labels'), await inspect('.Path')];
  expect(shown.join()).not.toContain('hunter2');
  expect(JSON.parse(await inspect('.HostConfig'))).toMatchObject({
    Privileged: false,
    CapDrop: ['ALL'],
    SecurityOpt: ['no-new-privileges'],
    PidsLimit: 4096,
    NanoCpus: 2e9,
    Memory: 2 ** 30,
    MemorySwap: 2 ** 30,
  });
  expect((await cancel(ada, 'ada', 'labelled')).errors).toBeUndefined();
  await eventually(async () => expect((await job(ada, 'ada', 'labelled')).exitCode).toBe(143));
});

test('the repository is cloned into the container, and artifacts are stored', async () => {
  await run(
    'build',
    'cat src/main.txt; mkdir out; echo made > out/file; ln -s file out/link; cat .git/HEAD; rm -r src',
    {
      repo: 'ada/code',
      outputPath: 'out',
    },
  );
  const { artifacts } = await ends('build', 'SUCCEEDED');
  expect(await said('build')).toEqual(['hello', head]);
  expect(artifacts.fileCount).toBe(1);
  const { body } = await fetch(artifacts.downloadUrl);
  const files: Record<string, string> = {};
  const archive = Readable.fromWeb(body as never)
    .pipe(createGunzip())
    .pipe(extract());
  for await (const entry of archive) files[entry.header.name] = await text(entry);
  // The link is stored as a link, without content.
  expect(files).toEqual({ file: 'made\n', link: '' });

  // They become files of another container, which belong to its user.
  await run('use', 'cat in/link; echo more >> in/file', {
    inputs: [{ job: 'build', to: 'in' }],
  });
  await ends('use', 'SUCCEEDED');
  expect(await said('use')).toEqual(['made']);
});

test('jobs without an image run as processes, or in the default image if one is configured', async () => {
  const where = 'test -e /.loam && echo container || echo process';
  await run('bare', where, { image: undefined, repo: 'ada/code' });
  await ends('bare', 'SUCCEEDED');
  expect(await said('bare')).toEqual(['process']);

  const config = { runner: 'auto', docker: DOCKER, defaultImage: BUSYBOX } as const;
  await using other = await startApp({ config });
  await other.admin.post('/auth/v1/repository/admin', { name: 'code' });
  const input = { namespace: 'admin', repo: 'admin/code', name: 'bare', command: where };
  await submit(other.admin, input);
  await until(other.admin, 'admin', 'bare', 'SUCCEEDED');
  expect(await lines(other.admin, 'admin', 'bare')).toEqual(['container']);
});

test('a job whose image is not available fails with the reason', async () => {
  await run('missing', 'true', { image: 'localhost:1/nothing:here' });
  expect(await ends('missing', 'FAILED')).toMatchObject({ exitCode: 125 });
  expect((await said('missing')).at(-1)).toMatch(/is not on the internet/);
});

test('a job streams its log while it runs, and is retried when it fails', async () => {
  await run('live', 'for i in 1 2 3 4 5 6; do echo $i; sleep 0.3; done; exit 9', { retries: 1 });
  await eventually(async () => expect(await said('live')).toContain('1'));
  const events = await followStream(ada, '/ada/job/live/logs?stream=true').all();
  const messages = events.flatMap((e) => (e.event === 'log' ? [e.data.message] : []));
  expect(messages).toEqual(['1', '2', '3', '4', '5', '6', '1', '2', '3', '4', '5', '6']);
  expect(events.at(-1)).toMatchObject({ event: 'end', data: { status: 'failed', exit_code: 9 } });
  expect(await ends('live', 'FAILED')).toMatchObject({
    retryCount: 1,
    attempts: { nodes: [{ exitCode: 9 }, { exitCode: 9 }] },
  });
});

test('analytics show the usage of a container', async () => {
  await run('busy', 'head -c 700m /dev/zero | tail -c 600m | sleep 600 & while :; do :; done');
  await eventually(async () => {
    const { body } = await ada.get('/ada/job/busy/analytics');
    expect(body.cpu_utilization_percent).toBeGreaterThan(0);
  });
  await cancel(ada, 'ada', 'busy');
});

test('the last output of a cancelled job is stored', async () => {
  await run('polite', "trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.1; done");
  await eventually(async () => expect(await said('polite')).toEqual(['up']));
  await cancel(ada, 'ada', 'polite');
  await eventually(async () => expect((await job(ada, 'ada', 'polite')).exitCode).toBe(4));
  // Shells also print a message when a child is killed.
  expect((await said('polite')).filter((l) => l !== 'Terminated')).toEqual(['up', 'bye']);
});

test('containers keep running while the server is stopped, and the next server resumes them', async () => {
  const count = 40;
  await run('long', `for i in $(seq ${count}); do echo line $i; sleep 0.1; done`);
  await eventually(async () => expect((await said('long')).length).toBeGreaterThan(3));
  await app.restart();
  const { attempts } = await ends('long', 'SUCCEEDED');
  expect(attempts.nodes).toHaveLength(1);
  expect(await said('long')).toEqual(Array.from({ length: count }, (_, i) => `line ${i + 1}`));
});

test('ended jobs leave no containers', async () => {
  await eventually(async () => {
    const left = await docker('ps', '--all', '--quiet', '--filter', 'label=loam.worker');
    const ours = await app.pool.query('select id from job_attempts');
    const names = left && (await docker('inspect', '--format', '{{.Name}}', ...left.split('\n')));
    expect(ours.rows.filter(({ id }) => names.includes(id))).toEqual([]);
  });
});
