/** Jobs in GraphQL: the types, and what can be read. */
import { queryFromInfo } from '@pothos/plugin-prisma';
import { Namespace } from '../auth/graphql.ts';
import { builder, SortOrder } from '../graphql/builder.ts';
import { pageArgs, pageType } from '../graphql/paging.ts';
import { Repository } from '../repos/graphql.ts';
import { visibleTo } from '../repos/visibility.ts';
import type { ArtifactFile } from './downloads.ts';
import * as downloads from './downloads.ts';
import { GPUS, REGIONS } from './hardware.ts';
import * as jobs from './jobs.ts';
import { type Entry, readLog } from './logs.ts';
import { analyticsOf } from './usage.ts';

const upper = (value: string) => value.toUpperCase().replaceAll('-', '_');

function enumOf<const T extends string>(name: string, values: readonly T[], description: string) {
  const entries = values.map((value) => [upper(value), { value }] as const);
  return builder.enumType(name, {
    description,
    values: Object.fromEntries(entries) as { [name: string]: { value: T } },
  });
}

export const JobStatus = enumOf(
  'JobStatus',
  ['queued', 'running', 'succeeded', 'failed', 'cancelled', 'timed_out'],
  'Where a job stands; the last four are final.',
);
export const Gpu = enumOf('Gpu', GPUS, 'A model of GPU.');
export const Region = enumOf('Region', REGIONS, 'Where a job runs.');
const JobSort = enumOf('JobSort', jobs.SORTS, 'What a list of jobs is sorted by.');

const Line = builder.objectRef<Entry>('LogLine').implement({
  fields: (t) => ({
    seq: t.expose('seq', {
      type: 'SafeInt',
      description: 'Its number in the job, for `jobLog(after:)`.',
    }),
    timestamp: t.expose('timestamp', { type: 'DateTime', description: 'When it was written.' }),
    message: t.exposeString('message'),
  }),
});

type Named = { name: string; namespace: string };

const JobLogs = builder
  .objectRef<Named & { lines: Entry[]; hasMore: boolean }>('JobLogs')
  .implement({
    fields: (t) => ({
      name: t.exposeString('name', { description: 'Of the job.' }),
      namespace: t.exposeString('namespace'),
      lines: t.expose('lines', { type: [Line] }),
      hasMore: t.exposeBoolean('hasMore', { description: 'Older lines were left out by `tail`.' }),
    }),
  });

const JobAnalytics = builder
  .objectRef<Named & ReturnType<typeof analyticsOf> & { runtimeSeconds: number }>('JobAnalytics')
  .implement({
    description: 'The last measurement; of a finished job, memory and disk at their peak.',
    fields: (t) => ({
      name: t.exposeString('name', { description: 'Of the job.' }),
      namespace: t.exposeString('namespace'),
      gpuUtilizationPercent: t.exposeInt('gpuUtilizationPercent'),
      cpuUtilizationPercent: t.exposeInt('cpuUtilizationPercent'),
      memoryUsedGb: t.exposeInt('memoryUsedGb'),
      diskUsedGb: t.exposeInt('diskUsedGb'),
      runtimeSeconds: t.exposeInt('runtimeSeconds'),
    }),
  });

const File = builder.objectRef<ArtifactFile>('ArtifactFile').implement({
  fields: (t) => ({
    path: t.exposeString('path', { description: 'Relative to `outputPath`.' }),
    sizeBytes: t.expose('sizeBytes', { type: 'SafeInt' }),
    downloadUrl: t.exposeString('downloadUrl', { description: 'Works for 15 minutes.' }),
  }),
});

