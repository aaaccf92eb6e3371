/** Searching a repository, who wrote the lines of a file, and archives, in GraphQL. */

import type { FoundLine } from '../../git/objects/search.ts';
import { builder } from '../../platform/schema/builder.ts';
import { PROCESS, pageCost } from '../../platform/schema/paging.ts';
import { archiveUrl } from '../browsing/archives.ts';
import * as authorship from '../browsing/authorship.ts';
import * as search from '../browsing/search.ts';
import { accessColumns } from '../repositories.ts';
import { Commit } from './contents.ts';
import { REF, Repository } from './repositories.ts';

const FIRST = {
  required: true,
  defaultValue: 20,
  description: 'How many to find: 1 to 100. More is refused.',
} as const;

const FileSearch = builder.objectRef<search.FoundFiles>('FileSearch').implement({
  description: 'Files that were found by their names.',
  fields: (t) => ({
    ref: t.exposeString('ref', { description: 'The ref that was used.' }),
    paths: t.exposeStringList('paths', {
      description: 'Their paths: first those whose last part has all the words.',
    }),
    isTruncated: t.exposeBoolean('isTruncated', { description: 'Whether there are more.' }),
  }),
});

const FoundLineType = builder.objectRef<FoundLine>('FoundLine').implement({
  description: 'A line of a file that matches.',
  fields: (t) => ({
    path: t.exposeString('path', { description: 'The path of the file.' }),
    line: t.exposeInt('line', { description: 'The number of the line, from 1.' }),
    column: t.exposeInt('column', {
      description: 'Where the first match begins in it, in bytes from 1.',
    }),
    text: t.exposeString('text', { description: 'The line, at most 400 bytes of it.' }),
  }),
});

const TextSearch = builder
  .objectRef<Awaited<ReturnType<typeof search.findLines>>>('TextSearch')
  .implement({
    description: 'Lines that were found.',
    fields: (t) => ({
      ref: t.exposeString('ref', { description: 'The ref that was used.' }),
      lines: t.expose('lines', {
        type: [FoundLineType],
        description: 'The lines by path, at most 20 of a file.',
      }),
      isTruncated: t.exposeBoolean('isTruncated', {
        description: 'Whether there are more, beside those of files that have over 20.',
      }),
    }),
  });

const BlamedLines = builder.objectRef<authorship.Blamed>('BlamedLines').implement({
  description: 'Lines in a row that one commit brought.',
  fields: (t) => ({
    line: t.exposeInt('line', { description: 'The number of the first, from 1.' }),
    count: t.exposeInt('count', { description: 'How many they are.' }),
    oldPath: t.exposeString('oldPath', { description: 'The path of the file in that commit.' }),
    oldLine: t.exposeInt('oldLine', { description: 'The number of the first in that commit.' }),
    commit: t.expose('commit', { type: Commit, nullable: true, description: 'The commit.' }),
  }),
});

const ArchiveFormat = builder.enumType('ArchiveFormat', {
  description: 'The form of an archive.',
  values: {
    TAR_GZ: { value: 'tar.gz', description: 'A tar, packed by gzip.' },
    ZIP: { value: 'zip', description: 'A zip.' },
  } as const,
});

builder.prismaObjectFields(Repository, (t) => ({
  archiveUrl: t.string({
    nullable: true,
    description:
      'A link to all files of what a ref names now, that works for 15 minutes without credentials. Large files are in it in the place of their pointers.',
    complexity: 5,
    args: {
      ref: t.arg.string({ description: REF }),
      format: t.arg({
        type: ArchiveFormat,
        required: true,
        defaultValue: 'tar.gz',
        description: 'The form of the archive.',
      }),
    },
    select: { ...accessColumns, name: true },
    resolve: (row, args, { services, viewer }) => archiveUrl(services, viewer, row, args),
  }),
  fileSearch: t.field({
    type: FileSearch,
    nullable: true,
    description: 'Files whose paths hold all words of a text, in any case.',
    complexity: pageCost(PROCESS),
    args: {
      text: t.arg.string({ required: true, description: 'The words, at most 256 characters.' }),
      ref: t.arg.string({ description: REF }),
      first: t.arg.int(FIRST),
    },
    select: accessColumns,
    resolve: (row, args, { services, viewer, caller, signal, allowance }, info) =>
      search.findFiles(services, { viewer, caller, signal }, row, args, allowance(info)),
  }),
  textSearch: t.field({
    type: TextSearch,
    nullable: true,
    description: 'Lines of text files that match. A search may take ten seconds.',
    complexity: pageCost(PROCESS),
    args: {
      text: t.arg.string({
        required: true,
        description: 'What to look for: one line of at most 256 characters.',
      }),
      ref: t.arg.string({ description: REF }),
      path: t.arg.string({
        required: true,
        defaultValue: '',
        description: 'A directory or a file to look in; empty: everywhere.',
      }),
      isPattern: t.arg.boolean({
        required: true,
        defaultValue: false,
        description: 'Whether `text` is an extended regular expression (POSIX).',
      }),
      ignoresCase: t.arg.boolean({
        required: true,
        defaultValue: false,
        description: 'Whether capitals and small letters are the same.',
      }),
      first: t.arg.int(FIRST),
    },
    select: accessColumns,
    resolve: (row, args, { services, viewer, caller, signal, allowance }, info) =>
      search.findLines(services, { viewer, caller, signal }, row, args, allowance(info)),
  }),
  blame: t.field({
    type: [BlamedLines],
    nullable: true,
    description: 'Which commits brought the lines of a file, at most 2,000 of them.',
    complexity: { field: PROCESS, multiplier: 50 },
    args: {
      path: t.arg.string({
        required: true,
        description: 'The path of the file from the root, without a leading `/`.',
      }),
      ref: t.arg.string({ description: REF }),
      from: t.arg.int({ required: true, defaultValue: 1, description: 'The first line, from 1.' }),
      to: t.arg.int({
        description: 'The last line; left out: 2,000 lines, or as many as there are.',
      }),
    },
    select: accessColumns,
    resolve: (row, args, { services, viewer, allowance }, info) =>
      authorship.blame(services, viewer, row, args, allowance(info)),
  }),
}));
