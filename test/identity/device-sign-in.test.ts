/** Device authorization grant: the codes, the page, the token, and attempts to steal it. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text as readText } from 'node:stream/consumers';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { needs } from '../support/needs.ts';
import { expectRefusal } from '../support/refusal.ts';

let app: TestApp;
let ada: Client;
let eve: Client;
/** Session cookies. */
let adas: string;
let eves: string;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
  eve = await app.user('eve');
  [adas, eves] = await Promise.all([cookieOf(ada), cookieOf(eve)]);
});
afterAll(() => app[Symbol.asyncDispose]());
beforeEach(() => app.pool.query('delete from device_requests; delete from device_guesses'));

async function cookieOf(client: Client): Promise<string> {
  const answer = await app.anonymous.request('POST', '/login', {
    headers: { origin: app.base },
    body: new URLSearchParams({ token: client.token }),
  });
  return answer.headers.getSetCookie()[0]?.split(';')[0] ?? '';
}

const form = (path: string, fields: Record<string, string>, headers = {}) =>
  app.anonymous.request('POST', path, { headers, body: new URLSearchParams(fields) });

const begin = async (more: Record<string, string> = {}) =>
  (await form('/login/device/code', { client_id: 'tool', ...more })).body;

const GRANT = 'urn:ietf:params:oauth:grant-type:device_code';
const poll = (device_code: string, more: Record<string, string> = {}) =>
  form('/login/device/token', { grant_type: GRANT, client_id: 'tool', device_code, ...more });

const open = (cookie: string, code = '') =>
  app.anonymous.get(`/login/device${code && `?user_code=${encodeURIComponent(code)}`}`, {
    cookie,
    accept: 'text/html',
  });

const respond = (cookie: string, user_code: string, answer: string, headers: object = {}) =>
  form(
    '/login/device',
    { user_code, answer },
    {
      cookie,
      accept: 'text/html',
      origin: app.base,
      ...headers,
    },
  );

/** Simulates that the program waited for the interval. */
const wait = () =>
  app.pool.query(`update device_requests set polled_at = polled_at - interval '1 min'`);

test('a program gets one token with the requested rights when its user approves', async () => {
  const asked = await begin({ scope: 'repo:read job:write', expires_in_days: '7' });
  expect(asked).toEqual({
    device_code: expect.stringMatching(/^[0-9A-Za-z]{40}$/),
    user_code: expect.stringMatching(/^[B-Z]{4}-[B-Z]{4}$/),
    verification_uri: `${app.base}/login/device`,
    verification_uri_complete: `${app.base}/login/device?user_code=${asked.user_code}`,
    expires_in: 900,
    interval: 5,
  });
  const waits = await poll(asked.device_code);
  expect([waits.status, waits.body.error]).toEqual([400, 'authorization_pending']);
  expect(waits.headers.get('cache-control')).toBe('no-store');

  const page = await open(adas, asked.user_code.toLowerCase().replace('-', ' '));
  for (const shown of [
    '<b>tool</b>',
    '<b>ada</b>',
    '127.0.0.1',
    'repo:read',
    'job:write',
    '7 days',
    asked.user_code,
    'somebody',
  ])
    expect(page.text).toContain(shown);
  expect(page.headers.get('content-security-policy')).toContain("frame-ancestors 'none'");
  expect(page.headers.get('cache-control')).toBe('no-store');
  // Opening the page does not approve.
  await wait();
  expect((await poll(asked.device_code)).body.error).toBe('authorization_pending');

  const agreed = await respond(adas, asked.user_code, 'approve');
  expect([agreed.status, agreed.text.includes('<b>tool</b> will be signed in as you')]).toEqual([
    200,
    true,
  ]);
  const given = await poll(asked.device_code);
  expect(given.body).toEqual({
    access_token: expect.stringMatching(/^loam_pat_/),
    token_type: 'Bearer',
    expires_in: expect.any(Number),
    scope: 'repo:read job:write',
  });
  expect(Math.round(given.body.expires_in / 86_400)).toBe(7);
  const client = app.client(`Bearer ${given.body.access_token}`);
  expect((await client.gql('{ viewer { username } }')).viewer.username).toBe('ada');
  await expectRefusal(
    client.graphql('mutation { createAccessToken(input: {name: "x"}) { token } }'),
    'PERMISSION_DENIED',
  );
  const { viewer } = await ada.gql('{ viewer { accessTokens { nodes { name scopes } } } }');
  expect(viewer.accessTokens.nodes[0]).toEqual({
    name: `tool ${asked.user_code}`,
    scopes: ['REPO_READ', 'JOB_WRITE'],
  });
  // Both codes are invalid once the token was fetched.
  expect((await poll(asked.device_code)).body.error).toBe('invalid_grant');
  expect((await respond(eves, asked.user_code, 'approve')).status).toBe(404);
  const { rows } = await app.pool.query(
    `select action, actor, name from audit_entries where name = $1 order by id`,
    [`tool ${asked.user_code}`],
  );
  expect(rows).toEqual([
    { action: 'device.approve', actor: 'ada', name: `tool ${asked.user_code}` },
    { action: 'access_token.create', actor: 'ada', name: `tool ${asked.user_code}` },
  ]);
});

