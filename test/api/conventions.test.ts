/** The rules that hold for every REST request, whatever the route. */
import { once } from 'node:events';
import { connect } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { openWire } from '../support/fuzz/wire.ts';
import { type Answer, type Client, startApp, type TestApp } from '../support/harness.ts';

const REPOSITORIES = '/auth/v1/repository/alice';

let app: TestApp;
let alice: Client;

beforeAll(async () => {
  app = await startApp();
  alice = await app.user('alice');
});
afterAll(() => app[Symbol.asyncDispose]());

const refused = ({ status, body }: Answer) => [status, body.error.code, body.error.message];

function postBody(body: BodyInit, headers: Record<string, string> = {}) {
  return alice.request('POST', REPOSITORIES, { body, headers });
}

test('a body must be JSON of at most 1 MiB, with the content type of JSON', async () => {
  const json = { 'Content-Type': 'application/json' };
  const needsType = 'A request with a body needs the header Content-Type: application/json';
  const cases: [BodyInit, Record<string, string>, string][] = [
    ['{"name":"a"}', {}, needsType],
    ['name=a', { 'Content-Type': 'application/x-www-form-urlencoded' }, needsType],
    ['{"name":"a"}', { 'Content-Type': 'application/jsonp' }, needsType],
    [
      '{"name": "a",}',
      json,
      'The body is not valid JSON: line 1, column 14: expected a name in double quotes, found "}"',
    ],
    [new Uint8Array([0x22, 0xff, 0x22]), json, 'The body is not valid UTF-8'],
    ['["name"]', json, 'The body must be a JSON object'],
    ['null', json, 'The body must be a JSON object'],
    [
      '{"name":"a"}',
      { 'Content-Type': 'application/json; charset=latin1' },
      'The body must be UTF-8',
    ],
    ['{"name":"a"}', { ...json, 'Content-Encoding': 'gzip' }, 'The body must not be compressed'],
    [' '.repeat(2 ** 20 + 1), json, 'The body is larger than 1 MiB'],
  ];
  for (const [body, headers, message] of cases)
    expect(refused(await postBody(body, headers))).toEqual([400, 'invalid_request', message]);

  const type = { 'Content-Type': 'Application/JSON ; charset="UTF-8"' };
  expect((await postBody('{"name":"typed"}', type)).status).toBe(201);
  const padded = `{"name":"${'x'.repeat(100)}"}`.padEnd(2 ** 20);
  expect((await postBody(padded, json)).status).toBe(201);
});

test('a body without Content-Length is refused as soon as it is too large', async () => {
  const { hostname, port } = new URL(app.base);
  const socket = connect(Number(port), hostname);
  socket.write(
    `POST ${REPOSITORIES} HTTP/1.1\r\nHost: x\r\nAuthorization: ${alice.authorization}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n`,
  );
  let sent = 0;
  const more = () => {
    const chunk = `10000\r\n${' '.repeat(0x10000)}\r\n`;
    do sent += 0x10000;
    while (socket.write(chunk));
  };
  socket.on('drain', more).on('error', () => {});
  more();
  const [answer] = await once(socket, 'data');
  socket.destroy();
  expect(String(answer)).toMatch(/^HTTP\/1\.1 400 Bad Request\r\n/);
  expect(String(answer)).toContain('"message":"The body is larger than 1 MiB"');
  expect(sent).toBeGreaterThan(2 ** 20);
});

test('a body that ends early has no effect', async () => {
  const { hostname, port } = new URL(app.base);
  const socket = connect(Number(port), hostname);
  socket.write(
    `POST ${REPOSITORIES} HTTP/1.1\r\nHost: x\r\nAuthorization: ${alice.authorization}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"na`,
  );
  socket.resume().end();
  await once(socket, 'close');
  expect((await alice.get('/auth/v1/whoami')).status).toBe(200);
});

