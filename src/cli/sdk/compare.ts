/** Comparisons of jobs: their settings, values and metrics side by side. */
import { type JobSelection, type SelectionInput, toSelectionInput } from './bulk.ts';
import { graphql } from './graphql.ts';
import type { Gpu, JobStatus, Region } from './job-info.ts';
import { checkOptions } from './options.ts';
import { demand } from './pages.ts';
import type { Transport } from './transport.ts';

/** The values of a metric of a job. They may be NaN or infinite. */
export type MetricSummary = {
  /** The value that was printed last. */
  last: number;
  /** Null if all values are NaN. */
  min: number | null;
  max: number | null;
};

/** A job of a comparison. The fields are those of `JobInfo`, with values, labels and metrics by their names. */
export type ComparedJob = {
  id: string;
  namespace: string;
  name: string;
  status: JobStatus;
  /** The values of its combination of a matrix. */
  values: Record<string, string>;
  /** The `JOB_ARRAY_INDEX`; null for jobs without an array. */
  arrayIndex: number | null;
  labels: Record<string, string>;
  repo: string | null;
  branch: string | null;
  commitSha: string | null;
  image: string | null;
  gpu: Gpu;
  gpuCount: number;
  cpu: number;
  memoryGb: number;
  diskGb: number;
  region: Region;
  createdAt: string;
  startedAt: string | null;
  completedAt: string | null;
  runtimeSeconds: number;
  /** As text: a number would lose cents. */
  totalCost: string;
  /** Null until its artifacts are stored. */
  artifactFiles: number | null;
  artifactBytes: number | null;
  /** A job without a metric has no entry for it. */
  metrics: Record<string, MetricSummary>;
};

/** Jobs side by side. */
export type Comparison = {
  /** The oldest first. If more than 1000 jobs are selected, only the newest 1000. */
  jobs: ComparedJob[];
  /** All metrics of the jobs, those of most jobs first. `isLowerBetter` is guessed from the name: true for losses, errors and times. */
  metricNames: readonly { name: string; jobs: number; isLowerBetter: boolean }[];
  /** Whether more than 1000 jobs are selected. */
  isTruncated: boolean;
  /** The `namespace/name` of selected jobs that do not exist or are not visible to the caller. */
  missing: readonly string[];
};

const COMPARE_JOBS = graphql(`
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
const FIND_ARRAY = graphql(`
  query FindArray($namespace: String!, $name: String!) {
    jobArray(namespace: $namespace, name: $name) { id }
  }
`);

/** Metrics of one request. */
const METRICS_AT_ONCE = 50;
const ARRAY_ID = /^arr_[0-9a-z]{26}$/;

/** Compares the jobs of a selection. */
export async function compareJobs(
  transport: Transport,
  selection: JobSelection,
  options: { metrics?: string[] | undefined },
): Promise<Comparison> {
  checkOptions(options, { metrics: true });
  const { namespace, array } = selection;
  const isName = array !== undefined && !ARRAY_ID.test(array);
  const selected = isName
    ? { ...selection, array: await findArray(transport, namespace, array) }
    : selection;
  const selections = [toSelectionInput(selected)];
  const comparison = await readComparison(transport, selections);
  const metrics = options.metrics ?? comparison.metricNames.map(({ name }) => name);
  await readMetrics(transport, selections, comparison.jobs, metrics);
  return comparison;
}

async function findArray(transport: Transport, namespace: string, name: string): Promise<string> {
  const { jobArray } = await transport.graphql(FIND_ARRAY, { namespace, name });
  return demand(jobArray, `Array ${namespace}/${name}`).id;
}

/** Reads the jobs of selections, without their metrics. */
export async function readComparison(
  transport: Transport,
  selections: SelectionInput[],
): Promise<Comparison> {
  const answer = await transport.graphql(COMPARE_JOBS, { jobs: selections });
  const { jobs, metricNames, ...rest } = demand(answer.compareJobs, 'Comparison');
  return {
    jobs: jobs.map(({ matrixValues, labels, ...job }) => ({
      ...job,
      values: toRecord(matrixValues),
      labels: toRecord(labels),
      metrics: {},
    })),
    metricNames: metricNames ?? [],
    ...rest,
  };
}

/** Reads metrics into the jobs of the same selections. A job that is selected only since then is left out. */
export async function readMetrics(
  transport: Transport,
  selections: SelectionInput[],
  jobs: readonly ComparedJob[],
  names: readonly string[],
): Promise<void> {
  const found = new Map(jobs.map(({ id }) => [id, [] as [string, MetricSummary][]]));
  for (let at = 0; at < names.length; at += METRICS_AT_ONCE) {
    const variables = { jobs: selections, names: names.slice(at, at + METRICS_AT_ONCE) };
    const answer = await transport.graphql(COMPARE_METRICS, variables);
    const { jobs: rows, metrics } = demand(answer.compareJobs, 'Comparison');
    for (const { name, last, min, max } of metrics ?? [])
      for (const [index, { id }] of rows.entries()) {
        const summary = {
          last: toNumber(last[index]),
          min: toNumber(min[index]),
          max: toNumber(max[index]),
        };
        if (hasLast(summary)) found.get(id)?.push([name, summary]);
      }
  }
  // A metric can have any name, such as `__proto__`.
  for (const job of jobs) job.metrics = Object.fromEntries(found.get(job.id) ?? []);
}

function hasLast<T extends { last: number | null }>(one: T): one is T & { last: number } {
  return one.last !== null;
}

function toNumber(value: number | string | null | undefined): number | null {
  return value == null ? null : Number(value);
}

function toRecord(pairs: readonly { key: string; value: string }[]): Record<string, string> {
  return Object.fromEntries(pairs.map(({ key, value }) => [key, value]));
}
