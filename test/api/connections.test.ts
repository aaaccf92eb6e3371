/** Every connection: its pages, read one by one, are compared with the whole list. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { submit, until } from '../support/submit.ts';

let app: TestApp;
let workspace: Workspace;
let ada: Client;

beforeAll(async () => {
  app = await startApp();
  workspace = await Workspace.open();
  ada = await app.user('ada');
  for (const name of ['b', 'A', 'c', 'D', 'e']) await ada.repository(`ada/${name}`);
  // Rows with the same time, which differ only in their id.
  const { pool } = app.app.services;
  await pool.query(
    `update repositories set updated_at = '2026-01-01' where name in ('b', 'c', 'e')`,
  );

  await workspace.clone(ada, 'ada/b');
  for (let i = 0; i < 5; i++) {
    await workspace.commit('b', { [`f${i}`]: `${i}` }, `change ${i}`);
    await workspace.git('b', 'branch', `branch/${i}`);
    await workspace.git('b', 'tag', ...(i % 2 ? ['-a', '-m', 'a tag'] : []), `v${i}`);
  }
  await workspace.git('b', 'push', '-q', '--all');
  await workspace.git('b', 'push', '-q', '--tags');

  for (const username of ['bob', 'carol', 'dan']) {
    await app.user(username);
    await ada.setMembers('ada', { [username]: 'READ' });
  }
  for (const name of ['acme', 'zeta', 'beta']) await app.organization(name, { ada: 'READ' });
  for (const name of ['k1', 'k2', 'k3']) {
    await ada.post('/auth/v1/api_keys', { name });
    await ada.post('/auth/v1/pat', { name });
  }
  const job = { namespace: 'ada', repo: 'ada/b' };
  await submit(ada, {
    ...job,
    name: 'many',
    command: 'exit 1',
    retries: 2,
  });
  for (const name of ['j1', 'j2']) await submit(ada, { ...job, name, command: 'exit 0' });
  // No machine can run it, so it stays queued.
  for (const name of ['w1', 'w2', 'w3'])
    await submit(ada, { ...job, name, command: 'exit 0', gpu: 'T4' });
  for (const [name, status] of [
    ['many', 'FAILED'],
    ['j1', 'SUCCEEDED'],
    ['j2', 'SUCCEEDED'],
  ] as const)
    await until(ada, 'ada', name, status);
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

type Page = {
  totalCount: number;
  pageInfo: {
    hasNextPage: boolean;
    hasPreviousPage: boolean;
    startCursor: string | null;
    endCursor: string | null;
  };
  edges: { cursor: string }[];
  nodes: Record<string, unknown>[];
};

/** Reads a page. A list is an outer query with `HERE` for the list, its field, the selection of a node, and arguments. */
async function page([place, field, selection, args = '']: List, more: string): Promise<Page> {
  const query = `{ at: ${place.replace(
    'HERE',
    `list: ${field}(${args} ${more}) {
    totalCount pageInfo { hasNextPage hasPreviousPage startCursor endCursor }
    edges { cursor node { ${selection} } } nodes { ${selection} } }`,
  )} }`;
  const { at } = await ada.gql(query);
  return at.list as Page;
}

type List = [place: string, field: string, selection: string, args?: string];
const NAMESPACE = 'namespace(name: "ada") { HERE }';
const REPOSITORY = 'repository(namespace: "ada", name: "b") { HERE }';
const JOB = 'job(namespace: "ada", name: "many") { HERE }';
const LISTS: [name: string, List][] = [
  ...['NAME', 'CREATED_AT', 'UPDATED_AT', 'SIZE'].flatMap((sort) =>
    ['ASC', 'DESC'].map((order): [string, List] => [
      `repositories by ${sort} ${order}`,
      [NAMESPACE, 'repositories', 'id name', `sort: ${sort}, order: ${order}`],
    ]),
  ),
  ...['NAME', 'CREATED_AT', 'STARTED_AT', 'COMPLETED_AT'].flatMap((sort) =>
    ['ASC', 'DESC'].map((order): [string, List] => [
      `jobs by ${sort} ${order}`,
      [NAMESPACE, 'jobs', 'id name startedAt completedAt', `sort: ${sort}, order: ${order}`],
    ]),
  ),
  ['members', [NAMESPACE, 'members', 'id user { username }']],
  ['organizations', ['viewer { HERE }', 'organizations', 'id name']],
  ['access tokens', ['viewer { HERE }', 'accessTokens', 'id name']],
  ['API keys', ['viewer { HERE }', 'apiKeys', 'id name']],
  ['branches', [REPOSITORY, 'branches', 'name sha commit { sha message }']],
  ['tags', [REPOSITORY, 'tags', 'name sha commit { sha message }']],
  ['commits', [REPOSITORY, 'commits', 'sha message parents']],
  ['commits of a branch', [REPOSITORY, 'commits', 'sha', 'revision: "branch/3"']],
  ['attempts', [JOB, 'attempts', 'id number']],
];

