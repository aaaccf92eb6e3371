/** Shells in running jobs over WebSockets: who may, what is sent, and what ends them. */
import { randomBytes } from 'node:crypto';
import { connect } from 'node:net';
import { pino } from 'pino';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { newId } from '../../src/base/ids.ts';
import { encodeFrame, encodeJsonFrame } from '../../src/platform/frames.ts';
import { eventually } from '../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { refusedShell, shellSocket, untilShell } from '../support/shell-socket.ts';
import { cancel, lines, submit, submitRaw, until } from '../support/submit.ts';

let app: TestApp;
let ada: Client;
let bob: Client;
/** The errors in the log of the server. */
const errors: string[] = [];
const job = 'ada/held';

beforeAll(async () => {
  app = await startApp({
    config: { runner: 'process' },
    overrides: { log: pino({ level: 'error' }, { write: (line) => void errors.push(line) }) },
  });
  [ada, bob] = await Promise.all([app.user('ada'), app.user('bob')]);
  await ada.repository('ada/code');
  await running('held');
});
afterAll(async () => {
  await app?.[Symbol.asyncDispose]();
  expect(errors).toEqual([]);
});

/** Starts a job that runs until it is cancelled. */
async function running(name: string, fields: object = {}) {
  const command = 'echo begun; sleep 600 & wait';
  await submit(ada, { namespace: 'ada', repo: 'ada/code', name, command, ...fields });
  await until(ada, 'ada', name, 'RUNNING');
  await untilShell(ada, `ada/${name}`);
}

const entries = async () => {
  const { namespace } = await ada.gql(`{ namespace(name: "ada") { auditLog(first: 100) { nodes {
    action actor address credential { kind } details } } } }`);
  return namespace.auditLog.nodes.filter(({ action }: { action: string }) =>
    /^JOB_SHELL/.test(action),
  );
};

async function cookieOf(client: Client): Promise<string> {
  const { headers } = await app.anonymous.request('POST', '/login', {
    body: new URLSearchParams({ token: client.token }),
    headers: { 'sec-fetch-site': 'same-origin' },
  });
  return headers.get('set-cookie')?.split(';')[0] ?? '';
}

test('a command has its input, both outputs and its exit code', async () => {
  using shell = await shellSocket(ada, job);
  shell.exec({ command: 'cat; echo "$LANG" >&2; exit 7', env: { LANG: 'xx' } });
  shell.data('one ').data('two').end();
  expect(await shell.closed).toEqual({ code: 1005, reason: '' });
  expect([`${shell.stdout}`, shell.stderr, shell.code]).toEqual(['one two', 'xx\n', 7]);
  await eventually(async () => expect((await entries())[0].details.exitCode).toBe(7));
  const [end, begin] = await entries();
  expect(begin).toMatchObject({ actor: 'ada', address: '127.0.0.1', credential: { kind: 'pat' } });
  expect(end.details).toMatchObject({ exitCode: 7, bytesIn: 7, bytesOut: 10 });
});

test('many bytes pass unchanged', async () => {
  using shell = await shellSocket(ada, job);
  shell.exec({ command: 'cat' });
  const sent = randomBytes(8 * 2 ** 20);
  for (let at = 0; at < sent.length; at += 2 ** 16) shell.data(sent.subarray(at, at + 2 ** 16));
  shell.end();
  await shell.closed;
  expect(shell.stdout.equals(sent)).toBe(true);
});

test('a terminal has a size, which changes', async () => {
  using shell = await shellSocket(ada, job);
  shell.exec({ env: { TERM: 'xterm-256color' }, terminal: { columns: 77, rows: 33 } });
  shell.data('PS1="next? "; stty size; echo $TERM\n');
  // Before it prompts, the shell reads the size and sets it again, which can undo a change in between.
  await eventually(() =>
    expect(`${shell.stdout}`).toMatch(/33 77\r\nxterm-256color\r\n[\s\S]*next\? /),
  );
  for (let rows = 1; rows <= 40; rows++) shell.resize({ columns: 100, rows });
  shell.data('until stty size | grep "40 100"; do sleep 0.1; done\n');
  await eventually(() => expect(`${shell.stdout}`).toMatch(/^40 100\r\n/m));
  shell.data('exit 5\n');
  await shell.closed;
  expect(shell.code).toBe(5);
});

