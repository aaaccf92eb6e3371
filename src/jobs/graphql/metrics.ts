/** GraphQL types of the metrics that jobs print. */
import { GraphQLError } from 'graphql';
import { builder } from '../../platform/schema/builder.ts';
import { abortOnDisconnect, unwrapEvent } from '../../platform/schema/subscription.ts';
import { MAX_POINTS, readSeries } from '../metrics/read.ts';
import { type AttemptSeries, type Metric, readMetrics } from '../metrics/summaries.ts';
import * as following from '../requests/following.ts';
import * as links from '../requests/log-links.ts';
import { Job } from './jobs.ts';

builder.scalarType('MetricValue', {
  description:
    'A number. The values that JSON cannot hold are the strings "NaN", "Infinity" and "-Infinity". Output only.',
  serialize: (value) => (Number.isFinite(value) ? value : String(value)),
  parseValue: () => {
    throw new GraphQLError('cannot be used as input');
  },
});

const MetricSeries = builder.objectRef<AttemptSeries>('MetricSeries').implement({
  description:
    'Points of a metric that an attempt printed, in the order in which it printed them. The lists have the same length. Their complexity is part of `JobMetric.series`.',
  fields: (t) => ({
    attempt: t.exposeInt('attempt', { description: 'The number of the attempt, from 1.' }),
    steps: t.field({
      type: ['SafeInt'],
      description: 'The step of each point. Steps can go back.',
      complexity: { field: 0, multiplier: 1 },
      resolve: ({ series }) => series.steps,
    }),
    times: t.field({
      type: ['SafeInt'],
      description: 'The time of each point, in milliseconds since 1970 in UTC.',
      complexity: { field: 0, multiplier: 1 },
      resolve: ({ series }) => series.times,
    }),
    values: t.field({
      type: ['MetricValue'],
      description: 'The value of each point.',
      complexity: { field: 0, multiplier: 1 },
      resolve: ({ series }) => series.values,
    }),
  }),
});

const JobMetric = builder.objectRef<Metric>('JobMetric').implement({
  description: 'A metric that a job prints, such as its loss.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The name.' }),
    points: t.expose('points', {
      type: 'SafeInt',
      description: 'The number of points, of all attempts.',
    }),
    min: t.expose('min', {
      type: 'MetricValue',
      nullable: true,
      description: 'The lowest value; null if all are NaN.',
    }),
    max: t.expose('max', {
      type: 'MetricValue',
      nullable: true,
      description: 'The highest value; null if all are NaN.',
    }),
    last: t.expose('last', {
      type: 'MetricValue',
      description: 'The value that was printed last.',
    }),
    lastStep: t.expose('lastStep', { type: 'SafeInt', description: 'The step of `last`.' }),
    lastAt: t.expose('lastAt', { type: 'DateTime', description: 'When `last` was printed.' }),
    series: t.field({
      type: [MetricSeries],
      nullable: true,
      description:
        'The points for a chart, for each attempt that has points in the range. If there are more than `maxPoints`, some are left out, but no peak, no low and no gap. `Job.metricsUrl` has all points.',
      // A point is three numbers, which together cost as much as a field.
      complexity: ({ maxPoints }) => ({ field: 5 + Math.max(0, maxPoints), multiplier: 1 }),
      args: {
        maxPoints: t.arg.int({
          required: true,
          defaultValue: 200,
          description: `The number of points of all attempts: 10 to ${MAX_POINTS}. An attempt has at least 10.`,
        }),
        fromStep: t.arg({ type: 'SafeInt', description: 'Only points from this step on.' }),
        toStep: t.arg({ type: 'SafeInt', description: 'Only points up to this step.' }),
      },
      resolve: (metric, args, { services }) => readSeries(services, metric, args),
    }),
  }),
});

/** As many names as a job can have. */
const MAX_NAMES = 200;

builder.prismaObjectFields(Job, (t) => ({
  metrics: t.field({
    type: [JobMetric],
    nullable: true,
    description: 'The metrics that the job prints, by name: at most 200.',
    complexity: ({ names }) => ({
      field: 5,
      multiplier: Math.min(MAX_NAMES, names?.length ?? MAX_NAMES),
    }),
    args: { names: t.arg.stringList({ description: 'Only the metrics with these names.' }) },
    select: { id: true },
    resolve: ({ id }, { names }, { services }) => readMetrics(services.pool, id, names ?? null),
  }),
  metricsUrl: t.string({
    description:
      'A link to all points of the metrics as CSV (`name,attempt,step,time,value`), valid for 15 minutes without credentials. With `&name=` it has one metric.',
    select: { namespace: { select: { name: true } } },
    resolve: (job, _args, { services }) => links.buildMetricsUrl(services, job),
  }),
}));

const JobMetricsChange = builder.objectRef<following.MetricsChange>('JobMetricsChange').implement({
  description: 'A job has printed points of metrics.',
  fields: (t) => ({
    points: t.expose('points', {
      type: 'SafeInt',
      description: 'The number of points that the job has printed.',
    }),
  }),
});

builder.subscriptionFields((t) => ({
  jobMetrics: t.field({
    type: JobMetricsChange,
    description:
      'Tells when a job has printed points of metrics, now and then at most once a second, until the job has ended.',
    args: {
      namespace: t.arg.string({ required: true, description: 'The name of the owner.' }),
      name: t.arg.string({ required: true, description: 'The name of the job.' }),
    },
    subscribe: async (_root, args, { services, viewer }) =>
      abortOnDisconnect(await following.followMetrics(services, viewer, args)),
    resolve: unwrapEvent,
  }),
}));