test.each(LISTS)('%s: pages have no gaps and no duplicates', async (_, list) => {
  const whole = await page(list, 'first: 100');
  expect(whole.nodes.length).toBeGreaterThan(2);
  expect(whole).toMatchObject({
    totalCount: whole.nodes.length,
    pageInfo: { hasNextPage: false, hasPreviousPage: false },
    edges: whole.nodes.map((node) => ({ node })),
  });
  const seen: unknown[] = [];
  for (let after = ''; ; ) {
    const { nodes, edges, pageInfo, totalCount } = await page(list, `first: 2 ${after}`);
    seen.push(...nodes);
    expect(totalCount).toBe(whole.totalCount);
    expect(pageInfo).toEqual({
      hasNextPage: seen.length < whole.nodes.length,
      hasPreviousPage: after !== '',
      startCursor: edges[0]?.cursor,
      endCursor: edges.at(-1)?.cursor,
    });
    if (!pageInfo.hasNextPage) break;
    after = `after: "${pageInfo.endCursor}"`;
  }
  expect(seen).toEqual(whole.nodes);
});

test.each(LISTS)(
  '%s: a page that is too large, and an invalid cursor, are refused',
  async (_, list) => {
    for (const [args, field] of [
      ['first: 0', 'first'],
      ['first: 101', 'first'],
      ['first: 1000', 'first'],
      ['first: -1', 'first'],
      ['after: "nonsense"', 'after'],
      ['after: ""', 'after'],
      [`after: "${Buffer.from('["x","y","z"]').toString('base64url')}"`, 'after'],
    ]) {
      const refused = await page(list, args as string).then(
        () => 'not refused',
        (error: Error) => error.message,
      );
      expect(refused, args).toContain(`${field}: `);
    }
  },
);

test('a cursor with a time that the database cannot hold is refused', async () => {
  const list = (after: string) =>
    ada.graphql(
      `{ namespace(name: "ada") { repositories(first: 1, ${after}) { pageInfo { endCursor } } } }`,
    );
  const { endCursor } = (await list('')).data.namespace.repositories.pageInfo;
  const [sort, time, id] = JSON.parse(Buffer.from(endCursor, 'base64url').toString());
  expect(time).toMatch(/^\d{4}-/);
  for (const forged of ['-004800-01-01T00:00:00.000Z', '0000-01-01T00:00:00.000Z', '2026-01-01']) {
    const cursor = Buffer.from(JSON.stringify([sort, forged, id])).toString('base64url');
    const { errors } = await list(`after: "${cursor}"`);
    expect(errors?.[0]?.extensions, forged).toMatchObject({
      code: 'INVALID_REQUEST',
      field: 'after',
    });
  }
});

test('each order sorts by its field, with null values last in both directions', async () => {
  const names = async (list: List) =>
    (await page(list, 'first: 100')).nodes.map(({ name }) => name);
  const repositories = (args: string): List => [NAMESPACE, 'repositories', 'name', args];
  expect(await names(repositories('sort: NAME, order: ASC'))).toEqual(['A', 'b', 'c', 'D', 'e']);
  const jobs = (args: string): List => [NAMESPACE, 'jobs', 'name startedAt', args];
  for (const order of ['ASC', 'DESC'])
    expect((await names(jobs(`sort: STARTED_AT, order: ${order}`))).slice(3).sort()).toEqual([
      'w1',
      'w2',
      'w3',
    ]);
  expect(await names([NAMESPACE, 'members', 'name: role'])).toEqual([
    'ADMIN',
    'READ',
    'READ',
    'READ',
  ]);
  expect(await names(['viewer { HERE }', 'organizations', 'name'])).toEqual([
    'acme',
    'beta',
    'zeta',
  ]);
});

