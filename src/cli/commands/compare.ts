/** `loam compare` */

import { Option } from '@commander-js/extra-typings';
import type { ResultOf, VariablesOf } from 'gql.tada';
import type { Program } from '../command.ts';
import { connectHere, type LocalConnection } from '../connection.ts';
import { UsageError } from '../exit.ts';
import { LoamError } from '../sdk/errors.ts';
import { graphql } from '../sdk/graphql.ts';
import { fromEnum } from '../sdk/job-input.ts';
import { demand } from '../sdk/pages.ts';
import { duration, note, print, printJson, printTable } from '../terminal.ts';
import { isNotFound, JobArray } from './arrays.ts';
import { addFilters, namespaceOf, toFilter } from './many-jobs.ts';
import { formatValue, type MetricValue } from './metrics.ts';

const COMPARE = graphql(`
  query CompareJobs($jobs: [JobSelectionInput!]!) {
    compareJobs(jobs: $jobs) {
      jobs {
        id namespace name status matrixValues { key value } arrayIndex labels { key value }
        repo branch commitSha image gpu gpuCount cpu memoryGb diskGb region
        createdAt startedAt completedAt runtimeSeconds totalCost artifactFiles artifactBytes
      }
      isTruncated
      missing
      metricNames { name jobs isLowerBetter }
    }
  }
`);
const COMPARE_METRICS = graphql(`
  query CompareMetrics($jobs: [JobSelectionInput!]!, $names: [String!]) {
    compareJobs(jobs: $jobs) { jobs { id } metrics(names: $names) { name last min max } }
  }
`);

type Comparison = NonNullable<ResultOf<typeof COMPARE>['compareJobs']>;
type Job = Comparison['jobs'][number];
type Selection = VariablesOf<typeof COMPARE>['jobs'][number];
type Stat = 'last' | 'min' | 'max';
type Values = Record<Stat, MetricValue>;
type Row = { job: Job; metrics: ReadonlyMap<string, Values> };

const collectMetrics = (name: string, before: string[] = []) => [...before, name];

/** Metrics of one request. */
const METRICS_AT_ONCE = 50;
/** Metrics in the table unless some are named. */
const SHOWN_METRICS = 6;

export function addCompareCommand(program: Program): void {
  addFilters(
    program
      .command('compare')
      .description('Compare jobs by their values, settings and metrics, up to 1,000')
      .argument(
        '[jobs...]',
        "jobs or arrays: name or namespace/name, 'sweep/*' for the jobs of an array, 'train-*' for names that begin so",
      ),
  )
    .option(
      '--sort <column>',
      'a metric, a key of the matrix, name, status, created, duration or cost',
    )
    .addOption(new Option('--asc', 'lowest first').conflicts('desc'))
    .addOption(
      new Option(
        '--desc',
        'highest first; by default the better first, as the name of a metric tells',
      ),
    )
    .addOption(
      new Option('--value <which>', 'the value of metrics')
        .choices(['last', 'min', 'max'] as const)
        .default('last' as const),
    )
    .option('--metric <name>', 'only this metric (repeatable)', collectMetrics)
    .option('--csv', 'print CSV, with all metrics')
    .option('--json', 'print JSON, with all metrics')
    .action(async (names, { sort, asc, desc, value, metric, csv, json, ...filters }) => {
      if (csv && json) throw new UsageError('Give --csv or --json, not both.');
      const connection = await connectHere(program.opts());
      const isFiltered = Object.keys(filters).length > 0;
      if (names.length === 0 && !isFiltered)
        throw new UsageError(
          "Name jobs, such as 'sweep/*', or select them, for example with --label.",
        );
      if (names.length > 0 && isFiltered)
        throw new UsageError('Either name jobs, or select them with options.');
      const filter = toFilter(filters, connection.username);
      const selections = isFiltered
        ? [{ namespace: namespaceOf(connection, filters, filter), filter }]
        : await resolveNames(connection, names);
      const { jobs, metricNames, isTruncated, missing } = await compare(connection, selections);
      if (isTruncated) note('Only the newest 1,000 jobs are compared.');
      if (missing.length > 0) note(`Not found: ${missing.join(' ')}`);
      if (jobs.length === 0) throw new LoamError('not_found', 'No jobs to compare.');
      const all = (metricNames ?? []).map(({ name }) => name);
      const sorted = sort !== undefined && all.includes(sort) ? [sort] : [];
      const shown =
        metric ?? (csv || json ? all : [...new Set([...sorted, ...all.slice(0, SHOWN_METRICS)])]);
      const rows = await readRows(
        connection,
        jobs,
        [...new Set([...shown, ...sorted])],
        selections,
      );
      if (sort !== undefined) {
        const isLower = metricNames?.find(({ name }) => name === sort)?.isLowerBetter ?? true;
        sortRows(rows, sort, { stat: value, isDescending: desc ?? (asc ? false : !isLower) });
        const best = rows[0]?.metrics.get(sort)?.[value];
        if (rows[0] && best != null)
          note(`${describeJob(rows[0].job)}: ${sort} ${formatValue(best)}`);
      }
      if (json) return printJson(rows.map((row) => toJson(row, shown)));
      if (csv) return printCsv(rows, shown, value);
      printRows(rows, shown, value);
    });
}

