/** Open streams end within five seconds after the viewer loses access. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { newId } from '../../src/base/ids.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { startProcessClock } from '../support/process-clock.ts';
import { followStream } from '../support/sse.ts';
import { cancel, lines, remove, submit, until } from '../support/submit.ts';
import { type Answers, MODES, take } from '../support/subscribe.ts';

let app: TestApp;
let bob: Client;

const LOG =
  'subscription { jobLog(namespace: "team", name: "long") { ... on LogLine { message } } }';
const EVENTS = 'subscription { jobEvents(namespace: "team") { name job { command } } }';

beforeAll(async () => {
  app = await startApp({ overrides: { runner: fakeRunner({ graceMs: 100 }) } });
  bob = await app.user('bob');
  await app.app.services.db.namespace.create({
    data: { id: newId('ns'), name: 'team', kind: 'organization', plan: 'unlimited' },
  });
  await member('read');
  await app.admin.post('/auth/v1/repository/team', { name: 'code' });
  await run('long', 'echo a; sleep 600');
  await eventually(async () => expect(await lines(app.admin, 'team', 'long')).toEqual(['a']));
});
afterAll(() => app[Symbol.asyncDispose]());

const run = (name: string, command: string, more: object = {}) =>
  submit(app.admin, { namespace: 'team', repo: 'team/code', name, command, ...more });

async function member(role: 'read' | null): Promise<void> {
  const { db } = app.app.services;
  const { id: namespaceId } = await db.namespace.findUniqueOrThrow({ where: { name: 'team' } });
  const { id: userId } = await db.user.findUniqueOrThrow({ where: { username: 'bob' } });
  await db.member.deleteMany({ where: { namespaceId, userId } });
  if (role) await db.member.create({ data: { namespaceId, userId, role } });
}

/** Creates a credential of bob's, and a function that ends it. */
const CREDENTIALS = {
  async token() {
    const { body } = await bob.post('/auth/v1/pat', { name: `t${Date.now()}` });
    const revoke = async () => void (await bob.delete(`/auth/v1/pat/${body.name}`));
    return { client: app.client(`Bearer ${body.token}`), revoke, code: 'authentication_failed' };
  },
  async key() {
    const { body } = await bob.post('/auth/v1/api_keys', { name: `k${Date.now()}` });
    const revoke = async () => void (await bob.delete(`/auth/v1/api_keys/${body.name}`));
    return { client: app.client(`API-Key ${body.key}`), revoke, code: 'authentication_failed' };
  },
  async expiry() {
    const { body } = await bob.post('/auth/v1/pat', { name: `e${Date.now()}` });
    const expire = `update access_tokens set expires_at = now() + interval '1 second' where id = $1`;
    const revoke = async () => void (await app.app.services.pool.query(expire, [body.id]));
    return { client: app.client(`Bearer ${body.token}`), revoke, code: 'authentication_failed' };
  },
  async membership() {
    await member('read');
    return { client: bob, revoke: () => member(null), code: 'permission_denied' };
  },
};

/** Reads until the stream ends or has an error. @returns the code of the error */
async function refusal(answers: Answers): Promise<string> {
  for await (const { errors } of answers) if (errors) return errors[0].extensions.code;
  return 'ended without a word';
}

test.each(Object.entries(CREDENTIALS))('streams end with %s', async (_, make) => {
  await member('read');
  const { client, revoke, code } = await make();
  const { rechecks } = app.app.services;
  expect(rechecks.streams).toBe(0);
  const sse = followStream(client, '/team/job/long/logs?stream=true');
  await sse.take(1);
  const told = sse.all();
  const refusals = Object.values(MODES).flatMap((open) =>
    [LOG, EVENTS].map((query) => refusal(open(client, query))),
  );
  await eventually(() => expect(rechecks.streams).toBe(1 + refusals.length));

  await revoke();
  using clock = startProcessClock();
  expect((await told).at(-1)).toMatchObject({ event: 'error', data: { error: { code } } });
  for (const one of await Promise.all(refusals)) expect(one).toBe(code.toUpperCase());
  // Twice the promised time.
  expect(clock.ms).toBeLessThan(10_000);
  await eventually(() => expect(rechecks.streams).toBe(0));
});

