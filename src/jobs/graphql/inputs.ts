/** GraphQL types of the artifacts that become files of another job. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { builder } from '../../platform/schema/builder.ts';
import { selectOf } from '../../platform/schema/select.ts';
import { findArray } from '../requests/arrays.ts';
import type { JobInput } from '../requests/inputs.ts';
import { findJob } from '../requests/jobs.ts';
import { JobArray } from './dependencies.ts';

export const JobInputArtifacts = builder.objectRef<JobInput>('JobInputArtifacts').implement({
  description: 'Artifacts of a job, or of each job of an array, that are files of another job.',
  fields: (t) => ({
    jobName: t.exposeString('job', { description: 'The name of the job or array that left them.' }),
    job: t.prismaField({
      type: 'Job',
      nullable: true,
      description:
        'This job; null for an array, and if it was deleted or the viewer may not see it.',
      resolve: (query, { jobId }, _args, { services, viewer }) =>
        jobId === null
          ? null
          : (findJob(services, viewer, jobId, selectOf<Prisma.JobSelect>(query)) as never),
    }),
    array: t.field({
      type: JobArray,
      nullable: true,
      description:
        'This array; null for a job, and if all its jobs were deleted or the viewer may not see them.',
      resolve: ({ array }, _args, { services, viewer }) =>
        array?.id ? findArray(services, viewer, array.id) : null,
    }),
    path: t.exposeString('path', {
      description: 'The file or folder among the artifacts; empty for all.',
    }),
    to: t.exposeString('to', {
      description:
        'Where it is put in the working directory; empty for the directory itself. For an array, each job has a folder there.',
    }),
  }),
});

export const JobArtifactsInput = builder.inputType('JobArtifactsInput', {
  description: 'Artifacts of a job that become files of another job.',
  fields: (t) => ({
    job: t.string({
      required: true,
      description:
        'The name of a job of the same namespace, or of an array: then each of its jobs that has artifacts gets a folder, named by the values of the matrix (`seed=1,lr=0.1`) or the index. If it has not ended, the new job waits until it has succeeded, unless `needs` says otherwise.',
    }),
    path: t.string({
      description:
        'A file or folder among its artifacts, without its `outputPath`. By default all.',
    }),
    to: t.string({
      description:
        'Where in the working directory they are put; by default directly there. For a single file: the new path, or its folder if it ends with a slash.',
    }),
  }),
});