test('refusals are ordinary responses', async () => {
  const refused = async (client: Client, name = job) => {
    const { status, body, headers } = await refusedShell(client, name);
    expect(headers['x-request-id']).toBeDefined();
    return [status, body.error.code, body.error.message];
  };
  const any = expect.any(String);
  expect(await refused(app.anonymous)).toEqual([401, 'authentication_failed', any]);
  const wrong = app.client('Bearer loam_wrong');
  expect(await refused(wrong)).toEqual([401, 'authentication_failed', any]);
  expect(await refused(bob)).toEqual([403, 'permission_denied', any]);
  expect(await refused(ada, 'ada/none')).toEqual([404, 'not_found', any]);
  expect(await refused(ada, 'ada/a%20b')).toEqual([404, 'not_found', any]);
  const limited = await ada.withToken({ scopes: ['JOB_WRITE', 'REPO_READ'] });
  expect(await refused(limited)).toEqual([
    403,
    'permission_denied',
    expect.stringContaining('limited to scopes'),
  ]);
  const { id } = await submit(ada, {
    namespace: 'ada',
    repo: 'ada/code',
    name: 'ended',
    command: 'true',
  });
  expect(id).toMatch(/^job_/);
  await until(ada, 'ada', 'ended', 'SUCCEEDED');
  expect(await refused(ada, 'ada/ended')).toEqual([
    409,
    'conflict',
    expect.stringContaining('needs a running job'),
  ]);
  const plain = await ada.get(`/-/shells/${job}`);
  expect([plain.status, plain.headers.get('upgrade')]).toEqual([426, 'websocket']);
  expect((await bob.get(`/-/shells/${job}`)).status).toBe(403);
  expect((await ada.post(`/-/shells/${job}`)).status).toBe(405);
});

test('a handshake that is not one gets an ordinary response', async () => {
  const { hostname, port } = new URL(app.base);
  const ask = (...more: string[]) =>
    new Promise<string>((resolve, reject) => {
      const socket = connect(Number(port), hostname);
      let said = '';
      socket.setEncoding('utf8').on('data', (chunk: string) => {
        said += chunk;
      });
      socket.once('close', () => resolve(said));
      socket.on('error', reject);
      socket.write(
        [
          `GET /-/shells/${job} HTTP/1.1`,
          `Host: ${hostname}`,
          `Authorization: ${ada.authorization}`,
          'Connection: Upgrade',
          'Upgrade: websocket',
          ...more,
          '',
          '',
        ].join('\r\n'),
      );
    });
  expect(await ask()).toMatch(/^HTTP\/1\.1 400 [\s\S]*"code":"invalid_request"/);
  const key = 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==';
  expect(await ask(key, 'Sec-WebSocket-Version: 1')).toMatch(/^HTTP\/1\.1 400 /);
});

test('the cookie counts only from pages of this server', async () => {
  const cookie = await cookieOf(ada);
  const origin = app.base;
  {
    using shell = await shellSocket(app.anonymous, job, { cookie, origin });
    shell.exec({ command: 'echo from the page' });
    await shell.closed;
    expect(`${shell.stdout}`).toBe('from the page\n');
  }
  const others: Record<string, string>[] = [
    {},
    { origin: 'https://evil.example' },
    { origin: 'null' },
    { origin: `${origin}.evil.example` },
    { origin: 'https://evil.example', 'sec-fetch-site': 'same-origin' },
    { 'loam-page': '1' },
    { 'sec-fetch-mode': 'navigate', 'sec-fetch-dest': 'document', 'sec-fetch-site': 'none' },
  ];
  for (const headers of others) {
    const refused = await refusedShell(app.anonymous, job, { cookie, ...headers });
    expect([refused.status, headers]).toEqual([401, headers]);
  }
});