test('a thousand followers with one token cost one query per round', async () => {
  const { rechecks, pool } = app.app.services;
  const { rows } = await pool.query(
    `select t.id, t.name from access_tokens t join users u on u.id = t.user_id where username = 'bob' and t.name = 'test'`,
  );
  const viewer = {
    kind: 'account',
    credential: { kind: 'pat', ...rows[0] },
  } as Parameters<typeof rechecks.watch>[0];
  const asked: string[] = [];
  const query = pool.query;
  pool.query = ((...args: [{ text?: string }]) => {
    if (args[0].text?.includes('access_tokens')) asked.push(args[0].text);
    return query.apply(pool, args as never);
  }) as typeof query;
  let demanded = 0;
  const rule = { key: 'x', demand: () => void demanded++ };
  const watches = Array.from({ length: 1_000 }, () => rechecks.watch(viewer, rule));
  try {
    await eventually(() => expect(demanded).toBe(2));
    expect(asked).toHaveLength(2);
    expect(watches.every(({ refused }) => !refused.aborted)).toBe(true);
  } finally {
    pool.query = query;
    for (const watch of watches) watch[Symbol.dispose]();
  }
});

test('a token limited to a repository loses access to its jobs with the repository', async () => {
  const repository = (await bob.post('/auth/v1/repository/bob', { name: 'mine' })).body;
  const input = { namespace: 'bob', repo: 'bob/mine', name: 'mine', command: 'echo a; sleep 600' };
  await submit(bob, input);
  await until(bob, 'bob', 'mine', 'RUNNING');
  const { body } = await bob.post('/auth/v1/pat', {
    name: 'narrow',
    repositories: [repository.id],
  });
  const narrow = app.client(`Bearer ${body.token}`);
  const sse = followStream(narrow, '/bob/job/mine/logs?stream=true');
  await sse.take(1);
  const rest = sse.all();
  expect((await bob.delete(`/auth/v1/repository/bob/${repository.id}`)).status).toBe(204);
  expect((await rest).at(-1)).toMatchObject({
    event: 'error',
    data: { error: { code: 'permission_denied' } },
  });
  await cancel(bob, 'bob', 'mine');
});

test('the event stream of a job ends when the job is deleted', async () => {
  await run('brief', 'exit 0');
  await until(app.admin, 'team', 'brief', 'SUCCEEDED');
  const query = 'subscription { jobEvents(namespace: "team", name: "brief", after: 0) { type } }';
  const all = take(MODES["Yoga's own"](app.admin, query), 'jobEvents');
  await eventually(() => expect(app.app.services.rechecks.streams).toBe(1));
  await remove(app.admin, 'team', 'brief');
  expect((await all).map(({ type }) => type)).toEqual([
    'QUEUED',
    'RUNNING',
    'SUCCEEDED',
    'DELETED',
  ]);
});

describe('a download', () => {
  test('is broken off when its credential is deleted', async () => {
    await run('big', 'echo a; exit 0', { outputPath: 'out' });
    const { id, artifacts } = await until(app.admin, 'team', 'big', 'SUCCEEDED');
    const { storage } = app.app.services;
    const [archive] = (await Array.fromAsync(storage.list('artifacts/'))).filter(
      ({ key }) => key.includes(id) && key.endsWith('.tar.gz'),
    );
    // More than the buffers of client and server hold.
    await storage.put(archive?.key ?? '', Buffer.alloc(64 * 2 ** 20));
    await member('read');
    const { client, revoke } = await CREDENTIALS.token();
    const response = await fetch(artifacts.downloadUrl.split('?')[0], {
      headers: { authorization: client.authorization ?? '' },
    });
    expect(response.status).toBe(200);
    const reader = response.body?.getReader();
    await reader?.read();
    await revoke();
    await eventually(() => expect(app.app.services.rechecks.streams).toBe(0));
    await expect(
      (async () => {
        while (!(await reader?.read())?.done);
      })(),
    ).rejects.toThrow();
  });
});
