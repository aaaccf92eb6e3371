/** Browser sessions: sign-in with a token and with a single-use link, what the cookie allows, and what ends a session. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { maintenanceTasks } from '../../src/maintenance.ts';
import { eventually } from '../support/eventually.ts';
import { type Answer, type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';

let app: TestApp;
let ada: Client;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
});
afterAll(() => app[Symbol.asyncDispose]());

/** Headers of a request from a page of the server. */
const here = () => ({ origin: app.base, accept: 'text/html' });

function send(
  path: string,
  form: Record<string, string>,
  headers: Record<string, string> = here(),
): Promise<Answer> {
  return app.anonymous.request('POST', path, { headers, body: new URLSearchParams(form) });
}

/** The cookie that a response sets, in the form that a browser sends. */
function cookieOf({ headers }: Answer): string {
  return headers.getSetCookie()[0]?.split(';')[0] ?? '';
}

async function signIn(token = ada.token): Promise<string> {
  const answer = await send('/login', { token });
  expect([answer.status, answer.headers.get('location')]).toEqual([303, '/']);
  return cookieOf(answer);
}

/** The username that a query with the cookie sees; null when not signed in. */
async function whoIs(cookie: string, headers: Record<string, string> = {}): Promise<string | null> {
  const query = '{ viewer { username } }';
  const { body } = await app.anonymous.post(
    '/graphql',
    { query },
    { 'sec-fetch-site': 'same-origin', cookie, ...headers },
  );
  return body.data.viewer?.username ?? null;
}

function by(cookie: string) {
  return async (query: string, variables: object = {}) => {
    const headers = { 'sec-fetch-site': 'same-origin', cookie };
    const { body } = await app.anonymous.post('/graphql', { query, variables }, headers);
    expect(body.errors).toBeUndefined();
    return body.data;
  };
}

const linkFor = async (username: string): Promise<string> => {
  const { createSignInLink } = await app.admin.gql(
    `mutation { createSignInLink(input: {username: "${username}"}) { url } }`,
  );
  return createSignInLink.url;
};

const secretOf = (url: string) => new URL(url).searchParams.get('secret') ?? '';

test('a token signs in with a cookie that scripts cannot read and other sites cannot use', async () => {
  const page = await app.anonymous.get('/login', { accept: 'text/html' });
  expect(page.status).toBe(200);
  expect(page.text).toContain('<form method="post" action="/login">');
  expect(page.headers.get('content-security-policy')).toContain("frame-ancestors 'none'");
  expect(page.headers.get('cache-control')).toBe('no-store');

  const answer = await send('/login?to=/graphql?x=1', { token: ` ${ada.token}\n` });
  expect([answer.status, answer.headers.get('location')]).toEqual([303, '/graphql?x=1']);
  expect(answer.headers.getSetCookie()).toEqual([
    expect.stringMatching(
      /^loam-session=[0-9A-Za-z]{40}; Max-Age=2592000; Path=\/; Expires=[^;]+; HttpOnly; SameSite=Lax$/,
    ),
  ]);
  const cookie = cookieOf(answer);
  expect(await whoIs(cookie)).toBe('ada');
  const home = await app.anonymous.get('/', { accept: 'text/html', cookie });
  expect(home.text).toContain('"viewer":{"username":"ada","operator":false}');
  expect(home.headers.get('cache-control')).toBe('no-store');
  const again = await app.anonymous.get('/login?to=/docs', { accept: 'text/html', cookie });
  expect([again.status, again.headers.get('location')]).toEqual([303, '/docs']);
});

