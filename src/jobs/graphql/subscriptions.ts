/** GraphQL subscriptions to job logs and job events. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { builder } from '../../platform/schema/builder.ts';
import { selectOf } from '../../platform/schema/select.ts';
import {
  abortOnDisconnect,
  defineEventArgs,
  defineEventTypes,
  toFollowQuery,
  unwrapEvent,
} from '../../platform/schema/subscription.ts';
import * as following from '../requests/following.ts';
import * as jobs from '../requests/jobs.ts';
import { JobStatus } from './enums.ts';
import { Job } from './jobs.ts';
import { JobLogBatch, JobLogEvent } from './logs.ts';

const JobEventType = defineEventTypes<following.JobEventType>(
  'JobEventType',
  'What happened to a job.',
  {
    'job.queued': 'The job was created, or queued for a retry.',
    'job.running': 'The process of the job started.',
    'job.succeeded': 'The job ended with exit code 0.',
    'job.failed': 'The job ended with another exit code, or could not be started.',
    'job.cancelled': 'A user cancelled the job.',
    'job.timed_out': 'The job exceeded its timeout.',
    'job.deleted': 'The job was deleted.',
  },
);

const JobEvent = builder.objectRef<following.JobEvent>('JobEvent').implement({
  description: 'An event of a job.',
  fields: (t) => ({
    id: t.exposeID('id', {
      description: 'The id of the event, which is the same each time the event is read.',
    }),
    cursor: t.expose('cursor', {
      type: 'SafeInt',
      description:
        'The number of the event. Pass it as `after` to continue a subscription after it.',
    }),
    type: t.expose('type', { type: JobEventType, description: 'What happened.' }),
    timestamp: t.expose('timestamp', { type: 'DateTime', description: 'When the event happened.' }),
    jobId: t.exposeID('jobId', { description: 'The id of the job, even if it was deleted.' }),
    name: t.exposeString('name', { description: 'The name of the job.' }),
    status: t.expose('status', {
      type: JobStatus,
      description: 'The status of the job when the event happened.',
    }),
    exitCode: t.exposeInt('exitCode', {
      nullable: true,
      description: 'The exit code; null if the job had not ended.',
    }),
    namespace: t.exposeString('namespace', {
      description: 'The name of the owner.',
    }),
    progress: t.exposeString('progress', {
      description: 'The progress of the job when the event happened.',
    }),
    retryCount: t.exposeInt('retryCount', {
      description: 'The number of retries that the job had used.',
    }),
    runtimeSeconds: t.exposeInt('runtimeSeconds', {
      description: 'The total runtime of the attempts that had ended, in seconds.',
    }),
    totalCost: t.expose('totalCost', {
      type: 'Decimal',
      description: 'The cost of the attempts that had ended.',
    }),
    job: t.prismaField({
      type: Job,
      nullable: true,
      description:
        'The job as it is now; null after its deletion. Unlike the other fields, it is not stored in the event but read each time.',
      resolve: (query, { jobId }, _args, { services, viewer }) =>
        jobs.findJob(services, viewer, jobId, selectOf<Prisma.JobSelect>(query)) as never,
    }),
  }),
});

const logArgs = builder.args((t) => ({
  namespace: t.string({ required: true, description: 'The name of the owner.' }),
  name: t.string({ required: true, description: 'The name of the job.' }),
  after: t.field({ type: 'SafeInt', description: 'The `seq` of the last entry seen.' }),
}));

/** Wraps each batch in the object that the type `JobLogBatch` resolves. */
async function* toLogBatches(batches: AsyncIterable<following.LogEventBatch>) {
  for await (const entries of batches) yield { entries };
}

builder.subscriptionFields((t) => ({
  jobLog: t.field({
    type: JobLogEvent,
    description: 'The log from the beginning, or after an entry, until the job has ended.',
    args: logArgs,
    subscribe: async (_root, args, { services, viewer }) => {
      const openStream = await following.followLog(services, viewer, args);
      return abortOnDisconnect(openStream);
    },
    resolve: unwrapEvent,
  }),
  jobLogBatches: t.field({
    type: JobLogBatch,
    description: 'Like `jobLog`, but with one event for all entries that are sent together.',
    args: logArgs,
    subscribe: async (_root, args, { services, viewer }) => {
      const openStream = await following.followLogBatches(services, viewer, args);
      return abortOnDisconnect((signal) => toLogBatches(openStream(signal)));
    },
    resolve: unwrapEvent,
  }),
  jobEvents: t.field({
    type: JobEvent,
    description:
      'The events of one job, or of all jobs in the given namespaces. The subscription ends with an error if the viewer loses access to the job or to one of the namespaces.',
    args: defineEventArgs(
      'The name of a job, only allowed with exactly one namespace. By default all jobs.',
    ),
    subscribe: async (_root, args, { services, viewer }) =>
      abortOnDisconnect(await following.followEvents(services, viewer, toFollowQuery(args))),
    resolve: unwrapEvent,
  }),
}));
