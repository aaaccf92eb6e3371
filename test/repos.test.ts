/** Repositories through GraphQL: the domain's rules. REST has its own walk over the routes. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Client, startApp, type TestApp } from './harness.ts';

let app: TestApp;
let ada: Client;
let bob: Client;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
  bob = await app.user('bob');
});
afterAll(() => app[Symbol.asyncDispose]());

const CREATE = `mutation ($input: CreateRepositoryInput!) { createRepository(input: $input) {
  id name namespace fullName description visibility defaultBranch sizeBytes language contentAddressed
  branchProtection secretScanning collaboratorCount branchCount tagCount cloneUrl sshUrl createdAt updatedAt pushedAt } }`;

async function create(client: Client, name: string, more: object = {}, namespace = 'ada') {
  const input = { namespace, name, ...more };
  return (await client.gql(CREATE, { input })).createRepository;
}

test('a new repository has the fields and the first commit of the specification', async () => {
  const made = await create(ada, 'Hello.World', { description: 'Fünf 🎉' });
  expect(made).toEqual({
    id: expect.stringMatching(/^repo_/),
    name: 'Hello.World',
    namespace: 'ada',
    fullName: 'ada/Hello.World',
    description: 'Fünf 🎉',
    visibility: 'PRIVATE',
    defaultBranch: 'main',
    sizeBytes: 0,
    language: null,
    contentAddressed: true,
    branchProtection: false,
    secretScanning: false,
    collaboratorCount: 1,
    branchCount: 1,
    tagCount: 0,
    cloneUrl: `${app.base}/ada/Hello.World.git`,
    sshUrl: 'ssh://git@127.0.0.1:2222/ada/Hello.World.git',
    createdAt: expect.any(String),
    updatedAt: made.createdAt,
    pushedAt: null,
  });
  const { repository } = await ada.gql(
    `query ($id: ID!) { repository(namespace: "ADA", id: $id) {
      tree { path ref entries { name } }
      commitPage(revision: "main") { nodes { sha message author { name email date } } pagination { total totalPages } }
      branches { edges { node { name sha } } } } }`,
    { id: made.id },
  );
  const [commit] = repository.commitPage.nodes;
  expect(repository).toEqual({
    tree: { path: '', ref: 'main', entries: [] },
    commitPage: {
      nodes: [
        {
          sha: expect.stringMatching(/^[0-9a-f]{40}$/),
          message: 'Initial commit',
          author: { name: 'ada', email: 'ada@example.com', date: expect.any(String) },
        },
      ],
      pagination: { total: 1, totalPages: 1 },
    },
    branches: { edges: [{ node: { name: 'main', sha: commit.sha } }] },
  });
});
