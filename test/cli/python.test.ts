/** The Python library as programs use it: the file that the server serves, run by Debian's Python. */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { createHmac } from 'node:crypto';
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { promisify } from 'node:util';
import { gzipSync } from 'node:zlib';
import { Webhook } from 'standardwebhooks';
import { type Header, pack } from 'tar-stream';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { openCuttableProxy } from '../support/cut.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { GIT_PATHS } from '../support/git-paths.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { needs } from '../support/needs.ts';
import { job as jobOf } from '../support/submit.ts';

const PYTHON = '/usr/bin/python3';
const SOURCES = join(import.meta.dirname, '../../src/cli/python');

const runner = fakeRunner({ gpus: { 'A100-80GB': 8 }, images: true, graceMs: 200 });
let app: TestApp;
let ada: Client;
/** Has `loam.py`, as downloaded from the server. */
let home: string;

beforeAll(async () => {
  home = await mkdtemp(join(tmpdir(), 'loam-python-'));
  app = await startApp({ overrides: { runner } });
  ada = await app.user('ada');
  await ada.post('/auth/v1/repository/ada', { name: 'model' });
  const served = await app.anonymous.get('/sdk/loam.py');
  expect([served.status, served.headers.get('content-type')]).toEqual([
    200,
    'text/x-python; charset=utf-8',
  ]);
  await writeFile(join(home, 'loam.py'), served.text);
});
afterAll(async () => {
  await app[Symbol.asyncDispose]();
  await rm(home, { recursive: true, force: true });
});
beforeEach((ctx) => needs(ctx, 'python3'));

type Ended = { code: number | null; stdout: string; stderr: string };
type Running = { child: ChildProcess; stdout(): string; ended: Promise<Ended> };

/** Runs a program, signed in as ada unless `env` says otherwise. */
function start(program: string, env: Record<string, string> = {}): Running {
  const child = spawn(PYTHON, ['-B', '-W', 'error::ResourceWarning', '-c', program], {
    cwd: home,
    env: {
      PATH: process.env.PATH,
      HOME: home,
      PYTHONUNBUFFERED: '1',
      LOAM_URL: app.base,
      LOAM_TOKEN: ada.token,
      ...env,
    },
  });
  let stdout = '';
  let stderr = '';
  child.stdout.setEncoding('utf8').on('data', (text) => {
    stdout += text;
  });
  child.stderr.setEncoding('utf8').on('data', (text) => {
    stderr += text;
  });
  const ended = new Promise<Ended>((resolve) =>
    child.once('close', (code) => resolve({ code, stdout, stderr })),
  );
  return { child, stdout: () => stdout, ended };
}

/** The output of a program that must succeed without a word on stderr. */
async function output(program: string, env?: Record<string, string>): Promise<string> {
  const { code, stdout, stderr } = await start(`import loam\n${program}`, env).ended;
  expect([code, stderr]).toEqual([0, '']);
  return stdout;
}

/** The JSON that a program prints. */
const value = async (program: string, env?: Record<string, string>) =>
  JSON.parse(await output(`import json\nclient = loam.Client()\n${program}`, env));

test('the example of the reference runs, with the credentials of the command', async () => {
  const module = await readFile(join(SOURCES, 'loam.py'), 'utf8');
  const [, example = ''] = /```python\nimport loam\n(.*?)```/s.exec(module) ?? [];
  expect(example.trim().split('\n').length).toBeLessThanOrEqual(6);
  const config = join(home, 'config');
  await mkdir(join(config, 'loam'), { recursive: true });
  const servers = { [app.base]: { username: 'ada', token: ada.token } };
  await writeFile(
    join(config, 'loam/credentials.json'),
    JSON.stringify({ default: app.base, servers }),
  );
  const program = example.replace('python3 train.py', 'echo step 1; echo 0.5 > out/loss.txt');
  expect(program).not.toBe(example);
  const env = { XDG_CONFIG_HOME: config, LOAM_URL: '', LOAM_TOKEN: '' };
  expect(await output(program, env)).toBe('step 1\n');
  expect(await readFile(join(home, 'results/loss.txt'), 'utf8')).toBe('0.5\n');
  // The partial download is gone.
  expect(await readdir(join(home, 'results'))).toEqual(['loss.txt']);
});

