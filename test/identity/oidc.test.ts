/** Signing in with an identity provider (OpenID Connect), and its access tokens as credentials. */
import { hash } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readConfig } from '../../src/base/config/config.ts';
import { authenticate, demandValidAccount, readAccounts } from '../../src/identity/authenticate.ts';
import { demandAccount } from '../../src/identity/permissions.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { Browser, CLIENT, startIssuer, type TestIssuer } from '../support/oidc-issuer.ts';

const AUDIENCE = 'https://loam.example/api';
/** Claims of Ada's access token. */
const ADA = { sub: 'ada', aud: AUDIENCE, email: 'ada@acme.com', email_verified: true };
let issuer: TestIssuer;
let app: TestApp;

const configured = (more: Record<string, string> = {}) =>
  readConfig({
    LOAM_OIDC_ISSUER: issuer.address,
    LOAM_OIDC_CLIENT_ID: CLIENT.client_id,
    LOAM_OIDC_CLIENT_SECRET: CLIENT.client_secret,
    LOAM_OIDC_LABEL: 'Acme <b>',
    LOAM_OIDC_AUDIENCE: AUDIENCE,
    LOAM_OIDC_DOMAINS: 'acme.com',
    LOAM_OIDC_OPERATORS: 'ops',
    ...more,
  }).issuers;

beforeAll(async () => {
  issuer = await startIssuer();
  app = await startApp({ config: { issuers: configured() } });
  await issuer.serve(`${app.base}/login/oidc/callback`);
  issuer.people = {
    ada: { email: 'Ada@acme.com', email_verified: true, preferred_username: 'Ada Lovelace' },
  };
});
afterAll(async () => {
  await app[Symbol.asyncDispose]();
  await issuer[Symbol.asyncDispose]();
});

/** Signs a person in with a new browser. */
async function signIn(person: string, to = '/graphql') {
  issuer.person = person;
  const browser = new Browser();
  const isBack = (url: string) => url === `${app.base}${to}`;
  const place = `${app.base}/login/oidc?to=${encodeURIComponent(to)}`;
  const end = await browser.open(place, isBack);
  return { browser, ...end };
}

async function whoIs(browser: Browser): Promise<{ username: string; operator: boolean } | null> {
  const cookie = [...browser.cookies(app.base)].map((pair) => pair.join('=')).join('; ');
  const headers = { cookie, 'sec-fetch-site': 'same-origin' };
  const query = '{ viewer { username operator } }';
  return (await app.anonymous.post('/graphql', { query }, headers)).body.data.viewer;
}

const count = async (table: string) => (await app.pool.query(`select from ${table}`)).rowCount;

test('the first sign-in creates the user, and later sign-ins find the user', async () => {
  const page = await app.anonymous.get('/login?to=/docs', { accept: 'text/html' });
  expect(page.text).toMatch(
    /<a [^>]*href="\/login\/oidc\?to=%2Fdocs">Sign in with Acme &lt;b&gt;<\/a>/,
  );

  const first = await signIn('ada', '/docs?x=1');
  expect(first.url).toBe(`${app.base}/docs?x=1`);
  expect(await whoIs(first.browser)).toEqual({ username: 'ada-lovelace', operator: false });
  const { rows } = await app.pool.query(
    `select u.email, i.issuer, i.subject, s.method, s.expires_at - now() < interval '8 days' as short
     from users u join identities i on i.user_id = u.id join browser_sessions s on s.user_id = u.id`,
  );
  expect(rows).toEqual([
    { email: 'ada@acme.com', issuer: issuer.address, subject: 'ada', method: 'oidc', short: true },
  ]);
  expect((await app.admin.get('/auth/v1/repository/ada-lovelace')).status).toBe(200);

  // With another name and another address it is the same user.
  issuer.people.ada = { email: 'ada2@acme.com', email_verified: true, groups: ['ops'] };
  const second = await signIn('ada');
  expect(await whoIs(second.browser)).toEqual({ username: 'ada-lovelace', operator: true });
  issuer.people.ada = { email: 'ada2@acme.com', email_verified: true, groups: [] };
  await signIn('ada');
  expect(await whoIs(second.browser)).toEqual({ username: 'ada-lovelace', operator: false });
  expect(await count('identities')).toBe(1);
});