test('the cookie is accepted only from pages of the server', async () => {
  const cookie = await signIn();
  for (const site of ['cross-site', 'same-site', 'none'])
    expect(await whoIs(cookie, { 'sec-fetch-site': site }), site).toBeNull();
  // Browsers without that header, or over plain HTTP.
  const old = async (headers: Record<string, string>) => {
    const { body } = await app.anonymous.post(
      '/graphql',
      { query: '{ viewer { username } }' },
      { cookie, ...headers },
    );
    return body.data.viewer?.username ?? null;
  };
  expect(await old({ origin: app.base })).toBe('ada');
  for (const headers of [{}, { origin: 'null' }, { origin: 'https://evil.example' }])
    expect(await old(headers as Record<string, string>), JSON.stringify(headers)).toBeNull();

  // A GET over plain HTTP does not name its origin. Pages of the server send an own header, which other sites cannot.
  const stream = (headers: Record<string, string>) =>
    app.anonymous.request('PUT', '/graphql/stream', { headers: { cookie, ...headers } });
  const token = (await stream({ origin: app.base })).text;
  const open = (headers: Record<string, string>) =>
    app.anonymous.request('GET', `/graphql/stream?operationId=none&token=${token}`, {
      headers: { cookie, ...headers },
    });
  expect((await open({})).status).toBe(404);
  expect((await open({ 'loam-page': '1' })).status).not.toBe(404);
  const preflight = await app.anonymous.request('OPTIONS', '/graphql/stream', {
    headers: {
      origin: 'https://evil.example',
      'access-control-request-method': 'GET',
      'access-control-request-headers': 'loam-page',
    },
  });
  expect(preflight.headers.get('access-control-allow-headers')).not.toMatch(/loam|\*/i);

  // A form and a link of another site cannot run a query as ada.
  const form = await app.anonymous.request('POST', '/graphql', {
    headers: { cookie, origin: 'https://evil.example', accept: 'application/json' },
    body: new URLSearchParams({ query: 'mutation { deleteSessions(input: {}) { ids } }' }),
  });
  expect(form.text).not.toContain('ses_');
  const link = await app.anonymous.get(
    `/graphql?query=${encodeURIComponent('{ viewer { username } }')}`,
    {
      cookie,
      'sec-fetch-site': 'cross-site',
      'sec-fetch-mode': 'navigate',
      'sec-fetch-dest': 'document',
    },
  );
  expect(link.text).not.toContain('ada');
  expect(await whoIs(cookie)).toBe('ada');

  // REST and git accept no sessions.
  const { body } = await ada.post('/auth/v1/repository/ada', {
    name: 'hidden',
    visibility: 'private',
  });
  const same = { cookie, 'sec-fetch-site': 'same-origin' };
  expect((await app.anonymous.get('/auth/v1/whoami', same)).status).toBe(401);
  expect((await app.anonymous.get(`/auth/v1/repository/ada/${body.id}`, same)).status).toBe(401);
  const refs = '/ada/hidden.git/info/refs?service=git-upload-pack';
  expect((await app.anonymous.get(refs, same)).status).toBe(401);
});

test('a cookie with an invalid secret does not sign in', async () => {
  const cookie = await signIn();
  const secret = cookie.slice('loam-session='.length);
  const { rows } = await app.pool.query('select * from browser_sessions order by id desc limit 1');
  const kept = Object.values(rows[0])
    .map((value) => (Buffer.isBuffer(value) ? value.toString('hex') : value))
    .filter((value) => typeof value === 'string');
  for (const forged of [
    ...['', 'x', '0'.repeat(40), `${secret}x`, secret.slice(1), `${secret.slice(0, -1)}!`],
    ...[[...secret].reverse().join(''), "'%20or%20'1'='1", '%00', '..', '[object%20Object]'],
    // Values that a reader of the database, or the owner of a token, has.
    ...[...kept, String(ada.token)].map((value) => encodeURIComponent(value)),
  ])
    expect(await whoIs(`loam-session=${forged}`), forged).toBeNull();
  expect(await whoIs(`__Host-loam=${secret}`)).toBeNull();
  expect(await whoIs(cookie)).toBe('ada');

  // Session fixation: a cookie that was planted before sign-in.
  const planted = `loam-session=${'A'.repeat(40)}`;
  const answer = await send('/login', { token: ada.token }, { ...here(), cookie: planted });
  expect(await whoIs(cookieOf(answer))).toBe('ada');
  expect(cookieOf(answer)).not.toBe(planted);
  expect(await whoIs(planted)).toBeNull();
});