test('run passes every field, by GraphQL those that REST lacks', async () => {
  const common = `repo="ada/model", branch="main", image="debian", gpu="A100-80GB:2", cpu=4, memory_gb=8,
    disk_gb=10, env={"A": "1"}, region="eu-west-1", timeout_minutes=5, retries=1, output_path="out"`;
  await ada.gql(
    `mutation { setVariable(input: {namespace: "ada", name: "REGION", value: "eu"}) { variable { name } }
      setSecret(input: {namespace: "ada", name: "TOKEN", value: "x", refs: ["main"]}) { secret { name } } }`,
  );
  await value(`
client.run("exit 0", name="rest", ${common})
client.run("exit 0", name="graphql", labels={"team": "vision"}, secrets={"KEY": "x"}, secret_names=["TOKEN"],
    variable_names=["REGION"], permissions={"repo": "write"}, id_tokens={"CLOUD": "sts.example.com"}, ${common})
print(json.dumps(None))`);
  for (const name of ['rest', 'graphql'])
    expect(await jobOf(ada, 'ada', name)).toMatchObject({
      repo: 'ada/model',
      branch: 'main',
      image: 'debian',
      gpu: 'A100_80GB',
      gpuCount: 2,
      cpu: 4,
      memoryGb: 8,
      diskGb: 10,
      region: 'EU_WEST_1',
      timeoutMinutes: 5,
      retries: 1,
      outputPath: 'out',
    });
  const { job } = await ada.gql(
    `{ job(namespace: "ada", name: "graphql") { environmentNames storedSecretNames storedVariableNames
      labels { key value } permissions { repo jobs } idTokens { variable audience } } }`,
  );
  expect(job).toEqual({
    environmentNames: ['A'],
    storedSecretNames: ['TOKEN'],
    storedVariableNames: ['REGION'],
    labels: [{ key: 'team', value: 'vision' }],
    permissions: { repo: 'WRITE', jobs: null },
    idTokens: [{ variable: 'CLOUD', audience: 'sts.example.com' }],
  });
  const random = await value(`
job = client.run("exit 0", image="ghcr.io/org/py.torch:2")
print(json.dumps([job.name, job.namespace, job.result()["exit_code"], repr(job)]))`);
  expect(random).toEqual([
    expect.stringMatching(/^exit-0-[a-z2-9]{5}$/),
    'ada',
    0,
    expect.stringMatching(/^<Job ada\/exit-0-[a-z2-9]{5} SUCCEEDED>$/),
  ]);
});

test('many jobs are changed at once, and a job runs with artifacts of another', async () => {
  const seen = await value(`
for name in ("many-1", "many-2"):
    client.run("sleep 600", name=name, repo="ada/model", labels={"kind": "many"})
chosen = {"labels": [{"key": "kind"}]}
counted = client.cancel_jobs(filter=chosen, dry_run=True)
cancelled = client.cancel_jobs(filter=chosen)
again = client.rerun_jobs("ada", names=["many-1"])
deleted = client.delete_jobs(names=["many-1", "many-2", "many-1-2"])
client.cancel_jobs(filter=chosen)
client.delete_jobs(filter=chosen)
try:
    client.delete_jobs()
except loam.LoamError as error:
    refused = error.code
client.run("echo x > out/x", name="source", repo="ada/model", output_path="out").result()
user = client.run("echo ran", name="user", repo="ada/model", inputs=[{"job": "source", "path": "x", "to": "in/"}, {"repo": "ada/model", "to": "model", "read_only": True}])
user.result()
print(json.dumps([counted, cancelled, again["done"], deleted, refused]))`);
  const all = { matched: 2, done: 2, skipped: [] };
  expect(seen).toEqual([
    all,
    all,
    1,
    {
      matched: 3,
      done: 2,
      skipped: [
        { reason: 'WRONG_STATUS', count: 1, names: ['many-1-2'], message: expect.any(String) },
      ],
    },
    'invalid_request',
  ]);
});

test('a job that fails, waits too long, or is cancelled and deleted', async () => {
  const seen = await value(`
failing = client.run("exit 3", name="failing", repo="ada/model")
try:
    failing.result()
except loam.JobFailed as error:
    failed = [str(error), error.exit_code, error.status]
slow = client.run("sleep 600", name="slow", repo="ada/model")
try:
    slow.wait(timeout=0.2)
except TimeoutError as error:
    late = str(error)
slow.cancel()
ended = slow.wait()["status"]
try:
    slow.release()
except loam.LoamError as error:
    released = [error.code, error.message]
client.run("exit 0", name="kept", repo="ada/model", retries=1, hold_on_failure_minutes=5).result()
client.run("exit 0", name="closed", repo="ada/model", shell_access="none").result()
listed = [info["name"] for info in client.jobs(status="CANCELLED")]
failing.delete(delete_artifacts=True)
try:
    client.job("failing")
except loam.LoamError as error:
    gone = [error.code, error.status, error.message]
print(json.dumps([failed, late, ended, released, listed, gone]))`);
  expect(seen).toEqual([
    ['ada/failing failed with exit code 3', 3, 'FAILED'],
    expect.stringMatching(/^Job ada\/slow is still (QUEUED|RUNNING)$/),
    'CANCELLED',
    ['conflict', 'The job is not held: its status is cancelled'],
    ['slow'],
    ['not_found', 404, 'Job ada/failing not found'],
  ]);
});

