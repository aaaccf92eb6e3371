import { expect, test } from 'vitest';
import {
  type Action,
  can,
  demand,
  type Target,
  type Viewer,
  withImpliedScopes,
} from '../../src/identity/permissions.ts';
import { eventually } from '../support/eventually.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';

const codes = async (client: Client, query: string, input: object) => {
  const { errors } = await client.graphql(query, { input });
  return errors?.flatMap(({ extensions }) => [extensions.code, extensions.field ?? null]);
};
const CREATE_USER = `mutation ($input: CreateUserInput!) { createUser(input: $input) { user { id username email } } }`;
const CREATE_ORG = `mutation ($input: CreateOrganizationInput!) { createOrganization(input: $input) { namespace { id name kind } } }`;
const SET_MEMBER = `mutation ($input: SetMemberInput!) { setMember(input: $input) { member { id role user { username } } } }`;
const REMOVE_MEMBER = `mutation ($input: RemoveMemberInput!) { removeMember(input: $input) { id } }`;
const CREATE_TOKEN = `mutation ($input: CreateAccessTokenInput!) {
  createAccessToken(input: $input) { token accessToken { id name scopes namespaces repositories expiresAt lastUsedAt } } }`;
const CREATE_KEY = `mutation ($input: CreateApiKeyInput!) {
  createApiKey(input: $input) { key apiKey { id name namespace scopes expiresAt } } }`;
const DELETE_KEY = `mutation ($input: DeleteApiKeyInput!) { deleteApiKey(input: $input) { id } }`;

const trio = (app: TestApp) => Promise.all([app.user('alice'), app.user('bob'), app.user('carol')]);

async function tokenFor(app: TestApp, user: Client, input: object): Promise<Client> {
  const { createAccessToken } = await user.gql(CREATE_TOKEN, { input });
  return app.client(`Bearer ${createAccessToken.token}`);
}

test('a new user has a namespace with the same name', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  const { viewer, whoami } = await alice.gql(
    `{ viewer { id username email plan operator namespace { name kind viewerRole members { nodes { role user { username } } } } }
       whoami { userId username email namespace } }`,
  );
  expect(viewer).toMatchObject({
    username: 'alice',
    email: 'alice@example.com',
    plan: 'UNLIMITED',
    operator: false,
    namespace: {
      name: 'alice',
      kind: 'USER',
      viewerRole: 'ADMIN',
      members: { nodes: [{ role: 'ADMIN', user: { username: 'alice' } }] },
    },
  });
  expect(whoami).toEqual({
    userId: viewer.id,
    username: 'alice',
    email: 'alice@example.com',
    namespace: 'alice',
  });
});

test('only operators create users and organizations, with free and valid names', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  const user = (username: string, email = `${username}@example.com`) =>
    codes(app.admin, CREATE_USER, { username, email });
  for (const name of ['', 'A', '-a', 'a-', 'a_b', 'a.b', 'é', 'a'.repeat(40), 'graphql', 'jobs'])
    expect(await user(name, 'x@example.com'), name).toEqual(['INVALID_REQUEST', 'username']);
  for (const email of ['', 'x', 'x@', '@x', 'a b@x', `${'x'.repeat(250)}@x.de`, 'a@b\n'])
    expect(await user('bob', email), email).toEqual(['INVALID_REQUEST', 'email']);
  expect(await user('alice', 'other@example.com')).toEqual(['ALREADY_EXISTS', 'username']);
  expect(await user('bob', 'Alice@example.com')).toEqual(['ALREADY_EXISTS', 'email']);
  expect(await user('bob')).toBeUndefined();
  expect(await user('a'.repeat(39))).toBeUndefined();

  expect(await codes(app.admin, CREATE_ORG, { name: 'bob' })).toEqual(['ALREADY_EXISTS', 'name']);
  expect(await codes(app.admin, CREATE_ORG, { name: 'docs' })).toEqual(['INVALID_REQUEST', 'name']);
  expect(await codes(app.admin, CREATE_ORG, { name: 'acme' })).toBeUndefined();
  expect(await user('acme')).toEqual(['ALREADY_EXISTS', 'username']);

  const input = { username: 'eve', email: 'eve@example.com', name: 'eve' };
  const { username, email, name } = input;
  expect(await codes(alice, CREATE_USER, { username, email })).toEqual(['PERMISSION_DENIED', null]);
  expect(await codes(alice, CREATE_ORG, { name })).toEqual(['PERMISSION_DENIED', null]);
  expect(await codes(app.anonymous, CREATE_ORG, { name })).toEqual(['AUTHENTICATION_FAILED', null]);
  const narrowed = await tokenFor(app, app.admin, { name: 'n', namespaces: ['admin'] });
  expect(await codes(narrowed, CREATE_ORG, { name })).toEqual(['PERMISSION_DENIED', null]);
});

