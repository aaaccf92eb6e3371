/** Webhooks as receivers see them: real events over real TLS. */
import { createHmac } from 'node:crypto';
import { Webhook } from 'standardwebhooks';
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { createApp } from '../../src/app.ts';
import type { Config } from '../../src/base/config/config.ts';
import { newId } from '../../src/base/ids.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { submit } from '../support/submit.ts';
import {
  type Authority,
  makeAuthority,
  type Received,
  type Receiver,
  startReceiver,
} from '../support/webhook-receiver.ts';

let authority: Authority;
let receiver: Receiver;
let app: TestApp;
let ada: Client;
let count = 0;
const webhooks: string[] = [];

beforeAll(async () => {
  authority = await makeAuthority();
  receiver = await startReceiver(authority);
  const config: Partial<Config> = {
    webhooks: { allow: ['127.0.0.0/8'], authorities: authority.file },
    // The second server needs the same key.
    secretKey: Buffer.alloc(32, 7),
  };
  app = await startApp({ config, overrides: { runner: fakeRunner() } });
  ada = await app.user('ada');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
});
afterAll(async () => {
  await app[Symbol.asyncDispose]();
  await receiver[Symbol.asyncDispose]();
  await authority[Symbol.asyncDispose]();
});
// Each test receives only its own requests.
afterEach(async () => {
  for (const id of webhooks.splice(0)) await ada.delete(`/auth/v1/seed/webhooks/${id}`);
  receiver.answer = (response) => void response.writeHead(204).end();
});

// biome-ignore lint/suspicious/noExplicitAny: responses are asserted field by field.
type Json = any;
const query = async (sql: string, values: unknown[] = []): Promise<Json[]> =>
  (await app.pool.query(sql, values)).rows;

/** Creates a webhook with its own path at the receiver. */
async function hook(more: object = {}): Promise<{ id: string; got: () => Received[] }> {
  const path = `/hook-${++count}`;
  const { body, status, text } = await ada.post('/auth/v1/seed/webhooks', {
    name: `hook-${count}`,
    url: `${receiver.url}${path}`,
    event_types: ['job.completed', 'job.failed'],
    namespaces: ['ada'],
    ...more,
  });
  expect(status, text).toBe(201);
  webhooks.push(body.id);
  return { id: body.id, got: () => receiver.received.filter((one) => one.path === path) };
}

/** Creates a job of ada that ends by itself. */
const finish = (command = 'exit 0', more: object = {}) =>
  submit(ada, {
    namespace: 'ada',
    name: `job-${++count}`,
    repo: 'ada/code',
    command,
    retries: 0,
    ...more,
  });

/** Inserts events of finished jobs, without the jobs. @returns their ids */
async function events(total: number): Promise<string[]> {
  const ids = Array.from({ length: total }, () => newId('evt'));
  await query(
    `with written as (
       insert into events (id, type, namespace_id, subject, data, timestamp)
       select id, 'job.succeeded', (select id from namespaces where name = 'ada'), 'job_x',
         '{"job": {"id": "job_x", "namespace": "ada", "status": "succeeded"}}', clock_timestamp()
       from unnest($1::text[]) with ordinality as event (id, position) order by position
     ) select pg_notify('loam', 'events')`,
    [ids],
  );
  return ids;
}

const deliveries = (webhookId: string) =>
  query('select * from deliveries where webhook_id = $1 order by id', [webhookId]);

/** Waits until the only delivery of a webhook has this state. */
const delivery = (webhookId: string, state: object) =>
  eventually(async () => {
    const [one] = await deliveries(webhookId);
    expect(one).toMatchObject(state);
    return one;
  });

/** Makes the next attempt due. */
async function hurry(webhookId: string): Promise<void> {
  await query(
    `update deliveries set next_attempt_at = now() where webhook_id = $1 and status = 'pending'`,
    [webhookId],
  );
  await query('update webhook_queues set due_at = clock_timestamp() where webhook_id = $1', [
    webhookId,
  ]);
  await query(`select pg_notify('loam', 'deliveries')`);
}

const idsOf = (got: readonly Received[]) => got.map(({ headers }) => headers['webhook-id']);

