/** What a server, or a network, may answer to the command and the client library without harm to the user. */
import { once } from 'node:events';
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { Client, type DownloadOptions } from '../../src/cli/sdk/loam.ts';
import { eventually } from '../support/eventually.ts';
import { GIT_PATHS, ORDINARY_PATHS } from '../support/git-paths.ts';
import { LoamUser } from '../support/loam-command.ts';
import { needs } from '../support/needs.ts';

let user: LoamUser;
let folder: string;

beforeAll(async () => {
  user = await LoamUser.open();
  folder = await mkdtemp(join(tmpdir(), 'loam-hostile-'));
  vi.stubEnv('XDG_STATE_HOME', join(folder, 'state'));
});
afterAll(async () => {
  vi.unstubAllEnvs();
  await user[Symbol.asyncDispose]();
  await rm(folder, { recursive: true });
});

/** A server on loopback, and the environment in which the command speaks to it. */
async function serve(handler: RequestListener) {
  const server = createServer(handler).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    env: { LOAM_URL: `http://127.0.0.1:${port}`, LOAM_TOKEN: 'secret' },
    async [Symbol.asyncDispose]() {
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
}

const EVIL = '\x1b]0;title\x07\x9b2J';

test('texts of every kind of answer cannot control the terminal', async (ctx) => {
  needs(ctx, 'script');
  await using liar = await serve((req, res) => {
    if (req.url === '/graphql/stream') {
      const event = { id: 'evt', cursor: 1, type: EVIL, timestamp: EVIL, subject: EVIL };
      res.writeHead(200, { 'content-type': 'text/event-stream' });
      res.write(`event: next\ndata: ${JSON.stringify({ data: { events: event } })}\n\n`);
      const errors = [{ message: EVIL, extensions: { code: 'PERMISSION_DENIED' } }];
      return res.end(`event: next\ndata: ${JSON.stringify({ errors })}\n\n`);
    }
    if (req.url?.includes('/logs')) {
      res.writeHead(200, { 'content-type': 'text/event-stream' });
      res.write(`id: 1\nevent: log\ndata: ${JSON.stringify({ message: EVIL })}\n\n`);
      return res.end(`id: 2\nevent: end\ndata: {"status":"succeeded"}\n\n`);
    }
    const job = { namespace: EVIL, name: EVIL };
    const repository = { id: 'x', fullName: EVIL, sshUrl: EVIL };
    const created = {
      jobOptions: { suggestedSize: { cpu: 1, memoryGb: 1 } },
      checkJob: { name: EVIL, warnings: [EVIL] },
      createJob: { job },
    };
    res.end(JSON.stringify({ username: 'ada', data: { ...created, job, repository } }));
  });
  for (const args of [
    ['listen', '--namespace', 'ada', '--after', '0'],
    ['logs', '-f', '--json', 'job'],
    ['run', '--image', 'busybox', '--detach', '--', 'true'],
    ['repo', 'delete', 'a/b'],
  ]) {
    const command = user.inTerminal(args, { env: { ...liar.env, NO_COLOR: '1' } });
    if (args[1] === 'delete') {
      await eventually(() => expect(command.stdout).toContain('to confirm'));
      command.child.stdin?.write('no\n');
    }
    await command.result();
    expect(command.stdout, args[0]).toMatch(/title/);
    // The line of the state clears itself.
    const shown = command.stdout.replaceAll('\r\x1b[2K', '').replaceAll('\r\n', '');
    expect(shown, args[0]).not.toMatch(/\p{Cc}/u);
  }
});

test('a clone by SSH is none of a local path', async () => {
  await user.exec('git', ['init', '-q', 'private']);
  await using liar = await serve((_req, res) => {
    const repository = { id: 'x', fullName: 'a/b', sshUrl: join(user.home, 'private') };
    res.end(JSON.stringify({ data: { repository } }));
  });
  const { code, stderr } = await user.run(['repo', 'clone', '--ssh', 'a/b', 'copy'], liar);
  expect([code, stderr]).toEqual([128, expect.stringContaining("transport 'file' not allowed")]);
});

const NAME = 'f'.repeat(250);
const FILE = { path: NAME, sizeBytes: 8, downloadUrl: 'https://loam.example/artifacts/file' };

/** A client whose requests for artifacts get these answers, one after the other. */
function downloading(...answers: ((init: RequestInit) => Response | Promise<Response>)[]) {
  const list = { nodes: [FILE], pageInfo: { hasNextPage: false, endCursor: null } };
  const client = new Client({
    url: 'https://loam.example',
    token: 'x',
    fetch: async (input, init = {}) =>
      `${input}`.endsWith('/graphql')
        ? Response.json({ data: { job: { artifacts: { files: list } } } })
        : (answers.shift() as (typeof answers)[number])(init),
  });
  return (to: string) => client.jobs.get('ada', 'job').artifacts.download(join(folder, to));
}

const from = (offset: number) => ({
  status: 206,
  headers: { 'content-range': `bytes ${offset}-7/8` },
});
const never = () => new Promise<never>(() => {});
/** The begin of a body that neither goes on nor ends. */
const silent = (text: string) =>
  new Response(
    new ReadableStream({ start: (body) => body.enqueue(new TextEncoder().encode(text)) }),
  );

test('a download goes on when its connection is silent, or does not begin', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  try {
    const ended = downloading(
      () => silent('1234'),
      (init) =>
        new Promise((_, reject) => {
          init.signal?.addEventListener('abort', () => reject(init.signal?.reason));
        }),
      () => new Response('5678', from(4)),
    )('silent');
    let isDone = false;
    ended.then(() => {
      isDone = true;
    }, never);
    // Files are read and written in real time between the timers.
    while (!isDone) {
      await vi.advanceTimersByTimeAsync(10_000);
      await new Promise((next) => setImmediate(next));
    }
    expect(await readFile(join(folder, 'silent', NAME), 'utf8')).toBe('12345678');
  } finally {
    vi.useRealTimers();
  }
});

