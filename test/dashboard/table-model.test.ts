import { expect, test, vi } from 'vitest';
import {
  type Column,
  chooseOrder,
  describeRow,
  filterRows,
  formatOrder,
  type Row,
  readBest,
  SHOWN_VALUES,
  sortRows,
  toColumns,
  toRows,
} from '../../src/dashboard/pages/compare/table-model.ts';

// Reads the document of the page.
vi.mock('../../src/dashboard/start.ts', () => ({ startData: { currency: 'USD' } }));

type Compared = Parameters<typeof toRows>[0];
type Value = number | string | null;

function job(name: string, lr: string | null, more: object = {}): Compared['jobs'][number] {
  return {
    ...{ id: name, name, namespace: 'ada', status: 'SUCCEEDED' as const, labels: [] },
    matrixValues: lr === null ? [] : [{ key: 'lr', value: lr }],
    ...{ gpu: 'NONE', gpuCount: 1, cpu: 8, memoryGb: 32, startedAt: null, runtimeSeconds: 0 },
    ...{ totalCost: '0.50', artifactBytes: null },
    ...more,
  };
}

const metric = (name: string, last: Value[], min = last, max = last) => ({ name, last, min, max });
const names = ['acc', 'loss'].map((name) => ({ name, jobs: 1, isLowerBetter: name === 'loss' }));

/** Jobs a to e; e has no matrix, and the metrics of d are NaN. */
const METRICS = [
  metric('acc', ['Infinity', 0.5, '-Infinity', 'NaN', null]),
  metric('loss', [1, 2, 3, 'NaN', null], [1, 0.5, 3, null, null], [9, 2, 4, null, null]),
];
const ROWS = toRows({
  jobs: [
    job('a', '0.1'),
    job('b', '10', { labels: [{ key: 'team', value: 'vision' }] }),
    job('c', 'auto', { status: 'FAILED' }),
    job('d', ''),
    job('e', null, { namespace: 'bea' }),
  ],
  metrics: METRICS,
});
const columnsOf = (shown: (typeof SHOWN_VALUES)[number] = 'last') =>
  toColumns(ROWS, METRICS, names, shown);
const COLUMNS = columnsOf();
const column = (id: string, columns: readonly Column[] = COLUMNS) =>
  columns.find((one) => one.id === id) as Column;
const letters = (rows: readonly Row[]) => rows.map((row) => row.job.name).join('');

test('jobs without a value come last, after those with NaN, in both directions', () => {
  const sort = (id: string, isDescending: boolean) =>
    letters(sortRows(ROWS, column(id), isDescending));
  expect([sort('metric:acc', false), sort('metric:acc', true)]).toEqual(['cbade', 'abcde']);
  expect([sort('metric:loss', false), sort('metric:loss', true)]).toEqual(['abcde', 'cbade']);
  // Numbers before texts, of which the empty one is the first.
  expect([sort('value:lr', false), sort('value:lr', true)]).toEqual(['abdce', 'cdbae']);
  expect(sort('label:team', true)).toBe('bacde');
  // Equal values keep the order of creation.
  expect([sort('cost', false), sort('cost', true)]).toEqual(['abcde', 'abcde']);
  expect(letters(ROWS)).toBe('abcde');
});

test('a column of a metric has the last, best, lowest or highest value', () => {
  const read = (shown: (typeof SHOWN_VALUES)[number], id: string) =>
    ROWS.slice(0, 3).map(column(id, columnsOf(shown)).read);
  expect(SHOWN_VALUES.map((shown) => read(shown, 'metric:loss'))).toEqual([
    ...[
      [1, 2, 3],
      [1, 0.5, 3],
      [1, 0.5, 3],
    ],
    [9, 2, 4],
  ]);
  expect(read('best', 'metric:acc')).toEqual([Infinity, 0.5, -Infinity]);
  const d = ROWS[3] as Row;
  // All values are NaN, so there is no lowest one.
  expect([column('metric:loss').read(d), column('metric:loss', columnsOf('min')).read(d)]).toEqual([
    ...[Number.NaN, null],
  ]);
});

test('the filter takes conditions of columns and parts of texts', () => {
  const find = (text: string) => letters(filterRows(ROWS, COLUMNS, text));
  for (const [text, found] of [
    ['', 'abcde'],
    ['  ', 'abcde'],
    ['lr=0.1', 'a'],
    ['lr=1e-1', 'a'],
    ['LR=AUTO', 'c'],
    ['lr!=0.1', 'bcde'],
    ['lr=', 'de'],
    ['lr>0', 'ab'],
    ['lr<', ''],
    ['loss<=2 acc>0.4', 'ab'],
    ['loss<2', 'a'],
    ['loss>=3', 'c'],
    ['acc=NaN', 'd'],
    ['acc=infinity', 'a'],
    ['acc=other', ''],
    ['acc=', 'e'],
    ['cost=', ''],
    ['acc<0', 'c'],
    ['status=failed', 'c'],
    ['FAILED', 'c'],
    ['team=vis', ''],
    ['vis', 'b'],
    ['bea/', 'e'],
    ['lr=10 fail', ''],
    // No column has this name, so it is a part of a text.
    ['lr=1', ''],
    ['r=10', 'b'],
    ['<=', ''],
  ] as const)
    expect([text, find(text)]).toEqual([text, found]);
});

test('an order is the same after it was in the address', () => {
  for (const { id } of COLUMNS)
    for (const isDescending of [false, true]) {
      const order = { id, isDescending };
      expect(chooseOrder(COLUMNS, formatOrder(order))).toEqual(order);
    }
  // Without one, and for a column that no longer exists: by the first metric, the better first.
  for (const text of [undefined, '', '-', 'metric:gone', '-metric:gone', 'constructor'])
    expect(chooseOrder(COLUMNS, text)).toEqual({ id: 'metric:acc', isDescending: true });
  const [, loss = METRICS[0]] = METRICS;
  const ofLoss = toColumns(ROWS, loss ? [loss] : [], names, 'last');
  expect(chooseOrder(ofLoss, undefined)).toEqual({ id: 'metric:loss', isDescending: false });
  expect(chooseOrder(toColumns(ROWS, [], [], 'last'), undefined)).toBeNull();
});

test('the best job is named by its values, with a number', () => {
  const [a, b, , d, e] = ROWS as [Row, Row, Row, Row, Row];
  expect([describeRow(a), describeRow(e)]).toEqual(['lr=0.1', 'e']);
  const acc = column('metric:acc');
  expect([a, b, d, e].map((row) => readBest(row, acc))).toEqual([Infinity, 0.5, null, null]);
  expect(readBest(a, column('value:lr'))).toBeNull();
  expect([acc.format(Infinity), acc.format(0.123_456_789), acc.format(null)]).toEqual([
    ...['Infinity', '0.123457', ''],
  ]);
});
