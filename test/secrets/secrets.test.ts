/** Secrets and variables of namespaces and repositories: who manages them, and that values of secrets stay hidden. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Client, startApp, type TestApp } from '../support/harness.ts';

let app: TestApp;
let ada: Client;
/** Members of `ada` with the roles write and read, and a user without a role. */
let wendy: Client;
let rob: Client;
let eve: Client;

beforeAll(async () => {
  app = await startApp();
  ada = await app.user('ada');
  wendy = await app.user('wendy');
  rob = await app.user('rob');
  eve = await app.user('eve');
  await ada.setMembers('ada', { wendy: 'WRITE', rob: 'READ' });
  for (const name of ['code', 'other']) await ada.repository(`ada/${name}`);
});
afterAll(() => app[Symbol.asyncDispose]());

const SET = `mutation ($input: SetSecretInput!) {
  setSecret(input: $input) { secret { name refs updatedBy createdAt updatedAt lastUsedAt } } }`;
const SET_VARIABLE = `mutation ($input: SetVariableInput!) {
  setVariable(input: $input) { variable { name value updatedBy } } }`;
const DELETE = 'mutation ($input: DeleteSecretInput!) { deleteSecret(input: $input) { id } }';
const DELETE_VARIABLE =
  'mutation ($input: DeleteVariableInput!) { deleteVariable(input: $input) { id } }';
const LISTS = `secrets { totalCount nodes { name refs updatedBy lastUsedAt } }
  variables { totalCount nodes { name value updatedBy } }`;
const OF_REPOSITORY = `query ($name: String!) { repository(namespace: "ada", name: $name) { ${LISTS} } }`;
const OF_NAMESPACE = `{ namespace(name: "ada") { ${LISTS} } }`;

const set = async (input: object, who = ada) =>
  (await who.gql(SET, { input: { namespace: 'ada', ...input } })).setSecret.secret;
const refusal = async (who: Client, mutation: string, input: object) => {
  const { errors } = await who.graphql(mutation, { input: { namespace: 'ada', ...input } });
  return [errors?.[0]?.extensions.code, errors?.[0]?.extensions.field];
};

test('secrets of a repository and of a namespace are listed without values', async () => {
  expect(await set({ repository: 'code', name: 'TOKEN', value: 'hush-hush' })).toMatchObject({
    name: 'TOKEN',
    refs: [],
    updatedBy: 'ada',
    lastUsedAt: null,
  });
  await set({ name: 'SHARED', value: 'hush-hush', refs: ['main', 'tags/v*', 'main'] });
  await ada.gql(SET_VARIABLE, { input: { namespace: 'ada', name: 'REGION', value: 'eu' } });
  expect((await wendy.gql(OF_REPOSITORY, { name: 'code' })).repository).toEqual({
    secrets: {
      totalCount: 1,
      nodes: [{ name: 'TOKEN', refs: [], updatedBy: 'ada', lastUsedAt: null }],
    },
    variables: { totalCount: 0, nodes: [] },
  });
  expect((await wendy.gql(OF_NAMESPACE)).namespace).toEqual({
    secrets: {
      totalCount: 1,
      nodes: [{ name: 'SHARED', refs: ['main', 'tags/v*'], updatedBy: 'ada', lastUsedAt: null }],
    },
    variables: { totalCount: 1, nodes: [{ name: 'REGION', value: 'eu', updatedBy: 'ada' }] },
  });
  expect((await ada.gql(OF_REPOSITORY, { name: 'other' })).repository.secrets.nodes).toEqual([]);
});

test('a value is encrypted, bound to its secret, and in no audit entry', async () => {
  await set({ repository: 'code', name: 'SEALED', value: 'in-the-clear' });
  const { rows } = await app.pool.query('select * from stored_values where name = $1', ['SEALED']);
  expect(rows[0].value).toBeNull();
  expect(rows[0].sealed.toString('latin1')).not.toContain('in-the-clear');
  const { storedSecretSealer } = app.app.services;
  expect(storedSecretSealer.open(rows[0].id, rows[0].sealed)).toBe('in-the-clear');
  expect(() => storedSecretSealer.open('sec_other', rows[0].sealed)).toThrow();
  await expect(
    app.pool.query("update stored_values set value = 'x' where name = 'SEALED'"),
  ).rejects.toThrow('stored_values_by_kind');
  await ada.gql(SET_VARIABLE, {
    input: { namespace: 'ada', repository: 'code', name: 'PLAIN', value: 'in-the-clear' },
  });
  await ada.gql(DELETE, { input: { namespace: 'ada', repository: 'code', name: 'SEALED' } });
  const { rows: entries } = await app.pool.query(
    "select action, name, details from audit_entries where action ~ '^(secret|variable)' order by id",
  );
  expect(entries.slice(-3)).toEqual([
    {
      action: 'secret.set',
      name: 'SEALED',
      details: { repository: 'code', isNew: true, hasNewValue: true, refs: [] },
    },
    { action: 'variable.set', name: 'PLAIN', details: { repository: 'code', isNew: true } },
    { action: 'secret.delete', name: 'SEALED', details: { repository: 'code' } },
  ]);
  const { rows: everywhere } = await app.pool.query(
    `select to_jsonb(e)::text as text from events e union all select to_jsonb(a)::text from audit_entries a
     union all select to_jsonb(i)::text from idempotent_requests i`,
  );
  expect(JSON.stringify(everywhere)).not.toContain('in-the-clear');
});