test('admins manage the members of a namespace, and only members see them', async () => {
  await using app = await startApp();
  const [alice, bob, carol] = await trio(app);
  await app.admin.gql(CREATE_ORG, { input: { name: 'acme', plan: 'TEAM' } });
  const member = (username: string, role = 'READ', namespace = 'acme') => ({
    namespace,
    username,
    role,
  });
  expect(await codes(alice, SET_MEMBER, member('bob'))).toEqual(['PERMISSION_DENIED', null]);
  await app.admin.gql(SET_MEMBER, { input: member('alice', 'ADMIN') });
  await alice.gql(SET_MEMBER, { input: member('bob', 'WRITE') });
  expect(await codes(bob, SET_MEMBER, member('carol'))).toEqual(['PERMISSION_DENIED', null]);
  expect(await codes(alice, SET_MEMBER, member('nobody'))).toEqual(['NOT_FOUND', null]);
  expect(await codes(alice, SET_MEMBER, member('bob', 'READ', 'none'))).toEqual([
    'NOT_FOUND',
    null,
  ]);

  const view = (client: Client) =>
    client.graphql(
      `{ namespace(name: "ACME") { name plan viewerRole members { nodes { role user { username email } } } } }`,
    );
  expect((await view(bob)).data.namespace).toEqual({
    name: 'acme',
    plan: 'TEAM',
    viewerRole: 'WRITE',
    members: {
      nodes: [
        { role: 'ADMIN', user: { username: 'admin', email: null } },
        { role: 'ADMIN', user: { username: 'alice', email: null } },
        { role: 'WRITE', user: { username: 'bob', email: 'bob@example.com' } },
      ],
    },
  });
  const outside = await view(carol);
  expect(outside.data.namespace).toMatchObject({ plan: null, viewerRole: null, members: null });
  await expectRefusal(outside, 'PERMISSION_DENIED');
  await expectRefusal(view(app.anonymous), 'AUTHENTICATION_FAILED');

  const { namespace, username } = member('bob');
  expect(await alice.gql(REMOVE_MEMBER, { input: { namespace, username } })).toEqual({
    removeMember: { id: expect.stringMatching(/^member_/) },
  });
  expect((await view(bob)).data.namespace.viewerRole).toBeNull();
  expect(await alice.gql(REMOVE_MEMBER, { input: { namespace, username } })).toEqual({
    removeMember: { id: null },
  });

  // A user's own namespace can have members, but its owner stays admin.
  await alice.gql(SET_MEMBER, { input: member('bob', 'ADMIN', 'alice') });
  const owner = member('alice', 'READ', 'alice');
  expect(await codes(bob, SET_MEMBER, owner)).toEqual(['CONFLICT', null]);
  expect(await codes(bob, REMOVE_MEMBER, { namespace: 'alice', username: 'alice' })).toEqual([
    'CONFLICT',
    null,
  ]);
});