test('each parameter is read from one location only', async () => {
  const created = await alice.post(`${REPOSITORIES}?name=query&visibility=public`, {
    name: 'body',
  });
  expect(created.body).toMatchObject({ name: 'body', visibility: 'private' });
  const without = await alice.post(`${REPOSITORIES}?name=query`, {});
  expect(refused(without)).toEqual([400, 'invalid_request', 'name: is required']);
  const path = await alice.post(REPOSITORIES, { name: 'other', namespace: 'admin' });
  expect(refused(path)[2]).toBe('Unknown body fields: namespace');
  const polluted = await postBody('{"name":"p","__proto__":{"visibility":"public"}}', {
    'Content-Type': 'application/json',
  });
  expect(refused(polluted)[2]).toBe('Unknown body fields: __proto__');

  const twice = await alice.get(`${REPOSITORIES}?page=1&page=2`);
  expect(refused(twice)[2]).toBe('page: is given more than once');
  const large = await alice.get(`${REPOSITORIES}?page=99999999999`);
  expect(refused(large)[2]).toBe('page: must fit in 32 bits');
  expect((await alice.get(`${REPOSITORIES}?utm_source=mail`)).status).toBe(200);
  expect((await alice.get(`${REPOSITORIES}?x=1&x=2&page=1`)).status).toBe(200);
  expect(refused(await alice.get(`${REPOSITORIES}?page=%zz`))[2]).toContain('percent-encoded');
});

test('half of a surrogate pair is refused in every text', async () => {
  const half = '\ud800';
  const message = (field: string) => `${field}: must not contain half of a surrogate pair`;
  const post = async (path: string, json: object) => {
    const answer = await alice.post(path, json);
    expect(answer.status).toBe(400);
    return answer.body;
  };
  const input = { namespace: 'alice', name: 'half', description: `a${half}b` };
  const { namespace, ...body } = input;
  expect((await post(REPOSITORIES, body)).error.message).toBe(message('description'));
  const job = { name: 'half', command: 'true', image: 'debian', gpu: 'none', env: { A: half } };
  expect((await post('/auth/v1/seed/alice/jobs', job)).error.message).toBe(message('env.A'));
  const token = await post('/auth/v1/pat', { name: half });
  expect(token.error.message).toBe(message('name'));

  const query = `mutation ($input: CreateRepositoryInput!) {
    createRepository(input: $input) { repository { id } } }`;
  const graphql = await post('/graphql', { query, variables: { input } });
  expect(graphql.errors).toMatchObject([
    { message: message('variables.input.description'), extensions: { code: 'INVALID_REQUEST' } },
  ]);
  // A compiled query takes another path through the server.
  const known = 'query ($name: String!) { repository(namespace: "alice", name: $name) { id } }';
  for (let n = 0; n < 3; n++)
    await alice.post('/graphql', { query: known, variables: { name: 'none' } });
  const again = await post('/graphql', { query: known, variables: { name: half } });
  expect(again.errors[0].message).toBe(message('variables.name'));
  const address = (variables: object) =>
    `/graphql?query=${encodeURIComponent(known)}&variables=${encodeURIComponent(JSON.stringify(variables))}`;
  expect((await alice.get(address({ name: half }))).status).toBe(400);

  // Both halves together are one character, with or without escapes.
  const whole = await postBody('{"name": "whole", "description": "\\ud83d\\ude00"}', {
    'Content-Type': 'application/json',
  });
  expect(whole.body).toMatchObject({ description: '😀' });
});

test('everything after tree/, file/ and commits/ is one parameter, including slashes', async () => {
  const { body } = await alice.post(REPOSITORIES, { name: 'deep', gitignore_template: 'Node' });
  const base = `${REPOSITORIES}/${body.id}`;
  for (const root of ['tree', 'tree/', 'tree//', 'tree/%2F'])
    expect((await alice.get(`${base}/${root}`)).status, root).toBe(200);
  for (const path of ['file', 'file/'])
    expect(refused(await alice.get(`${base}/${path}`))[2]).toBe('path: is required');
  expect(refused(await alice.get(`${base}/commits/`))[2]).toBe('revision: is required');
  for (const revision of ['refs/heads/main', 'refs%2Fheads%2Fmain', 'main'])
    expect((await alice.get(`${base}/commits/${revision}`)).status, revision).toBe(200);
  expect((await alice.get(`${base}/file/%2Egitignore`)).body.path).toBe('.gitignore');

  using wire = openWire(app.base);
  const raw = (path: string) =>
    wire.send(alice, { method: 'GET', path: `${base}/${path}`, headers: {} });
  for (const path of ['tree/%zz', 'tree/%ff', 'tree/%00', 'tree/../..', 'tree/a//b'])
    expect((await raw(path)).status, path).toBe(400);
});

test('addresses that people expect lead to the ones that exist', async () => {
  const follow = (path: string) =>
    fetch(`${app.base}${path}`, { headers: { accept: 'text/html' }, redirect: 'manual' });
  for (const [given, target] of [
    ['/health', '/auth/v1/health'],
    ['/ada/model/blob/main/src/a%20b.ts', '/ada/model/file/src/a%20b.ts?ref=main'],
    ['/ada/model/blob/a%26b/%25', '/ada/model/file/%25?ref=a%26b'],
  ] as const) {
    const { status, headers } = await follow(given);
    expect([status, headers.get('location')], given).toEqual([302, target]);
  }
});

