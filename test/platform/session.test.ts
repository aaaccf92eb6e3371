/** Work that one server does at a time, under a lock of its database session. */
import { once } from 'node:events';
import pg from 'pg';
import { expect, test } from 'vitest';
import { createLog } from '../../src/base/log.ts';
import { openSession } from '../../src/platform/database/session.ts';
import { eventually } from '../support/eventually.ts';
import { cloneDatabase } from '../support/harness.ts';

const LOCK = 4_711;
const TERMINATE_HOLDER = `
  select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and granted and objid = $1
    and database = (select oid from pg_database where datname = current_database())`;

async function setUp() {
  const database = await cloneDatabase();
  const target = { connectionString: database.url };
  const log = createLog('silent');
  const open = (id: string) =>
    openSession({ target, id, dataDir: id, log, notify() {}, onFolderLost() {} });
  const [one, other] = await Promise.all([open('one'), open('other')]);
  return {
    one,
    other,
    async query(text: string, values: unknown[]) {
      const client = new pg.Client(target);
      await client.connect();
      await client.query(text, values).finally(() => client.end());
    },
    async [Symbol.asyncDispose]() {
      await Promise.all([one.close(), other.close()]);
      await database.drop();
    },
  };
}

test('only one server does the work, and another can when it is done or has failed', async () => {
  await using servers = await setUp();
  const { one, other } = servers;
  const work = async () => 'done';
  const meanwhile = await one.runAlone(LOCK, async () => [
    await other.runAlone(LOCK, work),
    await other.runAlone(LOCK + 1, work),
  ]);
  expect(meanwhile).toEqual([null, 'done']);
  const failing = one.runAlone(LOCK, () => Promise.reject(new Error('broken')));
  await expect(failing).rejects.toThrow('broken');
  expect(await other.runAlone(LOCK, work)).toBe('done');
});

test('the work is told when the session is lost, because then another server can begin', async () => {
  await using servers = await setUp();
  const { one, other, query } = servers;
  const begun = Promise.withResolvers<void>();
  const working = one.runAlone(LOCK, async (lost) => {
    begun.resolve();
    if (!lost.aborted) await once(lost, 'abort');
    lost.throwIfAborted();
  });
  await begun.promise;
  await query(TERMINATE_HOLDER, [LOCK]);
  expect(await working).toBeNull();
  expect(await other.runAlone(LOCK, async () => 'done')).toBe('done');
  // The session is restored, and can do the work again.
  const again = () => one.runAlone(LOCK, async () => 'done again');
  expect(await eventually(again)).toBe('done again');
});
