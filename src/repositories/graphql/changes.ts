/** What commits change, in GraphQL: files, patches, comparisons. */
import { MAX_FILES, MAX_PAGE_BYTES, MAX_PATCH_BYTES, type Patch } from '../../git/objects/diff.ts';
import { builder } from '../../platform/schema/builder.ts';
import {
  connectionType,
  PROCESS,
  pageCost,
  sliceArgs,
  toConnection,
} from '../../platform/schema/paging.ts';
import * as changes from '../browsing/changes.ts';
import { Commit, CommitConnection } from './contents.ts';

const FileStatus = builder.enumType('ChangedFileStatus', {
  description: 'How a file changed.',
  values: {
    ADDED: { value: 'added', description: 'It was added.' },
    DELETED: { value: 'deleted', description: 'It was deleted.' },
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
    path: t.exposeString('path', {
      description: 'The path; of a deleted file, the one that it had.',
    }),
    oldPath: t.exposeString('oldPath', {
      nullable: true,
      description: 'The path before it was renamed; else null.',
    }),
    status: t.expose('status', { type: FileStatus, description: 'How it changed.' }),
    oldMode: t.exposeString('oldMode', {
      nullable: true,
      description: 'The mode before, as six octal digits; null of an added file.',
    }),
    mode: t.exposeString('mode', {
      nullable: true,
      description: 'The mode after, as six octal digits; null of a deleted file.',
    }),
    additions: t.exposeInt('additions', {
      nullable: true,
      description: 'The number of added lines; null where lines were not counted.',
    }),
    deletions: t.exposeInt('deletions', {
      nullable: true,
      description: 'The number of removed lines; null where lines were not counted.',
    }),
    isBinary: t.exposeBoolean('isBinary', {
      description:
        'Whether it is not compared line by line, because it is no text or has more than 2 MiB.',
    }),
    patch: t.field({
      type: PatchType,
      nullable: true,
      description: 'The changed lines; null of a binary file.',
      complexity: 5,
      resolve: (file) => file.patch(),
    }),
  }),
});

const ChangesType = builder.objectRef<changes.ChangesHere>('Changes').implement({
  description: 'The differences between two commits.',
  fields: (t) => ({
    additions: t.exposeInt('additions', {
      nullable: true,
      description: 'The number of added lines in all files; null when `isTruncated`.',
    }),
    deletions: t.exposeInt('deletions', {
      nullable: true,
      description: 'The number of removed lines in all files; null when `isTruncated`.',
    }),
    isTruncated: t.exposeBoolean('isTruncated', {
      description: `More than ${MAX_FILES} files changed: the rest are not listed, and no lines are counted.`,
    }),
    files: t.field({
      type: connectionType('ChangedFile', ChangedFile),
      nullable: true,
      description: 'The changed files by path.',
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
    description:
      'What it changes compared with its first parent; a first commit adds all its files.',
    complexity: { field: PROCESS, multiplier: 1 },
    resolve: (commit, _args, { services }) => changes.changesOf(services, commit),
  }),
);

export const Comparison = builder.objectRef<changes.Comparison>('Comparison').implement({
  description: 'A comparison of two revisions.',
  fields: (t) => ({
    base: t.expose('base', {
      type: Commit,
      description: 'The commit that `head` is compared with.',
    }),
    head: t.expose('head', { type: Commit, description: 'The commit that is compared.' }),
    mergeBase: t.expose('mergeBase', {
      type: Commit,
      nullable: true,
      description: 'The last commit that both have; null when they have none in common.',
    }),
    aheadBy: t.int({
      description: 'How many commits `head` has that `base` does not have.',
      complexity: PROCESS,
      resolve: async (comparison) => (await comparison.apart()).ahead,
    }),
    behindBy: t.int({
      description: 'How many commits `base` has that `head` does not have.',
      resolve: async (comparison) => (await comparison.apart()).behind,
    }),
    commits: t.field({
      type: CommitConnection,
      nullable: true,
      description: 'The commits of `head` that `base` does not have, newest first.',
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
      description:
        'What `head` changes since `mergeBase`; compared with `base`, where there is none.',
      complexity: { field: PROCESS, multiplier: 1 },
      resolve: (comparison, _args, { services }) => changes.changesBetween(services, comparison),
    }),
  }),
});