test('errors have the code, the status, the field and the request id of the answer', async () => {
  const seen = await value(`
def error(call):
    try:
        call()
    except loam.LoamError as error:
        return [error.code, error.status, error.field, bool(error.request_id)]
print(json.dumps([
    error(lambda: client.run("x", repo="ada/model", cpu=3)),
    error(lambda: client.run("x", repo="ada/model", cpu=3, labels={"a": "b"})),
    error(lambda: client.run("x", repo="ada/model", retries=9)),
    error(lambda: client.run("x", repo="ada/none")),
    error(lambda: client.repositories.get("ada/none")),
    error(lambda: client.repositories.get("none")),
    error(lambda: client.run("x", repo="none")),
    error(lambda: client.run("x", repo="model", gpu="T5", labels={"a": "b"})),
    error(lambda: loam.Client(token="loam_pat_wrong").whoami()),
    error(lambda: client.request("GET", "//example.com/")),
    error(lambda: loam.Client("ftp://example.com", "x")),
]))`);
  expect(seen).toEqual([
    ['invalid_request', 400, 'cpu', true],
    ['invalid_request', 400, 'cpu', false],
    ['invalid_request', 400, 'retries', true],
    ['not_found', 404, null, true],
    ['not_found', 404, null, false],
    ['invalid_request', 0, null, false],
    ['not_found', 404, null, true],
    ['invalid_request', 400, 'gpu', false],
    ['authentication_failed', 401, null, true],
    ['invalid_request', 0, null, false],
    ['invalid_request', 0, 'url', false],
  ]);
  for (const [env, message] of [
    [{ LOAM_URL: '' }, 'No server is known. Run "loam login", or set LOAM_URL.'],
    [{ LOAM_TOKEN: '' }, `You are not signed in to ${app.base}. Run "loam login ${app.base}"`],
  ] as const) {
    const { code, stderr } = await start('import loam; loam.Client()', env).ended;
    expect([code, stderr]).toEqual([1, expect.stringContaining(message)]);
  }
  // A token of the environment is for the server of the environment.
  const other = start('import loam; loam.Client("https://other.example")');
  expect((await other.ended).stderr).toContain('You are not signed in to https://other.example.');
});

test('a log is complete, whatever cuts its connections, and a restart of the server too', async () => {
  await using proxy = openCuttableProxy();
  const url = `http://${await proxy.before(Number(new URL(app.base).port))}`;
  const numbers = (from: number, to: number) =>
    Array.from({ length: to - from }, (_, index) => `echo line ${from + index}`).join('; ');
  await ada.post('/auth/v1/seed/ada/jobs', {
    name: 'long',
    repo: 'ada/model',
    gpu: 'none',
    command: `${numbers(0, 2_000)}; hold; ${numbers(2_000, 4_000)}; exit 7`,
  });
  const follow = start(
    `import loam
job = loam.Client().job("long")
for line in job.logs():
    print(line)
print(job.wait()["exit_code"])`,
    { LOAM_URL: url },
  );
  const lines = () => follow.stdout().split('\n').length - 1;
  await eventually(() => expect(lines()).toBe(2_000));
  await proxy.cut();
  await app.restart();
  await proxy.mend();
  runner.release();
  await eventually(() => expect(lines()).toBeGreaterThan(2_000));
  await proxy.cut();
  await proxy.mend();
  const { code, stdout, stderr } = await follow.ended;
  expect([code, stderr]).toEqual([0, '']);
  const expected = Array.from({ length: 4_000 }, (_, index) => `line ${index}`);
  expect(stdout.trimEnd().split('\n')).toEqual([...expected, '7']);
  // From a line on, and when nothing follows.
  const rest = await value(`
job = client.job("long")
lines = list(job.logs())
print(json.dumps([[line.message for line in job.logs(after=lines[3997].id)],
  [line.message for line in job.logs(after=lines[3999].id)], lines[0].timestamp]))`);
  expect(rest).toEqual([
    ['line 3998', 'line 3999'],
    [],
    expect.stringMatching(/^\d{4}-\d\d-\d\dT/),
  ]);
});

