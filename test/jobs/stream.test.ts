import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { startProcessClock } from '../support/process-clock.ts';
import { expectRefusal } from '../support/refusal.ts';
import { followStream, parseEvents, type StreamEvent } from '../support/sse.ts';
import { cancel, lines, submit, until } from '../support/submit.ts';
import { take, viaYoga } from '../support/subscribe.ts';

const runner = fakeRunner({ graceMs: 200 });
let app: TestApp;
let ada: Client;

beforeAll(async () => {
  app = await startApp({ overrides: { runner } });
  ada = await app.user('ada');
  await ada.repository('ada/code');
});
afterAll(() => app[Symbol.asyncDispose]());

const run = (name: string, command: string, more: object = {}) =>
  submit(ada, { namespace: 'ada', repo: 'ada/code', name, command, ...more });
const path = (name: string, query = '') => `/ada/job/${name}/logs?stream=true${query}`;
const messages = (events: StreamEvent[]) =>
  events.filter((e) => e.event === 'log').map((e) => e.data.message);
const hasLines = (name: string, count: number) =>
  eventually(async () => expect(await lines(ada, 'ada', name)).toHaveLength(count));

test('a stream has the lines so far, live lines, status changes, and the end', async () => {
  await run('plain', 'echo a; echo b; hold; echo c; exit 3');
  await hasLines('plain', 2);
  await using stream = followStream(ada, path('plain'));
  const events = await stream.take(2);
  runner.release();
  events.push(...(await stream.all()));
  expect(messages(events)).toEqual(['a', 'b', 'c']);
  expect(events.slice(-2)).toMatchObject([
    { event: 'status', data: { status: 'failed' } },
    { event: 'end', data: { status: 'failed', exit_code: 3 } },
  ]);
  expect(events[0]).toEqual({
    id: expect.stringMatching(/^\d+$/),
    event: 'log',
    data: { timestamp: expect.stringMatching(/^\d{4}-.*\.\d{6}Z$/), message: 'a' },
  });
  const ids = events.slice(0, -1).map((e) => Number(e.id));
  expect(ids).toEqual([...ids].sort((a, b) => a - b));
});

test('tail and since select the first lines; the alternative path works too', async () => {
  await run('chosen', 'echo a; sleep 0.1; echo b; sleep 0.1; echo c; sleep 600');
  await hasLines('chosen', 3);
  const first = async (at: string, count: number) => {
    await using stream = followStream(ada, at);
    return messages(await stream.take(count));
  };
  expect(await first(path('chosen', '&tail=2'), 2)).toEqual(['b', 'c']);
  const { body } = await ada.get('/ada/job/chosen/logs');
  const since = encodeURIComponent(body.lines[0].timestamp);
  expect(await first(`/auth/v1${path('chosen', `&since=${since}`)}`, 2)).toEqual(['b', 'c']);
  await cancel(ada, 'ada', 'chosen');
});

test('a stream resumes after Last-Event-ID, also if the job has ended', async () => {
  await run('resumed', 'echo a; echo b; hold; echo c; exit 0');
  await hasLines('resumed', 2);
  await using begun = followStream(ada, path('resumed'));
  const seen = await begun.take(1);
  await begun[Symbol.asyncDispose]();
  const lastEventId = seen.at(-1)?.id as string;
  await using resumed = followStream(ada, path('resumed'), lastEventId);
  expect(messages(await resumed.take(1))).toEqual(['b']);
  runner.release();
  expect(messages(await resumed.all())).toEqual(['c']);
  await until(ada, 'ada', 'resumed', 'SUCCEEDED');
  const again = await followStream(ada, path('resumed'), lastEventId).all();
  expect(messages(again)).toEqual(['b', 'c']);
  expect(again.at(-1)).toMatchObject({ event: 'end', data: { status: 'succeeded', exit_code: 0 } });
});

