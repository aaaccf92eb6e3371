/** GraphQL types and queries of jobs. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { Namespace, User } from '../../identity/graphql/namespaces.ts';
import { paginateList } from '../../platform/database/paging.ts';
import { takeAllBytes } from '../../platform/limits/reads.ts';
import { builder } from '../../platform/schema/builder.ts';
import {
  connectionField,
  cursorPageArgs,
  defineConnectionType,
  definePageType,
  numberedPageCost,
  offsetPageArgs,
  orderArg,
  pageCost,
  toConnection,
} from '../../platform/schema/paging.ts';
import { selectForChild, selectForField, selectOf } from '../../platform/schema/select.ts';
import { Repository } from '../../repositories/graphql/repositories.ts';
import { type AccessRow, accessColumns, isVisible } from '../../repositories/repositories.ts';
import * as downloads from '../artifacts/downloads.ts';
import { readCaches } from '../caches/request.ts';
import { readCacheUse } from '../caches/use.ts';
import { MAX_POINTS, readUsagePoints } from '../costs/usage-history.ts';
import { toAnalytics } from '../costs/usage-sampling.ts';
import { readLogTail } from '../logs/read.ts';
import { readCheckResults, readChecks } from '../metrics/checks.ts';
import { measureOutputs, readStoredOutputs } from '../outputs/outputs.ts';
import {
  positionColumns,
  type QueuePosition,
  type QueuePositions,
  type SoonerStart,
} from '../queue/queue-position.ts';
import { readJobCredentials } from '../record/job-credentials.ts';
import { readMatrixValues } from '../record/matrix-values.ts';
import { repositoryColumns, visibleRepositoryName } from '../record/repository-name.ts';
import * as runtime from '../record/runtime.ts';
import { getArray } from '../requests/arrays.ts';
import { foldInputs, readInputs } from '../requests/inputs.ts';
import * as jobs from '../requests/jobs.ts';
import * as lists from '../requests/lists.ts';
import { readRepositoryInputs } from '../requests/repository-inputs.ts';
import { canOpenShell, shellColumns } from '../shells/access.ts';
import { readVolumes } from '../volumes/volumes.ts';
import { AttemptConnection } from './attempts.ts';
import { JobCacheRef } from './caches.ts';
import { MetricCheckRef } from './checks.ts';
import {
  foldNeeds,
  JobArray,
  JobConcurrency,
  JobMatrixValue,
  JobNeed,
  orderNeeds,
} from './dependencies.ts';
import { Gpu, JobSort, JobStatus, Region, ShellAccess } from './enums.ts';
import { JobFilter, JobLabel } from './filters.ts';
import { JobInputArtifacts, JobInputRepository } from './inputs.ts';
import { IdToken, JobPermissions } from './job-credentials.ts';
import { JobLogs } from './logs.ts';
import { JobAnalytics, JobArtifacts, JobCheckpoint, JobOutput, JobUsageSample } from './outputs.ts';
import { JobVolumeMount } from './volumes.ts';

export const Job = builder.prismaNode('Job', {
  description: 'A command that runs to completion on chosen hardware.',
  id: { field: 'id' },
  select: { id: true },
  nullable: true,
  // A job that the viewer may not see is null, like a job that does not exist.
  findUnique: (id, { viewer }) => ({ id, AND: [jobs.visibleTo(viewer)] }),
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The name, which is unique in the namespace.' }),
    namespace: t.string({
      description: 'The name of the owner.',
      select: { namespace: { select: { name: true } } },
      resolve: ({ namespace }) => namespace.name,
    }),
    owner: t.relation('namespace', { description: 'The user or organization that owns the job.' }),
    status: t.expose('status', { type: JobStatus, description: 'The status.' }),
    command: t.exposeString('command', { description: 'The command, which is run by a shell.' }),
    repo: t.string({
      nullable: true,
      description:
        'The current `namespace/name` of the repository. If it was deleted or the viewer may not see it, the name when the job was created. Null without a repository.',
      select: repositoryColumns,
      resolve: (job, _args, { viewer }) => visibleRepositoryName(viewer, job),
    }),
    repository: t.field({
      type: Repository,
      nullable: true,
      description: 'The repository of `repo`; null if it was deleted or the viewer may not see it.',
      // The repository is read with the job, and hidden here from viewers who may not see it.
      select: (_args, _context, nested) => ({ repository: nested({ select: accessColumns }) }),
      resolve: ({ repository }, _args, { viewer }) =>
        repository && isVisible(viewer, repository as unknown as AccessRow)
          ? (repository as never)
          : null,
    }),
    branch: t.exposeString('branch', {
      nullable: true,
      description: 'The branch that was checked out; null without a `repo`, and for a snapshot.',
    }),
    commitSha: t.exposeString('commitSha', {
      nullable: true,
      description:
        'The commit that runs: the tip of the branch when the job was created, or the snapshot.',
    }),
    snapshot: t.string({
      nullable: true,
      select: { snapshotId: true },
      resolve: ({ snapshotId }) => snapshotId,
      description:
        'The id of the snapshot that runs: a working directory that was pushed without a branch. Null for a branch.',
    }),
    image: t.exposeString('image', {
      nullable: true,
      description: 'The container image in which the job runs; null if none was given.',
    }),
    gpu: t.field({
      type: Gpu,
      description: 'The GPU model.',
      select: { gpu: true },
      resolve: ({ gpu }) => gpu,
    }),
    gpuCount: t.exposeInt('gpuCount', {
      description: 'The number of GPUs; meaningless if `gpu` is `NONE`.',
    }),
    cpu: t.exposeInt('cpu', { description: 'The number of vCPUs.' }),
    memoryGb: t.exposeInt('memoryGb', { description: 'Memory in GB.' }),
    diskGb: t.exposeInt('diskGb', {
      description: 'Disk in GB. Its contents are deleted when the job ends.',
    }),
    region: t.field({
      type: Region,
      description: 'The region in which the job runs.',
      select: { region: true },
      resolve: ({ region }) => region,
    }),
    timeoutMinutes: t.exposeInt('timeoutMinutes', {
      description: 'The timeout of an attempt in minutes.',
    }),
    maxCost: t.expose('maxCost', {
      type: 'Decimal',
      nullable: true,
      description: 'The cost of all attempts at which the job is cancelled; null without a limit.',
    }),
    idleTimeoutMinutes: t.exposeInt('idleTimeoutMinutes', {
      nullable: true,
      description: 'The job is cancelled when its GPUs were idle for so long; null: never.',
    }),
    holdOnFailureMinutes: t.exposeInt('holdOnFailureMinutes', {
      description:
        'How many minutes the sandbox stays when the command of the last attempt fails; 0: it does not.',
    }),
    hold: t.field({
      type: JobHold,
      nullable: true,
      description: 'How the sandbox is or was held after a failure; null if it was not.',
      select: { heldAt: true, heldUntil: true, heldExitCode: true, status: true },
      resolve: ({ heldAt, heldUntil, heldExitCode, status }) =>
        heldAt && heldUntil && { heldAt, heldUntil, exitCode: heldExitCode ?? 0, status },
    }),
    shellAccess: t.expose('shellAccess', {
      type: ShellAccess,
      description: 'Whether shells can be opened in the job, as it was created.',
    }),
    canOpenShell: t.boolean({
      description: 'Whether you may open a shell in the job, and it runs.',
      complexity: 5,
      select: shellColumns,
      resolve: (job, _args, { services, viewer }) => canOpenShell(services, viewer, job),
    }),
    hasPortUrls: t.boolean({
      description: 'Whether this server opens ports of jobs in browsers (`openJobPort`).',
      resolve: (_job, _args, { services: { config } }) => config.appsDomain !== undefined,
    }),
    sshUrl: t.string({
      nullable: true,
      description:
        'The URL for shells in the job over SSH, with `namespace/name` as the user; null if this server has no SSH.',
      select: { name: true, namespace: { select: { name: true } } },
      resolve: ({ name, namespace }, _args, { services: { config, urls } }) => {
        if (config.ssh === 'off') return null;
        const url = new URL(urls.ssh);
        url.username = `${namespace.name}/${name}`;
        return url.href;
      },
    }),
    retries: t.exposeInt('retries', {
      description: 'How many times the job is retried when it fails.',
    }),
    retryCount: t.exposeInt('retryCount', { description: 'The number of retries used so far.' }),
    outputPath: t.exposeString('outputPath', {
      nullable: true,
      description: 'Files under this path are kept as artifacts.',
    }),
    inputs: t.field({
      type: [JobInputArtifacts],
      description: 'Artifacts of other jobs that are copied into the working directory.',
      select: { inputs: true },
      resolve: (job) => foldInputs(readInputs(job)),
    }),
    repositoryInputs: t.field({
      type: [JobInputRepository],
      description: 'Files of repositories that are copied into the working directory.',
      select: { repositoryInputs: true },
      resolve: (job) => readRepositoryInputs(job),
    }),
    volumes: t.field({
      type: [JobVolumeMount],
      description: 'The volumes that it mounts.',
      select: { volumes: true },
      resolve: (job) => readVolumes(job),
    }),
    caches: t.field({
      type: [JobCacheRef],
      description: 'The caches that it names, and what its last attempt restored and saved.',
      select: { cache: true, cacheUse: true },
      resolve: (job) => {
        const uses = readCacheUse(job);
        return readCaches(job).map((cache) => ({
          ...cache,
          use: uses.find(({ path }) => path === cache.path),
        }));
      },
    }),
    checkpointPath: t.exposeString('checkpointPath', {
      nullable: true,
      description: 'The folder in the working directory whose content the next attempt gets.',
    }),
    checkpointMinutes: t.exposeInt('checkpointMinutes', {
      nullable: true,
      description:
        'How often the folder is stored while the job runs; 0: only at the end of attempts. Null without a folder.',
    }),
    checkpoint: t.field({
      type: JobCheckpoint,
      nullable: true,
      description: 'The checkpoint that the next attempt gets; null if there is none.',
      select: { checkpoints: { where: { isCurrent: true }, take: 1 } },
      resolve: ({ checkpoints }) => checkpoints[0] ?? null,
    }),
    checks: t.field({
      type: [MetricCheckRef],
      description:
        'What its metrics must meet for it to succeed, and the results. The job fails with exit code 125 if its command succeeds and a check does not pass.',
      select: { checks: true, checkResults: true },
      resolve: (job) => {
        const results = readCheckResults(job);
        return readChecks(job).map((check, index) => ({ ...check, result: results[index] }));
      },
    }),
    outputs: t.field({
      type: [JobOutput],
      description:
        'What its last attempt wrote to the file `$JOB_OUTPUTS`: variables of the jobs that need it.',
      select: { outputs: true },
      resolve: async (job, _args, { allowance }, info) => {
        const outputs = readStoredOutputs(job);
        await takeAllBytes(allowance(info), measureOutputs(outputs));
        return outputs;
      },
    }),
    exitCode: t.exposeInt('exitCode', {
      nullable: true,
      description:
        'The exit code of the last process, or 128 + the number of the signal that ended it; null until the job has ended.',
    }),
    costPerHour: t.expose('costPerHour', {
      type: 'Decimal',
      description: 'The price per hour.',
    }),
    totalCost: t.field({
      type: 'Decimal',
      description: 'The cost of the runtime of all attempts so far.',
      select: { ...runtime.runtimeColumns, costPerHour: true },
      resolve: (job) => runtime.computeTotalCost(job),
    }),
    runtimeSeconds: t.int({
      description: 'The runtime of all attempts so far.',
      select: runtime.runtimeColumns,
      resolve: (job) => runtime.computeRuntimeSeconds(job),
    }),
    progress: t.string({
      description:
        'The last text that the program printed as `::progress::text`, otherwise the current phase. For a waiting job: what it waits for, its queue position, and an estimate of the wait.',
      select: positionColumns,
      resolve: (job, _args, { services }) => services.queuePositions.progressOf(job),
    }),
    queue: t.field({
      type: JobQueue,
      nullable: true,
      description: 'The queue position; null if the job does not wait.',
      select: positionColumns,
      resolve: async (job, _args, { services }) => {
        const position = await services.queuePositions.findPosition(job);
        return position && { ...position, job };
      },
    }),
    artifacts: t.field({
      type: JobArtifacts,
      nullable: true,
      description: 'The files that the job left at `outputPath`; null until they are stored.',
      select: downloads.artifactColumns,
      resolve: (job, _args, { services }) => downloads.findArtifacts(services, job),
    }),
    labels: t.field({
      type: [JobLabel],
      description: 'The labels, sorted by key.',
      select: { labels: { select: { key: true, value: true }, orderBy: { key: 'asc' } } },
      resolve: ({ labels }) => labels,
    }),
    blocked: t.boolean({
      description:
        'Whether the job waits for other jobs, and is not in the queue. `progress` says for which.',
      select: { blocked: true, status: true },
      resolve: ({ blocked, status }) => blocked && status === 'queued',
    }),
    needs: t.field({
      type: [JobNeed],
      description: 'The jobs that must have ended before this job starts.',
      select: { outputsOf: true, needs: { orderBy: { neededId: 'asc' } } },
      resolve: ({ outputsOf, needs }) => foldNeeds(orderNeeds(outputsOf, needs)),
    }),
    array: t.field({
      type: JobArray,
      nullable: true,
      description: 'The array of which the job is a part; null for other jobs.',
      select: { array: true },
      resolve: ({ array }) => array,
    }),
    arrayIndex: t.exposeInt('arrayIndex', {
      nullable: true,
      description:
        'The `JOB_ARRAY_INDEX` of the job, from 0, also of a rerun; null for jobs without an array.',
    }),
    matrixValues: t.field({
      type: [JobMatrixValue],
      description:
        'The values of its combination of a `matrix`, in the order of the file; empty for other jobs.',
      select: { matrixValues: true },
      resolve: (job) => readMatrixValues(job),
    }),
    concurrency: t.field({
      type: JobConcurrency,
      nullable: true,
      description: 'The group of which one job runs at a time; null without a group.',
      select: { concurrencyGroup: true, onConflict: true },
      resolve: ({ concurrencyGroup: group, onConflict }) =>
        group === null ? null : { group, onConflict },
    }),
    environmentNames: t.stringList({
      description: 'The names of the variables in `env`, in the given order. Values are not shown.',
      select: { env: true },
      resolve: ({ env }) => Object.keys(env as object),
    }),
    secretNames: t.stringList({
      description:
        'The names of the variables in `secrets`, in the given order. Values are not shown.',
      select: { id: true, secrets: true },
      resolve: ({ id, secrets }, _args, { services }) =>
        secrets === null ? [] : Object.keys(services.secretBox.open(id, secrets)),
    }),
    storedSecretNames: t.stringList({
      select: { secretNames: true },
      resolve: ({ secretNames }) => secretNames,
      description:
        'The names of the secrets of the repository or namespace that each attempt gets: `secretNames` of `createJob`.',
    }),
    storedVariableNames: t.stringList({
      select: { variableNames: true },
      resolve: ({ variableNames }) => variableNames,
      description:
        'The names of the variables of the repository or namespace that each attempt gets: `variableNames` of `createJob`.',
    }),
    idTokens: t.field({
      type: [IdToken],
      description: 'The identity tokens that the job gets, without their values.',
      select: { identity: true },
      resolve: (job) => [...(readJobCredentials(job).idTokens ?? [])],
    }),
    permissions: t.field({
      type: JobPermissions,
      nullable: true,
      description: 'What the job may do in Loam with its own token; null: it has none.',
      select: { identity: true },
      resolve: (job) => readJobCredentials(job).permissions ?? null,
    }),
    rerunOf: t.prismaField({
      type: 'Job',
      nullable: true,
      description:
        'The original job of this rerun; null if this job is not a rerun, or the original job was deleted.',
      select: { rerunOfId: true },
      resolve: (query, { rerunOfId }, _args, { services, viewer }) =>
        rerunOfId === null
          ? null
          : (jobs.findJob(services, viewer, rerunOfId, selectOf<Prisma.JobSelect>(query)) as never),
    }),
    createdBy: t.relation('createdBy', {
      nullable: true,
      description: 'The user who created the job; null if the account was deleted.',
    }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was created.' }),
    startedAt: t.expose('startedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When the first attempt started; null until then.',
    }),
    completedAt: t.expose('completedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When the job reached a final status; null until then.',
    }),
    logs: t.field({
      type: JobLogs,
      nullable: true,
      description: 'The last lines of the log. A response contains at most 16 MiB of lines.',
      complexity: ({ tail }) => ({ field: 5, multiplier: Math.max(1, tail ?? 100) }),
      args: {
        tail: t.arg.int({
          defaultValue: 100,
          description:
            'The number of lines to return, counted from the end of the log: 1 to 10000.',
        }),
        since: t.arg({
          type: 'DateTime',
          description: 'Only lines written after this time.',
        }),
      },
      select: { name: true, namespace: { select: { name: true } } },
      resolve: async ({ id, name, namespace }, args, { services, allowance }, info) => ({
        name,
        namespace: namespace.name,
        ...(await readLogTail(services, id, args, allowance(info))),
      }),
    }),
    analytics: t.field({
      type: JobAnalytics,
      description: 'The resource usage.',
      select: {
        ...runtime.runtimeColumns,
        usage: true,
        name: true,
        namespace: { select: { name: true } },
      },
      resolve: (job) => ({
        name: job.name,
        namespace: job.namespace.name,
        ...toAnalytics(job),
        runtimeSeconds: runtime.computeRuntimeSeconds(job),
      }),
    }),
    usageSamples: t.field({
      type: [JobUsageSample],
      nullable: true,
      description:
        'The resource usage of an attempt over time, oldest first, for charts: at most 480 samples. In a long attempt each sample covers more time.',
      complexity: { field: 5, multiplier: MAX_POINTS },
      args: {
        attempt: t.arg.int({ description: 'The number of the attempt. By default the last one.' }),
        since: t.arg({ type: 'DateTime', description: 'Only samples after this time.' }),
      },
      select: { id: true },
      resolve: ({ id }, args, { services }) => readUsagePoints(services, id, args),
    }),
    attempts: t.field({
      type: AttemptConnection,
      description: 'The attempts to run the job, in order of their creation.',
      complexity: pageCost(),
      args: cursorPageArgs,
      // The numbers of retries and losses are bounded, so all attempts are read with the job, in one query.
      select: { attempts: { select: jobs.attemptColumns, orderBy: { number: 'asc' } } },
      resolve: ({ attempts }, args) =>
        toConnection(
          paginateList(attempts, args, ({ number }) => String(number)),
          args,
        ),
    }),
  }),
});

const JobPage = definePageType<{ id: string }>('JobPage', Job);

const listArgs = builder.args((t) => ({
  sort: t.field({
    type: JobSort,
    defaultValue: 'created_at',
    required: true,
    description: 'The sort key.',
  }),
  order: t.field(orderArg),
  status: t.field({
    type: JobStatus,
    description: 'Only jobs with this status. By default any status.',
  }),
}));

builder.queryFields((t) => ({
  job: t.field({
    type: Job,
    nullable: true,
    description:
      'A job by its name. A viewer who is not a member of the namespace gets an error, whether the job exists or not.',
    args: {
      namespace: t.arg.string({ required: true, description: 'The name of the owner.' }),
      name: t.arg.string({ required: true, description: 'The name of the job.' }),
    },
    resolve: (_root, args, context, info) => {
      const select = selectForField<Prisma.JobSelect>(context, info);
      return jobs.getJob(context.services, context.viewer, args, select) as never;
    },
  }),
  jobArray: t.field({
    type: JobArray,
    nullable: true,
    description: 'An array by its name; of several with the same name, the newest one.',
    args: {
      namespace: t.arg.string({ required: true, description: 'The name of the owner.' }),
      name: t.arg.string({ required: true, description: 'The name of the array.' }),
    },
    resolve: (_root, args, { services, viewer }) => getArray(services, viewer, args),
  }),
  jobPage: t.field({
    type: JobPage,
    nullable: true,
    description:
      'The jobs of a namespace by page number, only for REST. In GraphQL use `namespace { jobs }`.',
    complexity: numberedPageCost(),
    args: {
      namespace: t.arg.string({ required: true, description: 'The name of the owner.' }),
      ...offsetPageArgs,
      ...listArgs,
    },
    resolve: (_root, args, context, info) => {
      const select = selectForChild<Prisma.JobSelect>(context, info, 'nodes');
      return lists.listJobsByPage(context.services, context.viewer, args, select);
    },
  }),
}));

const JobConnection = defineConnectionType('Job', Job);

const sliceListArgs = builder.args((t) => ({
  ...cursorPageArgs,
  ...listArgs,
  filter: t.field({ type: JobFilter, description: 'Only jobs that meet all of these conditions.' }),
  foldArrays: t.boolean({
    defaultValue: false,
    description:
      'Whether to list one job of each array: the first one that has a wanted status. Its `array` has the counts of the others. The other conditions must hold for this job. With a `namePrefix` that is longer than the name of the array and `-`, its jobs are listed one by one.',
  }),
}));

builder.prismaObjectField(Namespace, 'jobs', (t) =>
  t.field(
    connectionField({
      type: JobConnection,
      description: 'The jobs that the viewer may see.',
      args: sliceListArgs,
      slice: ({ services, viewer }, id, args: lists.CursorListInput, select: Prisma.JobSelect) =>
        lists.listJobsByCursor(services, viewer, [id], args, select),
    }),
  ),
);

builder.prismaObjectField(User, 'jobs', (t) =>
  t.field(
    connectionField({
      type: JobConnection,
      description:
        "The jobs in all namespaces of which the user is a member, including the user's own. Visible only to the user.",
      args: sliceListArgs,
      slice: ({ services, viewer }, id, args: lists.CursorListInput, select: Prisma.JobSelect) =>
        lists.listJobsOfUserByCursor(services, viewer, id, args, select),
    }),
  ),
);

const SoonerStartType = builder.objectRef<SoonerStart>('SoonerStart').implement({
  description: 'Hardware on which a waiting job would start earlier.',
  fields: (t) => ({
    gpu: t.expose('gpu', { type: Gpu, description: 'The GPU model, or `NONE`.' }),
    region: t.expose('region', { type: Region, description: 'The region.' }),
    estimatedStart: t.expose('estimatedStart', {
      type: 'DateTime',
      description: 'The estimated start of a job that is created there now.',
    }),
    costPerHour: t.expose('costPerHour', {
      type: 'Decimal',
      description: 'The price per hour of the job with this hardware.',
    }),
  }),
});

type Hold = {
  heldAt: Date;
  heldUntil: Date;
  exitCode: number;
  status: (typeof JobStatus)['$inferType'];
};

const JobHold = builder.objectRef<Hold>('JobHold').implement({
  description: 'The sandbox of a failed job that stays for a while, so that one can look into it.',
  fields: (t) => ({
    isActive: t.boolean({
      description: 'Whether the sandbox is held now.',
      resolve: ({ heldUntil, status }) => status === 'running' && heldUntil > new Date(),
    }),
    exitCode: t.exposeInt('exitCode', {
      description: 'The exit code of the command, with which the job ends.',
    }),
    since: t.expose('heldAt', {
      type: 'DateTime',
      description: 'When the command failed.',
    }),
    until: t.expose('heldUntil', {
      type: 'DateTime',
      description: 'When the hold ends, or has ended.',
    }),
    seconds: t.int({
      description: 'How long the sandbox has been held. `runtimeSeconds` includes this time.',
      resolve: ({ heldAt, heldUntil }) => {
        const end = Math.min(heldUntil.getTime(), Date.now());
        return runtime.secondsBetween(heldAt, new Date(end));
      },
    }),
  }),
});

type QueuedJob = Parameters<QueuePositions['findSooner']>[0];

const JobQueue = builder.objectRef<QueuePosition & { job: QueuedJob }>('JobQueue').implement({
  description: 'The queue position of a waiting job. It may be two seconds old.',
  fields: (t) => ({
    waitsFor: t.exposeString('waitsFor', {
      description: 'What the job waits for, such as `8 vCPUs and 32 GB` or `a T4 in us-east-1`.',
    }),
    offered: t.boolean({
      description: 'Whether any worker has the requested resources, so that the job can start.',
      resolve: ({ missing }) => missing === null,
    }),
    position: t.exposeInt('position', {
      nullable: true,
      description:
        'The position in the queue, from 1, assuming that no running job ends; null behind a thousand jobs of the namespace.',
    }),
    estimatedStart: t.expose('estimatedStart', {
      type: 'DateTime',
      nullable: true,
      description:
        'The estimated start at the current rate; null if no running job allows an estimate.',
    }),
    sooner: t.field({
      type: [SoonerStartType],
      description:
        'Other GPU models and regions with which the job would start at least a minute earlier, the earliest first, at most three.',
      resolve: ({ job }, _args, { services }) => services.queuePositions.findSooner(job),
    }),
  }),
});