test('the last admin of an organization stays, and members may leave', async () => {
  await using app = await startApp();
  const [alice, bob] = await trio(app);
  await app.admin.gql(CREATE_ORG, { input: { name: 'acme' } });
  const set = (client: Client, username: string, role: string) =>
    codes(client, SET_MEMBER, { namespace: 'acme', username, role });
  const remove = (client: Client, username: string) =>
    codes(client, REMOVE_MEMBER, { namespace: 'acme', username });
  const conflict = ['CONFLICT', null];
  await set(app.admin, 'bob', 'READ');
  for (const role of ['READ', 'WRITE'])
    expect(await set(app.admin, 'admin', role)).toEqual(conflict);
  expect(await remove(app.admin, 'admin')).toEqual(conflict);

  await set(app.admin, 'alice', 'ADMIN');
  expect(await remove(app.admin, 'admin')).toBeUndefined();
  expect(await remove(alice, 'alice')).toEqual(conflict);
  expect(await set(alice, 'alice', 'WRITE')).toEqual(conflict);
  expect(await set(alice, 'alice', 'ADMIN')).toBeUndefined();

  // Non-admins can remove only themselves, and not with a limited credential.
  expect(await remove(bob, 'alice')).toEqual(['PERMISSION_DENIED', null]);
  const narrowed = await tokenFor(app, bob, { name: 'n', scopes: ['REPO_READ'] });
  expect(await remove(narrowed, 'bob')).toEqual(['PERMISSION_DENIED', null]);
  expect(await remove(bob, 'Bob')).toBeUndefined();
  const { rows } = await app.pool.query(
    `select u.username from members m join users u on u.id = m.user_id`,
  );
  expect(rows).toEqual([{ username: 'alice' }]);

  // When two admins leave at the same time, one stays.
  await set(alice, 'bob', 'ADMIN');
  const left = await Promise.all([remove(alice, 'alice'), remove(bob, 'bob')]);
  expect(left.filter((one) => one === undefined)).toHaveLength(1);
});

test('a token is shown once, works until it expires or is deleted, and is stored as a hash', async () => {
  await using app = await startApp();
  const { db, pool } = app.app.services;
  const alice = await app.user('alice');
  const created = await alice.post('/auth/v1/pat', { name: 'my laptop', expires_in_days: 365 });
  const { token } = created.body;
  expect(token).toMatch(/^loam_pat_[0-9A-Za-z]{46}$/);
  const days = (Date.parse(created.body.expires_at) - Date.parse(created.body.created_at)) / 864e5;
  expect(days).toBe(365);
  expect(JSON.stringify(await db.accessToken.findMany())).not.toContain(token);

  const laptop = app.client(`Bearer ${token}`);
  expect((await laptop.get('/auth/v1/whoami')).body.username).toBe('alice');
  await eventually(async () => {
    const { body } = await alice.get('/auth/v1/pat/my%20laptop');
    expect(Date.now() - Date.parse(body.last_used_at)).toBeLessThan(120_000);
    expect(new Date(body.last_used_at).getUTCSeconds()).toBe(0);
    expect(body.token).toBeUndefined();
  });
  const [newest] = (await alice.get('/auth/v1/pat')).body.data;
  expect(newest).toMatchObject({ name: 'my laptop', scopes: [] });
  expect((await alice.post('/auth/v1/pat', { name: 'my laptop' })).body.error.code).toBe(
    'already_exists',
  );

  await pool.query(`update access_tokens set expires_at = now() where name = 'my laptop'`);
  const late = await laptop.get('/auth/v1/whoami');
  expect([late.status, late.body.error.code]).toEqual([401, 'authentication_failed']);
  expect(late.headers.get('www-authenticate')).toContain('Bearer');
  await pool.query(`update access_tokens set expires_at = null where name = 'my laptop'`);
  expect((await laptop.get('/auth/v1/whoami')).status).toBe(200);

  expect((await laptop.delete('/auth/v1/pat/my%20laptop')).status).toBe(204);
  expect((await laptop.get('/auth/v1/whoami')).status).toBe(401);
  expect((await alice.get('/auth/v1/pat/my%20laptop')).status).toBe(404);
});