test('an unknown path gives 404, and an unsupported method 405 with the allowed methods', async () => {
  for (const path of ['/', '/nowhere', '/auth/v1', '/AUTH/v1/health', '/auth/v1/health/']) {
    const { status, body, headers } = await app.anonymous.get(path);
    const request_id = headers.get('x-request-id');
    expect([status, body.error], path).toEqual([
      404,
      { code: 'not_found', message: expect.any(String), request_id },
    ]);
  }
  const byName = await alice.get(`${REPOSITORIES}/hello`);
  expect(refused(byName)).toEqual([
    404,
    'not_found',
    'Repository not found: give its id (repo_…), not its name',
  ]);
  const wrong = await alice.put(REPOSITORIES, { name: 'x' });
  expect(refused(wrong).slice(0, 2)).toEqual([405, 'invalid_request']);
  expect(wrong.headers.get('allow')).toBe('HEAD, GET, POST, OPTIONS');
  const options = await app.anonymous.request('OPTIONS', REPOSITORIES);
  expect([options.status, options.headers.get('allow')]).toEqual([204, 'HEAD, GET, POST, OPTIONS']);
});

test('paths of git and of downloads give 404 and 405 as well', async () => {
  const cases = [
    ['PUT', '/alice/hello.git/info/refs', 'HEAD, GET, OPTIONS'],
    ['GET', '/alice/hello.git/git-upload-pack', 'POST, OPTIONS'],
    ['POST', '/artifacts/alice/job_x/artifacts.tar.gz', 'HEAD, GET, OPTIONS'],
    ['DELETE', '/artifacts/alice/job_x/files/a/b', 'HEAD, GET, OPTIONS'],
    ['POST', `/repository/repo_x/blobs/${'0'.repeat(40)}/a`, 'HEAD, GET, OPTIONS'],
  ] as const;
  for (const [method, path, allow] of cases)
    for (const [asked, status] of [
      [method, 405],
      ['OPTIONS', 204],
    ] as const) {
      const answer = await alice.request(asked, path);
      expect([path, answer.status, answer.headers.get('allow')]).toEqual([path, status, allow]);
    }
});

test('pages of any origin may call the API', async () => {
  const preflight = await app.anonymous.request('OPTIONS', REPOSITORIES, {
    headers: {
      Origin: 'https://example.com',
      'Access-Control-Request-Method': 'POST',
      'Access-Control-Request-Headers': 'authorization, content-type',
    },
  });
  expect(preflight.status).toBe(204);
  expect(preflight.headers.get('x-ratelimit-remaining')).toMatch(/^\d+$/);
  expect(preflight.headers.get('access-control-allow-methods')).toContain('POST');
  expect(preflight.headers.get('access-control-allow-headers')).toContain('Authorization');
  for (const path of [REPOSITORIES, '/nowhere']) {
    const { headers } = await alice.get(path);
    expect(headers.get('access-control-allow-origin')).toBe('*');
    expect(headers.get('access-control-expose-headers')).toContain('X-RateLimit-Remaining');
    expect(headers.get('access-control-allow-credentials')).toBeNull();
  }
});

test('the ETag depends on the body, and an unchanged read gives 304', async () => {
  const first = await alice.get(REPOSITORIES);
  const etag = first.headers.get('etag') as string;
  expect(first.headers.get('cache-control')).toBe('private, no-cache');
  for (const given of [etag, etag.replace('W/', ''), `"other", ${etag}`, '*'])
    expect((await alice.get(REPOSITORIES, { 'If-None-Match': given })).status, given).toBe(304);
  await alice.post(REPOSITORIES, { name: 'changes-the-list' });
  const changed = await alice.get(REPOSITORIES, { 'If-None-Match': etag });
  expect(changed.status).toBe(200);
  expect(changed.headers.get('etag')).not.toBe(etag);
});

test('HEAD of a stream ends at once', async () => {
  await using other = await startApp();
  const { admin } = other;
  await admin.post('/auth/v1/repository/admin', { name: 'work' });
  const job = { name: 'long', command: 'sleep 60', repo: 'admin/work', gpu: 'none' };
  expect((await admin.post('/auth/v1/seed/admin/jobs', job)).status).toBe(201);
  await eventually(async () =>
    expect((await admin.get('/admin/job/long')).body.status).toBe('running'),
  );
  const head = await admin.request('HEAD', '/admin/job/long/logs?stream=true');
  expect([head.status, head.headers.get('content-type')]).toEqual([
    200,
    'text/event-stream; charset=utf-8',
  ]);
});

