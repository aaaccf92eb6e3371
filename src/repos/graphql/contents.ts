/** What is in a repository, in GraphQL: the types of directories, files, commits and refs. */
import type { Signature as SignatureShape } from '../../git/objects/commit.ts';
import type { TreeEntry as TreeEntryShape } from '../../git/objects/read.ts';
import { builder } from '../../graphql/builder.ts';
import { connectionType, pageType } from '../../graphql/paging.ts';
import type * as contents from '../browsing/contents.ts';
import type { RefAndCommit } from '../browsing/history.ts';

const TreeEntryType = builder.enumType('TreeEntryType', {
  description: 'What stands in a directory.',
  values: {
    FILE: { value: 'file', description: 'Also a symbolic link or a submodule.' },
    DIRECTORY: { value: 'directory', description: 'Has entries of its own.' },
  } as const,
});

const TreeEntry = builder.objectRef<TreeEntryShape>('TreeEntry').implement({
  description: 'A file or directory in a directory.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The last part of its path.' }),
    type: t.expose('type', {
      type: TreeEntryType,
      description: 'Symbolic links and submodules are files; their mode tells.',
    }),
    sizeBytes: t.expose('size', {
      type: 'SafeInt',
      nullable: true,
      description: 'Null for directories.',
    }),
    mode: t.exposeString('mode', { description: 'Six octal digits.' }),
    sha: t.exposeString('sha', { description: 'Of the blob, tree or submodule commit.' }),
  }),
});

export const Tree = builder.objectRef<contents.Tree>('Tree').implement({
  description: 'A directory.',
  fields: (t) => ({
    path: t.exposeString('path', { description: 'As it was asked for.' }),
    ref: t.exposeString('ref', { description: 'The one used.' }),
    entries: t.expose('entries', {
      type: [TreeEntry],
      description: "Directories first, each in git's order.",
      // As many as there are, so this is a guess at an ordinary directory.
      complexity: { field: 5, multiplier: 30 },
    }),
  }),
});

const FileEncoding = builder.enumType('FileEncoding', {
  description: 'What the bytes of a file are.',
  values: {
    UTF_8: { value: 'utf-8', description: 'Text.' },
    BINARY: { value: 'binary', description: 'Anything else.' },
  } as const,
});

export const File = builder.objectRef<contents.File>('File').implement({
  description: 'A file at a revision.',
  fields: (t) => ({
    path: t.exposeString('path', { description: 'As it was asked for.' }),
    ref: t.exposeString('ref', { description: 'The one used.' }),
    sizeBytes: t.expose('sizeBytes', { type: 'SafeInt', description: 'Of all its contents.' }),
    encoding: t.expose('encoding', { type: FileEncoding, description: 'Whether it is text.' }),
    content: t.exposeString('content', {
      nullable: true,
      description: 'Null for binary files and for those over 1 MiB.',
    }),
    downloadUrl: t.exposeString('downloadUrl', {
      nullable: true,
      description: 'Where `content` is null: works for 15 minutes, without credentials.',
    }),
  }),
});

const Signature = builder.objectRef<SignatureShape>('Signature').implement({
  description: 'Who did something in git, and when, as they themselves say.',
  fields: (t) => ({
    name: t.exposeString('name', { description: "A person's." }),
    email: t.exposeString('email', { description: 'May be no address at all.' }),
    date: t.expose('date', { type: 'DateTime', description: 'When.' }),
  }),
});

export const Commit = builder.objectRef<contents.CommitHere>('Commit').implement({
  description: 'A commit.',
  fields: (t) => ({
    sha: t.exposeString('sha', { description: '40 hexadecimal digits.' }),
    parents: t.exposeStringList('parents', {
      description: 'The ids of its parents; of a merge there are several, of a first commit none.',
      complexity: 1,
    }),
    message: t.exposeString('message', { description: 'Without its final newline.' }),
    author: t.expose('author', { type: Signature, description: 'Who wrote the change.' }),
    committer: t.expose('committer', { type: Signature, description: 'Who made the commit.' }),
  }),
});

export const CommitPage = pageType<contents.CommitHere>('CommitPage', Commit);
export const CommitConnection = connectionType('Commit', Commit);

const Ref = builder.objectRef<RefAndCommit>('Ref').implement({
  description: 'A branch or a tag.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'Without `refs/heads/` or `refs/tags/`.' }),
    sha: t.exposeString('sha', { description: 'Of the commit, also of an annotated tag.' }),
    commit: t.field({
      type: Commit,
      nullable: true,
      description: 'What it stands at; null for a tag of something else.',
      resolve: (ref) => ref.commit(),
    }),
  }),
});

export const RefConnection = connectionType('Ref', Ref);
