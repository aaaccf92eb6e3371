import { expect, test } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { type Client, startApp } from '../support/harness.ts';

const PATH = '/auth/v1/pat';

test('the same request with the same key runs once, and its response is replayed', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  const key = { 'Idempotency-Key': 'a key of mine' };
  const first = await alice.post(PATH, { name: 'ci' }, key);
  expect(first.status).toBe(201);
  expect(first.headers.get('idempotency-replayed')).toBeNull();

  const again = await alice.post(PATH, { name: 'ci' }, key);
  expect([again.status, again.text]).toEqual([201, first.text]);
  expect(again.headers.get('idempotency-replayed')).toBe('true');
  expect(again.headers.get('content-type')).toBe(first.headers.get('content-type'));
  expect(again.headers.get('x-request-id')).not.toBe(first.headers.get('x-request-id'));

  const other = await alice.post(PATH, { name: 'other' }, key);
  expect([other.status, other.body.error.code]).toEqual([422, 'invalid_request']);
  const elsewhere = await alice.post('/auth/v1/api_keys', { name: 'ci' }, key);
  expect(elsewhere.status).toBe(422);

  // Each credential has its own keys. Errors of the client are stored too.
  const bob = await app.user('bob');
  expect((await bob.post(PATH, { name: 'ci' }, key)).status).toBe(201);
  const taken = await alice.post(PATH, { name: 'ci' }, { 'Idempotency-Key': '2' });
  const replayed = await alice.post(PATH, { name: 'ci' }, { 'Idempotency-Key': '2' });
  expect([taken.status, replayed.status, replayed.text]).toEqual([409, 409, taken.text]);
  // The body of an error contains the request id too.
  for (const { headers, body } of [taken, replayed])
    expect(headers.get('x-request-id')).toBe(body.error.request_id);

  const stored = JSON.stringify(await app.app.services.db.idempotentRequest.findMany());
  expect(stored).not.toContain(first.body.token);

  for (const bad of ['', ' ', 'x'.repeat(256), 'schlüssel'])
    expect((await alice.post(PATH, { name: 'x' }, { 'Idempotency-Key': bad })).status).toBe(400);
});

test('a response that cannot be stored is not sent', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  await app.pool.query(`
    create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused by the test'; end $$;
    create trigger refuse before update on idempotent_requests for each row when (new.status is not null)
      execute function refuse()`);
  const refused = await alice.post(PATH, { name: 'ci' }, { 'Idempotency-Key': 'k' });
  expect([refused.status, refused.body.error.message, refused.headers.get('retry-after')]).toEqual([
    503,
    expect.stringContaining('could not be stored'),
    '1',
  ]);
  expect(refused.body.error.request_id).toBe(refused.headers.get('x-request-id'));
  // The work itself was done.
  expect((await alice.post(PATH, { name: 'ci' })).status).toBe(409);
});

test('while the first request runs the second gets 409, and takes over if the server of the first died', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  const { db, pool } = app.app.services;
  const post = (name: string) => alice.post(PATH, { name }, { 'Idempotency-Key': 'k' });
  const age = (interval: string) =>
    pool.query(`update idempotent_requests set created_at = now() - $1::interval`, [interval]);

  // Blocks the first request at its write.
  const blocker = await pool.connect();
  await blocker.query('begin; lock table access_tokens in exclusive mode');
  const first = post('ci');
  const claimed = () => db.idempotentRequest.findFirstOrThrow({ select: { createdAt: true } });
  await eventually(claimed);
  const second = await post('ci');
  expect([second.status, second.body.error.code]).toEqual([409, 'conflict']);
  expect(second.headers.get('retry-after')).toBe('1');
  expect((await post('other')).status).toBe(422);

  // The request renews its claim while it runs.
  const begun = await claimed();
  await eventually(async () => expect(await claimed()).not.toEqual(begun));

  // As if the server had died half a minute ago.
  await age('31 seconds');
  expect((await post('other')).status).toBe(422);
  const old = (await claimed()).createdAt;
  const heir = post('ci');
  await eventually(async () => expect((await claimed()).createdAt).not.toEqual(old));
  await blocker.query('commit');
  blocker.release();
  const answers = await Promise.all([first, heir]);
  expect(answers.map(({ status }) => status).sort()).toEqual([201, 409]);
  // The stored response is that of the request that took over.
  expect((await post('ci')).text).toBe(answers[1].text);

  await age('24 hours');
  expect((await post('anew')).status).toBe(201);
});

