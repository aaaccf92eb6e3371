/** The database goes away and comes back, with jobs, followers and subscribers under way. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type FakeRunner, fakeRunner } from '../src/jobs/runners/fake.ts';
import { isDatabaseAway } from '../src/outage.ts';
import { cuttable } from './cut.ts';
import { type Client, eventually, startApp, type TestApp } from './harness.ts';
import { followStream } from './sse.ts';
import { cancel, lines, submit, until } from './submit.ts';
import { MODES, take } from './subscribe.ts';

const database = cuttable();
let runner: FakeRunner;
let app: TestApp;
let ada: Client;

beforeAll(async () => {
  runner = fakeRunner({ graceMs: 100 });
  app = await startApp({ overrides: { runner }, via: database.via });
  ada = await app.user('ada');
  await ada.post('/auth/v1/repository/ada', { name: 'code' });
});
afterAll(async () => {
  await app[Symbol.asyncDispose]();
  await database[Symbol.asyncDispose]();
});

const run = (name: string, command: string, more: object = {}) =>
  submit(ada, { namespace: 'ada', repo: 'ada/code', name, command, ...more });

/** Cuts the database off until `during` is done, and all who wait for a notification have looked. */
async function withoutDatabase(during: () => Promise<void> | void): Promise<void> {
  await using _ = { [Symbol.asyncDispose]: () => database.mend() };
  await database.cut();
  app.app.services.bus.hear(null);
  await eventually(async () => {
    const error = await app.app.services.pool.query('select 1').then(
      () => null,
      (reason) => reason,
    );
    expect(isDatabaseAway(error)).toBe(true);
  });
  await during();
}

test('a stream and every kind of subscription go on where they stood', async () => {
  await run('followed', 'echo a; sleep 1.5; echo b; exit 3');
  await eventually(async () => expect(await lines(ada, 'ada', 'followed')).toEqual(['a']));
  const log =
    'subscription { jobLog(namespace: "ada", name: "followed") { ... on LogLine { message } } }';
  const changes =
    'subscription { jobEvents(namespace: "ada", name: "followed", after: 0) { type } }';
  const sse = followStream(ada, '/ada/job/followed/logs?stream=true');
  const [first] = await sse.take(1);
  const rest = sse.all();
  const logs = Object.values(MODES).map((open) => take(open(ada, log), 'jobLog'));
  const events = Object.values(MODES).map((open) => take(open(ada, changes), 'jobEvents', 3));
  const { rechecks } = app.app.services;
  await eventually(() => expect(rechecks.streams).toBe(7));

  await withoutDatabase(() => expect(rechecks.streams).toBe(7));
  const told = [first, ...(await rest)];
  expect(told.map((one) => one?.data.message ?? one?.data.status)).toEqual([
    'a',
    'b',
    'failed',
    'failed',
  ]);
  for (const one of await Promise.all(logs))
    expect(one.flatMap(({ message }) => message ?? [])).toEqual(['a', 'b']);
  for (const one of await Promise.all(events))
    expect(one.map(({ type }) => type)).toEqual(['QUEUED', 'RUNNING', 'FAILED']);
});

test('the server stops: a subscription says so instead of ending as if all were told', async () => {
  await run('outlived', 'echo a; sleep 600');
  await until(ada, 'ada', 'outlived', 'RUNNING');
  const log = 'subscription { jobLog(namespace: "ada", name: "outlived") { seq } }';
  const ends = Object.values(MODES).map((open) =>
    take(open(ada, log), 'jobLog').then(
      () => 'ended without a word',
      (error) => error.code,
    ),
  );
  await eventually(() => expect(app.app.services.rechecks.streams).toBe(3));
  await app.restart();
  expect(await Promise.all(ends)).toEqual(Array(3).fill('INTERNAL_ERROR'));
  await cancel(ada, 'ada', 'outlived');
});
