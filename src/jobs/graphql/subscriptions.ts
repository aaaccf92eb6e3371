/** What can be followed: a job's log, and what happens to jobs. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { builder } from '../../platform/schema/builder.ts';
import { selectOf } from '../../platform/schema/select.ts';
import {
  endedByReader,
  eventArgs,
  eventTypes,
  followQuery,
  orThrow,
} from '../../platform/schema/subscription.ts';
import * as following from '../following.ts';
import * as jobs from '../jobs.ts';
import { JobStatus } from './enums.ts';
import { Job } from './jobs.ts';
import { JobLogBatch, JobLogEvent } from './logs.ts';

const JobEventType = eventTypes<following.JobEventType>('JobEventType', 'What happened to a job.', {
  'job.queued': 'It was created, or queued for a retry.',
  'job.running': 'Its process started.',
  'job.succeeded': 'It ended with exit code 0.',
  'job.failed': 'It ended with another exit code, or could not be started.',
  'job.cancelled': 'Somebody stopped it.',
  'job.timed_out': 'It took longer than it was allowed.',
  'job.deleted': 'Its record was removed.',
});

const KEPT_LESS = 'Null in events of earlier versions.';

const JobEvent = builder.objectRef<following.JobEvent>('JobEvent').implement({
  description: 'Something that happened to a job.',
  fields: (t) => ({
    id: t.exposeID('id', {
      description: 'The id of the event, which is the same however often it is read.',
    }),
    cursor: t.expose('cursor', {
      type: 'SafeInt',
      description:
        'The number of the event. A subscription goes on after it when it is given as `after`.',
    }),
    type: t.expose('type', { type: JobEventType, description: 'What happened.' }),
    timestamp: t.expose('timestamp', { type: 'DateTime', description: 'When it happened.' }),
    jobId: t.exposeID('jobId', { description: 'The id of the job, also when it was deleted.' }),
    name: t.exposeString('name', { description: 'The name of the job.' }),
    status: t.expose('status', { type: JobStatus, description: 'The status at that moment.' }),
    exitCode: t.exposeInt('exitCode', {
      nullable: true,
      description: 'The exit code; null until the job was over.',
    }),
    namespace: t.exposeString('namespace', {
      nullable: true,
      description: `The name of its owner. ${KEPT_LESS}`,
    }),
    progress: t.exposeString('progress', {
      nullable: true,
      description: `The progress at that moment. ${KEPT_LESS}`,
    }),
    retryCount: t.exposeInt('retryCount', {
      nullable: true,
      description: `How many retries it had used. ${KEPT_LESS}`,
    }),
    runtimeSeconds: t.exposeInt('runtimeSeconds', {
      nullable: true,
      description: `How long the attempts ran that had ended. ${KEPT_LESS}`,
    }),
    totalCost: t.expose('totalCost', {
      type: 'Decimal',
      nullable: true,
      description: `The price of the attempts that had ended. ${KEPT_LESS}`,
    }),
    job: t.prismaField({
      type: Job,
      nullable: true,
      description:
        'The job as it is now; null once it is deleted. It is read for each event, while the other fields are part of it.',
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

async function* entriesOf(batches: AsyncIterable<following.LogBatch>) {
  for await (const entries of batches) yield { entries };
}

builder.subscriptionFields((t) => ({
  jobLog: t.field({
    type: JobLogEvent,
    description: 'The log from its beginning, or after an entry, until the job is over.',
    args: logArgs,
    subscribe: async (_root, args, { services, viewer }) => {
      const open = await following.followLog(services, viewer, args);
      return endedByReader(open);
    },
    resolve: orThrow,
  }),
  jobLogBatches: t.field({
    type: JobLogBatch,
    description: 'As `jobLog`, with the entries that come at once in one event.',
    args: logArgs,
    subscribe: async (_root, args, { services, viewer }) => {
      const open = await following.followLogBatches(services, viewer, args);
      return endedByReader((signal) => entriesOf(open(signal)));
    },
    resolve: orThrow,
  }),
  jobEvents: t.field({
    type: JobEvent,
    description:
      'Every change of a job, or of all jobs in one namespace or several. It ends, with an error, when the viewer may not see one of them any more.',
    args: eventArgs('One job of the one namespace; left out: all.'),
    subscribe: async (_root, args, { services, viewer }) =>
      endedByReader(await following.followEvents(services, viewer, followQuery(args))),
    resolve: orThrow,
  }),
}));
