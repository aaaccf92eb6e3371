import { hash } from 'node:crypto';
import { type GraphQLInterfaceType, getIntrospectionQuery } from 'graphql';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { schema } from '../../src/api/graphql/schema.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { createWorld } from '../support/matrix/world.ts';
import { expectRefusal } from '../support/refusal.ts';

let app: TestApp;
beforeAll(async () => {
  app = await startApp({ config: { webhooks: { allow: ['127.0.0.1'] } } });
});
afterAll(() => app[Symbol.asyncDispose]());

test('every error has a code, and the invalid field if there is one', async () => {
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

test('a variable with a wrong value names its field and the allowed values', async () => {
  const create = 'mutation ($input: CreateJobInput!) { createJob(input: $input) { job { id } } }';
  const job = { namespace: 'admin', name: 'a', command: 'x', image: 'x', gpu: 'NONE' };
  const errors = async (query: string, variables: object) =>
    ((await app.admin.graphql(query, variables)).errors ?? []).map(({ message, extensions }) => [
      extensions.field,
      message,
    ]);
  for (const [wrong, message] of [
    [{ gpu: 'T5' }, /^gpu: must be one of .*A100-80GB.*T4/],
    [{ cpu: 1.5 }, /^cpu: Int cannot represent non-integer value: 1.5$/],
    [{ needs: [{ job: 'b', when: 'later' }] }, /^needs: when must be one of .*FINISHED/],
  ] as const)
    expect(await errors(create, { input: { ...job, ...wrong } })).toEqual([
      [Object.keys(wrong)[0], expect.stringMatching(message)],
    ]);
  const list = 'query ($gpus: [Gpu!]) { viewer { jobs(filter: {gpus: $gpus}) { totalCount } } }';
  // An operator may have offered any name, so a filter takes all.
  expect(await errors(list, { gpus: ['T4', 'T5'] })).toEqual([]);
  expect(await errors(list, { gpus: ['x'.repeat(101)] })).toMatchObject([
    ['gpus', 'gpus: must be a name'],
  ]);
  expect(await errors(create, { input: { ...job, gpus: 'T4' } })).toEqual([
    [undefined, expect.stringContaining('Field "gpus" is not defined')],
  ]);
});

test('a missing object is null with an error, and the other fields are returned', async () => {
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

test('several fields of a query may select the same node, for every type of node', async () => {
  const { callers, ids } = await createWorld(app);
  const types = schema.getPossibleTypes(schema.getType('Node') as GraphQLInterfaceType);
  expect(Object.keys(ids).sort()).toEqual(types.map(({ name }) => name).sort());
  const { client } = callers.find(({ name }) => name === 'manager') ?? expect.fail();
  for (const [type, id] of Object.entries(ids)) {
    const query = `query ($id: ID!) { a: node(id: $id) { __typename id } b: node(id: $id) { __typename id }
      c: nodes(ids: [$id, $id]) { __typename id } d: nodes(ids: [$id]) { __typename id } }`;
    const node = { __typename: type, id };
    const expected = { data: { a: node, b: node, c: [node, node], d: [node] } };
    // The interpreter runs the first request, compiled code the second.
    for (let times = 0; times < 2; times++)
      expect(await client.graphql(`# ${type}\n${query}`, { id }), type).toMatchObject(expected);
  }
});

test('private names cannot be guessed: hidden and missing objects give the same response', async () => {
  const ada = await app.user('ada');
  const eve = await app.user('eve');
  await ada.repository('ada/hidden');
  await ada.gql(
    'mutation { createJob(input: {namespace: "ada", name: "hidden", repo: "ada/hidden", command: "true", gpu: T4}) { job { id } } }',
  );
  const ask = async (client: Client, name: string) => {
    const { data, errors } = await client.graphql(
      `{ repository(namespace: "ada", name: "${name}") { id } job(namespace: "ada", name: "${name}") { id }
         namespace(name: "ada") { repositories { totalCount } jobs { totalCount } members { totalCount } } }`,
    );
    const told = errors?.map(({ path, message, extensions }) => [
      path?.join('.'),
      extensions.code,
      message,
    ]);
    // The messages name what was asked for.
    return JSON.stringify([data, told?.sort()]).replaceAll(name, 'NAME');
  };
  for (const client of [eve, app.anonymous])
    expect(await ask(client, 'hidden')).toBe(await ask(client, 'no-such-name'));
  const [data, told] = JSON.parse(await ask(eve, 'hidden'));
  expect(data).toEqual({
    repository: null,
    job: null,
    namespace: { repositories: { totalCount: 0 }, jobs: { totalCount: 0 }, members: null },
  });
  expect(told.map(([path, code]: string[]) => `${path} ${code}`)).toEqual([
    // The same for every name in a namespace whose jobs the viewer may not see.
    'job PERMISSION_DENIED',
    'namespace.members PERMISSION_DENIED',
    'repository NOT_FOUND',
  ]);
});

test('introspection is within the limits, and larger operations are refused', async () => {
  expect((await app.admin.graphql(getIntrospectionQuery())).errors).toBeUndefined();
  const aliases = Array.from({ length: 800 }, (_, i) => `a${i}: __typename`).join(' ');
  const deep = `viewer { ${'namespace { members { nodes { user { '.repeat(4)}id${' } } } }'.repeat(4)} }`;
  for (const [limit, query] of [
    ['tokens', `{ ${aliases} }`],
    ['tokens', 'a '.repeat(3_000)],
    ['depth', `{ ${deep} }`],
    ['cost', many(100, 'repositories', 100, 'branches { nodes { name commit { sha } } }')],
    ['cost', many(100, 'jobs', 100, 'logs(tail: 10000) { lines { message } }')],
  ] as const) {
    const { data, errors } = await app.admin.graphql(query);
    expect(data).toBeUndefined();
    const [{ message, extensions }] = errors as never as [Refusal];
    expect(extensions, message).toMatchObject({ code: 'LIMIT_EXCEEDED', limit });
    expect(message).not.toContain('Syntax');
    if (limit !== 'tokens') expect(extensions.requested).toBeGreaterThan(extensions.maximum);
  }
});

type Refusal = {
  message: string;
  extensions: { code: string; limit: string; maximum: number; requested: number };
};

/** A hundred namespaces, each with a page of a list. */
const many = (organizations: number, list: string, first: number, selection: string) =>
  `{ viewer { organizations(first: ${organizations}) { nodes {
    ${list}(first: ${first}) { nodes { ${selection} } } } } } }`;

test('queries of front ends are within the limits, and their responses have the cost', async () => {
  const screen = (list: string) =>
    `query ${list.includes('$tail') ? '($tail: Int = 5)' : ''} { namespace(name: "admin") { ${list} } }`;
  const repository = `id name fullName description visibility defaultBranch sizeBytes language branchCount tagCount
    createdAt updatedAt pushedAt owner { id name } `;
  const person = 'author { name email date }';
  for (const [query, variables] of [
    [
      screen(`jobs(first: 100) { totalCount pageInfo { hasNextPage endCursor } nodes {
        id name status command progress gpu gpuCount cpu memoryGb region costPerHour totalCost runtimeSeconds
        exitCode createdAt startedAt completedAt attempts { nodes { number outcome exitCode startedAt endedAt } }
        logs(tail: $tail) { lines { seq timestamp message } hasMore } repository { ${repository} } } }`),
    ],
    [
      screen(`repositories(first: 50) { totalCount nodes { ${repository}
        branches { totalCount nodes { name sha commit { sha message ${person} } } }
        commits { totalCount nodes { sha message ${person} } } tree { ref entries { name type sizeBytes } } } }`),
    ],
    [
      screen('jobs(first: 1) { nodes { logs(tail: $tail) { lines { timestamp message } } } }'),
      { tail: 10_000 },
    ],
  ] as const) {
    const { errors, extensions } = (await app.admin.post('/graphql', { query, variables })).body;
    expect(errors).toBeUndefined();
    expect(extensions.cost).toEqual({ requested: expect.any(Number), maximum: 50_000 });
  }
  // Sizes in variables count, and so do the reads of a subscription for each event.
  const [query, variables] = [
    screen('jobs(first: 100) { nodes { logs(tail: $tail) { lines { message } } } }'),
    { tail: 10_000 },
  ];
  await expectRefusal(app.admin.graphql(query, variables), 'LIMIT_EXCEEDED');
  const wrong = await app.admin.graphql(query, { tail: 'x' });
  await expectRefusal(wrong, 'INVALID_REQUEST');
  const heavy =
    'job { repository { owner { repositories(first: 100) { nodes { commits(first: 100) { nodes { sha author { name email } committer { name email } } } } } } } }';
  const followed = await app.admin.post(
    '/graphql',
    { query: `subscription { jobEvents(namespace: "admin") { ${heavy} } }` },
    { accept: 'text/event-stream' },
  );
  expect(followed.text).toContain('LIMIT_EXCEEDED');
});

test('the error for invalid JSON has the position, and does not quote the body', async () => {
  for (const path of ['/graphql', '/graphql/stream']) {
    const { status, text } = await app.anonymous.request('POST', path, {
      headers: {
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
      },
      body: '{"query": "secret",}',
    });
    expect([status, JSON.parse(text).errors]).toEqual([
      400,
      [
        {
          message:
            'The body is not valid JSON: line 1, column 20: expected a name in double quotes, found "}"',
          extensions: { code: 'INVALID_REQUEST' },
        },
      ],
    ]);
  }
});

test('an unknown path below /graphql gives the same response as any unknown route', async () => {
  for (const path of ['/graphql/nowhere', '/graphql/stream/', '/graphql/health'])
    for (const method of ['GET', 'POST', 'PUT'])
      for (const headers of [undefined, { 'Idempotency-Key': 'k' }]) {
        const answer = await app.admin.request(method, path, { headers });
        const message = `There is no route ${method} ${path}. See ${app.base}/docs/api for all routes.`;
        expect([answer.status, answer.body]).toEqual([
          404,
          {
            error: { code: 'not_found', message, request_id: answer.headers.get('x-request-id') },
            errors: [{ message, extensions: { code: 'NOT_FOUND' } }],
          },
        ]);
      }
});

test('a browser gets GraphiQL, which loads nothing from other hosts', async () => {
  const page = await app.anonymous.get('/graphql', { accept: 'text/html' });
  expect(page.headers.get('content-type')).toMatch(/html/);
  expect(page.text).toContain('<title>GraphQL · Loam</title>');
  expect(page.text).not.toMatch(/<(script|link)[^>]+(src|href)="https?:/);
  const policy = page.headers.get('content-security-policy') ?? '';
  const [, script = ''] = /<div id="root"><\/div>\s*<script>(.*)<\/script>/s.exec(page.text) ?? [];
  expect(policy).toContain(`script-src 'sha256-${hash('sha256', script, 'base64')}';`);
  for (const rule of ["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"])
    expect(policy.split('; ')).toContain(rule);
  expect(policy).not.toMatch(/https?:|\*|unsafe-eval/);
  expect(page.headers.get('x-content-type-options')).toBe('nosniff');
  expect(page.headers.get('x-frame-options')).toBe('DENY');
  expect(page.headers.get('content-encoding')).toBe('gzip');
  const again = await app.anonymous.get('/graphql', {
    accept: 'text/html',
    'if-none-match': page.headers.get('etag') ?? '',
  });
  expect([again.status, again.text, again.headers.get('content-security-policy')]).toEqual([
    304,
    '',
    policy,
  ]);
  const plain = await app.anonymous.get('/graphql', {
    accept: 'text/html',
    'accept-encoding': 'identity',
  });
  expect([plain.headers.get('content-encoding'), plain.text === page.text]).toEqual([null, true]);
});