test('usernames are made valid and unique', async () => {
  const names: Record<string, string> = {
    admin: 'admin-2',
    'Ada Lovelace': 'ada-lovelace-2',
    'Élan--Vital!': 'e-lan-vital',
    '***': 'user-2',
    [`${'x'.repeat(60)}`]: 'x'.repeat(36),
  };
  for (const [wanted, made] of Object.entries(names)) {
    const subject = crypto.randomUUID();
    issuer.people[subject] = {
      email: `${subject}@acme.com`,
      email_verified: true,
      preferred_username: wanted,
    };
    const { browser } = await signIn(subject);
    expect((await whoIs(browser))?.username, wanted).toBe(made);
  }
});

test('a refused sign-in gives the reason, and creates no user', async () => {
  await app.user('taken');
  await app.pool.query(`update users set email = 'taken@acme.com' where username = 'taken'`);
  const before = [await count('users'), await count('browser_sessions')];
  const refused: [string, object, string][] = [
    [
      'far',
      { email: 'far@evil.example', email_verified: true },
      'not in a domain that may sign in',
    ],
    ['sub', { email: 'x@sub.acme.com', email_verified: true }, 'not in a domain that may sign in'],
    ['odd', { email: 'x@acme.com', email_verified: false }, 'has not verified'],
    ['none', {}, 'not in a domain that may sign in'],
    [
      'again',
      { email: 'taken@acme.com', email_verified: true },
      'Another user of this server has the email address',
    ],
  ];
  for (const [person, claims, said] of refused) {
    issuer.people[person] = claims;
    const { text, browser } = await signIn(person);
    expect(text, person).toContain(said);
    expect(text, person).toContain('role="alert"');
    expect(await whoIs(browser)).toBeNull();
  }
  expect([await count('users'), await count('browser_sessions')]).toEqual(before);
});

test('a callback works once, and only in the browser that started', async () => {
  issuer.person = 'ada';
  const isCallback = (url: string) => url.startsWith(`${app.base}/login/oidc/callback`);
  const browser = new Browser();
  const begin = () => browser.open(`${app.base}/login/oidc`, isCallback);
  const { url } = await begin();
  const before = await count('browser_sessions');

  // Another browser, without an attempt or with its own: an attacker sent the URL to sign the victim in as the attacker.
  const other = new Browser();
  expect((await other.open(url)).status).toBe(401);
  issuer.person = 'someone';
  issuer.people.someone = { email: 's@acme.com', email_verified: true };
  await other.open(`${app.base}/login/oidc`, isCallback);
  expect((await other.open(url)).status).toBe(401);

  // A callback with another state, another issuer, or an error.
  for (const change of [
    (to: URL) => to.searchParams.set('state', 'x'),
    (to: URL) => to.searchParams.set('iss', 'https://evil.example'),
    (to: URL) => to.searchParams.delete('code'),
    (to: URL) => to.searchParams.set('error', 'access_denied'),
    (to: URL) => to.searchParams.append('code', 'x'),
  ]) {
    issuer.person = 'ada';
    const changed = new URL((await begin()).url);
    change(changed);
    const answer = await browser.open(changed.href);
    expect([answer.status, answer.text.includes('role="alert"')], changed.href).toEqual([
      401,
      true,
    ]);
  }
  expect(await count('browser_sessions')).toBe(before);

  const good = await begin();
  const attempt = new Map(browser.cookies(app.base));
  expect((await browser.open(good.url, (at) => at === `${app.base}/`)).url).toBe(`${app.base}/`);
  expect(await count('browser_sessions')).toBe((before ?? 0) + 1);
  // An attacker who has seen everything, including cookies.
  const thief = new Browser();
  for (const [name, value] of attempt) thief.cookies(app.base).set(name, value);
  expect((await thief.open(good.url)).status).toBe(401);
});

