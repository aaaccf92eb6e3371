/** `loam compare` */

import { Option } from '@commander-js/extra-typings';
import type { Program } from '../command.ts';
import { connectHere, type LocalConnection } from '../connection.ts';
import { UsageError } from '../exit.ts';
import type { SelectionInput } from '../sdk/bulk.ts';
import {
  type ComparedJob,
  type MetricSummary,
  readComparison,
  readMetrics,
} from '../sdk/compare.ts';
import { LoamError } from '../sdk/errors.ts';
import { graphql } from '../sdk/graphql.ts';
import { fromEnum } from '../sdk/job-input.ts';
import { duration, note, print, printJson, printTable } from '../terminal.ts';
import { isNotFound, JobArray } from './arrays.ts';
import { printPair, readPair } from './compare-pair.ts';
import { addFilters, namespaceOf, toFilter } from './many-jobs.ts';
import { formatValue, type MetricValue } from './metrics.ts';

type Stat = keyof MetricSummary;

const collectMetrics = (name: string, before: string[] = []) => [...before, name];

/** Metrics in the table unless some are named. */
const SHOWN_METRICS = 6;

export function addCompareCommand(program: Program): void {
  addFilters(
    program
      .command('compare')
      .description(
        'Compare jobs by their values, settings and metrics, up to 1,000; of two jobs, show what differs between them',
      )
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
      const { transport } = connection.client;
      const { jobs, metricNames, isTruncated, missing } = await readComparison(
        transport,
        selections,
      );
      if (isTruncated) note('Only the newest 1,000 jobs are compared.');
      if (missing.length > 0) note(`Not found: ${missing.join(' ')}`);
      if (jobs.length === 0) throw new LoamError('not_found', 'No jobs to compare.');
      const all = metricNames.map((one) => one.name);
      const sorted = sort !== undefined && all.includes(sort) ? [sort] : [];
      const shown =
        metric ?? (csv || json ? all : [...new Set([...sorted, ...all.slice(0, SHOWN_METRICS)])]);
      await readMetrics(transport, selections, jobs, [...new Set([...shown, ...sorted])]);
      if (sort !== undefined) {
        const isLower = metricNames.find((one) => one.name === sort)?.isLowerBetter ?? true;
        sortJobs(jobs, sort, { stat: value, isDescending: desc ?? (asc ? false : !isLower) });
        const best = jobs[0] && readOwn(jobs[0].metrics, sort)?.[value];
        if (jobs[0] && best != null)
          note(`${describeJob(jobs[0])}: ${sort} ${formatValue(toText(best))}`);
      }
      if (csv) return printCsv(jobs, shown, value);
      const pair = names.length === 2 ? toPair(connection, jobs, names[0]) : null;
      const found = pair && (await readPair(connection.client, pair));
      if (json)
        return printJson({
          jobs: (pair ?? jobs).map((job) => toJson(job, shown)),
          differences: found?.differences ?? null,
          commits: found?.commits ?? null,
        });
      if (!pair || !found) return printJobs(jobs, shown, value);
      const format = (name: string) =>
        pair.map(({ metrics }) => formatValue(toText(readOwn(metrics, name)?.[value])));
      printPair(
        pair,
        shown.map((name) => ({ name, values: format(name) })),
        found,
      );
    });
}

/** Two jobs, in the order in which they were typed; null for other numbers of jobs. */
function toPair(
  { remote, username }: LocalConnection,
  jobs: readonly ComparedJob[],
  first = '',
): readonly [ComparedJob, ComparedJob] | null {
  const [a, b] = jobs;
  if (!a || !b || jobs.length > 2) return null;
  const typed = first.includes('/') ? first : `${remote?.namespace ?? username}/${first}`;
  return typed === `${b.namespace}/${b.name}` ? [b, a] : [a, b];
}

/** Names of metrics and keys of a matrix can be those of inherited properties, such as `constructor`. */
function readOwn<T>(record: Record<string, T>, name: string): T | undefined {
  return Object.hasOwn(record, name) ? record[name] : undefined;
}

/** JSON has neither NaN nor infinity. */
function toText(value: number | null | undefined): MetricValue {
  return value == null ? null : Number.isFinite(value) ? value : `${value}`;
}