test('a page of a list links to the other pages', async () => {
  const carol = await app.user('carol');
  const path = '/auth/v1/repository/carol';
  expect((await carol.get(path)).headers.get('link')).toBeNull();
  for (const name of ['a', 'b', 'c']) await carol.post(path, { name });
  const links = async (query: string) => {
    const { headers } = await carol.get(path + query);
    const found = (headers.get('link') ?? '').matchAll(/<([^>]+)>; rel="(\w+)"/g);
    return Object.fromEntries([...found].map(([, url, rel]) => [rel, url?.replace(app.base, '')]));
  };
  const page = (n: number) => `${path}?per_page=1&sort=name&page=${n}`;
  expect(await links('?per_page=1&sort=name')).toEqual({
    first: page(1),
    next: page(2),
    last: page(3),
  });
  expect(await links('?per_page=1&sort=name&page=2')).toEqual({
    first: page(1),
    prev: page(1),
    next: page(3),
    last: page(3),
  });
  const past = await carol.get(`${path}?per_page=1&page=9`);
  expect([past.status, past.body.data, past.body.pagination.total]).toEqual([200, [], 3]);
  expect(await links('?per_page=1&sort=name&page=9')).toMatchObject({ prev: page(3) });
});

test('invalid credentials give 401 even on public routes', async () => {
  for (const authorization of ['Bearer loam_pat_none', 'API-Key a$b', 'Negotiate x'])
    for (const path of [REPOSITORIES, '/auth/v1/whoami']) {
      const answer = await app.client(authorization).get(path);
      expect(refused(answer).slice(0, 2)).toEqual([401, 'authentication_failed']);
      expect(answer.headers.get('www-authenticate')).toMatch(/^Bearer.*API-Key/);
    }
});

test('a malformed Authorization header gets an explanation that does not repeat its value', async () => {
  const token = alice.token;
  const bearer = 'send "Bearer <token>"; the word Bearer is missing';
  const key = '<name>$<secret> must follow "API-Key"; for a token send "Bearer <token>"';
  const cases: [string, string][] = [
    [token, bearer],
    ['something', bearer],
    ['ci$secret', 'send "API-Key <name>$<secret>"; the word API-Key is missing'],
    ['Bearer', 'a token, and nothing else, must follow "Bearer"'],
    [`Bearer ${token} x`, 'a token, and nothing else, must follow "Bearer"'],
    [`API-Key ${token}`, key],
    ['API-Key a b$c', key],
    ['Basic bm9ib2R5', '<user>:<password> in base64 must follow "Basic"'],
    [`Token ${token}`, 'must begin with Bearer or API-Key (or Basic, for git)'],
  ];
  for (const [authorization, problem] of cases) {
    const answer = await app.client(authorization).get('/auth/v1/whoami');
    expect(refused(answer)).toEqual([401, 'authentication_failed', `Authorization: ${problem}`]);
  }
  for (const authorization of [`bearer   ${token}`, `BEARER\t${token} `])
    expect((await app.client(authorization).get('/auth/v1/whoami')).status).toBe(200);
});

test('the response to a server error has no details', async () => {
  await using broken = await startApp();
  const { pool } = broken.app.services;
  await pool.query('alter table repositories rename to elsewhere');
  const answer = await broken.admin.get('/auth/v1/repository/admin');
  expect(answer.status).toBe(500);
  expect(answer.body.error).toEqual({
    code: 'internal_error',
    message: expect.not.stringMatching(/elsewhere|repositories|select|at /i),
    request_id: answer.headers.get('x-request-id'),
  });
});

test('without its database the service reports that it is degraded', async () => {
  await using broken = await startApp();
  expect((await broken.anonymous.get('/auth/v1/health')).status).toBe(200);
  const { pool } = broken.app.services;
  // Waits until no connection is in use: a user of one that needs another would deadlock with this test.
  await eventually(async () => expect(pool.idleCount).toBe(pool.totalCount));
  const held = await Promise.all(Array.from({ length: pool.options.max }, () => pool.connect()));
  const { status, body } = await broken.anonymous.get('/auth/v1/health');
  for (const client of held) client.release();
  expect([status, body]).toEqual([503, { status: 'degraded' }]);
});
