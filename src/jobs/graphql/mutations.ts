/** What can be done to jobs. */
import { queryFromInfo } from '@pothos/plugin-prisma';
import { builder } from '../../graphql/builder.ts';
import { Gpu, Job, JobStatus, Region } from '../graphql.ts';
import { HARDWARE_DEFAULTS } from '../hardware.ts';
import * as jobs from '../jobs.ts';

const CreateJobInput = builder.inputType('CreateJobInput', {
  description: '`repo`, `image` or both.',
  fields: (t) => ({
    namespace: t.string({ required: true }),
    name: t.string({ required: true, description: 'Letters, digits, hyphens and underscores.' }),
    command: t.string({
      required: true,
      description: 'Given to a shell in the working directory.',
    }),
    repo: t.string({ description: '`namespace/repo`, cloned into the working directory.' }),
    image: t.string({ description: 'A container image.' }),
    branch: t.string({ description: 'Goes with `repo`; left out: `main`.' }),
    gpu: t.field({ type: Gpu, required: true }),
    gpuCount: t.int({ defaultValue: HARDWARE_DEFAULTS.gpuCount, description: '1, 2, 4 or 8.' }),
    cpu: t.int({
      defaultValue: HARDWARE_DEFAULTS.cpu,
      description: '2, 4, 8, 16, 32, 64 or 96; at least one for each GPU.',
    }),
    memoryGb: t.int({
      defaultValue: HARDWARE_DEFAULTS.memoryGb,
      description: 'A quarter to 16 for each vCPU.',
    }),
    diskGb: t.int({ defaultValue: HARDWARE_DEFAULTS.diskGb }),
    env: t.field({ type: 'JSON', description: 'Strings by name.' }),
    secrets: t.field({
      type: 'JSON',
      description: 'As `env`, but never shown again: kept encrypted, and masked in the log.',
    }),
    region: t.field({ type: Region, defaultValue: HARDWARE_DEFAULTS.region }),
    timeoutMinutes: t.int({ defaultValue: 1_440, description: '1 to 10080, of each attempt.' }),
    retries: t.int({ defaultValue: 0, description: 'After failures; 0 to 5.' }),
    outputPath: t.string({ description: 'What is kept as artifacts when the job ends.' }),
  }),
});

const CancelJobInput = builder.inputType('CancelJobInput', {
  fields: (t) => ({
    namespace: t.string({ required: true }),
    name: t.string({ required: true }),
  }),
});

const DeleteJobInput = builder.inputType('DeleteJobInput', {
  fields: (t) => ({
    namespace: t.string({ required: true }),
    name: t.string({ required: true }),
    deleteArtifacts: t.boolean({ defaultValue: false, description: 'Irreversible.' }),
  }),
});

type CancelledRow = Awaited<ReturnType<typeof jobs.cancelJob<typeof jobs.CANCELLED>>>;

const CancelJobPayload = builder.objectRef<CancelledRow>('CancelJobPayload').implement({
  description: 'The job as it was cancelled; its processes may still be ending.',
  fields: (t) => ({
    job: t.field({ type: Job, resolve: ({ job }) => job as never }),
    id: t.id({ resolve: ({ job }) => job.id }),
    name: t.string({ resolve: ({ job }) => job.name }),
    namespace: t.string({ resolve: ({ job }) => job.namespace.name }),
    status: t.field({ type: JobStatus, resolve: ({ job }) => job.status }),
    message: t.exposeString('message'),
    runtimeSeconds: t.int({ resolve: ({ job }) => jobs.runtimeOf(job) }),
    totalCost: t.field({ type: 'Decimal', resolve: ({ job }) => jobs.totalCostOf(job) }),
    completedAt: t.field({
      type: 'DateTime',
      nullable: true,
      resolve: ({ job }) => job.completedAt,
    }),
  }),
});

builder.mutationFields((t) => ({
  createJob: t.prismaField({
    type: Job,
    args: { input: t.arg({ type: CreateJobInput, required: true }) },
    resolve: (query, _root, { input }, { services, viewer }) =>
      jobs.createJob(services, viewer, input, jobs.selectOf(query)) as never,
  }),
  cancelJob: t.field({
    type: CancelJobPayload,
    description: 'Cancels at once; SIGTERM to all its processes, SIGKILL after 30 seconds.',
    args: { input: t.arg({ type: CancelJobInput, required: true }) },
    resolve: (_root, { input }, context, info) => {
      const query = queryFromInfo({ context, info, path: ['job'] });
      const select = { ...jobs.selectOf(query), ...jobs.CANCELLED };
      return jobs.cancelJob(context.services, context.viewer, input, select);
    },
  }),
  deleteJob: t.id({
    description: 'The record of a finished job, with its log. Answers its id.',
    args: { input: t.arg({ type: DeleteJobInput, required: true }) },
    resolve: (_root, { input }, { services, viewer }) =>
      jobs.deleteJob(services, viewer, {
        ...input,
        deleteArtifacts: input.deleteArtifacts ?? false,
      }),
  }),
}));
