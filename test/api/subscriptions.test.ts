import { GraphQLError } from 'graphql';
import { createHandler } from 'graphql-sse';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { EventStream, type OperationResult } from '../../src/api/graphql/event-streams.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';
import { parseEvents } from '../support/sse.ts';
import { cancel, lines, remove, submit, until } from '../support/submit.ts';
import { MODES, take, viaYoga } from '../support/subscribe.ts';

let app: TestApp;
let ada: Client;

beforeAll(async () => {
  app = await startApp({ overrides: { runner: fakeRunner({ graceMs: 200 }) } });
  ada = await app.user('ada');
  await ada.repository('ada/code');
});
afterAll(() => app[Symbol.asyncDispose]());

const run = (name: string, command: string, more: object = {}) =>
  submit(ada, { namespace: 'ada', repo: 'ada/code', name, command, ...more });

const LOG = (name: string, after?: number) =>
  `subscription { jobLog(namespace: "ada", name: "${name}"${after === undefined ? '' : `, after: ${after}`}) { __typename seq ... on LogLine { timestamp message } ... on JobStatusChange { timestamp status } ... on JobLogEnd { status exitCode } } }`;
const EVENTS = (args = '') =>
  `subscription { jobEvents(namespace: "ada"${args}) { cursor type status name job { status } } }`;

test.each(Object.entries(MODES))(
  '%s: a log to its end, and resumed after an entry',
  async (_, open) => {
    const name = `log${crypto.randomUUID().slice(0, 8)}`;
    await run(name, 'echo a; sleep 0.3; echo b; exit 2');
    const all = await take(open(ada, LOG(name)), 'jobLog');
    const told = all.map((e) => e.message ?? e.status);
    expect(told).toEqual(['QUEUED', 'RUNNING', 'a', 'b', 'FAILED', 'FAILED']);
    expect(all.at(-1)).toMatchObject({ __typename: 'JobLogEnd', exitCode: 2 });
    const rest = await take(open(ada, LOG(name, all[2].seq)), 'jobLog');
    expect(rest.map((e) => e.message ?? e.status)).toEqual(['b', 'FAILED', 'FAILED']);
  },
);

test('a log in batches has every entry once, and ends like a log in single entries', async () => {
  const printed = Array.from({ length: 200 }, (_, index) => `line ${index}`);
  await run('batches', `${printed.map((line) => `echo ${line}`).join('; ')}; sleep 0.3; echo z`);
  const batches = await take(
    MODES['graphql-sse, single connection'](
      ada,
      `subscription { jobLogBatches(namespace: "ada", name: "batches") { entries { seq __typename ... on LogLine { message } } } }`,
    ),
    'jobLogBatches',
  );
  const entries = batches.flatMap((batch) => batch.entries);
  const lines = entries.filter(({ __typename }) => __typename === 'LogLine');
  expect(lines.map(({ message }) => message)).toEqual([...printed, 'z']);
  expect(entries.at(-1).__typename).toBe('JobLogEnd');
  expect(entries.slice(0, -1).map(({ seq }) => seq)).toEqual(entries.slice(1).map((_, i) => i + 1));
  expect(batches.length).toBeLessThan(entries.length / 2);
});

test.each(Object.entries(MODES))(
  '%s: every change of a job, resumed by cursor',
  async (_, open) => {
    const name = `ev${crypto.randomUUID().slice(0, 8)}`;
    const live = open(ada, EVENTS());
    const first = live.next();
    let followed = false;
    first.then(
      () => (followed = true),
      () => {},
    );
    // Events before the subscription is active are not sent, and it does not report when it is active.
    await eventually(async () => {
      if (!followed) await run(`before${crypto.randomUUID().slice(0, 8)}`, 'exit 0');
      expect(followed).toBe(true);
    });
    expect((await first).value?.data.jobEvents.name).toMatch(/^before/);
    await run(name, 'exit 0');
    // biome-ignore lint/suspicious/noExplicitAny: events are asserted on, field by field.
    const mine: any[] = [];
    for await (const { data } of live) {
      if (data.jobEvents.name === name) mine.push(data.jobEvents);
      if (mine.length === 3) break;
    }
    const [begun, ...more] = mine;
    expect(mine.map((e) => [e.type, e.status])).toEqual([
      ['QUEUED', 'QUEUED'],
      ['RUNNING', 'RUNNING'],
      ['SUCCEEDED', 'SUCCEEDED'],
    ]);
    const after = `, name: "${name}", after: ${begun.cursor}`;
    const resumed = await take(open(ada, EVENTS(after)), 'jobEvents', 2);
    expect(resumed.map((e) => e.cursor)).toEqual(more.map((e) => e.cursor));
    expect(resumed.at(-1)).toMatchObject({ name, job: { status: 'SUCCEEDED' } });
  },
);

