/** Programs of running jobs in the browser, on hosts of their own: who may, what passes, and what ends it. */
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { connect } from 'node:net';
import { text } from 'node:stream/consumers';
import { pino } from 'pino';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { AppVisitor, openPort, responseOf, serveApp } from '../support/app-visitor.ts';
import { eventually } from '../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { has, needs } from '../support/needs.ts';
import { freePorts } from '../support/ports.ts';
import { cancel } from '../support/submit.ts';

let app: TestApp;
let ada: Client;
let bob: Client;
let port: number;
let other: number;
let id: string;
/** Signed in as ada. */
let visitor: AppVisitor;
/** The errors in the log of the server. */
const errors: string[] = [];

beforeEach((ctx) => needs(ctx, 'python3'));
beforeAll(async () => {
  if (!has('python3')) return;
  app = await startApp({
    config: { runner: 'process', appsDomain: { name: 'apps.localhost' } },
    overrides: { log: pino({ level: 'error' }, { write: (line) => void errors.push(line) }) },
  });
  [ada, bob] = await Promise.all([app.user('ada'), app.user('bob')]);
  await ada.repository('ada/code');
  [port = 0, other = 0] = await freePorts(2);
  ({ id } = await serveApp(ada, 'served', port));
  visitor = await AppVisitor.signIn(await openPort(ada, 'served', port));
});
afterAll(async () => {
  await app?.[Symbol.asyncDispose]();
  expect(errors).toEqual([]);
});

const open = (client: Client, input: object = {}) =>
  client.graphql('mutation ($input: OpenJobPortInput!) { openJobPort(input: $input) { url } }', {
    input: { namespace: 'ada', name: 'served', port, ...input },
  });
const HTML = { accept: 'text/html,application/xhtml+xml' };
/** Sends raw lines to the server, with one request that closes the connection. */
async function raw(...lines: string[]): Promise<string> {
  const socket = connect(Number(new URL(app.base).port), '127.0.0.1');
  socket.write([...lines, 'Connection: close', '', ''].join('\r\n'));
  let said = '';
  socket.setEncoding('utf8').on('data', (chunk: string) => {
    said += chunk;
  });
  await once(socket, 'close');
  return said;
}

/** A browser session of the user, as a client. */
async function browserOf(client: Client) {
  const { headers } = await app.anonymous.request('POST', '/login', {
    body: new URLSearchParams({ token: client.token }),
    headers: { 'sec-fetch-site': 'same-origin' },
  });
  const cookie = headers.get('set-cookie')?.split(';')[0] ?? '';
  const post = (path: string, init: object) =>
    app.anonymous.request('POST', path, {
      ...init,
      headers: { cookie, 'sec-fetch-site': 'same-origin' },
    });
  return {
    async openPort(name: string) {
      const query = `mutation { openJobPort(input: {namespace: "ada", name: "${name}", port: ${port}}) { url } }`;
      const { body } = await post('/graphql', { json: { query } });
      return body.data.openJobPort.url as string;
    },
    signOut: () => post('/logout', {}),
  };
}

test('a port is opened by those who may open a shell, and not without the domain', async () => {
  const { data } = await ada
    .gql(`{ job(namespace: "ada", name: "served") { canOpenShell hasPortUrls } }`)
    .then((job) => ({ data: job.job }));
  expect(data).toEqual({ canOpenShell: true, hasPortUrls: true });
  const refused = async (client: Client, input?: object) => {
    const [{ extensions, message } = { extensions: { code: '' }, message: '' }] =
      (await open(client, input)).errors ?? [];
    return [extensions.code, message];
  };
  expect(await refused(app.anonymous)).toEqual(['AUTHENTICATION_FAILED', expect.any(String)]);
  expect(await refused(bob)).toEqual(['PERMISSION_DENIED', expect.any(String)]);
  const limited = await ada.withToken({ scopes: ['JOB_WRITE'] });
  expect((await refused(limited))[0]).toBe('PERMISSION_DENIED');
  expect((await refused(ada, { name: 'none' }))[0]).toBe('NOT_FOUND');
  for (const wrong of [0, -1, 65_536, 99_999])
    expect(await refused(ada, { port: wrong })).toEqual([
      'INVALID_REQUEST',
      'port: must be from 1 to 65535',
    ]);
  const { appsDomain } = app.config;
  try {
    app.config.appsDomain = undefined;
    expect(await refused(ada)).toEqual([
      'PERMISSION_DENIED',
      expect.stringContaining('LOAM_APPS_DOMAIN'),
    ]);
    app.config.jobShell = 'off';
    expect(await refused(ada)).toEqual([
      'PERMISSION_DENIED',
      expect.stringContaining('LOAM_JOB_SHELL'),
    ]);
  } finally {
    Object.assign(app.config, { appsDomain, jobShell: 'on' });
  }
});