test('invalid inputs of credentials are refused', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  const token = (input: object) => codes(alice, CREATE_TOKEN, { name: 'x', ...input });
  for (const name of ['', ' a', 'a/b', '..', 'a\n', '\u0000', 'a'.repeat(101)])
    expect(await token({ name }), JSON.stringify(name)).toEqual(['INVALID_REQUEST', 'name']);
  for (const expiresInDays of [0, -1, 366])
    expect(await token({ expiresInDays })).toEqual(['INVALID_REQUEST', 'expiresInDays']);
  expect(await token({ namespaces: ['none'] })).toEqual(['NOT_FOUND', null]);
  expect(await token({ repositories: ['repo_none'] })).toEqual(['NOT_FOUND', null]);
  const many = Array.from({ length: 101 }, (_, i) => `n${i}`);
  expect(await token({ namespaces: many })).toEqual(['INVALID_REQUEST', 'namespaces']);
  expect(await token({ username: 'admin' })).toEqual(['PERMISSION_DENIED', null]);
  expect(await token({ username: 'alice' })).toBeUndefined();

  const key = (input: object) => codes(alice, CREATE_KEY, { name: 'x', ...input });
  for (const name of ['', 'a$b', 'a:b', 'a b', '.', 'é', 'a'.repeat(101)])
    expect(await key({ name }), name).toEqual(['INVALID_REQUEST', 'name']);
  expect(await key({ namespace: 'none' })).toEqual(['NOT_FOUND', null]);
  expect(await key({ namespace: 'admin' })).toEqual(['PERMISSION_DENIED', null]);
});

test('a limited credential can neither manage nor see credentials', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  const scoped = await tokenFor(app, alice, { name: 'scoped', scopes: ['REPO_ADMIN'] });
  const narrowed = await tokenFor(app, alice, { name: 'narrowed', namespaces: ['alice'] });
  const { accessTokens } = await alice.gql('{ accessTokens { id name namespaces scopes } }');
  expect(accessTokens).toMatchObject([
    { name: 'narrowed', namespaces: ['alice'], scopes: [] },
    { name: 'scoped', namespaces: [], scopes: ['REPO_ADMIN'] },
    { name: 'test' },
  ]);
  for (const client of [scoped, narrowed]) {
    expect((await client.get('/auth/v1/whoami')).status).toBe(200);
    expect((await client.post('/auth/v1/pat', { name: 'wider' })).status).toBe(403);
    expect((await client.post('/auth/v1/api_keys', { name: 'wider' })).status).toBe(403);
    expect((await client.get('/auth/v1/pat')).status).toBe(403);
    expect((await client.delete('/auth/v1/pat/test')).status).toBe(403);
    const { node } = await client.gql(`{ node(id: "${accessTokens[2].id}") { id } }`);
    expect(node).toBeNull();
  }
});

test('an API key acts for its user in its namespace, and the admins there manage it', async () => {
  await using app = await startApp();
  const [alice, bob, carol] = await trio(app);
  await app.admin.gql(CREATE_ORG, { input: { name: 'acme' } });
  for (const username of ['alice', 'bob'])
    await app.admin.gql(SET_MEMBER, { input: { namespace: 'acme', username, role: 'ADMIN' } });
  const { body } = await alice.post('/auth/v1/api_keys', { name: 'acme-ci', namespace: 'acme' });
  expect(body).toMatchObject({ name: 'acme-ci', namespace: 'acme', scopes: [] });
  expect(body.key).toMatch(/^acme-ci\$[0-9A-Za-z]{40}$/);
  expect((Date.parse(body.expires_at) - Date.parse(body.created_at)) / 864e5).toBe(30);
  expect((await bob.post('/auth/v1/api_keys', { name: 'acme-ci' })).status).toBe(409);

  const ci = app.client(`API-Key ${body.key}`);
  expect((await ci.get('/auth/v1/whoami')).body.username).toBe('alice');
  const basic = Buffer.from(body.key.replace('$', ':')).toString('base64');
  expect((await app.client(`Basic ${basic}`).get('/auth/v1/whoami')).status).toBe(200);
  const addTo = (namespace: string) => ({ namespace, username: 'carol', role: 'READ' });
  for (const namespace of ['acme', 'alice'])
    expect(await codes(ci, SET_MEMBER, addTo(namespace))).toEqual(
      namespace === 'acme' ? undefined : ['PERMISSION_DENIED', null],
    );

  const query = `{ apiKeys { name } node(id: "${body.id}") { id } }`;
  expect(await bob.gql(query)).toEqual({ apiKeys: [{ name: 'acme-ci' }], node: { id: body.id } });
  expect(await carol.gql(query)).toEqual({ apiKeys: [], node: null });
  expect((await carol.get('/auth/v1/api_keys/acme-ci')).status).toBe(403);
  expect((await carol.delete('/auth/v1/api_keys/acme-ci')).status).toBe(403);
  expect((await carol.get('/auth/v1/api_keys/none')).status).toBe(404);

  // The key never has more rights than its user has at that time.
  await bob.gql(SET_MEMBER, { input: { namespace: 'acme', username: 'alice', role: 'READ' } });
  expect(await codes(ci, SET_MEMBER, addTo('acme'))).toEqual(['PERMISSION_DENIED', null]);

  expect(await bob.gql(DELETE_KEY, { input: { name: 'acme-ci' } })).toEqual({
    deleteApiKey: { id: body.id },
  });
  expect((await ci.get('/auth/v1/whoami')).status).toBe(401);
});

