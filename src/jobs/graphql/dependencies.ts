/** GraphQL types of needs, arrays and concurrency groups. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { JobStatus as Status } from '../../../prisma/generated/enums.ts';
import { builder } from '../../platform/schema/builder.ts';
import { selectOf } from '../../platform/schema/select.ts';
import type { MatrixValue } from '../record/matrix-values.ts';
import {
  type ArrayRow,
  type ArrayTotals,
  countArrayJobs,
  findArray,
  readArrayTotals,
} from '../requests/arrays.ts';
import { findJob } from '../requests/jobs.ts';
import { DEPENDENCY_RULES } from '../requests/needs.ts';
import { defineEnum, JobStatus } from './enums.ts';

const JobNeedCondition = defineEnum(
  'JobNeedCondition',
  {
    succeeded: 'The needed job succeeded.',
    failed: 'The needed job failed or timed out.',
    finished: 'The needed job ended in any status, also `CANCELLED`.',
  },
  'How a needed job must have ended.',
);

const JobConcurrencyConflict = defineEnum(
  'JobConcurrencyConflict',
  {
    queue: 'The job waits. Jobs of a group run in the order of their creation.',
    cancel_running:
      'The older jobs of the group are cancelled, and the job waits until their processes have ended.',
    skip: 'The job is cancelled.',
  },
  'What happens to a job whose concurrency group is taken.',
);

export const JobNeedInput = builder.inputType('JobNeedInput', {
  description: 'A job or an array that must have ended before the new job starts.',
  fields: (t) => ({
    job: t.string({
      required: true,
      description:
        'The name of a job of the same namespace, or of an array: then all its jobs. A job comes before an array of the same name.',
    }),
    when: t.field({
      type: JobNeedCondition,
      defaultValue: 'succeeded',
      description: 'How it must have ended.',
    }),
  }),
});

export const JobArrayInput = builder.inputType('JobArrayInput', {
  description: 'Creates many jobs that differ in their index.',
  fields: (t) => ({
    size: t.int({
      required: true,
      description: `The number of jobs: 1 to ${DEPENDENCY_RULES.maxArraySize}.`,
    }),
    maxParallel: t.int({
      description: 'How many of them may run at once. By default all.',
    }),
  }),
});

export const JobConcurrencyInput = builder.inputType('JobConcurrencyInput', {
  description: 'A group of which one job runs at a time.',
  fields: (t) => ({
    group: t.string({
      required: true,
      description: `The name of the group: up to ${DEPENDENCY_RULES.groupBytes} bytes. Jobs of the namespace with the same repository and group exclude each other; so do jobs without a repository.`,
    }),
    onConflict: t.field({
      type: JobConcurrencyConflict,
      defaultValue: 'queue',
      description: 'What happens if the group is taken.',
    }),
  }),
});

const JobStatusCount = builder
  .objectRef<{ status: Status; count: number }>('JobStatusCount')
  .implement({
    description: 'How many jobs have a status.',
    fields: (t) => ({
      status: t.expose('status', { type: JobStatus, description: 'The status.' }),
      count: t.exposeInt('count', { description: 'The number of jobs.' }),
    }),
  });

const JobArrayTotals = builder.objectRef<ArrayTotals>('JobArrayTotals').implement({
  description: 'Times and cost of all jobs of an array, without deleted jobs.',
  fields: (t) => ({
    startedAt: t.expose('startedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When the first job started; null until then.',
    }),
    completedAt: t.expose('completedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When the last job ended; null until all have ended.',
    }),
    totalCost: t.expose('totalCost', {
      type: 'Decimal',
      description: 'The cost of the jobs so far.',
    }),
  }),
});

export const JobArray = builder.objectRef<ArrayRow>('JobArray').implement({
  description: 'Jobs that one request, or a matrix of a run, created together.',
  fields: (t) => ({
    id: t.exposeID('id', { description: 'The id, by which lists of jobs can be filtered.' }),
    name: t.exposeString('name', {
      description:
        'The name. The names of its jobs are this name with `-` and the index, in a run with the number of the combination.',
    }),
    size: t.exposeInt('size', { description: 'The number of jobs that were created.' }),
    maxParallel: t.exposeInt('maxParallel', {
      nullable: true,
      description: 'How many of them may run at once; null for all.',
    }),
    counts: t.field({
      type: [JobStatusCount],
      complexity: { field: 10 },
      description: 'The number of its jobs in each status, without deleted jobs.',
      resolve: ({ id }, _args, { services }) => countArrayJobs(services, id),
    }),
    totals: t.field({
      type: JobArrayTotals,
      complexity: { field: 20 },
      description: 'The times and the cost of its jobs.',
      resolve: ({ id }, _args, { services }) => readArrayTotals(services, id),
    }),
  }),
});

/** A row of `job_needs`, or all rows of an array that is needed as a whole. */
type NeedRow = Prisma.JobNeedGetPayload<object>;

