/** GraphQL mutations of jobs, and the check before one is created. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { builder, deletionPayload, INPUT } from '../../platform/schema/builder.ts';
import { selectForChild } from '../../platform/schema/select.ts';
import { CACHE_RULES } from '../caches/request.ts';
import { CHECKPOINT_RULES } from '../checkpoints/checkpoints.ts';
import { CHECK_RULES } from '../metrics/checks.ts';
import { TEST_REPORT_RULES } from '../reports/request.ts';
import { checkJob, type JobCheck } from '../requests/job-check.ts';
import * as jobs from '../requests/jobs.ts';
import { DEPENDENCY_RULES } from '../requests/needs.ts';
import { REQUEST_RULES } from '../requests/request.ts';
import { rerunJob } from '../requests/rerun.ts';
import { type AppTicket, openJobPort } from '../shells/apps/sessions.ts';
import { VOLUME_RULES } from '../volumes/volumes.ts';
import { JobCacheInput } from './caches.ts';
import { MetricCheckInput } from './checks.ts';
import { JobArrayInput, JobConcurrencyInput, JobNeedInput } from './dependencies.ts';
import { Gpu, Region, ShellAccess } from './enums.ts';
import { JobLabelInput } from './filters.ts';
import { JobFilesInput } from './inputs.ts';
import { IdTokenInput, JobPermissionsInput } from './job-credentials.ts';
import { Job } from './jobs.ts';
import { VolumeMountInput } from './volumes.ts';

const EnvironmentVariable = builder.objectRef<jobs.NamedValue>('EnvironmentVariable').implement({
  description: 'An environment variable of a job.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The name: letters, digits and underscores.' }),
    value: t.exposeString('value', { description: 'The value: any text without NUL.' }),
  }),
});

const EnvironmentVariableInput = builder.inputType('EnvironmentVariableInput', {
  description: 'An environment variable for a job.',
  fields: (t) => ({
    name: t.string({
      required: true,
      description: 'The name: letters, digits and underscores, not starting with a digit.',
    }),
    value: t.string({ required: true, description: 'The value: any text without NUL.' }),
  }),
});

const CreateJobInput = builder.inputType('CreateJobInput', {
  description:
    'The job to create. It runs in a checkout of `repo`, in a container from `image`, or both.',
  fields: (t) => ({
    namespace: t.string({ required: true, description: 'The name of the owner.' }),
    name: t.string({
      required: true,
      description: 'The name: letters, digits, hyphens and underscores.',
    }),
    command: t.string({
      required: true,
      description: 'The command, which a shell runs in the working directory.',
    }),
    repo: t.string({
      description: 'The repository to check out into the working directory, as `namespace/repo`.',
    }),
    image: t.string({ description: 'The container image to run in.' }),
    branch: t.string({
      description:
        'The branch of `repo` to check out; only allowed with `repo`. By default `main` if it exists, otherwise the default branch.',
    }),
    snapshot: t.string({
      description:
        'The id of a snapshot of `repo` to check out instead of a branch: 32 hexadecimal digits. `git push <url> <commit>:refs/loam/snapshots/<id>` creates one. It stays while a job has it, and for a day after the push.',
    }),
    gpu: t.field({ type: Gpu, required: true, description: 'The GPU model, or `NONE`.' }),
    gpuCount: t.int({
      description:
        'The number of GPUs: 1, 2, 4 or 8, if the operator of the server has not set other numbers. Default: 1.',
    }),
    cpu: t.int({
      description:
        'The number of vCPUs, one of those in `jobOptions` and at least one for each GPU. Default: 8 if the server offers it.',
    }),
    memoryGb: t.int({
      description:
        'Memory in GB, within the range for each vCPU in `jobOptions`. Default: 32 if that is in the range.',
    }),
    diskGb: t.int({
      description: 'Disk in GB. Default: 100. Its contents are deleted when the job ends.',
    }),
    env: t.field({
      type: [EnvironmentVariableInput],
      description: 'Environment variables, in addition to those that Loam sets.',
    }),
    secrets: t.field({
      type: [EnvironmentVariableInput],
      description:
        'Environment variables that are stored encrypted, masked in the log, and never shown.',
    }),
    secretNames: t.stringList({
      description:
        'The names of secrets of the repository, or else of its namespace, that each attempt gets as environment variables. The branch must be one that the secret allows, and the caller must be allowed to push to it.',
    }),
    variableNames: t.stringList({
      description:
        'The names of variables of the repository, or else of its namespace, that each attempt gets as environment variables.',
    }),
    labels: t.field({
      type: [JobLabelInput],
      description: 'Labels to find the job by, up to 32.',
    }),
    region: t.field({
      type: Region,
      description:
        'The region to run in. Default: `US_EAST_1`, or the first one of a server that does not have it.',
    }),
    timeoutMinutes: t.int({
      defaultValue: REQUEST_RULES.timeoutMinutes.default,
      description: 'The timeout of an attempt in minutes: 1 to 10080.',
    }),
    maxCost: t.field({
      type: 'Decimal',
      description:
        'The job is cancelled when all its attempts together have cost this. Its processes then get SIGTERM, and SIGKILL after 30 seconds.',
    }),
    idleTimeoutMinutes: t.int({
      description:
        'The job is cancelled when its GPUs were idle for so many minutes, 1 to 10080; only with a GPU. GPUs are idle while their load is at most 5 %.',
    }),
    holdOnFailureMinutes: t.int({
      defaultValue: REQUEST_RULES.holdOnFailureMinutes.default,
      description:
        'How many minutes the sandbox stays when the command of the last attempt fails, 0 to 1440, so that one can look into it. The job is `RUNNING` until then, and the time costs. `releaseJob` ends it sooner, and so do the timeout and the maximum cost.',
    }),
    shellAccess: t.field({
      type: ShellAccess,
      defaultValue: 'allowed',
      description:
        'Whether shells can be opened in the job. It cannot be changed later, and a rerun keeps it.',
    }),
    retries: t.int({
      defaultValue: REQUEST_RULES.retries.default,
      description: 'How many times a failed job is retried: 0 to 5.',
    }),
    outputPath: t.string({
      description: 'Files under this path are kept as artifacts when the job ends.',
    }),
    needs: t.field({
      type: [JobNeedInput],
      description: `Jobs that must have ended before this job starts, up to ${DEPENDENCY_RULES.maxNeeds}. When one of them ends otherwise than needed, this job is cancelled.`,
    }),
    array: t.field({
      type: JobArrayInput,
      description:
        'Creates many jobs at once: `<name>-0`, `<name>-1` and so on, with `JOB_ARRAY_INDEX` and `JOB_ARRAY_SIZE` in the environment. The answer is the first of them.',
    }),
    concurrency: t.field({
      type: JobConcurrencyInput,
      description:
        'A group of which one job runs at a time, such as the deployments of a branch. The jobs of an array take it together.',
    }),
    inputs: t.field({
      type: [JobFilesInput],
      description: `Artifacts of other jobs and files of repositories that are copied into the working directory before the command starts, up to ${REQUEST_RULES.inputs.maxEntries}, of which up to ${REQUEST_RULES.inputs.maxRepositories} repositories. A file that exists is never replaced: the job fails instead.`,
    }),
    volumes: t.field({
      type: [VolumeMountInput],
      description: `Data on the machines that the job mounts, up to ${VOLUME_RULES.maxEntries}.`,
    }),
    cache: t.field({
      type: [JobCacheInput],
      description: `Folders that the job finds as an earlier job of \`repo\` has left them, up to ${CACHE_RULES.maxEntries}. They are restored before the command starts, and saved after it has succeeded if the key is new.`,
    }),
    checkpointPath: t.string({
      description:
        'A folder in the working directory, such as `checkpoints`, whose content the next attempt gets. The command finds its path, relative to the working directory, in `JOB_CHECKPOINT`.',
    }),
    checkpointMinutes: t.int({
      description: `How often the folder is stored while the job runs, ${CHECKPOINT_RULES.minutes.min} to ${CHECKPOINT_RULES.minutes.max}; 0: only at the end of attempts. Default: ${CHECKPOINT_RULES.minutes.default}.`,
    }),
    checks: t.field({
      type: [MetricCheckInput],
      description: `What the metrics of the job must meet for it to succeed, up to ${CHECK_RULES.maxEntries}.`,
    }),
    testReports: t.stringList({
      description: `JUnit files of the tests, relative to the working directory, such as \`reports/*.xml\`: up to ${TEST_REPORT_RULES.maxEntries} paths or patterns. They are read when the command has ended: up to ${TEST_REPORT_RULES.files} files of 4 MiB each and 16 MiB together, and ${TEST_REPORT_RULES.tests} tests.`,
    }),
    idTokens: t.field({
      type: [IdTokenInput],
      description:
        'Identity tokens with which the job proves to other systems what it is, up to 10. With a `repo`, only in the namespace of the job, and with the right to push to the branch.',
    }),
    permissions: t.field({
      type: JobPermissionsInput,
      description:
        'What the job may do in Loam, with a token in its environment (`LOAM_TOKEN`, for the server at `LOAM_URL`). Nothing by default.',
    }),
  }),
});

const NAMESPACE = { required: true, description: 'The name of the owner.' } as const;
const NAME = { required: true, description: 'The name of the job.' } as const;

const RerunJobInput = builder.inputType('RerunJobInput', {
  description: 'The job to rerun.',
  fields: (t) => ({
    namespace: t.string(NAMESPACE),
    name: t.string(NAME),
    newName: t.string({
      description:
        'The name of the new job. By default the name of the job with a free number, such as `train-2`.',
    }),
    newestCommit: t.boolean({
      defaultValue: false,
      description: 'Whether to run the current commit of the branch instead of the same commit.',
    }),
  }),
});

const CancelJobInput = builder.inputType('CancelJobInput', {
  description: 'The job to cancel.',
  fields: (t) => ({
    namespace: t.string(NAMESPACE),
    name: t.string(NAME),
  }),
});

const ReleaseJobInput = builder.inputType('ReleaseJobInput', {
  description: 'The held job to release.',
  fields: (t) => ({
    namespace: t.string(NAMESPACE),
    name: t.string(NAME),
  }),
});

const OpenJobPortInput = builder.inputType('OpenJobPortInput', {
  description: 'The port of a running job to open.',
  fields: (t) => ({
    namespace: t.string(NAMESPACE),
    name: t.string(NAME),
    port: t.int({ required: true, description: 'The port on which a program of the job listens.' }),
  }),
});

const DeleteJobInput = builder.inputType('DeleteJobInput', {
  description: 'The job to delete.',
  fields: (t) => ({
    namespace: t.string(NAMESPACE),
    name: t.string(NAME),
    deleteArtifacts: t.boolean({
      defaultValue: false,
      description: 'Whether to delete the artifacts too. This cannot be undone.',
    }),
  }),
});

const WARNINGS =
  'What is allowed, but probably not intended, in sentences: no worker can run the job now, or none is as large as it asks for.';

const CreateJobPayload = builder
  .objectRef<{
    job: object;
    env: readonly jobs.NamedValue[];
    warnings: () => Promise<string[]>;
  }>('CreateJobPayload')
  .implement({
    description: 'The job that was created.',
    fields: (t) => ({
      job: t.field({
        type: Job,
        description: 'The job, which is queued.',
        resolve: ({ job }) => job as never,
      }),
      env: t.expose('env', {
        type: [EnvironmentVariable],
        description:
          'The environment variables of the request. Their values are never shown again.',
      }),
      warnings: t.stringList({
        description: WARNINGS,
        resolve: ({ warnings }) => warnings(),
      }),
    }),
  });

const JobCheckType = builder.objectRef<JobCheck>('JobCheck').implement({
  description: 'The result of checking a job that can be created.',
  fields: (t) => ({
    name: t.exposeString('name', {
      description:
        'The name of the request if it is free; otherwise with the next free number, such as `train-2`.',
    }),
    warnings: t.stringList({ description: WARNINGS, resolve: ({ warnings }) => warnings() }),
  }),
});

builder.queryField('checkJob', (t) =>
  t.field({
    type: JobCheckType,
    nullable: true,
    description:
      'Checks everything that `createJob` checks, including permissions, secrets, quotas and budgets, and changes nothing. Only a taken name is no error.',
    args: {
      input: t.arg({ type: CreateJobInput, ...INPUT }),
      unpushedSnapshot: t.arg.boolean({
        defaultValue: false,
        description:
          'Whether the job will run a snapshot of `repo` that is pushed after this check. The viewer must then be allowed to push.',
      }),
    },
    resolve: (_root, { input, unpushedSnapshot }, { services, viewer }) =>
      checkJob(services, viewer, input, unpushedSnapshot ?? false),
  }),
);

const RerunJobPayload = builder.objectRef<{ job: object }>('RerunJobPayload').implement({
  description: 'The job that was created.',
  fields: (t) => ({
    job: t.field({
      type: Job,
      description: 'The new job, which is queued.',
      resolve: ({ job }) => job as never,
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
        description: 'The cancelled job. Its processes may still be ending.',
        resolve: ({ job }) => job as never,
      }),
      message: t.exposeString('message', {
        description: 'A message for the user about what happens next.',
      }),
    }),
  });

const ReleaseJobPayload = builder.objectRef<{ job: object }>('ReleaseJobPayload').implement({
  description: 'The job that was released.',
  fields: (t) => ({
    job: t.field({
      type: Job,
      description: 'The job. Its sandbox ends now, then its artifacts are stored.',
      resolve: ({ job }) => job as never,
    }),
  }),
});

const OpenJobPortPayload = builder.objectRef<AppTicket>('OpenJobPortPayload').implement({
  description: 'The address of the port.',
  fields: (t) => ({
    url: t.exposeString('url', { description: 'The URL to open in a browser. It works once.' }),
    expiresAt: t.expose('expiresAt', {
      type: 'DateTime',
      description: 'When the URL expires: after 60 seconds.',
    }),
  }),
});

builder.mutationFields((t) => ({
  createJob: t.field({
    type: CreateJobPayload,
    nullable: true,
    description: 'Creates a job and queues it. It runs the commit that the branch points to now.',
    args: { input: t.arg({ type: CreateJobInput, ...INPUT }) },
    resolve: (_root, { input }, context, info) => {
      const select = selectForChild<Prisma.JobSelect>(context, info, 'job');
      return jobs.createJob(context.services, context.viewer, input, select);
    },
  }),
  rerunJob: t.field({
    type: RerunJobPayload,
    nullable: true,
    description:
      'Creates a job with the settings of another, including environment, secrets and labels, and queues it.',
    args: { input: t.arg({ type: RerunJobInput, ...INPUT }) },
    resolve: async (_root, { input }, context, info) => {
      const select = selectForChild<Prisma.JobSelect>(context, info, 'job');
      return { job: await rerunJob(context.services, context.viewer, input, select) };
    },
  }),
  cancelJob: t.field({
    type: CancelJobPayload,
    nullable: true,
    description:
      'Cancels a job at once. All its processes get SIGTERM, and SIGKILL after 30 seconds.',
    args: { input: t.arg({ type: CancelJobInput, ...INPUT }) },
    resolve: (_root, { input }, context, info) => {
      const select = selectForChild<Prisma.JobSelect>(context, info, 'job');
      return jobs.cancelJob(context.services, context.viewer, input, select);
    },
  }),
  releaseJob: t.field({
    type: ReleaseJobPayload,
    nullable: true,
    description:
      'Ends the hold of a failed job (`holdOnFailureMinutes`). The job ends as `FAILED` with the exit code of its command, after its artifacts are stored.',
    args: { input: t.arg({ type: ReleaseJobInput, ...INPUT }) },
    resolve: async (_root, { input }, context, info) => {
      const select = selectForChild<Prisma.JobSelect>(context, info, 'job');
      return { job: await jobs.releaseJob(context.services, context.viewer, input, select) };
    },
  }),
  openJobPort: t.field({
    type: OpenJobPortPayload,
    nullable: true,
    description:
      'Opens an HTTP program of a running job in the browser, on a host of its own below `LOAM_APPS_DOMAIN`. Who may open a shell in the job may. The browser is signed in there for 12 hours, as long as the credential of this request is valid.',
    args: { input: t.arg({ type: OpenJobPortInput, ...INPUT }) },
    resolve: (_root, { input }, { services, viewer }) => openJobPort(services, viewer, input),
  }),
  deleteJob: t.field({
    type: deletionPayload('DeleteJob'),
    nullable: true,
    description: 'Deletes a finished job with its log.',
    args: { input: t.arg({ type: DeleteJobInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await jobs.deleteJob(services, viewer, {
        ...input,
        deleteArtifacts: input.deleteArtifacts ?? false,
      }),
    }),
  }),
}));
