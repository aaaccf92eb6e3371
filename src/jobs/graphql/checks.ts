/** GraphQL types of the checks of metrics. */
import { builder } from '../../platform/schema/builder.ts';
import { CHECK_RULES, type CheckResult, type MetricCheck } from '../metrics/checks.ts';
import { defineEnum } from './enums.ts';

const MetricDirection = defineEnum(
  'MetricDirection',
  { higher: 'As of an accuracy.', lower: 'As of a loss.' },
  'Which values of a metric are better.',
);

const { min, max } = CHECK_RULES.regressPercent;

export const MetricCheckInput = builder.inputType('MetricCheckInput', {
  description:
    'What a metric of a job must meet for the job to succeed: `min`, `max`, `regressPercent`, or several of them. The value that the successful attempt printed last counts.',
  fields: (t) => ({
    metric: t.string({ required: true, description: 'The name of the metric.' }),
    min: t.float({ description: 'The lowest value with which the job succeeds.' }),
    max: t.float({ description: 'The highest value with which the job succeeds.' }),
    regressPercent: t.float({
      description: `How many percent worse the value may be than that of \`baselineJob\`: ${min} to ${max}. Without an earlier success, the job passes.`,
    }),
    better: t.field({
      type: MetricDirection,
      description: 'With `regressPercent`: which values are better. Default: `HIGHER`.',
    }),
    baselineJob: t.string({
      description:
        'With `regressPercent`: a job in `.loam/jobs.yml` of `repo`. Its last success on the default branch counts.',
    }),
  }),
});

const MetricBaseline = builder
  .objectRef<NonNullable<CheckResult['baseline']>>('MetricBaseline')
  .implement({
    description: 'The success with which a metric was compared.',
    fields: (t) => ({
      job: t.exposeString('job', { description: 'The name of the job, which may be deleted.' }),
      commitSha: t.exposeString('commitSha', { description: 'Its commit.' }),
      value: t.exposeFloat('value', { description: 'Its last value.' }),
    }),
  });

export type ShownCheck = MetricCheck & { result: CheckResult | undefined };

export const MetricCheckRef = builder.objectRef<ShownCheck>('MetricCheck').implement({
  description: 'What a metric of a job must meet for the job to succeed, and whether it does.',
  fields: (t) => ({
    metric: t.exposeString('metric', { description: 'The name of the metric.' }),
    min: t.exposeFloat('min', { nullable: true, description: 'The lowest value that passes.' }),
    max: t.exposeFloat('max', { nullable: true, description: 'The highest value that passes.' }),
    regressPercent: t.float({
      nullable: true,
      description: 'How many percent worse than the baseline the value may be.',
      resolve: ({ regress }) => regress?.percent ?? null,
    }),
    better: t.field({
      type: MetricDirection,
      nullable: true,
      description: 'Which values are better; null without `regressPercent`.',
      resolve: ({ regress }) => regress?.better ?? null,
    }),
    baselineJob: t.string({
      nullable: true,
      description: 'The job in `.loam/jobs.yml` whose last success is the baseline.',
      resolve: ({ regress }) => regress?.job ?? null,
    }),
    passed: t.boolean({
      nullable: true,
      description: 'Whether it has passed; null until the command has succeeded.',
      resolve: ({ result }) => result?.passed ?? null,
    }),
    value: t.field({
      type: 'MetricValue',
      nullable: true,
      description: 'The value that was checked; null if the attempt has not printed the metric.',
      resolve: ({ result }) => (result?.value == null ? null : Number(result.value)),
    }),
    message: t.string({
      nullable: true,
      description:
        'The result in words: `accuracy is 0.87, and at least 0.9 is required`. Null until it is decided.',
      resolve: ({ result }) => result?.message ?? null,
    }),
    baseline: t.field({
      type: MetricBaseline,
      nullable: true,
      description: 'The success with which it was compared; null if there was none.',
      resolve: ({ result }) => result?.baseline ?? null,
    }),
  }),
});
