/** What can be followed: a job's log, and what happens to jobs. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { builder } from '../../graphql/builder.ts';
import { selectOf } from '../../graphql/select.ts';
import { endedByReader, orThrow } from '../../graphql/subscription.ts';
import * as following from '../following.ts';
import { Job } from '../graphql.ts';
import * as jobs from '../jobs.ts';
import { JobStatus } from './enums.ts';
import { JobLogEvent } from './logs.ts';

const TYPES: Record<following.JobEventType, string> = {
  'job.queued': 'It was created, or is to be tried again.',
  'job.running': 'Its process started.',
  'job.succeeded': 'It ended with exit code 0.',
  'job.failed': 'It ended otherwise, or could not be started.',
  'job.cancelled': 'Somebody stopped it.',
  'job.timed_out': 'It took longer than it was allowed.',
  'job.deleted': 'Its record was removed.',
};

const JobEventType = builder.enumType('JobEventType', {
  description: 'What happened to a job.',
  values: Object.fromEntries(
    Object.entries(TYPES).map(([value, description]) => [
      value.slice('job.'.length).toUpperCase(),
      { value, description },
    ]),
  ) as { [name: string]: { value: following.JobEventType } },
});

const JobEvent = builder.objectRef<following.JobEvent>('JobEvent').implement({
  description: 'Something that happened to a job.',
  fields: (t) => ({
    id: t.exposeID('id', { description: 'Of the event; the same at every telling.' }),
    cursor: t.expose('cursor', {
      type: 'SafeInt',
      description: 'Goes on from here when given as `after`.',
    }),
    type: t.expose('type', { type: JobEventType, description: 'What happened.' }),
    timestamp: t.expose('timestamp', { type: 'DateTime', description: 'When it happened.' }),
    jobId: t.exposeID('jobId', { description: 'Of the job, also when it is deleted.' }),
    name: t.exposeString('name', { description: 'Of the job.' }),
    status: t.expose('status', { type: JobStatus, description: 'At that moment.' }),
    exitCode: t.exposeInt('exitCode', {
      nullable: true,
      description: 'At that moment; null until the job was over.',
    }),
    job: t.prismaField({
      type: Job,
      nullable: true,
      description: 'As it is now; null once it is deleted.',
      resolve: (query, { jobId }, _args, { services, viewer }) =>
        jobs.findJob(services, viewer, jobId, selectOf<Prisma.JobSelect>(query)) as never,
    }),
  }),
});

builder.subscriptionFields((t) => ({
  jobLog: t.field({
    type: JobLogEvent,
    description: 'The log from its beginning, or after an entry, until the job is over.',
    args: {
      namespace: t.arg.string({ required: true, description: 'The name of the owner.' }),
      name: t.arg.string({ required: true, description: 'Of the job.' }),
      after: t.arg({ type: 'SafeInt', description: 'The `seq` of the last entry seen.' }),
    },
    subscribe: async (_root, args, { services, viewer }) => {
      const open = await following.followLog(services, viewer, args);
      return endedByReader(open);
    },
    resolve: orThrow,
  }),
  jobEvents: t.field({
    type: JobEvent,
    description:
      'Every change of a job, or of all jobs in one namespace or several. It ends, with an error, when the viewer may not see one of them any more.',
    args: {
      namespace: t.arg.string({ description: 'The name of one; give this or `namespaces`.' }),
      namespaces: t.arg.stringList({ description: 'The names of several, at most 100.' }),
      name: t.arg.string({ description: 'One job of the one namespace; left out: all.' }),
      after: t.arg({
        type: 'SafeInt',
        description: 'The `cursor` of the last event seen; 0: from the first; left out: from now.',
      }),
    },
    subscribe: async (_root, { namespace, namespaces, ...args }, { services, viewer }) => {
      const named = [namespace ?? [], namespaces ?? []].flat();
      const query = { ...args, namespaces: named };
      return endedByReader(await following.followEvents(services, viewer, query));
    },
    resolve: orThrow,
  }),
}));