test('without scopes the page says that all rights are requested', async () => {
  const { user_code, device_code } = await begin();
  expect((await open(adas, user_code)).text).toContain('everything that you can do');
  await respond(adas, user_code, 'approve');
  const { body } = await poll(device_code);
  expect(body.scope).toBe('');
  const made = await app
    .client(`Bearer ${body.access_token}`)
    .gql('mutation { createAccessToken(input: {name: "more"}) { token } }');
  expect(made.createAccessToken.token).toMatch(/^loam_pat_/);
});

test('any answer except approval denies the request', async () => {
  for (const answer of ['refuse', '', 'yes']) {
    const { user_code, device_code } = await begin();
    expect((await respond(adas, user_code, answer)).text).toContain('<b>tool</b> was refused');
    expect((await poll(device_code)).body.error).toBe('access_denied');
    expect((await poll(device_code)).body.error).toBe('invalid_grant');
    expect((await respond(adas, user_code, 'approve')).status).toBe(404);
  }
});

test('polling too often is answered with slow_down, and late polling with expired_token', async () => {
  const { user_code, device_code } = await begin();
  expect((await poll(device_code)).body.error).toBe('authorization_pending');
  expect((await poll(device_code)).body).toEqual({
    error: 'slow_down',
    error_description: 'Wait 10 s between requests',
  });
  expect((await poll(device_code)).body.error_description).toBe('Wait 15 s between requests');
  await wait();
  expect((await poll(device_code)).body.error).toBe('authorization_pending');
  await app.pool.query('update device_requests set expires_at = now()');
  expect((await poll(device_code)).body.error).toBe('expired_token');
  expect((await open(adas, user_code)).status).toBe(404);
  expect((await respond(adas, user_code, 'approve')).status).toBe(404);
});

test('the page, the token and the audit log name the device of the program', async () => {
  const device_name = 'build <7>';
  const { user_code, device_code } = await begin({ device_name });
  const name = `tool on ${device_name}`;
  const { text } = await open(adas, user_code);
  expect(text).toContain('not verified: <b>tool on build &lt;7&gt;</b>');
  expect(text).toContain('Approve only if you have just started this program yourself');
  const { text: result } = await respond(adas, user_code, 'approve');
  expect(result).toContain('<b>tool on build &lt;7&gt;</b> will be signed in as you');
  expect((await poll(device_code)).status).toBe(200);
  const { viewer } = await ada.gql(
    `{ viewer {
      accessTokens(first: 1) { nodes { name } }
      namespace { auditLog(first: 1, action: DEVICE_APPROVE) { nodes { name details } } }
    } }`,
  );
  expect(viewer.accessTokens.nodes).toEqual([{ name: `${name} ${user_code}` }]);
  const details = { program: 'tool', device: device_name, scopes: [], days: 30 };
  expect(viewer.namespace.auditLog.nodes).toEqual([
    { name: `${name} ${user_code}`, details: { ...details, address: '127.0.0.1' } },
  ]);
  const longest = await begin({ device_name: 'x'.repeat(72) });
  expect(longest.user_code).toBeDefined();
});