test('artifacts are listed, and downloaded on from where a cut has ended them', async () => {
  const files = Array.from({ length: 101 }, (_, index) => `echo ${index} > out/${index}.txt`);
  await ada.post('/auth/v1/seed/ada/jobs', {
    name: 'files',
    repo: 'ada/model',
    gpu: 'none',
    command: files.join('; '),
    output_path: 'out',
  });
  const { id } = await jobOf(ada, 'ada', 'files');
  const archive = `
import pathlib, urllib.request
job = client.job("files")
info = job.result()["artifacts"]
archive = urllib.request.urlopen(info["download_url"]).read()
folder = pathlib.Path("half")
folder.mkdir()
(folder / f".loam-{job.id}.tar.gz").write_bytes(archive[:100])`;
  const seen = await value(`${archive}
listed = list(job.artifacts.list())
opened = []
real = client._open
client._open = lambda url, method, headers, *more: opened.append(headers) or real(url, method, headers, *more)
written = job.artifacts.download(folder)
ranges = [headers for headers in opened if "Range" in headers]
print(json.dumps([len(listed), listed[0]["path"], sorted(written)[:2], ranges, len(list(folder.iterdir()))]))`);
  expect(id).toMatch(/^job_/);
  expect(seen).toEqual([101, '0.txt', ['0.txt', '1.txt'], [{ Range: 'bytes=100-' }], 101]);
  expect(await readFile(join(home, 'half/100.txt'), 'utf8')).toBe('100\n');
  const none = await value(`
try:
    client.run("exit 0", repo="ada/model").artifacts.download("none")
except loam.LoamError as error:
    print(json.dumps([error.code, list(client.job("files").artifacts.list())[0]["size_bytes"]]))`);
  expect(none).toEqual(['not_found', 2]);
});

/** A server that pretends to be Loam. */
async function hostile(answer: RequestListener) {
  const seen: IncomingMessage[] = [];
  const server = createServer((req, res) => {
    seen.push(req);
    answer(req, res);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    seen,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise<void>((resolve) => server.close(() => resolve()));
    },
  };
}

const JOB = { id: 'job/../1', name: 'evil', namespace: 'ada', status: 'succeeded' };

/** The archive of a job with these entries, by a server that does not check them. `cutAfter`: bytes of each connection */
async function serveArchive(
  entries: (Partial<Header> & { name: string; text?: string })[],
  cutAfter = Infinity,
) {
  const tar = pack();
  for (const { text, ...header } of entries) tar.entry(header, text ?? '');
  tar.finalize();
  const bytes = gzipSync(await buffer(tar), { level: 0 });
  return hostile((req, res) => {
    if (req.url !== '/archive') {
      const download_url = `http://${req.headers.host}/archive`;
      const artifacts = { path: 'out', size_bytes: bytes.length, files: 1, download_url };
      return void res.end(JSON.stringify({ ...JOB, artifacts }));
    }
    const begin = Number(/^bytes=(\d+)-$/.exec(req.headers.range ?? '')?.[1] ?? 0);
    const rest = bytes.subarray(begin);
    res.writeHead(begin ? 206 : 200, { 'content-length': rest.length });
    if (rest.length <= cutAfter) res.end(rest);
    else res.write(rest.subarray(0, cutAfter), () => res.destroy());
  });
}

test('a download goes on after each cut', async () => {
  await using server = await serveArchive([{ name: 'a', text: 'abcdefgh' }], 1_000);
  const seen = await value(
    `print(json.dumps(client.job("evil", "ada").artifacts.download("cut")))`,
    {
      LOAM_URL: server.url,
    },
  );
  expect(seen).toEqual(['a']);
  expect(await readFile(join(home, 'cut/a'), 'utf8')).toBe('abcdefgh');
  const ranges = server.seen.flatMap(({ url, headers }) =>
    url === '/archive' ? headers.range : [],
  );
  expect(ranges).toEqual([undefined, 'bytes=1000-', 'bytes=2000-']);
});

test.each([
  ['../outside', 'out of the folder'],
  ['a/../../outside', 'out of the folder'],
  ['/tmp/loam-outside', 'out of the folder'],
  ['linked/file', 'is a link'],
])('artifacts with the path %s are refused', async (name, message) => {
  await using server = await serveArchive([{ name, text: 'x' }]);
  const folder = await mkdtemp(join(home, 'refused-'));
  await symlink(home, join(folder, 'linked'));
  const seen = await value(
    `
try:
    client.job("evil", "ada").artifacts.download("${folder}")
except loam.LoamError as error:
    print(json.dumps([error.code, error.message]))`,
    { LOAM_URL: server.url },
  );
  expect(seen).toEqual(['unsafe_archive', expect.stringContaining(message)]);
  expect(await readdir(folder)).toEqual(['linked']);
  // The credential went with the requests of the API only.
  for (const { url, headers } of server.seen)
    expect(headers.authorization).toBe(url === '/archive' ? undefined : `Bearer ${ada.token}`);
});