test('with a cookie, neither a GET request nor a form of another site changes anything', async () => {
  const cookie = await signIn();
  const other = await signIn();
  const query = 'mutation { deleteSessions(input: {}) { ids } }';
  const links: Record<string, string>[] = [
    { 'sec-fetch-site': 'same-origin', origin: app.base },
    { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'navigate' },
    { 'sec-fetch-site': 'none', 'sec-fetch-mode': 'navigate' },
    {},
  ];
  for (const headers of links)
    for (const path of ['/graphql', '/graphql/stream']) {
      const url = `${path}?query=${encodeURIComponent(query)}`;
      const link = await app.anonymous.get(url, { ...headers, cookie, accept: 'application/json' });
      expect(link.text, `${path} ${JSON.stringify(headers)}`).not.toContain('ses_');
    }
  const upload = new FormData();
  upload.set('operations', JSON.stringify({ query }));
  upload.set('map', '{}');
  const bodies = { form: new URLSearchParams({ query }), upload, text: JSON.stringify({ query }) };
  const sites: Record<string, string>[] = [
    { origin: 'https://evil.example', 'sec-fetch-site': 'cross-site' },
    { origin: 'https://evil.example' },
    { origin: 'null' },
    {},
  ];
  for (const site of sites)
    for (const [kind, body] of Object.entries(bodies)) {
      const headers = { ...site, cookie, accept: 'application/json' };
      const answer = await app.anonymous.request('POST', '/graphql', { headers, body });
      expect(answer.text, `${kind} ${JSON.stringify(site)}`).not.toContain('ses_');
    }
  expect([await whoIs(cookie), await whoIs(other)]).toEqual(['ada', 'ada']);
});

test('a reserved stream cannot be used with the cookie of another user', async () => {
  const cookie = await signIn();
  const others = await signIn((await app.user('mallory')).token ?? '');
  const from = { origin: app.base, 'loam-page': '1' };
  const query = `subscription { jobEvents(namespace: "ada") { id } }`;
  const reserved = await app.anonymous.request('PUT', '/graphql/stream', {
    headers: { ...from, cookie },
  });
  const token = { 'x-graphql-event-stream-token': reserved.text };
  const listen = { accept: 'text/event-stream' };
  // Without an own stream, the request is a single operation, and it has none.
  const opened = await app.anonymous.get('/graphql/stream', {
    ...from,
    ...token,
    ...listen,
    cookie: others,
  });
  expect([opened.status, opened.text.includes('event: next')]).toEqual([400, false]);
  const asked = (as: string) =>
    app.anonymous.post(
      '/graphql/stream',
      { query, extensions: { operationId: '1' } },
      { ...from, ...token, cookie: as },
    );
  expect((await asked(others)).status).toBe(404);
  const ended = await app.anonymous.request('DELETE', '/graphql/stream?operationId=1', {
    headers: { ...from, ...token, cookie: others },
  });
  expect(ended.status).toBe(404);
  expect((await asked(cookie)).status).toBe(202);
  // Streams of REST ignore the cookie.
  const log = await app.anonymous.get('/ada/job/none/logs?stream=true', {
    ...from,
    ...listen,
    cookie,
  });
  expect(log.status).toBe(401);
});

test('a failed sign-in shows the reason on the page, and starts no session', async () => {
  const { body: narrow } = await ada.post('/auth/v1/pat', {
    name: 'narrow',
    scopes: ['repo:read'],
  });
  const count = async () => (await app.pool.query('select from browser_sessions')).rowCount;
  const before = await count();
  for (const [form, status, said] of [
    [{ token: 'loam_pat_wrong' }, 401, 'The credentials are not valid or have expired'],
    [{ token: '' }, 401, 'The credentials are not valid or have expired'],
    [{}, 401, 'The credentials are not valid or have expired'],
    [{ token: narrow.token }, 403, 'This token is limited'],
  ] as const) {
    const answer = await send('/login', form as Record<string, string>);
    expect([answer.status, answer.headers.getSetCookie()], said).toEqual([status, []]);
    expect(answer.text).toContain(said);
    expect(answer.text).toContain('role="alert"');
  }
  for (const headers of [
    { accept: 'text/html' },
    { ...here(), origin: 'https://evil.example' },
    { ...here(), 'sec-fetch-site': 'cross-site' },
  ] as Record<string, string>[]) {
    const answer = await send('/login', { token: ada.token }, headers);
    expect([answer.status, answer.headers.getSetCookie()]).toEqual([403, []]);
  }
  const json = await send(
    '/login',
    { token: 'x' },
    { origin: app.base, accept: 'application/json' },
  );
  expect(json.body.error.code).toBe('authentication_failed');
  expect(await count()).toBe(before);
  const large = await send('/login', { token: 'x'.repeat(2 ** 20) });
  expect([large.status, large.headers.getSetCookie()]).toEqual([400, []]);
  const typed = { ...here(), 'content-type': 'application/json' };
  const typo = await app.anonymous.request('POST', '/login', { headers: typed, body: '{}' });
  expect(typo.status).toBe(400);
  expect((await app.anonymous.request('PUT', '/login')).status).toBe(405);
});

