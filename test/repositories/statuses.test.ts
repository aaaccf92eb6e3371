/** Commit statuses, which external systems report, and badges. */
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { drawBadge } from '../../src/repositories/badge.ts';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';

let app: TestApp;
let ada: Client;
let bob: Client;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
  bob = await app.user('bob');
});
afterAll(() => app[Symbol.asyncDispose]());

/** Creates a repository with an initial commit. */
async function create(name: string, more: object = {}): Promise<{ id: string; sha: string }> {
  const { createRepository } = await ada.gql(
    'mutation ($input: CreateRepositoryInput!) { createRepository(input: $input) { repository { id commit(revision: "main") { sha } } } }',
    { input: { namespace: 'ada', name, ...more } },
  );
  const { id, commit } = createRepository.repository;
  return { id, sha: commit.sha };
}

async function commit(id: string, branch = 'main'): Promise<string> {
  const { createCommit } = await ada.gql(
    'mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }',
    {
      input: {
        id,
        branch,
        message: 'change',
        changes: [{ path: 'a.txt', content: crypto.randomUUID() }],
      },
    },
  );
  return createCommit.commit.sha;
}

const SET = `mutation ($input: SetCommitStatusInput!) { setCommitStatus(input: $input) {
  status { context state description targetUrl creator createdAt updatedAt } } }`;
const set = async (input: object, client = ada) =>
  (
    await client.gql(SET, {
      input: { namespace: 'ada', context: 'ci', state: 'SUCCESS', ...input },
    })
  ).setCommitStatus.status;
async function refusal(input: object, client = ada): Promise<string> {
  const { errors } = await client.graphql(SET, {
    input: { namespace: 'ada', context: 'ci', state: 'SUCCESS', ...input },
  });
  const [error] = errors ?? [];
  return [error?.extensions.code, error?.extensions.field, error?.message]
    .filter((part) => part)
    .join(' ');
}

const READ = `query ($name: String!, $sha: String!) { repository(namespace: "ada", name: $name) {
  commit(revision: $sha) { status { state statuses { context state description targetUrl creator } } } } }`;
const read = async (name: string, sha: string, client = ada) =>
  (await client.gql(READ, { name, sha })).repository.commit.status;

test('a status is created, read, and replaced by the next report of its context', async () => {
  const { sha } = await create('plain');
  expect(await read('plain', sha)).toBeNull();
  const first = await set({
    name: 'plain',
    sha,
    context: 'jenkins/test',
    state: 'PENDING',
    description: 'Running',
    targetUrl: 'https://ci.example.com/1',
  });
  expect(first).toMatchObject({
    context: 'jenkins/test',
    state: 'PENDING',
    description: 'Running',
    creator: 'ada',
    targetUrl: 'https://ci.example.com/1',
  });
  expect(first.createdAt).toBe(first.updatedAt);
  await app.admin.setMembers('ada', { bob: 'WRITE' });
  const second = await set({ name: 'PLAIN', sha, context: 'jenkins/test' }, bob);
  expect(second).toMatchObject({
    state: 'SUCCESS',
    description: null,
    targetUrl: null,
    creator: 'bob',
    createdAt: first.createdAt,
  });
  expect(second.updatedAt >= first.updatedAt).toBe(true);
  await set({ name: 'plain', sha, context: 'Lint', description: '' });
  const common = { state: 'SUCCESS', description: null, targetUrl: null };
  expect(await read('plain', sha)).toEqual({
    state: 'SUCCESS',
    statuses: [
      { context: 'Lint', creator: 'ada', ...common },
      { context: 'jenkins/test', creator: 'bob', ...common },
    ],
  });
});

test.each([
  [['SUCCESS'], 'SUCCESS'],
  [['PENDING'], 'PENDING'],
  [['FAILURE'], 'FAILURE'],
  [['ERROR'], 'FAILURE'],
  [['SUCCESS', 'PENDING'], 'PENDING'],
  [['SUCCESS', 'PENDING', 'FAILURE'], 'FAILURE'],
  [['PENDING', 'ERROR'], 'FAILURE'],
])('statuses %j combine to %s', async (states, expected) => {
  const { sha } = await create(states.join('-'));
  for (const [at, state] of states.entries())
    await set({ name: states.join('-'), sha, context: `${at}`, state });
  expect((await read(states.join('-'), sha)).state).toBe(expected);
});

