import { expect, test } from 'vitest';
import { countedSeconds } from '../../src/dashboard/pages/job/attempt-runtime.ts';

/** A moment so many seconds after another. */
const at = (seconds: number) => new Date(Date.UTC(2026, 0, 1) + seconds * 1_000).toISOString();

test('of an attempt counts what its job counts', () => {
  const job = { status: 'SUCCEEDED', completedAt: at(60) };
  const attempt = { startedAt: at(10), exitedAt: at(12.4), endedAt: at(50), outcome: 'EXITED' };
  expect(countedSeconds(job, attempt)).toBe(2);
  // Those that were lost or never ran count nothing; of one that runs the job has the seconds.
  expect(countedSeconds(job, { ...attempt, outcome: 'LOST' })).toBe(null);
  expect(countedSeconds(job, { ...attempt, startedAt: null })).toBe(null);
  const unstartable = { ...attempt, exitedAt: null, outcome: 'UNSTARTABLE' };
  expect(countedSeconds(job, unstartable)).toBe(null);
  const open = { ...attempt, exitedAt: null, endedAt: null, outcome: null };
  expect(countedSeconds({ status: 'RUNNING', completedAt: null }, open)).toBe(null);
  // Its process has ended, and its artifacts are being stored.
  const storing = { ...attempt, endedAt: null, outcome: null };
  expect(countedSeconds({ status: 'RUNNING', completedAt: null }, storing)).toBe(2);
});

test('of a cancelled job nothing counts after the cancel', () => {
  const job = { status: 'CANCELLED', completedAt: at(20) };
  const attempt = { startedAt: at(10), exitedAt: at(25), endedAt: at(25), outcome: 'EXITED' };
  expect(countedSeconds(job, attempt)).toBe(10);
  expect(countedSeconds(job, { ...attempt, exitedAt: at(13) })).toBe(3);
  const open = { ...attempt, exitedAt: null, endedAt: null, outcome: null };
  expect(countedSeconds(job, open)).toBe(10);
  expect(countedSeconds(job, { ...open, endedAt: at(25), outcome: 'LOST' })).toBe(10);
  // An earlier attempt.
  const lost = { startedAt: at(2), exitedAt: null, endedAt: at(9), outcome: 'LOST' };
  expect(countedSeconds(job, lost)).toBe(null);
  expect(countedSeconds(job, { ...lost, exitedAt: at(9), outcome: 'EXITED' })).toBe(7);
});
