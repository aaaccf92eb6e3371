/** A repeated query, whose document is parsed and validated already, gets the same response as the first time. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { fakeRunner } from '../support/fake-runner.ts';
import { startApp, type TestApp } from '../support/harness.ts';
import { submit } from '../support/submit.ts';

let app: TestApp;
let repositoryId = '';

beforeAll(async () => {
  app = await startApp({ overrides: { runner: fakeRunner({ machines: [] }) } });
  for (const name of ['one', 'two', 'three'])
    repositoryId = await app.admin.repository(`admin/${name}`);
  for (const name of ['a', 'b'])
    await submit(app.admin, { namespace: 'admin', name, command: 'true', image: 'x' });
});
afterAll(() => app[Symbol.asyncDispose]());

const ROW = `id name namespace fullName description visibility defaultBranch sizeBytes language createdAt pushedAt
  contentAddressed branchProtection collaboratorCount branchCount tagCount`;

const QUERIES: Record<string, { query: string; variables?: object; operationName?: string }> = {
  'a row by a variable': {
    query: `query ($id: ID) { repository(namespace: "admin", id: $id) { ${ROW} } }`,
    variables: { id: 'ID' },
  },
  'an omitted variable': {
    query:
      'query ($id: ID, $name: String) { repository(namespace: "admin", id: $id, name: $name) { id } }',
    variables: { name: 'one' },
  },
  'a page, by name': {
    query: `query ($first: Int! = 2, $sort: RepositorySort! = NAME) { namespace(name: "admin") {
      repositories(first: $first, sort: $sort) { totalCount edges { cursor node { ${ROW} } } pageInfo { hasNextPage endCursor } } } }`,
  },
  'enums in variables': {
    query: `query ($sort: RepositorySort!, $order: SortOrder = ASC, $visibility: Visibility) { namespace(name: "admin") {
      repositories(sort: $sort, order: $order, visibility: $visibility) { nodes { name visibility } } } }`,
    variables: { sort: 'NAME', visibility: 'PRIVATE' },
  },
  'jobs with nested fields': {
    query: `{ namespace(name: "admin") { jobs(first: 5) { totalCount nodes {
      id name status gpu region costPerHour totalCost runtimeSeconds progress createdAt startedAt
      owner { name } createdBy { username } labels { key value } environmentNames
      attempts { totalCount nodes { number } } repository { name } queue { position } } } } }`,
  },
  'aliases and fragments': {
    query: `query { a: repository(namespace: "admin", name: "one") { ...R }
        b: repository(namespace: "admin", name: "two") { ...R again: name ... on Repository { tagCount } }
        none: repository(namespace: "admin", name: "none") { ...R } }
      fragment R on Repository { id name owner { name } }`,
  },
  'a field selected twice': {
    query: `{ namespace(name: "admin") { repositories { nodes { name } } } namespace(name: "admin") { repositories { nodes { id owner { id } } } } }`,
  },
  'nodes of several types': {
    query: `query ($ids: [ID!]!) { nodes(ids: $ids) { __typename id ... on Repository { name } ... on Job { status } } }`,
    variables: { ids: ['ID', 'nonsense', 'repo_00000000000000000000000000'] },
  },
  'fields skipped by a variable': {
    query: `query ($no: Boolean!) { viewer { username email @skip(if: $no) namespace @include(if: $no) { name } } }`,
    variables: { no: true },
  },
  'a field that fails': {
    query: `{ good: viewer { username }
      accessToken(name: "none") { id }
      repository(namespace: "admin",
        name: "one") { file(path: "none") { path } name } }`,
  },
  'a cursor of another list': {
    query: '{ namespace(name: "admin") { repositories(after: "x") { nodes { id } } } }',
  },
  'an invalid value of a variable': {
    query:
      'query ($first: Int!) { namespace(name: "admin") { repositories(first: $first) { totalCount } } }',
    variables: { first: 'many' },
  },
  'an operation above the cost limit': {
    query:
      'query ($n: Int!) { viewer { repositories(first: $n) { nodes { owner { repositories(first: $n) { nodes { owner { repositories(first: $n) { nodes { id } } } } } } } } } }',
    variables: { n: 100 },
  },
  'a filter in a variable': {
    query:
      'query ($filter: JobFilter) { namespace(name: "admin") { jobs(filter: $filter) { nodes { name } } } }',
    variables: { filter: { namePrefix: 'a' } },
  },
  'a variable in a filter': {
    query:
      'query ($prefix: String) { namespace(name: "admin") { jobs(filter: {namePrefix: $prefix}) { nodes { name } } } }',
    variables: {},
  },
  'one of two operations': {
    query: 'query One { viewer { username } } query Two { viewer { id } }',
    operationName: 'Two',
  },
  'no selected operation': { query: 'query One { viewer { id } } query Two { viewer { id } }' },
  introspection: { query: '{ __schema { queryType { name } } __typename }' },
};

const ACCEPTED = [
  undefined,
  'application/json',
  'application/graphql-response+json, application/json;q=0.9',
  'application/graphql-response+json, application/graphql+json, application/json, text/event-stream, multipart/mixed',
  'application/json, text/plain, */*',
];

test.for(Object.entries(QUERIES))('%s', async ([, request]) => {
  const body = JSON.stringify(request).replaceAll('"ID"', `"${repositoryId}"`);
  for (const authorization of [app.admin.authorization, null])
    for (const accept of ACCEPTED) {
      // A different text for each, so that each starts uncompiled.
      const text = body.replace('"query":"', `"query":"# ${authorization && 1} ${accept}\\n`);
      const answers = [];
      for (let i = 0; i < 4; i++) answers.push(await post(text, authorization, accept));
      expect(answers[3]).toEqual(answers[0]);
      expect(answers[1]).toEqual(answers[0]);
    }
});

async function post(body: string, authorization: string | null, accept: string | undefined) {
  const response = await fetch(`${app.base}/graphql`, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      ...(authorization && { authorization }),
      ...(accept && { accept }),
    },
    body,
  });
  const headers = [...response.headers].filter(
    ([name]) => !/^(x-request-id|x-ratelimit-reset|date)$/.test(name),
  );
  // The order of errors depends on which field ends first.
  const { errors = [], ...rest } = (await response.json()) as { errors?: { path?: string[] }[] };
  const sorted = errors.map((error) => JSON.stringify(error)).sort();
  return { status: response.status, headers: headers.sort(), sorted, text: JSON.stringify(rest) };
}

test('a mutation runs each time it is sent', async () => {
  const mutation = 'mutation { createAccessToken(input: {name: "t"}) { accessToken { id } } }';
  const answers = [];
  for (let i = 0; i < 3; i++) answers.push(await app.admin.graphql(mutation));
  expect(answers.map(({ errors }) => errors?.length ?? 0)).toEqual([0, 1, 1]);
});

test('a cached query runs with the permissions of its caller', async () => {
  const alice = await app.user('alice');
  const query = '{ repository(namespace: "admin", name: "one") { id } }';
  for (let i = 0; i < 3; i++) expect((await app.admin.graphql(query)).data.repository).toBeTruthy();
  const { data, errors } = await alice.graphql(query);
  expect([data.repository, errors?.[0]?.extensions.code]).toEqual([null, 'NOT_FOUND']);
});