test('invalid input is refused with the name of the field', async () => {
  const { id, sha } = await create('strict');
  await using workspace = await Workspace.open();
  await workspace.clone(ada, 'ada/strict', 'clone');
  await workspace.git('clone', 'tag', '-a', '-m', 'tag', 'v1');
  await workspace.git('clone', 'push', '-q', 'origin', 'v1');
  const tag = await workspace.git('clone', 'rev-parse', 'v1');
  const tree = await workspace.git('clone', 'rev-parse', 'HEAD^{tree}');
  const cases: [object, string][] = [
    [{ sha: 'main' }, 'INVALID_REQUEST sha'],
    [{ sha: sha.slice(0, 12) }, 'INVALID_REQUEST sha'],
    [{ sha: sha.toUpperCase() }, 'INVALID_REQUEST sha'],
    [{ sha: '0'.repeat(40) }, 'NOT_FOUND Commit'],
    [{ sha: tag }, 'NOT_FOUND Commit'],
    [{ sha: tree }, 'NOT_FOUND Commit'],
    [{ context: '' }, 'INVALID_REQUEST context'],
    [{ context: ' ci' }, 'INVALID_REQUEST context'],
    [{ context: 'a\nb' }, 'INVALID_REQUEST context'],
    [{ context: 'nul\0' }, 'INVALID_REQUEST context'],
    [{ context: 'x'.repeat(101) }, 'INVALID_REQUEST context'],
    [{ context: 'right \u202e left' }, 'INVALID_REQUEST context'],
    [{ description: 'x'.repeat(201) }, 'INVALID_REQUEST description'],
    [{ description: 'a\nb' }, 'INVALID_REQUEST description'],
    [{ targetUrl: 'javascript:alert(1)' }, 'INVALID_REQUEST targetUrl'],
    [{ targetUrl: 'data:text/html,x' }, 'INVALID_REQUEST targetUrl'],
    [{ targetUrl: '/relative' }, 'INVALID_REQUEST targetUrl'],
    [{ targetUrl: 'https://' }, 'INVALID_REQUEST targetUrl'],
    [{ targetUrl: 'https://a b' }, 'INVALID_REQUEST targetUrl'],
    [{ targetUrl: `https://x.example/${'x'.repeat(1_983)}` }, 'INVALID_REQUEST targetUrl'],
    [{ id: null }, 'INVALID_REQUEST Give the id or the name'],
    [{ id: 'repo_x' }, 'NOT_FOUND Repository'],
    [{ namespace: 'bob' }, 'NOT_FOUND Repository'],
  ];
  for (const [input, expected] of cases)
    expect([input, await refusal({ id, sha, ...input })]).toEqual([
      input,
      expect.stringContaining(expected),
    ]);
  expect(await read('strict', sha)).toBeNull();
  // The limits themselves are allowed, and count characters.
  const longest = {
    context: '💥'.repeat(100),
    description: '💥'.repeat(200),
    targetUrl: `https://x.example/${'x'.repeat(1_982)}`,
  };
  expect(await set({ id, sha, ...longest })).toMatchObject(longest);
});

test('a commit has at most 100 contexts, which can still be replaced', async () => {
  const { id, sha } = await create('full');
  await app.pool.query(
    `insert into commit_statuses (repository_id, sha, context, state, creator)
     select $1, $2, 'check ' || n, 'success', 'ada' from generate_series(1, 99) n`,
    [id, sha],
  );
  const outcomes = await Promise.all(
    Array.from({ length: 4 }, (_, at) => refusal({ id, sha, context: `new ${at}` })),
  );
  expect(outcomes.filter((outcome) => outcome === '')).toHaveLength(1);
  expect(outcomes.filter((outcome) => outcome.startsWith('CONFLICT context'))).toHaveLength(3);
  expect(await refusal({ id, sha, context: 'check 7', state: 'ERROR' })).toBe('');
  const { state, statuses } = await read('full', sha);
  expect([state, statuses.length]).toEqual(['FAILURE', 100]);
  // Other commits are not affected.
  expect(await refusal({ id, sha: await commit(id) })).toBe('');
});

test('concurrent reports of one context leave one status', async () => {
  const { id, sha } = await create('busy');
  const states = Array.from({ length: 12 }, (_, at) => (at % 2 ? 'SUCCESS' : 'FAILURE'));
  await Promise.all(states.map((state) => set({ id, sha, state })));
  const { statuses } = await read('busy', sha);
  expect(statuses).toHaveLength(1);
});

