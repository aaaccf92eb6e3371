/** Transactions that share a batch: which requests fail, which wait, and how often each runs. */
import { describe, expect, test } from 'vitest';
import { batchTransactions, RUN_ALONE } from '../../src/platform/database/transaction-batcher.ts';

type Part = { asked: readonly string[]; end: PromiseWithResolvers<void> };

/** Batches that end when the test ends them. */
function createBatcher(most = 10) {
  const parts: Part[] = [];
  let begun = Promise.withResolvers<void>();
  const together = async (asked: readonly string[]) => {
    const end = Promise.withResolvers<void>();
    parts.push({ asked, end });
    begun.resolve();
    await end.promise;
    return asked.map((one) => `${one} done`);
  };
  const ask = batchTransactions(
    { runBatch: together, runAlone: async (one: string) => `${one} alone` },
    most,
  );
  const next = async () => {
    await begun.promise;
    begun = Promise.withResolvers<void>();
  };
  return { ask, parts, next };
}

const DATABASE_AWAY = Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED' });

describe('batched transactions', () => {
  test('requests of one turn form a batch, and a waiting batch does not delay the next', async () => {
    const { ask, parts, next } = createBatcher();
    const first = Promise.all([ask('a'), ask('b')]);
    await next();
    const second = ask('c');
    await next();
    expect(parts.map(({ asked }) => asked)).toEqual([['a', 'b'], ['c']]);
    parts[1]?.end.resolve();
    expect(await second).toBe('c done');
    parts[0]?.end.resolve();
    expect(await first).toEqual(['a done', 'b done']);
  });

  test('while four batches run, further requests wait for the next batch, whose size is limited', async () => {
    const { ask, parts, next } = createBatcher(3);
    const all: Promise<string>[] = [];
    for (const name of ['a', 'b', 'c', 'd']) {
      all.push(ask(name));
      await next();
    }
    all.push(...['e', 'f', 'g', 'h'].map(ask));
    parts[0]?.end.resolve();
    await next();
    expect(parts.at(-1)?.asked).toEqual(['e', 'f', 'g']);
    parts.at(-1)?.end.resolve();
    await next();
    expect(parts.at(-1)?.asked).toEqual(['h']);
    for (const { end } of parts) end.resolve();
    expect(await Promise.all(all)).toHaveLength(8);
  });

  test('requests beyond the size of a batch form another batch, which does not wait for the first', async () => {
    const { ask, parts, next } = createBatcher(2);
    const all = ['a', 'b', 'c', 'd', 'e'].map(ask);
    await next();
    await next();
    await next();
    expect(parts.map(({ asked }) => asked)).toEqual([['a', 'b'], ['c', 'd'], ['e']]);
    for (const { end } of parts) end.resolve();
    expect(await Promise.all(all)).toHaveLength(5);
  });

  test('each request of a failed batch runs alone, and fails only if it fails alone', async () => {
    const ask = batchTransactions<string, string>(
      {
        async runBatch() {
          throw new Error('refused');
        },
        async runAlone(one) {
          if (one === 'bad') throw new Error('bad');
          return one;
        },
      },
      10,
    );
    const ends = await Promise.allSettled([ask('a'), ask('bad'), ask('b')]);
    expect(ends.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled']);
    expect(await ask('c')).toBe('c');
  });

  test('requests that a batch does not run are run alone, and do not delay other requests', async () => {
    const lock = Promise.withResolvers<void>();
    let begun = 0;
    const ask = batchTransactions<string, string>(
      {
        runBatch: async (asked) => asked.map((one) => (one.startsWith('locked') ? RUN_ALONE : one)),
        async runAlone(one) {
          begun++;
          await lock.promise;
          return `${one} alone`;
        },
      },
      2,
    );
    const locked = Promise.all(Array.from({ length: 20 }, (_, i) => ask(`locked ${i}`)));
    expect(await Promise.all(['a', 'b', 'c'].map(ask))).toEqual(['a', 'b', 'c']);
    // Each of these requests holds a connection, and other code needs some connections.
    expect(begun).toBe(8);
    lock.resolve();
    expect((await locked).at(-1)).toBe('locked 19 alone');
    expect(begun).toBe(20);
  });

  test('requests whose rows are still locked are retried after the other requests', async () => {
    let isLocked = true;
    const LOCKED = Object.assign(new Error('lock timeout'), { code: '55P03' });
    const ask = batchTransactions<string, string>(
      {
        async runBatch() {
          throw LOCKED;
        },
        async runAlone(one) {
          // Like a failure by `lock_timeout`, which lets other requests run first.
          await new Promise(setImmediate);
          if (one.startsWith('locked') && isLocked) throw LOCKED;
          return one;
        },
      },
      5,
    );
    const locked = Promise.all(Array.from({ length: 20 }, (_, i) => ask(`locked ${i}`)));
    expect(await Promise.all(['a', 'b', 'c'].map(ask))).toEqual(['a', 'b', 'c']);
    isLocked = false;
    expect(await locked).toHaveLength(20);
  });

  test('a batch that PostgreSQL rolled back because of a conflict is repeated request by request', async () => {
    const ask = batchTransactions<string, string>(
      {
        async runBatch() {
          throw Object.assign(new Error('deadlock detected'), { code: '40P01' });
        },
        runAlone: async (one) => one,
      },
      10,
    );
    expect(await Promise.all([ask('a'), ask('b')])).toEqual(['a', 'b']);
  });

  test('no request is repeated while the database is unavailable, because the batch may have been committed', async () => {
    let times = 0;
    const away = async () => {
      times++;
      throw DATABASE_AWAY;
    };
    const ask = batchTransactions({ runBatch: away, runAlone: away }, 10);
    const ends = await Promise.allSettled([ask('a'), ask('b')]);
    expect(ends.map((end) => end.status === 'rejected' && end.reason)).toEqual([
      DATABASE_AWAY,
      DATABASE_AWAY,
    ]);
    expect(times).toBe(1);
  });
});