test('artifacts do not enter a .git, and replace only files of earlier downloads', async () => {
  await using server = await serveArchive(
    [...GIT_PATHS, '.gitignore', 'deep/mine'].map((name) => ({ name, text: 'new' })),
  );
  const seen = await value(
    `
import pathlib, warnings
folder = pathlib.Path("kept")
(folder / "deep").mkdir(parents=True)
mine = folder / "deep/mine"
mine.write_text("my own")
def download(**options):
    with warnings.catch_warnings(record=True) as warned:
        written = client.job("evil", "ada").artifacts.download(folder, **options)
    return [written, "no download" in str(warned[0].message), mine.read_text()]
seen = [download(), download(force=True), download()]
mine.write_text("my own")
with warnings.catch_warnings(record=True) as warned:
    client.job("evil", "ada").artifacts.download(folder)
print(json.dumps([*seen, str(warned[0].message), mine.read_text(), sorted(map(str, folder.rglob("*")))]))`,
    { LOAM_URL: server.url },
  );
  expect(seen).toEqual([
    [['.gitignore'], true, 'my own'],
    [['.gitignore', 'deep/mine'], false, 'new'],
    [['.gitignore', 'deep/mine'], false, 'new'],
    "Files were left out: 10 with .git in their paths, such as '.git/config'; 2 that git would take for its HEAD, such as 'bare/HEAD'; 1 existing, from no download, such as 'deep/mine'",
    'my own',
    ['kept/.gitignore', 'kept/deep', 'kept/deep/mine'],
  ]);
});

test('links in artifacts are left out, and a link in the place of a file is replaced', async () => {
  await using server = await serveArchive([
    { name: 'latest', type: 'symlink', linkname: '/etc/passwd' },
    { name: 'hard', type: 'link', linkname: 'file' },
    { name: 'folder/', type: 'directory' },
    { name: './file', mode: 0o755, text: 'new' },
  ]);
  const folder = await mkdtemp(join(home, 'links-'));
  await writeFile(join(home, 'untouched'), 'old');
  await symlink(join(home, 'untouched'), join(folder, 'file'));
  const seen = await value(
    `
import os, warnings
with warnings.catch_warnings(record=True) as warned:
    written = client.job("evil", "ada").artifacts.download("${folder}", force=True)
print(json.dumps([written, str(warned[0].message), os.access("${folder}/file", os.X_OK)]))`,
    { LOAM_URL: server.url },
  );
  expect(seen).toEqual([
    ['file'],
    "Files were left out: 2 links or special files, such as 'latest'",
    true,
  ]);
  expect((await readdir(folder)).sort()).toEqual(['file', 'folder']);
  expect(await readFile(join(folder, 'file'), 'utf8')).toBe('new');
  expect(await readFile(join(home, 'untouched'), 'utf8')).toBe('old');
});

test('a link in the place of the archive is not followed', async () => {
  await using server = await serveArchive([{ name: 'file', text: 'new' }]);
  const folder = await mkdtemp(join(home, 'archive-'));
  const victim = join(home, 'victim');
  await writeFile(victim, 'old');
  await symlink(victim, join(folder, '.loam-job1.tar.gz'));
  const seen = await value(
    `
try:
    client.job("evil", "ada").artifacts.download("${folder}")
except OSError as error:
    print(json.dumps(error.strerror))`,
    { LOAM_URL: server.url },
  );
  expect(seen).toBe('Too many levels of symbolic links');
  expect(await readFile(victim, 'utf8')).toBe('old');
});

test('a token that no header can have is not shown, and wrong types are bad answers', async () => {
  const { code, stderr } = await start('import loam; loam.Client()', {
    LOAM_TOKEN: 'secret\ntoken',
  }).ended;
  expect([code, stderr]).toEqual([1, expect.stringContaining('token: must be ASCII')]);
  expect(stderr).not.toContain('secret');
  await using server = await hostile((req, res) => {
    if (!req.url?.includes('/logs')) return void res.end(JSON.stringify(JOB));
    res.end('id: 1\nevent: log\ndata: []\n\n');
  });
  const seen = await value(
    `
try:
    list(client.job("evil", "ada").logs())
except loam.LoamError as error:
    print(json.dumps(error.code))`,
    { LOAM_URL: server.url },
  );
  expect(seen).toBe('bad_answer');
});

