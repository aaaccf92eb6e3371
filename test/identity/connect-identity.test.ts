/** Connecting an identity to an existing user, and removing it. */
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { readConfig } from '../../src/base/config/config.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { Browser, CLIENT, startIssuer, type TestIssuer } from '../support/oidc-issuer.ts';
import { expectRefusal } from '../support/refusal.ts';

let issuer: TestIssuer;
let app: TestApp;
let ada: Client;
let eve: Client;

beforeAll(async () => {
  issuer = await startIssuer();
  const { issuers } = readConfig({
    LOAM_OIDC_ISSUER: issuer.address,
    LOAM_OIDC_CLIENT_ID: CLIENT.client_id,
    LOAM_OIDC_CLIENT_SECRET: CLIENT.client_secret,
    LOAM_OIDC_LABEL: 'Acme',
    LOAM_OIDC_DOMAINS: 'acme.com',
    LOAM_OIDC_OPERATORS: 'ops',
  });
  app = await startApp({ config: { issuers } });
  await issuer.serve(`${app.base}/login/oidc/callback`);
  ada = await app.user('ada');
  eve = await app.user('eve');
});
afterAll(async () => {
  await app[Symbol.asyncDispose]();
  await issuer[Symbol.asyncDispose]();
});
beforeEach(async () => {
  await app.pool.query('delete from identities; delete from browser_sessions');
  issuer.people = {};
  for (const name of ['ada', 'eve', 'new'])
    issuer.people[name] = { email: `${name}@acme.com`, email_verified: true };
});

/** A browser session, signed in with the token of a client. */
async function browserOf(client: Client): Promise<Browser> {
  const answer = await app.anonymous.request('POST', '/login', {
    headers: { origin: app.base },
    body: new URLSearchParams({ token: client.token }),
  });
  const browser = new Browser();
  for (const set of answer.headers.getSetCookie()) {
    const [name = '', value = ''] = (set.split(';')[0] ?? '').split('=');
    browser.cookies(app.base).set(name, value);
  }
  return browser;
}

// biome-ignore lint/suspicious/noExplicitAny: an answer.
async function ask(browser: Browser, query: string, variables: object = {}): Promise<any> {
  const cookie = [...browser.cookies(app.base)].map((pair) => pair.join('=')).join('; ');
  const headers = { cookie, 'sec-fetch-site': 'same-origin' };
  return (await app.anonymous.post('/graphql', { query, variables }, headers)).body;
}

const connectUrl = async (browser: Browser): Promise<string> =>
  (await ask(browser, '{ identityIssuers { connectUrl } }')).data.identityIssuers[0].connectUrl;

const isEnd = (url: string) => url === `${app.base}/graphql`;

/** Signs in at the identity provider as a person, starting at a URL. */
function follow(browser: Browser, url: string, person: string, isStop = isEnd) {
  issuer.person = person;
  return browser.open(`${url}&to=%2Fgraphql`, isStop);
}

const identities = async () =>
  (
    await app.pool.query(
      `select i.subject, u.username from identities i join users u on u.id = i.user_id order by 1`,
    )
  ).rows;

const MINE = '{ viewer { username identities { totalCount nodes { id issuer label subject } } } }';
const DELETE = 'mutation ($id: ID!) { deleteIdentity(input: { id: $id }) { id } }';

test('a user connects an identity, and can sign in with it from then on', async () => {
  const browser = await browserOf(ada);
  expect((await follow(browser, await connectUrl(browser), 'new')).url).toBe(`${app.base}/graphql`);
  expect(await identities()).toEqual([{ subject: 'new', username: 'ada' }]);
  const { data } = await ask(browser, MINE);
  expect(data.viewer).toEqual({
    username: 'ada',
    identities: {
      totalCount: 1,
      nodes: [
        {
          id: expect.stringMatching(/^idn_/),
          issuer: issuer.address,
          label: 'Acme',
          subject: 'new',
        },
      ],
    },
  });
  // Connecting again changes nothing.
  await follow(browser, await connectUrl(browser), 'new');
  expect(await identities()).toHaveLength(1);

  const other = new Browser();
  issuer.person = 'new';
  await other.open(`${app.base}/login/oidc?to=%2Fgraphql`, isEnd);
  expect((await ask(other, '{ viewer { username } }')).data.viewer.username).toBe('ada');
  const { rows } = await app.pool.query(
    `select actor, name, credential_kind from audit_entries where action = 'identity.connect'`,
  );
  expect(rows).toEqual([{ actor: 'ada', name: 'Acme', credential_kind: 'session' }]);
});

