import { expect, test } from 'vitest';
import { billedSeconds } from '../../src/dashboard/pages/job/attempt-runtime.ts';

/** An ISO time the given number of seconds after a fixed start. */
const at = (seconds: number) => new Date(Date.UTC(2026, 0, 1) + seconds * 1_000).toISOString();

test('an attempt shows the seconds that it adds to the runtime of its job', () => {
  const job = { status: 'SUCCEEDED', completedAt: at(60) };
  const attempt = { startedAt: at(10), exitedAt: at(12.4), endedAt: at(50), outcome: 'EXITED' };
  expect(billedSeconds(job, attempt)).toBe(2);
  // Lost and unstarted attempts have no billed time; the running total is shown for the job, not the attempt.
  expect(billedSeconds(job, { ...attempt, outcome: 'LOST' })).toBe(null);
  expect(billedSeconds(job, { ...attempt, startedAt: null })).toBe(null);
  const unstartable = { ...attempt, exitedAt: null, outcome: 'UNSTARTABLE' };
  expect(billedSeconds(job, unstartable)).toBe(null);
  const open = { ...attempt, exitedAt: null, endedAt: null, outcome: null };
  expect(billedSeconds({ status: 'RUNNING', completedAt: null }, open)).toBe(null);
  // The process has ended, and the worker is storing its artifacts.
  const storing = { ...attempt, endedAt: null, outcome: null };
  expect(billedSeconds({ status: 'RUNNING', completedAt: null }, storing)).toBe(2);
});

test('time after a cancellation is not billed', () => {
  const job = { status: 'CANCELLED', completedAt: at(20) };
  const attempt = { startedAt: at(10), exitedAt: at(25), endedAt: at(25), outcome: 'EXITED' };
  expect(billedSeconds(job, attempt)).toBe(10);
  expect(billedSeconds(job, { ...attempt, exitedAt: at(13) })).toBe(3);
  const open = { ...attempt, exitedAt: null, endedAt: null, outcome: null };
  expect(billedSeconds(job, open)).toBe(10);
  expect(billedSeconds(job, { ...open, endedAt: at(25), outcome: 'LOST' })).toBe(10);
  // An earlier attempt.
  const lost = { startedAt: at(2), exitedAt: null, endedAt: at(9), outcome: 'LOST' };
  expect(billedSeconds(job, lost)).toBe(null);
  expect(billedSeconds(job, { ...lost, exitedAt: at(9), outcome: 'EXITED' })).toBe(7);
});