/** Finds what the names mean. Names of jobs come first; a name that no job has can be that of an array. */
async function resolveNames(
  connection: LocalConnection,
  typed: readonly string[],
): Promise<SelectionInput[]> {
  const { remote, username, client } = connection;
  const own = remote?.namespace ?? username;
  const names = new Map<string, Set<string>>();
  const selections: SelectionInput[] = [];
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
    } else names.set(first, (names.get(first) ?? new Set()).add(last));
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
): Promise<SelectionInput> {
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

const COLUMNS: Record<string, (job: ComparedJob) => string | number> = {
  name: (job) => job.name,
  status: (job) => fromEnum(job.status),
  created: (job) => Date.parse(job.createdAt),
  duration: (job) => job.runtimeSeconds,
  cost: (job) => Number(job.totalCost),
};

/** Jobs without a value, or with NaN, come last in both directions. @throws UsageError for an unknown column */
function sortJobs(
  jobs: ComparedJob[],
  column: string,
  { stat, isDescending }: { stat: Stat; isDescending: boolean },
): void {
  const isMetric = jobs.some((job) => readOwn(job.metrics, column));
  const isKey = jobs.some(({ values }) => Object.hasOwn(values, column));
  const read = readOwn(COLUMNS, column);
  if (!isMetric && !isKey && !read)
    throw new UsageError(
      `--sort ${column}: none of the jobs has such a metric or value; it can also be ${Object.keys(COLUMNS).join(', ')}.`,
    );
  const readValue = (job: ComparedJob): string | number | null => {
    if (isMetric) return readOwn(job.metrics, column)?.[stat] ?? null;
    if (!isKey && read) return read(job);
    const text = readOwn(job.values, column);
    return text && !Number.isNaN(Number(text)) ? Number(text) : (text ?? null);
  };
  const keyed = jobs.map((job) => ({ job, value: readValue(job) }));
  keyed.sort((a, b) => compareValues(a.value, b.value, isDescending));
  jobs.splice(0, jobs.length, ...keyed.map(({ job }) => job));
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
function describeJob({ name, values }: ComparedJob): string {
  const pairs = Object.entries(values);
  return pairs.length > 0 ? pairs.map(([key, value]) => `${key}=${value}`).join(' ') : name;
}

function keysOf(jobs: readonly ComparedJob[], of: 'values' | 'labels'): string[] {
  return [...new Set(jobs.flatMap((job) => Object.keys(job[of])))];
}

function describeHardware({ gpu, gpuCount, cpu, memoryGb }: ComparedJob): string {
  const gpus = gpu === 'NONE' ? '' : `${gpuCount}x${gpu} `;
  return `${gpus}${cpu} vCPU ${memoryGb} GB`;
}

function printJobs(jobs: readonly ComparedJob[], metrics: readonly string[], stat: Stat): void {
  const keys = keysOf(jobs, 'values');
  const isOneNamespace = new Set(jobs.map(({ namespace }) => namespace)).size === 1;
  printTable(
    ['JOB', ...keys, 'STATUS', ...metrics, 'DURATION', 'COST', 'HARDWARE'],
    jobs.map((job) => [
      { text: isOneNamespace ? job.name : `${job.namespace}/${job.name}`, colour: 'bold' },
      ...keys.map((key) => readOwn(job.values, key) ?? ''),
      fromEnum(job.status),
      ...metrics.map((name) => formatValue(toText(readOwn(job.metrics, name)?.[stat]))),
      job.startedAt ? duration(job.runtimeSeconds) : '',
      `${job.totalCost}`,
      describeHardware(job),
    ]),
  );
}

/** @param names metrics that the user wants; the job may have read one more to sort by it */
function toJson({ metrics, ...job }: ComparedJob, names: readonly string[]) {
  const shown = names.flatMap((name) => {
    const { last, min, max } = readOwn(metrics, name) ?? {};
    if (last === undefined) return [];
    return [[name, { last: toText(last), min: toText(min), max: toText(max) }] as const];
  });
  return { ...job, metrics: Object.fromEntries(shown) };
}

function printCsv(jobs: readonly ComparedJob[], metrics: readonly string[], stat: Stat): void {
  const keys = keysOf(jobs, 'values');
  const labels = keysOf(jobs, 'labels');
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
  for (const job of jobs)
    line([
      ...fields.map((field) => (field === 'status' ? fromEnum(job.status) : job[field])),
      ...keys.map((key) => readOwn(job.values, key)),
      ...labels.map((key) => readOwn(job.labels, key)),
      ...metrics.map((name) => readOwn(job.metrics, name)?.[stat]),
    ]);
}

/** RFC 4180. */
function toCsvCell(value: unknown): string {
  const text = value == null ? '' : `${value}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
