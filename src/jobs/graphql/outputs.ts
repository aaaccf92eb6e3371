/** GraphQL types of resource usage and artifacts. */
import type { Checkpoint } from '../../../prisma/generated/client.ts';
import { builder } from '../../platform/schema/builder.ts';
import {
  cursorPageArgs,
  defineConnectionType,
  pageCost,
  toConnection,
} from '../../platform/schema/paging.ts';
import type { ArtifactFile } from '../artifacts/downloads.ts';
import * as downloads from '../artifacts/downloads.ts';
import type { AttemptUsagePoint } from '../costs/usage-history.ts';
import type { toAnalytics } from '../costs/usage-sampling.ts';
import type { Output } from '../outputs/outputs.ts';

export const JobAnalytics = builder
  .objectRef<
    ReturnType<typeof toAnalytics> & { name: string; namespace: string; runtimeSeconds: number }
  >('JobAnalytics')
  .implement({
    description:
      'The last sample of the resource usage of a job; for a finished job, with the peaks of memory and disk.',
    fields: (t) => ({
      name: t.exposeString('name', { description: 'The name of the job.' }),
      namespace: t.exposeString('namespace', { description: 'The name of the owner.' }),
      gpuUtilizationPercent: t.exposeInt('gpuUtilizationPercent', {
        description: 'Usage of all GPUs together, in percent.',
      }),
      cpuUtilizationPercent: t.exposeInt('cpuUtilizationPercent', {
        description: 'Usage of all vCPUs together, in percent.',
      }),
      memoryUsedGb: t.exposeInt('memoryUsedGb', {
        description: 'Memory in GB, rounded to an integer.',
      }),
      diskUsedGb: t.exposeInt('diskUsedGb', { description: 'Disk in GB, rounded to an integer.' }),
      runtimeSeconds: t.exposeInt('runtimeSeconds', {
        description: 'The runtime of all attempts so far.',
      }),
    }),
  });

export const JobUsageSample = builder.objectRef<AttemptUsagePoint>('JobUsageSample').implement({
  description:
    'The resource usage of an attempt at a time, or in the time since the previous sample.',
  fields: (t) => ({
    attempt: t.exposeInt('attempt', { description: 'The number of the attempt, from 1.' }),
    time: t.expose('time', { type: 'DateTime', description: 'The time of the last measurement.' }),
    gpuUtilizationPercent: t.int({
      description: 'The mean usage of all GPUs together, in percent.',
      resolve: ({ gpuPercent }) => gpuPercent,
    }),
    cpuUtilizationPercent: t.int({
      description: 'The mean usage of all vCPUs together, in percent.',
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

export const JobCheckpoint = builder.objectRef<Checkpoint>('JobCheckpoint').implement({
  description: 'The content of `checkpointPath` at a time.',
  fields: (t) => ({
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was read.' }),
    sizeBytes: t.expose('sizeBytes', { type: 'SafeInt', description: 'The size, compressed.' }),
    files: t.exposeInt('files', { description: 'The number of files.' }),
    attempt: t.exposeInt('attempt', {
      description: 'The number of the attempt that has written it, from 1.',
    }),
  }),
});

export const JobOutput = builder.objectRef<Output>('JobOutput').implement({
  description: 'A line that a job wrote to the file `$JOB_OUTPUTS`.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The name of the variable.' }),
    value: t.exposeString('value', { description: 'The value, with secrets masked.' }),
  }),
});

const File = builder.objectRef<ArtifactFile>('ArtifactFile').implement({
  description: 'A file of the artifacts of a job.',
  fields: (t) => ({
    path: t.exposeString('path', { description: 'The path relative to `outputPath`.' }),
    sizeBytes: t.expose('sizeBytes', { type: 'SafeInt', description: 'The size of the file.' }),
    downloadUrl: t.exposeString('downloadUrl', {
      description: 'A link that works for 15 minutes without credentials.',
    }),
  }),
});

export const JobArtifacts = builder.objectRef<downloads.Artifacts>('JobArtifacts').implement({
  description: 'The files at `outputPath` when the job ended.',
  fields: (t) => ({
    path: t.exposeString('path', { description: 'The `outputPath` of the job.' }),
    sizeBytes: t.expose('sizeBytes', { type: 'SafeInt', description: 'The size of the archive.' }),
    fileCount: t.exposeInt('files', { description: 'The number of files.' }),
    downloadUrl: t.exposeString('downloadUrl', {
      description:
        'A link to all files as a gzip tar archive, valid for 15 minutes without credentials.',
    }),
    file: t.field({
      type: File,
      nullable: true,
      description: 'The file with this path; null if there is none.',
      args: {
        path: t.arg.string({ required: true, description: 'The path relative to `outputPath`.' }),
      },
      resolve: (artifacts, { path }, { services }) => downloads.findFile(services, artifacts, path),
    }),
    files: t.field({
      type: defineConnectionType('ArtifactFile', File),
      nullable: true,
      description: 'The files, in the order of the archive.',
      complexity: pageCost(),
      args: cursorPageArgs,
      resolve: async (artifacts, args, { services }) =>
        toConnection(await downloads.listFiles(services, artifacts, args), args),
    }),
  }),
});
