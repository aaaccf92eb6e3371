/** Branches, tags and commits created with GraphQL, checked with stock git. */
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Workspace } from '../support/git.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';

let app: TestApp;
let workspace: Workspace;
let ada: Client;
let id: string;

beforeAll(async () => {
  app = await startApp();
  workspace = await Workspace.open();
  ada = await app.user('ada');
  id = await ada.repository('ada/made', { autoInit: true });
  await ada.repository('ada/empty', { autoInit: false });
});
afterAll(async () => {
  await workspace[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

const FIELDS =
  'repository { branchCount tagCount pushedAt branches { nodes { name } } tags { nodes { name } } }';
const change = (mutation: string, input: object, fields = FIELDS, client = ada) =>
  client.graphql(
    `mutation ($input: ${mutation[0]?.toUpperCase()}${mutation.slice(1)}Input!) { ${mutation}(input: $input) { ${fields} } }`,
    { input: { id, ...input } },
  );
const commit = (input: object, client = ada) =>
  change(
    'createCommit',
    { branch: 'main', message: 'change', ...input },
    'commit { sha message parents author { name email } }',
    client,
  );
async function problem(answer: ReturnType<typeof change>): Promise<string> {
  const { errors } = await answer;
  return `${errors?.[0]?.extensions?.code} ${errors?.[0]?.message}`;
}
const made = async (input: object) => (await commit(input)).data?.createCommit.commit;

test('creating and deleting branches and tags is recorded as pushes', async () => {
  const { data } = await change('createBranch', { name: 'topic/one' });
  expect(data?.createBranch.repository).toMatchObject({
    branchCount: 2,
    pushedAt: expect.any(String),
    branches: { nodes: [{ name: 'main' }, { name: 'topic/one' }] },
  });
  const tagged = await change('createTag', { name: 'v1', from: 'topic/one' });
  expect(tagged.data?.createTag.repository).toMatchObject({
    tagCount: 1,
    tags: { nodes: [{ name: 'v1' }] },
  });
  // A repetition changes nothing; at a different commit the name is taken.
  expect((await change('createBranch', { name: 'topic/one' })).errors).toBeUndefined();
  const sha = (await made({ changes: [{ path: 'a.txt', content: 'a\n' }] })).sha;
  expect(await problem(change('createTag', { name: 'v1' }))).toContain('ALREADY_EXISTS');
  const { rows } = await app.app.services.pool.query(
    `select data->'push'->'refs' as refs from events where type = 'repository.pushed' and subject = $1 order by seq`,
    [id],
  );
  expect(rows.map(({ refs }) => refs[0].ref)).toEqual([
    'refs/heads/topic/one',
    'refs/tags/v1',
    'refs/heads/main',
  ]);
  expect(rows.at(-1)?.refs[0].after).toBe(sha);
  await change('deleteTag', { name: 'v1' });
  const gone = await change('deleteBranch', { name: 'topic/one' });
  expect(gone.data?.deleteBranch.repository).toMatchObject({ branchCount: 1, tagCount: 0 });
  expect(await problem(change('deleteBranch', { name: 'topic/one' }))).toBe(
    'NOT_FOUND Ref not found',
  );
  for (const name of ['a b', 'HEAD', 'f'.repeat(40), '-x', '', 'refs/heads/main'])
    expect([name, await problem(change('createBranch', { name }))]).toEqual([
      name,
      expect.stringContaining('INVALID_REQUEST name'),
    ]);
  expect(await problem(change('createBranch', { name: 'x', from: 'nothing' }))).toContain(
    'NOT_FOUND Revision',
  );
});

test('a tag with a message is annotated and names its tagger', async () => {
  const input = { name: 'release/1', from: 'main', message: 'First\n\nwith "all" of <it>' };
  const tags =
    'repository { tagCount tags { nodes { name sha commit { sha } annotation { sha message tagger { name email } } } } }';
  const { data } = await change('createTag', input, tags);
  await change('createTag', { name: 'light' });
  const { repository } = data?.createTag ?? {};
  const [tag] = repository.tags.nodes;
  expect(tag).toMatchObject({
    name: 'release/1',
    commit: { sha: tag.sha },
    annotation: { message: input.message, tagger: { name: 'ada', email: 'ada@example.com' } },
  });
  // A repetition changes nothing; with a different message the name is taken.
  const again = await change('createTag', input, tags);
  expect(again.data?.createTag.repository.tags.nodes[1]).toEqual(tag);
  for (const message of [undefined, 'other'])
    expect(await problem(change('createTag', { ...input, message }))).toContain('ALREADY_EXISTS');
  expect(await problem(change('createTag', { name: 'x', message: ' ' }))).toContain(
    'INVALID_REQUEST message',
  );

  // The tag as stock git reads it; and tags made by stock git, signed and long.
  await workspace.clone(ada, 'ada/made', 'tagged');
  expect(await workspace.git('tagged', 'cat-file', '-t', 'release/1')).toBe('tag');
  expect(await workspace.git('tagged', 'tag', '-l', '--format=%(contents)', 'release/1')).toBe(
    input.message,
  );
  await workspace.git('tagged', 'fsck', '--strict');
  const signed = 'Signed\n-----BEGIN SSH SIGNATURE-----\nU1NIU0lH\n-----END SSH SIGNATURE-----';
  await workspace.git('tagged', 'tag', '-a', '-m', signed, 'signed');
  await workspace.git('tagged', 'tag', '-a', '-m', 'x'.repeat(70_000), 'long');
  // A tag of a tag of a tag, and a tag of a tag of a directory.
  await workspace.git('tagged', 'tag', '-a', '-m', 'Second', 'outer', 'signed');
  await workspace.git('tagged', 'tag', '-a', '-m', 'Third', 'outermost', 'outer');
  const tree = await workspace.git('tagged', 'rev-parse', 'HEAD^{tree}');
  await workspace.git('tagged', 'tag', '-a', '-m', 'Files', 'files', tree);
  await workspace.git('tagged', 'tag', '-a', '-m', 'Of them', 'outer-files', 'files');
  await workspace.git('tagged', 'push', '-q', 'origin', '--tags');
  const nested = await ada.gql(
    '{ repository(namespace: "ada", name: "made") { tags { nodes { name sha commit { sha } annotation { sha message } } } } }',
  );
  const head = await workspace.git('tagged', 'rev-parse', 'HEAD');
  for (const [name, message, commit] of [
    ['outer', 'Second', head],
    ['outermost', 'Third', head],
    ['outer-files', 'Of them', null],
  ] as const)
    expect(nested.repository.tags.nodes).toContainEqual({
      name,
      sha: commit ?? tree,
      commit: commit && { sha: commit },
      annotation: { sha: await workspace.git('tagged', 'rev-parse', name), message },
    });
  const read = await ada.gql(
    '{ repository(namespace: "ada", name: "made") { tags { nodes { name annotation { message tagger { name } } } } branches { nodes { annotation { sha } } } } }',
  );
  expect(read.repository.branches.nodes[0].annotation).toBeNull();
  const byName = new Map<string, { message: string } | null>(
    read.repository.tags.nodes.map((one: { name: string; annotation: null }) => [
      one.name,
      one.annotation,
    ]),
  );
  expect(byName.get('light')).toBeNull();
  expect(byName.get('signed')).toEqual({ message: 'Signed', tagger: { name: 'Ada' } });
  expect(byName.get('long')?.message).toMatch(/x\n\[\d+ more bytes are not shown\]$/);
});

/** Makes PostgreSQL refuse what a statement does to a table, until the returned function is called. */
async function refuseIn(table: string, when: string): Promise<() => Promise<unknown>> {
  const name = `refuse_${table}`;
  await app.pool.query(`
    create function ${name}() returns trigger language plpgsql as
      $$ begin raise exception 'refused by the test'; end $$;
    create trigger ${name} before ${when} execute function ${name}()`);
  return () => app.pool.query(`drop trigger ${name} on ${table}; drop function ${name}()`);
}

test('a request with an Idempotency-Key makes one commit, whatever is lost of its record and answer', async () => {
  const query = `mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }`;
  const changes = [{ path: 'once.txt', content: 'once' }];
  const variables = { input: { id, branch: 'once', message: 'Once', changes } };
  const send = (key: string) =>
    ada.request('POST', '/graphql', {
      headers: { 'content-type': 'application/json', 'idempotency-key': key },
      body: JSON.stringify({ query, variables }),
    });
  const shaOf = (body: Awaited<ReturnType<typeof send>>['body']) =>
    body.data?.createCommit?.commit.sha;
  const history = async () =>
    (await ada.get(`/auth/v1/repository/ada/${id}/commits/once`)).body.data;

  // The push is in git, and cannot be recorded.
  const accept = await refuseIn(
    'events',
    `insert on events for each row when (new.type = 'repository.pushed')`,
  );
  const failed = await send('unrecorded');
  expect(failed.body.errors?.[0]?.extensions.code).toBe('INTERNAL_ERROR');
  await accept();
  const sha = shaOf((await send('unrecorded')).body);
  expect(sha).toMatch(/^[0-9a-f]{40}$/);
  const [first] = await history();
  expect(first.sha).toBe(sha);

  // The answer cannot be stored: the client does not get it.
  const keep = await refuseIn(
    'idempotent_requests',
    'update on idempotent_requests for each row when (new.status is not null)',
  );
  const unsent = await send('unstored');
  expect([unsent.status, unsent.body.errors[0].message]).toEqual([
    503,
    expect.stringContaining('could not be stored'),
  ]);
  await keep();
  // As if the claim had been abandoned half a minute ago.
  await app.pool.query(`update idempotent_requests set created_at = now() - interval '1 minute'`);
  const again = shaOf((await send('unstored')).body);
  const all: { sha: string; message: string }[] = await history();
  const made = all.filter(({ message }) => message.startsWith('Once'));
  expect(made.map((one) => one.sha)).toEqual([again, sha]);
});

test('a try that another server has not recorded yet makes no second commit', async () => {
  const { pushes, git } = app.app.services;
  const query = `mutation ($input: CreateCommitInput!) { createCommit(input: $input) { commit { sha } } }`;
  const changes = [{ path: 'held.txt', content: 'held' }];
  const variables = { input: { id, branch: 'held', message: 'Held', changes } };
  const send = () =>
    ada.request('POST', '/graphql', {
      headers: { 'content-type': 'application/json', 'idempotency-key': 'held' },
      body: JSON.stringify({ query, variables }),
    });
  const accept = await refuseIn(
    'events',
    `insert on events for each row when (new.type = 'repository.pushed')`,
  );
  expect((await send()).body.errors?.[0]?.extensions.code).toBe('INTERNAL_ERROR');
  const [note] = await git.disk.pendingOperationsOf(id);
  await accept();
  await pushes.flush(id);
  // As if another server had updated the ref, and had not recorded its push.
  const { rows } = await app.pool.query(
    `delete from idempotent_requests r where key = 'held' returning to_jsonb(r) as record`,
  );
  const other = join(git.disk.pathOf(id), '../../../begun/other');
  await mkdir(other);
  await writeFile(join(other, `${id}.note`), JSON.stringify(note?.data));
  expect((await send()).body.errors?.[0]?.message).toContain('is not complete; try again');
  await rm(other, { recursive: true });
  await app.pool.query(
    'insert into idempotent_requests select * from jsonb_populate_record(null::idempotent_requests, $1)',
    [rows[0].record],
  );
  const { body } = await send();
  const all: { sha: string; message: string }[] = (
    await ada.get(`/auth/v1/repository/ada/${id}/commits/held`)
  ).body.data;
  const made = all.filter(({ message }) => message.startsWith('Held'));
  expect(made.map(({ sha }) => sha)).toEqual([body.data.createCommit.commit.sha]);
});

test('a commit adds, changes and deletes files and keeps file modes', async () => {
  await workspace.clone(ada, 'ada/made');
  await workspace.commit('made', {
    'run.sh': '#!/bin/sh\n',
    'old/x.txt': 'x\n',
    'keep.txt': 'k\n',
  });
  await workspace.git('made', 'update-index', '--chmod=+x', 'run.sh');
  await workspace.git('made', 'commit', '-q', '-m', 'modes');
  await workspace.git('made', 'push', '-q', 'origin', 'main');
  const head = await workspace.git('made', 'rev-parse', 'HEAD');
  const binary = Buffer.from([0, 1, 2, 255]);
  const odd = 'dir "ü"/back\\slash:(x)';
  const next = await made({
    message: 'Many things\n\nand why',
    expectedHead: head,
    changes: [
      { path: 'run.sh', content: '#!/bin/sh\nexit 0\n' },
      { path: 'old/x.txt' },
      { path: odd, content: binary.toString('base64'), encoding: 'BASE64' },
    ],
  });
  expect(next).toMatchObject({
    message: 'Many things\n\nand why',
    parents: [head],
    author: { name: 'ada' },
  });
  await workspace.git('made', 'reset', '-q', '--hard');
  await workspace.git('made', 'pull', '-q');
  expect(await workspace.git('made', 'rev-parse', 'HEAD')).toBe(next.sha);
  const listed = await workspace.git('made', '-c', 'core.quotePath=false', 'ls-files', '-s', '-z');
  const files = listed
    .split('\0')
    .filter(Boolean)
    .map((line) => `${line.slice(0, 6)} ${line.split('\t')[1]}`);
  expect(files.sort()).toEqual(
    ['100644 a.txt', `100644 ${odd}`, '100644 keep.txt', '100755 run.sh'].sort(),
  );
  expect(await workspace.git('made', 'cat-file', '-s', `HEAD:${odd}`)).toBe('4');
  await workspace.git('made', 'fsck', '--strict');

  expect(
    await problem(commit({ expectedHead: head, changes: [{ path: 'a', content: '' }] })),
  ).toContain('CONFLICT expectedHead');
  const branch = await made({ branch: 'new', from: head, changes: [{ path: 'b', content: 'b' }] });
  expect(branch.parents).toEqual([head]);
});

test('createCommit creates the first commit of an empty repository', async () => {
  const empty = (await ada.gql('{ repository(namespace: "ada", name: "empty") { id } }')).repository
    .id;
  const first = await made({ id: empty, changes: [{ path: 'README.md', content: '# Empty\n' }] });
  expect(first.parents).toEqual([]);
  await workspace.clone(ada, 'ada/empty');
  expect(await workspace.git('empty', 'rev-parse', 'main')).toBe(first.sha);
});

test('the rules for pushes apply, and a commit without changes is rejected', async () => {
  await ada.gql(
    `mutation { setBranchRule(input: { id: "${id}", pattern: "kept" }) { repository { id } } updateRepository(input: { id: "${id}", secretScanning: true }) { repository { id } } }`,
  );
  await change('createBranch', { name: 'kept' });
  expect(await problem(change('deleteBranch', { name: 'kept' }))).toBe(
    'CONFLICT The branch kept is protected and cannot be deleted',
  );
  const secret = `AKIA${'Z7Q3M2X5K6W4T2PA'}`;
  expect(
    await problem(commit({ changes: [{ path: 'k.env', content: `K=${secret}\n` }] })),
  ).toContain('k.env:1 adds an AWS access key id');
  for (const [changes, message] of [
    [[], 'changes'],
    [Array.from({ length: 101 }, (_, i) => ({ path: `${i}`, content: '' })), 'changes'],
    [[{ path: '../x', content: '' }], 'path'],
    [[{ path: 'a/.GIT/config', content: '' }], 'path'],
    [[{ path: 'x'.repeat(1025), content: '' }], 'path'],
    [
      [
        { path: 'a', content: '' },
        { path: 'a', content: '' },
      ],
      'changes',
    ],
    [
      [
        { path: 'a/b', content: '' },
        { path: 'a', content: '' },
      ],
      'changes',
    ],
    [[{ path: 'a.txt/b', content: '' }], 'changes: a.txt is not a directory'],
    [[{ path: 'nothing' }], 'changes: nothing does not exist'],
    [[{ path: 'a', content: '#', encoding: 'BASE64' }], 'content'],
  ] as const)
    expect([changes, await problem(commit({ changes }))]).toEqual([
      changes,
      expect.stringContaining(`INVALID_REQUEST ${message}`),
    ]);
  expect(await problem(commit({ message: ' ', changes: [{ path: 'a', content: '' }] }))).toContain(
    'message',
  );
  const bob = await app.user('bob');
  expect(await problem(commit({ changes: [{ path: 'a', content: '' }] }, bob))).toContain(
    'PERMISSION_DENIED',
  );
  expect(app.app.services.rechecks.streams).toBe(0);
});
