/** GraphQL types of logs and of the events of a log stream. */
import { builder } from '../../platform/schema/builder.ts';
import type { LineEntry, StatusEntry } from '../record/journal-pages.ts';
import type { EndEvent, LogEvent, LogEventBatch } from '../requests/following.ts';
import { JobStatus } from './enums.ts';

export const JobLogEvent = builder.interfaceRef<LogEvent>('JobLogEvent').implement({
  description: "An entry of a job's log: a line, a status change, or the end.",
  resolveType: ({ kind }) =>
    ({ log: 'LogLine', status: 'JobStatusChange', end: 'JobLogEnd' })[kind],
  fields: (t) => ({
    seq: t.expose('seq', {
      type: 'SafeInt',
      description: 'The number of the entry. Pass it as `after` to continue `jobLog` after it.',
    }),
  }),
});

export const JobLogBatch = builder.objectRef<{ entries: LogEventBatch }>('JobLogBatch').implement({
  description: "Entries of a job's log that are sent together.",
  fields: (t) => ({
    entries: t.field({
      type: [JobLogEvent],
      description: 'The entries in the order of `seq`, at least one.',
      resolve: ({ entries }) => [...entries],
    }),
  }),
});

export const LogLineType = builder.objectRef<LineEntry>('LogLine').implement({
  description: 'A line that a job printed.',
  interfaces: [JobLogEvent],
  fields: (t) => ({
    timestamp: t.expose('timestamp', {
      type: 'DateTime',
      description: 'When the job printed the line.',
    }),
    message: t.exposeString('message', { description: 'The text without the newline.' }),
  }),
});

export const JobLogs = builder
  .objectRef<{ name: string; namespace: string; lines: LineEntry[]; hasMore: boolean }>('JobLogs')
  .implement({
    description: 'Lines of a log, oldest first.',
    fields: (t) => ({
      name: t.exposeString('name', { description: 'The name of the job.' }),
      namespace: t.exposeString('namespace', { description: 'The name of the owner.' }),
      lines: t.expose('lines', {
        type: [LogLineType],
        description: 'The lines in the order of `seq`.',
        // The complexity of the lines is part of `Job.logs`, which has the argument `tail`.
        complexity: { field: 0, multiplier: 1 },
      }),
      hasMore: t.exposeBoolean('hasMore', {
        description:
          'Whether older lines were left out because of `tail` or the size limit of the response.',
      }),
    }),
  });

// The following types are not exported: the schema finds them through their interface.
builder.objectRef<StatusEntry>('JobStatusChange').implement({
  description: 'The status of the job changed.',
  interfaces: [JobLogEvent],
  fields: (t) => ({
    timestamp: t.expose('timestamp', { type: 'DateTime', description: 'When the status changed.' }),
    status: t.expose('status', { type: JobStatus, description: 'The new status.' }),
  }),
});

builder.objectRef<EndEvent>('JobLogEnd').implement({
  description:
    'The job has ended, and no entries follow. `seq` is the number of the last line or status change.',
  interfaces: [JobLogEvent],
  fields: (t) => ({
    status: t.expose('status', { type: JobStatus, description: 'The final status.' }),
    exitCode: t.exposeInt('exitCode', {
      nullable: true,
      description:
        'The exit code of the job; null if it has none, for example if it was cancelled before its start.',
    }),
  }),
});
