/** What a job uses and what it leaves, in GraphQL: analytics and artifacts. */
import { builder } from '../../platform/schema/builder.ts';
import { connectionType, pageCost, sliceArgs, toConnection } from '../../platform/schema/paging.ts';
import type { analyticsOf } from '../analytics.ts';
import type { ArtifactFile } from '../artifacts/downloads.ts';
import * as downloads from '../artifacts/downloads.ts';
import type { UsageSample } from '../usage-history.ts';

export const JobAnalytics = builder
  .objectRef<
    ReturnType<typeof analyticsOf> & { name: string; namespace: string; runtimeSeconds: number }
  >('JobAnalytics')
  .implement({
    description:
      'The last measurement of what a job uses; for a finished job, the peak of memory and disk.',
    fields: (t) => ({
      name: t.exposeString('name', { description: 'The name of the job.' }),
      namespace: t.exposeString('namespace', { description: 'The name of the owner.' }),
      gpuUtilizationPercent: t.exposeInt('gpuUtilizationPercent', {
        description: 'Percent of all its GPUs together.',
      }),
      cpuUtilizationPercent: t.exposeInt('cpuUtilizationPercent', {
        description: 'Percent of all its vCPUs together.',
      }),
      memoryUsedGb: t.exposeInt('memoryUsedGb', { description: 'Memory in GB, rounded up.' }),
      diskUsedGb: t.exposeInt('diskUsedGb', { description: 'Disk in GB, rounded up.' }),
      runtimeSeconds: t.exposeInt('runtimeSeconds', {
        description: 'How long all attempts have run until now.',
      }),
    }),
  });

export const JobUsageSample = builder.objectRef<UsageSample>('JobUsageSample').implement({
  description: 'What an attempt used at a time, or in the time since the sample before.',
  fields: (t) => ({
    attempt: t.exposeInt('attempt', { description: 'The number of the attempt, from 1.' }),
    time: t.expose('time', { type: 'DateTime', description: 'When it was measured last.' }),
    gpuUtilizationPercent: t.int({
      description: 'The mean, in percent of all its GPUs together.',
      resolve: ({ gpuPercent }) => gpuPercent,
    }),
    cpuUtilizationPercent: t.int({
      description: 'The mean, in percent of all its vCPUs together.',
      resolve: ({ cpuPercent }) => cpuPercent,
    }),
    memoryUsedBytes: t.field({
      type: 'SafeInt',
      description: 'The highest.',
      resolve: ({ memoryBytes }) => memoryBytes,
    }),
    diskUsedBytes: t.field({
      type: 'SafeInt',
      description: 'The highest.',
      resolve: ({ diskBytes }) => diskBytes,
    }),
  }),
});

const File = builder.objectRef<ArtifactFile>('ArtifactFile').implement({
  description: 'A file of the artifacts of a job.',
  fields: (t) => ({
    path: t.exposeString('path', { description: 'The path relative to `outputPath`.' }),
    sizeBytes: t.expose('sizeBytes', { type: 'SafeInt', description: 'The size of its contents.' }),
    downloadUrl: t.exposeString('downloadUrl', {
      description: 'A link that works for 15 minutes without credentials.',
    }),
  }),
});

export const JobArtifacts = builder.objectRef<downloads.Artifacts>('JobArtifacts').implement({
  description: 'The files that were at `outputPath` when the job ended.',
  fields: (t) => ({
    path: t.exposeString('path', { description: 'The `outputPath` of the job.' }),
    sizeBytes: t.expose('sizeBytes', { type: 'SafeInt', description: 'The size of the archive.' }),
    fileCount: t.exposeInt('files', { description: 'The number of files.' }),
    downloadUrl: t.exposeString('downloadUrl', {
      description:
        'A link to all files as one gzip tar, which works for 15 minutes without credentials.',
    }),
    files: t.field({
      type: connectionType('ArtifactFile', File),
      nullable: true,
      description: 'The files, in the order of the archive.',
      complexity: pageCost(),
      args: sliceArgs,
      resolve: async (artifacts, args, { services }) =>
        toConnection(await downloads.listFiles(services, artifacts, args), args),
    }),
  }),
});