test('events of finished jobs are sent as GET returns the jobs, and standard libraries verify them', async () => {
  const secret = `whsec_${Buffer.from('twenty-four bytes or more').toString('base64')}`;
  const { id, got } = await hook({ secret });
  const { name } = await finish('echo hello; exit 0');
  const failed = await finish('exit 3');
  const cancelled = await finish('sleep 60');
  await ada.delete(`/auth/v1/ada/job/${cancelled.name}`);
  const received = await eventually(() => {
    expect(got().length).toBe(2);
    return got();
  });

  for (const { headers, body } of received) {
    new Webhook(secret).verify(body, headers as Record<string, string>);
    const hmac = createHmac('sha256', secret).update(body).digest('hex');
    expect(headers['x-service-signature']).toBe(`sha256=${hmac}`);
    expect(headers['user-agent']).toMatch(/^Loam\/\d/);
    expect(headers['webhook-id']).toMatch(/^evt_/);
  }
  const sent = received.map(({ body }) => JSON.parse(body));
  const completed = sent.find(({ type }) => type === 'job.completed');
  const job = (await ada.get(`/auth/v1/ada/job/${name}`)).body;
  expect(Object.keys(completed).sort()).toEqual(['data', 'id', 'namespace', 'timestamp', 'type']);
  expect(completed).toMatchObject({
    namespace: 'ada',
    data: { ...job, total_cost: expect.anything() },
  });
  const [event] = await query('select id, timestamp from events where id = $1', [completed.id]);
  expect(completed.timestamp).toBe(event.timestamp.toISOString());
  expect(sent.find(({ type }) => type === 'job.failed').data).toMatchObject({
    name: failed.name,
    status: 'failed',
    exit_code: 3,
  });

  await eventually(async () => {
    for (const one of await deliveries(id)) {
      expect(one).toMatchObject({ status: 'succeeded', outcome: 'status_204', attempts: 1 });
      expect(one.tries).toMatchObject([{ outcome: 'status_204', status: 204, answer: '' }]);
      expect(one.next_attempt_at).toBeNull();
      expect(one.completed_at).toBeInstanceOf(Date);
    }
  });
});

test('a failed delivery is retried with the same id and growing delays, until it succeeds', async () => {
  const { id, got } = await hook();
  receiver.answer = (response) => void response.writeHead(500).end('out of order');
  await finish();
  const first = await delivery(id, { status: 'pending', outcome: 'status_500', attempts: 1 });
  // Five seconds after the attempt, plus up to a fifth.
  expect(first.next_attempt_at.getTime()).toBeGreaterThanOrEqual((got()[0]?.at ?? 0) + 5_000);
  expect(first.next_attempt_at.getTime()).toBeLessThanOrEqual(Date.now() + 6_000);
  expect((await query('select failing_since from webhooks where id = $1', [id]))[0]).toMatchObject({
    failing_since: expect.any(Date),
  });

  receiver.answer = (_response, _received, request) => void request.socket.destroy();
  const hurriedAt = Date.now();
  await hurry(id);
  const second = await delivery(id, { outcome: 'reset', response_status: null, attempts: 2 });
  expect(second.next_attempt_at.getTime()).toBeGreaterThanOrEqual(hurriedAt + 300_000);

  receiver.answer = (response) => void response.writeHead(200).end('at last');
  await hurry(id);
  const last = await delivery(id, { status: 'succeeded', outcome: 'status_200', attempts: 3 });
  expect(last.tries.map(({ outcome }: Json) => outcome)).toEqual([
    ...['status_500', 'reset', 'status_200'],
  ]);
  expect(last.tries[0]).toMatchObject({ answer: 'out of order', status: 500 });
  expect(new Set(idsOf(got())).size).toBe(1);
  expect(got().length).toBe(3);
  expect(await query('select failing_since from webhooks where id = $1', [id])).toEqual([
    { failing_since: null },
  ]);
});

test('a delivery fails after ten attempts', async () => {
  const { id } = await hook();
  receiver.answer = (response) => void response.writeHead(503).end();
  await finish();
  for (let attempts = 1; attempts < 10; attempts++) {
    await delivery(id, { status: 'pending', attempts });
    await hurry(id);
  }
  const last = await delivery(id, { status: 'failed', attempts: 10, next_attempt_at: null });
  expect(last).toMatchObject({ outcome: 'status_503', completed_at: expect.any(Date) });
  expect(await query('select active from webhooks where id = $1', [id])).toEqual([
    { active: true },
  ]);
});