test.each([
  ['//evil.example/x'],
  ['/\\evil.example'],
  ['/.//evil.example'],
  ['/x/..//evil.example'],
  ['/%2e//evil.example'],
  ['https://evil.example'],
  ['javascript:alert(1)'],
  ['/\t/evil.example'],
  ['/x\r\nSet-Cookie: a=b'],
  ['\u2028//evil.example'],
])('%j is no place to go on to', async (to) => {
  const answer = await send(`/login?to=${encodeURIComponent(to)}`, { token: ada.token });
  expect(answer.headers.get('location')).toBe('/');
  const page = await app.anonymous.get(`/login?to=${encodeURIComponent(`"><script>${to}`)}`, {
    accept: 'text/html',
  });
  expect(page.text).not.toContain('<script');
});

test('a sign-in link works once, and opening it does not use it up', async () => {
  const url = await linkFor('ada');
  expect(url).toMatch(new RegExp(`^${app.base}/login/link\\?secret=[0-9A-Za-z]{40}$`));
  const path = url.slice(app.base.length);
  for (let opened = 0; opened < 2; opened++) {
    const page = await app.anonymous.get(path, { accept: 'text/html' });
    expect([page.status, page.headers.get('referrer-policy')]).toEqual([200, 'no-referrer']);
    expect(page.text).toContain('Sign in as ada');
    expect(page.headers.getSetCookie()).toEqual([]);
  }
  const secret = secretOf(url);
  expect((await send('/login/link', { secret }, { accept: 'text/html' })).status).toBe(403);
  const answers = await Promise.all(
    Array.from({ length: 6 }, () => send('/login/link', { secret })),
  );
  expect(answers.map(({ status }) => status).sort()).toEqual([303, 401, 401, 401, 401, 401]);
  const cookies = answers.filter(({ status }) => status === 303).map(cookieOf);
  expect(await whoIs(cookies[0] ?? '')).toBe('ada');
  expect((await app.anonymous.get(path, { accept: 'text/html' })).status).toBe(410);

  const old = secretOf(await linkFor('ada'));
  await app.pool.query('update sign_in_links set expires_at = now()');
  expect((await send('/login/link', { secret: old })).status).toBe(401);
  await expectRefusal(
    ada.graphql('mutation { createSignInLink(input: {username: "admin"}) { url } }'),
    'PERMISSION_DENIED',
  );
});

test('sessions can be listed and ended, and each sign-in starts a new one', async () => {
  await app.pool.query('delete from browser_sessions');
  const first = await signIn();
  const list = `{ viewer { sessions(first: 9) { totalCount nodes {
    id method userAgent address isCurrent createdAt lastUsedAt expiresAt } } } }`;
  const { viewer } = await by(first)(list);
  expect(viewer.sessions).toEqual({
    totalCount: 1,
    nodes: [
      expect.objectContaining({
        method: 'TOKEN',
        address: '127.0.0.1',
        isCurrent: true,
        userAgent: 'node',
      }),
    ],
  });
  const [{ id }] = viewer.sessions.nodes;
  expect((await by(first)(`{ node(id: "${id}") { id } }`)).node).toEqual({ id });
  expect((await app.admin.gql(`{ node(id: "${id}") { id } }`)).node).toBeNull();

  // Signing in again in the same browser replaces the session, so a planted secret is useless.
  const second = cookieOf(await send('/login', { token: ada.token }, { ...here(), cookie: first }));
  expect(second).not.toBe(first);
  expect([await whoIs(first), await whoIs(second)]).toEqual([null, 'ada']);

  const [third, fourth] = [await signIn(), await signIn()];
  const others = await by(third)('mutation { deleteSessions(input: {}) { ids } }');
  expect(others.deleteSessions.ids).toHaveLength(2);
  expect([await whoIs(second), await whoIs(third), await whoIs(fourth)]).toEqual([
    null,
    'ada',
    null,
  ]);
  const fifth = await signIn();
  const { rows } = await app.pool.query('select id from browser_sessions order by id desc limit 1');
  await by(third)(`mutation { deleteSession(input: {id: "${rows[0].id}"}) { id } }`);
  expect(await whoIs(fifth)).toBeNull();
  const ofOther = await app.admin.graphql(
    `mutation { deleteSession(input: {id: "${rows[0].id}"}) { id } }`,
  );
  await expectRefusal(ofOther, 'NOT_FOUND');

  const out = await send('/logout', {}, { ...here(), cookie: third });
  expect([out.status, out.headers.get('location')]).toEqual([303, '/login']);
  expect(cookieOf(out)).toBe('loam-session=');
  expect(await whoIs(third)).toBeNull();
  expect((await app.pool.query('select from browser_sessions')).rowCount).toBe(0);
});