describe('permissions', () => {
  const token = (scopes: string[], more: object = {}) => ada.withToken({ scopes, ...more });
  test('setting needs the right to push, reading the right to read', async () => {
    const { id, sha } = await create('guarded');
    const open = await create('open', { visibility: 'PUBLIC' });
    const eve = await app.user('eve');
    const writer = await token(['REPO_WRITE']);
    expect(await refusal({ id, sha }, writer)).toBe('');
    expect(await refusal({ id, sha }, await token(['REPO_READ']))).toContain('PERMISSION_DENIED');
    expect(await refusal({ id, sha }, await token(['JOB_WRITE']))).toContain('PERMISSION_DENIED');
    const elsewhere = await token(['REPO_WRITE'], { repositories: [open.id] });
    expect(await refusal({ id, sha }, elsewhere)).toContain('PERMISSION_DENIED');
    expect(await refusal({ id: open.id, sha: open.sha }, elsewhere)).toBe('');
    // Names can be guessed, so a hidden repository does not exist.
    expect(await refusal({ name: 'guarded', sha }, eve)).toBe(
      'NOT_FOUND Repository ada/guarded not found',
    );
    expect(await refusal({ name: 'open', sha: open.sha }, eve)).toContain('PERMISSION_DENIED');
    expect(await refusal({ name: 'open', sha: open.sha }, app.anonymous)).toContain(
      'AUTHENTICATION_FAILED',
    );
    // A commit of another repository.
    const elsewhereSha = await commit(id);
    expect(await refusal({ id: open.id, sha: elsewhereSha })).toBe(
      `NOT_FOUND Commit ${elsewhereSha} not found`,
    );

    expect((await read('open', open.sha, app.anonymous)).state).toBe('SUCCESS');
    await expectRefusal(eve.graphql(READ, { name: 'guarded', sha }), 'NOT_FOUND');
  });
});

test('statuses stay with a repository that is renamed and transferred, and go with it', async () => {
  const { id, sha } = await create('moving');
  await set({ id, sha });
  await app.organization('lab');
  const change = (mutation: string, input: object, fields = 'repository { id }') =>
    app.admin.gql(
      `mutation ($input: ${mutation[0]?.toUpperCase()}${mutation.slice(1)}Input!) { ${mutation}(input: $input) { ${fields} } }`,
      { input: { id, ...input } },
    );
  await change('renameRepository', { name: 'moved' });
  expect((await read('moved', sha)).state).toBe('SUCCESS');
  await change('transferRepository', { newNamespace: 'lab' });
  expect(await refusal({ id, sha, namespace: 'lab' })).toContain('PERMISSION_DENIED');
  const count = async () =>
    (await app.pool.query('select from commit_statuses where repository_id = $1', [id])).rowCount;
  expect(await count()).toBe(1);
  await change('deleteRepository', {}, 'id');
  expect(await count()).toBe(0);
});

test('a page of commits or branches reads all states with one statement', async () => {
  const { id, sha } = await create('listed');
  const shas = [sha];
  for (let times = 0; times < 5; times++) shas.push(await commit(id));
  for (const [at, each] of shas.entries())
    if (at > 0) await set({ id, sha: each, state: at % 2 ? 'FAILURE' : 'SUCCESS' });
  await ada.gql(
    'mutation ($input: CreateBranchInput!) { createBranch(input: $input) { repository { id } } }',
    { input: { id, name: 'topic', from: shas[1] } },
  );
  const spy = vi.spyOn(app.app.services.pool, 'query');
  const { repository } = await ada.gql(
    `{ repository(namespace: "ada", name: "listed") {
       commits { nodes { sha status { state statuses { context } } } }
       branches { nodes { name commit { status { state } } } } } }`,
  );
  // Only the text: other statements, which run meanwhile, have values that JSON cannot represent.
  const texts = spy.mock.calls.map(([query]: unknown[]) =>
    typeof query === 'string' ? query : (query as { text: string }).text,
  );
  const statements = texts.filter((text) => text.includes('commit_statuses'));
  spy.mockRestore();
  // The states of each of the two lists, which are ready at different times, and the statuses of one.
  expect(statements.length).toBeLessThanOrEqual(3);
  expect(repository.commits.nodes.map((node: { status: unknown }) => node.status)).toEqual([
    { state: 'FAILURE', statuses: [{ context: 'ci' }] },
    { state: 'SUCCESS', statuses: [{ context: 'ci' }] },
    { state: 'FAILURE', statuses: [{ context: 'ci' }] },
    { state: 'SUCCESS', statuses: [{ context: 'ci' }] },
    { state: 'FAILURE', statuses: [{ context: 'ci' }] },
    null,
  ]);
  expect(repository.branches.nodes).toEqual([
    { name: 'main', commit: { status: { state: 'FAILURE' } } },
    { name: 'topic', commit: { status: { state: 'FAILURE' } } },
  ]);
});