test('requests survive a restart of the server', async () => {
  const { user_code, device_code } = await begin();
  await app.restart();
  await respond(adas, user_code, 'approve');
  await app.restart();
  expect((await poll(device_code)).body.access_token).toMatch(/^loam_pat_/);
});

test('of two concurrent requests for the token one gets it', async () => {
  const { user_code, device_code } = await begin();
  await respond(adas, user_code, 'approve');
  const answers = await Promise.all(Array.from({ length: 5 }, () => poll(device_code)));
  expect(answers.map(({ status }) => status).toSorted()).toEqual([200, 400, 400, 400, 400]);
  const { rowCount } = await app.pool.query('select from access_tokens where name = $1', [
    `tool ${user_code}`,
  ]);
  expect(rowCount).toBe(1);
});

test('invalid requests are refused in the form of RFC 6749', async () => {
  const code = '/login/device/code';
  for (const [path, fields, error] of [
    [code, {}, 'invalid_request'],
    [code, { client_id: 'a/b' }, 'invalid_request'],
    [code, { client_id: 'a\0' }, 'invalid_request'],
    [code, { client_id: 'x'.repeat(81) }, 'invalid_request'],
    [code, { client_id: 'x', device_name: 'a\u202eb' }, 'invalid_request'],
    [code, { client_id: 'x', device_name: 'a\nb' }, 'invalid_request'],
    [code, { client_id: 'x', device_name: 'a/b' }, 'invalid_request'],
    [code, { client_id: 'x'.repeat(40), device_name: 'x'.repeat(37) }, 'invalid_request'],
    [code, { client_id: 'x', scope: 'repo:read everything' }, 'invalid_scope'],
    [code, { client_id: 'x', expires_in_days: '366' }, 'invalid_request'],
    [code, { client_id: 'x', expires_in_days: '1.5' }, 'invalid_request'],
    ['/login/device/token', {}, 'unsupported_grant_type'],
    ['/login/device/token', { grant_type: 'password' }, 'unsupported_grant_type'],
    ['/login/device/token', { grant_type: GRANT }, 'invalid_grant'],
    [
      '/login/device/token',
      { grant_type: GRANT, device_code: 'x', client_id: 'tool' },
      'invalid_grant',
    ],
  ] as [string, Record<string, string>, string][]) {
    const { status, body } = await form(path, fields);
    expect([status, body.error], JSON.stringify(fields).slice(0, 99)).toEqual([400, error]);
  }
  expect((await app.anonymous.post(code, { client_id: 'x' })).body.error).toBe('invalid_request');
  const { device_code } = await begin();
  expect((await poll(device_code, { client_id: 'other' })).body.error).toBe('invalid_grant');
  expect((await app.anonymous.get(code)).status).toBe(405);
});

test('only a signed-in user can see and answer a request, from a page of the server', async () => {
  const { user_code, device_code } = await begin();
  const led = await open('', user_code);
  expect([led.status, led.headers.get('location')]).toEqual([
    303,
    `/login?to=${encodeURIComponent(`/login/device?user_code=${user_code}`)}`,
  ]);
  expect((await respond('', user_code, 'approve')).status).toBe(401);
  for (const headers of [
    { origin: 'https://evil.example' },
    { origin: 'null' },
    { 'sec-fetch-site': 'cross-site' },
    { 'sec-fetch-site': 'same-site' },
  ])
    expect((await respond(adas, user_code, 'approve', headers)).status).toBe(403);
  // A GET request approves nothing.
  const opened = await app.anonymous.get(`/login/device?user_code=${user_code}&answer=approve`, {
    cookie: adas,
  });
  expect(opened.status).toBe(200);
  expect((await poll(device_code)).body.error).toBe('authorization_pending');
  // A limited credential cannot approve.
  const { token } = await ada.withToken({ scopes: ['REPO_READ'] });
  const limited = await form(
    '/login/device',
    { user_code, answer: 'approve' },
    {
      origin: app.base,
      authorization: `Bearer ${token}`,
    },
  );
  expect(limited.status).toBe(403);
});

