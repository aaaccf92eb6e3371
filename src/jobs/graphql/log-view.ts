/** What a log view asks for, in GraphQL: parts of a log by number and time, searches, and links for browsers. */
import type { Viewer } from '../../identity/permissions.ts';
import { builder, SortOrder } from '../../platform/schema/builder.ts';
import { toLogEvent, type LogEvent } from '../following.ts';
import * as links from '../logs/links.ts';
import { type Found, MAX_MATCHES, type Match, searchLog } from '../logs/search.ts';
import { readWindow } from '../logs/window.ts';
import { Job } from './jobs.ts';
import { JobLogEvent, LogLine } from './logs.ts';

type Window = { entries: LogEvent[]; hasOlder: boolean; hasNewer: boolean; lastSeq: number };

const JobLogWindow = builder.objectRef<Window>('JobLogWindow').implement({
  description: 'A part of a log: its lines and changes of the status, oldest first.',
  fields: (t) => ({
    entries: t.expose('entries', {
      type: [JobLogEvent],
      description: 'The entries, whose `seq` follow each other without a gap.',
      // Their number was counted where `first` or `last` is given.
      complexity: { field: 0, multiplier: 1 },
    }),
    hasOlder: t.exposeBoolean('hasOlder', {
      description: 'Whether there are entries before these.',
    }),
    hasNewer: t.exposeBoolean('hasNewer', {
      description: 'Whether there are entries after these, by now.',
    }),
    lastSeq: t.expose('lastSeq', {
      type: 'SafeInt',
      description: 'The `seq` of the newest entry of the log, and so how many it has.',
    }),
  }),
});

const JobLogMatch = builder.objectRef<Match>('JobLogMatch').implement({
  description: 'A line that was found, with those around it.',
  fields: (t) => ({
    line: t.expose('line', { type: LogLine, description: 'The line.' }),
    before: t.expose('before', {
      type: [LogLine],
      description: 'The lines before it, oldest first.',
    }),
    after: t.expose('after', { type: [LogLine], description: 'The lines after it, oldest first.' }),
  }),
});

const JobLogSearch = builder.objectRef<Found>('JobLogSearch').implement({
  description: 'What a search through a log has found.',
  fields: (t) => ({
    matches: t.expose('matches', {
      type: [JobLogMatch],
      description: 'The lines that hold the text, in the order that was asked for.',
      // Their number was counted where `first` is given.
      complexity: { field: 0, multiplier: 1 },
    }),
    searchedTo: t.expose('searchedTo', {
      type: 'SafeInt',
      description: 'How far it has looked: the search goes on when it is given as `after`.',
    }),
    hasMore: t.exposeBoolean('hasMore', {
      description:
        'Whether there is more to look through: the page is full, or the time of one search, two seconds, was up.',
    }),
  }),
});

/** Whose searches take turns. */
function callerOf(viewer: Viewer): string {
  return viewer.kind === 'account' ? viewer.userId : '';
}

builder.prismaObjectFields(Job, (t) => ({
  log: t.field({
    type: JobLogWindow,
    nullable: true,
    description:
      'A part of its log: `first` entries after `after` or from the moment `at` on, or the `last` ones before `before`; without arguments the last 100. One answer holds 16 MiB; what does not fit is left out at the far end.',
    complexity: ({ first, last }) => ({ field: 5, multiplier: Math.max(1, first ?? last ?? 100) }),
    args: {
      first: t.arg.int({ description: 'How many, forwards: 1 to 1000.' }),
      after: t.arg({ type: 'SafeInt', description: 'The `seq` after which it begins.' }),
      at: t.arg({
        type: 'DateTime',
        description: 'It begins with the first line written then or later.',
      }),
      last: t.arg.int({ description: 'How many, backwards: 1 to 1000.' }),
      before: t.arg({ type: 'SafeInt', description: 'The `seq` before which it ends.' }),
    },
    resolve: async ({ id }, args, { services, allowance }, info) => {
      const { entries, ...window } = await readWindow(services, id, args, allowance(info));
      return { ...window, entries: entries.map(toLogEvent) };
    },
  }),
  logSearch: t.field({
    type: JobLogSearch,
    nullable: true,
    description: 'The lines of its whole log that hold a text.',
    // It may take seconds, so an operation has room for ten.
    complexity: ({ first }) => ({
      field: 4_000,
      multiplier: Math.min(Math.max(first, 1), MAX_MATCHES),
    }),
    args: {
      text: t.arg.string({ required: true, description: 'The text: 1 to 1000 characters.' }),
      matchCase: t.arg.boolean({
        required: true,
        defaultValue: false,
        description: 'Whether capitals are told from small letters.',
      }),
      order: t.arg({
        type: SortOrder,
        required: true,
        defaultValue: 'asc',
        description: 'Whether the search begins with the oldest line or with the newest.',
      }),
      after: t.arg({
        type: 'SafeInt',
        description: 'Where to go on: `searchedTo` of the search before, in the same order.',
      }),
      first: t.arg.int({
        required: true,
        defaultValue: 20,
        description: 'How many matches at most: 1 to 100.',
      }),
      context: t.arg.int({
        required: true,
        defaultValue: 0,
        description: 'How many lines before and after each match: 0 to 10.',
      }),
    },
    resolve: ({ id }, args, { services, viewer, signal, allowance }, info) =>
      services.reads.search(callerOf(viewer), signal, () =>
        searchLog(services, id, args, allowance(info), signal),
      ),
  }),
  logDownloadUrl: t.string({
    description:
      'A link to its whole log as plain text, which works for 15 minutes without credentials. With `&timestamps=true` each line begins with its time.',
    select: { namespace: { select: { name: true } } },
    resolve: (job, _args, { services }) => links.downloadUrl(services, job),
  }),
  logStreamUrl: t.string({
    nullable: true,
    description:
      'A link to the live event stream of its log, for an `EventSource`, which cannot send credentials. It can be opened for 15 minutes, and shows what the credential that asked for it may see, for as long as that is valid. `&tail=`, `&since=` and `&after=` (as `Last-Event-ID`) may be added.',
    select: { namespace: { select: { name: true } } },
    resolve: (job, _args, { services, viewer }) => links.streamUrl(services, viewer, job),
  }),
}));