test('events of a deleted job are still sent, without the job', async () => {
  await run('gone', 'exit 0');
  await until(ada, 'ada', 'gone', 'SUCCEEDED');
  await remove(ada, 'ada', 'gone');
  const all = await take(
    viaYoga(ada, EVENTS(', after: 0')),
    'jobEvents',
    4 + (await eventsBefore('gone')),
  );
  const mine = all.filter((e) => e.name === 'gone');
  expect(mine.map((e) => e.type)).toEqual(['QUEUED', 'RUNNING', 'SUCCEEDED', 'DELETED']);
  expect(mine.every((e) => e.job === null)).toBe(true);
});

async function eventsBefore(name: string): Promise<number> {
  const { rows } = await app.app.services.pool.query(
    `select count(*)::int as n from events where type like 'job.%' and coalesce(data->'job'->>'name', '') <> $1`,
    [name],
  );
  return rows[0].n;
}

test('no event is skipped when transactions commit in another order than they began', async () => {
  const { pool } = app.app.services;
  const { rows } = await pool.query(`select id from namespaces where name = 'ada'`);
  const insert = (id: string) => ({
    text: `insert into events (id, type, namespace_id, subject, data)
           select $1, type, namespace_id, subject, data from events
           where type = 'job.queued' and namespace_id = $2 order by seq limit 1`,
    values: [id, rows[0].id],
  });
  const { rows: last } = await pool.query('select max(seq)::int as seq from events');
  const slow = await pool.connect();
  await slow.query('begin');
  await slow.query(insert('evt_slow'));
  await pool.query(insert('evt_quick'));
  const answers = viaYoga(ada, EVENTS(`, after: ${last[0].seq}`));
  const both = take(answers, 'jobEvents', 2);
  await slow.query('commit');
  slow.release();
  const cursors = (await both).map((e) => e.cursor);
  expect(cursors).toHaveLength(2);
  // After the cursor of the first event, the second follows.
  const rest = await take(viaYoga(ada, EVENTS(`, after: ${cursors[0]}`)), 'jobEvents', 1);
  expect(rest[0].cursor).toBe(cursors[1]);
});

test('a viewer without access gets the reason, and no events', async () => {
  const bob = await app.user('bob');
  await run('secret', 'exit 0');
  for (const [client, code] of [
    [bob, 'PERMISSION_DENIED'],
    [app.anonymous, 'AUTHENTICATION_FAILED'],
  ] as const)
    for (const query of [LOG('secret'), EVENTS()])
      await expect(take(viaYoga(client, query), 'x')).rejects.toMatchObject({ code });
  await expect(take(viaYoga(ada, EVENTS(', after: 99999999')), 'x')).rejects.toMatchObject({
    code: 'INVALID_REQUEST',
  });
});

test.each(Object.entries(MODES))('%s: an operation that fails has an error', async (_, open) => {
  const heavy =
    'repositories(first: 100) { nodes { commits(first: 100) { nodes { sha author { name email } committer { name } } } } }';
  for (const [code, query] of [
    ['GRAPHQL_PARSE_FAILED', 'subscription {'],
    ['GRAPHQL_VALIDATION_FAILED', 'subscription { nothing }'],
    ['NOT_FOUND', 'subscription { jobLog(namespace: "ada", name: "none") { seq } }'],
    ['NOT_FOUND', '{ job(namespace: "ada", name: "none") { id } }'],
    ['INVALID_REQUEST', EVENTS(', after: 99999999')],
    ['INVALID_REQUEST', 'query ($name: String!) { namespace(name: $name) { id } }'],
    ['OPERATION_RESOLUTION_FAILURE', 'query A { viewer { id } } query B { viewer { id } }'],
    [
      'LIMIT_EXCEEDED',
      `subscription { jobEvents(namespace: "ada") { job { owner { ${heavy} } } } }`,
    ],
  ] as const)
    await expect(take(open(ada, query), 'x'), query).rejects.toMatchObject({ code });
});

test('mutations require POST, also on a stream', async () => {
  const query =
    'mutation { createRepository(input: {namespace: "ada", name: "by-get"}) { repository { id } } }';
  for (const path of ['/graphql', '/graphql/stream'])
    await ada.get(`${path}?query=${encodeURIComponent(query)}`, { accept: 'text/event-stream' });
  await expectRefusal(
    ada.graphql('{ repository(namespace: "ada", name: "by-get") { id } }'),
    'NOT_FOUND',
  );
});

