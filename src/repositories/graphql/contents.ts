/** What is in a repository, in GraphQL: the types of directories, files, commits and refs. */
import type { Week } from '../../git/objects/activity.ts';
import type { Annotation, Signature as SignatureShape } from '../../git/objects/commit.ts';
import { builder } from '../../platform/schema/builder.ts';
import { connectionType, PROCESS, pageType } from '../../platform/schema/paging.ts';
import * as authorship from '../browsing/authorship.ts';
import type * as contents from '../browsing/contents.ts';
import type { RefAndCommit } from '../browsing/history.ts';

const TreeEntryType = builder.enumType('TreeEntryType', {
  description: 'The kind of an entry of a directory.',
  values: {
    FILE: { value: 'file', description: 'A file, a symbolic link or a submodule.' },
    DIRECTORY: { value: 'directory', description: 'A directory.' },
  } as const,
});

const TreeEntry = builder.objectRef<authorship.EntryHere>('TreeEntry').implement({
  description: 'An entry of a directory.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The name: the last part of its path.' }),
    type: t.expose('type', {
      type: TreeEntryType,
      description:
        'Whether it is a file or a directory. Symbolic links and submodules are files; `mode` distinguishes them.',
    }),
    sizeBytes: t.expose('size', {
      type: 'SafeInt',
      nullable: true,
      description:
        'The size of a file, that of its contents where it is a large one; null for directories.',
    }),
    mode: t.exposeString('mode', { description: 'The mode of git, as six octal digits.' }),
    sha: t.exposeString('sha', {
      description: 'The id of the blob, the tree or the commit of a submodule.',
    }),
    lastCommit: t.field({
      type: Commit,
      nullable: true,
      description:
        'The commit that changed it last; null where the history was not read back to it within 5 seconds.',
      complexity: 5,
      resolve: (entry) => entry.lastCommit(),
    }),
  }),
});

export const Tree = builder.objectRef<contents.Tree>('Tree').implement({
  description: 'A directory.',
  fields: (t) => ({
    path: t.exposeString('path', { description: 'The path that was asked for.' }),
    ref: t.exposeString('ref', { description: 'The ref that was used.' }),
    entries: t.field({
      type: [TreeEntry],
      description: "The entries: directories first, then files, both in git's order.",
      // As many as there are, so this is a guess at an ordinary directory.
      complexity: { field: 5, multiplier: 30 },
      resolve: (tree, _args, { services, allowance }, info) =>
        authorship.entriesOf(services, tree, allowance(info)),
    }),
  }),
});

const FileEncoding = builder.enumType('FileEncoding', {
  description: 'What a file contains.',
  values: {
    UTF_8: { value: 'utf-8', description: 'Text.' },
    BINARY: { value: 'binary', description: 'Anything else.' },
  } as const,
});

export const File = builder.objectRef<contents.File>('File').implement({
  description: 'A file at a revision.',
  fields: (t) => ({
    path: t.exposeString('path', { description: 'The path that was asked for.' }),
    ref: t.exposeString('ref', { description: 'The ref that was used.' }),
    sizeBytes: t.expose('sizeBytes', {
      type: 'SafeInt',
      description: 'The size of its whole contents.',
    }),
    encoding: t.expose('encoding', {
      type: FileEncoding,
      description: 'Whether it is text or binary.',
    }),
    content: t.exposeString('content', {
      nullable: true,
      description: 'The text; null for binary and large files and for those over 1 MiB.',
    }),
    downloadUrl: t.exposeString('downloadUrl', {
      nullable: true,
      description:
        'A link that works for 15 minutes without credentials; null where `content` is not.',
    }),
    rawUrl: t.exposeString('rawUrl', {
      description:
        'A link to its contents that works for 15 minutes without credentials, for every file.',
    }),
  }),
});

const Signature = builder.objectRef<SignatureShape>('Signature').implement({
  description:
    'An author, committer or tagger as the commit or tag names them, which nobody has verified.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The name.' }),
    email: t.exposeString('email', { description: 'The address, which may be any text.' }),
    date: t.expose('date', {
      type: 'DateTime',
      description: 'When it was written or made.',
    }),
  }),
});

export const Commit = builder.objectRef<contents.CommitHere>('Commit').implement({
  description: 'A commit.',
  fields: (t) => ({
    sha: t.exposeString('sha', { description: 'The id, as 40 hexadecimal digits.' }),
    parents: t.exposeStringList('parents', {
      description: 'The ids of its parents. A merge has several, a first commit none.',
      complexity: 1,
    }),
    message: t.exposeString('message', { description: 'The message without its final newline.' }),
    author: t.expose('author', { type: Signature, description: 'Who wrote the change.' }),
    committer: t.expose('committer', { type: Signature, description: 'Who made the commit.' }),
  }),
});

export const CommitWeek = builder.objectRef<Week>('CommitWeek').implement({
  description: 'The commits of a week.',
  fields: (t) => ({
    start: t.field({
      type: 'DateTime',
      description: 'The beginning of its Monday (UTC).',
      resolve: ({ start }) => new Date(start * 1_000),
    }),
    commits: t.exposeInt('commits', { description: 'How many they are.' }),
  }),
});

export const CommitPage = pageType<contents.CommitHere>('CommitPage', Commit);
export const CommitConnection = connectionType('Commit', Commit);

const TagAnnotation = builder.objectRef<Annotation>('TagAnnotation').implement({
  description: 'What an annotated tag says.',
  fields: (t) => ({
    sha: t.exposeString('sha', { description: 'The id of the tag itself.' }),
    message: t.exposeString('message', {
      description: 'Its message, without a signature and the final newline.',
    }),
    tagger: t.expose('tagger', {
      type: Signature,
      nullable: true,
      description: 'Who made it; null where it names nobody.',
    }),
  }),
});

const Ref = builder.objectRef<RefAndCommit>('Ref').implement({
  description: 'A branch or a tag.',
  fields: (t) => ({
    name: t.exposeString('name', {
      description: 'The name without `refs/heads/` or `refs/tags/`.',
    }),
    sha: t.exposeString('sha', { description: 'The id of the commit, for annotated tags too.' }),
    commit: t.field({
      type: Commit,
      nullable: true,
      description: 'The commit that it points to; null for a tag of something else.',
      resolve: (ref) => ref.commit(),
    }),
    aheadBy: t.int({
      nullable: true,
      description:
        'How many commits a branch has that the default branch does not have; null of tags, and where the commits of the page are not counted within 5 seconds.',
      complexity: PROCESS,
      resolve: async (ref) => (await ref.distance())?.ahead,
    }),
    behindBy: t.int({
      nullable: true,
      description:
        'How many commits the default branch has that a branch does not have; null as `aheadBy`.',
      complexity: PROCESS,
      resolve: async (ref) => (await ref.distance())?.behind,
    }),
    annotation: t.field({
      type: TagAnnotation,
      nullable: true,
      description: 'What an annotated tag says; null for lightweight ones and for branches.',
      resolve: (ref) => ref.annotation(),
    }),
  }),
});

export const RefConnection = connectionType('Ref', Ref);
