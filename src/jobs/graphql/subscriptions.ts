/** What can be followed: a job's log, and what happens to jobs. */
import { Repeater } from '@repeaterjs/repeater';
import { builder } from '../../graphql/builder.ts';
import * as following from '../following.ts';
import { Job, JobStatus } from '../graphql.ts';

const JobLogEventKind = builder.enumType('JobLogEventKind', {
  values: {
    LOG: { value: 'log', description: 'A line was written.' },
    STATUS: { value: 'status', description: 'The status changed.' },
    END: { value: 'end', description: 'The job is over, and nothing follows.' },
  } as const,
});

const JobLogEvent = builder.objectRef<following.LogEvent>('JobLogEvent').implement({
  fields: (t) => ({
    kind: t.expose('kind', { type: JobLogEventKind }),
    seq: t.expose('seq', {
      type: 'SafeInt',
      description: 'Resumes with `after`; of the end, that of the entry before.',
    }),
    timestamp: t.expose('timestamp', { type: 'DateTime', nullable: true }),
    message: t.exposeString('message', { nullable: true, description: 'The line, of a `LOG`.' }),
    status: t.expose('status', {
      type: JobStatus,
      nullable: true,
      description: 'Of a `STATUS` and the `END`.',
    }),
    exitCode: t.exposeInt('exitCode', { nullable: true, description: 'Of the `END`.' }),
  }),
});

const JobEvent = builder.objectRef<following.JobEvent>('JobEvent').implement({
  fields: (t) => ({
    cursor: t.expose('cursor', { type: 'SafeInt', description: 'Resumes with `after`.' }),
    type: t.exposeString('type', { description: '`job.running` and so on; `job.deleted`.' }),
    timestamp: t.expose('timestamp', { type: 'DateTime' }),
    jobId: t.exposeID('jobId'),
    name: t.exposeString('name'),
    status: t.expose('status', { type: JobStatus, description: 'At that moment.' }),
    exitCode: t.exposeInt('exitCode', { nullable: true }),
    job: t.prismaField({
      type: Job,
      nullable: true,
      description: 'As it is now; null once it is deleted.',
      resolve: (query, { jobId }, _args, { services }) =>
        services.db.job.findUnique({ ...query, where: { id: jobId } }),
    }),
  }),
});

builder.subscriptionFields((t) => ({
  jobLog: t.field({
    type: JobLogEvent,
    description: 'The log from its beginning, or after an entry, until the job is over.',
    args: {
      namespace: t.arg.string({ required: true }),
      name: t.arg.string({ required: true }),
      after: t.arg({ type: 'SafeInt', description: 'The `seq` of the last entry seen.' }),
    },
    subscribe: async (_root, args, { services, viewer }) => {
      const open = await following.followLog(services, viewer, args);
      return endedByReader(open);
    },
    resolve: (event) => event,
  }),
  jobEvents: t.field({
    type: JobEvent,
    description: 'Every change of a job, or of all jobs in a namespace.',
    args: {
      namespace: t.arg.string({ required: true }),
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
    resolve: (event) => event,
  }),
}));

/**
 * A generator that waits for the database is not ended by its reader going away; a repeater is told, and then
 * aborts it. `signal` of the request would not do: in graphql-sse's single connection mode the request that
 * subscribes is answered and over long before the subscription is.
 */
function endedByReader<T>(open: (signal: AbortSignal) => AsyncIterable<T>): AsyncIterable<T> {
  return new Repeater<T>(async (push, stop) => {
    const abort = new AbortController();
    void stop.then(() => abort.abort());
    try {
      for await (const event of open(abort.signal)) {
        await push(event);
        if (abort.signal.aborted) break;
      }
      stop();
    } catch (error) {
      stop(error);
    }
  });
}