test('the first frame is checked', async () => {
  const refusals: [object, RegExp][] = [
    [{ command: '' }, /^loam: command: /],
    [{ command: 'a\0b' }, /^loam: command: contains NUL/],
    [{ command: 7 }, /^loam: command: /],
    [{ env: { PATH: '/tmp' } }, /^loam: env/],
    [{ env: { LD_PRELOAD: 'x' } }, /^loam: env/],
    [{ env: { TERM: 'x'.repeat(201) } }, /^loam: env\.TERM: /],
    [{ terminal: { columns: 0, rows: 24 } }, /^loam: terminal\.columns: /],
    [{ terminal: { columns: 80, rows: '24; id' } }, /^loam: terminal\.rows: /],
    [{ user: 'root' }, /^loam: /],
  ];
  for (const [spec, message] of refusals) {
    using shell = await shellSocket(ada, job);
    shell.exec(spec);
    await shell.closed;
    expect([shell.stderr, shell.code]).toEqual([expect.stringMatching(message), 1]);
  }
});

test('garbage and messages that are too long end the connection alone', async () => {
  const first: [string, Uint8Array | string][] = [
    ['garbage', randomBytes(1_000)],
    ['another frame', encodeJsonFrame('resize', { columns: 1, rows: 1 })],
    ['no JSON', Buffer.from([3, 0, 0, 0, 1, 123])],
  ];
  for (const [what, bytes] of first) {
    using shell = await shellSocket(ada, job);
    shell.send(bytes);
    await shell.closed;
    expect([what, shell.code]).toEqual([what, 1]);
  }
  const later: [Uint8Array | string, number][] = [
    ['a text', 1003],
    [new Uint8Array(2 ** 20 + 1), 1009],
    [Buffer.from([99, 0, 0, 0, 0]), 1006],
    [encodeJsonFrame('resize', { columns: '1; id', rows: 1 }), 1006],
    [encodeJsonFrame('resize', null), 1006],
  ];
  for (const [bytes, code] of later) {
    using shell = await shellSocket(ada, job);
    shell.exec({ command: 'echo up; sleep 600' });
    await eventually(() => expect(`${shell.stdout}`).toBe('up\n'));
    shell.send(bytes);
    expect((await shell.closed).code).toBe(code);
  }
  await eventually(async () => {
    const list = await entries();
    const count = (action: string) =>
      list.filter((entry: { action: string }) => entry.action === action).length;
    expect(count('JOB_SHELL_END')).toBe(count('JOB_SHELL'));
  });
});

test('a client that does not read makes the command wait', async () => {
  using shell = await shellSocket(ada, job);
  const loop = 'while [ $((n += 1)) -le 300 ]; do head -c 1000000 /dev/zero; echo $n > count; done';
  shell.exec({ command: `n=0; ${loop}` });
  await eventually(() => expect(shell.stdout.length).toBeGreaterThan(0));
  shell.socket.pause();
  const count = async () => {
    using other = await shellSocket(ada, job);
    other.exec({ command: 'sleep 0.5; cat count' });
    await other.closed;
    return Number(other.stdout);
  };
  let before = -1;
  await eventually(async () => {
    const last = before;
    before = await count();
    expect(before).toBe(last);
  });
  // Megabytes: what the buffers of the kernel hold.
  expect(before).toBeLessThan(50);
});

test('a client that pauses the output gets the rest when it goes on', async () => {
  using shell = await shellSocket(ada, job);
  shell.exec({ command: 'read line; head -c 5000000 /dev/zero; echo end >&2; read line' });
  shell.pause().data('go\n');
  using other = await shellSocket(ada, job);
  other.exec({
    command:
      'until cat /proc/[0-9]*/comm 2>/dev/null | grep -qx head; do sleep 0.1; done; echo waits',
  });
  await other.closed;
  expect(`${other.stdout}`).toBe('waits\n');
  // What was on its way to the client before the pause.
  expect(shell.stdout.length).toBeLessThan(1_000_000);
  shell.resume();
  await eventually(() => expect(shell.stdout.length).toBe(5_000_000));
  shell.pause().end();
  shell.resume();
  await shell.closed;
  expect([shell.stderr, shell.code]).toEqual(['end\n', 1]);
});