const JobArtifacts = builder.objectRef<downloads.Artifacts>('JobArtifacts').implement({
  description: 'What stood at `outputPath` when the job ended.',
  fields: (t) => ({
    path: t.exposeString('path'),
    sizeBytes: t.expose('sizeBytes', { type: 'SafeInt', description: 'Of the archive.' }),
    files: t.exposeInt('files'),
    downloadUrl: t.exposeString('downloadUrl', {
      description: 'One gzip tar; the link works for 15 minutes.',
    }),
    entries: t.field({
      type: [File],
      description: 'File by file, at most a thousand at once.',
      args: {
        first: t.arg.int({ required: true, defaultValue: 100 }),
        after: t.arg.string({ description: 'The path of the last one seen.' }),
      },
      resolve: (artifacts, args, { services }) => downloads.listFiles(services, artifacts, args),
    }),
  }),
});

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
    owner: t.relation('namespace'),
    status: t.expose('status', { type: JobStatus }),
    command: t.exposeString('command'),
    repo: t.exposeString('repo', {
      nullable: true,
      description: '`namespace/repo` as given at creation.',
    }),
    repository: t.prismaField({
      type: Repository,
      nullable: true,
      description: 'The same by id: follows renames; null when it is gone or not to be seen.',
      select: { repositoryId: true },
      resolve: (query, { repositoryId }, _args, { services, viewer }) =>
        repositoryId === null
          ? null
          : services.db.repository.findFirst({
              ...query,
              where: { id: repositoryId, AND: [visibleTo(viewer)] },
            }),
    }),
    branch: t.exposeString('branch', { nullable: true }),
    commitSha: t.exposeString('commitSha', {
      nullable: true,
      description: 'Where the branch stood at creation; this is what runs.',
    }),
    image: t.exposeString('image', { nullable: true }),
    gpu: t.field({ type: Gpu, select: { gpu: true }, resolve: ({ gpu }) => gpu as never }),
    gpuCount: t.exposeInt('gpuCount'),
    cpu: t.exposeInt('cpu', { description: 'vCPUs.' }),
    memoryGb: t.exposeInt('memoryGb'),
    diskGb: t.exposeInt('diskGb'),
    region: t.field({
      type: Region,
      select: { region: true },
      resolve: ({ region }) => region as never,
    }),
    timeoutMinutes: t.exposeInt('timeoutMinutes', { description: 'Of one attempt.' }),
    retries: t.exposeInt('retries'),
    retryCount: t.exposeInt('retryCount'),
    outputPath: t.exposeString('outputPath', { nullable: true }),
    exitCode: t.exposeInt('exitCode', { nullable: true, description: '128 + the signal, if one.' }),
    env: t.field({
      type: 'JSON',
      nullable: true,
      description: 'In the answer that creates the job; null ever after.',
      // Without a selection: it is on the created row, and never read from the database.
      resolve: (job) => ('env' in job ? job.env : null),
    }),
    costPerHour: t.expose('costPerHour', { type: 'Decimal' }),
    totalCost: t.field({
      type: 'Decimal',
      description: 'Of all attempts, until now.',
      select: { ...jobs.RUNTIME, costPerHour: true },
      resolve: (job) => jobs.totalCostOf(job),
    }),
    runtimeSeconds: t.int({
      description: 'Of all attempts, until now.',
      select: jobs.RUNTIME,
      resolve: (job) => jobs.runtimeOf(job),
    }),
    progress: t.exposeString('progress', {
      description: 'What the program last said with `::progress::text`, else the phase in words.',
    }),
    artifacts: t.field({
      type: JobArtifacts,
      nullable: true,
      description: 'Null until there are any.',
      select: downloads.DESCRIBED,
      resolve: (job, _args, { services }) => downloads.artifactsOf(services, job),
    }),
    createdAt: t.expose('createdAt', { type: 'DateTime' }),
    startedAt: t.expose('startedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'Of the first attempt.',
    }),
    completedAt: t.expose('completedAt', { type: 'DateTime', nullable: true }),
    logs: t.field({
      type: JobLogs,
      args: {
        tail: t.arg.int({ defaultValue: 100, description: 'The most recent lines; up to 10000.' }),
        since: t.arg({ type: 'DateTime', description: 'Only lines after it.' }),
      },
      select: { name: true, namespace: { select: { name: true } } },
      resolve: async ({ id, name, namespace }, args, { services }) => ({
        name,
        namespace: namespace.name,
        ...(await readLog(services, id, args)),
      }),
    }),
    analytics: t.field({
      type: JobAnalytics,
      select: { ...jobs.RUNTIME, usage: true, name: true, namespace: { select: { name: true } } },
      resolve: (job) => ({
        name: job.name,
        namespace: job.namespace.name,
        ...analyticsOf(job),
        runtimeSeconds: jobs.runtimeOf(job),
      }),
    }),
    attempts: t.relation('attempts', { query: { orderBy: { number: 'asc' } } }),
  }),
});

builder.prismaObject('JobAttempt', {
  description: 'One execution of a job; there are more after retries and lost machines.',
  fields: (t) => ({
    number: t.exposeInt('number'),
    outcome: t.exposeString('outcome', {
      nullable: true,
      description: '`exited`, `unstartable` or `lost`; null while it lasts.',
    }),
    exitCode: t.exposeInt('exitCode', { nullable: true }),
    startedAt: t.expose('startedAt', { type: 'DateTime', nullable: true }),
    endedAt: t.expose('endedAt', { type: 'DateTime', nullable: true }),
  }),
});

const JobPage = pageType<{ id: string }>('JobPage', Job);

builder.queryFields((t) => ({
  job: t.prismaField({
    type: Job,
    args: { namespace: t.arg.string({ required: true }), name: t.arg.string({ required: true }) },
    resolve: (query, _root, args, { services, viewer }) =>
      jobs.getJob(services, viewer, args, jobs.selectOf(query)) as never,
  }),
  jobPage: t.field({
    type: JobPage,
    args: {
      namespace: t.arg.string({ required: true }),
      page: t.arg.int({ ...pageArgs.page, required: true }),
      perPage: t.arg.int({ ...pageArgs.perPage, required: true }),
      sort: t.arg({ type: JobSort, defaultValue: 'created_at', required: true }),
      order: t.arg({ type: SortOrder, defaultValue: 'desc', required: true }),
      status: t.arg({ type: JobStatus }),
    },
    resolve: (_root, args, context, info) => {
      const query = queryFromInfo({ context, info, path: ['nodes'] });
      return jobs.listJobs(context.services, context.viewer, args, jobs.selectOf(query));
    },
  }),
}));

builder.prismaObjectField(Namespace, 'jobs', (t) =>
  t.relatedConnection('jobs', {
    cursor: 'id',
    totalCount: true,
    description: 'Those that the viewer may see.',
    args: {
      status: t.arg({ type: JobStatus }),
      sort: t.arg({ type: JobSort, defaultValue: 'created_at', required: true }),
      order: t.arg({ type: SortOrder, defaultValue: 'desc', required: true }),
    },
    query: ({ status, sort, order }, { viewer }) => ({
      where: { AND: [jobs.visibleTo(viewer), status ? { status } : {}] },
      orderBy: jobs.sorted(sort, order),
    }),
  }),
);
