/** GraphQL types of comparisons of jobs. */
import { builder } from '../../platform/schema/builder.ts';
import {
  DEFAULT_COLUMNS,
  isLowerBetter,
  MAX_COLUMNS,
  type MetricColumn,
  type MetricName,
} from '../metrics/comparison.ts';
import { readMatrixValues } from '../record/matrix-values.ts';
import { visibleRepositoryName } from '../record/repository-name.ts';
import { computeRuntimeSeconds, computeTotalCost } from '../record/runtime.ts';
import * as compare from '../requests/compare.ts';
import { type Difference, findDifferences } from '../requests/differences.ts';
import { JobMatrixValue } from './dependencies.ts';
import { Gpu, JobStatus, Region } from './enums.ts';
import { JobFilter, JobLabel } from './filters.ts';

const JobSelectionInput = builder.inputType('JobSelectionInput', {
  description: 'Jobs of a namespace. `filter` or `names` is required.',
  fields: (t) => ({
    namespace: t.string({ required: true, description: 'The name of the owner.' }),
    names: t.stringList({
      description: `Only jobs with these names, up to ${compare.MAX_COMPARED}.`,
    }),
    filter: t.field({
      type: JobFilter,
      description:
        'Jobs that meet all of these conditions. An empty filter selects all jobs that the viewer may see.',
    }),
  }),
});

const ComparedJob = builder.objectRef<compare.ComparedJob>('ComparedJob').implement({
  description: 'A job of a comparison. The fields are those of `Job`.',
  fields: (t) => ({
    id: t.exposeID('id', { description: 'The id.' }),
    name: t.exposeString('name', { description: 'The name.' }),
    namespace: t.string({
      description: 'The name of the owner.',
      resolve: ({ namespace }) => namespace.name,
    }),
    status: t.expose('status', { type: JobStatus, description: 'The status.' }),
    matrixValues: t.field({
      type: [JobMatrixValue],
      description: 'The values of its combination of a `matrix`.',
      resolve: readMatrixValues,
    }),
    arrayIndex: t.exposeInt('arrayIndex', {
      nullable: true,
      description: 'The `JOB_ARRAY_INDEX`; null for jobs without an array.',
    }),
    labels: t.field({
      type: [JobLabel],
      description: 'The labels, sorted by key.',
      resolve: ({ labels }) => labels,
    }),
    repo: t.string({
      nullable: true,
      description: 'The `namespace/name` of the repository; null without a repository.',
      resolve: (job, _args, { viewer }) => visibleRepositoryName(viewer, job),
    }),
    branch: t.exposeString('branch', { nullable: true, description: 'The branch.' }),
    commitSha: t.exposeString('commitSha', { nullable: true, description: 'The commit.' }),
    image: t.exposeString('image', { nullable: true, description: 'The container image.' }),
    gpu: t.field({ type: Gpu, description: 'The GPU model.', resolve: ({ gpu }) => gpu }),
    gpuCount: t.exposeInt('gpuCount', { description: 'The number of GPUs.' }),
    cpu: t.exposeInt('cpu', { description: 'The number of vCPUs.' }),
    memoryGb: t.exposeInt('memoryGb', { description: 'Memory in GB.' }),
    diskGb: t.exposeInt('diskGb', { description: 'Disk in GB.' }),
    region: t.field({ type: Region, description: 'The region.', resolve: ({ region }) => region }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was created.' }),
    startedAt: t.expose('startedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When the first attempt started; null until then.',
    }),
    completedAt: t.expose('completedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When it ended; null until then.',
    }),
    runtimeSeconds: t.int({
      description: 'The runtime of all attempts so far.',
      resolve: computeRuntimeSeconds,
    }),
    totalCost: t.field({
      type: 'Decimal',
      description: 'The cost so far.',
      resolve: computeTotalCost,
    }),
    artifactFiles: t.exposeInt('artifactFiles', {
      nullable: true,
      description: 'The number of files of its artifacts; null until they are stored.',
    }),
    artifactBytes: t.expose('artifactBytes', {
      type: 'SafeInt',
      nullable: true,
      description: 'The size of the archive of its artifacts; null until they are stored.',
    }),
  }),
});