test('a ticket works once, at its port, for a minute, in a tab', async () => {
  const url = await openPort(ada, 'served', port);
  expect(new URL(url).host).toBe(
    `${port}--${id.slice(4)}.apps.localhost:${new URL(app.base).port}`,
  );
  const fresh = new AppVisitor(url);
  const otherPort = new AppVisitor(url.replace(`${port}--`, `${other}--`));
  expect((await otherPort.redeem()).status).toBe(401);
  expect((await fresh.redeem({ headers: { 'sec-fetch-dest': 'iframe' } })).status).toBe(403);
  expect((await fresh.redeem({ method: 'POST' })).status).toBe(405);
  expect((await fresh.redeem({ method: 'HEAD' })).status).toBe(405);
  const answers = await Promise.all([fresh.redeem(), fresh.redeem(), fresh.redeem()]);
  expect(answers.map(({ status }) => status).sort()).toEqual([303, 401, 401]);
  const { headers } = answers.find(({ status }) => status === 303) as (typeof answers)[0];
  expect(headers).toMatchObject({
    location: '/',
    'cache-control': 'no-store',
    'referrer-policy': 'no-referrer',
    'set-cookie': [expect.stringMatching(/^loam-app=\w{40}; Path=\/; HttpOnly; SameSite=Lax$/)],
  });

  const late = new AppVisitor(await openPort(ada, 'served', port));
  await app.pool.query(`update app_sessions set expires_at = now() where not is_open`);
  const page = await late.redeem({ headers: HTML });
  expect([page.status, page.text]).toEqual([401, expect.stringContaining('has expired')]);
  for (const ticket of ['', 'x', '%00', 'a'.repeat(40), 'a'.repeat(9_000)])
    expect((await late.get(`/-/loam-ticket?ticket=${ticket}`)).status).toBe(401);
});

test('without a session, with that of another port, or after its end, there is a page that leads to the job', async () => {
  const stranger = new AppVisitor(visitor.url.href);
  const { status, headers, text } = await stranger.get('/', { headers: HTML });
  expect([status, headers['content-type']]).toEqual([401, 'text/html; charset=utf-8']);
  expect(headers['content-security-policy']).toContain("frame-ancestors 'none'");
  expect(text).toContain(`<a href="${app.base}/-/jobs/${id}">`);
  expect(text).not.toContain('served');
  expect(JSON.parse((await stranger.get('/')).text).error.code).toBe('authentication_failed');
  for (const cookie of ['loam-app=', 'loam-app=x', `loam-app=${'a'.repeat(40)}`]) {
    stranger.cookie = cookie;
    expect((await stranger.get('/')).status).toBe(401);
  }
  // The credentials of Loam are none here.
  stranger.cookie = '';
  const authorization = `${ada.authorization}`;
  expect((await stranger.get('/', { headers: { authorization } })).status).toBe(401);
  const elsewhere = new AppVisitor(visitor.url.href.replace(`${port}--`, `${other}--`));
  elsewhere.cookie = visitor.cookie;
  expect((await elsewhere.get('/')).status).toBe(401);

  const { status: found, headers: to } = await app.anonymous.get(`/-/jobs/${id}`, HTML);
  expect([found, to.get('location')]).toEqual([303, `/login?to=%2F-%2Fjobs%2F${id}`]);
  const expiring = await AppVisitor.signIn(await openPort(ada, 'served', port));
  expect((await expiring.get('/')).status).toBe(200);
  await app.pool.query(
    `update app_sessions set expires_at = now() where id = (select max(id) from app_sessions)`,
  );
  expect((await expiring.get('/')).status).toBe(401);
});