test('a list continues after its cursor, even if the row of the cursor was deleted and rows were added', async () => {
  const key: List = ['viewer { HERE }', 'apiKeys', 'name'];
  const first = await page(key, 'first: 1');
  expect(first.nodes).toEqual([{ name: 'k3' }]);
  await ada.delete('/auth/v1/api_keys/k3');
  await ada.post('/auth/v1/api_keys', { name: 'k4' });
  expect((await page(key, `first: 5, after: "${first.pageInfo.endCursor}"`)).nodes).toEqual([
    { name: 'k2' },
    { name: 'k1' },
  ]);

  const branch: List = [REPOSITORY, 'branches', 'name'];
  const branches = await page(branch, 'first: 2');
  expect(branches.nodes.map(({ name }) => name)).toEqual(['branch/0', 'branch/1']);
  const commits = await page([REPOSITORY, 'commits', 'message'], 'first: 2');
  await workspace.commit('b', { more: '' }, 'one more');
  await workspace.git('b', 'branch', 'a-new-one');
  await workspace.git('b', 'branch', 'branch/1-and-a-half');
  await workspace.git('b', 'push', '-q', '--all');
  await workspace.git('b', 'push', '-q', '--delete', 'origin', 'branch/1');
  const after = `first: 2, after: "${branches.pageInfo.endCursor}"`;
  expect((await page(branch, after)).nodes.map(({ name }) => name)).toEqual([
    'branch/1-and-a-half',
    'branch/2',
  ]);
  const older = await page(
    [REPOSITORY, 'commits', 'message'],
    `first: 2, after: "${commits.pageInfo.endCursor}"`,
  );
  expect(older.nodes).toEqual([{ message: 'change 2' }, { message: 'change 1' }]);
});

test('a commit by its id, and the history of a repository without commits', async () => {
  await ada.repository('ada/empty', { autoInit: false });
  const { data, errors } = await ada.graphql(`{
    repository(namespace: "ada", name: "b") {
      tagged: commit(revision: "v1") { message parents committer { name } } none: commit(revision: "none") { sha } }
    empty: repository(namespace: "ada", name: "empty") {
      commits { totalCount nodes { sha } } of: commits(revision: "main") { totalCount } branches { nodes { name } } } }`);
  expect(data).toEqual({
    repository: {
      tagged: {
        message: 'change 1',
        parents: [expect.stringMatching(/^[0-9a-f]{40}$/)],
        committer: { name: 'Ada' },
      },
      none: null,
    },
    empty: { commits: { totalCount: 0, nodes: [] }, of: null, branches: { nodes: [] } },
  });
  expect(
    errors?.map(({ path, extensions }) => `${path?.join('.')} ${extensions.code}`).sort(),
  ).toEqual(['empty.of NOT_FOUND', 'repository.none NOT_FOUND']);
});

test("another user's credentials and organizations are not shown", async () => {
  const { viewer } = await ada.gql('{ viewer { id } }');
  const query = `{ node(id: "${viewer.id}") { ... on User {
    organizations { totalCount } accessTokens { totalCount } apiKeys { totalCount } } } }`;
  const bob = await app.user('eve');
  const { data, errors } = await bob.graphql(query);
  expect(data.node).toEqual({ organizations: null, accessTokens: null, apiKeys: null });
  expect(errors?.map(({ extensions }) => extensions.code)).toEqual(
    Array(3).fill('PERMISSION_DENIED'),
  );
  expect((await app.admin.graphql(query)).data.node).toEqual({
    organizations: { totalCount: 3 },
    accessTokens: null,
    apiKeys: null,
  });
});

test("a job's repository is hidden from viewers without access, and read together with the job", async () => {
  const bob = await app.user('frank');
  const { rows } = await app.app.services.pool.query(
    `select id from namespaces where name = 'frank'`,
  );
  await app.app.services.pool.query(`update jobs set namespace_id = $1 where name = 'j2'`, [
    rows[0].id,
  ]);
  const query = '{ namespace(name: "frank") { jobs { nodes { name repository { fullName } } } } }';
  expect((await bob.gql(query)).namespace.jobs.nodes).toEqual([{ name: 'j2', repository: null }]);
  const { job } = await ada.gql(
    '{ job(namespace: "ada", name: "j1") { repository { fullName branches { nodes { name } } } } }',
  );
  expect(job.repository).toMatchObject({ fullName: 'ada/b' });
});