const ComparedMetricName = builder.objectRef<MetricName>('ComparedMetricName').implement({
  description: 'A metric that compared jobs have.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The name.' }),
    jobs: t.exposeInt('jobs', { description: 'The number of compared jobs that have it.' }),
    isLowerBetter: t.boolean({
      description:
        'Whether a lower value is probably better. Guessed from the name: true for losses, errors and times.',
      resolve: ({ name }) => isLowerBetter(name),
    }),
  }),
});

const ComparedMetric = builder.objectRef<MetricColumn>('ComparedMetric').implement({
  description:
    'The values of a metric. The lists have a value for each job, in the order of `jobs`; null for a job without the metric.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The name.' }),
    last: t.field({
      type: ['MetricValue'],
      nullable: { list: false, items: true },
      description: 'The values that were printed last.',
      resolve: ({ last }) => last,
    }),
    min: t.field({
      type: ['MetricValue'],
      nullable: { list: false, items: true },
      description: 'The lowest values; null also if all are NaN.',
      resolve: ({ min }) => min,
    }),
    max: t.field({
      type: ['MetricValue'],
      nullable: { list: false, items: true },
      description: 'The highest values; null also if all are NaN.',
      resolve: ({ max }) => max,
    }),
  }),
});

const JobDifference = builder.objectRef<Difference>('JobDifference').implement({
  description: 'A setting by which two jobs differ, as text for people.',
  fields: (t) => ({
    name: t.exposeString('name', {
      description: 'Such as `Memory`, `Value lr` of a matrix, or `Label team`.',
    }),
    values: t.exposeStringList('values', {
      nullable: { list: false, items: true },
      description: 'For each of the two jobs; null if it does not have the setting.',
    }),
  }),
});

/** Costs of the whole list, which is read also if no field of its jobs is selected. */
const JOBS_COST = 10_000;
const COLUMN_COST = 500;

const DIFFERENCES_COST = 100;

const JobComparison = builder.objectRef<compare.JobComparison>('JobComparison').implement({
  description: 'Jobs side by side, with the values of their metrics.',
  fields: (t) => ({
    jobs: t.field({
      type: [ComparedJob],
      description: `The jobs, in the order of their creation; of more than ${compare.MAX_COMPARED}, the newest ones.`,
      complexity: { field: 0, multiplier: 0 },
      resolve: ({ jobs }) => jobs,
    }),
    isTruncated: t.exposeBoolean('isTruncated', {
      description: `Whether more than ${compare.MAX_COMPARED} jobs are selected.`,
    }),
    missing: t.exposeStringList('missing', {
      description:
        'The `namespace/name` of jobs that were selected by name, and do not exist or are not visible to the viewer.',
    }),
    differences: t.field({
      type: [JobDifference],
      nullable: true,
      description:
        'The settings by which two jobs differ. Other numbers of jobs are refused. Values of variables are secret: only their names are compared.',
      complexity: { field: DIFFERENCES_COST, multiplier: 0 },
      resolve: ({ jobs }, _args, { services, viewer }) => findDifferences(services, viewer, jobs),
    }),
    metricNames: t.field({
      type: [ComparedMetricName],
      nullable: true,
      description: 'All metrics of the jobs, those of most jobs first.',
      complexity: { field: COLUMN_COST, multiplier: 0 },
      resolve: ({ metrics }) => metrics.names(),
    }),
    metrics: t.field({
      type: [ComparedMetric],
      nullable: true,
      description: 'The values of metrics, in the order of `names`.',
      complexity: ({ names }) => ({
        field: COLUMN_COST * (names?.length ?? DEFAULT_COLUMNS),
        multiplier: 0,
      }),
      args: {
        names: t.arg.stringList({
          description: `The metrics, at most ${MAX_COLUMNS}. By default the first ${DEFAULT_COLUMNS} of \`metricNames\`.`,
        }),
      },
      resolve: ({ metrics }, { names }) => metrics.columns(names ?? null),
    }),
  }),
});

builder.queryFields((t) => ({
  compareJobs: t.field({
    type: JobComparison,
    nullable: true,
    complexity: { field: JOBS_COST, multiplier: 1 },
    description:
      'Compares jobs by their settings and metrics. They may be in several namespaces. A job that is in several selections is listed once.',
    args: {
      jobs: t.arg({
        type: [JobSelectionInput],
        required: true,
        description: 'The jobs, in at most 20 selections.',
      }),
    },
    resolve: (_root, { jobs }, { services, viewer }) => compare.compareJobs(services, viewer, jobs),
  }),
}));
