/** The page Activity shows the events of an array of jobs as one row. */
import { expect, test } from 'vitest';
import { foldArrays } from '../../src/dashboard/pages/namespace/fold-events.ts';

let id = 0;
const event = (type: string, name: string, createdAt = '2026-01-01') => {
  id += 1;
  const payload = { name, created_at: createdAt };
  return { id: String(id), type, timestamp: `2026-01-01T00:00:${id}`, payload };
};

test('events of the jobs of one array are one row, at the place of the newest', () => {
  const other = event('JOB_COMPLETED', 'other');
  const push = event('REPOSITORY_PUSHED', 'sweep-1');
  const events = [
    event('JOB_COMPLETED', 'sweep-1'),
    other,
    event('JOB_COMPLETED', 'sweep-0'),
    push,
    event('JOB_RUNNING', 'sweep-1'),
  ];
  const [row, ...rest] = foldArrays(events);
  expect(row).toMatchObject({ array: 'sweep', id: events[0]?.id, timestamp: events[0]?.timestamp });
  expect(row && 'counts' in row && [...row.counts]).toEqual([
    ['JOB_COMPLETED', 2],
    ['JOB_RUNNING', 1],
  ]);
  expect(rest).toEqual([other, push]);
});

test('events of one job, and of jobs that were created at different times, are not folded', () => {
  const events = [
    event('JOB_COMPLETED', 'train-2', '2026-01-02'),
    event('JOB_RUNNING', 'train-2', '2026-01-02'),
    event('JOB_COMPLETED', 'train-1', '2026-01-01'),
  ];
  expect(foldArrays(events)).toEqual(events);
});