test('invalid credentials are refused on every route', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  const { body } = await alice.post('/auth/v1/api_keys', { name: 'k' });
  const basic = (text: string) => `Basic ${Buffer.from(text).toString('base64')}`;
  const given = [
    'Bearer',
    'Bearer wrong',
    `Bearer ${alice.token}x`,
    `Bearer ${body.key}`,
    'API-Key k',
    'API-Key k$wrong',
    'API-Key $',
    `API-Key none${body.key.slice(1)}`,
    basic('x'),
    basic('k:wrong'),
    basic('\0:\0'),
    'Digest x',
  ];
  for (const authorization of given) {
    const client = app.client(authorization);
    const answers = await Promise.all([
      client.get('/auth/v1/whoami'),
      client.get('/auth/v1/no/such/route'),
      client.post('/graphql', { query: '{ health { status } }' }),
    ]);
    for (const { status, body, headers } of answers) {
      expect([status, body.error.code], authorization).toEqual([401, 'authentication_failed']);
      expect(headers.get('www-authenticate')).toContain('API-Key');
    }
    expect(answers[2].body.errors[0].extensions.code).toBe('AUTHENTICATION_FAILED');
    const git = await client.get('/alice/hello.git/info/refs?service=git-upload-pack');
    expect([git.status, git.headers.get('www-authenticate')]).toEqual([
      401,
      'Bearer realm="loam", Basic realm="loam"',
    ]);
    expect((await client.get('/auth/v1/health')).status).toBe(200);
    const isBasic = authorization === basic('k:wrong');
    if (isBasic) expect(answers[0].body.error.message).toContain('token as the password');
  }
  for (const authorization of [`bearer  ${alice.token}`, basic(`any:${alice.token}`)])
    expect((await app.client(authorization).get('/auth/v1/whoami')).status).toBe(200);
});

test('other users see neither the email nor the plan of a user, and anonymous viewers see no users', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  const bob = await app.user('bob');
  const { viewer } = await alice.gql('{ viewer { id namespace { id } } }');
  const query = `{ user: node(id: "${viewer.id}") { ... on User { username email plan } }
    namespace: node(id: "${viewer.namespace.id}") { ... on Namespace { name plan } } }`;
  const own = { username: 'alice', email: 'alice@example.com', plan: 'UNLIMITED' };
  const namespace = { name: 'alice', plan: 'UNLIMITED' };
  expect(await alice.gql(query)).toEqual({ user: own, namespace });
  expect(await app.admin.gql(query)).toEqual({ user: own, namespace });
  expect(await bob.gql(query)).toEqual({
    user: { username: 'alice', email: null, plan: null },
    namespace: { name: 'alice', plan: null },
  });
  expect(await app.anonymous.gql(query)).toEqual({ user: null, namespace: null });
  expect(await app.anonymous.gql('{ viewer { id } }')).toEqual({ viewer: null });
});