test('a response is stored even if the reply to a renewal of the claim was lost', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  const { db, pool } = app.app.services;
  const post = () => alice.post(PATH, { name: 'ci' }, { 'Idempotency-Key': 'k' });
  const blocker = await pool.connect();
  await blocker.query('begin; lock table access_tokens in exclusive mode');
  const first = post();
  await eventually(() => db.idempotentRequest.findFirstOrThrow());
  // The state after a renewal whose connection broke before the reply.
  await pool.query(`update idempotent_requests set created_at = now() + interval '1 ms'`);
  await blocker.query('commit');
  blocker.release();
  expect((await first).status).toBe(201);
  const again = await post();
  expect([again.status, again.headers.get('idempotency-replayed')]).toEqual([201, 'true']);
});

test('a 5xx response is not stored', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  const { db, pool } = app.app.services;
  const post = () => alice.post('/auth/v1/api_keys', { name: 'ci' }, { 'Idempotency-Key': 'k' });
  await pool.query('alter table api_keys rename column hash to hidden');
  expect((await post()).status).toBe(500);
  expect(await db.idempotentRequest.count()).toBe(0);
  await pool.query('alter table api_keys rename column hidden to hash');
  expect((await post()).status).toBe(201);
});

const CREATE = `mutation ($input: CreateAccessTokenInput!) {
  createAccessToken(input: $input) { token accessToken { name } } }`;

/** Posts to GraphQL with a key. */
function post(
  client: Client,
  key: string,
  query: string,
  { input, ...headers }: { input?: object } & Record<string, unknown> = {},
  path = '/graphql',
) {
  const json = { query, variables: { input } };
  return client.post(path, json, { 'Idempotency-Key': key, ...(headers as object) });
}

const codeOf = (answer: Awaited<ReturnType<typeof post>>) =>
  answer.body.errors?.map((error: { extensions: { code: string } }) => error.extensions.code);

test('GraphQL runs a mutation once per key, and replays its response', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  const input = { name: 'ci' };
  const first = await post(alice, 'k', CREATE, { input });
  expect([first.status, first.body.errors]).toEqual([200, undefined]);
  const again = await post(alice, 'k', CREATE, { input });
  expect([again.status, again.text]).toEqual([200, first.text]);
  expect(again.headers.get('idempotency-replayed')).toBe('true');
  expect(again.headers.get('content-type')).toBe(first.headers.get('content-type'));
  const stored = JSON.stringify(await app.app.services.db.idempotentRequest.findMany());
  expect(stored).not.toContain(first.body.data.createAccessToken.token);

  const other = await post(alice, 'k', CREATE, { input: { name: 'other' } });
  expect([other.status, codeOf(other), other.body.errors[0].extensions.field]).toEqual([
    422,
    ['INVALID_REQUEST'],
    'Idempotency-Key',
  ]);
  // REST and GraphQL share the keys of a credential.
  const rest = await alice.post(PATH, input, { 'Idempotency-Key': 'k' });
  expect(rest.status).toBe(422);
  const bob = await app.user('bob');
  expect((await post(bob, 'k', CREATE, { input })).body.errors).toBeUndefined();

  // Errors are stored too, also those of operations that never ran.
  for (const query of [CREATE, '{ no such field }', 'nonsense']) {
    const refused = await post(alice, query.slice(0, 5), query, { input });
    const replayed = await post(alice, query.slice(0, 5), query, { input });
    expect(codeOf(refused)).toBeDefined();
    expect([replayed.status, replayed.text]).toEqual([refused.status, refused.text]);
    expect(replayed.headers.get('idempotency-replayed')).toBe('true');
  }

  // A query runs again, and its key stays free.
  const count = `{ viewer { accessTokens { totalCount } } }`;
  const before = await post(alice, 'q', count);
  await alice.post(PATH, { name: 'one more' });
  const after = await post(alice, 'q', count);
  expect(after.text).not.toBe(before.text);
  expect((await post(alice, 'q', CREATE, { input: { name: 'q' } })).body.errors).toBeUndefined();
});

