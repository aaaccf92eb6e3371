/** Deletion of organizations and users: what prevents it, what is removed with them, and what stays. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { removeDeletedNamespaces } from '../../src/identity/deletion.ts';
import { removeMarkedLeftovers } from '../../src/jobs/artifacts/kept.ts';
import { removeJobsOfDeleted } from '../../src/jobs/retention/removal.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { ENDPOINT } from '../support/rest/cases.ts';
import { cancel, remove, submit, until } from '../support/submit.ts';

let app: TestApp;
let ada: Client;
let bob: Client;

beforeAll(async () => {
  app = await startApp({
    config: { webhooks: { allow: ['127.0.0.1'] } },
    overrides: { runner: fakeRunner({ images: true }) },
  });
  [ada, bob] = [await app.user('ada'), await app.user('bob')];
});
afterAll(() => app[Symbol.asyncDispose]());

const deleteOrganization = (client: Client, name: string) =>
  client.graphql(
    'mutation ($name: String!) { deleteOrganization(input: { name: $name }) { id } }',
    { name },
  );
const deleteUser = (client: Client, username: string) =>
  client.graphql(
    'mutation ($username: String!) { deleteUser(input: { username: $username }) { id } }',
    { username },
  );
const refusal = async (answer: ReturnType<typeof deleteUser>) => {
  const error = (await answer).errors?.[0];
  return error && [error.extensions.code, error.message];
};

const rowsOf = async (table: string, id: string, column = 'namespace_id') =>
  (await app.pool.query(`select from ${table} where ${column} = $1`, [id])).rowCount;

/** Runs the maintenance task. */
async function maintain(): Promise<void> {
  const { services } = app.app;
  while (await removeJobsOfDeleted(services));
  while (await removeMarkedLeftovers(services));
  await removeDeletedNamespaces(services);
}

test('an organization can be deleted when its repositories and unfinished jobs are gone', async () => {
  const id = await app.organization('acme', { ada: 'ADMIN' });
  const repo = await ada.repository('acme/code');
  await submit(ada, { namespace: 'acme', name: 'held', image: 'x', command: 'busy' });
  expect(await refusal(deleteOrganization(bob, 'acme'))).toEqual([
    'PERMISSION_DENIED',
    expect.any(String),
  ]);
  expect(await refusal(deleteOrganization(ada, 'acme'))).toEqual([
    'CONFLICT',
    'acme is not empty (repositories: 1, unfinished jobs: 1): delete or transfer its repositories and cancel its jobs first',
  ]);
  await cancel(ada, 'acme', 'held');
  await until(ada, 'acme', 'held', 'CANCELLED');
  expect((await refusal(deleteOrganization(ada, 'acme')))?.[1]).toContain('(repositories: 1)');
  await ada.delete(`/auth/v1/repository/acme/${repo}`);
  expect(await refusal(deleteOrganization(ada, 'ada'))).toEqual(['CONFLICT', expect.any(String)]);

  // Removed with it: finished jobs with artifacts, kept artifacts, keys, members, webhooks.
  const artifacts = { command: 'echo done; mkdir out; exit 0', outputPath: 'out' };
  for (const name of ['done', 'kept']) {
    await submit(ada, { namespace: 'acme', name, image: 'x', ...artifacts });
    await until(ada, 'acme', name, 'SUCCEEDED');
  }
  await remove(ada, 'acme', 'kept');
  const { body: key } = await ada.post('/auth/v1/api_keys', { name: 'acmes', namespace: 'acme' });
  const hook = async (namespaces: string[]) => {
    const json = { name: 'x', url: ENDPOINT, event_types: ['job.failed'], namespaces };
    return (await ada.post('/auth/v1/seed/webhooks', json)).body.id;
  };
  const [own, shared] = [await hook(['acme']), await hook(['acme', 'ada'])];

  const { data } = await deleteOrganization(ada, 'ACME');
  expect(data.deleteOrganization.id).toBe(id);
  expect((await ada.get('/acme/jobs')).status).toBe(404);
  expect((await ada.get('/auth/v1/repository/acme')).status).toBe(404);
  expect(await refusal(deleteOrganization(ada, 'acme'))).toEqual([
    'NOT_FOUND',
    'Namespace acme not found',
  ]);
  expect((await app.client(`API-Key ${key.key}`).get('/auth/v1/whoami')).status).toBe(401);
  expect((await ada.get(`/auth/v1/seed/webhooks/${own}`)).status).toBe(404);
  expect((await ada.get(`/auth/v1/seed/webhooks/${shared}`)).body.namespaces).toEqual(['ada']);
  const { node, organizations, search } = await app.admin.gql(
    `query ($id: ID!) { node(id: $id) { id } organizations { nodes { name } }
      search(text: "ns") { __typename } }`,
    { id },
  );
  expect([node, organizations.nodes, search]).toEqual([null, [], []]);

  // The name is free, and a new organization can use it.
  const again = await app.organization('acme', { ada: 'ADMIN' });
  expect(again).not.toBe(id);
  const { namespace } = await ada.gql(
    '{ namespace(name: "acme") { jobs { totalCount } members { totalCount } } }',
  );
  expect(namespace).toEqual({ jobs: { totalCount: 0 }, members: { totalCount: 2 } });

  await maintain();
  for (const table of ['jobs', 'kept_artifacts', 'usage_days', 'list_counts'])
    expect(await rowsOf(table, id), table).toBe(0);
  expect(await rowsOf('namespaces', id, 'id')).toBe(0);
  const entries = await app.admin.gql('{ auditLog { nodes { action name namespace } } }');
  expect(entries.auditLog.nodes).toContainEqual({
    action: 'ORGANIZATION_DELETE',
    name: 'acme',
    namespace: null,
  });
});