test('an action must be allowed by role, scopes and restrictions; visibility adds reading', () => {
  const viewer = (limits: Partial<Extract<Viewer, { kind: 'account' }>> = {}): Viewer => ({
    kind: 'account',
    userId: 'user_1',
    username: 'alice',
    email: 'alice@example.com',
    plan: 'free',
    operator: false,
    namespace: { id: 'ns_own', name: 'alice' },
    roles: new Map([['ns_org', 'write']]),
    credential: { kind: 'pat', id: 'pat_1', name: 'x' },
    scopes: null,
    namespaces: null,
    repositories: null,
    ...limits,
  });
  const own = { namespaceId: 'ns_own', repositoryId: 'repo_1', visibility: 'private' } as const;
  const org = { ...own, namespaceId: 'ns_org' };
  expect(can(viewer(), 'repository.administer', own)).toBe(true);
  expect(can(viewer(), 'repository.push', org)).toBe(true);
  expect(can(viewer(), 'repository.administer', org)).toBe(false);
  expect(can(viewer(), 'repository.read', { ...own, namespaceId: 'ns_other' })).toBe(false);

  const writes = viewer({ scopes: withImpliedScopes(['repo:write']) });
  expect(can(writes, 'repository.read', own)).toBe(true);
  expect(can(writes, 'repository.push', own)).toBe(true);
  expect(can(writes, 'repository.administer', own)).toBe(false);
  expect(can(writes, 'job.read', own)).toBe(false);
  expect(can(writes, 'namespace.administer', own)).toBe(false);

  const elsewhere = viewer({ namespaces: new Set(['ns_org']) });
  expect(can(elsewhere, 'repository.read', own)).toBe(false);
  expect(can(elsewhere, 'repository.push', org)).toBe(true);
  const oneRepository = viewer({ repositories: new Set(['repo_1']) });
  expect(can(oneRepository, 'repository.push', own)).toBe(true);
  expect(can(oneRepository, 'repository.push', { ...own, repositoryId: 'repo_2' })).toBe(false);
  expect(can(oneRepository, 'job.create', { namespaceId: 'ns_own' })).toBe(false);

  const said = (who: Viewer, action: Action, target: Target) => {
    expect(can(who, action, target)).toBe(false);
    try {
      demand(who, action, target);
    } catch (error) {
      return (error as Error).message;
    }
  };
  expect([
    said(viewer(), 'repository.create', org),
    said(viewer(), 'job.create', { namespaceId: 'ns_other' }),
    said(writes, 'job.read', own),
    said(writes, 'namespace.administer', own),
    said(elsewhere, 'repository.read', own),
    said(oneRepository, 'job.create', { namespaceId: 'ns_own' }),
  ]).toEqual([
    'You may not create repositories in this namespace: that needs the role admin, and yours is write',
    'You may not create jobs in this namespace: that needs the role write, and you are not a member',
    'You may not see jobs with this credential: it lacks the scope job:read',
    'You may not manage members and API keys with this credential: that needs full rights, and it is limited to scopes',
    'You may not read repositories with this credential: it is limited to other namespaces',
    'You may not create jobs with this credential: it is limited to other repositories',
  ]);

  const anonymous: Viewer = { kind: 'anonymous' };
  const seen = (who: Viewer) =>
    (['public', 'internal', 'private'] as const).filter((visibility) =>
      can(who, 'repository.read', { namespaceId: 'ns_other', visibility }),
    );
  expect([seen(anonymous), seen(elsewhere)]).toEqual([['public'], ['public', 'internal']]);
});

test('a malformed id or an id of another type is an error, and an unknown id is null', async () => {
  await using app = await startApp();
  const { viewer } = await app.admin.gql('{ viewer { id } }');
  const node = (id: string) =>
    app.admin.graphql('query ($id: ID!) { node(id: $id) { id } }', { id });
  expect((await node(viewer.id)).data).toEqual({ node: { id: viewer.id } });
  const suffix = viewer.id.slice('user_'.length);
  for (const prefix of ['repo', 'job', 'pat', 'key', 'ns', 'wh', 'dlv']) {
    const { data, errors } = await node(`${prefix}_${suffix}`);
    expect({ data, errors }, prefix).toEqual({ data: { node: null } });
  }
  for (const id of [
    '',
    'user',
    'user_\0',
    'user_x',
    `nope_${suffix}`,
    `srv_${suffix}`,
    `evt_${suffix}`,
  ])
    expect((await node(id)).errors?.[0]?.extensions.code, id).toBe('INVALID_REQUEST');
});
