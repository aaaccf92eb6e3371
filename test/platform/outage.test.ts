/** The database becomes unavailable and returns while jobs, followers and subscribers are active. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { isDatabaseUnavailable } from '../../src/platform/database/outage.ts';
import { openCuttableProxy } from '../support/cut.ts';
import { eventually } from '../support/eventually.ts';
import { type FakeRunner, fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { followStream } from '../support/sse.ts';
import { cancel, job, lines, submit, until } from '../support/submit.ts';
import { MODES, take } from '../support/subscribe.ts';

const database = openCuttableProxy();
let runner: FakeRunner;
let app: TestApp;
let ada: Client;
let whenPrepared: (() => Promise<void>) | undefined;

beforeAll(async () => {
  const fake = fakeRunner({ graceMs: 100 });
  runner = {
    ...fake,
    async prepare(spec, signal) {
      const handle = await fake.prepare(spec, signal);
      await whenPrepared?.();
      return handle;
    },
  };
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

/** Disconnects the database until `during` has run and all readers have tried to read. */
async function withoutDatabase(during: () => Promise<void> | void): Promise<void> {
  await using _ = { [Symbol.asyncDispose]: () => database.mend() };
  await database.cut();
  app.app.services.bus.notify(null);
  await eventually(async () => {
    const error = await app.app.services.pool.query('select 1').then(
      () => null,
      (reason) => reason,
    );
    expect(isDatabaseUnavailable(error)).toBe(true);
  });
  await during();
}

test('a log stream and every kind of subscription continue at their position', async () => {
  await run('followed', 'echo a; hold; echo b; exit 3');
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

  await withoutDatabase(() => {
    expect(rechecks.streams).toBe(7);
    runner.release();
  });
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

test('when the server stops, a subscription ends with an error, so that it does not look complete', async () => {
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

test('a job that is cancelled after an outage is terminated', async () => {
  await run('watched', 'echo up; trap 7; sleep 600');
  await eventually(async () => expect(await lines(ada, 'ada', 'watched')).toEqual(['up']));
  await withoutDatabase(() => {});
  await cancel(ada, 'ada', 'watched');
  await eventually(() => expect(runner.running()).toEqual([]));
  await eventually(async () => expect((await job(ada, 'ada', 'watched')).exitCode).toBe(7));
});

test('an attempt continues after an outage while it was being prepared, running or ending', async () => {
  const mended = Promise.withResolvers<void>();
  whenPrepared = async () => {
    whenPrepared = undefined;
    await database.cut();
    setTimeout(() => mended.resolve(database.mend()), 300);
  };
  await run('prepared', 'echo a; hold; echo b; exit 0', { outputPath: 'out' });
  await mended.promise;
  await eventually(async () => expect(await lines(ada, 'ada', 'prepared')).toEqual(['a']));
  // The job prints and ends during the outage.
  await withoutDatabase(() => {
    runner.release();
    return eventually(() => expect(runner.running()).toEqual([]));
  });
  expect(await until(ada, 'ada', 'prepared', 'SUCCEEDED')).toMatchObject({
    attempts: { nodes: [{ number: 1, exitCode: 0 }] },
    artifacts: { fileCount: 1 },
  });
  expect(await lines(ada, 'ada', 'prepared')).toEqual(['a', 'b']);
});

test('a change that PostgreSQL rolls back because of a race between row locks is made again', async () => {
  // `nextval` is not rolled back, so every change fails once.
  await app.pool.query(`
    create sequence races;
    create function fail_once() returns trigger language plpgsql as $$
      begin
        if nextval('races') % 2 = 0 then return new; end if;
        raise 'new multixact has more than one updating member: 0 2[7 (nokeyupd), 8 (nokeyupd)]'
          using errcode = 'XX000';
      end $$;
    create trigger fail_once before insert on repositories for each row execute function fail_once();
    create trigger fail_once before insert or update on jobs for each row execute function fail_once()`);
  const created = await ada.post('/auth/v1/repository/ada', { name: 'raced' });
  expect(created.status).toBe(201);
  await run('raced', 'echo a');
  expect(await until(ada, 'ada', 'raced', 'SUCCEEDED')).toBeTruthy();
  expect(await lines(ada, 'ada', 'raced')).toEqual(['a']);
});
