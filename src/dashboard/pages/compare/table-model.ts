/** The rows and columns of a comparison of jobs: values, sorting and filtering. */
import type { ResultOf } from '../../graphql/graphql.ts';
import {
  describeValues,
  formatBytes,
  formatDuration,
  formatEnum,
  formatMoney,
} from '../../ui/format.ts';
import { formatMetric, type MetricValue } from '../job/metric-lines.ts';
import type { CompareJobs } from './queries.ts';

type Comparison = NonNullable<ResultOf<typeof CompareJobs>['compareJobs']>;
type Job = Comparison['jobs'][number];
export type MetricName = NonNullable<Comparison['metricNames']>[number];
type MetricColumn = NonNullable<Comparison['metrics']>[number];

/** A compared job, with the values of its metrics. */
export type Row = { key: string; job: Job; metrics: ReadonlyMap<string, Values> };
type Stat = 'last' | 'min' | 'max';
type Values = Record<Stat, MetricValue | null>;

/** Which value of a metric is shown; `best`: the lowest or the highest, whichever is better. */
export const SHOWN_VALUES = ['last', 'best', 'min', 'max'] as const;
export type ShownValue = (typeof SHOWN_VALUES)[number];

/** Null: the job has no value. NaN is a value. */
type Cell = number | string | null;

export type Column = {
  /** In the address of the page, such as `metric:loss`. */
  id: string;
  title: string;
  kind: 'job' | 'value' | 'label' | 'metric';
  read: (row: Row) => Cell;
  format: (value: Cell) => string;
  /** Of a metric: whether a lower value is probably better. */
  isLowerBetter?: boolean;
};

export function toRows({ jobs, metrics }: Pick<Comparison, 'jobs' | 'metrics'>): Row[] {
  return jobs.map((job, index) => ({
    key: `${job.namespace}/${job.name}`,
    job,
    metrics: new Map(
      (metrics ?? []).flatMap((metric): [string, Values][] => {
        const last = metric.last[index];
        if (last == null) return [];
        const [min = null, max = null] = [metric.min[index], metric.max[index]];
        return [[metric.name, { last, min, max }]];
      }),
    ),
  }));
}

const toText = (value: Cell) => (value === null ? '' : `${value}`);

/** The columns of the jobs: values of the matrix, status, metrics, settings and labels. */
export function toColumns(
  rows: readonly Row[],
  metrics: readonly MetricColumn[],
  names: readonly MetricName[],
  shown: ShownValue,
): Column[] {
  const lower = new Map(names.map(({ name, isLowerBetter }) => [name, isLowerBetter]));
  return [
    ...keysOf(rows, ({ matrixValues }) => matrixValues).map((key): Column => {
      const read = ({ job }: Row) => toCell(job.matrixValues.find((one) => one.key === key)?.value);
      return { id: `value:${key}`, title: key, kind: 'value', read, format: toText };
    }),
    jobColumn('status', 'Status', ({ status }) => formatEnum(status)),
    ...metrics.map(({ name }): Column => {
      const isLowerBetter = lower.get(name) ?? false;
      const stat = shown === 'best' ? (isLowerBetter ? 'min' : 'max') : shown;
      const read = (row: Row) => toNumber(row.metrics.get(name)?.[stat] ?? null);
      const format = (value: Cell) => (value === null ? '' : formatMetric(value));
      return { id: `metric:${name}`, title: name, kind: 'metric', read, format, isLowerBetter };
    }),
    jobColumn(
      'duration',
      'Duration',
      (job) => (job.startedAt ? job.runtimeSeconds : null),
      (value) => formatDuration(Number(value)),
    ),
    jobColumn(
      'cost',
      'Cost',
      (job) => Number(job.totalCost),
      (value) => formatMoney(Number(value)),
    ),
    jobColumn('hardware', 'Hardware', describeHardware),
    jobColumn(
      'artifacts',
      'Artifacts',
      (job) => job.artifactBytes,
      (value) => formatBytes(Number(value)),
    ),
    ...keysOf(rows, ({ labels }) => labels).map((key): Column => {
      const read = ({ job }: Row) => job.labels.find((one) => one.key === key)?.value ?? null;
      return { id: `label:${key}`, title: key, kind: 'label', read, format: toText };
    }),
  ];
}

function jobColumn(
  id: string,
  title: string,
  of: (job: Job) => Cell,
  format: (value: Cell) => string = toText,
): Column {
  const formatCell = (value: Cell) => (value === null ? '' : format(value));
  return { id, title, kind: 'job', read: ({ job }) => of(job), format: formatCell };
}

function keysOf(rows: readonly Row[], of: (job: Job) => readonly { key: string }[]): string[] {
  return [...new Set(rows.flatMap(({ job }) => of(job).map(({ key }) => key)))];
}

