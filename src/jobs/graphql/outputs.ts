/** What a job uses and what it leaves, in GraphQL: analytics and artifacts. */
import { builder } from '../../graphql/builder.ts';
import { connectionType, pageCost, sliceArgs, toConnection } from '../../graphql/paging.ts';
import type { analyticsOf } from '../analytics.ts';
import type { ArtifactFile } from '../artifacts/downloads.ts';
import * as downloads from '../artifacts/downloads.ts';

export const JobAnalytics = builder
  .objectRef<
    ReturnType<typeof analyticsOf> & { name: string; namespace: string; runtimeSeconds: number }
  >('JobAnalytics')
  .implement({
    description: 'The last measurement; of a finished job, memory and disk at their peak.',
    fields: (t) => ({
      name: t.exposeString('name', { description: 'Of the job.' }),
      namespace: t.exposeString('namespace', { description: 'Its name.' }),
      gpuUtilizationPercent: t.exposeInt('gpuUtilizationPercent', {
        description: 'Of the GPUs given, together.',
      }),
      cpuUtilizationPercent: t.exposeInt('cpuUtilizationPercent', {
        description: 'Of the vCPUs given, together.',
      }),
      memoryUsedGb: t.exposeInt('memoryUsedGb', { description: 'Rounded up.' }),
      diskUsedGb: t.exposeInt('diskUsedGb', { description: 'Rounded up.' }),
      runtimeSeconds: t.exposeInt('runtimeSeconds', { description: 'Of all attempts, until now.' }),
    }),
  });

const File = builder.objectRef<ArtifactFile>('ArtifactFile').implement({
  description: 'One file of the artifacts.',
  fields: (t) => ({
    path: t.exposeString('path', { description: 'Relative to `outputPath`.' }),
    sizeBytes: t.expose('sizeBytes', { type: 'SafeInt', description: 'Of its contents.' }),
    downloadUrl: t.exposeString('downloadUrl', {
      description: 'Works for 15 minutes, without credentials.',
    }),
  }),
});

export const JobArtifacts = builder.objectRef<downloads.Artifacts>('JobArtifacts').implement({
  description: 'What stood at `outputPath` when the job ended.',
  fields: (t) => ({
    path: t.exposeString('path', { description: 'The `outputPath` of the job.' }),
    sizeBytes: t.expose('sizeBytes', { type: 'SafeInt', description: 'Of the archive.' }),
    fileCount: t.exposeInt('files', { description: 'How many files there are.' }),
    downloadUrl: t.exposeString('downloadUrl', {
      description: 'One gzip tar; the link works for 15 minutes, without credentials.',
    }),
    files: t.field({
      type: connectionType('ArtifactFile', File),
      nullable: true,
      description: 'File by file, in the order of the archive.',
      complexity: pageCost(),
      args: sliceArgs,
      resolve: async (artifacts, args, { services }) =>
        toConnection(await downloads.listFiles(services, artifacts, args), args),
    }),
  }),
});