test('GraphQL refuses keys that it cannot honour, with a GraphQL error', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  const input = { name: 'ci' };
  for (const bad of ['', 'x'.repeat(256), 'schlüssel']) {
    const answer = await post(alice, bad, CREATE, { input });
    expect([answer.status, codeOf(answer)]).toEqual([400, ['INVALID_REQUEST']]);
  }
  const anonymous = await post(app.anonymous, 'k', '{ __typename }');
  expect([anonymous.status, codeOf(anonymous)]).toEqual([401, ['AUTHENTICATION_FAILED']]);

  const stream = { input, accept: 'text/event-stream' };
  for (const path of ['/graphql', '/graphql/stream']) {
    const streamed = await post(alice, 'k', CREATE, stream, path);
    expect([streamed.status, codeOf(streamed)]).toEqual([400, ['INVALID_REQUEST']]);
    expect(streamed.body.errors[0].message).toContain('event stream');
  }
  const all = 'application/graphql-response+json, application/json, text/event-stream';
  const subscription = 'subscription { jobEvents(namespace: "alice") { id } }';
  const followed = await post(alice, 's', subscription, { accept: all });
  expect([followed.status, codeOf(followed)]).toEqual([400, ['INVALID_REQUEST']]);
  expect(followed.body.errors[0].message).toContain('event stream');

  const packed = await post(alice, 'k', CREATE, { input, 'content-encoding': 'gzip' });
  expect([packed.status, codeOf(packed)]).toEqual([400, ['INVALID_REQUEST']]);

  // None of these requests had an effect or kept the key.
  const done = await post(alice, 'k', CREATE, { input, accept: all });
  expect([done.status, done.body.errors]).toEqual([200, undefined]);

  // /graphql/stream is the only path that is refused as such.
  const slash = await post(alice, 'slash', CREATE, { input: { name: 'slash' } }, '/graphql/');
  expect([slash.status, slash.body.errors]).toEqual([200, undefined]);
  const elsewhere = await post(alice, 'k', CREATE, { input }, '/graphql/nowhere');
  expect([elsewhere.status, elsewhere.body?.error.code]).toEqual([404, 'not_found']);
});

test('GraphQL stores the response of a mutation even if another field failed or the client disconnected', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  const { db, pool } = app.app.services;
  const keys = `key: createApiKey(input: {name: "ci"}) { key }`;
  const tokens = `token: createAccessToken(input: {name: "ci"}) { token }`;
  await pool.query('alter table api_keys rename column hash to hidden');
  const failed = await post(alice, 'k', `mutation { ${keys} }`);
  expect([failed.status, codeOf(failed)]).toEqual([200, ['INTERNAL_ERROR']]);
  expect(await db.idempotentRequest.count()).toBe(0);

  const half = await post(alice, 'half', `mutation { ${tokens} ${keys} }`);
  expect(codeOf(half)).toEqual(['INTERNAL_ERROR']);
  await pool.query('alter table api_keys rename column hidden to hash');
  expect((await post(alice, 'half', `mutation { ${tokens} ${keys} }`)).text).toBe(half.text);
  expect((await post(alice, 'k', `mutation { ${keys} }`)).body.errors).toBeUndefined();

  // Blocks a request at its write until the client has disconnected.
  const blocker = await pool.connect();
  await blocker.query('begin; lock table access_tokens in exclusive mode');
  const abort = new AbortController();
  const body = JSON.stringify({ query: CREATE, variables: { input: { name: 'late' } } });
  const headers = {
    authorization: alice.authorization ?? '',
    'content-type': 'application/json',
    'idempotency-key': 'late',
  };
  const lost = fetch(`${app.base}/graphql`, {
    method: 'POST',
    headers,
    body,
    signal: abort.signal,
  });
  const row = { where: { key: 'late' }, select: { status: true } };
  await eventually(() => db.idempotentRequest.findFirstOrThrow(row));
  abort.abort();
  await expect(lost).rejects.toThrow();
  const second = await post(alice, 'late', CREATE, { input: { name: 'late' } });
  expect([second.status, codeOf(second), second.headers.get('retry-after')]).toEqual([
    409,
    ['CONFLICT'],
    '1',
  ]);
  await blocker.query('commit');
  blocker.release();
  await eventually(async () =>
    expect(await db.idempotentRequest.findFirstOrThrow(row)).toEqual({ status: 200 }),
  );
  const replayed = await post(alice, 'late', CREATE, { input: { name: 'late' } });
  expect(replayed.body.data.createAccessToken.token).toMatch(/^loam_pat_/);
});

test('for a response that is too large to store, a replay says that the request is done', async () => {
  await using app = await startApp();
  const alice = await app.user('alice');
  await alice.post('/auth/v1/repository/alice', { name: 'hello' });
  const many = Array.from({ length: 40 }, (_, at) => `f${at}: description`).join(' ');
  await app.pool.query(`update repositories set description = repeat('x', 40000)`);
  const query = `mutation { updateRepository(input: {id: "ID", branchProtection: true}) {
    repository { ${many} } } }`;
  const { body } = await alice.get('/auth/v1/repository/alice');
  const large = query.replace('ID', body.data[0].id);
  const first = await post(alice, 'k', large);
  expect(first.text.length).toBeGreaterThan(2 ** 20);
  const again = await post(alice, 'k', large);
  expect([again.status, codeOf(again)]).toEqual([409, ['CONFLICT']]);
  expect(again.body.errors[0].message).toContain('was done');
});
