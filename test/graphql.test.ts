import { getIntrospectionQuery } from 'graphql';
import { expect, test } from 'vitest';
import { startApp } from './harness.ts';

test('every error carries a code, and its field where there is one', async () => {
  await using app = await startApp();
  const code = async (query: string, variables?: object) => {
    const { errors } = await app.admin.graphql(query, variables);
    return errors?.map(({ extensions }) => extensions.code);
  };
  const named = 'query ($name: String!) { namespace(name: $name) { id } }';
  expect(await code('{ viewer {')).toEqual(['GRAPHQL_PARSE_FAILED']);
  expect(await code('{ nothing }')).toEqual(['GRAPHQL_VALIDATION_FAILED']);
  expect(await code(named)).toEqual(['INVALID_REQUEST']);
  expect(await code(named, { name: 3 })).toEqual(['INVALID_REQUEST']);
  expect(await code('{ node(id: "nobody") { id } }')).toEqual(['INVALID_REQUEST']);
  expect(await code('{ accessToken(name: "none") { id } }')).toEqual(['NOT_FOUND']);

  const bad = await app.admin.graphql(
    'mutation { createUser(input: {username: "a b", email: "a@example.com"}) { user { id } } }',
  );
  expect(bad.errors?.[0]).toMatchObject({
    message: expect.stringMatching(/^username: /),
    extensions: { code: 'INVALID_REQUEST', field: 'username' },
  });
});

test('what is not there is null with the error beside it, and spoils nothing else', async () => {
  await using app = await startApp();
  const { data: made } = await app.admin.graphql(
    `mutation {
      one: createRepository(input: {namespace: "admin", name: "one"}) { repository { id } }
      again: createRepository(input: {namespace: "admin", name: "one"}) { repository { id } }
      token: createAccessToken(input: {name: "t"}) { token accessToken { id name } }
    }`,
  );
  expect(made).toMatchObject({
    again: null,
    token: { token: expect.stringMatching(/^loam_pat_/), accessToken: { name: 't' } },
  });
  const { id } = made.one.repository;
  const { data, errors } = await app.admin.graphql(
    `query ($ids: [ID!]!) {
      repository(namespace: "admin", name: "one") {
        name
        tree { entries { name } }
        noTree: tree(path: "none") { path }
        noFile: file(path: "none") { path }
        noRef: file(path: "x", ref: "none") { path }
        noCommits: commitPage(revision: "none") { total }
      }
      noRepository: repository(namespace: "admin", name: "none") { id }
      noJob: job(namespace: "admin", name: "none") { id }
      noNamespace: namespace(name: "none") { id }
      noKey: apiKey(name: "none") { id }
      nodes(ids: $ids) { id }
    }`,
    { ids: [id, 'nonsense', id.replace(/....$/, '0000'), made.token.accessToken.id] },
  );
  expect(data).toEqual({
    repository: {
      name: 'one',
      tree: { entries: [] },
      noTree: null,
      noFile: null,
      noRef: null,
      noCommits: null,
    },
    noRepository: null,
    noJob: null,
    noNamespace: null,
    noKey: null,
    nodes: [{ id }, null, null, { id: made.token.accessToken.id }],
  });
  const told = Object.fromEntries(
    errors?.map(({ path, extensions }) => [path?.join('.'), extensions.code]) ?? [],
  );
  expect(told).toEqual({
    'repository.noTree': 'NOT_FOUND',
    'repository.noFile': 'NOT_FOUND',
    'repository.noRef': 'NOT_FOUND',
    'repository.noCommits': 'NOT_FOUND',
    noRepository: 'NOT_FOUND',
    noJob: 'NOT_FOUND',
    noNamespace: 'NOT_FOUND',
    noKey: 'NOT_FOUND',
    'nodes.1': 'INVALID_REQUEST',
  });
});

test('an operation may be large enough for introspection, and not larger than is sane', async () => {
  await using app = await startApp();
  expect((await app.admin.graphql(getIntrospectionQuery())).errors).toBeUndefined();
  const aliases = Array.from({ length: 60 }, (_, i) => `a${i}: version { build }`).join(' ');
  const deep = `${'namespace(name: "admin") { members { user { '.repeat(1)}${'namespace { members { user { '.repeat(5)}id${' } } }'.repeat(6)}`;
  for (const query of [`{ ${aliases} }`, `{ ${deep} }`]) {
    const { data, errors } = await app.admin.graphql(query);
    expect(data).toBeUndefined();
    expect(errors?.[0]?.message).toMatch(/limit of \d+ exceeded/);
  }
});

test('a browser gets GraphiQL without anything from elsewhere', async () => {
  await using app = await startApp();
  const page = await app.anonymous.get('/graphql', { accept: 'text/html' });
  expect(page.headers.get('content-type')).toMatch(/html/);
  expect(page.text).toContain('<title>Loam</title>');
  expect(page.text).not.toMatch(/<(script|link)[^>]+(src|href)="https?:/);
});
