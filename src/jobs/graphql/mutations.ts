/** What changes jobs, in GraphQL. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { builder } from '../../graphql/builder.ts';
import { deletionPayload, INPUT } from '../../graphql/payloads.ts';
import { selectAt } from '../../graphql/select.ts';
import { HARDWARE_DEFAULTS } from '../hardware.ts';
import * as jobs from '../jobs.ts';
import { Gpu, Region } from './enums.ts';
import { Job } from './jobs.ts';

const EnvironmentVariable = builder.objectRef<jobs.NamedValue>('EnvironmentVariable').implement({
  description: 'A name and what it stands for in the environment of a job.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'Letters, digits and underscores.' }),
    value: t.exposeString('value', { description: 'Any text without NUL.' }),
  }),
});

const EnvironmentVariableInput = builder.inputType('EnvironmentVariableInput', {
  description: 'A name and what it is to stand for in the environment of a job.',
  fields: (t) => ({
    name: t.string({
      required: true,
      description: 'Letters, digits and underscores; no digit comes first.',
    }),
    value: t.string({ required: true, description: 'Any text without NUL.' }),
  }),
});

const CreateJobInput = builder.inputType('CreateJobInput', {
  description: 'A job to run: in a checkout of `repo`, in `image`, or both.',
  fields: (t) => ({
    namespace: t.string({ required: true, description: 'The name of its owner.' }),
    name: t.string({ required: true, description: 'Letters, digits, hyphens and underscores.' }),
    command: t.string({
      required: true,
      description: 'Given to a shell in the working directory.',
    }),
    repo: t.string({ description: '`namespace/repo`, cloned into the working directory.' }),
    image: t.string({ description: 'A container image.' }),
    branch: t.string({ description: 'Goes with `repo`; left out: `main`.' }),
    gpu: t.field({ type: Gpu, required: true, description: 'The model of its GPUs, or `NONE`.' }),
    gpuCount: t.int({ defaultValue: HARDWARE_DEFAULTS.gpuCount, description: '1, 2, 4 or 8.' }),
    cpu: t.int({
      defaultValue: HARDWARE_DEFAULTS.cpu,
      description: '2, 4, 8, 16, 32, 64 or 96; at least one for each GPU.',
    }),
    memoryGb: t.int({
      defaultValue: HARDWARE_DEFAULTS.memoryGb,
      description: 'A quarter to 16 for each vCPU.',
    }),
    diskGb: t.int({
      defaultValue: HARDWARE_DEFAULTS.diskGb,
      description: 'Of disk, which is gone when it ends.',
    }),
    env: t.field({
      type: [EnvironmentVariableInput],
      description: 'Its environment, beside what Loam sets.',
    }),
    secrets: t.field({
      type: [EnvironmentVariableInput],
      description: 'As `env`, but never shown again: kept encrypted, and masked in the log.',
    }),
    region: t.field({
      type: Region,
      defaultValue: HARDWARE_DEFAULTS.region,
      description: 'Where it is to run.',
    }),
    timeoutMinutes: t.int({ defaultValue: 1_440, description: '1 to 10080, of each attempt.' }),
    retries: t.int({ defaultValue: 0, description: 'After failures; 0 to 5.' }),
    outputPath: t.string({ description: 'What is kept as artifacts when the job ends.' }),
  }),
});

const NAMESPACE = { required: true, description: 'The name of its owner.' } as const;
const NAME = { required: true, description: 'Of the job.' } as const;

const CancelJobInput = builder.inputType('CancelJobInput', {
  description: 'The job that is to stop.',
  fields: (t) => ({
    namespace: t.string(NAMESPACE),
    name: t.string(NAME),
  }),
});

const DeleteJobInput = builder.inputType('DeleteJobInput', {
  description: 'The job whose record is to go.',
  fields: (t) => ({
    namespace: t.string(NAMESPACE),
    name: t.string(NAME),
    deleteArtifacts: t.boolean({
      defaultValue: false,
      description: 'Its artifacts are to go too, for good.',
    }),
  }),
});

const CreateJobPayload = builder
  .objectRef<{ job: object; env: readonly jobs.NamedValue[] }>('CreateJobPayload')
  .implement({
    description: 'The job that was made.',
    fields: (t) => ({
      job: t.field({
        type: Job,
        description: 'Queued.',
        resolve: ({ job }) => job as never,
      }),
      env: t.expose('env', {
        type: [EnvironmentVariable],
        description: 'The environment that was given. It is in this answer only.',
      }),
    }),
  });

const CancelJobPayload = builder
  .objectRef<{ job: object; message: string }>('CancelJobPayload')
  .implement({
    description: 'The job that was cancelled.',
    fields: (t) => ({
      job: t.field({
        type: Job,
        description: 'Cancelled; its processes may still be ending.',
        resolve: ({ job }) => job as never,
      }),
      message: t.exposeString('message', { description: 'What happens now, in words.' }),
    }),
  });

builder.mutationFields((t) => ({
  createJob: t.field({
    type: CreateJobPayload,
    nullable: true,
    description: 'Queues a job. The commit that its branch stands at now is what runs.',
    args: { input: t.arg({ type: CreateJobInput, ...INPUT }) },
    resolve: (_root, { input }, context, info) => {
      const select = selectAt<Prisma.JobSelect>(context, info, 'job');
      return jobs.createJob(context.services, context.viewer, input, select);
    },
  }),
  cancelJob: t.field({
    type: CancelJobPayload,
    nullable: true,
    description: 'Cancels at once; SIGTERM to all its processes, SIGKILL after 30 seconds.',
    args: { input: t.arg({ type: CancelJobInput, ...INPUT }) },
    resolve: (_root, { input }, context, info) => {
      const select = selectAt<Prisma.JobSelect>(context, info, 'job');
      return jobs.cancelJob(context.services, context.viewer, input, select);
    },
  }),
  deleteJob: t.field({
    type: deletionPayload('DeleteJob'),
    nullable: true,
    description: 'Removes the record of a finished job, with its log.',
    args: { input: t.arg({ type: DeleteJobInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await jobs.deleteJob(services, viewer, {
        ...input,
        deleteArtifacts: input.deleteArtifacts ?? false,
      }),
    }),
  }),
}));
