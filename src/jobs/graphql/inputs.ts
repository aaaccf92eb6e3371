/** GraphQL types of artifacts and of files of repositories that become files of a job. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { builder } from '../../platform/schema/builder.ts';
import { selectOf } from '../../platform/schema/select.ts';
import { findRepositoryById } from '../../repositories/repositories.ts';
import { findArray } from '../requests/arrays.ts';
import type { JobInput } from '../requests/inputs.ts';
import { findJob } from '../requests/jobs.ts';
import type { RepositoryInput } from '../requests/repository-inputs.ts';
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

export const JobInputRepository = builder
  .objectRef<RepositoryInput>('JobInputRepository')
  .implement({
    description: 'Files of a repository that are files of a job.',
    fields: (t) => ({
      repo: t.exposeString('repo', {
        description: 'The repository as it was requested: `namespace/name`.',
      }),
      repository: t.prismaField({
        type: 'Repository',
        nullable: true,
        description: 'This repository; null if it was deleted or the viewer may not see it.',
        resolve: (query, { repositoryId }, _args, { services, viewer }) =>
          findRepositoryById(
            services,
            viewer,
            repositoryId,
            selectOf<Prisma.RepositorySelect>(query),
          ) as never,
      }),
      ref: t.exposeString('ref', { description: 'The branch, tag or commit id.' }),
      commitSha: t.exposeString('commitSha', {
        description: 'The commit to which it pointed when the job was created.',
      }),
      path: t.exposeString('path', {
        description: 'The file or folder in the repository; empty for all.',
      }),
      to: t.exposeString('to', {
        description: 'Where it is put in the working directory; empty for the directory itself.',
      }),
      readOnly: t.exposeBoolean('readOnly', {
        description: 'Whether the job may get them as a mount that it cannot change.',
      }),
    }),
  });

export const JobFilesInput = builder.inputType('JobFilesInput', {
  description:
    'Files of a job: artifacts of another job, or files of a repository. Either `job` or `repo` must be given.',
  fields: (t) => ({
    job: t.string({
      description:
        'The name of a job of the same namespace, or of an array: then each of its jobs that has artifacts gets a folder, named by the values of the matrix (`seed=1,lr=0.1`) or the index. If it has not ended, the new job waits until it has succeeded, unless `needs` says otherwise.',
    }),
    repo: t.string({
      description:
        'A repository, `namespace/name`, which the creator of the job can read. This is checked again when an attempt starts.',
    }),
    ref: t.string({
      description:
        'A branch, a tag or a full commit id of `repo`; by default the default branch. The job and its reruns have the commit that it names when the job is created.',
    }),
    readOnly: t.boolean({
      defaultValue: false,
      description:
        'Whether a folder of `repo` may be mounted at `to`, so that the job cannot change it, and a second job on the machine does not wait for a copy. Where nothing can be mounted, the files are copied.',
    }),
    path: t.string({
      description:
        'A file or folder among the artifacts, without their `outputPath`, or in the repository. By default all.',
    }),
    to: t.string({
      description:
        'Where in the working directory they are put; by default directly there. For a single file: the new path, or its folder if it ends with a slash.',
    }),
  }),
});