test('the program gets the request without what is of Loam', async () => {
  const headers = {
    cookie: `a=1; ${visitor.cookie}; loam-session=${'s'.repeat(40)}; __Host-loam=x; b=2; loam-app=; loam-theme=dark`,
    authorization: 'Basic YTpi',
    'x-forwarded-for': '1.2.3.4',
    'x-forwarded-host': 'evil.example',
    connection: 'x-hop',
    'x-hop': '1',
    'x-twice': ['1', '2'],
  };
  const { status, text } = await visitor.get('/a%20b/../c?d=%2F&e', { headers });
  expect(status).toBe(200);
  const seen = JSON.parse(text);
  expect(seen.line).toBe('GET /a%20b/../c?d=%2F&e HTTP/1.1');
  const named = Object.fromEntries(seen.headers);
  expect(named).toMatchObject({
    host: visitor.url.host,
    cookie: 'a=1; b=2; loam-theme=dark',
    authorization: 'Basic YTpi',
    'x-forwarded-for': '127.0.0.1',
    'x-forwarded-host': visitor.url.host,
    'x-forwarded-proto': 'http',
    'x-twice': '1, 2',
  });
  expect(named).not.toHaveProperty('x-hop');
  expect(seen.headers.filter(([name]: [string]) => name === 'host')).toHaveLength(1);
});

test('only pages of the same host and links reach the program', async () => {
  const { origin } = visitor.url;
  const navigate = { 'sec-fetch-mode': 'navigate', 'sec-fetch-dest': 'document' };
  const asked: [number, string, Record<string, string>][] = [
    [200, 'GET', { 'sec-fetch-site': 'same-origin' }],
    [200, 'POST', { 'sec-fetch-site': 'same-origin', origin }],
    [200, 'POST', { origin }],
    [200, 'GET', { 'sec-fetch-site': 'none', ...navigate }],
    [200, 'GET', { 'sec-fetch-site': 'same-site', ...navigate }],
    [200, 'GET', { 'sec-fetch-site': 'cross-site', ...navigate }],
    [403, 'POST', { 'sec-fetch-site': 'same-site', ...navigate }],
    [403, 'GET', { 'sec-fetch-site': 'same-site', ...navigate, 'sec-fetch-dest': 'iframe' }],
    [403, 'GET', { 'sec-fetch-site': 'same-site', 'sec-fetch-mode': 'no-cors' }],
    [403, 'POST', { 'sec-fetch-site': 'same-site', origin }],
    [403, 'POST', { origin: 'http://evil.example' }],
    [403, 'POST', { origin: 'null' }],
    [403, 'GET', { origin: origin.replace(`${port}--`, `${other}--`) }],
  ];
  for (const [status, method, headers] of asked)
    expect([(await visitor.get('/', { method, headers })).status, method, headers]).toEqual([
      status,
      method,
      headers,
    ]);
  for (const elsewhere of ['http://evil.example', 'null', app.base])
    await expect(visitor.webSocket({ origin: elsewhere })).rejects.toThrow('403');
});