/** Values of a matrix are texts; those that are numbers are sorted and drawn as numbers. */
function toCell(text: string | undefined): Cell {
  if (text === undefined) return null;
  return text.trim() !== '' && Number.isFinite(Number(text)) ? Number(text) : text;
}

/** The API has NaN and infinity as texts. */
function toNumber(value: MetricValue | null): number | null {
  return value === null ? null : Number(value);
}

function describeHardware({ gpu, gpuCount, cpu, memoryGb }: Job): string {
  const gpus = gpu === 'NONE' ? '' : `${gpuCount} × ${gpu.replaceAll('_', ' ')}, `;
  return `${gpus}${cpu} vCPU, ${memoryGb} GB`;
}

/** The values of the combination of the job, or its name. */
export function describeRow({ job }: Row): string {
  return job.matrixValues.length > 0 ? describeValues(job.matrixValues) : job.name;
}

/** A column, and whether the highest value comes first. In the address, `-` stands before the id of the column. */
export type Order = { id: string; isDescending: boolean };

export function formatOrder({ id, isDescending }: Order): string {
  return isDescending ? `-${id}` : id;
}

/** The order of the address; by default by the first metric, the best first, and without metrics in the order of creation. */
export function chooseOrder(columns: readonly Column[], text: string | undefined): Order | null {
  const isDescending = text?.startsWith('-') ?? false;
  const id = isDescending ? text?.slice(1) : text;
  if (id !== undefined && columns.some((column) => column.id === id)) return { id, isDescending };
  const metric = columns.find(({ kind }) => kind === 'metric');
  return metric ? { id: metric.id, isDescending: !metric.isLowerBetter } : null;
}

/** The value of a job in a column; null if the column is no metric, or the value is no number. */
export function readBest(row: Row, column: Column): number | null {
  const value = column.kind === 'metric' ? column.read(row) : null;
  return typeof value === 'number' && !Number.isNaN(value) ? value : null;
}

/** Jobs without a value, and then those with NaN, come last in both directions. */
export function sortRows(rows: readonly Row[], column: Column, isDescending: boolean): Row[] {
  const sign = isDescending ? -1 : 1;
  return rows
    .map((row) => ({ row, value: column.read(row) }))
    .sort((a, b) => {
      const rank = rankOf(a.value) - rankOf(b.value);
      return rank !== 0 ? rank : sign * compareCells(a.value, b.value);
    })
    .map(({ row }) => row);
}

function rankOf(value: Cell): number {
  return value === null ? 2 : Number.isNaN(value) ? 1 : 0;
}

function compareCells(a: Cell, b: Cell): number {
  if (typeof a === 'number' && typeof b === 'number') return a < b ? -1 : a > b ? 1 : 0;
  // Numbers come before texts.
  if (typeof a !== typeof b) return typeof a === 'number' ? -1 : 1;
  return toText(a).localeCompare(toText(b));
}

const COMPARISON = /^(.+?)(!=|<=|>=|=|<|>)(.*)$/;

/**
 * Keeps the jobs that meet all conditions, which are separated by spaces: `lr=0.01`, `loss<0.5`, or a part of the name, of a value or
 * of a label. A name of a column that no column has is a part of a text, too.
 */
export function filterRows(rows: readonly Row[], columns: readonly Column[], text: string): Row[] {
  const tests = text
    .split(/\s+/)
    .filter((word) => word !== '')
    .map((word) => toTest(word, columns));
  return rows.filter((row) => tests.every((test) => test(row)));
}

function toTest(word: string, columns: readonly Column[]): (row: Row) => boolean {
  const [, title = '', operator = '', wanted = ''] = COMPARISON.exec(word) ?? [];
  const column = columns.find((one) => one.title.toLowerCase() === title.toLowerCase());
  if (column) return (row) => meets(column.read(row), operator, wanted);
  const lower = word.toLowerCase();
  return ({ key, job }) =>
    [
      key,
      describeValues(job.matrixValues),
      describeValues(job.labels),
      formatEnum(job.status),
    ].some((one) => one.toLowerCase().includes(lower));
}

function meets(value: Cell, operator: string, wanted: string): boolean {
  if (operator === '=' || operator === '!=') {
    // NaN and infinity are compared as texts: any text that is no number would be NaN.
    const isSame = Number.isFinite(value)
      ? wanted !== '' && value === Number(wanted)
      : toText(value).toLowerCase() === wanted.toLowerCase();
    return isSame === (operator === '=');
  }
  if (typeof value !== 'number' || wanted === '') return false;
  const limit = Number(wanted);
  if (operator === '<') return value < limit;
  if (operator === '>') return value > limit;
  return operator === '<=' ? value <= limit : value >= limit;
}
