/** GraphQL mutations that change many jobs at once. */
import { builder, INPUT } from '../../platform/schema/builder.ts';
import * as bulk from '../requests/bulk.ts';
import { JobFilter } from './filters.ts';

const SkipReason = builder.enumType('JobSkipReason', {
  description: 'Why a job was skipped.',
  values: Object.fromEntries(
    Object.entries(bulk.SKIP_REASONS).map(([value, description]) => [
      value.toUpperCase(),
      { value: value as bulk.SkipReason, description },
    ]),
  ),
});

const SkippedJobs = builder.objectRef<bulk.SkippedJobs>('SkippedJobs').implement({
  description: 'Jobs that were skipped for the same reason.',
  fields: (t) => ({
    reason: t.field({
      type: SkipReason,
      description: 'The reason.',
      resolve: ({ reason }) => reason as never,
    }),
    count: t.exposeInt('count', { description: 'How many.' }),
    names: t.exposeStringList('names', { description: 'The names of at most 10 of them.' }),
    message: t.exposeString('message', { description: 'Why the first was skipped.' }),
  }),
});

const SELECTION = {
  namespace: { required: true, description: 'The name of the owner.' },
  filter:
    'Jobs that meet all of these conditions. An empty filter selects all jobs that the viewer may see. `filter` or `names` is required.',
  names: `Only jobs with these names, up to ${bulk.MAX_NAMES}.`,
  dryRun:
    'Whether to count only. `done` is then the number of jobs that would be changed if nothing changes meanwhile.',
  after:
    'The `endCursor` of the previous call with the same selection, which ended before all jobs were done.',
} as const;

/** An input with the fields that select jobs. */
const CancelJobsInput = builder.inputType('CancelJobsInput', {
  description: 'The jobs to cancel.',
  fields: (t) => ({
    namespace: t.string(SELECTION.namespace),
    filter: t.field({ type: JobFilter, description: SELECTION.filter }),
    names: t.stringList({ description: SELECTION.names }),
    dryRun: t.boolean({ defaultValue: false, description: SELECTION.dryRun }),
    after: t.string({ description: SELECTION.after }),
  }),
});

const RerunJobsInput = builder.inputType('RerunJobsInput', {
  description: 'The jobs to rerun.',
  fields: (t) => ({
    namespace: t.string(SELECTION.namespace),
    filter: t.field({ type: JobFilter, description: SELECTION.filter }),
    names: t.stringList({ description: SELECTION.names }),
    newestCommit: t.boolean({
      defaultValue: false,
      description:
        'Whether to run the current commits of the branches instead of the same commits.',
    }),
    dryRun: t.boolean({ defaultValue: false, description: SELECTION.dryRun }),
    after: t.string({ description: SELECTION.after }),
  }),
});

const DeleteJobsInput = builder.inputType('DeleteJobsInput', {
  description: 'The jobs to delete.',
  fields: (t) => ({
    namespace: t.string(SELECTION.namespace),
    filter: t.field({ type: JobFilter, description: SELECTION.filter }),
    names: t.stringList({ description: SELECTION.names }),
    deleteArtifacts: t.boolean({
      defaultValue: false,
      description:
        'Whether to delete the artifacts too. This cannot be undone. Their files are removed within some minutes.',
    }),
    dryRun: t.boolean({ defaultValue: false, description: SELECTION.dryRun }),
    after: t.string({ description: SELECTION.after }),
  }),
});

const definePayload = (name: string, done: string) =>
  builder.objectRef<bulk.BulkResult>(name).implement({
    description: 'How many jobs were selected, changed and skipped.',
    fields: (t) => ({
      matched: t.exposeInt('matched', { description: 'How many jobs this call has selected.' }),
      done: t.exposeInt('done', { description: done }),
      skipped: t.expose('skipped', {
        type: [SkippedJobs],
        description: 'The jobs that were not changed, by reason.',
      }),
      endCursor: t.exposeString('endCursor', {
        nullable: true,
        description:
          'Pass it as `after` to go on with the other jobs; null if no job is left. A call ends after 10,000 jobs or 20 seconds.',
      }),
    }),
  });

const CancelJobsPayload = definePayload('CancelJobsPayload', 'How many jobs were cancelled.');
const RerunJobsPayload = definePayload('RerunJobsPayload', 'How many jobs were created.');
const DeleteJobsPayload = definePayload('DeleteJobsPayload', 'How many jobs were deleted.');

/** A call may take 20 seconds, so an operation has at most four. */
const CALL_COST = 12_000;

builder.mutationFields((t) => ({
  cancelJobs: t.field({
    type: CancelJobsPayload,
    nullable: true,
    complexity: CALL_COST,
    description:
      'Cancels the queued and running jobs that meet a filter or have one of the given names, newest first. A job that cannot be cancelled is skipped.',
    args: { input: t.arg({ type: CancelJobsInput, ...INPUT }) },
    resolve: (_root, { input }, { services, viewer }) => bulk.cancelJobs(services, viewer, input),
  }),
  rerunJobs: t.field({
    type: RerunJobsPayload,
    nullable: true,
    complexity: CALL_COST,
    description:
      'Creates a job with the settings of each job that meets a filter or has one of the given names, newest first. A job that cannot run again is skipped.',
    args: { input: t.arg({ type: RerunJobsInput, ...INPUT }) },
    resolve: (_root, { input }, { services, viewer }) => bulk.rerunJobs(services, viewer, input),
  }),
  deleteJobs: t.field({
    type: DeleteJobsPayload,
    nullable: true,
    complexity: CALL_COST,
    description:
      'Deletes the finished jobs that meet a filter or have one of the given names, with their logs, newest first. A job that cannot be deleted is skipped.',
    args: { input: t.arg({ type: DeleteJobsInput, ...INPUT }) },
    resolve: (_root, { input }, { services, viewer }) =>
      bulk.deleteJobs(services, viewer, {
        ...input,
        deleteArtifacts: input.deleteArtifacts ?? false,
      }),
  }),
}));