test('a hostile server gets no credential by a redirect, and its answers are bounded', async () => {
  await using thief = await hostile((_req, res) => void res.writeHead(403).end());
  await using server = await hostile((req, res) => {
    const [, kind = ''] = req.url?.split('/') ?? [];
    const job = { ...JOB, namespace: kind };
    if (kind === 'redirect') return void res.writeHead(302, { location: thief.url }).end();
    if (kind === 'file') {
      const artifacts = { path: '', size_bytes: 9, files: 1, download_url: 'file:///etc/passwd' };
      return void res.end(JSON.stringify({ ...job, artifacts }));
    }
    if (kind === 'away') {
      const download_url = `http://${req.headers.host}/redirect`;
      const artifacts = { path: '', size_bytes: 9, files: 1, download_url };
      return void res.end(JSON.stringify({ ...job, artifacts }));
    }
    if (kind === 'html') return void res.end('<html>');
    // Endless: a body, or an event without an end.
    if (kind === 'stream' && !req.url?.includes('logs')) return void res.end(JSON.stringify(job));
    const block = Buffer.alloc(2 ** 20, 'x');
    const more = () => {
      while (!res.destroyed && res.write(block));
    };
    res.on('drain', more);
    more();
  });
  const seen = await value(
    `
import resource
def error(call):
    try:
        call()
    except loam.LoamError as error:
        return error.code
seen = [
    error(lambda: client.request("GET", "/redirect")),
    error(lambda: client.job("evil", "file").artifacts.download("stolen")),
    error(lambda: client.job("evil", "away").artifacts.download("stolen")),
    error(lambda: client.request("GET", "/html")),
    error(lambda: client.request("GET", "/endless")),
    error(lambda: list(client.job("evil", "stream").logs())),
]
print(json.dumps(seen + [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 400_000]))`,
    { LOAM_URL: server.url },
  );
  expect(seen).toEqual([...Array(6).fill('bad_answer'), true]);
  expect(thief.seen.length).toBeGreaterThan(0);
  for (const { headers } of thief.seen) expect(headers).not.toHaveProperty('authorization');
});