test('resuming at the end gives 204, so that an EventSource does not reconnect', async () => {
  await run('ended', 'echo a; exit 0');
  await until(ada, 'ada', 'ended', 'SUCCEEDED');
  const events = await followStream(ada, path('ended'), '0').all();
  const resume = (id: string) => ada.get(path('ended'), { 'Last-Event-ID': id });
  const last = await resume(events.at(-1)?.id ?? '');
  expect([last.status, last.text, last.headers.get('content-type')]).toEqual([204, '', null]);
  // One entry before the end: the last status and the end must still be sent.
  const line = events.find(({ event }) => event === 'log')?.id ?? '';
  expect((await resume(line)).text).toMatch(/event: status[\s\S]*event: end/);
  // A cancelled job may still print lines.
  await run('printing', 'echo a; trap 3; sleep 600');
  await hasLines('printing', 1);
  await using live = followStream(ada, path('printing'));
  const [seen] = await live.take(1);
  await using stream = followStream(ada, path('printing'), seen?.id);
  const rest = stream.all();
  await cancel(ada, 'ada', 'printing');
  expect((await rest).at(-1)).toMatchObject({ event: 'end' });
});

test('a Last-Event-ID that no event has yet is refused', async () => {
  await run('young', 'echo a; sleep 600');
  await hasLines('young', 1);
  const { status, body } = await ada.get(path('young'), { 'Last-Event-ID': '99999' });
  expect([status, body.error.code]).toEqual([400, 'invalid_request']);
  expect(body.error.message).toMatch(/^Last-Event-ID: must be the id of an event; the last event/);
  for (const field of ['jobLog', 'jobLogBatches']) {
    const query = `subscription { ${field}(namespace: "ada", name: "young", after: 99999) { __typename } }`;
    await expect(take(viaYoga(ada, query), field, 1)).rejects.toMatchObject({
      code: 'INVALID_REQUEST',
      message: 'after: must be 0 or the seq of an entry',
    });
  }
  await cancel(ada, 'ada', 'young');
});

test('HEAD has the headers of GET and ends at once', async () => {
  await run('headed', 'echo a; sleep 600');
  await hasLines('headed', 1);
  const head = (headers?: Record<string, string>) =>
    ada.request('HEAD', path('headed'), { headers });
  const { bus } = app.app.services;
  const before = bus.waiters;
  const live = await head();
  expect([live.status, live.headers.get('content-type'), live.text]).toEqual([
    200,
    'text/event-stream; charset=utf-8',
    '',
  ]);
  expect(bus.waiters).toBe(before);
  await cancel(ada, 'ada', 'headed');
  await eventually(async () => expect((await head({ 'Last-Event-ID': '99' })).status).toBe(204));
  expect((await head()).status).toBe(409);
  expect((await head({ 'Last-Event-ID': '1' })).status).toBe(200);
  expect((await ada.request('HEAD', path('none'))).status).toBe(404);
});

test('a cancelled job is followed to its last line', async () => {
  await run('dying', 'echo up; trap 9; sleep 600');
  await hasLines('dying', 1);
  await using stream = followStream(ada, path('dying'));
  await stream.take(1);
  await cancel(ada, 'ada', 'dying');
  const events = await stream.all();
  expect(events.map((e) => e.event)).toEqual(['status', 'end']);
  expect(events.at(-1)?.data).toEqual({ status: 'cancelled', exit_code: 9 });
});

test('a retried job continues in the same stream', async () => {
  await run('retried', 'echo try; hold; exit 1', { retries: 1 });
  await hasLines('retried', 1);
  await using stream = followStream(ada, path('retried'));
  const events: StreamEvent[] = [];
  for (let attempt = 1; attempt <= 2; attempt++) {
    events.push(...(await stream.take(1)));
    runner.release();
  }
  events.push(...(await stream.all()));
  const told = events.map((e) => (e.event === 'log' ? e.data.message : e.data.status));
  expect(told).toEqual(['try', 'queued', 'running', 'try', 'failed', 'failed']);
});

