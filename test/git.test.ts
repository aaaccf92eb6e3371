import { afterAll, beforeAll, expect, test } from 'vitest';
import { Desk, remote } from './git.ts';
import { type Client, startApp, type TestApp } from './harness.ts';

let app: TestApp;
let desk: Desk;
let ada: Client;
let _bob: Client;

beforeAll(async () => {
  app = await startApp();
  desk = await Desk.open();
  ada = await app.user('ada');
  _bob = await app.user('bob');
});
afterAll(async () => {
  await desk[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

const FIELDS = `id name defaultBranch sizeBytes language branchCount tagCount createdAt updatedAt pushedAt`;

async function create(name: string, more: object = {}): Promise<{ id: string; name: string }> {
  const input = { namespace: 'ada', name, ...more };
  const query = `mutation ($input: CreateRepositoryInput!) { createRepository(input: $input) { id name } }`;
  return (await ada.gql(query, { input })).createRepository;
}

async function read(name: string) {
  const query = `query ($name: String!) { repository(namespace: "ada", name: $name) { ${FIELDS} } }`;
  return (await ada.gql(query, { name })).repository;
}

async function _update(id: string, changes: object) {
  const query = `mutation ($input: UpdateRepositoryInput!) { updateRepository(input: $input) { id } }`;
  await ada.gql(query, { input: { id, ...changes } });
}

/** A clone with a first push in it. */
async function seeded(name: string, more: object = {}) {
  const repository = await create(name, more);
  await desk.git('.', 'clone', '-q', remote(ada, `ada/${name}`), name);
  await desk.commit(name, { 'src/main.py': 'print("hello")\n'.repeat(20), 'README.md': '# x\n' });
  await desk.git(name, 'push', '-q', 'origin', 'HEAD');
  return repository;
}

test('a clone, a push and what the record says of it afterwards', async () => {
  await seeded('first');
  await desk.git('first', 'checkout', '-q', '-b', 'topic/a');
  await desk.git('first', 'tag', '-a', 'v1', '-m', 'one');
  await desk.git('first', 'push', '-q', 'origin', 'topic/a', 'v1');
  const record = await read('first');
  expect(record).toMatchObject({ language: 'Python', branchCount: 2, tagCount: 1 });
  expect(record.sizeBytes).toBeGreaterThan(0);
  expect(Date.parse(record.pushedAt)).toBeGreaterThan(Date.parse(record.createdAt));
  expect(record.updatedAt).toBe(record.pushedAt);
  await desk.git('.', 'clone', '-q', remote(ada, 'ada/first'), 'again');
  expect(await desk.git('again', 'rev-list', '--count', 'HEAD')).toBe('2');
  expect(await desk.git('again', 'fsck', '--strict')).toBe('');

  await desk.git('first', 'push', '-q', 'origin', ':topic/a');
  expect(await read('first')).toMatchObject({ branchCount: 1 });
});