test('an access token of the identity provider is a credential until it expires', async () => {
  await signIn('ada');
  const now = Math.floor(Date.now() / 1_000);
  const good = { ...ADA, exp: now + 600 };
  const whoami = async (token: string) => {
    const { status, body } = await app.client(`Bearer ${token}`).get('/auth/v1/whoami');
    return status === 200 ? body.username : [status, body.error.code];
  };
  const refused = [401, 'authentication_failed'];
  const token = await issuer.sign(good);
  expect(await whoami(token)).toBe('ada-lovelace');
  const { body } = await app
    .client(`Bearer ${token}`)
    .post('/auth/v1/repository/ada-lovelace', { name: 'jwt' });
  expect(body.name).toBe('jwt');
  // In the form that git sends.
  const basic = `Basic ${Buffer.from(`x:${token}`).toString('base64')}`;
  const refs = '/ada-lovelace/jwt.git/info/refs?service=git-receive-pack';
  expect((await app.client(basic).get(refs)).status).toBe(200);
  const { rows } = await app.pool.query(
    `select credential_kind, credential_id from audit_entries where subject = $1`,
    [body.id],
  );
  expect(rows).toEqual([
    { credential_kind: 'oidc', credential_id: expect.stringMatching(/^idn_\w+\.\d+$/) },
  ]);

  // A disabled user gets the reason, with the token and when signing in.
  const switched = (field: string) =>
    app.admin.gql(`mutation { ${field}(input: { username: "ada-lovelace" }) { user { id } } }`);
  await switched('disableUser');
  expect(await whoami(token)).toEqual(refused);
  const { status, text } = await signIn('ada');
  expect([status, text.includes('The user ada-lovelace is disabled')]).toEqual([401, true]);
  await switched('enableUser');
  expect(await whoami(token)).toBe('ada-lovelace');

  const [head = '', payload = '', signature = ''] = token.split('.');
  const none = Buffer.from('{"alg":"none"}').toString('base64url');
  for (const [why, forged] of Object.entries({
    'is over': await issuer.sign({ ...good, exp: now - 60 }),
    'has no end': await issuer.sign(ADA),
    'is for another audience': await issuer.sign({ ...good, aud: 'https://other.example' }),
    'is for the client, as an ID token is': await issuer.sign({ ...good, aud: CLIENT.client_id }),
    'is of another issuer': await issuer.sign({ ...good, iss: 'https://evil.example' }),
    'is not valid yet': await issuer.sign({ ...good, nbf: now + 600 }),
    'is of somebody who was never here': await issuer.sign({ ...good, sub: 'stranger' }),
    'is signed by nobody': `${none}.${payload}.`,
    'is signed otherwise': `${head}.${payload}.${signature.split('').reverse().join('')}`,
    'is no JSON': `eyJx.${payload}.${signature}`,
  }))
    expect(await whoami(forged), why).toEqual(refused);

  // It cannot start a browser session, which would outlast the token.
  const form = await app.anonymous.request('POST', '/login', {
    headers: { origin: app.base },
    body: new URLSearchParams({ token }),
  });
  expect(form.status).toBe(403);

  // Open streams end with the token.
  const short = await issuer.sign({ ...good, exp: now + 3 });
  const stream = await fetch(`${app.base}/graphql`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${short}`,
      'content-type': 'application/json',
      accept: 'text/event-stream',
    },
    body: JSON.stringify({ query: 'subscription { events(namespaces: ["ada-lovelace"]) { id } }' }),
  });
  expect(await stream.text()).toContain('The credentials are not valid');
});

test('the rules for signing in apply to the claims of an access token', async () => {
  await using own = await startApp({
    config: { issuers: configured({ LOAM_OIDC_GROUPS: 'staff,ops' }) },
  });
  await issuer.serve(`${own.base}/login/oidc/callback`);
  issuer.people.grace = { email: 'grace@acme.com', email_verified: true, groups: ['ops'] };
  issuer.person = 'grace';
  const isHome = (url: string) => url === `${own.base}/`;
  expect((await new Browser().open(`${own.base}/login/oidc`, isHome)).url).toBe(`${own.base}/`);
  await issuer.serve(`${app.base}/login/oidc/callback`);

  const claims = {
    sub: 'grace',
    aud: AUDIENCE,
    exp: Math.floor(Date.now() / 1_000) + 600,
    email: 'grace@acme.com',
    email_verified: true,
  };
  const clientOf = async (more: object) =>
    own.client(`Bearer ${await issuer.sign({ ...claims, ...more })}`);
  for (const [more, said] of [
    [{}, 'not in a group'],
    [{ groups: [] }, 'not in a group'],
    [{ groups: ['guests'] }, 'not in a group'],
    [{ groups: ['ops'], email: 'grace@evil.example' }, 'not in a domain'],
    [{ groups: ['ops'], email: undefined }, 'not in a domain'],
    [{ groups: ['ops'], email_verified: false }, 'has not verified'],
    [{ groups: ['ops'], email_verified: undefined }, 'has not verified'],
  ] as const) {
    const { status, body } = await (await clientOf(more)).get('/auth/v1/whoami');
    expect([status, body.error.code], JSON.stringify(more)).toEqual([401, 'authentication_failed']);
    expect(body.error.message).toContain(`you may sign in here: `);
    expect(body.error.message).toContain(said);
  }

  // Her user became an operator at sign-in; a token from after she left the group has no operator rights.
  const isOperator = async (client: Client) => {
    const { data, errors } = await client.graphql('{ users(first: 1) { nodes { username } } }');
    return errors ? errors[0]?.extensions.code : data.users.nodes.length;
  };
  const operator = await clientOf({ groups: ['ops'] });
  const member = await clientOf({ groups: ['staff'] });
  expect(await isOperator(operator)).toBe(1);
  expect(await isOperator(member)).toBe('PERMISSION_DENIED');
  // Operators by other means need no group.
  await own.pool.query('update identities set operator = false');
  expect(await isOperator(member)).toBe(1);
  await own.pool.query('update users set operator = false where username = $1', ['grace']);
  expect(await isOperator(member)).toBe('PERMISSION_DENIED');
  expect(await isOperator(operator)).toBe(1);

  // The rules apply to open streams at each recheck.
  const { services } = own.app;
  const viewers = await Promise.all(
    [operator, member].map(({ token }) => authenticate(services, { kind: 'pat', token })),
  );
  const credentials = viewers.map((viewer) => demandAccount(viewer).credential);
  const again = await readAccounts(own.pool, credentials);
  expect(credentials.map(({ id }) => demandValidAccount(again.get(id)).operator)).toEqual([
    true,
    false,
  ]);
});

test('large files are pushed and fetched with an access token of the identity provider', async () => {
  await signIn('ada');
  const exp = Math.floor(Date.now() / 1_000) + 600;
  for (const groups of [[], ['ops']]) {
    const token = await issuer.sign({ ...ADA, exp, groups });
    const client = app.client(`Basic ${Buffer.from(`x:${token}`).toString('base64')}`);
    const name = `large-${groups.length}`;
    expect((await client.post('/auth/v1/repository/ada-lovelace', { name })).status).toBe(201);
    const bytes = Buffer.from(`large ${groups}`);
    const object = { oid: hash('sha256', bytes), size: bytes.length };
    const actions = async (operation: string) => {
      const json = { operation, transfers: ['basic'], objects: [object] };
      const { body } = await client.request(
        'POST',
        `/ada-lovelace/${name}.git/info/lfs/objects/batch`,
        {
          body: JSON.stringify(json),
          headers: { 'content-type': 'application/vnd.git-lfs+json' },
        },
      );
      return body.objects[0].actions[operation];
    };
    const upload = await actions('upload');
    const put = await app.anonymous.request('PUT', upload.href, {
      headers: upload.header,
      body: bytes,
    });
    expect([put.status, put.text]).toEqual([200, '']);
    const download = await actions('download');
    const got = await app.anonymous.get(download.href, download.header);
    expect([got.status, got.text]).toEqual([200, bytes.toString()]);
  }
});

test('an email address that is not verified is refused', async () => {
  await using own = await startApp({ config: { issuers: configured({ LOAM_OIDC_DOMAINS: '' }) } });
  await issuer.serve(`${own.base}/login/oidc/callback`);
  const open = (person: string) => {
    issuer.person = person;
    return new Browser().open(`${own.base}/login/oidc`, (url) => url === `${own.base}/`);
  };
  issuer.people.thief = { email: 'victim@acme.com', email_verified: false };
  issuer.people.victim = { email: 'victim@acme.com', email_verified: true };
  // Some providers never send whether the address is verified.
  issuer.people.silent = { email: 'silent@acme.com' };
  const refused = await open('thief');
  expect([refused.status, refused.text.includes('has not verified')]).toEqual([403, true]);
  for (const person of ['victim', 'silent'])
    expect((await open(person)).url, person).toBe(`${own.base}/`);
  await issuer.serve(`${app.base}/login/oidc/callback`);
});

test('the provider may rotate its keys, and may be unavailable', async () => {
  const whoami = async (token: string) =>
    (await app.client(`Bearer ${token}`).get('/auth/v1/whoami')).status;
  const claims = { ...ADA, exp: Math.floor(Date.now() / 1_000) + 600 };
  const old = await issuer.sign(claims);
  expect(await whoami(old)).toBe(200);
  // Known keys are kept while the provider is unavailable.
  issuer.isAway = true;
  expect(await whoami(old)).toBe(200);
  const away = await signIn('ada');
  expect(away.status === 503 || away.url.startsWith(issuer.address)).toBe(true);
  issuer.isAway = false;

  await using fresh = await startApp({ config: { issuers: configured() } });
  issuer.isAway = true;
  const page = await fresh.anonymous.request('GET', '/login/oidc', {
    headers: { accept: 'text/html' },
  });
  expect([page.status, page.text.includes('is unavailable; try again later')]).toEqual([503, true]);
  expect((await fresh.client(`Bearer ${old}`).get('/auth/v1/whoami')).status).toBe(503);
  issuer.isAway = false;
  expect((await fresh.anonymous.get('/login/oidc')).status).toBe(303);
  await issuer.rotate();
  const { status, body } = await fresh
    .client(`Bearer ${await issuer.sign(claims)}`)
    .get('/auth/v1/whoami');
  // The key is found, but this server does not know the user.
  expect([status, body.error.message]).toEqual([
    401,
    expect.stringContaining('has not signed in here'),
  ]);
});

test.each<[Record<string, string>, RegExp]>([
  [{ LOAM_OIDC_CLIENT_ID: 'x' }, /^LOAM_OIDC_CLIENT_ID: needs LOAM_OIDC_ISSUER$/],
  [{ LOAM_OIDC_ISSUER: 'https://a.example' }, /^LOAM_OIDC_ISSUER: needs LOAM_OIDC_CLIENT_ID$/],
  [
    { LOAM_OIDC_3_ISSUER: 'http://a.example', LOAM_OIDC_3_CLIENT_ID: 'x' },
    /^LOAM_OIDC_3_ISSUER: must be a URL that begins with https/,
  ],
  [
    { LOAM_OIDC_ISSUER: 'https://a.example', LOAM_OIDC_CLIENT_ID: 'x', LOAM_OIDC_AUDIENCE: 'x' },
    /^LOAM_OIDC_AUDIENCE: must not be the client id$/,
  ],
  [{ LOAM_OIDC_2_ISUER: 'x' }, /^LOAM_OIDC_2_ISUER: there is no such variable/],
  [{ LOAM_OIDC_DOMAINS: 'acme' }, /^LOAM_OIDC_DOMAINS: must be domains/],
])('%j is refused', (env, message) => {
  expect(() => readConfig(env)).toThrow(message);
});

test('several providers have their own URLs', () => {
  const issuers = readConfig({
    LOAM_OIDC_ISSUER: 'https://a.example',
    LOAM_OIDC_CLIENT_ID: 'one',
    LOAM_OIDC_2_ISSUER: 'https://b.example/realm',
    LOAM_OIDC_2_CLIENT_ID: 'two',
    LOAM_OIDC_2_DOMAINS: 'B.example, @c.example',
  }).issuers;
  expect(issuers).toMatchObject([
    { name: 'oidc', label: 'a.example', scopes: 'openid email profile', groupsClaim: 'groups' },
    { name: 'oidc-2', label: 'b.example', domains: ['b.example', 'c.example'] },
  ]);
});
