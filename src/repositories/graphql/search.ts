/** GraphQL: search in a repository, blame, and archives. */

import type { FoundLine } from '../../git/objects/search.ts';
import { builder } from '../../platform/schema/builder.ts';
import { GIT_PROCESS_COST, pageCost } from '../../platform/schema/paging.ts';
import { createArchiveUrl } from '../browsing/archives.ts';
import * as authorship from '../browsing/authorship.ts';
import * as search from '../browsing/search.ts';
import { accessColumns } from '../repositories.ts';
import { Commit } from './contents.ts';
import { REF_DESCRIPTION, Repository } from './repositories.ts';

const RESULT_LIMIT = {
  required: true,
  defaultValue: 20,
  description: 'The maximum number of results: 1 to 100.',
} as const;

const FileSearch = builder.objectRef<search.FoundFiles>('FileSearch').implement({
  description: 'The result of a file name search.',
  fields: (t) => ({
    ref: t.exposeString('ref', { description: 'The ref that was used.' }),
    paths: t.exposeStringList('paths', {
      description: 'The paths of the files. Matches in the file name come first.',
    }),
    isTruncated: t.exposeBoolean('isTruncated', { description: 'Whether there are more results.' }),
  }),
});

const FoundLineType = builder.objectRef<FoundLine>('FoundLine').implement({
  description: 'A matching line of a file.',
  fields: (t) => ({
    path: t.exposeString('path', { description: 'The path of the file.' }),
    line: t.exposeInt('line', { description: 'The line number, starting at 1.' }),
    column: t.exposeInt('column', {
      description: 'The position of the first match in the line, in bytes, starting at 1.',
    }),
    text: t.exposeString('text', { description: 'The line, truncated to 400 bytes.' }),
  }),
});

const TextSearch = builder
  .objectRef<Awaited<ReturnType<typeof search.findLines>>>('TextSearch')
  .implement({
    description: 'The result of a text search.',
    fields: (t) => ({
      ref: t.exposeString('ref', { description: 'The ref that was used.' }),
      lines: t.expose('lines', {
        type: [FoundLineType],
        description: 'The matching lines, sorted by path, at most 20 per file.',
      }),
      isTruncated: t.exposeBoolean('isTruncated', {
        description: 'Whether there are more results, not counting lines beyond 20 in one file.',
      }),
    }),
  });

const BlamedLines = builder.objectRef<authorship.BlameHunk>('BlamedLines').implement({
  description: 'Consecutive lines that were last changed by the same commit.',
  fields: (t) => ({
    line: t.exposeInt('line', { description: 'The number of the first line, starting at 1.' }),
    count: t.exposeInt('count', { description: 'The number of lines.' }),
    oldPath: t.exposeString('oldPath', { description: 'The path of the file in that commit.' }),
    oldLine: t.exposeInt('oldLine', {
      description: 'The number of the first line in that commit.',
    }),
    commit: t.expose('commit', { type: Commit, nullable: true, description: 'The commit.' }),
  }),
});

const ArchiveFormat = builder.enumType('ArchiveFormat', {
  description: 'The format of an archive.',
  values: {
    TAR_GZ: { value: 'tar.gz', description: 'A tar archive compressed with gzip.' },
    ZIP: { value: 'zip', description: 'A zip archive.' },
  } as const,
});

builder.prismaObjectFields(Repository, (t) => ({
  archiveUrl: t.string({
    nullable: true,
    description:
      'A link to an archive of the commit that a ref currently names, valid for 15 minutes without credentials. The archive contains large files instead of their pointers.',
    complexity: 5,
    args: {
      ref: t.arg.string({ description: REF_DESCRIPTION }),
      format: t.arg({
        type: ArchiveFormat,
        required: true,
        defaultValue: 'tar.gz',
        description: 'The format of the archive.',
      }),
    },
    select: { ...accessColumns, name: true },
    resolve: (row, args, { services, viewer }) => createArchiveUrl(services, viewer, row, args),
  }),
  fileSearch: t.field({
    type: FileSearch,
    nullable: true,
    description: 'Finds files whose paths contain all words of a text, case-insensitively.',
    complexity: pageCost(GIT_PROCESS_COST),
    args: {
      text: t.arg.string({ required: true, description: 'The words, at most 256 characters.' }),
      ref: t.arg.string({ description: REF_DESCRIPTION }),
      first: t.arg.int(RESULT_LIMIT),
    },
    select: accessColumns,
    resolve: (row, args, { services, viewer, caller, signal, allowance }, info) =>
      search.findFiles(services, { viewer, caller, signal }, row, args, allowance(info)),
  }),
  textSearch: t.field({
    type: TextSearch,
    nullable: true,
    description: 'Finds matching lines in text files. A search may take up to 10 seconds.',
    complexity: pageCost(GIT_PROCESS_COST),
    args: {
      text: t.arg.string({
        required: true,
        description: 'The text to search for: one line of at most 256 characters.',
      }),
      ref: t.arg.string({ description: REF_DESCRIPTION }),
      path: t.arg.string({
        required: true,
        defaultValue: '',
        description: 'A directory or file to search in. Empty for the whole repository.',
      }),
      isPattern: t.arg.boolean({
        required: true,
        defaultValue: false,
        description: 'Whether `text` is an extended regular expression (POSIX).',
      }),
      ignoresCase: t.arg.boolean({
        required: true,
        defaultValue: false,
        description: 'Whether the search ignores case.',
      }),
      first: t.arg.int(RESULT_LIMIT),
    },
    select: accessColumns,
    resolve: (row, args, { services, viewer, caller, signal, allowance }, info) =>
      search.findLines(services, { viewer, caller, signal }, row, args, allowance(info)),
  }),
  blame: t.field({
    type: [BlamedLines],
    nullable: true,
    description: 'The commits that last changed the lines of a file, for at most 2,000 lines.',
    complexity: { field: GIT_PROCESS_COST, multiplier: 50 },
    args: {
      path: t.arg.string({
        required: true,
        description: 'The path of the file from the root, without a leading `/`.',
      }),
      ref: t.arg.string({ description: REF_DESCRIPTION }),
      from: t.arg.int({
        required: true,
        defaultValue: 1,
        description: 'The first line, starting at 1.',
      }),
      to: t.arg.int({
        description: 'The last line. Default: 2,000 lines, or up to the end of the file.',
      }),
    },
    select: accessColumns,
    resolve: (row, args, { services, viewer, allowance }, info) =>
      authorship.blame(services, viewer, row, args, allowance(info)),
  }),
}));
