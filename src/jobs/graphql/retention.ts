/** GraphQL types of retention: the rules of a namespace, what they would remove, and the jobs that are exempt. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { Namespace } from '../../identity/graphql/namespaces.ts';
import { builder, INPUT } from '../../platform/schema/builder.ts';
import { selectForChild } from '../../platform/schema/select.ts';
import * as retention from '../retention/retention.ts';
import { Job } from './jobs.ts';

const DAYS = {
  jobDays:
    'Finished jobs are deleted after so many days, with their logs: 1 to 3650. Null: never. Artifacts are removed by `artifactDays` only.',
  logDays: 'The logs of finished jobs are deleted after so many days: 1 to 3650. Null: never.',
  artifactDays:
    'The artifacts of finished jobs are deleted after so many days: 1 to 3650. Artifacts that were kept when a user deleted the job are deleted so many days after that. Null: never.',
} as const;

const RetentionRules = builder.objectRef<retention.RetentionRules>('RetentionRules').implement({
  description:
    'When finished jobs of a namespace, their logs and their artifacts are removed. Jobs with the label `keep` are exempt.',
  fields: (t) => ({
    jobDays: t.exposeInt('jobDays', { nullable: true, description: DAYS.jobDays }),
    logDays: t.exposeInt('logDays', { nullable: true, description: DAYS.logDays }),
    artifactDays: t.exposeInt('artifactDays', { nullable: true, description: DAYS.artifactDays }),
    updatedBy: t.exposeString('updatedBy', { description: 'The user who set them last.' }),
    updatedAt: t.expose('updatedAt', { type: 'DateTime', description: 'When they were set last.' }),
  }),
});

const RetentionKind = builder.enumType('RetentionKind', {
  description: 'What retention removes.',
  values: {
    JOBS: { value: 'jobs', description: 'Finished jobs, with their logs.' },
    LOGS: { value: 'logs', description: 'Logs of jobs that stay.' },
    ARTIFACTS: { value: 'artifacts', description: 'Artifacts of jobs, and of deleted jobs.' },
  } as const,
});

const RetentionPreview = builder
  .objectRef<retention.RetentionPreview>('RetentionPreview')
  .implement({
    description: 'What rules would remove now.',
    fields: (t) => ({
      kind: t.expose('kind', { type: RetentionKind, description: 'What would be removed.' }),
      count: t.exposeInt('count', {
        description: `Of how many jobs; at most ${retention.PREVIEW_LIMIT} are counted.`,
      }),
      bytes: t.field({
        type: 'SafeInt',
        description: 'The storage of these logs or artifacts.',
        resolve: ({ bytes }) => bytes,
      }),
      names: t.exposeStringList('names', {
        description: 'The names of up to 10 of the jobs, the oldest first.',
      }),
    }),
  });

builder.prismaObjectFields(Namespace, (t) => ({
  retention: t.field({
    type: RetentionRules,
    nullable: true,
    description:
      'When finished jobs, logs and artifacts are removed; null: never. Only members see it.',
    select: { id: true },
    resolve: ({ id }, _args, { services, viewer }) => retention.readRetention(services, viewer, id),
  }),
  retentionPreview: t.field({
    type: [RetentionPreview],
    nullable: true,
    description:
      'What these rules would remove now, without the jobs that other jobs need. Only for admins. Nothing is removed.',
    complexity: { field: 500, multiplier: 3 },
    args: {
      jobDays: t.arg.int({ description: DAYS.jobDays }),
      logDays: t.arg.int({ description: DAYS.logDays }),
      artifactDays: t.arg.int({ description: DAYS.artifactDays }),
    },
    select: { id: true },
    resolve: ({ id }, args, { services, viewer }) =>
      retention.previewRetention(services, viewer, id, args),
  }),
}));

const SetRetentionInput = builder.inputType('SetRetentionInput', {
  description: 'The new rules of a namespace. They replace the old ones.',
  fields: (t) => ({
    namespace: t.string({ required: true, description: 'The name of the namespace.' }),
    jobDays: t.int({ description: DAYS.jobDays }),
    logDays: t.int({ description: DAYS.logDays }),
    artifactDays: t.int({ description: DAYS.artifactDays }),
  }),
});

const SetRetentionPayload = builder
  .objectRef<{ namespaceId: string }>('SetRetentionPayload')
  .implement({
    description: 'The rules that were set.',
    fields: (t) => ({
      retention: t.field({
        type: RetentionRules,
        nullable: true,
        description: 'The new rules; null if nothing is removed any more.',
        resolve: ({ namespaceId }, _args, { services, viewer }) =>
          retention.readRetention(services, viewer, namespaceId),
      }),
    }),
  });

const SetJobKeptInput = builder.inputType('SetJobKeptInput', {
  description: 'The job to exempt from retention.',
  fields: (t) => ({
    namespace: t.string({ required: true, description: 'The name of the owner.' }),
    name: t.string({ required: true, description: 'The name of the job.' }),
    kept: t.boolean({ required: true, description: 'Whether the job is exempt.' }),
  }),
});

const SetJobKeptPayload = builder.objectRef<{ job: object }>('SetJobKeptPayload').implement({
  description: 'The job that was changed.',
  fields: (t) => ({
    job: t.field({
      type: Job,
      description: 'The job, with or without the label `keep`.',
      resolve: ({ job }) => job as never,
    }),
  }),
});

builder.mutationFields((t) => ({
  setRetention: t.field({
    type: SetRetentionPayload,
    nullable: true,
    description:
      'Sets when finished jobs of a namespace, their logs and their artifacts are removed. Only for admins, with a credential of full rights. The server begins within ten minutes; what it has removed cannot be restored.',
    args: { input: t.arg({ type: SetRetentionInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      namespaceId: await retention.setRetention(services, viewer, input),
    }),
  }),
  setJobKept: t.field({
    type: SetJobKeptPayload,
    nullable: true,
    description: 'Exempts a job from retention by the label `keep`, or removes the label.',
    args: { input: t.arg({ type: SetJobKeptInput, ...INPUT }) },
    resolve: async (_root, { input }, context, info) => {
      const select = selectForChild<Prisma.JobSelect>(context, info, 'job');
      const { kept: isKept, ...key } = input;
      const { services, viewer } = context;
      return { job: await retention.setJobKept(services, viewer, { ...key, isKept }, select) };
    },
  }),
}));