async function compare({ client }: LocalConnection, jobs: Selection[]): Promise<Comparison> {
  return demand((await client.graphql(COMPARE, { jobs })).compareJobs, 'Comparison');
}

/** Finds what the names mean. Names of jobs come first; a name that no job has can be that of an array. */
async function resolveNames(
  connection: LocalConnection,
  typed: readonly string[],
): Promise<Selection[]> {
  const { remote, username, client } = connection;
  const own = remote?.namespace ?? username;
  const names = new Map<string, Set<string>>();
  const selections: Selection[] = [];
  for (const text of typed) {
    const parts = text.split('/');
    const last = parts.pop() ?? '';
    if (parts.length > 2 || parts.includes('') || last === '' || last.slice(0, -1).includes('*'))
      throw new UsageError(`${text}: must be NAME, NAMESPACE/NAME, 'ARRAY/*' or 'PREFIX*'`);
    const [first = own, second] = parts;
    if (last === '*' && parts.length > 0)
      selections.push(
        await selectAll(connection, second === undefined ? [own, first] : [first, second], parts),
      );
    else if (second !== undefined) throw new UsageError(`${text}: must be NAMESPACE/NAME`);
    else if (last.endsWith('*')) {
      const namePrefix = last.slice(0, -1);
      selections.push({ namespace: first, filter: namePrefix === '' ? {} : { namePrefix } });
    } else names.getOrInsertComputed(first, () => new Set()).add(last);
  }
  const named = [...names].map(([namespace, set]) => ({ namespace, names: [...set] }));
  if (named.length === 0) return selections;
  const { compareJobs } = await client.graphql(FIND_MISSING, { jobs: named });
  for (const missing of compareJobs?.missing ?? []) {
    const [namespace = '', name = ''] = missing.split('/');
    const array = await JobArray.read(client, { namespace, name }).catch(ignoreNotFound);
    if (!array) continue;
    names.get(namespace)?.delete(name);
    selections.push({ namespace, filter: { array: array.id } });
  }
  const rest = [...names].filter(([, set]) => set.size > 0);
  return [...selections, ...rest.map(([namespace, set]) => ({ namespace, names: [...set] }))];
}

const FIND_MISSING = graphql(`
  query FindMissingJobs($jobs: [JobSelectionInput!]!) { compareJobs(jobs: $jobs) { missing } }
`);

/** The jobs of an array, or all jobs of a namespace, of `name/*`. */
async function selectAll(
  { client }: LocalConnection,
  [namespace, name]: [string, string],
  parts: readonly string[],
): Promise<Selection> {
  try {
    const { id } = await JobArray.read(client, { namespace, name });
    return { namespace, filter: { array: id } };
  } catch (error) {
    if (parts.length > 1 || !isNotFound(error)) throw error;
    return { namespace: name, filter: {} };
  }
}

function ignoreNotFound(error: unknown): null {
  if (isNotFound(error) || (error instanceof LoamError && error.status === 403)) return null;
  throw error;
}

/** Reads the metrics of the jobs. A job that was created or deleted meanwhile is left out. */
async function readRows(
  { client }: LocalConnection,
  jobs: readonly Job[],
  names: readonly string[],
  selections: Selection[],
): Promise<Row[]> {
  const metrics = new Map(jobs.map(({ id }) => [id, new Map<string, Values>()]));
  for (let at = 0; at < names.length; at += METRICS_AT_ONCE) {
    const variables = { jobs: selections, names: names.slice(at, at + METRICS_AT_ONCE) };
    const { compareJobs } = await client.graphql(COMPARE_METRICS, variables);
    const found = demand(compareJobs, 'Comparison');
    for (const { name, last, min, max } of found.metrics ?? [])
      for (const [index, { id }] of found.jobs.entries())
        if (last[index] != null)
          metrics.get(id)?.set(name, {
            last: last[index] as MetricValue,
            min: min[index] ?? null,
            max: max[index] ?? null,
          });
  }
  return jobs.map((job) => ({ job, metrics: metrics.get(job.id) ?? new Map() }));
}

const COLUMNS: Record<string, (job: Job) => string | number> = {
  name: (job) => job.name,
  status: (job) => fromEnum(job.status),
  created: (job) => Date.parse(job.createdAt),
  duration: (job) => job.runtimeSeconds,
  cost: (job) => Number(job.totalCost),
};

