import { expect, test } from 'vitest';
import { formatMetric, smooth, toColumns } from '../../src/dashboard/pages/job/metric-lines.ts';

const one = { attempt: 1, steps: [0, 2, 1], times: [1_000, 2_000, 3_000], values: [1, 'NaN', -3] };
const two = { attempt: 2, steps: [1, 3], times: [5_000, 6_000], values: [4, 5] };
const PLAIN = { x: 'step', isLog: false, smoothing: 0 } as const;

test('steps that go back are sorted, and points that are not numbers are gaps', () => {
  expect(toColumns([one], PLAIN)).toEqual([
    [0, 1, 2],
    [1, -3, null],
  ]);
  expect(toColumns([one], { ...PLAIN, x: 'time' })).toEqual([
    [1, 2, 3],
    [1, null, -3],
  ]);
  expect(toColumns([one], { ...PLAIN, isLog: true })[1]).toEqual([1, null, null]);
});

test('each attempt is a line without gaps at the points of others', () => {
  expect(toColumns([one, two], PLAIN)).toEqual([
    [0, 1, 1, 2, 3],
    [1, -3, undefined, null, undefined],
    [undefined, undefined, 4, undefined, 5],
  ]);
});

test('smoothing is a moving average beside the values as they are', () => {
  expect(
    smooth([2, 2, null, 2], 0.9).map((value) => value && Math.round(value * 1e9) / 1e9),
  ).toEqual([2, 2, null, 2]);
  expect(smooth([0, 3], 0.5)).toEqual([0, 2]);
  expect(toColumns([two], { ...PLAIN, smoothing: 0.5 })).toEqual([
    [1, 3],
    [4, expect.closeTo(4.667, 3)],
    [4, 5],
  ]);
});

test('values have six digits', () => {
  expect([0.1 + 0.2, 1_234_567, 'NaN', null].map(formatMetric)).toEqual([
    ...['0.3', '1234570', 'NaN', 'none'],
  ]);
});
