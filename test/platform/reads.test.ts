/** Large responses: how much text a response may read, and how many large responses are built at the same time. */
import { EventEmitter } from 'node:events';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import {
  MAX_EVENT_BYTES,
  MAX_RESPONSE_BYTES,
  ResponseLimiter,
} from '../../src/platform/limits/reads.ts';

const MiB = 2 ** 20;

class Answer extends EventEmitter {
  destroyed = false;
  writableFinished = false;
  destroy() {
    this.destroyed = true;
    this.emit('close');
  }
  send() {
    this.writableFinished = true;
    this.emit('close');
  }
}

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

/** A large response to `caller`. `state` is updated when all pending callbacks have run. */
function large(reads: ResponseLimiter, caller: string) {
  const answer = new Answer();
  const one = { answer, state: 'waiting' as 'waiting' | 'made' | { status: number } };
  reads
    .createAllowance(caller, answer)
    .take(MiB)
    .then(
      () => {
        one.state = 'made';
      },
      (error) => {
        one.state = { status: error.status };
      },
    );
  return one;
}
const settled = () => vi.advanceTimersByTimeAsync(0);
const states = (all: { state: unknown }[]) => all.map(({ state }) => state);

test('a response cannot exceed its allowance, and small responses never wait', async () => {
  const reads = new ResponseLimiter();
  const blocked = Array.from({ length: 8 }, (_, i) => large(reads, `caller ${i}`));
  await settled();
  expect(states(blocked).filter((state) => state === 'made')).toHaveLength(4);
  const small = reads.createAllowance('another', new Answer());
  expect(await small.take(1_000)).toBe(1_000);
  for (const { answer } of blocked) answer.send();
  await settled();

  const allowance = reads.createAllowance('ada', new Answer());
  expect(await allowance.take(MAX_RESPONSE_BYTES - 10)).toBe(MAX_RESPONSE_BYTES - 10);
  expect(await allowance.take(100)).toBe(10);
  expect(await allowance.take(100)).toBe(0);
  expect(await reads.createEventAllowance().take(2 * MAX_EVENT_BYTES)).toBe(MAX_EVENT_BYTES);
});

test('one caller cannot take all slots, and callers take turns', async () => {
  const reads = new ResponseLimiter();
  const ada = Array.from({ length: 6 }, () => large(reads, 'ada'));
  const bea = large(reads, 'bea');
  const cid = large(reads, 'cid');
  const dan = large(reads, 'dan');
  await settled();
  expect(states(ada)).toEqual(['made', 'made', 'waiting', 'waiting', 'waiting', 'waiting']);
  expect(states([bea, cid, dan])).toEqual(['made', 'made', 'waiting']);
  bea.answer.send();
  await settled();
  // Ada requested a slot before Dan, but already holds two slots.
  expect(dan.state).toBe('made');
  ada[0]?.answer.send();
  await settled();
  expect(states(ada).slice(2)).toEqual(['made', 'waiting', 'waiting', 'waiting']);
});

test('every wait ends: for a slot, and for a client that does not read its response', async () => {
  const reads = new ResponseLimiter();
  const slow = large(reads, 'ada');
  const others = ['ada', 'bea', 'cid'].map((caller) => large(reads, caller));
  await vi.advanceTimersByTimeAsync(60_000);
  // No other caller waits for the slot, so the client may be slow.
  expect(slow.answer.destroyed).toBe(false);
  const next = large(reads, 'dan');
  await vi.advanceTimersByTimeAsync(1_000);
  expect(slow.answer.destroyed).toBe(true);
  expect(next.state).toBe('made');

  const fresh = new ResponseLimiter();
  const held = ['a', 'b', 'c', 'd'].map((caller) => large(fresh, caller));
  await vi.advanceTimersByTimeAsync(10_000);
  const waiting = large(fresh, 'e');
  const gone = large(fresh, 'f');
  gone.answer.destroy();
  await settled();
  expect(gone.state).toEqual({ status: 503 });
  // After 30 s the first response is closed, because another response waits. Then no response waits, and the others continue.
  await vi.advanceTimersByTimeAsync(22_000);
  expect(held.map(({ answer }) => answer.destroyed)).toEqual([true, false, false, false]);
  expect(waiting.state).toBe('made');
  expect(states(others)).toEqual(['made', 'made', 'made']);

  const empty = new ResponseLimiter();
  for (let i = 0; i < 8; i++) {
    const late = new Answer();
    late.destroy();
    await expect(empty.createAllowance('g', late).take(MiB)).rejects.toThrow('closed');
  }
  const after = large(empty, 'g');
  await settled();
  expect(after.state).toBe('made');
});