test('jobs that do not run, do not exist or are not visible, and invalid ids, are refused before the stream starts', async () => {
  await run('done', 'exit 0');
  await until(ada, 'ada', 'done', 'SUCCEEDED');
  expect(await ada.get(path('done'))).toMatchObject({
    status: 409,
    body: { error: { code: 'conflict' } },
  });
  await run('waiting', 'exit 0', { gpu: 'T4' });
  expect((await ada.get(path('waiting'))).status).toBe(409);
  expect((await ada.get(path('none'))).status).toBe(404);
  expect((await app.anonymous.get(path('done'))).status).toBe(401);
  const bob = await app.user('bob');
  expect((await bob.get(path('done'))).status).toBe(403);
  expect((await ada.get(path('done'), { 'Last-Event-ID': 'x' })).body).toMatchObject({
    error: { message: 'Last-Event-ID: must be the id of an event' },
  });
  expect((await ada.get(path('done', '&tail=0'))).status).toBe(400);
  expect((await ada.get(path('done', '&since=2026-02-30T00:00:00Z'))).status).toBe(400);
  // An unencoded plus sign arrives as a space.
  for (const offset of ['+02:00', '%2B02:00'])
    expect((await ada.get(path('done', `&since=2026-02-20T00:00:00${offset}`))).status).toBe(409);
});

test('a client that does not read does not block other clients, and a disconnected client leaves no resources', async () => {
  const count = 6_000;
  await run('flood', `flood ${count} 2000; sleep 600`);
  await hasLines('flood', count);
  const { bus } = app.app.services;
  const before = bus.waiters;
  const connections = new Set<Socket>();
  app.app.server.on('connection', (socket) => connections.add(socket));
  const slow: IncomingMessage = await new Promise((resolve, reject) => {
    const headers = { authorization: ada.authorization ?? '' };
    get(`${app.base}${path('flood', '&tail=10000')}`, { headers }, resolve).on('error', reject);
  });
  slow.pause();
  // The log has 12 MB. Lines that the slow client has not read stay in the database, not in the server's memory.
  const held = () => Math.max(...[...connections].map((socket) => socket.writableLength));
  await using quick = followStream(ada, path('flood', '&tail=10000'));
  expect(messages(await quick.take(count))).toHaveLength(count);
  expect(bus.waiters).toBe(before + 2);
  await eventually(() => expect(held()).toBeGreaterThan(0));
  expect(held()).toBeLessThan(2_000_000);
  await quick[Symbol.asyncDispose]();
  slow.destroy();
  await once(slow, 'close');
  await eventually(() => expect(bus.waiters).toBe(before));
  await cancel(ada, 'ada', 'flood');
});

test('clients that disconnect before their stream is opened leave no resources', async () => {
  await run('left', 'echo a; sleep 600');
  await hasLines('left', 1);
  const { bus, pool, rechecks } = app.app.services;
  const before = { waiters: bus.waiters, streams: rechecks.streams };
  // Blocks reads of the job while the clients disconnect.
  const database = await pool.connect();
  await database.query('begin; lock table jobs in access exclusive mode');
  const held = async () => {
    const { rows } = await database.query(`
      select from pg_locks where not granted and relation = 'jobs'::regclass
        and database = (select oid from pg_database where datname = current_database())`);
    return rows.length;
  };
  const closed: Promise<unknown>[] = [];
  app.app.server.on('connection', (socket) => closed.push(once(socket, 'close')));
  const headers = { authorization: ada.authorization ?? '', accept: 'text/event-stream' };
  const query = 'subscription { jobLog(namespace: "ada", name: "left") { __typename } }';
  const graphql = `/graphql?query=${encodeURIComponent(query)}`;
  for (const [before, url] of [path('left'), graphql, `${graphql}&x`, path('left')].entries()) {
    const asking = get(`${app.base}${url}`, { headers, agent: false });
    asking.on('error', () => {});
    await eventually(async () => expect(await held()).toBeGreaterThan(before));
    asking.destroy();
  }
  await Promise.all(closed);
  await database.query('commit');
  database.release();
  // This request comes after theirs and is answered after them.
  await using stream = followStream(ada, path('left'));
  expect(messages(await stream.take(1))).toEqual(['a']);
  await stream[Symbol.asyncDispose]();
  await eventually(() =>
    expect({ waiters: bus.waiters, streams: rechecks.streams }).toEqual(before),
  );
  await cancel(ada, 'ada', 'left');
});