test.each(Object.entries(MODES))(
  '%s: a subscriber that leaves leaves nothing behind',
  async (_, open) => {
    const name = `left${crypto.randomUUID().slice(0, 8)}`;
    await run(name, 'echo up; sleep 600');
    await eventually(async () => expect(await lines(ada, 'ada', name)).toEqual(['up']));
    const { bus } = app.app.services;
    const before = bus.waiters;
    await take(open(ada, LOG(name)), 'jobLog', 3);
    await eventually(() => expect(bus.waiters).toBe(before));
    await cancel(ada, 'ada', name);
  },
);

test('errors on a stream contain no internal extensions', async () => {
  for (const query of ['{ nothing }', '{', 'query A { a } query B { b }', 'mutation { x { y } }']) {
    const { text } = await ada.post('/graphql/stream', { query }, { accept: 'text/event-stream' });
    const [, data = ''] = /event: next\ndata: (.*)/.exec(text) ?? [];
    const { errors } = JSON.parse(data);
    expect(errors[0]).toMatchObject({
      message: expect.any(String),
      extensions: { code: expect.any(String) },
    });
    for (const { extensions } of errors) expect(Object.keys(extensions)).toEqual(['code']);
  }
});

test('an unacceptable response type gives 406 with a reason, before the operation runs', async () => {
  const subscription = { query: 'subscription { jobEvents(namespace: "ada") { id } }' };
  const mutation = {
    query:
      'mutation { createRepository(input: {namespace: "ada", name: "unaccepted"}) { repository { id } } }',
  };
  for (const [path, body, accept, message] of [
    ['/graphql', subscription, 'application/json', /^Accept: a subscription needs/],
    [
      '/graphql',
      subscription,
      'application/graphql-response+json',
      /^Accept: a subscription needs/,
    ],
    ['/graphql', subscription, 'text/html', /^Accept: must allow/],
    ['/graphql', mutation, 'text/html', /^Accept: must allow/],
    ['/graphql/', mutation, 'text/html', /^Accept: must allow/],
    ['/graphql/', subscription, 'application/json', /^Accept: a subscription needs/],
    ['/graphql', mutation, 'multipart/mixed', /^Accept: must allow/],
    ['/graphql', mutation, 'application/json; charset=latin1', /^Accept: must allow/],
    ['/graphql/stream', subscription, 'application/json', /^Accept: must allow text\/event-stream/],
  ] as const) {
    const answer = await ada.post(path, body, { accept });
    expect([answer.status, answer.body], accept).toEqual([
      406,
      {
        errors: [
          expect.objectContaining({
            message: expect.stringMatching(message),
            extensions: { code: 'INVALID_REQUEST' },
          }),
        ],
      },
    ]);
  }
  await expectRefusal(
    ada.graphql('{ repository(namespace: "ada", name: "unaccepted") { id } }'),
    'NOT_FOUND',
  );
  for (const accept of [
    'application/graphql-response+json; charset=utf-8, application/json; charset=utf-8',
    'application/*;q=0.1',
    'text/event-stream',
  ])
    expect(
      (await ada.post('/graphql', { query: '{ version { build } }' }, { accept })).status,
    ).toBe(200);
});

/** Reserves a stream with these operations, by id. */
async function streamOf(operations: Record<string, OperationResult>) {
  const stream = new EventStream();
  const handle = createHandler({
    authenticate: () => stream.token,
    onSubscribe: (_request, { extensions }) =>
      stream.start(
        operations[String(extensions?.operationId)] as OperationResult,
        (error) => new GraphQLError((error as Error).message),
      ),
    onComplete: () => stream.operationEnded(),
  });
  const call = (method: string, accept: string, body: Record<string, unknown> | null = null) => {
    const get = (name: string) => (name === 'accept' ? accept : 'application/json');
    return handle({ method, url: '/', headers: { get }, body, raw: null, context: null });
  };
  await call('PUT', '*/*');
  for (const operationId of Object.keys(operations))
    await call('POST', '*/*', { query: '{ a }', extensions: { operationId } });
  return {
    stream,
    async connect() {
      const [messages] = await call('GET', 'text/event-stream');
      const client = new AbortController();
      const body = stream.connect(messages as AsyncGenerator<string, void>, client.signal);
      const reader = body.getReader();
      return async () => {
        const { value } = await reader.read();
        return value && new TextDecoder().decode(value);
      };
    },
  };
}

