/** What a job says, in GraphQL: its log as it is read, and as it is followed. */
import { builder } from '../../platform/schema/builder.ts';
import type { EndEvent, LogBatch, LogEvent, LogLineEvent, StatusEvent } from '../following.ts';
import { JobStatus } from './enums.ts';

export const JobLogEvent = builder.interfaceRef<LogEvent>('JobLogEvent').implement({
  description: "An entry of a job's log: a line, a change of the status, or the end.",
  resolveType: ({ kind }) =>
    ({ log: 'LogLine', status: 'JobStatusChange', end: 'JobLogEnd' })[kind],
  fields: (t) => ({
    seq: t.expose('seq', {
      type: 'SafeInt',
      description:
        'The number of this entry. `jobLog` goes on after it when it is given as `after`.',
    }),
  }),
});

export const JobLogBatch = builder.objectRef<{ entries: LogBatch }>('JobLogBatch').implement({
  description: "Entries of a job's log that come at once.",
  fields: (t) => ({
    entries: t.field({
      type: [JobLogEvent],
      description: 'The entries in the order of `seq`, one at least.',
      resolve: ({ entries }) => [...entries],
    }),
  }),
});

export const LogLine = builder.objectRef<LogLineEvent>('LogLine').implement({
  description: 'A line that a job wrote.',
  interfaces: [JobLogEvent],
  fields: (t) => ({
    timestamp: t.expose('timestamp', { type: 'DateTime', description: 'When it was written.' }),
    message: t.exposeString('message', { description: 'The text without its newline.' }),
  }),
});

type Named = { name: string; namespace: string };

export const JobLogs = builder
  .objectRef<Named & { lines: LogLineEvent[]; hasMore: boolean }>('JobLogs')
  .implement({
    description: 'Lines of a log, oldest first.',
    fields: (t) => ({
      name: t.exposeString('name', { description: 'The name of the job.' }),
      namespace: t.exposeString('namespace', { description: 'The name of the owner.' }),
      lines: t.expose('lines', {
        type: [LogLine],
        description: 'The lines in the order of `seq`.',
        // Their number was counted where `tail` is given.
        complexity: { field: 0, multiplier: 1 },
      }),
      hasMore: t.exposeBoolean('hasMore', {
        description: 'Whether older lines were left out, by `tail` or because the answer is full.',
      }),
    }),
  });

builder.objectRef<StatusEvent>('JobStatusChange').implement({
  description: 'The status of the job changed.',
  interfaces: [JobLogEvent],
  fields: (t) => ({
    timestamp: t.expose('timestamp', { type: 'DateTime', description: 'When it changed.' }),
    status: t.expose('status', { type: JobStatus, description: 'The new status.' }),
  }),
});

builder.objectRef<EndEvent>('JobLogEnd').implement({
  description:
    'The job is over, and nothing follows. Its `seq` is that of the last line or change before.',
  interfaces: [JobLogEvent],
  fields: (t) => ({
    status: t.expose('status', { type: JobStatus, description: 'The final status.' }),
    exitCode: t.exposeInt('exitCode', {
      nullable: true,
      description: 'The exit code of its last process; null if there was none.',
    }),
  }),
});
