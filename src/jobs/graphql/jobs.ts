/** Jobs in GraphQL: the types, and what can be read. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { Namespace, User } from '../../identity/graphql/namespaces.ts';
import { sliceOf } from '../../platform/database/paging.ts';
import { builder } from '../../platform/schema/builder.ts';
import {
  connectionField,
  connectionType,
  numberedPageCost,
  orderArg,
  pageArgs,
  pageCost,
  pageType,
  sliceArgs,
  toConnection,
} from '../../platform/schema/paging.ts';
import { selectAt, selectHere, selectOf } from '../../platform/schema/select.ts';
import { Repository } from '../../repositories/graphql/repositories.ts';
import { type AccessRow, accessColumns, isVisible } from '../../repositories/repositories.ts';
import { analyticsOf } from '../analytics.ts';
import * as downloads from '../artifacts/downloads.ts';
import * as jobs from '../jobs.ts';
import * as lists from '../lists.ts';
import { readLog } from '../logs/read.ts';
import { positionColumns, type QueuePosition } from '../queue-position.ts';
import { repositoryColumns, repositoryNameOf } from '../repository-name.ts';
import * as runtime from '../runtime.ts';
import { MAX_POINTS, usageSamples } from '../usage-history.ts';
import { AttemptConnection } from './attempts.ts';
import { Gpu, JobSort, JobStatus, Region } from './enums.ts';
import { JobFilter, JobLabel } from './filters.ts';
import { JobLogs } from './logs.ts';
import { JobAnalytics, JobArtifacts, JobUsageSample } from './outputs.ts';

export const Job = builder.prismaNode('Job', {
  description: 'A command that runs to completion on chosen hardware.',
  id: { field: 'id' },
  select: { id: true },
  nullable: true,
  // One that the viewer may not see is null, like one that does not exist.
  findUnique: (id, { viewer }) => ({ id, AND: [jobs.visibleTo(viewer)] }),
  fields: (t) => ({
    name: t.exposeString('name', { description: 'Unique in its namespace.' }),
    namespace: t.string({
      description: "The owner's name.",
      select: { namespace: { select: { name: true } } },
      resolve: ({ namespace }) => namespace.name,
    }),
    owner: t.relation('namespace', { description: 'The user or organization it belongs to.' }),
    status: t.expose('status', { type: JobStatus, description: 'The status.' }),
    command: t.exposeString('command', { description: 'The command, which a shell runs.' }),
    repo: t.string({
      nullable: true,
      description:
        'The present `namespace/name` of its repository; the one at creation when the repository was deleted, or the viewer may not see it. Null without a repository.',
      select: repositoryColumns,
      resolve: (job, _args, { viewer }) => repositoryNameOf(viewer, job),
    }),
    repository: t.field({
      type: Repository,
      nullable: true,
      description:
        'The repository of `repo`; null when it was deleted, or the viewer may not see it.',
      // Read with the job, and hidden here from who may not see it.
      select: (_args, _context, nested) => ({ repository: nested({ select: accessColumns }) }),
      resolve: ({ repository }, _args, { viewer }) =>
        repository && isVisible(viewer, repository as unknown as AccessRow)
          ? (repository as never)
          : null,
    }),
    branch: t.exposeString('branch', {
      nullable: true,
      description: 'The branch that was checked out; null without a `repo`.',
    }),
    commitSha: t.exposeString('commitSha', {
      nullable: true,
      description: 'The commit that runs: the tip of the branch when the job was created.',
    }),
    image: t.exposeString('image', {
      nullable: true,
      description: 'The container image that it runs in; null when none was given.',
    }),
    gpu: t.field({
      type: Gpu,
      description: 'The model of its GPUs.',
      select: { gpu: true },
      resolve: ({ gpu }) => gpu as never,
    }),
    gpuCount: t.exposeInt('gpuCount', {
      description: 'The number of GPUs; without a meaning when `gpu` is `NONE`.',
    }),
    cpu: t.exposeInt('cpu', { description: 'The number of vCPUs.' }),
    memoryGb: t.exposeInt('memoryGb', { description: 'Memory in GB.' }),
    diskGb: t.exposeInt('diskGb', {
      description: 'Disk in GB, which is removed when the job ends.',
    }),
    region: t.field({
      type: Region,
      description: 'The region that it runs in.',
      select: { region: true },
      resolve: ({ region }) => region as never,
    }),
    timeoutMinutes: t.exposeInt('timeoutMinutes', {
      description: 'After how many minutes an attempt is stopped.',
    }),
    retries: t.exposeInt('retries', { description: 'How many times it is retried when it fails.' }),
    retryCount: t.exposeInt('retryCount', { description: 'How many retries it has used.' }),
    outputPath: t.exposeString('outputPath', {
      nullable: true,
      description: 'The path whose contents are kept as artifacts.',
    }),
    exitCode: t.exposeInt('exitCode', {
      nullable: true,
      description:
        'The exit code of its last process, 128 + the signal if one ended it; null until the job is over.',
    }),
    costPerHour: t.expose('costPerHour', {
      type: 'Decimal',
      description: 'The price of an hour of running.',
    }),
    totalCost: t.field({
      type: 'Decimal',
      description: 'The price of the time that all attempts have run until now.',
      select: { ...runtime.runtimeColumns, costPerHour: true },
      resolve: (job) => runtime.totalCostOf(job),
    }),
    runtimeSeconds: t.int({
      description: 'How long all attempts have run until now.',
      select: runtime.runtimeColumns,
      resolve: (job) => runtime.runtimeOf(job),
    }),
    progress: t.string({
      description:
        'What the program last printed as `::progress::text`, else the phase in words; of a job that waits, what for, its place in line, and about how long.',
      select: positionColumns,
      resolve: (job, _args, { services }) => services.places.progressOf(job),
    }),
    queue: t.field({
      type: JobQueue,
      nullable: true,
      description: 'Where it stands while it waits; null when it does not.',
      select: positionColumns,
      resolve: (job, _args, { services }) => services.places.of(job),
    }),
    artifacts: t.field({
      type: JobArtifacts,
      nullable: true,
      description: 'What it left at `outputPath`; null until there is anything.',
      select: downloads.artifactColumns,
      resolve: (job, _args, { services }) => downloads.artifactsOfJob(services, job),
    }),
    labels: t.field({
      type: [JobLabel],
      description: 'Its labels, by key.',
      select: { labels: { select: { key: true, value: true }, orderBy: { key: 'asc' } } },
      resolve: ({ labels }) => labels,
    }),
    environmentNames: t.stringList({
      description:
        'The names of the variables in `env`, in their order. Their values are not shown.',
      select: { env: true },
      resolve: ({ env }) => Object.keys(env as object),
    }),
    secretNames: t.stringList({
      description:
        'The names of the variables in `secrets`, in their order. Their values are not shown.',
      select: { id: true, secrets: true },
      resolve: ({ id, secrets }, _args, { services }) =>
        secrets === null ? [] : Object.keys(services.secretBox.open(id, secrets)),
    }),
    rerunOf: t.prismaField({
      type: 'Job',
      nullable: true,
      description: 'The job that it repeats; null when it repeats none, or that one was deleted.',
      select: { rerunOfId: true },
      resolve: (query, { rerunOfId }, _args, { services, viewer }) =>
        rerunOfId === null
          ? null
          : (jobs.findJob(services, viewer, rerunOfId, selectOf<Prisma.JobSelect>(query)) as never),
    }),
    createdBy: t.relation('createdBy', {
      nullable: true,
      description: 'The user who created it; null when that account is gone.',
    }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was created.' }),
    startedAt: t.expose('startedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When the first attempt started; null before.',
    }),
    completedAt: t.expose('completedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When it ended for good, with no retry to come; null before.',
    }),
    logs: t.field({
      type: JobLogs,
      nullable: true,
      description: 'The last lines of its log. One answer holds 16 MiB of lines at most.',
      complexity: ({ tail }) => ({ field: 5, multiplier: Math.max(1, tail ?? 100) }),
      args: {
        tail: t.arg.int({
          defaultValue: 100,
          description: 'How many of the newest lines; up to 10000.',
        }),
        since: t.arg({
          type: 'DateTime',
          description: 'Only lines that were written after this time.',
        }),
      },
      select: { name: true, namespace: { select: { name: true } } },
      resolve: async ({ id, name, namespace }, args, { services, allowance }, info) => ({
        name,
        namespace: namespace.name,
        ...(await readLog(services, id, args, allowance(info))),
      }),
    }),
    analytics: t.field({
      type: JobAnalytics,
      description: 'How much of its hardware it uses.',
      select: {
        ...runtime.runtimeColumns,
        usage: true,
        name: true,
        namespace: { select: { name: true } },
      },
      resolve: (job) => ({
        name: job.name,
        namespace: job.namespace.name,
        ...analyticsOf(job),
        runtimeSeconds: runtime.runtimeOf(job),
      }),
    }),
    usageSamples: t.field({
      type: [JobUsageSample],
      nullable: true,
      description:
        'What an attempt used over its time, oldest first, for charts: 480 samples at most. Of a long attempt each stands for more time.',
      complexity: { field: 5, multiplier: MAX_POINTS },
      args: {
        attempt: t.arg.int({ description: 'The number of the attempt; left out: the last one.' }),
        since: t.arg({ type: 'DateTime', description: 'Only samples after this time.' }),
      },
      resolve: ({ id }, args, { services }) => usageSamples(services, id, args),
    }),
    attempts: t.field({
      type: AttemptConnection,
      description: 'The attempts to run it, in the order in which they began.',
      complexity: pageCost(),
      args: sliceArgs,
      // Few, for retries and losses are bounded; so they are read with the job, in one query for many jobs.
      select: { attempts: { select: jobs.attemptColumns, orderBy: { number: 'asc' } } },
      resolve: ({ attempts }, args) =>
        toConnection(
          sliceOf(attempts, args, ({ number }) => String(number)),
          args,
        ),
    }),
  }),
});

const JobPage = pageType<{ id: string }>('JobPage', Job);

const listArgs = builder.args((t) => ({
  sort: t.field({
    type: JobSort,
    defaultValue: 'created_at',
    required: true,
    description: 'What the jobs are sorted by.',
  }),
  order: t.field(orderArg),
  status: t.field({ type: JobStatus, description: 'Only jobs of this status; left out: of any.' }),
}));

builder.queryFields((t) => ({
  job: t.field({
    type: Job,
    nullable: true,
    description:
      'A job by its name. Who is no member of the namespace gets an error, whether it exists or not.',
    args: {
      namespace: t.arg.string({ required: true, description: 'The name of its owner.' }),
      name: t.arg.string({ required: true, description: 'The name of the job.' }),
    },
    resolve: (_root, args, context, info) => {
      const select = selectHere<Prisma.JobSelect>(context, info);
      return jobs.getJob(context.services, context.viewer, args, select) as never;
    },
  }),
  jobPage: t.field({
    type: JobPage,
    nullable: true,
    description:
      'The jobs of a namespace by number: only for REST. In GraphQL ask for `namespace { jobs }`.',
    complexity: numberedPageCost(),
    args: {
      namespace: t.arg.string({ required: true, description: 'The name of the owner.' }),
      ...pageArgs,
      ...listArgs,
    },
    resolve: (_root, args, context, info) => {
      const select = selectAt<Prisma.JobSelect>(context, info, 'nodes');
      return lists.listJobs(context.services, context.viewer, args, select);
    },
  }),
}));

const JobConnection = connectionType('Job', Job);

const sliceListArgs = builder.args((t) => ({
  ...sliceArgs,
  ...listArgs,
  filter: t.field({ type: JobFilter, description: 'Only jobs that have all of this.' }),
}));

builder.prismaObjectField(Namespace, 'jobs', (t) =>
  t.field(
    connectionField({
      type: JobConnection,
      description: 'The jobs that the viewer may see.',
      args: sliceListArgs,
      slice: ({ services, viewer }, id, args: lists.SliceInput, select: Prisma.JobSelect) =>
        lists.sliceJobs(services, viewer, [id], args, select),
    }),
  ),
);

builder.prismaObjectField(User, 'jobs', (t) =>
  t.field(
    connectionField({
      type: JobConnection,
      description:
        'The jobs of all namespaces that the user is a member of, of the own one too. Only the user sees them.',
      args: sliceListArgs,
      slice: ({ services, viewer }, id, args: lists.SliceInput, select: Prisma.JobSelect) =>
        lists.sliceJobsOfUser(services, viewer, id, args, select),
    }),
  ),
);

/** Where a job that waits stands, in GraphQL. */
const JobQueue = builder.objectRef<QueuePosition>('JobQueue').implement({
  description: 'Where a job that waits stands, as it was at most two seconds ago.',
  fields: (t) => ({
    waitsFor: t.exposeString('waitsFor', {
      description: 'What it waits for, as `8 vCPUs and 32 GB` or `a T4 in us-east-1`.',
    }),
    offered: t.boolean({
      description: 'Whether any worker has it, so that it starts when its turn comes.',
      resolve: ({ missing }) => missing === null,
    }),
    position: t.exposeInt('position', {
      nullable: true,
      description:
        'Its place in line, from 1, as if no job ended meanwhile; null behind a thousand of its namespace.',
    }),
    estimatedStart: t.expose('estimatedStart', {
      type: 'DateTime',
      nullable: true,
      description:
        'When it is likely to start, at the current rate; null when no running job allows an estimate.',
    }),
  }),
});