test('at most two results are read ahead of a client with one operation', async () => {
  let told = 0;
  async function* numbers() {
    for (;;) yield { data: { n: ++told } };
  }
  const { stream, connect } = await streamOf({ a: numbers() });
  await new Promise(setImmediate);
  expect(told).toBe(1);
  const next = await connect();
  const texts: (string | undefined)[] = [];
  for (let n = 0; n < 4; n++) texts.push(await next());
  expect(texts.slice(1)).toEqual(
    [1, 2, 3].map((n) => `event: next\ndata: {"id":"a","payload":{"data":{"n":${n}}}}\n\n`),
  );
  await new Promise(setImmediate);
  expect(told).toBe(5);
  stream.close();
});

test('an operation that fails sends its error, and the other operations of the stream continue', async () => {
  // biome-ignore lint/correctness/useYield: it fails before it yields.
  const failing = (async function* () {
    throw new Error('broken');
  })();
  const { stream, connect } = await streamOf({ bad: failing, good: { data: { n: 1 } } });
  const next = await connect();
  let all = '';
  // The message that opens the stream, two results, and the ends of two operations.
  for (let n = 0; n < 5; n++) all += await next();
  stream.finish();
  expect(await next()).toBeUndefined();
  expect(all).toContain('{"id":"bad","payload":{"errors":[{"message":"broken"}]}}');
  expect(all).toContain('{"id":"good","payload":{"data":{"n":1}}}');
  expect(all.match(/event: complete/g)).toHaveLength(2);
});

describe('a reserved event stream', () => {
  const path = '/graphql/stream';
  const reserve = async (client: Client) => {
    const { status, text, body } = await client.request('PUT', path);
    expect(status, text).toBe(201);
    return body ?? text;
  };
  const as = (token: string) => ({ 'x-graphql-event-stream-token': token });

  test('belongs to its caller, and accepts one connection', async () => {
    const bob = await app.user('stream-bob');
    const token = await reserve(ada);
    const operation = { query: '{ version { build } }', extensions: { operationId: '1' } };
    for (const client of [bob, app.anonymous])
      expect((await client.post(path, operation, as(token))).status).toBe(404);
    for (const name of ['constructor', '__proto__'])
      expect((await ada.post(path, operation, as(name))).status).toBe(404);
    expect((await ada.post(path, operation, as(token))).status).toBe(202);
    expect((await ada.post(path, operation, as(token))).status).toBe(409);
    const reading = new AbortController();
    const headers = {
      accept: 'text/event-stream',
      authorization: ada.authorization ?? '',
      ...as(token),
    };
    const response = await fetch(ada.base + path, { headers, signal: reading.signal });
    if (!response.body) throw new Error('no stream');
    const seen = [];
    for await (const { event } of parseEvents(response.body)) {
      seen.push(event);
      if (event === 'complete') break;
    }
    expect(seen).toEqual(['next', 'complete']);
    reading.abort();
    await eventually(async () =>
      expect((await ada.post(path, operation, as(token))).status).toBe(404),
    );
  });

  test('has a limited number of operations, and a caller has a limited number of streams', async () => {
    const eve = await app.user('stream-eve');
    const token = await reserve(eve);
    const post = (id: number) =>
      eve.post(
        path,
        { query: '{ version { build } }', extensions: { operationId: `${id}` } },
        as(token),
      );
    for (let id = 0; id < 100; id++) expect((await post(id)).status).toBe(202);
    expect((await post(100)).status).toBe(429);
    expect(
      (await eve.request('DELETE', `${path}?operationId=1`, { headers: as(token) })).status,
    ).toBe(200);
    expect((await post(100)).status).toBe(202);
    for (let n = 1; n < 100; n++) await reserve(eve);
    expect((await eve.request('PUT', path)).status).toBe(429);
    await reserve(ada);
  });
});

test('a body over 1 MiB, and invalid JSON in the query string, are refused', async () => {
  const query = `{ version { build } } # ${'x'.repeat(2 ** 20)}`;
  for (const path of ['/graphql', '/graphql/stream']) {
    const { status, body } = await ada.post(path, { query }, { accept: 'text/event-stream' });
    expect([status, body.errors[0]]).toMatchObject([
      400,
      { message: 'The body is larger than 1 MiB', extensions: { code: 'INVALID_REQUEST' } },
    ]);
    for (const name of ['variables', 'extensions']) {
      const address = `${path}?query=${encodeURIComponent('{ version { build } }')}&${name}=[1`;
      const refused = await ada.get(address, { accept: 'text/event-stream' });
      expect(refused).toMatchObject({
        status: 400,
        body: { errors: [{ extensions: { code: 'INVALID_REQUEST' } }] },
      });
    }
  }
});
