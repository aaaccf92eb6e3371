/** What commits change, in GraphQL: files, patches, comparisons. */
import { MAX_FILES, MAX_PAGE_BYTES, MAX_PATCH_BYTES, type Patch } from '../../git/objects/diff.ts';
import { builder } from '../../graphql/builder.ts';
import {
  connectionType,
  PROCESS,
  pageCost,
  sliceArgs,
  toConnection,
} from '../../graphql/paging.ts';
import * as changes from '../browsing/changes.ts';
import { Commit, CommitConnection } from './contents.ts';

const FileStatus = builder.enumType('ChangedFileStatus', {
  description: 'What became of a file.',
  values: {
    ADDED: { value: 'added', description: 'It is new.' },
    DELETED: { value: 'deleted', description: 'It is gone.' },
    MODIFIED: { value: 'modified', description: 'It has other contents, or another mode.' },
    RENAMED: { value: 'renamed', description: 'It has another path, and perhaps other contents.' },
    TYPE_CHANGED: {
      value: 'type_changed',
      description: 'It was a file and is a symbolic link or a submodule, or the other way round.',
    },
  } as const,
});

const PatchType = builder.objectRef<Patch>('Patch').implement({
  description: 'What changed in one file, line by line.',
  fields: (t) => ({
    text: t.exposeString('text', {
      description:
        'The hunks of a unified diff, each from its `@@`; empty where only the path or the mode changed.',
    }),
    isTruncated: t.exposeBoolean('isTruncated', {
      description: `More was left out: a patch has at most ${MAX_PATCH_BYTES / 1024} KiB, those of a page ${MAX_PAGE_BYTES / 1024} KiB.`,
    }),
  }),
});

const ChangedFile = builder.objectRef<changes.ChangedFile>('ChangedFile').implement({
  description: 'A file that changed.',
  fields: (t) => ({
    path: t.exposeString('path', { description: 'Of a file that is gone, the one it had.' }),
    oldPath: t.exposeString('oldPath', {
      nullable: true,
      description: 'The one it had before; null unless it was renamed.',
    }),
    status: t.expose('status', { type: FileStatus, description: 'What became of it.' }),
    oldMode: t.exposeString('oldMode', {
      nullable: true,
      description: 'Six octal digits; null of a new file.',
    }),
    mode: t.exposeString('mode', {
      nullable: true,
      description: 'Six octal digits; null of a file that is gone.',
    }),
    additions: t.exposeInt('additions', {
      nullable: true,
      description: 'Lines that came; null where lines were not counted.',
    }),
    deletions: t.exposeInt('deletions', {
      nullable: true,
      description: 'Lines that went; null where lines were not counted.',
    }),
    isBinary: t.exposeBoolean('isBinary', {
      description: 'It is not compared line by line: it is no text, or has more than 2 MiB.',
    }),
    patch: t.field({
      type: PatchType,
      nullable: true,
      description: 'What changed in it; null of a binary file.',
      complexity: 5,
      resolve: (file) => file.patch(),
    }),
  }),
});

const ChangesType = builder.objectRef<changes.ChangesHere>('Changes').implement({
  description: 'What differs between two commits.',
  fields: (t) => ({
    additions: t.exposeInt('additions', {
      nullable: true,
      description: 'Lines that came, in all files; null when `isTruncated`.',
    }),
    deletions: t.exposeInt('deletions', {
      nullable: true,
      description: 'Lines that went, in all files; null when `isTruncated`.',
    }),
    isTruncated: t.exposeBoolean('isTruncated', {
      description: `More than ${MAX_FILES} files changed: the rest are not listed, and no lines are counted.`,
    }),
    files: t.field({
      type: connectionType('ChangedFile', ChangedFile),
      nullable: true,
      description: 'By path.',
      complexity: pageCost(),
      args: sliceArgs,
      resolve: (range, args, { services, allowance }, info) =>
        toConnection(changes.changedFiles(services, range, args, allowance(info)), args),
    }),
  }),
});

builder.objectField(Commit, 'changes', (t) =>
  t.field({
    type: ChangesType,
    nullable: true,
    description: 'What it changes of its first parent; of a first commit, all that is in it.',
    complexity: { field: PROCESS, multiplier: 1 },
    resolve: (commit, _args, { services }) => changes.changesOf(services, commit),
  }),
);

export const Comparison = builder.objectRef<changes.Comparison>('Comparison').implement({
  description: 'How one revision differs from another.',
  fields: (t) => ({
    base: t.expose('base', { type: Commit, description: 'The one it is compared with.' }),
    head: t.expose('head', { type: Commit, description: 'The one that is compared.' }),
    mergeBase: t.expose('mergeBase', {
      type: Commit,
      nullable: true,
      description: 'Where the two parted; null when they never met.',
    }),
    aheadBy: t.int({
      description: 'How many commits `head` has that `base` has not.',
      complexity: PROCESS,
      resolve: async (comparison) => (await comparison.apart()).ahead,
    }),
    behindBy: t.int({
      description: 'How many commits `base` has that `head` has not.',
      resolve: async (comparison) => (await comparison.apart()).behind,
    }),
    commits: t.field({
      type: CommitConnection,
      nullable: true,
      description: 'Those of `head` that `base` has not, newest first.',
      complexity: pageCost(PROCESS),
      args: sliceArgs,
      resolve: async (comparison, args, { services, allowance }, info) =>
        toConnection(
          await changes.commitsBetween(services, comparison, args, allowance(info)),
          args,
        ),
    }),
    changes: t.field({
      type: ChangesType,
      nullable: true,
      description: 'What `head` changes since the two parted; of `base`, where they never met.',
      complexity: { field: PROCESS, multiplier: 1 },
      resolve: (comparison, _args, { services }) => changes.changesBetween(services, comparison),
    }),
  }),
});
