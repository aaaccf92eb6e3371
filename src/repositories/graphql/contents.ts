/** GraphQL: directories, files, commits and refs. */

import type { Annotation, Signature as SignatureShape } from '../../git/objects/commit.ts';
import type { Week } from '../../git/objects/commit-counts.ts';
import { builder } from '../../platform/schema/builder.ts';
import {
  defineConnectionType,
  definePageType,
  GIT_PROCESS_COST,
} from '../../platform/schema/paging.ts';
import * as authorship from '../browsing/authorship.ts';
import type * as contents from '../browsing/contents.ts';
import type { RefWithDetails } from '../browsing/history.ts';

const TreeEntryType = builder.enumType('TreeEntryType', {
  description: 'The kind of a directory entry.',
  values: {
    FILE: { value: 'file', description: 'A file, a symbolic link or a submodule.' },
    DIRECTORY: { value: 'directory', description: 'A directory.' },
  } as const,
});

const TreeEntry = builder.objectRef<authorship.EntryWithLastCommit>('TreeEntry').implement({
  description: 'A directory entry.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The name, which is the last part of the path.' }),
    type: t.expose('type', {
      type: TreeEntryType,
      description:
        'Whether it is a file or a directory. Symbolic links and submodules are files; `mode` distinguishes them.',
    }),
    sizeBytes: t.expose('size', {
      type: 'SafeInt',
      nullable: true,
      description:
        'The size of a file; for a large file, the size of its contents instead of its pointer. Null for directories.',
    }),
    isLargeFile: t.boolean({
      description: 'Whether it is a pointer of Git LFS to a large file.',
      resolve: ({ pointer }) => pointer !== undefined,
    }),
    mode: t.exposeString('mode', { description: 'The git file mode as six octal digits.' }),
    sha: t.exposeString('sha', {
      description: 'The id of the blob or tree; for a submodule, of its commit.',
    }),
    lastCommit: t.field({
      type: Commit,
      nullable: true,
      description:
        'The last commit that changed it; null if that commit is not found within 5 seconds.',
      complexity: 5,
      resolve: (entry) => entry.lastCommit(),
    }),
  }),
});

export const Tree = builder.objectRef<contents.Tree>('Tree').implement({
  description: 'A directory.',
  fields: (t) => ({
    path: t.exposeString('path', { description: 'The requested path.' }),
    ref: t.exposeString('ref', { description: 'The ref that was used.' }),
    entries: t.field({
      type: [TreeEntry],
      description: "The entries: directories first, then files, both in git's order.",
      // As many as there are, so this is a guess at an ordinary directory.
      complexity: { field: 5, multiplier: 30 },
      resolve: (tree, _args, { services, allowance }, info) =>
        authorship.addLastCommits(services, tree, allowance(info)),
    }),
  }),
});

const FileEncoding = builder.enumType('FileEncoding', {
  description: 'The kind of contents of a file.',
  values: {
    UTF_8: { value: 'utf-8', description: 'Text.' },
    BINARY: { value: 'binary', description: 'Not text.' },
  } as const,
});

export const File = builder.objectRef<contents.File>('File').implement({
  description: 'A file at a revision.',
  fields: (t) => ({
    path: t.exposeString('path', { description: 'The requested path.' }),
    ref: t.exposeString('ref', { description: 'The ref that was used.' }),
    sizeBytes: t.expose('sizeBytes', {
      type: 'SafeInt',
      description: 'The full size in bytes.',
    }),
    encoding: t.expose('encoding', {
      type: FileEncoding,
      description: 'Whether it is text or binary.',
    }),
    content: t.exposeString('content', {
      nullable: true,
      description: 'The text; null for binary files, large files and files over 1 MiB.',
    }),
    downloadUrl: t.exposeString('downloadUrl', {
      nullable: true,
      description:
        'A download link that is valid for 15 minutes without credentials; null if `content` is set.',
    }),
    isLargeFile: t.exposeBoolean('isLargeFile', {
      description: 'Whether it is a large file of Git LFS, which git stores as a pointer.',
    }),
    rawUrl: t.exposeString('rawUrl', {
      description:
        'A link to the contents that is valid for 15 minutes without credentials; set for every file.',
    }),
  }),
});

