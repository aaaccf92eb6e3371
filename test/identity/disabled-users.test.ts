/** Disabled users: what is refused, what continues, and that enabling restores everything. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { remote, Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { cancel, job, submit, until } from '../support/submit.ts';
import { postSubscription } from '../support/subscribe.ts';

let app: TestApp;
let workspace: Workspace;

beforeAll(async () => {
  app = await startApp({ overrides: { runner: fakeRunner({ images: true }) } });
  workspace = await Workspace.open();
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

const disable = (username: string, by: Client = app.admin) =>
  by.graphql(
    `mutation ($username: String!) {
      disableUser(input: { username: $username }) { user { username disabledAt } } }`,
    { username },
  );
const enable = (username: string) =>
  app.admin.gql(
    `mutation ($username: String!) {
      enableUser(input: { username: $username }) { user { username disabledAt } } }`,
    { username },
  );
const codeOf = async (answer: ReturnType<typeof disable>) =>
  (await answer).errors?.[0]?.extensions.code;
const whoami = (client: Client) => client.get('/auth/v1/whoami');
const MESSAGE = /^The user \w+ is disabled: ask an operator of this server$/;

async function signIn(form: Record<string, string>, path = '/login') {
  const { status, headers, text } = await app.anonymous.request('POST', path, {
    headers: { origin: app.base, accept: 'text/html' },
    body: new URLSearchParams(form),
  });
  return { status, text, cookie: headers.getSetCookie()[0]?.split(';')[0] ?? '' };
}

test('every credential of a disabled user is refused with a reason, and accepted again after enabling', async () => {
  const ada = await app.user('ada');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
  const { body } = await ada.post('/auth/v1/api_keys', { name: 'adas' });
  const key = app.client(`API-Key ${body.key}`);
  const { cookie } = await signIn({ token: ada.token });
  const { createSignInLink } = await ada.gql('mutation { createSignInLink(input: {}) { url } }');
  const secret = new URL(createSignInLink.url).searchParams.get('secret') ?? '';
  const viewer = async () => {
    const headers = { cookie, 'sec-fetch-site': 'same-origin' };
    const query = '{ viewer { username } }';
    return (await app.anonymous.post('/graphql', { query }, headers)).body.data.viewer;
  };
  expect(await viewer()).toEqual({ username: 'ada' });

  const { data } = await disable('Ada');
  expect(data.disableUser.user).toEqual({ username: 'ada', disabledAt: expect.any(String) });
  for (const client of [ada, key]) {
    const { status, body } = await whoami(client);
    expect(status).toBe(401);
    expect(body.error).toMatchObject({
      code: 'authentication_failed',
      message: expect.stringMatching(MESSAGE),
    });
  }
  expect((await ada.graphql('{ viewer { id } }')).errors?.[0]?.message).toMatch(MESSAGE);
  expect(await viewer()).toBeNull();
  const cloned = await workspace.try('.', 'clone', remote(ada, 'ada/code'), 'refused');
  expect(cloned.code).not.toBe(0);
  const byToken = await signIn({ token: ada.token });
  expect([byToken.status, byToken.cookie]).toEqual([401, '']);
  expect(byToken.text).toContain('The user ada is disabled');
  expect((await signIn({ secret }, '/login/link')).status).toBe(401);
  // A wrong secret reveals nothing about the user.
  const wrong = await whoami(app.client('API-Key adas$wrong'));
  expect(wrong.body.error.message).not.toMatch(MESSAGE);

  expect((await enable('ada')).enableUser.user).toEqual({ username: 'ada', disabledAt: null });
  for (const client of [ada, key]) expect((await whoami(client)).status).toBe(200);
  expect(await viewer()).toEqual({ username: 'ada' });
  await workspace.clone(ada, 'ada/code', 'taken');
  expect((await signIn({ secret }, '/login/link')).status).toBe(303);
});

test('open streams of a disabled user end, and jobs continue', async () => {
  const bob = await app.user('bob');
  await submit(bob, { namespace: 'bob', name: 'long', image: 'x', command: 'busy' });
  const query = 'subscription { events(namespaces: ["bob"]) { id } }';
  const answer = await postSubscription(bob, { query }, AbortSignal.timeout(60_000));
  expect(answer.status).toBe(200);
  await eventually(() => expect(app.app.services.rechecks.streams).toBe(1));
  await disable('bob');
  expect(await answer.text()).toContain('The user bob is disabled');
  expect(['queued', 'running', 'QUEUED', 'RUNNING']).toContain(
    (await job(app.admin, 'bob', 'long')).status,
  );
  await cancel(app.admin, 'bob', 'long');
  await until(app.admin, 'bob', 'long', 'CANCELLED');
});

test('only operators disable users, but neither themselves nor the last operator', async () => {
  const eve = await app.user('eve');
  await app.user('second');
  expect(await codeOf(disable('second', eve))).toBe('PERMISSION_DENIED');
  expect(await codeOf(disable('nobody'))).toBe('NOT_FOUND');
  expect(await codeOf(disable('admin'))).toBe('CONFLICT');

  // When two operators disable each other at the same time, one stays.
  await app.pool.query(`update users set operator = true where username = 'eve'`);
  const both = await Promise.all([codeOf(disable('eve')), codeOf(disable('admin', eve))]);
  expect(both.filter((code) => code === undefined)).toHaveLength(1);
  const { rows } = await app.pool.query(
    `select username from users where operator and disabled_at is null`,
  );
  expect(rows).toHaveLength(1);
});

test('the token of the environment belongs to an enabled operator', async () => {
  await using other = await startApp();
  await other.user('ada');
  await other.pool.query(`update users set operator = true where username = 'ada'`);
  await other.pool.query(`update users set disabled_at = now() where username = 'admin'`);
  await other.pool.query(`delete from access_tokens where name = 'LOAM_ADMIN_TOKEN'`);
  await other.restart();
  expect((await whoami(other.admin)).body.username).toBe('ada');
});

test('only the user and operators see that a user is disabled', async () => {
  await using other = await startApp();
  const [ada, bob] = [await other.user('ada'), await other.user('bob')];
  const { viewer } = await ada.gql('{ viewer { id } }');
  await other.admin.gql('mutation { disableUser(input: {username: "ada"}) { user { id } } }');
  const seen = async (client: Client) =>
    (
      await client.gql('query ($id: ID!) { node(id: $id) { ... on User { disabledAt } } }', {
        id: viewer.id,
      })
    ).node.disabledAt;
  expect(await seen(bob)).toBeNull();
  expect(await seen(other.admin)).toEqual(expect.any(String));
});
