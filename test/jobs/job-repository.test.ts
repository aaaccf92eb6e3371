/** The repository and branch that a job shows. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';
import { cancel, job, remove, submit, submitRaw } from '../support/submit.ts';

const REPO =
  'mutation ($input: CreateRepositoryInput!) { createRepository(input: $input) { repository { id } } }';
const base = { namespace: 'ada', command: 'true' };

let app: TestApp;
let ada: Client;
/** A user who may read Ada's namespace. */
let bob: Client;

beforeAll(async () => {
  // Without slots, so that jobs stay queued.
  app = await startApp({ overrides: { runner: fakeRunner({ machines: [] }) } });
  [ada, bob] = [await app.user('ada'), await app.user('bob')];
  await app.organization('apart', { ada: 'ADMIN' });
  await ada.setMembers('ada', { bob: 'READ' });
});
afterAll(() => app[Symbol.asyncDispose]());

const events = async (name: string) => {
  const { namespace } = await ada.gql(
    '{ namespace(name: "ada") { events(first: 100) { nodes { payload } } } }',
  );
  const nodes: { payload: { name: string; repo: string } }[] = namespace.events.nodes;
  return nodes.filter(({ payload }) => payload.name === name).map(({ payload }) => payload.repo);
};
const repoOf = async (client: Client, name: string) => {
  const { body } = await client.get(`/ada/job/${name}`);
  expect((await job(client, 'ada', name)).repo).toBe(body.repo);
  return body.repo;
};

test('without a branch a job runs main if it exists, otherwise the default branch', async () => {
  const create = (name: string, defaultBranch: string) =>
    ada.gql(REPO, { input: { namespace: 'ada', name, defaultBranch } });
  await create('trunk-only', 'trunk');
  const job = await submit(ada, { ...base, repo: 'ada/trunk-only', name: 'of-trunk' });
  expect(job).toMatchObject({ branch: 'trunk', commitSha: expect.stringMatching(/^[0-9a-f]+$/) });
  const named = { ...base, repo: 'ada/trunk-only', name: 'named', branch: 'main' };
  await expectRefusal(submitRaw(ada, named), 'NOT_FOUND');
  const { repository } = await ada.gql(
    '{ repository(namespace: "ada", name: "trunk-only") { id } }',
  );
  await ada.gql(
    'mutation ($input: CreateBranchInput!) { createBranch(input: $input) { repository { id } } }',
    { input: { id: repository.id, name: 'main', from: 'trunk' } },
  );
  const both = await submit(ada, { ...base, repo: 'ada/trunk-only', name: 'of-both' });
  expect(both.branch).toBe('main');
  const empty = { namespace: 'ada', name: 'empty', autoInit: false };
  await ada.gql(REPO, { input: empty });
  const nothing = await submitRaw(ada, { ...base, repo: 'ada/empty', name: 'of-nothing' });
  expect(nothing.errors?.[0]).toMatchObject({ extensions: { code: 'NOT_FOUND' } });
});

test('a job shows the current name of its repository, also after a rename and a transfer', async () => {
  await ada.repository('ada/MoVed');
  const created = await ada.post('/auth/v1/seed/ada/jobs', {
    name: 'moved',
    command: 'true',
    repo: 'ADA/moved',
    gpu: 'none',
  });
  expect([created.status, created.body.repo]).toEqual([201, 'ada/MoVed']);
  const { repository } = await ada.gql('{ repository(namespace: "ada", name: "moved") { id } }');
  const path = `/auth/v1/repository/ada/${repository.id}`;
  expect((await ada.put(`${path}/name`, { name: 'Renamed' })).status).toBe(200);
  expect(await repoOf(ada, 'moved')).toBe('ada/Renamed');

  const moved = await ada.post(`${path}/transfer`, { new_namespace: 'apart' });
  expect(moved.status).toBe(200);
  expect(await repoOf(ada, 'moved')).toBe('apart/Renamed');
  // A viewer who may see the job but not the repository does not see its new name, and neither do webhooks.
  expect(await repoOf(bob, 'moved')).toBe('ada/MoVed');
  await cancel(ada, 'ada', 'moved');
  // Events become visible only when no earlier transaction is open, also in other databases of the cluster.
  await expect.poll(() => events('moved')).toEqual(['ada/MoVed', 'ada/MoVed']);
  const shown = `/auth/v1/repository/apart/${repository.id}/visibility`;
  expect((await ada.post(shown, { visibility: 'public' })).status).toBe(200);
  expect(await repoOf(bob, 'moved')).toBe('apart/Renamed');
  await remove(ada, 'ada', 'moved');
  await expect.poll(async () => (await events('moved'))[0]).toBe('apart/Renamed');
});

test('a job shows the original name of a deleted repository', async () => {
  await ada.repository('ada/Gone');
  await submit(ada, { ...base, name: 'orphan', repo: 'Ada/gone' });
  const { repository } = await ada.gql('{ repository(namespace: "ada", name: "gone") { id } }');
  await ada.delete(`/auth/v1/repository/ada/${repository.id}`);
  expect(await repoOf(ada, 'orphan')).toBe('ada/Gone');
  const { namespace } = await ada.gql(
    '{ namespace(name: "ada") { jobs(filter: { repository: "ADA/gone" }) { nodes { name repo } } } }',
  );
  expect(namespace.jobs.nodes).toEqual([{ name: 'orphan', repo: 'ada/Gone' }]);
  const rerun = await ada.graphql(
    'mutation { rerunJob(input: { namespace: "ada", name: "orphan" }) { job { id } } }',
  );
  await expectRefusal(rerun, 'NOT_FOUND');
});