const Signature = builder.objectRef<SignatureShape>('Signature').implement({
  description: 'An author, committer or tagger as recorded in the commit or tag; not verified.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The name.' }),
    email: t.exposeString('email', { description: 'The email address, which may be any text.' }),
    date: t.expose('date', {
      type: 'DateTime',
      description: 'When the change was written, or the commit or tag was created.',
    }),
  }),
});

export const Commit = builder.objectRef<contents.RepositoryCommit>('Commit').implement({
  description: 'A commit.',
  fields: (t) => ({
    sha: t.exposeString('sha', { description: 'The id, as 40 hexadecimal digits.' }),
    parents: t.exposeStringList('parents', {
      description: 'The ids of its parents. A merge has several, a first commit none.',
      complexity: 1,
    }),
    message: t.exposeString('message', { description: 'The message without its final newline.' }),
    author: t.expose('author', { type: Signature, description: 'Who wrote the change.' }),
    committer: t.expose('committer', { type: Signature, description: 'Who created the commit.' }),
  }),
});

export const CommitWeek = builder.objectRef<Week>('CommitWeek').implement({
  description: 'The number of commits in one week.',
  fields: (t) => ({
    start: t.field({
      type: 'DateTime',
      description: 'The start of the week: Monday, 00:00 UTC.',
      resolve: ({ start }) => new Date(start * 1_000),
    }),
    commits: t.exposeInt('commits', { description: 'The number of commits.' }),
  }),
});

export const CommitPage = definePageType<contents.RepositoryCommit>('CommitPage', Commit);
export const CommitConnection = defineConnectionType('Commit', Commit);

const TagAnnotation = builder.objectRef<Annotation>('TagAnnotation').implement({
  description: 'The contents of an annotated tag.',
  fields: (t) => ({
    sha: t.exposeString('sha', { description: 'The id of the tag object.' }),
    message: t.exposeString('message', {
      description: 'The message without signature and final newline.',
    }),
    tagger: t.expose('tagger', {
      type: Signature,
      nullable: true,
      description: 'Who created the tag; null if the tag names nobody.',
    }),
  }),
});

const Ref = builder.objectRef<RefWithDetails>('Ref').implement({
  description: 'A branch or a tag.',
  fields: (t) => ({
    name: t.exposeString('name', {
      description: 'The name without `refs/heads/` or `refs/tags/`.',
    }),
    sha: t.exposeString('sha', { description: 'The id of the commit, also for annotated tags.' }),
    commit: t.field({
      type: Commit,
      nullable: true,
      description:
        'The commit that it points to; null if a tag points to a different kind of object.',
      resolve: (ref) => ref.commit(),
    }),
    aheadBy: t.int({
      nullable: true,
      description:
        'The number of commits of the branch that the default branch lacks. Null for tags, and if counting for the page takes longer than 5 seconds.',
      complexity: GIT_PROCESS_COST,
      resolve: async (ref) => (await ref.distance())?.ahead,
    }),
    behindBy: t.int({
      nullable: true,
      description:
        'The number of commits of the default branch that the branch lacks. Null in the same cases as `aheadBy`.',
      complexity: GIT_PROCESS_COST,
      resolve: async (ref) => (await ref.distance())?.behind,
    }),
    annotation: t.field({
      type: TagAnnotation,
      nullable: true,
      description: 'The annotation of an annotated tag; null for lightweight tags and branches.',
      resolve: (ref) => ref.annotation(),
    }),
  }),
});

export const RefConnection = defineConnectionType('Ref', Ref);