test('codes cannot be guessed, because after ten wrong codes a correct code is rejected too', async () => {
  const { user_code } = await begin();
  for (let i = 0; i < 10; i++) {
    const page = await open(eves, `BBBB-BBB${'BCDFGHJKLM'[i]}`);
    expect(page.status).toBe(404);
    expect(page.text).toContain('name="user_code"');
  }
  for (const code of [user_code, 'CCCC-CCCC']) {
    const page = await open(eves, code);
    expect([page.status, page.text.includes('Too many wrong codes')]).toEqual([429, true]);
    expect((await respond(eves, code, 'approve')).status).toBe(429);
  }
  // Other users are not affected, and the limit ends.
  expect((await open(adas, user_code)).status).toBe(200);
  await app.pool.query(`update device_guesses set since = since - interval '15 min'`);
  expect((await open(eves, user_code)).status).toBe(200);
});

test('concurrent wrong codes count too', async () => {
  const codes = Array.from({ length: 60 }, (_, i) => {
    const [a, b] = [Math.floor(i / 10), i % 10].map((n) => 'BCDFGHJKLM'[n]);
    return `BBBB-BB${a}${b}`;
  });
  const pages = await Promise.all(codes.map((code) => open(eves, code)));
  const statuses = pages.map(({ status }) => status);
  expect(statuses.filter((status) => status === 404)).toHaveLength(10);
  expect(statuses.filter((status) => status === 429)).toHaveLength(50);
});

test('a correct code does not count as a wrong one', async () => {
  const { user_code } = await begin();
  for (let i = 0; i < 12; i++) expect((await open(adas, user_code)).status).toBe(200);
  for (let i = 0; i < 10; i++) expect((await open(adas, 'BBBB-BBBB')).status).toBe(404);
  expect((await open(adas, user_code)).status).toBe(429);
});

test('too many requests from one address are answered with slow_down', async () => {
  const answers = [];
  for (let i = 0; i < 31; i++) answers.push(await begin());
  expect(answers.filter((one) => one.device_code)).toHaveLength(30);
  expect(answers.at(-1)?.error).toBe('slow_down');
});

test('concurrent requests from one address are limited too', async () => {
  const answers = await Promise.all(Array.from({ length: 60 }, () => begin()));
  expect(answers.filter((one) => one.device_code)).toHaveLength(30);
  expect(answers.filter((one) => one.error === 'slow_down')).toHaveLength(30);
});

test('the names of a program and its device are escaped, and codes are not stored', async () => {
  const client_id = '<img src=x onerror=alert(1)>"\'&';
  const device_name = '<script>alert(2)<';
  const { user_code, device_code } = await begin({ client_id, device_name });
  const { text } = await open(adas, user_code);
  expect(text).not.toContain('<img src=x');
  expect(text).not.toContain('<script');
  expect(text).toContain('&lt;img src=x onerror=alert(1)&gt;&quot;&#39;&amp;');
  const { text: said } = await respond(adas, user_code, 'approve');
  expect(said).not.toContain('<img src=x');
  expect(said).not.toContain('<script');
  const { rows } = await app.pool.query(
    'select row_to_json(d)::text as row from device_requests d',
  );
  for (const secret of [device_code, user_code.replace('-', '')])
    expect(rows[0].row).not.toContain(secret);
  const evil = await open(adas, '"><script>alert(1)</script>');
  expect(evil.text).not.toContain('<script>');
});

test('the example in the documentation works', async (ctx) => {
  needs(ctx, 'curl', 'jq');
  const page = await readFile(join(import.meta.dirname, '../../docs/identity.md'), 'utf8');
  const [, example = ''] = /```sh\n(ask=.*?)```/s.exec(page) ?? [];
  // The program waits for its user.
  const script = `sleep() { command sleep 0.1; }\n${example}\necho "token: $token"`;
  const shell = spawn('bash', ['--norc', '-eu', '-c', script], {
    env: { PATH: process.env.PATH, LOAM: app.base },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [line] = await once(shell.stdout, 'data');
  const [, code = ''] = /^Open \S+\/login\/device and type (\S+)\n$/.exec(`${line}`) ?? [];
  const output = readText(shell.stdout);
  const asked = () => app.pool.query('select from device_requests where polled_at is not null');
  // The program polls at least once before the approval.
  await expect.poll(async () => (await asked()).rowCount).toBe(1);
  expect((await respond(adas, code, 'approve')).status).toBe(200);
  expect(await output).toMatch(/^token: loam_pat_\w{46}\n$/);
});