test('bytes pass in both directions, as they come', async () => {
  const body = randomBytes(50 * 2 ** 20);
  const upload = await visitor.get('/digest', { method: 'POST', body });
  expect(upload.text).toBe(`${body.length} ${createHash('sha256').update(body).digest('hex')}`);
  const chunked = visitor.send('/digest', {
    method: 'PUT',
    headers: { 'transfer-encoding': 'chunked' },
  });
  chunked.write('one');
  chunked.end('two');
  const whole = createHash('sha256').update('onetwo').digest('hex');
  expect(await text(await responseOf(chunked))).toBe(`6 ${whole}`);
  const { bytes } = await visitor.get(`/bytes?${20 * 2 ** 20}`);
  expect(bytes.equals(Buffer.from('0123456789abcdef'.repeat((20 * 2 ** 20) / 16)))).toBe(true);

  const events = visitor.send('/events');
  events.end();
  const received = (await responseOf(events))[Symbol.asyncIterator]();
  expect(String((await received.next()).value)).toBe('data: one\n\n');
  await visitor.get('/go');
  expect(String((await received.next()).value)).toBe('data: two\n\n');
  expect((await received.next()).done).toBe(true);
});

test('connections are few, and end soon', async () => {
  await Promise.all(
    Array.from({ length: 60 }, async () => expect((await visitor.get('/')).status).toBe(200)),
  );
  // This one with them.
  expect(Number((await visitor.get('/open')).text)).toBeLessThanOrEqual(20);
  const mute = visitor.send('/mute').on('error', () => {});
  mute.end();
  await eventually(async () =>
    expect(Number((await visitor.get('/open')).text)).toBeGreaterThan(1),
  );
  mute.destroy();
  await eventually(async () => expect(Number((await visitor.get('/open')).text)).toBe(1));
});

test('a WebSocket passes messages of any size both ways', async () => {
  const socket = await visitor.webSocket();
  for (const message of [Buffer.from('text'), randomBytes(70_000), randomBytes(3 * 2 ** 20)]) {
    socket.send(message);
    const [echo] = await once(socket, 'message');
    expect(message.equals(echo as Buffer)).toBe(true);
  }
  const closed = once(socket, 'close');
  socket.close();
  await closed;
  // Only a GET can become one.
  const headers = { connection: 'Upgrade', upgrade: 'websocket' };
  const posted = await visitor.get('/digest', { method: 'POST', headers, body: 'abc' });
  expect([posted.status, posted.text]).toEqual([200, expect.stringMatching(/^3 /)]);
  const { cookie } = visitor;
  try {
    visitor.cookie = '';
    await expect(visitor.webSocket()).rejects.toThrow('401');
  } finally {
    visitor.cookie = cookie;
  }
});

test('a hostile program sets nothing for other hosts, and breaks only its own responses', async () => {
  const answer = (...lines: string[]) =>
    visitor.get('/raw', { method: 'POST', body: lines.join('\r\n') });
  const set = await answer(
    'HTTP/1.1 200 OK',
    'Set-Cookie: a=1; Domain=localhost; Path=/',
    'Set-Cookie: b=2; domain =.apps.localhost;Secure',
    `Set-Cookie: loam-app=${'x'.repeat(40)}`,
    'Set-Cookie: __Host-loam=1; Secure; Path=/',
    'Set-Cookie: loam-session=1',
    'Clear-Site-Data: "cookies"',
    'X-Accel-Redirect: /secret',
    'X-Accel-Buffering: no',
    'Alt-Svc: h2="evil.example:443"',
    "Content-Security-Policy: default-src 'self'",
    'Content-Length: 2',
    '',
    'ok',
  );
  expect(set.text).toBe('ok');
  expect(set.headers['set-cookie']).toEqual(['a=1; Path=/', 'b=2;Secure']);
  expect(set.headers).toMatchObject({
    'x-accel-buffering': 'no',
    'content-security-policy': "default-src 'self', frame-ancestors 'self'",
  });
  for (const name of ['clear-site-data', 'x-accel-redirect', 'alt-svc'])
    expect(set.headers).not.toHaveProperty(name);

  const broken: string[][] = [
    ['not HTTP at all', '', ''],
    ['HTTP/1.1 200 OK', `X: ${'x'.repeat(100_000)}`, '', ''],
    ['HTTP/1.1 99 Low', '', ''],
    ['HTTP/1.1 200 OK', 'Content-Length: 1', 'Content-Length: 2', '', 'ab'],
    ['HTTP/1.1 200 OK', 'Content-Length: 1', 'Transfer-Encoding: chunked', '', 'ab'],
    ['HTTP/1.1 101 Switching Protocols', 'Upgrade: x', 'Connection: Upgrade', '', ''],
    ['HTTP/1.1 101 Switching Protocols', '', ''],
    ['HTTP/1.1 103 Early', '', ''],
    [],
  ];
  for (const lines of broken) {
    const { status, text } = await answer(...lines);
    expect([status, text, lines[0]]).toEqual([502, expect.stringContaining('program'), lines[0]]);
  }
  expect((await visitor.get('/close')).status).toBe(502);
  await expect(answer('HTTP/1.1 200 OK', 'Content-Length: 10', '', 'short')).rejects.toThrow();
  const early = await visitor.get('/early', { method: 'POST', body: randomBytes(5 * 2 ** 20) });
  expect([early.status, early.text]).toEqual([200, 'early']);
  const closed = await answer('HTTP/1.0 200 OK', '', 'until the end');
  expect([closed.status, closed.text]).toEqual([200, 'until the end']);
  const smuggled = await answer(
    'HTTP/1.1 200 OK',
    'Content-Length: 2',
    '',
    'okHTTP/1.1 200 OK',
    'Content-Length: 4',
    '',
    'evil',
  );
  expect(smuggled.text).toBe('ok');
  for (let count = 0; count < 5; count++)
    expect(JSON.parse((await visitor.get('/')).text).line).toBe('GET / HTTP/1.1');
});