test('what is left out of a change stays', async () => {
  await set({ repository: 'code', name: 'KEPT', value: 'first', refs: ['release/*'] });
  expect((await set({ repository: 'code', name: 'KEPT', value: 'second' })).refs).toEqual([
    'release/*',
  ]);
  const read = async () =>
    (await app.pool.query("select id, sealed from stored_values where name = 'KEPT'")).rows[0];
  const before = await read();
  expect(app.app.services.storedSecretSealer.open(before.id, before.sealed)).toBe('second');
  expect((await set({ repository: 'code', name: 'KEPT', refs: [] })).refs).toEqual([]);
  expect(await read()).toEqual(before);
  expect(await refusal(ada, SET, { repository: 'code', name: 'NEW', refs: ['main'] })).toEqual([
    'INVALID_REQUEST',
    'value',
  ]);
});

test('only admins change them, and only members who may create jobs list them', async () => {
  const key = { repository: 'code', name: 'GUARDED' };
  await set({ ...key, value: 'x' });
  await ada.gql(SET_VARIABLE, { input: { namespace: 'ada', name: 'GUARDED', value: 'x' } });
  for (const who of [wendy, rob])
    for (const owner of [{ repository: 'code' }, {}]) {
      const named = { ...owner, name: 'GUARDED' };
      expect(await refusal(who, SET, { ...named, value: 'y' })).toEqual([
        'PERMISSION_DENIED',
        undefined,
      ]);
      expect((await refusal(who, SET_VARIABLE, { ...named, value: 'y' }))[0]).toBe(
        'PERMISSION_DENIED',
      );
      expect((await refusal(who, DELETE, named))[0]).toBe('PERMISSION_DENIED');
      expect((await refusal(who, DELETE_VARIABLE, named))[0]).toBe('PERMISSION_DENIED');
    }
  // A private repository does not exist for others.
  expect((await refusal(eve, SET, { ...key, value: 'y' }))[0]).toBe('NOT_FOUND');
  expect((await refusal(eve, SET, { name: 'GUARDED', value: 'y' }))[0]).toBe('PERMISSION_DENIED');
  expect((await refusal(app.anonymous, SET, { ...key, value: 'y' }))[0]).toBe(
    'AUTHENTICATION_FAILED',
  );
  for (const [query, variables] of [
    [OF_REPOSITORY, { name: 'code' }],
    [OF_NAMESPACE, {}],
  ] as const) {
    const { data, errors } = await rob.graphql(query, variables);
    expect(errors?.map(({ extensions }) => extensions.code)).toEqual([
      'PERMISSION_DENIED',
      'PERMISSION_DENIED',
    ]);
    expect(Object.values(data)).toEqual([{ secrets: null, variables: null }]);
  }
});

test('a token needs repo:admin to manage them, and one of a repository reaches only that', async () => {
  const { id } = (await ada.gql('{ repository(namespace: "ada", name: "code") { id } }'))
    .repository;
  const jobs = await ada.withToken({ scopes: ['JOB_WRITE', 'REPO_WRITE'] });
  const input = { name: 'BY_TOKEN', value: 'x' };
  expect((await refusal(jobs, SET, { repository: 'code', ...input }))[0]).toBe('PERMISSION_DENIED');
  expect((await jobs.gql(OF_NAMESPACE)).namespace.secrets.totalCount).toBeGreaterThan(0);
  const narrow = await ada.withToken({ scopes: ['REPO_ADMIN'], repositories: [id] });
  expect((await set({ repository: 'code', ...input }, narrow)).name).toBe('BY_TOKEN');
  expect((await refusal(narrow, SET, input))[0]).toBe('PERMISSION_DENIED');
  expect((await refusal(narrow, SET, { repository: 'other', ...input }))[0]).toBe('NOT_FOUND');
});