test('an identity of another user is refused, and so is an identity that may not sign in', async () => {
  const hers = await browserOf(eve);
  await follow(hers, await connectUrl(hers), 'eve');
  const browser = await browserOf(ada);
  const taken = await follow(browser, await connectUrl(browser), 'eve');
  expect(taken.text).toContain('This identity of Acme belongs to another user of this server');
  issuer.people.far = { email: 'far@evil.example', email_verified: true };
  // At the identity provider, the first browser belongs to Eve.
  const second = await browserOf(ada);
  const far = await follow(second, await connectUrl(second), 'far');
  expect(far.text).toContain('not in a domain that may sign in');
  expect(await identities()).toEqual([{ subject: 'eve', username: 'eve' }]);
});

test('a ticket of another session, a modified ticket and an invalid ticket are refused', async () => {
  const [mine, hers] = [await browserOf(ada), await browserOf(eve)];
  const url = await connectUrl(hers);
  // Eve sends Ada her own connect URL, to get Ada's identity connected to Eve. Only Eve's browser may use it.
  for (const browser of [mine, new Browser(), await browserOf(eve)]) {
    const end = await follow(browser, url, 'ada');
    expect([
      end.status,
      end.text.includes('no longer signed in with the session that started this'),
    ]).toEqual([401, true]);
  }
  for (const wrong of [`${url.slice(0, -8)}AAAAAAAA`, `${app.base}/login/oidc?connect=1`]) {
    expect((await follow(hers, wrong, 'eve')).status).toBe(401);
  }
  expect(await identities()).toEqual([]);
});

test('a callback with the attempt of another session connects nothing', async () => {
  const [mine, hers] = [await browserOf(ada), await browserOf(eve)];
  const isCallback = (url: string) => url.startsWith(`${app.base}/login/oidc/callback`);
  // Eve stops before the callback, and plants her attempt and her callback URL in Ada's browser.
  const stopped = await follow(hers, await connectUrl(hers), 'eve', isCallback);
  for (const [name, value] of hers.cookies(app.base))
    if (name.endsWith('-attempt')) mine.cookies(app.base).set(name, value);
  const planted = await mine.open(stopped.url);
  expect(planted.status).toBe(401);
  expect(planted.text).toContain('no longer signed in with the session that started this');
  expect(await identities()).toEqual([]);

  // The session ended in between.
  const again = await follow(hers, await connectUrl(hers), 'eve', isCallback);
  await app.pool.query('delete from browser_sessions');
  expect((await hers.open(again.url)).status).toBe(401);
  expect(await identities()).toEqual([]);
});

test('a callback URL works once', async () => {
  const browser = await browserOf(ada);
  let callback = '';
  await follow(browser, await connectUrl(browser), 'ada', (url) => {
    if (url.startsWith(`${app.base}/login/oidc/callback`)) callback = url;
    return isEnd(url);
  });
  expect(await identities()).toHaveLength(1);
  await app.pool.query('delete from identities');
  expect((await browser.open(callback)).status).toBe(401);
  expect(await identities()).toEqual([]);
});

test('only a browser session gets a connect URL', async () => {
  const query = '{ identityIssuers { name label signInUrl connectUrl } }';
  const shown = {
    name: 'oidc',
    label: 'Acme',
    signInUrl: `${app.base}/login/oidc`,
    connectUrl: null,
  };
  for (const client of [ada, app.anonymous])
    expect((await client.gql(query)).identityIssuers).toEqual([shown]);
});