/** In the order in which they were given, which decides about outputs of the same name; needs that only give files come last. */
export function orderNeeds(outputsOf: readonly string[], needs: readonly NeedRow[]): NeedRow[] {
  const places = new Map(outputsOf.map((id, place) => [id, place]));
  const placeOf = ({ neededId }: NeedRow) => places.get(neededId) ?? outputsOf.length;
  return [...needs].sort((a, b) => placeOf(a) - placeOf(b));
}

/** Keeps one need of those that name all jobs of an array. */
export function foldNeeds(needs: readonly NeedRow[]): NeedRow[] {
  const seen = new Set<string>();
  return needs.filter(({ arrayId }) => {
    if (arrayId === null) return true;
    const isNew = !seen.has(arrayId);
    seen.add(arrayId);
    return isNew;
  });
}

export const JobNeed = builder.objectRef<NeedRow>('JobNeed').implement({
  description: 'A job, or an array of jobs, that another job needs.',
  fields: (t) => ({
    name: t.string({
      description:
        'The name of the needed job or array; of a matrix in the same run, the name in the file.',
      resolve: ({ neededName, arrayId, runJob }) =>
        arrayId === null ? neededName : (runJob ?? neededName),
    }),
    job: t.prismaField({
      type: 'Job',
      nullable: true,
      description:
        'The needed job; null for an array, and if it was deleted or the viewer may not see it.',
      resolve: (query, { neededId, arrayId }, _args, { services, viewer }) =>
        arrayId === null
          ? (findJob(services, viewer, neededId, selectOf<Prisma.JobSelect>(query)) as never)
          : null,
    }),
    array: t.field({
      type: JobArray,
      nullable: true,
      description:
        'The needed array, which is also that of a matrix; null for a job, and if all its jobs were deleted or the viewer may not see them.',
      resolve: ({ arrayId }, _args, { services, viewer }) =>
        arrayId === null ? null : findArray(services, viewer, arrayId),
    }),
    when: t.expose('condition', {
      type: JobNeedCondition,
      description:
        'How it must have ended. Of an array, all jobs must have succeeded; `FAILED` demands that all have ended and at least one failed.',
    }),
    runJob: t.exposeString('runJob', {
      nullable: true,
      description:
        'In a run, the name of the needed job in the file; for another array its name; null for other jobs.',
    }),
  }),
});

export const JobMatrixValue = builder.objectRef<MatrixValue>('JobMatrixValue').implement({
  description: 'A value of the combination of a matrix from which a job was created.',
  fields: (t) => ({
    key: t.exposeString('key', { description: 'The key in the matrix.' }),
    value: t.exposeString('value', {
      description: 'The value, which the job has in the variable with the name of the key.',
    }),
  }),
});

export const JobConcurrency = builder
  .objectRef<{ group: string; onConflict: Prisma.JobGetPayload<object>['onConflict'] }>(
    'JobConcurrency',
  )
  .implement({
    description: 'The concurrency group of a job.',
    fields: (t) => ({
      group: t.exposeString('group', { description: 'The name of the group.' }),
      onConflict: t.field({
        type: JobConcurrencyConflict,
        description: 'What happens if the group is taken.',
        resolve: ({ onConflict }) => onConflict ?? 'queue',
      }),
    }),
  });