test('a session ends with its token, after a month, and after two weeks without use', async () => {
  const { body } = await ada.post('/auth/v1/pat', { name: 'short', expires_in_days: 2 });
  const cookie = await signIn(body.token);
  const [row] = (await app.pool.query('select * from browser_sessions order by id desc limit 1'))
    .rows;
  expect(row.expires_at - Date.now()).toBeLessThan(2 * 86_400_000 + 5_000);
  await ada.delete('/auth/v1/pat/short');
  expect(await whoIs(cookie)).toBeNull();

  for (const change of ['expires_at = now()', `last_used_at = now() - interval '15 days'`]) {
    const one = await signIn();
    await app.pool.query(`update browser_sessions set ${change}`);
    expect(await whoIs(one), change).toBeNull();
    // The cookie of an ended session does not prevent a new sign-in.
    const page = await app.anonymous.get('/login', { accept: 'text/html', cookie: one });
    expect(page.status).toBe(200);
  }
  await maintenanceTasks(app.app.services)['remove expired sessions']?.();
  expect((await app.pool.query('select from browser_sessions')).rowCount).toBe(0);
});

test('a user has at most fifty sessions: the least recently used one ends', async () => {
  await app.pool.query('delete from browser_sessions');
  const first = await signIn();
  await app.pool.query(`update browser_sessions set last_used_at = now() - interval '1 day'`);
  await app.pool.query(
    `insert into browser_sessions (id, user_id, hash, method, user_agent, expires_at)
     select 'ses_' || n, (select id from users where username = 'ada'), sha256(n::text::bytea), 'token', '', now() + interval '1 day'
     from generate_series(1, 49) n`,
  );
  expect(await whoIs(first)).toBe('ada');
  await app.pool.query(
    `update browser_sessions set last_used_at = now() - interval '1 day' where method = 'token' and user_agent <> ''`,
  );
  await signIn();
  expect(await whoIs(first)).toBeNull();
  expect((await app.pool.query('select from browser_sessions')).rowCount).toBe(50);
});

test('a subscription ends with its session', async () => {
  const cookie = await signIn();
  const answer = await fetch(`${app.base}/graphql`, {
    method: 'POST',
    headers: {
      cookie,
      'sec-fetch-site': 'same-origin',
      'content-type': 'application/json',
      accept: 'text/event-stream',
    },
    body: JSON.stringify({
      query: 'subscription { events(namespaces: ["ada"]) { id } }',
    }),
  });
  expect(answer.status).toBe(200);
  await eventually(() => expect(app.app.services.rechecks.streams).toBe(1));
  await by(cookie)('mutation { deleteSessions(input: {keepCurrent: false}) { ids } }');
  expect(await answer.text()).toContain('The credentials are not valid');
});

test('over https the cookie is bound to its host, and never sent unencrypted', async () => {
  await using secure = await startApp({ config: { baseUrl: 'https://loam.example' } });
  const { headers } = await secure.anonymous.request('POST', `${secure.app.address}/login`, {
    headers: { origin: 'https://loam.example' },
    body: new URLSearchParams({ token: secure.admin.token }),
  });
  expect(headers.getSetCookie()).toEqual([
    expect.stringMatching(/^__Host-loam=[^;]+; .*Path=\/;.*; HttpOnly; Secure; SameSite=Lax$/),
  ]);
});