describe('badges', () => {
  const badge = (repository: string, query = '', client = ada, headers = {}) =>
    client.get(`/ada/${repository}/-/badge.svg${query}`, headers);

  test('a badge shows the state of a branch, of all checks or of one', async () => {
    const { id, sha } = await create('badged', { visibility: 'PUBLIC' });
    const shown = async (query: string) =>
      /<title>(.*)<\/title>/.exec((await badge('badged', query, app.anonymous)).text)?.[1];
    expect(await shown('')).toBe('checks: unknown');
    await set({ id, sha, context: 'unit', state: 'PENDING' });
    expect(await shown('')).toBe('checks: pending');
    const topic = await commit(id, 'topic');
    await set({ id, sha: topic, context: 'unit' });
    await set({ id, sha: topic, context: 'lint', state: 'ERROR' });
    expect(await shown('?branch=topic')).toBe('checks: failing');
    expect(await shown('?branch=topic&job=unit')).toBe('unit: passing');
    expect(await shown('?branch=topic&job=lint')).toBe('lint: error');
    expect(await shown('?branch=topic&job=other')).toBe('other: unknown');
    expect(await shown('?job=unit&branch=')).toBe('unit: pending');

    const statusOf = async (query: string) => {
      const { status, body } = await badge('badged', query);
      return [status, body.error.message];
    };
    expect(await statusOf('?branch=none')).toEqual([404, 'Branch none not found']);
    expect(await statusOf('?branch=nul%00')).toEqual([404, 'Branch not found']);
    expect(await statusOf(`?branch=${sha}`)).toEqual([404, `Branch ${sha} not found`]);
    expect(await statusOf('?branch=main&branch=topic')).toEqual([
      400,
      'branch: is given more than once',
    ]);
    expect(await statusOf('?job=nul%00')).toEqual([400, expect.stringMatching(/^job: must be/)]);
    expect((await ada.post('/ada/badged/-/badge.svg')).status).toBe(405);
  });

  test('it is revalidated with its ETag, and shown also to browsers that ask for a page', async () => {
    const { id, sha } = await create('fresh', { visibility: 'PUBLIC' });
    const first = await badge('fresh');
    expect(first.status).toBe(200);
    const etag = first.headers.get('etag') ?? '';
    expect(first.headers.get('content-type')).toContain('image/svg+xml');
    expect(first.headers.get('cache-control')).toBe('no-cache');
    expect(first.headers.get('content-security-policy')).toBe("default-src 'none'");
    expect((await badge('fresh', '', ada, { 'if-none-match': etag })).status).toBe(304);
    await set({ id, sha });
    expect((await badge('fresh', '', ada, { 'if-none-match': etag })).status).toBe(200);
    const opened = await badge('fresh', '', app.anonymous, { accept: 'text/html' });
    expect(opened.headers.get('content-type')).toContain('image/svg+xml');
  });

  test('a private repository has a badge for its readers only', async () => {
    const { sha } = await create('secret');
    await set({ name: 'secret', sha });
    const own = await badge('secret');
    expect([own.status, own.headers.get('cache-control')]).toEqual([200, 'private, no-cache']);
    const unknown = await badge('none', '', app.anonymous);
    const hidden = await badge('secret', '', app.anonymous);
    expect([hidden.status, hidden.body.error.code]).toEqual([404, 'not_found']);
    expect([hidden, unknown].map(({ body }) => body.error.message)).toEqual([
      'Repository ada/secret not found',
      'Repository ada/none not found',
    ]);
    const refused = await badge('secret', '', app.client('Bearer wrong'));
    expect(refused.status).toBe(401);
  });

  test('hostile text stays text, and long text is shortened', () => {
    const hostile = drawBadge(`"><script>alert('x')</script>&\u0000\ufffe\ud800`, 'success');
    expect(hostile).not.toMatch(/<script|\ufffe|\p{Cs}/u);
    expect(hostile).toContain(
      "<title>&quot;&gt;&lt;script&gt;alert('x')&lt;/script&gt;&amp;: passing</title>",
    );
    const long = drawBadge('x'.repeat(100), null);
    expect(long).toContain(`>${'x'.repeat(39)}…</text>`);
    expect(long).toContain(`<title>${'x'.repeat(100)}: unknown</title>`);
  });
});
