/** Pauses between tries: they double, start again after a success, and are random. */
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { Backoff, sleep } from '../../src/base/backoff.ts';

beforeEach(() => void vi.useFakeTimers());
afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

/** Makes each pause as long as its limit. */
function withoutJitter(): void {
  vi.spyOn(Math, 'random').mockReturnValue(1);
}

test('the limit of the pauses doubles up to the longest, and a success resets it', () => {
  withoutJitter();
  const backoff = new Backoff({ firstMs: 100, longestMs: 500 });
  const next = () => backoff.next();
  expect([next(), next(), next(), next(), next()]).toEqual([100, 200, 400, 500, 500]);
  backoff.reset();
  expect([next(), next()]).toEqual([100, 200]);
});

test('a pause is any time below its limit, so several servers do not return in step', () => {
  const backoff = new Backoff({ firstMs: 1_000, longestMs: 1_000 });
  const pauses = Array.from({ length: 1_000 }, () => backoff.next());
  expect(Math.min(...pauses)).toBeLessThan(100);
  expect(Math.max(...pauses)).toBeGreaterThan(900);
  expect(pauses.every((ms) => ms >= 0 && ms <= 1_000)).toBe(true);
});

test('a limit for one pause also limits the pauses after it', () => {
  withoutJitter();
  const backoff = new Backoff({ firstMs: 4_000, longestMs: 30_000 });
  expect([backoff.next(500), backoff.next(), backoff.next()]).toEqual([500, 1_000, 2_000]);
});

test('a try that lasted long enough starts the pauses again, and the pause itself does not count', () => {
  withoutJitter();
  const backoff = new Backoff({ firstMs: 100, longestMs: 10_000, stableMs: 150 });
  expect([backoff.next(), backoff.next()]).toEqual([100, 200]);
  vi.advanceTimersByTime(200 + 100);
  expect(backoff.next()).toBe(400);
  vi.advanceTimersByTime(400 + 151);
  expect(backoff.next()).toBe(100);
});

test('a wait ends after its time, at once when the signal aborts, and leaves nothing behind', async () => {
  const stopping = new AbortController();
  let ended = 0;
  const note = () => void ended++;
  const first = sleep(1_000, stopping.signal).then(note);
  const second = sleep(5_000, stopping.signal).then(note);
  await vi.advanceTimersByTimeAsync(1_000);
  await first;
  expect(ended).toBe(1);
  stopping.abort();
  await second;
  expect(vi.getTimerCount()).toBe(0);
  await sleep(5_000, stopping.signal);
});