test('a page says when nothing listens', async () => {
  const nobody = await AppVisitor.signIn(await openPort(ada, 'served', other));
  const { status, text } = await nobody.get('/', { headers: HTML });
  expect([status, text]).toEqual([
    502,
    expect.stringContaining(`Nothing listens on port ${other} of the job`),
  ]);
});

test('a host is either of a program or of Loam', async () => {
  const label = visitor.url.host.split('.')[0] ?? '';
  const cookie = `Cookie: ${visitor.cookie}`;
  const statusAt = async (...lines: string[]) =>
    Number(/^HTTP\/1\.1 (\d+)/.exec(await raw(...lines, cookie))?.[1]);
  const at = (host: string, path = '/') => statusAt(`GET ${path} HTTP/1.1`, `Host: ${host}`);
  for (const host of [
    `${label}.apps.localhost`,
    `${label}.apps.localhost:99`,
    `${label.toUpperCase()}.APPS.localhost`,
    `${label}.apps.localhost.`,
    `${label}.apps.localhost.:1`,
  ])
    expect([await at(host), host]).toEqual([200, host]);
  const key = id.slice(4);
  for (const host of [
    'apps.localhost',
    `x.${label}.apps.localhost`,
    `0--${key}.apps.localhost`,
    `08--${key}.apps.localhost`,
    `65536--${key}.apps.localhost`,
    `99999--${key}.apps.localhost`,
    `1e3--${key}.apps.localhost`,
    `${port}-${key}.apps.localhost`,
    `${port}--${key.replace(/./, 'z')}.apps.localhost`,
    `${port}--job_${key}.apps.localhost`,
    `.apps.localhost`,
  ])
    expect([await at(host), host]).toEqual([404, host]);
  // Loam's.
  for (const host of [`${label}.apps.localhost.evil`, `${label}apps.localhost`, 'localhost'])
    expect([await at(host, '/auth/v1/version'), host]).toEqual([200, host]);
  for (const host of [`${label}.apps.localhost, x`, `x@${label}.apps.localhost:1:2`])
    expect([await at(host, '/auth/v1/version'), host]).not.toEqual([200, host]);
  const twice = [`Host: ${label}.apps.localhost`, 'Host: localhost'];
  expect(await statusAt('GET / HTTP/1.1', ...twice)).toBe(400);
  expect(await statusAt('GET / HTTP/1.1', ...twice.toReversed())).toBe(400);
  expect(await statusAt(`GET http://localhost/auth/v1/version HTTP/1.1`, `${twice[0]}`)).toBe(200);

  for (const path of [
    '/auth/v1/version',
    '/graphql',
    '/login',
    '/livez',
    '/-/shells/ada/served',
    '/_loam/tunnels/x',
    '/agents/x',
    '/assets/x.js',
  ])
    expect(JSON.parse((await visitor.get(path)).text).line).toBe(`GET ${path} HTTP/1.1`);
  const upgraded = await visitor.get('/_loam/tunnels/x', {
    headers: { connection: 'Upgrade', upgrade: 'loam' },
  });
  expect(JSON.parse(upgraded.text).headers).not.toContainEqual(['upgrade', 'loam']);
  expect((await ada.get('/-/loam-ticket?ticket=x')).status).toBe(404);
});