test('a stopping server ends its streams at once, and they resume on the next server', async () => {
  await run('outlives', 'echo a; sleep 600');
  await hasLines('outlives', 1);
  await using stream = followStream(ada, path('outlives'));
  const [line] = await stream.take(1);
  const rest = stream.all();
  const timeOfRestart = async () => {
    using clock = startProcessClock();
    await app.restart();
    return clock.ms;
  };
  const took = await timeOfRestart();
  // A stopping server waits up to 10 seconds for open requests.
  expect(took - (await timeOfRestart())).toBeLessThan(8_000);
  expect(await rest).toEqual([]);
  const resumed = followStream(ada, path('outlives'), line?.id);
  await cancel(ada, 'ada', 'outlives');
  expect((await resumed.all()).at(-1)).toMatchObject({ event: 'end' });
});

/** Requests the links to the log of a job. */
const linksOf = async (client: Client, name: string) =>
  (
    await client.gql(
      `{ job(namespace: "ada", name: "${name}") { id logStreamUrl logDownloadUrl } }`,
    )
  ).job as { id: string; logStreamUrl: string; logDownloadUrl: string };
const local = (url: string) => url.slice(app.base.length);

test('a link opens the stream without credentials, and the stream can be resumed', async () => {
  await run('linked', 'echo a; echo b; sleep 600');
  await hasLines('linked', 2);
  const { logStreamUrl } = await linksOf(ada, 'linked');
  const url = local(logStreamUrl);
  const first = async (at: string, lastEventId?: string) => {
    await using stream = followStream(app.anonymous, at, lastEventId);
    return (await stream.take(1)).at(-1);
  };
  const one = await first(url);
  expect(one?.data.message).toBe('a');
  expect((await first(`${url}&tail=1`))?.data.message).toBe('b');
  // With the header, as an EventSource does, and with the parameter for a new EventSource.
  expect((await first(url, one?.id))?.data.message).toBe('b');
  expect((await first(`${url}&after=${one?.id}`))?.data.message).toBe('b');
  const since = encodeURIComponent(one?.data.timestamp);
  expect((await app.anonymous.get(`${logStreamUrl}&since=nonsense`)).status).toBe(400);
  expect((await app.anonymous.get(`${logStreamUrl}&tail=0`)).status).toBe(400);
  expect((await app.anonymous.get(`${logStreamUrl}&after=x`)).status).toBe(400);
  expect((await app.anonymous.get(`${logStreamUrl}&tail=1&tail=2`)).status).toBe(400);
  expect((await app.anonymous.get(`${logStreamUrl}&since=2026-02-01T00:00:00`)).status).toBe(400);
  // The stream must be open before the job ends; afterwards it is refused.
  const open = await fetch(`${app.base}${url}&since=${since}`);
  expect(open.status).toBe(200);
  await cancel(ada, 'ada', 'linked');
  const rest = await Array.fromAsync(parseEvents(open.body as NonNullable<typeof open.body>));
  expect(rest.at(-1)).toMatchObject({ event: 'end', data: { status: 'cancelled' } });
  await until(ada, 'ada', 'linked', 'CANCELLED');
  expect((await app.anonymous.get(logStreamUrl)).status).toBe(409);
  const all = await followStream(app.anonymous, `${url}&after=0`).all();
  expect(messages(all)).toEqual(['a', 'b']);
  await eventually(async () =>
    expect((await app.anonymous.get(`${logStreamUrl}&after=${all.at(-1)?.id}`)).status).toBe(204),
  );
});