test('Retry-After delays the next attempt', async () => {
  const { id } = await hook();
  receiver.answer = (response) => void response.writeHead(429, { 'retry-after': '600' }).end();
  const finishedAt = Date.now();
  await finish();
  const { next_attempt_at } = await delivery(id, { outcome: 'status_429' });
  expect(next_attempt_at.getTime()).toBeGreaterThanOrEqual(finishedAt + 600_000);
  expect(next_attempt_at.getTime()).toBeLessThanOrEqual(Date.now() + 720_000);
});

test('410 switches the webhook off, and its pending deliveries fail', async () => {
  const { id, got } = await hook();
  receiver.answer = (response) => void response.writeHead(500).end();
  await finish();
  await delivery(id, { attempts: 1 });
  const before = (await ada.get(`/auth/v1/seed/webhooks/${id}`)).body;
  // A single failure does not switch the webhook off.
  expect(before.updated_at).toBe(before.created_at);
  receiver.answer = (response) => void response.writeHead(410).end();
  await finish();
  await eventually(async () => {
    const all = await deliveries(id);
    expect(all.map(({ status, outcome }) => [status, outcome])).toEqual([
      ['failed', 'webhook_off'],
      ['failed', 'status_410'],
    ]);
  });
  const { active, updated_at } = (await ada.get(`/auth/v1/seed/webhooks/${id}`)).body;
  expect(active).toBe(false);
  expect(Date.parse(updated_at)).toBeGreaterThan(Date.parse(before.updated_at));
  expect(await query('select off_reason from webhooks where id = $1', [id])).toEqual([
    { off_reason: 'gone' },
  ]);
  await events(1);
  await eventually(async () =>
    expect(
      await query('select server_id, due_at from webhook_queues where webhook_id = $1', [id]),
    ).toEqual([{ server_id: null, due_at: null }]),
  );
  expect(got().length).toBe(2);
});

test('only five days of failures switch a webhook off', async () => {
  const { id } = await hook();
  receiver.answer = (response) => void response.writeHead(500).end();
  await finish();
  await delivery(id, { attempts: 1 });
  await query(`update webhooks set failing_since = now() - interval '121 hours' where id = $1`, [
    id,
  ]);
  await hurry(id);
  await delivery(id, { status: 'failed', outcome: 'webhook_off', attempts: 2 });
  expect(await query('select active, off_reason from webhooks where id = $1', [id])).toEqual([
    { active: false, off_reason: 'failing' },
  ]);
});

test('redirects are not followed', async () => {
  const { id } = await hook();
  const elsewhere = `/elsewhere-${count}`;
  receiver.answer = (response) =>
    void response.writeHead(307, { location: `${receiver.url}${elsewhere}` }).end();
  await finish();
  await delivery(id, { outcome: 'status_307', status: 'pending' });
  expect(receiver.received.filter(({ path }) => path === elsewhere)).toEqual([]);
});

test('deliveries are signed with the new secret and the previous secret', async () => {
  const { id, got } = await hook({ secret: 'the former secret' });
  await ada.request('PATCH', `/auth/v1/seed/webhooks/${id}`, {
    json: { secret: 'the new secret' },
  });
  await finish();
  const [{ headers, body } = expect.fail()] = await eventually(() => {
    expect(got().length).toBe(1);
    return got();
  });
  for (const secret of ['the new secret', 'the former secret'])
    new Webhook(secret, { format: 'raw' }).verify(body, headers as Record<string, string>);
  expect(headers['x-service-signature-former']).toMatch(/^sha256=/);
});

test('a hanging receiver does not delay other receivers, and running attempts end within their timeout', async () => {
  await using silent = await startReceiver(authority);
  silent.answer = () => {};
  const dead = await hook({ url: silent.url });
  const alive = await hook();
  await events(40);
  await eventually(() => expect(alive.got().length).toBe(40));
  // All deliveries arrived while the first attempts at the silent receiver, which take 15 seconds, were running.
  expect((await deliveries(dead.id)).map(({ attempts }) => attempts)).toEqual(Array(40).fill(0));
  // An endpoint that has never responded gets two concurrent requests.
  await eventually(() => expect(silent.received.length).toBe(2));
  expect(await deliveries(dead.id)).toHaveLength(40);
});