test.each([
  ['name', { name: '9LIVES' }],
  ['name', { name: 'A-B' }],
  ['name', { name: 'N'.repeat(101) }],
  ['name', { name: '' }],
  ['name', { name: 'JOB_ID' }],
  ['name', { name: 'LOAM_TOKEN' }],
  ['name', { name: 'path' }],
  ['name', { name: 'LD_PRELOAD' }],
  ['value', { value: '' }],
  ['value', { value: 'a\0b' }],
  ['value', { value: 'x'.repeat(65_536) }],
  ['refs', { refs: [''] }],
  ['refs', { refs: ['tags/'] }],
  ['refs', { refs: ['refs/heads/main'] }],
  ['refs', { refs: ['a b'] }],
  ['refs', { refs: ['***'] }],
  ['refs', { refs: Array.from({ length: 21 }, (_, n) => `b${n}`) }],
])('a wrong %s is refused without the value: %j', async (field, wrong) => {
  const value = 'do-not-repeat';
  const input = { namespace: 'ada', repository: 'code', name: 'WRONG', value, ...wrong };
  const { errors } = await ada.graphql(SET, { input });
  expect([errors?.[0]?.extensions.code, errors?.[0]?.extensions.field]).toEqual([
    'INVALID_REQUEST',
    field,
  ]);
  expect(JSON.stringify(errors)).not.toContain(value);
  const lists = (await ada.gql(OF_REPOSITORY, { name: 'code' })).repository;
  expect(JSON.stringify(lists)).not.toContain('WRONG');
});

test('an unknown owner or name is not found', async () => {
  expect((await refusal(ada, DELETE, { name: 'NOTHING' }))[0]).toBe('NOT_FOUND');
  expect((await refusal(ada, DELETE, { name: 'a\0' }))[0]).toBe('NOT_FOUND');
  expect((await refusal(ada, DELETE_VARIABLE, { repository: 'code', name: 'TOKEN' }))[0]).toBe(
    'NOT_FOUND',
  );
  expect((await refusal(ada, SET, { repository: 'gone', name: 'A', value: 'x' }))[0]).toBe(
    'NOT_FOUND',
  );
  expect((await refusal(ada, SET, { namespace: 'no-one', name: 'A', value: 'x' }))[0]).toBe(
    'NOT_FOUND',
  );
});

test('an owner has at most 100 secrets, also when they are set at once', async () => {
  const names = Array.from({ length: 103 }, (_, n) => `MANY_${n}`);
  const answers = await Promise.all(
    names.map((name) =>
      ada.graphql(SET, { input: { namespace: 'ada', repository: 'other', name, value: 'x' } }),
    ),
  );
  const refused = answers.flatMap(({ errors }) => errors ?? []);
  expect(refused.map(({ extensions }) => extensions.code)).toEqual(Array(3).fill('CONFLICT'));
  const page = `{ repository(namespace: "ada", name: "other") { secrets(first: 60) {
    totalCount pageInfo { hasNextPage endCursor } nodes { name } } } }`;
  const { secrets } = (await ada.gql(page)).repository;
  expect(secrets).toMatchObject({ totalCount: 100, pageInfo: { hasNextPage: true } });
  const next = page.replace('60', `60, after: "${secrets.pageInfo.endCursor}"`);
  const rest = (await ada.gql(next)).repository.secrets;
  expect(new Set([...secrets.nodes, ...rest.nodes].map(({ name }) => name)).size).toBe(100);
});

test('setting one secret at once from many places leaves one row with one of the values', async () => {
  const values = Array.from({ length: 8 }, (_, n) => `value-${n}`);
  await Promise.all(values.map((value) => set({ name: 'RACED', value })));
  const { rows } = await app.pool.query(
    "select id, sealed from stored_values where name = 'RACED'",
  );
  expect(rows).toHaveLength(1);
  expect(values).toContain(app.app.services.storedSecretSealer.open(rows[0].id, rows[0].sealed));
});

test('secrets go with their repository, and with their organization at once', async () => {
  const organizationId = await app.organization('acme');
  const repositoryId = await app.admin.repository('acme/doomed');
  for (const input of [
    { namespace: 'acme', name: 'A', value: 'x' },
    { namespace: 'acme', repository: 'doomed', name: 'B', value: 'x' },
  ])
    await app.admin.gql(SET, { input });
  const left = async () =>
    (
      await app.pool.query(
        'select name from stored_values where namespace_id = $1 or repository_id = $2 order by name',
        [organizationId, repositoryId],
      )
    ).rows.map(({ name }) => name);
  expect(await left()).toEqual(['A', 'B']);
  await app.admin.gql('mutation ($id: ID!) { deleteRepository(input: { id: $id }) { id } }', {
    id: repositoryId,
  });
  expect(await left()).toEqual(['A']);
  await app.admin.gql('mutation { deleteOrganization(input: { name: "acme" }) { id } }');
  expect(await left()).toEqual([]);
});
