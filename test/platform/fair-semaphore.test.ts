/** The semaphore: how many requests run at the same time, which request runs next, and that every wait ends. */
import { expect, test } from 'vitest';
import { FairSemaphore, QueueTimeout } from '../../src/platform/limits/fair-semaphore.ts';

/** Work that ends when the test ends it, and the list of started work. */
function bench(semaphore: FairSemaphore) {
  const begun: string[] = [];
  const ends = new Map<string, () => void>();
  return {
    begun,
    start(name: string, key?: string, signal?: AbortSignal): Promise<string> {
      const work = () => {
        begun.push(name);
        return new Promise<string>((resolve) => ends.set(name, () => resolve(name)));
      };
      return semaphore.run(work, { key, signal });
    },
    end: (name: string) => ends.get(name)?.(),
  };
}

test('the number of running requests is limited, and keys take turns', async () => {
  const semaphore = new FairSemaphore(2);
  const { begun, start, end } = bench(semaphore);
  const all = ['a1', 'a2', 'a3', 'a4', 'b1', 'c1', 'b2'].map((name) => start(name, name[0]));
  expect(begun).toEqual(['a1', 'a2']);
  expect(semaphore.counts).toEqual({ running: 2, waiting: 5 });
  for (const name of ['a1', 'a2', 'a3', 'b1', 'c1', 'a4', 'b2']) {
    end(name);
    await Promise.race(all);
    await new Promise(setImmediate);
  }
  expect(begun).toEqual(['a1', 'a2', 'a3', 'b1', 'c1', 'a4', 'b2']);
  await Promise.all(all);
  expect(semaphore.counts).toEqual({ running: 0, waiting: 0 });
});

test('a key has its own limit, and other keys do not wait for it', async () => {
  const semaphore = new FairSemaphore(3, { perKey: 1 });
  const { begun, start, end } = bench(semaphore);
  const all = [start('a1', 'a'), start('a2', 'a'), start('b1', 'b')];
  expect(begun).toEqual(['a1', 'b1']);
  end('a1');
  await all[0];
  await new Promise(setImmediate);
  expect(begun).toEqual(['a1', 'b1', 'a2']);
  end('a2');
  end('b1');
  await Promise.all(all);
});

test('a wait ends by timeout, by a full queue, and by abort', async () => {
  const semaphore = new FairSemaphore(1, { waitMs: 50, maxWaiting: 2 });
  const { begun, start, end } = bench(semaphore);
  const first = start('first');
  const gone = new AbortController();
  const late = start('late');
  const left = start('left', '', gone.signal);
  await expect(start('too many')).rejects.toThrow(QueueTimeout);
  gone.abort();
  await expect(left).rejects.toThrow(QueueTimeout);
  await expect(late).rejects.toThrow(QueueTimeout);
  expect(semaphore.counts).toEqual({ running: 1, waiting: 0 });
  end('first');
  await first;
  const next = start('next');
  end('next');
  await next;
  expect(begun).toEqual(['first', 'next']);
});

test('failed work releases its slot', async () => {
  const semaphore = new FairSemaphore(1);
  await expect(semaphore.run(() => Promise.reject(new Error('broken')))).rejects.toThrow('broken');
  expect(await semaphore.run(async () => 'fine')).toBe('fine');
});
