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
    'mutation { createUser(input: {username: "a b", email: "a@example.com"}) { id } }',
  );
  expect(bad.errors?.[0]).toMatchObject({
    message: expect.stringMatching(/^username: /),
    extensions: { code: 'INVALID_REQUEST', field: 'username' },
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
