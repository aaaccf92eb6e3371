/** `loam login`, `logout`, `whoami`, `git-credential`, `version`: credentials, and where they go. */
import { once } from 'node:events';
import { mkdir, readFile, stat, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LOAM, LoamUser } from '../support/loam-command.ts';

let app: TestApp;
let ada: Client;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
});
afterAll(() => app[Symbol.asyncDispose]());

test('a token from stdin signs in, in a file that only its user can read', async () => {
  await using user = await LoamUser.open(ada);
  const path = join(user.home, '.config/loam/credentials.json');
  expect(((await stat(path)).mode & 0o777).toString(8)).toBe('600');
  expect(((await stat(join(path, '..'))).mode & 0o777).toString(8)).toBe('700');
  expect(JSON.parse(await readFile(path, 'utf8'))).toEqual({
    default: app.base,
    servers: { [app.base]: { username: 'ada', token: ada.token } },
  });
  expect(JSON.parse(await user.loam(['whoami', '--json']))).toEqual({
    server: app.base,
    username: 'ada',
    email: 'ada@example.com',
    namespace: 'ada',
  });
  expect(await user.loam(['whoami'])).toContain('username\tada\n');
  const { client, server, serverVersion } = JSON.parse(await user.loam(['version', '--json']));
  expect([server, serverVersion]).toEqual([app.base, client]);

  await user.loam(['logout']);
  expect(await readFile(path, 'utf8')).not.toContain(ada.token);
  expect(await readFile(join(user.home, '.gitconfig'), 'utf8')).not.toContain(app.base);
  const refused = await user.run(['whoami']);
  expect([refused.code, refused.stderr]).toEqual([4, expect.stringContaining('loam login')]);
});

test('git gets the credential of the server, and of no other', async () => {
  await using user = await LoamUser.open(ada);
  const fill = (url: string) =>
    user.exec('git', ['-c', 'core.askPass=false', 'credential', 'fill'], {
      stdin: `url=${url}\n\n`,
    });
  expect(await fill(app.base)).toContain(`username=ada\npassword=${ada.token}\n`);
  const answer = await user.loam(['git-credential', 'get'], {
    stdin: 'protocol=https\nhost=elsewhere.example\n\n',
  });
  expect(answer).toBe('');
  expect(await user.loam(['git-credential', 'store'], { stdin: 'protocol=http\n\n' })).toBe('');

  // A whole way: create, clone, commit, push.
  await ada.post('/auth/v1/repository/ada', { name: 'hello' });
  await user.exec('git', ['clone', '-q', `${app.base}/ada/hello.git`]);
  await user.write('hello/file', 'text\n');
  const cwd = join(user.home, 'hello');
  for (const args of [
    ['add', '-A'],
    ['commit', '-qm', 'Add'],
    ['push', '-q'],
  ])
    await user.exec('git', args, { cwd });
  expect(await readFile(join(cwd, '.git/config'), 'utf8')).not.toContain(ada.token);
});

test('the browser approves a login', async () => {
  await using user = await LoamUser.open();
  const signedIn = await app.anonymous.request('POST', '/login', {
    headers: { origin: app.base },
    body: new URLSearchParams({ token: ada.token }),
  });
  const cookie = signedIn.headers.getSetCookie()[0]?.split(';')[0] ?? '';
  const command = user.start(['login', app.base, '--scope', 'repo:read', '--days', '3']);
  const [, code = ''] = await command.said(/login\/device and enter the code (\S+)\n/);
  const page = await app.anonymous.get(`/login/device?user_code=${code}`, {
    cookie,
    accept: 'text/html',
  });
  expect(page.text).toContain(`loam command on ${hostname()}`);
  await app.anonymous.request('POST', '/login/device', {
    headers: { cookie, origin: app.base, accept: 'text/html' },
    body: new URLSearchParams({ user_code: code, answer: 'approve' }),
  });
  const { code: exitCode, stdout, stderr } = await command.result();
  expect([exitCode, stdout, stderr]).toEqual([0, '', expect.stringContaining('as ada.')]);
  expect(await user.loam(['whoami'])).toContain('ada@example.com');

  const second = user.start(['login', app.base]);
  const [, refused = ''] = await second.said(/enter the code (\S+)\n/);
  await app.anonymous.request('POST', '/login/device', {
    headers: { cookie, origin: app.base, accept: 'text/html' },
    body: new URLSearchParams({ user_code: refused, answer: 'refuse' }),
  });
  expect((await second.result()).code).toBe(5);
  // The earlier login still stands.
  expect(await user.loam(['whoami'])).toContain('ada@example.com');
});