test('a connection that is silent is replaced, and half of an event is not used', async () => {
  const event = (id: number, name: string, data: object) =>
    `id: ${id}\nevent: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
  const line = (id: number) => event(id, 'log', { timestamp: 'T', message: `line ${id}` });
  await using server = await hostile((req, res) => {
    const last = req.headers['last-event-id'];
    if (!last) return void res.end(JSON.stringify(JOB));
    if (last === '0') return void res.write(`: here\n\n${line(1)}${line(2).slice(0, 30)}`);
    if (last === '1') return void res.writeHead(503, { 'Retry-After': '1' }).end('busy');
    res.end(event(3, 'end', { status: 'succeeded', exit_code: 0 }));
  });
  const follow = start(
    `import loam
loam._SILENCE_TIMEOUT_S = 0.5
for line in loam.Client().job("evil", "ada").logs():
    print(line)`,
    { LOAM_URL: server.url },
  );
  const asked = () => server.seen.map(({ headers }) => headers['last-event-id']).join();
  await eventually(() => expect(asked()).toBe(',0,1,1'));
  follow.child.kill();
  expect((await follow.ended).stdout).toBe('line 1\n');
});

test('an answer that breaks off is asked for again', async () => {
  const user = JSON.stringify({ username: 'ada' });
  await using server = await hostile((_req, res) => {
    res.setHeader('content-length', user.length);
    if (server.seen.length > 1) res.end(user);
    else res.write(user.slice(0, -1), () => res.destroy());
  });
  const seen = await value('print(json.dumps(client.whoami()))', { LOAM_URL: server.url });
  expect(seen).toEqual({ username: 'ada' });
});

test('the reference in docs/python.md is that of the file', async () => {
  const printed = start(
    `import runpy; runpy.run_path("${join(SOURCES, 'reference.py')}", run_name="__main__")`,
  );
  const page = await readFile(join(import.meta.dirname, '../../docs/python.md'), 'utf8');
  expect(
    (await printed.ended).stdout,
    'run: python3 src/cli/python/reference.py > docs/python.md',
  ).toBe(page);
});

test('repositories are created, listed, changed and deleted', async () => {
  await app.organization('acme');
  const seen = await value(
    `
repositories = client.repositories
created = repositories.create("paper", description="text", visibility="PUBLIC", default_branch="trunk")
repositories.rename("admin/paper", "book")
repositories.set_visibility("admin/book", "private")
repositories.transfer("admin/book", "acme")
got = repositories.get("acme/book")
names = [one["full_name"] for one in repositories.list("acme")]
repositories.delete("acme/book")
print(json.dumps([created["clone_url"], got["visibility"], got["default_branch"], names, list(repositories.list("acme"))]))`,
    { LOAM_TOKEN: app.admin.token },
  );
  expect(seen).toEqual([`${app.base}/admin/paper.git`, 'PRIVATE', 'trunk', ['acme/book'], []]);
});

test('webhooks are created, listed, tested, changed and deleted', async () => {
  const seen = await value(`
webhooks = client.webhooks
created = webhooks.create("chat", "https://hooks.example/loam", event_types=["JOB_FAILED", "JOB_COMPLETED"], namespaces=["ada"], secret="s")
ping = webhooks.test(created["id"])
again = webhooks.redeliver(created["id"], ping["id"])
types = [one["event_type"] for one in webhooks.deliveries(created["id"])]
changed = webhooks.update(created["id"], name="off", active=False)
names = [one["name"] for one in webhooks.list()]
webhooks.delete(created["id"])
print(json.dumps([sorted(created["event_types"]), created["has_secret"], again["event_id"] == ping["event_id"], types, changed["active"], names, list(webhooks.list())]))`);
  expect(seen).toEqual([
    ['JOB_COMPLETED', 'JOB_FAILED'],
    ...[true, true, ['PING', 'PING'], false, ['off'], []],
  ]);
});

test.each([
  ['whsec_', `whsec_${Buffer.from('a secret of twenty-four bytes').toString('base64')}`, undefined],
  ['text', 'a secret of plain text', { format: 'raw' } as const],
])(
  'verify_webhook accepts what standardwebhooks signs, with a secret of %s',
  async (_, secret, options) => {
    const body = JSON.stringify({ id: 'evt_1', type: 'ping', text: 'ü' });
    const sign = (at: Date) => ({
      'Webhook-Id': 'evt_1',
      'webhook-timestamp': `${Math.floor(at.getTime() / 1_000)}`,
      'webhook-signature': `v1,AAAA ${new Webhook(secret, options).sign('evt_1', at, body)}`,
    });
    const now = sign(new Date());
    const old = sign(new Date(Date.now() - 3_600_000));
    const own = {
      'X-Service-Signature': 'sha256=00',
      'X-Service-Signature-Former': `sha256=${createHmac('sha256', secret).update(body).digest('hex')}`,
    };
    const cases = [
      [now, body, secret, 300],
      [old, body, secret, null],
      [own, body, secret, null],
      [now, `${body} `, secret, 300],
      [now, body, 'another', 300],
      [old, body, secret, 300],
      [own, body, secret, 300],
      [{ ...now, 'webhook-id': 'evt_2' }, body, secret, 300],
      [{ ...now, 'webhook-timestamp': 'ü' }, body, secret, 300],
      [{ ...now, 'webhook-signature': 'v1,ü' }, body, secret, 300],
      [{}, body, secret, 300],
    ];
    const seen = await value(
      `
import os
def verify(headers, body, secret, tolerance):
    try:
        return loam.verify_webhook(headers, body.encode(), secret, tolerance=tolerance)["text"]
    except loam.WebhookError as error:
        return str(error).split()[0]
print(json.dumps([verify(*case) for case in json.loads(os.environ["CASES"])]))`,
      { CASES: JSON.stringify(cases) },
    );
    expect(seen.slice(0, 3)).toEqual(['ü', 'ü', 'ü']);
    expect(seen.slice(3)).toEqual(['No', 'No', 'The', 'The', 'No', 'The', 'No', 'The']);
  },
);

const JOBS_FILE = `
jobs:
  good:
    command: exit 0
    on: { manual: true }
  bad:
    command: exit 3
    on: { manual: true }
  sweep:
    command: exit 0
    on: { manual: true }
    matrix: { seed: [1], lr: [0.5] }
`;

test('files are read, runs are started and followed, and secrets are set', async () => {
  const { body } = await ada.post('/auth/v1/repository/ada', { name: 'auto' });
  const changes = [
    { path: '.loam/jobs.yml', content: JOBS_FILE },
    { path: 'data/x.txt', content: 'ü' },
  ];
  await ada.gql(
    `mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }`,
    { input: { id: body.id, branch: 'main', message: 'Jobs', changes } },
  );
  const seen = await value(`
files, runs, secrets = client.files, client.runs, client.secrets
def error(call):
    try:
        call()
    except loam.LoamError as error:
        return error.code
entries = [[one["name"], one["type"], one["size_bytes"]] for one in files.list("ada/auto", "data")]
content = files.read("ada/auto", "data/x.txt", ref="main").decode()
run = runs.start("ada/auto", "good")
done = runs.wait("ada/auto", run["number"])
failed = runs.wait("ada/auto", runs.start("ada/auto", "bad", ref="main")["number"])
again = runs.wait("ada/auto", runs.rerun("ada/auto", failed["number"], failed_only=True)["number"])
names = [one["number"] for one in runs.list("ada/auto", ref="refs/heads/main")]
sweep = runs.start("ada/auto", "sweep")["jobs"][0]
values = [client.job(sweep["name"], "ada").matrix_values(), client.job(done["jobs"][0]["name"], "ada").matrix_values()]
secrets.set("ada/auto", "TOKEN", "x", refs=["**"])
secrets.set("ada", "SHARED", "y")
listed = [[one["name"], one["refs"], one["updated_by"]] for owner in ("ada/auto", "ada") for one in secrets.list(owner)]
secrets.delete("ada/auto", "TOKEN")
secrets.delete("ada", "SHARED")
print(json.dumps([
    entries, content, done["status"], [job["run_job"] for job in done["jobs"]], failed["jobs"][0]["exit_code"],
    again["status"], names == sorted(names, reverse=True) and len(names), listed, list(secrets.list("ada/auto")),
    error(lambda: files.read("ada/auto", "none")), error(lambda: runs.get("ada/auto", 99)),
    error(lambda: runs.get("ada/none", 1)), error(lambda: files.list("ada/a/b")),
    sweep["matrix_values"] == values[0] and values,
]))`);
  expect(seen).toEqual([
    [['x.txt', 'FILE', 2]],
    ...['ü', 'SUCCEEDED', ['good'], 3, 'FAILED', 3],
    expect.arrayContaining([
      ['TOKEN', ['**'], 'ada'],
      ['SHARED', [], 'ada'],
    ]),
    [],
    ...['not_found', 'not_found', 'not_found', 'invalid_request'],
    [
      [
        { key: 'seed', value: '1' },
        { key: 'lr', value: '0.5' },
      ],
      [],
    ],
  ]);
  const program = `
import asyncio
async def main():
    client = loam.AsyncClient()
    numbers = [run["number"] async for run in client.runs.list("ada/auto")]
    await client.secrets.set("ada/auto", "LATER", "x")
    names = [one["name"] async for one in client.secrets.list("ada/auto")]
    content = await client.files.read("ada/auto", "data/x.txt")
    print(json.dumps([len(numbers), names, content.decode(), (await client.runs.get("ada/auto", numbers[1]))["status"]]))
asyncio.run(main())`;
  expect(await value(program)).toEqual([4, ['LATER'], 'ü', 'FAILED']);
});

test('asyncio: jobs at once, and a task that follows a log can be cancelled', async () => {
  const program = `
import asyncio
async def one(client, number):
    job = await client.run(f"echo {number} one; echo x > out/x; exit {number % 2}", repo="ada/model", output_path="out")
    lines = [str(line) async for line in job.logs()]
    try:
        await job.result()
    except loam.JobFailed as error:
        return [lines, error.exit_code]
    return [lines, await job.artifacts.download(f"async-{number}"), [file["path"] async for file in job.artifacts.list()]]
async def main():
    client = loam.AsyncClient()
    seen = await asyncio.gather(*(one(client, number) for number in range(4)))
    silent = await client.run("echo silent; sleep 600", repo="ada/model")
    got = asyncio.Event()
    async def follow():
        async for line in silent.logs():
            got.set()
    task = asyncio.create_task(follow())
    await got.wait()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        seen.append("cancelled")
    await silent.cancel()
    await client.repositories.create("from-asyncio")
    seen.append([one["name"] async for one in client.repositories.list(visibility="private")])
    seen.append((await client.repositories.get("ada/from-asyncio"))["name"])
    await client.repositories.delete("ada/from-asyncio")
    hook = await client.webhooks.create("hook", "https://hooks.example/", event_types=["job.failed"], namespaces=["ada"])
    await client.webhooks.delete(hook["id"])
    seen.append([one async for one in client.webhooks.list()])
    print(json.dumps(seen))
asyncio.run(main())`;
  const seen = await value(program);
  expect(seen.slice(0, 4)).toEqual([
    [['0 one'], ['x'], ['x']],
    [['1 one'], 1],
    [['2 one'], ['x'], ['x']],
    [['3 one'], 1],
  ]);
  expect(seen[4]).toBe('cancelled');
  expect(seen[5].sort()).toEqual(['auto', 'from-asyncio', 'model']);
  expect(seen.slice(6)).toEqual(['from-asyncio', []]);
});

test('the types pass a strict check', async (ctx) => {
  needs(ctx, 'mypy');
  const file = join(SOURCES, 'loam.py');
  // Exits with 1, and prints the errors to stdout, if there are any.
  await promisify(execFile)('mypy', ['--strict', '--cache-dir', home, file]);
});