test('many hanging receivers do not delay other receivers of their namespace', async () => {
  await query(`update namespaces set plan = 'enterprise' where name = 'ada'`);
  await using silent = await startReceiver(authority);
  silent.answer = () => {};
  const hanging: string[] = [];
  for (let i = 0; i < 40; i++) hanging.push((await hook({ url: silent.url })).id);
  await events(1);
  await eventually(() => expect(silent.received.length).toBeGreaterThan(31));
  const alive = await hook();
  await events(1);
  await eventually(() => expect(alive.got().length).toBe(1));
  // Attempts take 15 seconds, so none has ended.
  const ended = await query(
    'select id from deliveries where webhook_id = any($1::text[]) and attempts > 0',
    [hanging],
  );
  expect(ended).toEqual([]);
});

test('a receiver that responds gets each event once, in order', async () => {
  const { got } = await hook();
  const ids = await events(600);
  await eventually(() => expect(got().length).toBe(600));
  expect(new Set(idsOf(got()))).toEqual(new Set(ids));
  // Eight attempts run concurrently.
  const places = idsOf(got()).map((id) => ids.indexOf(`${id}`));
  expect(Math.max(...places.map((place, i) => Math.abs(place - i)))).toBeLessThan(16);
});

test('a delivery whose result is recorded during the next read is sent once', async () => {
  const { id, got } = await hook();
  // The receiver responds to the first delivery only after a read has found the delivery pending.
  let first: { messageId: unknown; end(): void } | undefined;
  receiver.answer = (response, received) => {
    const end = () => void response.writeHead(204).end();
    if (first || received !== got()[0]) end();
    else first = { messageId: received.headers['webhook-id'], end };
  };
  const { pool } = app.app.services;
  const read = pool.query.bind(pool) as (...asked: unknown[]) => Promise<{ rows: Json[] }>;
  using _ = vi.spyOn(pool, 'query').mockImplementation((async (...asked: Json[]) => {
    const found = await read(...asked);
    const isDue = ({ messageId }: Json) => messageId === first?.messageId;
    if (asked[0]?.name === 'deliveries due' && first && found.rows.some(isDue)) {
      first.end();
      await eventually(async () => {
        const all = await deliveries(id);
        const one = all.find(({ message_id }) => message_id === first?.messageId);
        expect(one.status).toBe('succeeded');
      });
    }
    return found;
  }) as never);
  const ids = await events(40);
  await eventually(async () => {
    const all = await deliveries(id);
    expect(all.map(({ status }) => status)).toEqual(Array(40).fill('succeeded'));
  });
  expect(idsOf(got()).sort()).toEqual(ids.sort());
});

test('a restart continues pending deliveries, also if the URL has changed', async () => {
  const { id, got } = await hook();
  receiver.answer = (response) => void response.writeHead(500).end();
  const ids = await events(5);
  await eventually(async () => {
    const all = await deliveries(id);
    expect(all.map(({ attempts }) => attempts)).toEqual([1, 1, 1, 1, 1]);
  });
  await app.restart();
  receiver.answer = (response) => void response.writeHead(204).end();
  const late = await events(1);
  await hurry(id);
  await eventually(async () => {
    const all = await deliveries(id);
    expect(all.map(({ status }) => status)).toEqual(Array(6).fill('succeeded'));
  });
  expect(new Set(idsOf(got()))).toEqual(new Set([...ids, ...late]));
});

test('two servers on one database send each delivery once', async () => {
  const { config, base } = app;
  await using second = await createApp(
    { ...config, port: 0, dataDir: `${config.dataDir}/second` },
    { runner: fakeRunner(), log: app.app.services.log },
  );
  expect(second.address).not.toBe(base);
  const hooks = await Promise.all([hook(), hook(), hook()]);
  const ids: string[] = [];
  for (let i = 0; i < 10; i++) ids.push(...(await events(30)));
  await eventually(() => {
    for (const { got } of hooks) expect(new Set(idsOf(got()))).toEqual(new Set(ids));
  });
  for (const { got } of hooks) expect(got().length).toBe(ids.length);
});