test('a WebSocket and requests end with the right', async () => {
  await ada.setMembers('ada', { bob: 'ADMIN' });
  const guest = await AppVisitor.signIn(await openPort(bob, 'served', port));
  const socket = await guest.webSocket();
  const closed = once(socket, 'close');
  const begun = performance.now();
  await ada.gql(
    `mutation { removeMember(input: {namespace: "ada", username: "bob"}) { __typename } }`,
  );
  await closed;
  expect(performance.now() - begun).toBeLessThan(6_000);
  const { status, text } = await guest.get('/', { headers: HTML });
  expect([status, text]).toEqual([403, expect.stringContaining('You may not open this')]);
  expect((await visitor.get('/')).status).toBe(200);
});

test('all ends when the browser is signed out of Loam', async () => {
  const browser = await browserOf(ada);
  const guest = await AppVisitor.signIn(await browser.openPort('served'));
  const socket = await guest.webSocket();
  expect((await guest.get('/')).status).toBe(200);
  await Promise.all([once(socket, 'close'), browser.signOut()]);
  await eventually(async () => expect((await guest.get('/')).status).toBe(401));
});

test('each ticket is recorded, and connections once, with the port', async () => {
  const { namespace } = await ada.gql(`{ namespace(name: "ada") { auditLog(first: 100) { nodes {
    action actor address credential { kind } details } } } }`);
  type Entry = { action: string; actor: string; credential: { kind: string }; details: object };
  const entries = namespace.auditLog.nodes.filter(
    ({ action, actor, details }: Entry) =>
      action === 'JOB_PORT' && actor === 'ada' && 'port' in details && details.port === port,
  );
  const [tickets, connections] = [true, false].map((isTicket) =>
    entries.filter(({ details }: Entry) => 'host' in details === isTicket),
  );
  expect(connections.map(({ credential }: Entry) => credential.kind)).toEqual(['session', 'pat']);
  expect(connections[0]).toMatchObject({ address: '127.0.0.1', details: { port } });
  const host = expect.stringMatching(/^\d+--\w{26}\.apps\.localhost:\d+$/);
  expect(tickets[0]).toMatchObject({ address: '127.0.0.1', details: { port, host } });
});

test('all ends with the job, and with the server', async () => {
  const [last = 0] = await freePorts(1);
  await serveApp(ada, 'short', last);
  const guest = await AppVisitor.signIn(await openPort(ada, 'short', last));
  const socket = await guest.webSocket();
  await Promise.all([once(socket, 'close'), cancel(ada, 'ada', 'short')]);
  const { status, text } = await guest.get('/', { headers: HTML });
  expect([status, text]).toEqual([410, expect.stringContaining('The job has ended')]);

  const staying = await visitor.webSocket();
  const events = visitor.send('/events');
  events.end();
  const response = await responseOf(events);
  const broken = new Promise((resolve) => response.once('error', resolve));
  response.resume();
  await Promise.all([app.restart(), once(staying, 'close'), broken]);
  await eventually(async () => expect((await visitor.get('/')).status).toBe(200));
});