/** Jobs without a value, or with NaN, come last in both directions. @throws UsageError for an unknown column */
function sortRows(
  rows: Row[],
  column: string,
  { stat, isDescending }: { stat: Stat; isDescending: boolean },
): void {
  const isMetric = rows.some(({ metrics }) => metrics.has(column));
  const isKey = rows.some(({ job }) => job.matrixValues.some(({ key }) => key === column));
  const read = COLUMNS[column];
  if (!isMetric && !isKey && !read)
    throw new UsageError(
      `--sort ${column}: none of the jobs has such a metric or value; it can also be ${Object.keys(COLUMNS).join(', ')}.`,
    );
  const readValue = ({ job, metrics }: Row): string | number | null => {
    if (isMetric) return Number(metrics.get(column)?.[stat] ?? Number.NaN);
    if (!isKey && read) return read(job);
    const text = job.matrixValues.find(({ key }) => key === column)?.value;
    return text === undefined || text === '' || Number.isNaN(Number(text))
      ? (text ?? null)
      : Number(text);
  };
  const keyed = rows.map((row) => ({ row, value: readValue(row) }));
  keyed.sort((a, b) => compareValues(a.value, b.value, isDescending));
  rows.splice(0, rows.length, ...keyed.map(({ row }) => row));
}

function compareValues(
  a: string | number | null,
  b: string | number | null,
  isDescending: boolean,
): number {
  const isMissing = (value: string | number | null) => value === null || Number.isNaN(value);
  if (isMissing(a) || isMissing(b)) return Number(isMissing(a)) - Number(isMissing(b));
  const sign = isDescending ? -1 : 1;
  // Infinity minus infinity is NaN.
  if (typeof a === 'number' && typeof b === 'number') return a === b ? 0 : a < b ? -sign : sign;
  return sign * `${a}`.localeCompare(`${b}`);
}

/** `lr=0.01 seed=3`, or the name of the job. */
function describeJob({ name, matrixValues }: Job): string {
  return matrixValues.length > 0
    ? matrixValues.map(({ key, value }) => `${key}=${value}`).join(' ')
    : name;
}

function keysOf(rows: readonly Row[], of: 'matrixValues' | 'labels'): string[] {
  return [...new Set(rows.flatMap(({ job }) => job[of].map(({ key }) => key)))];
}

function describeHardware({ gpu, gpuCount, cpu, memoryGb }: Job): string {
  const gpus = gpu === 'NONE' ? '' : `${gpuCount}x${gpu} `;
  return `${gpus}${cpu} vCPU ${memoryGb} GB`;
}

function printRows(rows: readonly Row[], metrics: readonly string[], stat: Stat): void {
  const keys = keysOf(rows, 'matrixValues');
  const isOneNamespace = new Set(rows.map(({ job }) => job.namespace)).size === 1;
  printTable(
    ['JOB', ...keys, 'STATUS', ...metrics, 'DURATION', 'COST', 'HARDWARE'],
    rows.map(({ job, metrics: found }) => [
      { text: isOneNamespace ? job.name : `${job.namespace}/${job.name}`, colour: 'bold' },
      ...keys.map((key) => job.matrixValues.find((one) => one.key === key)?.value ?? ''),
      fromEnum(job.status),
      ...metrics.map((name) => formatValue(found.get(name)?.[stat] ?? null)),
      job.startedAt ? duration(job.runtimeSeconds) : '',
      `${job.totalCost}`,
      describeHardware(job),
    ]),
  );
}

function toJson({ job, metrics }: Row, names: readonly string[]) {
  const { id: _, matrixValues, labels, ...rest } = job;
  const toObject = (pairs: readonly { key: string; value: string }[]) =>
    Object.fromEntries(pairs.map(({ key, value }) => [key, value]));
  return {
    ...rest,
    values: toObject(matrixValues),
    labels: toObject(labels),
    metrics: Object.fromEntries(
      names.flatMap((name) => (metrics.has(name) ? [[name, metrics.get(name)]] : [])),
    ),
  };
}

function printCsv(rows: readonly Row[], metrics: readonly string[], stat: Stat): void {
  const keys = keysOf(rows, 'matrixValues');
  const labels = keysOf(rows, 'labels');
  const fields = [
    ...(['namespace', 'name', 'status'] as const),
    ...([
      'repo',
      'branch',
      'commitSha',
      'image',
      'gpu',
      'gpuCount',
      'cpu',
      'memoryGb',
      'region',
    ] as const),
    ...(['createdAt', 'runtimeSeconds', 'totalCost', 'artifactFiles', 'artifactBytes'] as const),
  ];
  const line = (cells: readonly unknown[]) => print(cells.map(toCsvCell).join(','));
  line([...fields, ...keys, ...labels.map((key) => `label ${key}`), ...metrics]);
  for (const { job, metrics: found } of rows) {
    const pick = (of: 'matrixValues' | 'labels', key: string) =>
      job[of].find((one) => one.key === key)?.value;
    line([
      ...fields.map((field) => (field === 'status' ? fromEnum(job.status) : job[field])),
      ...keys.map((key) => pick('matrixValues', key)),
      ...labels.map((key) => pick('labels', key)),
      ...metrics.map((name) => found.get(name)?.[stat]),
    ]);
  }
}

/** RFC 4180. */
function toCsvCell(value: unknown): string {
  const text = value == null ? '' : `${value}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