/** A client of a server whose job left these files; each has its path as its text. */
function offering(...paths: string[]) {
  const nodes = paths.map((path) => ({
    path,
    sizeBytes: Buffer.byteLength(path),
    downloadUrl: `https://loam.example/artifacts/${encodeURIComponent(path)}`,
  }));
  const files = { nodes, pageInfo: { hasNextPage: false, endCursor: null } };
  const client = new Client({
    url: 'https://loam.example',
    token: 'x',
    fetch: async (input) =>
      `${input}`.endsWith('/graphql')
        ? Response.json({ data: { job: { artifacts: { files } } } })
        : new Response(decodeURIComponent(`${input}`.split('/').at(-1) as string)),
  });
  return client.jobs.get('ada', 'job').artifacts;
}

test('artifacts do not enter a .git, in any spelling that a file system takes for it', async () => {
  const leftOut: string[][] = [];
  const written = await offering(...GIT_PATHS, ...ORDINARY_PATHS).download(join(folder, 'git'), {
    onLeftOut: ({ path }, reason) => leftOut.push([path, reason]),
    force: true,
  });
  expect(leftOut.sort()).toEqual(GIT_PATHS.map((path) => [path, 'git_folder']).sort());
  expect(written.map(({ path }) => path).sort()).toEqual(ORDINARY_PATHS.toSorted());
});

test('a download replaces files of an earlier download, and no other file', async () => {
  const at = join(folder, 'again');
  const download = async (options: DownloadOptions = {}) => {
    const leftOut: string[] = [];
    const files = await offering('a/b', 'c').download(at, {
      ...options,
      onLeftOut: ({ path }, reason) => leftOut.push(`${path} ${reason}`),
    });
    return [files.map(({ path }) => path).sort(), leftOut];
  };
  await mkdir(at);
  await symlink('/etc/hostname', join(at, 'c'));
  expect(await download()).toEqual([['a/b'], ['c exists']]);
  expect(await download()).toEqual([['a/b'], ['c exists']]);
  expect(await download({ force: true })).toEqual([['a/b', 'c'], []]);
  expect(await download()).toEqual([['a/b', 'c'], []]);
  expect(await readFile(join(at, 'c'), 'utf8')).toBe('c');
  await writeFile(join(at, 'c'), 'my own');
  expect(await download()).toEqual([['a/b'], ['c exists']]);
  expect(await readFile(join(at, 'c'), 'utf8')).toBe('my own');
});

test('the command says what it left out of a download', async () => {
  const nodes = ['.git/config', 'mine', 'new'].map((path) => ({ path, sizeBytes: 1 }));
  await using liar = await serve((req, res) => {
    if (req.url?.startsWith('/artifacts/')) return res.end('x');
    const url = `http://${req.headers.host}/artifacts/`;
    const files = {
      nodes: nodes.map((node) => ({ ...node, downloadUrl: url + node.path })),
      pageInfo: { hasNextPage: false, endCursor: null },
    };
    res.end(JSON.stringify({ username: 'ada', data: { job: { artifacts: { files } } } }));
  });
  const cwd = join(user.home, 'clone');
  await mkdir(cwd);
  await writeFile(join(cwd, 'mine'), 'my own');
  const { code, stderr } = await user.run(['artifacts', 'get', 'ada/job'], { ...liar, cwd });
  expect([code, stderr.split('\n')]).toEqual([
    1,
    [
      'Downloaded 1 file (1 B) to .',
      'Left out 1 file, because git would use them as its own',
      '  .git/config',
      'Left out 1 file, because files that no download wrote have their names. To replace them: loam artifacts get --force -o . ada/job',
      '  mine',
      '',
    ],
  ]);
  expect((await readdir(cwd)).sort()).toEqual(['mine', 'new']);
  const forced = await user.run(['artifacts', 'get', 'ada/job', '--force'], { ...liar, cwd });
  expect(forced.stderr).toContain('Downloaded 2 files');
  expect(await readFile(join(cwd, 'mine'), 'utf8')).toBe('x');
});

test('a part of a file that was not asked for, and one after a downgrade, are refused', async () => {
  const cut = () =>
    new Response(
      new ReadableStream({
        start(body) {
          body.enqueue(new TextEncoder().encode('1234'));
          body.close();
        },
      }),
    );
  await expect(downloading(cut, () => new Response('678', from(5)))('part')).rejects.toMatchObject({
    code: 'bad_answer',
  });
  const unsafe = new Response('12345678');
  Object.defineProperty(unsafe, 'url', { value: 'http://thief.example/' });
  await expect(downloading(() => unsafe)('unsafe')).rejects.toThrow('without TLS');
  expect(await readdir(join(folder, 'unsafe'))).toEqual([expect.stringContaining('.part')]);
});