test('a shell ends when the right is withdrawn, with the reason', async () => {
  await ada.setMembers('ada', { bob: 'ADMIN' });
  using shell = await shellSocket(bob, job);
  shell.exec({ command: 'echo up; sleep 600' });
  await eventually(() => expect(`${shell.stdout}`).toBe('up\n'));
  const begun = performance.now();
  await ada.gql(
    `mutation { removeMember(input: {namespace: "ada", username: "bob"}) { __typename } }`,
  );
  const { code, reason } = await shell.closed;
  expect([code, reason]).toEqual([4403, expect.stringContaining('not a member')]);
  expect(performance.now() - begun).toBeLessThan(6_000);
});

/** The open shells of the job; null for those who may not see them. */
async function shellsOf(client: Client, name = 'held') {
  const { job: found } = await client.gql(
    `{ job(namespace: "ada", name: "${name}") { shells {
      id username credential { kind name } address command terminal beganAt } } }`,
  );
  return found.shells;
}

const end = (client: Client, id: string) =>
  client.graphql('mutation ($id: ID!) { endJobShell(input: { id: $id }) { id } }', { id });

test('open shells are listed, and whoever may open one ends them', async () => {
  await ada.setMembers('ada', { bob: 'WRITE' });
  const command = 'echo up; cat; sleep 600';
  using shell = await shellSocket(ada, job);
  shell.exec({ command });
  await eventually(() => expect(`${shell.stdout}`).toBe('up\n'));
  using other = await shellSocket(ada, job);
  other.exec({ terminal: { columns: 80, rows: 24 } });
  await eventually(() => expect(`${other.stdout}`).toMatch(/[$#]/));
  const begun = expect.stringMatching(/^20/);
  const by = { username: 'ada', credential: { kind: 'pat', name: expect.any(String) } };
  const address = '127.0.0.1';
  const id = expect.stringMatching(/^shl_/);
  await eventually(async () =>
    expect(await shellsOf(ada)).toEqual([
      { id, ...by, address, command, terminal: false, beganAt: begun },
      { id, ...by, address, command: null, terminal: true, beganAt: begun },
    ]),
  );
  expect(await shellsOf(bob)).toBeNull();
  const [first, second] = await shellsOf(ada);
  const codes = async (client: Client, one: string) =>
    (await end(client, one)).errors?.map((error) => error.extensions?.code);
  expect(await codes(bob, first.id)).toEqual(['PERMISSION_DENIED']);
  expect(await codes(ada, 'shl_wrong')).toEqual(['NOT_FOUND']);

  await ada.setMembers('ada', { bob: 'ADMIN' });
  const asked = performance.now();
  expect(await codes(bob, first.id)).toBeUndefined();
  expect(await codes(bob, first.id)).toEqual(['NOT_FOUND']);
  expect(await codes(bob, second.id)).toBeUndefined();
  expect(await shellsOf(ada)).toEqual([]);
  expect(await shell.closed).toEqual({ code: 1005, reason: '' });
  expect([shell.code, shell.stderr]).toEqual([255, 'loam: The shell was ended by bob\n']);
  await other.closed;
  expect(other.code).toBe(255);
  expect(other.stderr).toBe('loam: The shell was ended by bob\r\n');
  expect(performance.now() - asked).toBeLessThan(6_000);
  await eventually(async () => {
    const { rows } = await app.pool.query('select from job_shells');
    expect(rows).toHaveLength(0);
  });
  const kinds = (await entries()).slice(0, 6).map(({ action, actor }: never) => [action, actor]);
  expect(kinds).toEqual(
    expect.arrayContaining([
      ['JOB_SHELL_CLOSE', 'bob'],
      ['JOB_SHELL_END', 'ada'],
    ]),
  );
  await ada.setMembers('ada', { bob: 'READ' });
  await ada.gql(
    `mutation { removeMember(input: {namespace: "ada", username: "bob"}) { __typename } }`,
  );
});

test('a shell whose client does not read is ended, too', async () => {
  using shell = await shellSocket(ada, job);
  shell.exec({ command: 'exec cat /dev/zero' });
  await eventually(() => expect(shell.stdout.length).toBeGreaterThan(0));
  shell.socket.pause();
  const [{ id }] = await shellsOf(ada);
  await end(ada, id);
  await eventually(async () => {
    const { rows } = await app.pool.query('select from job_shells');
    expect(rows).toHaveLength(0);
  });
});

test('shells of a server that does not answer are not listed, and the next one removes its own', async () => {
  const own = app.app.services.cluster.members.id;
  for (const worker of ['srv_gone', own])
    await app.pool.query(
      `insert into job_shells (id, attempt_id, worker_id, username, terminal)
       select $1, attempt_id, $2, 'ada', true from jobs where name = 'held'`,
      [newId('shl'), worker],
    );
  expect(await shellsOf(ada)).toHaveLength(1);
  await app.restart();
  const { rows } = await app.pool.query('delete from job_shells returning worker_id');
  expect(rows).toEqual([{ worker_id: 'srv_gone' }]);
});

test('the end of a shell is recorded after an outage of the database', async () => {
  using shell = await shellSocket(ada, job);
  shell.exec({ command: 'echo up; cat' });
  await eventually(() => expect(`${shell.stdout}`).toBe('up\n'));
  await eventually(async () => expect(await shellsOf(ada)).toHaveLength(1));
  const locking = await app.pool.connect();
  try {
    await locking.query('begin; lock table audit_entries in access exclusive mode');
    shell.end();
    await shell.closed;
    await eventually(async () => {
      const { rows } = await locking.query(
        `select pg_terminate_backend(pid) from pg_locks
         where relation = 'audit_entries'::regclass and not granted`,
      );
      expect(rows).toHaveLength(1);
    });
  } finally {
    await locking.query('rollback');
    locking.release();
  }
  await eventually(async () => expect(await shellsOf(ada)).toHaveLength(0));
  expect((await entries())[0].action).toBe('JOB_SHELL_END');
});

test('connections to ports are not listed', async () => {
  using port = await shellSocket(ada, job);
  port.send(encodeJsonFrame('exec', { port: 1 }));
  await port.closed;
  const { rows } = await app.pool.query('select from job_shells');
  expect(rows).toHaveLength(0);
});

const canOpen = async (client: Client, name: string) =>
  (await client.gql(`{ job(namespace: "ada", name: "${name}") { canOpenShell shellAccess } }`)).job;

test('a job without shells has none for anybody, and a rerun keeps that', async () => {
  const settings = { namespace: 'ada', repo: 'ada/code', name: 'closed', shellAccess: 'NONE' };
  await submit(ada, { ...settings, command: 'sleep 600 & wait' });
  await until(ada, 'ada', 'closed', 'RUNNING');
  for (const client of [ada, app.admin]) {
    const { status, body } = await refusedShell(client, 'ada/closed');
    expect([status, body.error.code]).toEqual([403, 'permission_denied']);
    expect(body.error.message).toBe(
      'This job has no shells: it was created with --no-shell, shellAccess NONE or "shell: none"',
    );
    expect(await canOpen(client, 'closed')).toEqual({ canOpenShell: false, shellAccess: 'NONE' });
  }
  await cancel(ada, 'ada', 'closed');
  await ada.gql(
    'mutation { rerunJob(input: { namespace: "ada", name: "closed" }) { job { id } } }',
  );
  expect((await canOpen(ada, 'closed-2')).shellAccess).toBe('NONE');
  await cancel(ada, 'ada', 'closed-2');
  const held = { ...settings, name: 'never', command: 'true', holdOnFailureMinutes: 5 };
  const { errors } = await submitRaw(ada, held);
  expect(errors).toMatchObject([
    {
      message: expect.stringContaining('must be 0'),
      extensions: { field: 'holdOnFailureMinutes' },
    },
  ]);
});

test('an admin switches shells in the jobs of a namespace off, which ends the open ones', async () => {
  const set = (client: Client, access: string) =>
    client.graphql(
      `mutation { setShellAccess(input: { namespace: "ada", access: ${access} }) {
        namespace { shellAccess } } }`,
    );
  const read = async (client: Client) =>
    (await client.gql('{ namespace(name: "ada") { shellAccess } }')).namespace.shellAccess;
  expect((await set(bob, 'NONE')).errors?.[0]?.extensions?.code).toBe('PERMISSION_DENIED');
  expect([await read(ada), await read(bob)]).toEqual(['ALLOWED', null]);
  using shell = await shellSocket(ada, job);
  shell.exec({ command: 'echo up; sleep 600' });
  await eventually(() => expect(`${shell.stdout}`).toBe('up\n'));
  const begun = performance.now();
  expect((await set(ada, 'NONE')).data.setShellAccess.namespace.shellAccess).toBe('NONE');
  const message = 'Shells in jobs are switched off in the settings of ada';
  expect((await refusedShell(ada, job)).body.error.message).toBe(message);
  expect(await shell.closed).toEqual({ code: 4403, reason: message });
  expect(performance.now() - begun).toBeLessThan(6_000);
  expect(await canOpen(ada, 'held')).toEqual({ canOpenShell: false, shellAccess: 'ALLOWED' });
  await set(ada, 'ALLOWED');
  expect((await canOpen(ada, 'held')).canOpenShell).toBe(true);
  const { rows } = await app.pool.query(
    `select details ->> 'access' as access from audit_entries where action = 'shell_access.set' order by id`,
  );
  expect(rows).toEqual([{ access: 'none' }, { access: 'allowed' }]);
});

test('the token of a job opens no shell', async () => {
  const input = { permissions: { repo: 'WRITE', jobs: 'WRITE' } };
  const command = 'echo "token=$LOAM_TOKEN" | rev; sleep 600 & wait';
  await submit(ada, { namespace: 'ada', repo: 'ada/code', name: 'own', command, ...input });
  let token = '';
  await eventually(async () => {
    const [line = ''] = (await lines(ada, 'ada', 'own')).slice(-1);
    token = [...line].reverse().join('').replace('token=', '');
    expect(token).toMatch(/^loam/);
  });
  const { status, body } = await refusedShell(app.client(`Bearer ${token}`), 'ada/own');
  expect([status, body.error.message]).toEqual([403, expect.stringContaining('limited to scopes')]);
  await cancel(ada, 'ada', 'own');
});

test('a shell ends with the job, and with the server', async () => {
  await running('short');
  using ending = await shellSocket(ada, 'ada/short');
  ending.exec({ command: 'echo up; sleep 600' });
  await eventually(() => expect([ending.stderr, `${ending.stdout}`]).toEqual(['', 'up\n']));
  await cancel(ada, 'ada', 'short');
  await ending.closed;
  expect(ending.code).not.toBe(0);
  using staying = await shellSocket(ada, job);
  staying.exec({ command: 'echo up; sleep 600' });
  await eventually(() => expect(`${staying.stdout}`).toBe('up\n'));
  await app.restart();
  expect(await staying.closed).toEqual({ code: 1001, reason: 'The server is stopping' });
});

test('frames without end from a client that the command does not read cost little', async () => {
  using shell = await shellSocket(ada, job);
  shell.exec({ command: 'sleep 600' });
  // Fills the input of the command.
  for (let at = 0; at < 32; at++) shell.data(Buffer.alloc(2 ** 16));
  const frame = Buffer.concat(encodeFrame('data', Buffer.from('x')));
  const frames = Buffer.concat(Array.from({ length: 20_000 }, () => frame));
  for (let count = 0; count < 50; count++) shell.send(frames);
  const other = await shellSocket(ada, job);
  other.exec({ command: 'echo here' });
  other.end();
  await other.closed;
  expect(`${other.stdout}`).toBe('here\n');
});
