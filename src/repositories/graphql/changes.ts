/** GraphQL: changed files, patches and comparisons. */
import { MAX_FILES, MAX_PAGE_BYTES, MAX_PATCH_BYTES, type Patch } from '../../git/objects/diff.ts';
import { builder } from '../../platform/schema/builder.ts';
import {
  cursorPageArgs,
  defineConnectionType,
  GIT_PROCESS_COST,
  pageCost,
  toConnection,
} from '../../platform/schema/paging.ts';
import * as changes from '../browsing/changes.ts';
import { Commit, CommitConnection } from './contents.ts';

const FileStatus = builder.enumType('ChangedFileStatus', {
  description: 'How a file changed.',
  values: {
    ADDED: { value: 'added', description: 'It was added.' },
    DELETED: { value: 'deleted', description: 'It was deleted.' },
    MODIFIED: { value: 'modified', description: 'Its contents or mode changed.' },
    RENAMED: { value: 'renamed', description: 'Its path changed, and possibly its contents.' },
    TYPE_CHANGED: {
      value: 'type_changed',
      description: 'It changed between a file, a symbolic link and a submodule.',
    },
  } as const,
});

const PatchType = builder.objectRef<Patch>('Patch').implement({
  description: 'The changed lines of one file.',
  fields: (t) => ({
    text: t.exposeString('text', {
      description:
        'The hunks of a unified diff, each starting with `@@`. Empty if only the path or the mode changed.',
    }),
    isTruncated: t.exposeBoolean('isTruncated', {
      description: `Whether lines were omitted: a patch has at most ${MAX_PATCH_BYTES / 1024} KiB, and all patches of a page have at most ${MAX_PAGE_BYTES / 1024} KiB.`,
    }),
  }),
});

const ChangedFile = builder.objectRef<changes.ChangedFile>('ChangedFile').implement({
  description: 'A changed file.',
  fields: (t) => ({
    path: t.exposeString('path', {
      description: 'The path; for a deleted file, the path before the deletion.',
    }),
    oldPath: t.exposeString('oldPath', {
      nullable: true,
      description: 'The path before a rename; else null.',
    }),
    status: t.expose('status', { type: FileStatus, description: 'How it changed.' }),
    oldMode: t.exposeString('oldMode', {
      nullable: true,
      description: 'The old mode as six octal digits; null for an added file.',
    }),
    mode: t.exposeString('mode', {
      nullable: true,
      description: 'The new mode as six octal digits; null for a deleted file.',
    }),
    additions: t.exposeInt('additions', {
      nullable: true,
      description: 'The number of added lines; null if lines were not counted.',
    }),
    deletions: t.exposeInt('deletions', {
      nullable: true,
      description: 'The number of removed lines; null if lines were not counted.',
    }),
    isBinary: t.exposeBoolean('isBinary', {
      description:
        'Whether lines are not compared, because the file is not text or is larger than 2 MiB.',
    }),
    patch: t.field({
      type: PatchType,
      nullable: true,
      description: 'The changed lines; null for a binary file.',
      complexity: 5,
      resolve: (file) => file.patch(),
    }),
  }),
});

const ChangesType = builder.objectRef<changes.RepositoryChanges>('Changes').implement({
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
      description: `Whether more than ${MAX_FILES} files changed. If so, the rest are not listed, and lines are not counted.`,
    }),
    files: t.field({
      type: defineConnectionType('ChangedFile', ChangedFile),
      nullable: true,
      description: 'The changed files, sorted by path.',
      complexity: pageCost(),
      args: cursorPageArgs,
      resolve: (range, args, { services, allowance }, info) =>
        toConnection(changes.listChangedFiles(services, range, args, allowance(info)), args),
    }),
  }),
});

builder.objectField(Commit, 'changes', (t) =>
  t.field({
    type: ChangesType,
    nullable: true,
    description: 'The changes relative to the first parent. A root commit adds all its files.',
    complexity: { field: GIT_PROCESS_COST, multiplier: 1 },
    resolve: (commit, _args, { services }) => changes.readCommitChanges(services, commit),
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
      description: 'The best common ancestor; null if there is none.',
    }),
    aheadBy: t.int({
      description: 'The number of commits of `head` that `base` lacks.',
      complexity: GIT_PROCESS_COST,
      resolve: async (comparison) => (await comparison.distance()).ahead,
    }),
    behindBy: t.int({
      description: 'The number of commits of `base` that `head` lacks.',
      resolve: async (comparison) => (await comparison.distance()).behind,
    }),
    commits: t.field({
      type: CommitConnection,
      nullable: true,
      description: 'The commits of `head` that `base` lacks, newest first.',
      complexity: pageCost(GIT_PROCESS_COST),
      args: cursorPageArgs,
      resolve: async (comparison, args, { services, allowance }, info) =>
        toConnection(
          await changes.listComparisonCommits(services, comparison, args, allowance(info)),
          args,
        ),
    }),
    changes: t.field({
      type: ChangesType,
      nullable: true,
      description:
        'The changes of `head` since `mergeBase`, or relative to `base` if there is no merge base.',
      complexity: { field: GIT_PROCESS_COST, multiplier: 1 },
      resolve: (comparison, _args, { services }) =>
        changes.readComparisonChanges(services, comparison),
    }),
  }),
});