test('a link is valid for one job and one credential only', async () => {
  await run('mine', 'echo a; sleep 600');
  await run('other', 'echo a; sleep 600');
  await hasLines('mine', 1);
  await hasLines('other', 1);
  const mine = await linksOf(ada, 'mine');
  const other = await linksOf(ada, 'other');
  const third = await linksOf(await ada.withToken({ scopes: ['JOB_READ'] }), 'mine');
  const status = async (url: string) => (await app.anonymous.get(url)).status;
  const credential = (url: string) => new URL(url).searchParams.get('credential') ?? '';
  expect(await status(mine.logStreamUrl.replace(mine.id, other.id))).toBe(403);
  expect(
    await status(
      mine.logStreamUrl.replace(credential(mine.logStreamUrl), credential(third.logStreamUrl)),
    ),
  ).toBe(403);
  expect(await status(mine.logStreamUrl.replace(/credential=[^&]*&/, ''))).toBe(403);
  expect(await status(mine.logStreamUrl.replace(/expires=\d+/, 'expires=99999999999'))).toBe(403);
  expect(await status(mine.logStreamUrl.replace(/&signature=.*/, ''))).toBe(403);
  expect(await status(mine.logStreamUrl.replace('/ada/', '/admin/'))).not.toBe(200);
  // The signature of one link is not valid for the other.
  expect(await status(mine.logStreamUrl.replace('/log/events', '/log.txt'))).toBe(401);
  expect(await status(mine.logDownloadUrl.replace('/log.txt', '/log/events'))).toBe(403);
  expect(await status(mine.logDownloadUrl.replace(mine.id, other.id))).toBe(401);
  expect((await app.anonymous.post(mine.logStreamUrl)).status).toBe(405);
  // The link counts, even if the request has a credential.
  const eve = await app.user('eve');
  expect((await eve.get(mine.logStreamUrl.replace(mine.id, other.id))).status).toBe(403);
  for (const name of ['mine', 'other']) await cancel(ada, 'ada', name);
});

test('a link ends with the credential that requested it', async () => {
  await run('revoked', 'echo a; sleep 600');
  await hasLines('revoked', 1);
  const reader = await ada.withToken({ name: 'short', scopes: ['JOB_READ'] });
  const { logStreamUrl } = await linksOf(reader, 'revoked');
  const stream = followStream(app.anonymous, local(logStreamUrl));
  await using _ = stream;
  await stream.take(1);
  await ada.delete('/auth/v1/pat/short');
  expect((await app.anonymous.get(logStreamUrl)).status).toBe(401);
  expect(await stream.all()).toMatchObject([
    { event: 'error', data: { error: { code: 'authentication_failed' } } },
  ]);
  // A link shows no more than its credential may see.
  const blind = await ada.withToken({ scopes: ['REPO_READ'] });
  const seen = await blind.graphql('{ job(namespace: "ada", name: "revoked") { logStreamUrl } }');
  expect(seen.data.job).toBeNull();
  await cancel(ada, 'ada', 'revoked');
});

test('the log as plain text: by link, by credential, with times, compressed, and of a running job', async () => {
  await run('text', 'echo one; echo two; sleep 600');
  await hasLines('text', 2);
  const { id, logDownloadUrl } = await linksOf(ada, 'text');
  const byLink = await app.anonymous.get(logDownloadUrl);
  expect([byLink.status, byLink.text]).toEqual([200, 'one\ntwo\n']);
  expect(Object.fromEntries(byLink.headers)).toMatchObject({
    'content-type': 'text/plain; charset=utf-8',
    'content-disposition': 'attachment; filename=text.log',
    'x-content-type-options': 'nosniff',
    // fetch requests gzip and decompresses it.
    'content-encoding': 'gzip',
  });
  const plain = await app.anonymous.get(`${logDownloadUrl}&timestamps=true`, {
    'accept-encoding': 'identity',
  });
  expect(plain.headers.get('content-encoding')).toBeNull();
  expect(plain.text).toMatch(/^(\d{4}-\d\d-\d\dT[\d:.]{15}Z (one|two)\n){2}$/);
  expect((await app.anonymous.request('HEAD', logDownloadUrl)).status).toBe(200);
  expect((await app.anonymous.get(`${logDownloadUrl}&timestamps=yes`)).status).toBe(400);

  const at = `/artifacts/ada/${id}/log.txt`;
  expect((await ada.get(at)).text).toBe('one\ntwo\n');
  expect((await app.anonymous.get(at)).status).toBe(401);
  const carl = await app.user('carl');
  expect((await carl.get(at)).status).toBe(403);
  expect((await carl.get(at.replace('/ada/', '/carl/'))).status).toBe(404);
  expect((await ada.get('/artifacts/ada/job_nonsense/log.txt')).status).toBe(404);
  await cancel(ada, 'ada', 'text');
  await eventually(async () =>
    expect((await ada.graphql(DELETE, { input: { namespace: 'ada', name: 'text' } })).errors).toBe(
      undefined,
    ),
  );
  expect((await app.anonymous.get(logDownloadUrl)).status).toBe(404);
});
const DELETE = 'mutation ($input: DeleteJobInput!) { deleteJob(input: $input) { id } }';

