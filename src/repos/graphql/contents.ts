/** What is in a repository, in GraphQL: the types of directories, files, commits and refs. */
import type { Commit as CommitShape, Signature as SignatureShape } from '../../git/commit.ts';
import type { TreeEntry as TreeEntryShape } from '../../git/read.ts';
import type { Ref as RefShape } from '../../git/refs.ts';
import { builder } from '../../graphql/builder.ts';
import { pageType } from '../../graphql/paging.ts';
import type * as contents from '../contents.ts';

const TreeEntryType = builder.enumType('TreeEntryType', {
  values: { FILE: { value: 'file' }, DIRECTORY: { value: 'directory' } } as const,
});

const TreeEntry = builder.objectRef<TreeEntryShape>('TreeEntry').implement({
  fields: (t) => ({
    name: t.exposeString('name'),
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
    sha: t.exposeString('sha'),
  }),
});

export const Tree = builder.objectRef<contents.Tree>('Tree').implement({
  description: 'A directory.',
  fields: (t) => ({
    path: t.exposeString('path'),
    ref: t.exposeString('ref', { description: 'The one used.' }),
    entries: t.expose('entries', {
      type: [TreeEntry],
      description: "Directories first, each in git's order.",
    }),
  }),
});

export const File = builder.objectRef<contents.File>('File').implement({
  fields: (t) => ({
    path: t.exposeString('path'),
    ref: t.exposeString('ref', { description: 'The one used.' }),
    sizeBytes: t.expose('sizeBytes', { type: 'SafeInt' }),
    encoding: t.exposeString('encoding', { description: '`utf-8` or `binary`.' }),
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
  fields: (t) => ({
    name: t.exposeString('name'),
    email: t.exposeString('email'),
    date: t.expose('date', { type: 'DateTime' }),
  }),
});

const Commit = builder.objectRef<CommitShape>('Commit').implement({
  fields: (t) => ({
    sha: t.exposeString('sha'),
    message: t.exposeString('message'),
    author: t.expose('author', { type: Signature }),
    committer: t.expose('committer', { type: Signature }),
  }),
});

export const CommitPage = pageType<CommitShape>('CommitPage', Commit);

export const Ref = builder.objectRef<RefShape>('Ref').implement({
  description: 'A branch or a tag.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'Without `refs/heads/` or `refs/tags/`.' }),
    sha: t.exposeString('sha', { description: 'Of the commit.' }),
  }),
});

/** Counts are on the repository: `branchCount`, `tagCount`. */
export const RefConnection = builder.connectionObject({ type: Ref, name: 'RefConnection' });
