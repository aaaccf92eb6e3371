/** Loops of the server: when their steps run, what happens after a failure, and how they stop. */
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { Logger } from '../../src/base/log.ts';
import { Bus } from '../../src/platform/events/bus.ts';
import { type LoopOptions, startLoop } from '../../src/platform/loop.ts';

beforeEach(() => {
  vi.useFakeTimers();
  vi.spyOn(Math, 'random').mockReturnValue(1);
});
afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

function setUp(options: Partial<LoopOptions> = {}, step: () => unknown = () => {}) {
  const lines: string[] = [];
  const note = (level: string) => (_: object, text: string) => void lines.push(`${level}: ${text}`);
  const log = {
    error: note('error'),
    warn: note('warn'),
    debug: note('debug'),
  } as unknown as Logger;
  const steps = vi.fn(async (_: AbortSignal) => step());
  const loop = startLoop({ name: 'Counting', every: 1_000, log, ...options }, steps);
  const count = async (ms: number) => {
    await vi.advanceTimersByTimeAsync(ms);
    return steps.mock.calls.length;
  };
  return { loop, count, lines };
}

test('a step runs at once and then at each interval, until the loop is disposed of', async () => {
  const { loop, count } = setUp();
  expect([await count(0), await count(999), await count(1), await count(2_000)]).toEqual([
    1, 1, 2, 4,
  ]);
  await loop[Symbol.asyncDispose]();
  expect(await count(5_000)).toBe(4);
  expect(vi.getTimerCount()).toBe(0);
});

test('a loop can wait before its first step, and its interval can change', async () => {
  const intervals = [500, 1_500];
  const every = () => intervals.shift() ?? 3_000;
  const { loop, count } = setUp({ waitsFirst: true, every });
  expect([await count(499), await count(1), await count(1_500)]).toEqual([0, 1, 2]);
  await loop[Symbol.asyncDispose]();
});

test('the next step follows at once while there is more work', async () => {
  let left = 3;
  const { loop, count } = setUp({}, () => --left > 0);
  expect([await count(0), await count(1_000)]).toEqual([3, 4]);
  await loop[Symbol.asyncDispose]();
});

test('a notification wakes the loop, and several during a step wake it once', async () => {
  const bus = new Bus();
  const wakes: LoopOptions['wakes'] = (signal, ms) => bus.wakes('queue', signal, ms);
  const { loop, count } = setUp({ wakes });
  expect(await count(0)).toBe(1);
  bus.notify('queue');
  bus.notify('queue');
  expect([await count(0), await count(999), await count(1)]).toEqual([2, 2, 3]);
  await loop[Symbol.asyncDispose]();
  expect(bus.waiters).toBe(0);
});

test('a failed step is logged once and repeated, with pauses that double until a success', async () => {
  let isBroken = true;
  const { loop, count, lines } = setUp({ backoff: { firstMs: 100, longestMs: 200 } }, () => {
    if (isBroken) throw new Error('broken');
  });
  expect([await count(0), await count(100), await count(199), await count(1)]).toEqual([
    1, 2, 2, 3,
  ]);
  expect(lines).toEqual([
    'error: Counting failed; the next try is in 100 ms',
    'debug: Counting failed; the next try is in 200 ms',
    'debug: Counting failed; the next try is in 200 ms',
  ]);
  isBroken = false;
  expect([await count(200), await count(1_000)]).toEqual([4, 5]);
  isBroken = true;
  await count(1_000);
  expect(lines.at(-1)).toContain('in 100 ms');
  lines.splice(0);
  await count(100_000);
  expect(lines.filter((line) => line.startsWith('error'))).toHaveLength(1);
  await loop[Symbol.asyncDispose]();
});

test('an outage of the database is a warning, whatever the operation says that fails', async () => {
  const codes = ['ECONNREFUSED', '57P01'];
  const { loop, count, lines } = setUp({}, () => {
    const code = codes.shift();
    throw Object.assign(new Error(`failed by ${code}`), { code });
  });
  expect([await count(0), await count(1_000)]).toEqual([1, 2]);
  expect(lines).toEqual([
    'warn: Counting failed; the next try is in 1000 ms',
    'debug: Counting failed; the next try is in 1000 ms',
  ]);
  await loop[Symbol.asyncDispose]();
  expect(vi.getTimerCount()).toBe(0);
});

test('only the server that has the lock runs the step, and its signal aborts when the lock is lost', async () => {
  const lost = new AbortController();
  const turns = [false, true];
  const alone: LoopOptions['alone'] = (work) =>
    turns.shift() ? work(lost.signal) : Promise.resolve(null);
  let signal: AbortSignal | undefined;
  const stopping = startLoop(
    { name: 'Sending', every: 1_000, log: {} as Logger, alone },
    async (own) => {
      signal = own;
    },
  );
  await vi.advanceTimersByTimeAsync(999);
  expect(signal).toBeUndefined();
  await vi.advanceTimersByTimeAsync(1);
  expect(signal?.aborted).toBe(false);
  lost.abort();
  expect(signal?.aborted).toBe(true);
  await stopping[Symbol.asyncDispose]();
});