test('ranges of a log and searches in GraphQL, and their invalid arguments', async () => {
  await run('viewed', 'echo alpha; echo Beta; echo gamma; exit 0');
  await until(ada, 'ada', 'viewed', 'SUCCEEDED');
  const ask = (fields: string, client = ada) =>
    client.graphql(`{ job(namespace: "ada", name: "viewed") { ${fields} } }`);
  const ENTRIES =
    '{ entries { seq ... on LogLine { message } ... on JobStatusChange { status } } }';
  const { data } = await ask(`
    log(first: 2, after: 1) { hasOlder hasNewer lastSeq entries { seq } }
    all: log ${ENTRIES}
    logSearch(text: "BETA", context: 1) { hasMore searchedTo matches {
      line { message } before { message } after { message } } }
    exact: logSearch(text: "BETA", matchCase: true) { matches { line { seq } } }`);
  expect(data.job.log).toEqual({
    hasOlder: true,
    hasNewer: true,
    lastSeq: 6,
    entries: [{ seq: 2 }, { seq: 3 }],
  });
  const all = data.job.all.entries.map(
    (e: { message?: string; status?: string }) => e.message ?? e.status,
  );
  expect(all).toEqual(['QUEUED', 'RUNNING', 'alpha', 'Beta', 'gamma', 'SUCCEEDED']);
  expect(data.job.logSearch).toEqual({
    hasMore: false,
    searchedTo: 6,
    matches: [
      { line: { message: 'Beta' }, before: [{ message: 'alpha' }], after: [{ message: 'gamma' }] },
    ],
  });
  expect(data.job.exact.matches).toEqual([]);
  for (const [field, args] of [
    ['first', 'log(first: 0)'],
    ['last', 'log(last: 1001)'],
    ['last', 'log(first: 1, last: 1)'],
    ['after', 'log(after: -1)'],
    ['after', 'log(last: 1, after: 1)'],
    ['before', 'log(first: 1, before: 1)'],
    ['at', 'log(after: 1, at: "2026-01-01T00:00:00Z")'],
    ['text', 'logSearch(text: "")'],
    ['text', `logSearch(text: "${'x'.repeat(1001)}")`],
    ['first', 'logSearch(text: "x", first: 101)'],
    ['context', 'logSearch(text: "x", context: 11)'],
    ['after', 'logSearch(text: "x", after: -1)'],
  ] as const) {
    const selection = args.startsWith('logSearch') ? '{ hasMore }' : '{ lastSeq }';
    const { errors } = await ask(`${args} ${selection}`);
    expect(errors?.[0]?.extensions, args).toEqual({ code: 'INVALID_REQUEST', field });
  }
  const many = Array.from({ length: 13 }, (_, i) => `s${i}: logSearch(text: "x") { hasMore }`);
  await expectRefusal(ask(many.join(' ')), 'LIMIT_EXCEEDED');
  const eve = await app.user('outsider');
  const hidden = await ask('logSearch(text: "a") { hasMore }', eve);
  await expectRefusal(hidden, 'PERMISSION_DENIED');
});