test('removing an identity ends sessions from identity providers; the last way to sign in cannot be removed', async () => {
  const browser = await browserOf(ada);
  await follow(browser, await connectUrl(browser), 'ada');
  const other = new Browser();
  issuer.person = 'ada';
  await other.open(`${app.base}/login/oidc?to=%2Fgraphql`, isEnd);
  const { id } = (await ask(browser, MINE)).data.viewer.identities.nodes[0];

  await expectRefusal(eve.graphql(DELETE, { id }), 'NOT_FOUND');
  const anonymous = await app.anonymous.graphql(DELETE, { id });
  await expectRefusal(anonymous, 'AUTHENTICATION_FAILED');
  await expectRefusal(ada.graphql(DELETE, { id: 'x' }), 'NOT_FOUND');
  expect((await ask(other, '{ viewer { username } }')).data.viewer.username).toBe('ada');
  expect((await ada.gql(DELETE, { id })).deleteIdentity.id).toBe(id);
  expect((await ask(other, '{ viewer { username } }')).data.viewer).toBeNull();
  expect((await ask(browser, '{ viewer { username } }')).data.viewer.username).toBe('ada');

  // A user who was created by the first sign-in has no other way to sign in.
  const alone = new Browser();
  issuer.person = 'new';
  await alone.open(`${app.base}/login/oidc?to=%2Fgraphql`, isEnd);
  const own = (await ask(alone, MINE)).data.viewer.identities.nodes[0].id;
  const refused = await ask(alone, DELETE, { id: own });
  expect(refused.errors[0]).toMatchObject({
    message: expect.stringContaining('your last way to sign in'),
    extensions: { code: 'CONFLICT' },
  });
  const create =
    'mutation ($input: CreateAccessTokenInput!) { createAccessToken(input: $input) { token } }';
  await ask(alone, create, { input: { name: 'limited', scopes: ['REPO_READ'] } });
  expect((await ask(alone, DELETE, { id: own })).errors).toHaveLength(1);
  await ask(alone, create, { input: { name: 'full' } });
  expect((await ask(alone, DELETE, { id: own })).errors).toBeUndefined();
});

test('only the user sees their identities', async () => {
  const { viewer } = await ada.gql('{ viewer { id } }');
  const query = 'query ($id: ID!) { node(id: $id) { ... on User { identities { totalCount } } } }';
  for (const client of [eve, app.admin]) {
    const { data, errors } = await client.graphql(query, { id: viewer.id });
    expect(data.node.identities).toBeNull();
    expect(errors?.[0]?.extensions.code).toBe('PERMISSION_DENIED');
  }
});

test('a group grants and revokes operator rights; operators without the group stay operators', async () => {
  const operator = async (name: string) =>
    (await app.pool.query('select operator from users where username = $1', [name])).rows[0]
      .operator;
  issuer.people.ada = { email: 'ada@acme.com', email_verified: true, groups: ['ops'] };
  issuer.people.new = { email: 'new@acme.com', email_verified: true, groups: ['ops'] };
  for (const [client, name, person] of [
    [ada, 'ada', 'ada'],
    [app.admin, 'admin', 'new'],
  ] as const) {
    const browser = await browserOf(client);
    await follow(browser, await connectUrl(browser), person);
    expect(await operator(name)).toBe(true);
    issuer.people[person] = { email: `${person}@acme.com`, email_verified: true, groups: [] };
    issuer.person = person;
    await new Browser().open(`${app.base}/login/oidc?to=%2Fgraphql`, isEnd);
    expect(await operator(name), name).toBe(name === 'admin');
  }
  // The rights also end with the identity.
  issuer.people.eve = { email: 'eve@acme.com', email_verified: true, groups: ['ops'] };
  const browser = await browserOf(eve);
  await follow(browser, await connectUrl(browser), 'eve');
  expect(await operator('eve')).toBe(true);
  const { id } = (await ask(browser, MINE)).data.viewer.identities.nodes[0];
  await eve.gql(DELETE, { id });
  expect(await operator('eve')).toBe(false);
});
