import { hash } from 'node:crypto';
import { constants } from 'node:os';
import { pino } from 'pino';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startApp, type TestApp } from '../support/harness.ts';

let app: TestApp;
beforeAll(async () => {
  app = await startApp();
});
afterAll(() => app[Symbol.asyncDispose]());

test('health, readiness and version', async () => {
  expect((await app.anonymous.get('/livez')).text).toBe('ok');
  expect((await app.anonymous.get('/readyz')).text).toBe('ok');
  const { data } = await app.anonymous.graphql('{ health { status } version { version build } }');
  expect(data).toEqual({
    health: { status: 'ok' },
    version: { version: 'v1', build: expect.any(String) },
  });
});

test('a valid request id is kept, and an invalid one is replaced', async () => {
  const kept = await app.anonymous.get('/nowhere', { 'X-Request-Id': 'abc-1' });
  expect(kept.headers.get('x-request-id')).toBe('abc-1');
  expect(kept.body.error).toMatchObject({ code: 'not_found', request_id: 'abc-1' });
  const made = await app.anonymous.get('/nowhere', { 'X-Request-Id': 'not sane' });
  expect(made.headers.get('x-request-id')).toMatch(/^[0-9a-f-]{36}$/);
});

test('a fault during authentication is logged with its reason and request id', async () => {
  const logged: string[] = [];
  const log = pino({ level: 'error' }, { write: (line: string) => void logged.push(line) });
  await using app = await startApp({ overrides: { log } });
  await app.pool.query('alter table access_tokens rename to absent');
  const { status, body } = await app.admin.get('/auth/v1/admin/jobs');
  await app.pool.query('alter table absent rename to access_tokens');
  expect([status, body.error.code]).toEqual([500, 'internal_error']);
  const lines = logged.filter((line) => line.includes(body.error.request_id));
  expect(lines.join()).toContain('relation \\"access_tokens\\" does not exist');
});

test('a browser gets a page at /, and other clients get a 404 as JSON', async () => {
  const accept = 'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8';
  const page = await app.anonymous.get('/', { Accept: accept });
  expect([page.status, page.headers.get('content-type')]).toEqual([
    200,
    'text/html; charset=utf-8',
  ]);
  // One primary action, and no commands for operators.
  for (const { text } of [page, await app.anonymous.get('/login', { Accept: accept })]) {
    expect(text.match(/class="(button )?primary"/g)).toHaveLength(1);
    expect(text).not.toMatch(/npm run|curl/);
  }

  // The policy allows only its own style, and all addresses in the page exist.
  const [, style = ''] = /<style>(.*?)<\/style>/s.exec(page.text) ?? [];
  const policy = page.headers.get('content-security-policy');
  expect(policy).toContain("default-src 'none'");
  expect(policy).toContain(`'sha256-${hash('sha256', style, 'base64')}'`);
  const named = [...page.text.matchAll(/(?:src|href)="([^"]+)"/g)].map(
    ([, path]) => path as string,
  );
  expect(named).toContain('/docs');
  for (const path of [...named, '/favicon.ico']) {
    expect(path).toMatch(/^\/[a-z]/);
    expect((await app.anonymous.get(path, { Accept: accept })).status, path).toBe(200);
  }
  expect((await app.anonymous.get('/favicon.ico')).headers.get('content-type')).toContain('svg');

  for (const other of ['*/*', 'application/json']) {
    const { status, body, headers } = await app.anonymous.get('/', { Accept: other });
    expect([status, body.error.code, headers.get('vary')]).toEqual([404, 'not_found', 'Accept']);
  }
});

test('a path gives a page to clients that prefer HTML, and JSON to all others', async () => {
  const navigates = 'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8';
  for (const path of ['/admin', '/admin/jobs', '/admin/job/none', '/settings/tokens', '/x/y/z']) {
    const page = await app.anonymous.get(path, { accept: navigates });
    expect([page.status, page.headers.get('content-type')], path).toEqual([
      200,
      'text/html; charset=utf-8',
    ]);
    expect(page.text).toContain('<div id="root">');
    for (const accept of ['*/*', 'application/json', 'application/json, text/html'])
      expect((await app.admin.get(path, { accept })).headers.get('content-type')).toMatch(/json/);
  }
  // Paths that are not pages do not depend on the client.
  for (const [path, status] of [
    ['/auth/v1/whoami', 401],
    ['/openapi.json', 200],
    ['/assets/none.js', 404],
    ['/artifacts/admin/job_x/log.txt', 404],
    ['/livez', 200],
  ] as const) {
    const answer = await app.anonymous.get(path, { accept: navigates });
    expect(answer.text, path).not.toContain('id="root"');
    expect(answer.status, path).toBe(status);
  }
  const [, script = ''] =
    /src="(\/assets\/[^"]+\.js)"/.exec(
      (await app.anonymous.get('/x', { accept: navigates })).text,
    ) ?? [];
  const file = await app.anonymous.get(script, { 'accept-encoding': 'br' });
  expect(file.headers.get('cache-control')).toBe('public,max-age=31536000,immutable');
  expect(file.headers.get('content-encoding')).toBe('br');
});

test('a request with an Authorization header gets JSON, whatever it accepts', async () => {
  const wrong = { authorization: 'Bearer wrong' };
  // HTTP clients of Java send the second one by default.
  for (const accept of ['text/html', 'text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2']) {
    for (const [path, status] of [
      ['/', 404],
      ['/admin/jobs', 200],
      ['/admin/job/none', 404],
      ['/admin/job/none/logs', 404],
      ['/admin/job/none/analytics', 404],
      ['/nobody/jobs', 404],
      ['/nobody/job/none', 404],
    ] as const) {
      const answer = await app.admin.get(path, { accept });
      expect([answer.status, answer.headers.get('content-type')], path).toEqual([
        status,
        'application/json; charset=utf-8',
      ]);
      expect(answer.headers.has('x-ratelimit-limit'), path).toBe(true);
      expect((await app.anonymous.get(path, { accept, ...wrong })).status, path).toBe(401);
    }
    const query = encodeURIComponent('{ version { build } }');
    const graphql = await app.admin.get(`/graphql?query=${query}`, { accept });
    expect(graphql.headers.get('content-type')).toMatch(/json/);
  }
});

test('a connection that cannot be accepted does not end the server', async () => {
  const { _handle: listening } = app.app.server as unknown as {
    _handle: { onconnection(error: number): void };
  };
  // The error of libuv when all file descriptors are in use, including the one that it keeps in reserve.
  for (let times = 0; times < 3; times++) listening.onconnection(-constants.errno.EMFILE);
  expect((await fetch(`${app.base}/livez`)).status).toBe(200);
});
