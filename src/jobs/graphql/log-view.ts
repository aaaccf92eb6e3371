/** GraphQL fields for log views: ranges of a log by number and time, searches, and links for browsers. */
import type { Viewer } from '../../identity/permissions.ts';
import { builder, SortOrder } from '../../platform/schema/builder.ts';
import { MAX_MATCHES, type SearchMatch, type SearchResult, searchLog } from '../logs/search.ts';
import { readWindow } from '../logs/window.ts';
import type { LogEvent } from '../requests/following.ts';
import * as links from '../requests/log-links.ts';
import { Job } from './jobs.ts';
import { JobLogEvent, LogLineType } from './logs.ts';

type Window = { entries: LogEvent[]; hasOlder: boolean; hasNewer: boolean; lastSeq: number };

const JobLogWindow = builder.objectRef<Window>('JobLogWindow').implement({
  description: 'A range of a log: lines and status changes, oldest first.',
  fields: (t) => ({
    entries: t.expose('entries', {
      type: [JobLogEvent],
      description: 'The entries, with consecutive values of `seq`.',
      // The complexity of the entries is part of `Job.log`, which has the arguments `first` and `last`.
      complexity: { field: 0, multiplier: 1 },
    }),
    hasOlder: t.exposeBoolean('hasOlder', {
      description: 'Whether there are earlier entries.',
    }),
    hasNewer: t.exposeBoolean('hasNewer', {
      description: 'Whether there are later entries at the moment.',
    }),
    lastSeq: t.expose('lastSeq', {
      type: 'SafeInt',
      description: 'The `seq` of the newest entry of the log, which is also the number of entries.',
    }),
  }),
});

const JobLogMatch = builder.objectRef<SearchMatch>('JobLogMatch').implement({
  description: 'A matching line with its context.',
  fields: (t) => ({
    line: t.expose('line', { type: LogLineType, description: 'The line.' }),
    before: t.expose('before', {
      type: [LogLineType],
      description: 'The lines before the match, oldest first.',
    }),
    after: t.expose('after', {
      type: [LogLineType],
      description: 'The lines after the match, oldest first.',
    }),
  }),
});

const JobLogSearch = builder.objectRef<SearchResult>('JobLogSearch').implement({
  description: 'The result of a log search.',
  fields: (t) => ({
    matches: t.expose('matches', {
      type: [JobLogMatch],
      description: 'The lines that contain the text, in the requested order.',
      // The complexity of the matches is part of `Job.logSearch`, which has the argument `first`.
      complexity: { field: 0, multiplier: 1 },
    }),
    searchedTo: t.expose('searchedTo', {
      type: 'SafeInt',
      description: 'The last entry that was searched. Pass it as `after` to continue the search.',
    }),
    hasMore: t.exposeBoolean('hasMore', {
      description:
        'Whether a part of the log was not searched, because there were enough matches or the search took two seconds.',
    }),
  }),
});

/** The semaphore key of searches: concurrent searches of one user wait for each other. */
function searchQueueKey(viewer: Viewer): string {
  return viewer.kind === 'account' ? viewer.userId : '';
}

builder.prismaObjectFields(Job, (t) => ({
  log: t.field({
    type: JobLogWindow,
    nullable: true,
    description:
      'A range of the log: `first` entries after `after` or from the time `at` on, or the `last` entries before `before`; by default the last 100. A response contains at most 16 MiB; entries beyond that are left out at the far end.',
    complexity: ({ first, last }) => ({ field: 5, multiplier: Math.max(1, first ?? last ?? 100) }),
    args: {
      first: t.arg.int({ description: 'The number of entries, forwards: 1 to 1000.' }),
      after: t.arg({ type: 'SafeInt', description: 'Only entries after this `seq`.' }),
      at: t.arg({
        type: 'DateTime',
        description: 'Start with the first line written at or after this time.',
      }),
      last: t.arg.int({ description: 'The number of entries, backwards: 1 to 1000.' }),
      before: t.arg({ type: 'SafeInt', description: 'Only entries before this `seq`.' }),
    },
    select: { id: true },
    resolve: ({ id }, args, { services, allowance }, info) =>
      readWindow(services, id, args, allowance(info)),
  }),
  logSearch: t.field({
    type: JobLogSearch,
    nullable: true,
    description: 'Searches the whole log for lines that contain a text.',
    // A search may take two seconds, so the complexity limits an operation to ten searches.
    complexity: ({ first }) => ({
      field: 4_000,
      multiplier: Math.min(Math.max(first, 1), MAX_MATCHES),
    }),
    args: {
      text: t.arg.string({ required: true, description: 'The text: 1 to 1000 characters.' }),
      matchCase: t.arg.boolean({
        required: true,
        defaultValue: false,
        description: 'Whether the search is case-sensitive.',
      }),
      order: t.arg({
        type: SortOrder,
        required: true,
        defaultValue: 'asc',
        description: 'Whether the search starts with the oldest or the newest line.',
      }),
      after: t.arg({
        type: 'SafeInt',
        description:
          'The position to continue from: `searchedTo` of the previous search, in the same order.',
      }),
      first: t.arg.int({
        required: true,
        defaultValue: 20,
        description: 'The maximum number of matches: 1 to 100.',
      }),
      context: t.arg.int({
        required: true,
        defaultValue: 0,
        description: 'The number of lines before and after each match: 0 to 10.',
      }),
    },
    select: { id: true },
    resolve: ({ id }, args, { services, viewer, signal, allowance }, info) =>
      services.reads.search(searchQueueKey(viewer), signal, () =>
        searchLog(services, id, args, allowance(info), signal),
      ),
  }),
  logDownloadUrl: t.string({
    description:
      'A link to the whole log as plain text, valid for 15 minutes without credentials. With `&timestamps=true` each line starts with its time.',
    select: { namespace: { select: { name: true } } },
    resolve: (job, _args, { services }) => links.buildDownloadUrl(services, job),
  }),
  logStreamUrl: t.string({
    nullable: true,
    description:
      'A link to the live event stream of the log, for an `EventSource`, which cannot send credentials. It can be opened for 15 minutes. The stream has the permissions of the credential that requested the link, and ends when that credential becomes invalid. `&tail=`, `&since=` and `&after=` (like `Last-Event-ID`) can be added.',
    select: { namespace: { select: { name: true } } },
    resolve: (job, _args, { services, viewer }) => links.buildStreamUrl(services, viewer, job),
  }),
}));
