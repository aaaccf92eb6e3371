/** What can be followed: a job's log, and what happens to jobs. */
import { Repeater } from '@repeaterjs/repeater';
import type { Prisma } from '../../../prisma/generated/client.ts';
import { builder } from '../../graphql/builder.ts';
import { selectOf } from '../../graphql/select.ts';
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
    description: 'Every change of a job, or of all jobs in a namespace.',
    args: {
      namespace: t.arg.string({ required: true, description: 'The name of the owner.' }),
      name: t.arg.string({ description: 'Left out: all jobs of the namespace.' }),
      after: t.arg({
        type: 'SafeInt',
        description: 'The `cursor` of the last event seen; 0: from the first; left out: from now.',
      }),
    },
    subscribe: async (_root, args, { services, viewer }) => {
      const open = await following.followEvents(services, viewer, args);
      return endedByReader(open);
    },
    resolve: orThrow,
  }),
}));

/** What ended a subscription, as its last event. */
type Failed = { failure: unknown };

/**
 * A generator that waits for the database is not ended by its reader going away; a repeater is told, and then
 * aborts it. `signal` of the request would not do: in graphql-sse's single connection mode the request that
 * subscribes is answered and over long before the subscription is.
 *
 * A failure is yielded, to be thrown by the field's resolver: as an event with `errors` it reaches the client on
 * every transport, while a source that throws breaks the connection of some and says nothing on others.
 */
function endedByReader<T>(
  open: (signal: AbortSignal) => AsyncIterable<T>,
): AsyncIterable<T | Failed> {
  return new Repeater<T | Failed>(async (push, stop) => {
    const abort = new AbortController();
    void stop.then(() => abort.abort());
    try {
      for await (const event of open(abort.signal)) {
        await push(event);
        if (abort.signal.aborted) break;
      }
    } catch (failure) {
      await push({ failure });
    }
    stop();
  });
}

function orThrow<T extends object>(event: T | Failed): T {
  if ('failure' in event) throw event.failure;
  return event;
}
