/** Repositories through GraphQL. REST routes are tested separately. */
import { readdir, readFile, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import fc from 'fast-check';
import isomorphic from 'isomorphic-git';
import http from 'isomorphic-git/http/node';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { can, SCOPES, type Viewer } from '../../src/identity/permissions.ts';
import { checkOutLocally } from '../../src/repositories/checkouts.ts';
import { resolveBranch } from '../../src/repositories/repositories.ts';
import { visibleTo } from '../../src/repositories/visibility.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';

let app: TestApp;
let workspace: Workspace;
let ada: Client;
let bob: Client;

beforeAll(async () => {
  app = await startApp();
  workspace = await Workspace.open();
  ada = await app.user('ada');
  bob = await app.user('bob');
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

const CREATE = `mutation ($input: CreateRepositoryInput!) { createRepository(input: $input) { repository {
  id name namespace fullName description visibility defaultBranch sizeBytes language contentAddressed
  branchProtection secretScanning collaboratorCount branchCount tagCount cloneUrl sshUrl createdAt updatedAt pushedAt } } }`;

async function create(client: Client, name: string, more: object = {}, namespace = 'ada') {
  const input = { namespace, name, ...more };
  return (await client.gql(CREATE, { input })).createRepository.repository;
}

test('a new repository has the specified fields and an initial commit', async () => {
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

/** Code and field of the first error. */
async function refusal(client: Client, query: string, variables: object) {
  const { errors } = await client.graphql(query, variables);
  const { code, field } = errors?.[0]?.extensions ?? { code: 'NONE' };
  return field ? `${code} ${field}` : code;
}

test.each([
  [{ name: '' }, 'INVALID_REQUEST name'],
  [{ name: '..' }, 'INVALID_REQUEST name'],
  [{ name: 'a/b' }, 'INVALID_REQUEST name'],
  [{ name: 'x.GIT' }, 'INVALID_REQUEST name'],
  [{ name: 'x'.repeat(101) }, 'INVALID_REQUEST name'],
  [{ description: 'ü'.repeat(513) }, 'INVALID_REQUEST description'],
  [{ description: 'a\0b' }, 'INVALID_REQUEST description'],
  [{ defaultBranch: 'a..b' }, 'INVALID_REQUEST defaultBranch'],
  [{ defaultBranch: '-x' }, 'INVALID_REQUEST defaultBranch'],
  [{ gitignoreTemplate: 'No Such' }, 'INVALID_REQUEST gitignoreTemplate'],
  [{ gitignoreTemplate: 'Go', autoInit: false }, 'INVALID_REQUEST gitignoreTemplate'],
  [{ gitignoreTemplate: '' }, 'INVALID_REQUEST gitignoreTemplate'],
  [{ defaultBranch: 'b'.repeat(241) }, 'INVALID_REQUEST defaultBranch'],
  [{ defaultBranch: 'é'.repeat(121) }, 'INVALID_REQUEST defaultBranch'],
  [{ namespace: 'nobody' }, 'NOT_FOUND'],
  [{ namespace: 'bob' }, 'PERMISSION_DENIED'],
  [{ namespace: 'a\0' }, 'NOT_FOUND'],
])('creation refuses %j with %s', async (more, expected) => {
  const input = { namespace: 'ada', name: 'refused', ...more };
  expect(await refusal(ada, CREATE, { input })).toBe(expected);
});

test('the maximum length of the default branch equals that of pushed branches', async () => {
  const defaultBranch = 'b'.repeat(240);
  await create(ada, 'long-branch', { defaultBranch });
  const { repository } = await ada.gql(
    '{ repository(namespace: "ada", name: "long-branch") { defaultBranch commits { nodes { message } } } }',
  );
  expect(repository).toEqual({
    defaultBranch,
    commits: { nodes: [{ message: 'Initial commit' }] },
  });
});

test('names conflict case-insensitively, and a name is free after its repository is deleted', async () => {
  const { id } = await create(ada, 'Taken');
  const input = { namespace: 'ada', name: 'tAKEN' };
  expect(await refusal(ada, CREATE, { input })).toBe('ALREADY_EXISTS name');
  expect(await app.app.services.git.disk.pendingOperations()).toEqual([]);
  await ada.gql(
    'mutation ($input: DeleteRepositoryInput!) { deleteRepository(input: $input) { id } }',
    {
      input: { id },
    },
  );
  await create(ada, 'tAKEN');
});

test('templates are found case-insensitively and are added to the initial commit', async () => {
  for (const template of ['Python', 'javascript', 'C++', 'c#', 'Go', 'rust']) {
    const name = `t-${template.replace(/\W/g, 'x')}`;
    await create(ada, name, { gitignoreTemplate: template, defaultBranch: 'trunk' });
    const { repository } = await ada.gql(
      `query ($name: String!) { repository(namespace: "ada", name: $name) {
        file(path: ".gitignore") { ref sizeBytes encoding content downloadUrl } } }`,
      { name },
    );
    expect(repository.file).toMatchObject({ ref: 'trunk', encoding: 'UTF_8', downloadUrl: null });
    expect(repository.file.content.split('\n').length).toBeGreaterThan(5);
  }
});

test('rename, visibility and transfer keep the id; a transfer requires admin in both namespaces', async () => {
  const { id } = await create(ada, 'moving');
  await create(bob, 'moving', {}, 'bob');
  const run = (client: Client, name: string, input: object) =>
    client.graphql(
      `mutation ($input: ${name[0]?.toUpperCase()}${name.slice(1)}Input!) { ${name}(input: $input) { repository { id fullName visibility } } }`,
      { input: { id, ...input } },
    );
  const code = async (...args: Parameters<typeof run>) =>
    (await run(...args)).errors?.[0]?.extensions.code;

  expect(await code(bob, 'renameRepository', { name: 'x' })).toBe('PERMISSION_DENIED');
  expect(await code(app.anonymous, 'renameRepository', { name: 'x' })).toBe(
    'AUTHENTICATION_FAILED',
  );
  expect(await code(ada, 'renameRepository', { name: 'x', namespace: 'bob' })).toBe('NOT_FOUND');
  expect(await code(ada, 'renameRepository', { name: 'a b' })).toBe('INVALID_REQUEST');
  expect(
    (await run(ada, 'renameRepository', { name: 'Moving' })).data.renameRepository.repository,
  ).toMatchObject({ id, fullName: 'ada/Moving' });
  const open = await run(ada, 'changeRepositoryVisibility', { visibility: 'PUBLIC' });
  expect(open.data.changeRepositoryVisibility.repository.visibility).toBe('PUBLIC');

  expect(await code(ada, 'transferRepository', { newNamespace: 'bob' })).toBe('PERMISSION_DENIED');
  expect(await code(ada, 'transferRepository', { newNamespace: 'none' })).toBe('NOT_FOUND');
  const [at] = (await run(ada, 'transferRepository', { newNamespace: 'ada' })).errors ?? [];
  expect([at?.extensions.code, at?.extensions.field]).toEqual(['INVALID_REQUEST', 'newNamespace']);
  await app.admin.setMembers('bob', { ada: 'ADMIN' });
  expect(await code(ada, 'transferRepository', { newNamespace: 'bob' })).toBe('ALREADY_EXISTS');
  await run(ada, 'renameRepository', { name: 'moved' });
  const moved = await run(ada, 'transferRepository', { newNamespace: 'Bob' });
  expect(moved.data.transferRepository.repository).toMatchObject({ id, fullName: 'bob/moved' });
  const old = 'query ($id: ID!) { repository(namespace: "ada", id: $id) { id } }';
  expect(await refusal(ada, old, { id })).toBe('NOT_FOUND');

  const { rows } = await app.app.services.pool.query(
    'select type from events where subject = $1 order by seq',
    [id],
  );
  expect(rows.map(({ type }) => type.replace('repository.', ''))).toEqual([
    'created',
    'renamed',
    'updated',
    'renamed',
    'transferred',
  ]);
  await app.admin.gql(
    `mutation { removeMember(input: {namespace: "bob", username: "ada"}) { id } }`,
  );
});

test('lists show only visible repositories, sorted, in pages that never overlap', async () => {
  const eve = await app.user('eve');
  for (const [name, visibility] of [
    ['b', 'PUBLIC'],
    ['A', 'INTERNAL'],
    ['c', 'PRIVATE'],
  ])
    await create(eve, name as string, { visibility }, 'eve');
  const list = async (client: Client, args = '') => {
    const { repositoryPage } = await client.gql(
      `{ repositoryPage(namespace: "eve" ${args}) { nodes { name } total totalPages } }`,
    );
    const names = repositoryPage.nodes.map(({ name }: { name: string }) => name).join('');
    return `${names} ${repositoryPage.total}/${repositoryPage.totalPages}`;
  };
  expect(await list(eve)).toBe('cAb 3/1');
  expect(await list(eve, 'sort: NAME order: ASC')).toBe('Abc 3/1');
  expect(await list(eve, 'sort: CREATED_AT order: ASC perPage: 2')).toBe('bA 3/2');
  expect(await list(eve, 'sort: CREATED_AT order: ASC perPage: 2 page: 2')).toBe('c 3/2');
  expect(await list(eve, 'sort: SIZE perPage: 2 page: 9')).toBe(' 3/2');
  expect(await list(eve, 'visibility: PRIVATE')).toBe('c 1/1');
  expect(await list(bob, 'sort: NAME')).toBe('bA 2/1');
  expect(await list(app.anonymous)).toBe('b 1/1');
  const bad = async (args: string) =>
    refusal(eve, `{ repositoryPage(namespace: "eve" ${args}) { total } }`, {});
  expect(await bad('page: 0')).toBe('INVALID_REQUEST page');
  expect(await bad('perPage: 101')).toBe('INVALID_REQUEST perPage');
  expect(await refusal(eve, '{ repositoryPage(namespace: "none") { total } }', {})).toBe(
    'NOT_FOUND',
  );

  const { namespace } = await bob.gql(
    `{ namespace(name: "eve") { repositories(first: 1, sort: NAME, order: ASC) {
       totalCount edges { node { name } } pageInfo { endCursor hasNextPage } } } }`,
  );
  expect(namespace.repositories).toMatchObject({
    totalCount: 2,
    edges: [{ node: { name: 'A' } }],
    pageInfo: { hasNextPage: true },
  });
});

const UPDATE = `mutation ($input: UpdateRepositoryInput!) {
  updateRepository(input: $input) { repository { defaultBranch language } } }`;

test('clones check out the new default branch after a change', async () => {
  const { id } = await create(ada, 'turned');
  await workspace.clone(ada, 'ada/turned');
  await workspace.git('turned', 'checkout', '-q', '-b', 'trunk');
  await workspace.commit('turned', { 'main.go': 'package main\n' });
  await workspace.git('turned', 'push', '-q', 'origin', 'trunk');

  const update = (defaultBranch: string) => ({ input: { id, defaultBranch } });
  expect(await refusal(bob, UPDATE, update('trunk'))).toBe('PERMISSION_DENIED');
  expect(await refusal(ada, UPDATE, update('none'))).toBe('NOT_FOUND defaultBranch');
  expect(await refusal(ada, UPDATE, update('a..b'))).toBe('INVALID_REQUEST defaultBranch');
  const { updateRepository } = await ada.gql(UPDATE, update('trunk'));
  expect(updateRepository.repository).toEqual({ defaultBranch: 'trunk', language: 'Go' });

  const { body } = await ada.get(`/auth/v1/repository/ada/${id}`);
  expect(body).toMatchObject({ default_branch: 'trunk', language: 'Go' });
  await workspace.clone(ada, 'ada/turned', 'turned-again');
  expect(await workspace.git('turned-again', 'branch', '--show-current')).toBe('trunk');
  const url = `${app.base}/ada/turned.git`;
  const onAuth = () => ({ username: 'x', password: ada.token });
  const { HEAD } = await isomorphic.getRemoteInfo({ http, url, onAuth });
  expect(HEAD).toBe('refs/heads/trunk');

  // Pushes do not change it.
  await workspace.git('turned', 'push', '-q', 'origin', 'trunk:other');
  expect((await ada.get(`/auth/v1/repository/ada/${id}`)).body.default_branch).toBe('trunk');
  const { rows } = await app.pool.query(
    `select data -> 'repository' ->> 'default_branch' as branch from events
     where subject = $1 and type = 'repository.updated'`,
    [id],
  );
  expect(rows).toEqual([{ branch: 'trunk' }]);
  expect(await app.app.services.git.disk.pendingOperations()).toEqual([]);
});

test('a change of the default branch that a kill interrupted is finished at the next start', async () => {
  const { id } = await create(ada, 'cut-short');
  const { disk } = app.app.services.git;
  await disk.beginOperation(id, { kind: 'default-branch' });
  await app.pool.query(`update repositories set default_branch = 'trunk' where id = $1`, [id]);
  await app.restart();
  const head = await readFile(join(app.app.services.git.disk.pathOf(id), 'HEAD'), 'utf8');
  expect(head).toBe('ref: refs/heads/trunk\n');
  expect(await app.app.services.git.disk.pendingOperations()).toEqual([]);
});

test('node returns only repositories that the viewer may see', async () => {
  const { id } = await create(ada, 'node');
  const node = async (client: Client) =>
    (
      await client.gql('query ($id: ID!) { node(id: $id) { id ... on Repository { name } } }', {
        id,
      })
    ).node;
  expect(await node(ada)).toEqual({ id, name: 'node' });
  expect(await node(bob)).toBeNull();
  expect(await node(app.anonymous)).toBeNull();
});

test('lists and single reads apply the same permission rule', () => {
  const ids = fc.constantFrom('n1', 'n2', 'n3');
  const some = <T>(of: fc.Arbitrary<T>) => fc.option(fc.uniqueArray(of).map((a) => new Set(a)));
  const viewers: fc.Arbitrary<Viewer> = fc.oneof(
    fc.constant({ kind: 'anonymous' as const }),
    fc.record({
      kind: fc.constant('account' as const),
      userId: fc.constant('u'),
      username: fc.constant('u'),
      email: fc.constant('u'),
      plan: fc.constant('free' as const),
      operator: fc.boolean(),
      namespace: ids.map((id) => ({ id, name: id })),
      roles: fc
        .dictionary(ids, fc.constantFrom('read' as const, 'write' as const, 'admin' as const))
        .map((roles) => new Map(Object.entries(roles))),
      credential: fc.constant({ kind: 'pat' as const, id: 'p', name: 'p' }),
      scopes: some(fc.constantFrom(...SCOPES)),
      namespaces: some(ids),
      repositories: some(fc.constantFrom('r1', 'r2')),
    }),
  );
  const rows = fc.record({
    namespaceId: ids,
    id: fc.constantFrom('r1', 'r2'),
    visibility: fc.constantFrom('public' as const, 'private' as const, 'internal' as const),
  });
  fc.assert(
    fc.property(viewers, rows, (viewer, row) => {
      const one = can(viewer, 'repository.read', { ...row, repositoryId: row.id });
      expect(matchesCondition(visibleTo(viewer), row)).toBe(one);
    }),
    { numRuns: 2_000 },
  );
});

/** Evaluates the conditions that `visibleTo` returns. */
function matchesCondition(where: object, row: Record<string, string>): boolean {
  return Object.entries(where).every(([key, rule]) => {
    if (key === 'OR') return (rule as object[]).some((one) => matchesCondition(one, row));
    const value = row[key] as string;
    return typeof rule === 'string'
      ? value === rule
      : (rule as { in: string[] }).in.includes(value);
  });
}

test('trees, files, commits and downloads show the pushed contents', async () => {
  await create(ada, 'contents');
  await workspace.clone(ada, 'ada/contents');
  const big = 'long line of text\n'.repeat(70_000);
  await workspace.commit('contents', {
    'z.txt': 'héllo\n',
    'dir/inner/a': 'a',
    'dir.txt': 'x',
    'bin/data': Buffer.from([1, 0, 255]),
    'latin1.txt': Buffer.from('caf\xe9', 'latin1'),
    'big.txt': big,
    empty: '',
  });
  await workspace.git('contents', 'checkout', '-q', '-b', 'feature/one');
  await workspace.git(
    'contents',
    'update-index',
    '--add',
    '--cacheinfo',
    `160000,${'1'.repeat(40)},sub`,
  );
  await symlink('z.txt', join(workspace.path, 'contents/link'));
  await workspace.git('contents', 'add', 'link');
  await workspace.git('contents', 'commit', '-q', '-m', 'subject\n\nbody\n');
  await workspace.git('contents', 'tag', '-a', 'v1', '-m', 'v1');
  await workspace.git('contents', 'push', '-q', 'origin', 'main', 'feature/one', 'v1');

  const get = async (selection: string) =>
    (await ada.gql(`{ repository(namespace: "ada", name: "contents") { ${selection} } }`))
      .repository;
  const code = (selection: string) =>
    refusal(ada, `{ repository(namespace: "ada", name: "contents") { ${selection} } }`, {});

  const { tree } = await get(
    'tree(path: "/", ref: "feature/one") { path ref entries { name type sizeBytes mode } }',
  );
  expect(tree).toMatchObject({ path: '/', ref: 'feature/one' });
  expect(
    tree.entries.map(
      (e: Record<string, unknown>) => `${e.mode} ${e.type} ${e.sizeBytes} ${e.name}`,
    ),
  ).toEqual([
    '040000 DIRECTORY null bin',
    '040000 DIRECTORY null dir',
    `100644 FILE ${big.length} big.txt`,
    '100644 FILE 1 dir.txt',
    '100644 FILE 0 empty',
    '100644 FILE 4 latin1.txt',
    '120000 FILE 5 link',
    '160000 FILE 0 sub',
    '100644 FILE 7 z.txt',
  ]);
  expect(
    (await get('tree(path: "dir/inner", ref: "v1") { entries { name } }')).tree.entries,
  ).toEqual([{ name: 'a' }]);
  const tip = await workspace.git('contents', 'rev-parse', 'HEAD');
  for (const ref of ['v1', tip, tip.slice(0, 8), 'refs/heads/feature/one'])
    expect((await get(`tree(ref: "${ref}") { entries { name } }`)).tree.entries).toHaveLength(9);

  const file = async (path: string) =>
    (await get(`file(path: "${path}") { sizeBytes encoding content downloadUrl }`)).file;
  expect(await file('z.txt')).toEqual({
    sizeBytes: 7,
    encoding: 'UTF_8',
    content: 'héllo\n',
    downloadUrl: null,
  });
  expect(await file('empty')).toMatchObject({ content: '', encoding: 'UTF_8' });
  for (const [path, encoding, size] of [
    ['bin/data', 'BINARY', 3],
    ['latin1.txt', 'BINARY', 4],
    ['big.txt', 'UTF_8', big.length],
  ] as const) {
    const { downloadUrl, ...rest } = await file(path);
    expect(rest).toEqual({ sizeBytes: size, encoding, content: null });
    expect(downloadUrl).toContain(`${app.base}/repository/repo_`);
    const answer = await app.anonymous.get(downloadUrl);
    expect(answer.status).toBe(200);
    expect(answer.headers.get('content-length')).toBe(`${size}`);
  }

  const { commitPage } = await get(
    'commitPage(revision: "feature/one", perPage: 1) { nodes { sha message } total totalPages }',
  );
  expect(commitPage).toEqual({
    nodes: [{ sha: tip, message: 'subject\n\nbody' }],
    total: 3,
    totalPages: 3,
  });
  const last = await get(
    'commitPage(revision: "main", page: 2, perPage: 1) { nodes { message } total }',
  );
  expect(last.commitPage).toEqual({ nodes: [{ message: 'Initial commit' }], total: 2 });

  for (const [selection, expected] of [
    ['tree(path: "z.txt") { ref }', 'NOT_FOUND'],
    ['tree(path: "none") { ref }', 'NOT_FOUND'],
    ['tree(path: "./dir") { ref }', 'NOT_FOUND'],
    ['tree(path: "a//b") { ref }', 'INVALID_REQUEST path'],
    ['tree(path: "../x") { ref }', 'INVALID_REQUEST path'],
    ['tree(path: "a\\u0000b") { ref }', 'INVALID_REQUEST path'],
    ['tree(ref: "none") { ref }', 'NOT_FOUND'],
    ['tree(ref: "a\\u0000b") { ref }', 'NOT_FOUND'],
    ['tree(ref: "main:dir") { ref }', 'NOT_FOUND'],
    ['tree(ref: "main~1") { ref }', 'NOT_FOUND'],
    ['tree(ref: "--all") { ref }', 'NOT_FOUND'],
    ['file(path: "dir") { ref }', 'NOT_FOUND'],
    ['file(path: "") { ref }', 'INVALID_REQUEST path'],
    ['file(path: "sub", ref: "v1") { ref }', 'NOT_FOUND'],
    ['commitPage(revision: "none") { total }', 'NOT_FOUND'],
    ['commitPage(revision: "main", page: 0) { total }', 'INVALID_REQUEST page'],
  ] as const)
    expect([selection, await code(selection)]).toEqual([selection, expected]);
});

test('a download link serves ranges without credentials, and never as an HTML page', async () => {
  await create(ada, 'download');
  await workspace.clone(ada, 'ada/download');
  await workspace.commit('download', { 'ä page.html': Buffer.from('\0<script>alert(1)</script>') });
  await workspace.git('download', 'push', '-q', 'origin', 'HEAD');
  const { repository } = await ada.gql(
    '{ repository(namespace: "ada", name: "download") { id file(path: "ä page.html") { downloadUrl } } }',
  );
  const url: string = repository.file.downloadUrl;
  const get = (headers?: Record<string, string>, address = url) =>
    app.anonymous.get(address, headers);
  const whole = await get();
  expect(whole.text).toBe('\0<script>alert(1)</script>');
  expect(Object.fromEntries(whole.headers)).toMatchObject({
    'content-type': 'application/octet-stream',
    'x-content-type-options': 'nosniff',
    'content-security-policy': expect.stringContaining('sandbox'),
    'content-disposition': expect.stringMatching(
      /^attachment; .*filename\*=UTF-8''%C3%A4%20page.html/,
    ),
    'accept-ranges': 'bytes',
  });
  const part = await get({ Range: 'bytes=1-8' });
  expect([part.status, part.text, part.headers.get('content-range')]).toEqual([
    206,
    '<script>',
    'bytes 1-8/26',
  ]);
  expect((await get({ Range: 'bytes=-9' })).text).toBe('</script>');
  expect((await get({ Range: 'bytes=20-' })).text).toBe('cript>'.slice(-6));
  const beyond = await get({ Range: 'bytes=26-' });
  expect([beyond.status, beyond.headers.get('content-range')]).toEqual([416, 'bytes */26']);
  expect(beyond.headers.get('content-type')).toContain('application/json');
  expect((await get({ Range: 'bytes=1-2', 'If-Range': '"other"' })).status).toBe(200);
  const etag = whole.headers.get('etag') as string;
  // `fetch` adds `Cache-Control: no-cache` to the request.
  expect((await get({ 'If-None-Match': etag })).status).toBe(304);
  expect((await get({ 'If-None-Match': '"other"' })).status).toBe(200);
  expect((await app.anonymous.request('HEAD', url)).headers.get('content-length')).toBe('26');

  expect((await get({}, url.replace(/expires=\d+/, 'expires=99999999999'))).status).toBe(403);
  expect((await get({}, url.split('?')[0])).status).toBe(403);
  await ada.gql(
    'mutation ($input: DeleteRepositoryInput!) { deleteRepository(input: $input) { id } }',
    {
      input: { id: repository.id },
    },
  );
  expect((await get()).status).toBe(404);
});

test('jobs get a fresh checkout of a branch, and an error without permission', async () => {
  await create(ada, 'work', { gitignoreTemplate: 'Go' });
  const { services } = app.app;
  const viewer = await services.db.user.findUniqueOrThrow({ where: { username: 'ada' } });
  const account = (operator: boolean): Viewer => ({
    kind: 'account',
    userId: viewer.id,
    username: 'ada',
    email: 'x',
    plan: 'free',
    operator,
    namespace: { id: 'ns_other', name: 'other' },
    roles: new Map(),
    credential: { kind: 'pat', id: 'p', name: 'p' },
    scopes: null,
    namespaces: null,
    repositories: null,
  });
  const resolve = (repo: string, branch = 'main', who = account(true)) =>
    resolveBranch(services, who, { repo, branch });
  await expect(resolve('ada/none')).rejects.toMatchObject({ code: 'not_found' });
  await expect(resolve('ada/work', 'none')).rejects.toMatchObject({ code: 'not_found' });
  await expect(resolve('work')).rejects.toMatchObject({ code: 'invalid_request', field: 'repo' });
  await expect(resolve('ada/work', 'main', account(false))).rejects.toMatchObject({
    code: 'not_found',
  });
  const found = await resolve('Ada/WORK');
  const dir = join(workspace.path, 'checkout');
  const limits = { maxBytes: 2 ** 30, room: 2 ** 40, maxFiles: 1_000 };
  await checkOutLocally(services, { ...found, hasLargeFiles: false, dir, ...limits });
  expect(await workspace.git('checkout', 'rev-parse', 'HEAD')).toBe(found.commitSha);
  expect(await workspace.git('checkout', 'status', '--porcelain')).toBe('');
  expect(await readdir(dir)).toEqual(['.git', '.gitignore']);
});