test('a login without a terminal says what it waits for, and ends with the life of the code', async () => {
  const server = createServer((request, response) => {
    const url = `http://${request.headers.host}`;
    const started = {
      device_code: 'd',
      user_code: 'ABCD-EFGH',
      verification_uri: `${url}/login/device`,
      expires_in: 1,
      interval: 1,
    };
    const isStart = request.url === '/login/device/code';
    response.end(JSON.stringify(isStart ? started : { error: 'authorization_pending' }));
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  await using user = await LoamUser.open();
  // Without a scheme, an address of this machine is http.
  const { code, stderr } = await user.run([
    'login',
    `127.0.0.1:${(server.address() as AddressInfo).port}`,
  ]);
  server.close();
  expect([code, stderr]).toEqual([4, expect.stringContaining('has expired')]);
  expect(stderr).toContain('Waiting up to 1s until somebody approves the code');
  expect(stderr).toContain('--token -');
});

test('a refused token of the environment is named', async () => {
  await using user = await LoamUser.open(ada);
  for (const [LOAM_TOKEN, code] of [
    ['loam_pat_wrong', 4],
    ['two words', 2],
  ] as const) {
    const result = await user.run(['jobs'], { env: { LOAM_URL: app.base, LOAM_TOKEN } });
    expect([result.code, result.stderr]).toEqual([code, expect.stringContaining('LOAM_TOKEN')]);
  }
});

test('several servers stand side by side, and the environment names one', async () => {
  await using user = await LoamUser.open(ada);
  const elsewhere = 'https://elsewhere.example';
  const path = join(user.home, '.config/loam/credentials.json');
  const stored = JSON.parse(await readFile(path, 'utf8'));
  stored.servers[elsewhere] = { username: 'ada', token: 'other' };
  stored.default = elsewhere;
  await writeFile(path, JSON.stringify(stored));
  expect(await user.loam(['whoami', '--server', app.base])).toContain('ada');
  expect(await user.loam(['whoami'], { env: { LOAM_URL: app.base } })).toContain('ada');
  const eve = await app.user('eve');
  const env = { LOAM_URL: app.base, LOAM_TOKEN: eve.token };
  expect(await user.loam(['whoami'], { env })).toContain('eve');
  // The token of one server is sent to no other.
  const bound = await user.run(['whoami', '--server', 'https://third.example'], { env });
  expect(bound.code).toBe(4);
});

test('exit codes tell usage, missing sign-in and unreachable servers apart', async () => {
  await using user = await LoamUser.open();
  const codeOf = async (...args: string[]) => (await user.run(args)).code;
  expect(await codeOf('nonsense')).toBe(2);
  expect(await codeOf('whoami', '--nonsense')).toBe(2);
  expect(await codeOf('login', 'ftp://host')).toBe(2);
  expect(await codeOf('login', app.base, '--token', ada.token)).toBe(2);
  expect(await codeOf('whoami')).toBe(4);
  const env = { LOAM_URL: app.base, LOAM_TOKEN: 'loam_pat_wrong' };
  expect((await user.run(['whoami'], { env })).code).toBe(4);
  const { port, close } = await listen(() => {});
  await close();
  const away = { LOAM_URL: `http://127.0.0.1:${port}`, LOAM_TOKEN: 'x' };
  const result = await user.run(['whoami'], { env: away });
  expect([result.code, result.stdout]).toEqual([69, '']);
  expect(result.stderr).toContain('ECONNREFUSED');
});

test('a token that no header can have is not shown', async () => {
  await using user = await LoamUser.open();
  for (const token of ['secret\ntoken', 'secret token', 'sécret']) {
    const { code, stdout, stderr } = await user.run(['whoami'], {
      env: { LOAM_URL: app.base, LOAM_TOKEN: token },
    });
    expect([code, stdout, stderr]).toEqual([2, '', expect.stringContaining('ASCII')]);
    expect(stderr).not.toMatch(/s[eé]cret/);
  }
});

test('a login that waits does not undo another one', async () => {
  await using user = await LoamUser.open();
  await using other = await startApp();
  const waiting = user.start(['login', app.base, '--token', '-'], { interactive: true });
  const bob = await other.user('bob');
  await user.loam(['login', other.base, '--token', '-'], { stdin: bob.token });
  waiting.child.stdin?.end(ada.token);
  expect((await waiting.result()).code).toBe(0);
  for (const [server, name] of [
    [app.base, 'ada'],
    [other.base, 'bob'],
  ] as const)
    expect(await user.loam(['whoami', '--server', server])).toContain(`username\t${name}\n`);
});

test('nobody reads what a command writes', async () => {
  await using user = await LoamUser.open(ada);
  const shell = (line: string) =>
    user.exec('bash', ['-c', `loam() { '${process.execPath}' '${LOAM}' "$@"; }; ${line}`]);
  // The messages have no reader; the exit code is that of the command.
  expect(await shell('loam whoami --server ftp://x 2> >(exec true); echo $?')).toBe('2\n');
  expect(await shell('loam whoami >&-; echo $?')).toBe('0\n');
  expect(
    await shell('loam whoami > /dev/full 2>&1; echo $?; loam whoami 2>&1 > /dev/full; true'),
  ).toMatch(/^1\nloam: Cannot write to stdout: ENOSPC/);
});

test('a redirect gets no credential, and an endless answer ends', async () => {
  await using user = await LoamUser.open();
  const seen: (string | undefined)[] = [];
  const thief = await listen((req, res) => {
    seen.push(req.headers.authorization);
    res.end('{}');
  });
  const liar = await listen((_req, res) => {
    res.writeHead(307, { location: `http://127.0.0.1:${thief.port}/` }).end();
  });
  const flood = await listen((_req, res) => {
    const more = (): void => {
      while (res.write('x'.repeat(65_536)));
      res.once('drain', more);
    };
    more();
  });
  const whoami = (port: number) =>
    user.run(['whoami'], { env: { LOAM_URL: `http://127.0.0.1:${port}`, LOAM_TOKEN: 'secret' } });
  const redirected = await whoami(liar.port);
  expect([redirected.code, redirected.stderr]).toEqual([
    1,
    expect.stringContaining('redirects to'),
  ]);
  expect(seen).toEqual([]);
  const flooded = await whoami(flood.port);
  expect([flooded.code, flooded.stderr]).toEqual([1, expect.stringContaining('longer than')]);
  for (const server of [thief, liar, flood]) await server.close();
});

async function listen(handler: Parameters<typeof createServer>[1] & object) {
  const server: Server = createServer(handler).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    async close() {
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
}

test('a message of the server cannot control the terminal', async () => {
  await using user = await LoamUser.open();
  const liar = await listen((_req, res) => {
    const error = { code: 'not_found', message: 'no \x1b]0;title\x07 \x1b[2J\x9b1A \u202e name' };
    res.writeHead(404, { 'content-type': 'application/json' }).end(JSON.stringify({ error }));
  });
  const env = { LOAM_URL: `http://127.0.0.1:${liar.port}`, LOAM_TOKEN: 'secret' };
  const { code, stderr } = await user.run(['whoami'], { env });
  await liar.close();
  expect([code, stderr]).toEqual([
    1,
    'loam: no \\u{1b}]0;title\\u{7} \\u{1b}[2J\\u{9b}1A \\u{202e} name\n',
  ]);
});

test('a damaged file of credentials is named', async () => {
  await using user = await LoamUser.open();
  await mkdir(join(user.home, '.config/loam'), { recursive: true });
  await user.write('.config/loam/credentials.json', '{"servers":');
  const { code, stderr } = await user.run(['whoami']);
  expect([code, stderr]).toEqual([1, expect.stringContaining('credentials.json is damaged')]);
});