test('operators delete a user with all credentials, when nothing depends on the user', async () => {
  const carol = await app.user('carol');
  const id = (await carol.gql('{ viewer { id } }')).viewer.id;
  await app.organization('beta', { ada: 'ADMIN', carol: 'ADMIN' });
  for (const username of ['ada', 'admin'])
    await app.admin.gql(
      `mutation { removeMember(input: { namespace: "beta", username: "${username}" }) { id } }`,
    );
  const theirs = await carol.repository('beta/code');
  await submit(carol, { namespace: 'beta', name: 'by-carol', image: 'x', command: 'exit 0' });
  await until(carol, 'beta', 'by-carol', 'SUCCEEDED');
  const own = await carol.repository('carol/code');

  expect((await refusal(deleteUser(bob, 'carol')))?.[0]).toBe('PERMISSION_DENIED');
  expect((await refusal(deleteUser(carol, 'carol')))?.[0]).toBe('PERMISSION_DENIED');
  expect((await refusal(deleteUser(app.admin, 'admin')))?.[0]).toBe('CONFLICT');
  expect((await refusal(deleteUser(app.admin, 'beta')))?.[0]).toBe('NOT_FOUND');
  expect(await refusal(deleteUser(app.admin, 'carol'))).toEqual([
    'CONFLICT',
    'The user is the last admin of beta: make another member an admin first',
  ]);
  await app.admin.setMembers('beta', { ada: 'ADMIN' });
  expect(await refusal(deleteUser(app.admin, 'carol'))).toEqual([
    'CONFLICT',
    'carol is not empty (repositories: 1): delete or transfer its repositories and cancel its jobs first',
  ]);
  await carol.delete(`/auth/v1/repository/carol/${own}`);

  expect((await deleteUser(app.admin, 'Carol')).data.deleteUser.id).toBe(id);
  expect((await carol.get('/auth/v1/whoami')).status).toBe(401);
  expect((await app.admin.get('/auth/v1/repository/carol')).status).toBe(404);
  expect((await refusal(deleteUser(app.admin, 'carol')))?.[0]).toBe('NOT_FOUND');
  // Objects in organizations stay.
  expect((await ada.get(`/auth/v1/repository/beta/${theirs}`)).status).toBe(200);
  expect((await ada.get('/beta/job/by-carol')).body.status).toBe('succeeded');
  await maintain();
  expect(await rowsOf('namespaces', id, 'user_id')).toBe(0);
  await app.user('carol');
});
