/** Repositories in GraphQL. */

import type { GraphQLResolveInfo } from 'graphql';
import { WEEKS } from '../../git/objects/activity.ts';
import type { RefKind } from '../../git/objects/refs.ts';
import { Namespace, User } from '../../identity/graphql/namespaces.ts';
import type { SliceRequest } from '../../platform/database/paging.ts';
import { builder } from '../../platform/schema/builder.ts';
import type { Context } from '../../platform/schema/context.ts';
import {
  connectionField,
  connectionType,
  numberedPageCost,
  orderArg,
  PROCESS,
  pageArgs,
  pageCost,
  pageType,
  sliceArgs,
  toConnection,
} from '../../platform/schema/paging.ts';
import { selectAt, selectHere } from '../../platform/schema/select.ts';
import * as authorship from '../browsing/authorship.ts';
import * as changes from '../browsing/changes.ts';
import * as contents from '../browsing/contents.ts';
import * as history from '../browsing/history.ts';
import { contentsColumns } from '../browsing/large-files.ts';
import * as list from '../list.ts';
import * as repos from '../repositories.ts';
import { collaboratorColumns, collaboratorCount } from '../rows.ts';
import { visibleTo } from '../visibility.ts';
import { Comparison } from './changes.ts';
import {
  Commit,
  CommitConnection,
  CommitPage,
  CommitWeek,
  File,
  RefConnection,
  Tree,
} from './contents.ts';

export const Visibility = builder.enumType('Visibility', {
  description: 'Who may see a repository.',
  values: {
    PUBLIC: { value: 'public', description: 'Anyone may read and clone it, without credentials.' },
    PRIVATE: { value: 'private', description: 'Only members of the namespace may read it.' },
    INTERNAL: { value: 'internal', description: 'All users of the server may read it.' },
  } as const,
});

const SORTS: Record<list.Sort, string> = {
  name: 'By name, ignoring case.',
  created_at: 'By when it was made.',
  updated_at: 'By when it was last changed or pushed to.',
  size: 'By its bytes on disk.',
};

const RepositorySort = builder.enumType('RepositorySort', {
  description: 'What a list of repositories is sorted by.',
  values: Object.fromEntries(
    list.SORTS.map((sort) => [sort.toUpperCase(), { value: sort, description: SORTS[sort] }]),
  ) as { [name: string]: { value: list.Sort } },
});

export const REF =
  'Branch, tag or commit; left out: `main` if there is one, else the default branch.';

export const Repository = builder.prismaNode('Repository', {
  description: 'A Git repository.',
  id: { field: 'id' },
  select: { id: true },
  nullable: true,
  // One that the viewer may not see is null, like one that does not exist.
  findUnique: (id, { viewer }) => ({ id, AND: [visibleTo(viewer)] }),
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The name, unique in its namespace in any case.' }),
    namespace: t.string({
      description: "The owner's name.",
      select: { namespace: { select: { name: true } } },
      resolve: ({ namespace }) => namespace.name,
    }),
    owner: t.relation('namespace', { description: 'The user or organization it belongs to.' }),
    fullName: t.string({
      description: '`namespace/name`.',
      select: { name: true, namespace: { select: { name: true } } },
      resolve: repos.fullName,
    }),
    description: t.exposeString('description', {
      description: 'The description, which may be empty.',
    }),
    visibility: t.expose('visibility', { type: Visibility, description: 'Who may see it.' }),
    defaultBranch: t.exposeString('defaultBranch', {
      description: 'The branch that a clone checks out; it need not exist yet.',
    }),
    sizeBytes: t.expose('sizeBytes', {
      type: 'SafeInt',
      description: 'The size of its objects on disk; 0 until the first push.',
    }),
    language: t.exposeString('language', {
      nullable: true,
      description:
        'The language with the most bytes on the default branch; null where there is none.',
    }),
    contentAddressed: t.exposeBoolean('contentAddressed', {
      description: 'Whether its large files are stored once with those of other repositories.',
    }),
    branchProtection: t.exposeBoolean('branchProtection', {
      description:
        'Whether the default branch refuses deletion and pushes that are no fast-forward.',
    }),
    secretScanning: t.exposeBoolean('secretScanning', {
      description: 'Whether pushes are refused that add what looks like a valid secret.',
    }),
    collaboratorCount: t.int({
      description: 'The number of users who can write: members, and the owner.',
      select: collaboratorColumns,
      resolve: collaboratorCount,
    }),
    branchCount: t.exposeInt('branchCount', { description: 'The number of branches.' }),
    tagCount: t.exposeInt('tagCount', { description: 'The number of tags.' }),
    cloneUrl: t.string({
      description: 'The address to clone it over HTTP.',
      select: { name: true, namespace: { select: { name: true } } },
      resolve: (row, _args, { services }) => repos.cloneUrls(services, row).http,
    }),
    sshUrl: t.string({
      description: 'The address to clone it over SSH.',
      select: { name: true, namespace: { select: { name: true } } },
      resolve: (row, _args, { services }) => repos.cloneUrls(services, row).ssh,
    }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was created.' }),
    updatedAt: t.expose('updatedAt', {
      type: 'DateTime',
      description: 'When its settings were last changed, or it was last pushed to.',
    }),
    pushedAt: t.expose('pushedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When it was last pushed to; null before.',
    }),
    tree: t.field({
      type: Tree,
      nullable: true,
      description: 'A directory at a revision.',
      args: {
        path: t.arg.string({
          required: true,
          defaultValue: '',
          description: 'The path of the directory; empty or `/`: the root.',
        }),
        ref: t.arg.string({ description: REF }),
      },
      select: contentsColumns,
      resolve: (row, args, { services, viewer, allowance }, info) =>
        contents.tree(services, viewer, row, args, allowance(info)),
    }),
    file: t.field({
      type: File,
      nullable: true,
      description: 'A file at a revision.',
      args: {
        path: t.arg.string({
          required: true,
          description: 'The path of the file from the root, without a leading `/`.',
        }),
        ref: t.arg.string({ description: REF }),
      },
      select: contentsColumns,
      resolve: (row, args, { services, viewer, allowance }, info) =>
        contents.file(services, viewer, row, args, allowance(info)),
    }),
    commitPage: t.field({
      type: CommitPage,
      nullable: true,
      description:
        'The history of a branch, tag or commit by number: only for REST. In GraphQL ask for `commits`.',
      complexity: numberedPageCost(PROCESS),
      args: {
        revision: t.arg.string({ required: true, description: 'Branch, tag or commit.' }),
        ...pageArgs,
      },
      select: repos.accessColumns,
      resolve: (row, args, { services, viewer, allowance }, info) =>
        contents.commits(services, viewer, row, args, allowance(info)),
    }),
    commits: t.field({
      type: CommitConnection,
      nullable: true,
      description: 'The history of a revision, newest first.',
      complexity: pageCost(PROCESS),
      args: {
        revision: t.arg.string({ description: REF }),
        ...sliceArgs,
      },
      select: repos.accessColumns,
      resolve: async (row, args, { services, viewer, allowance }, info) =>
        toConnection(await history.history(services, viewer, row, args, allowance(info)), args),
    }),
    commit: t.field({
      type: Commit,
      nullable: true,
      description: 'What a revision names.',
      args: { revision: t.arg.string({ required: true, description: 'Branch, tag or commit.' }) },
      select: repos.accessColumns,
      resolve: (row, { revision }, { services, viewer, allowance }, info) =>
        history.commit(services, viewer, row, revision, allowance(info)),
    }),
    lastCommit: t.field({
      type: Commit,
      nullable: true,
      description:
        'The commit that changed a file or a directory last; null where nothing was committed yet, and where the history is not read back to it within 5 seconds.',
      complexity: PROCESS,
      args: {
        path: t.arg.string({
          required: true,
          defaultValue: '',
          description: 'The path; empty or `/`: the root, of which it is the commit of `ref`.',
        }),
        ref: t.arg.string({ description: REF }),
      },
      select: repos.accessColumns,
      resolve: (row, args, { services, viewer, allowance }, info) =>
        authorship.lastCommitOf(services, viewer, row, args, allowance(info)),
    }),
    commitActivity: t.field({
      type: [CommitWeek],
      nullable: true,
      description: `How many commits a revision has of each of the last ${WEEKS} weeks, oldest first, by the dates of their committers; null where nothing was committed yet, and where counting takes longer than 5 seconds.`,
      complexity: { field: PROCESS, multiplier: WEEKS },
      args: { ref: t.arg.string({ description: REF }) },
      select: repos.accessColumns,
      resolve: (row, { ref }, { services, viewer }) => history.activity(services, viewer, row, ref),
    }),
    comparison: t.field({
      type: Comparison,
      nullable: true,
      description: 'How one revision differs from another, as a merge request would show it.',
      complexity: { field: PROCESS, multiplier: 1 },
      args: {
        base: t.arg.string({ required: true, description: 'Branch, tag or commit to merge into.' }),
        head: t.arg.string({ required: true, description: 'Branch, tag or commit to merge.' }),
      },
      select: repos.accessColumns,
      resolve: (row, args, { services, viewer }) => changes.compare(services, viewer, row, args),
    }),
    branches: t.field({
      type: RefConnection,
      nullable: true,
      description: 'The branches by name.',
      complexity: pageCost(PROCESS),
      args: sliceArgs,
      select: { ...repos.accessColumns, branchCount: true },
      resolve: (row, args, context, info) =>
        refs(row, 'branch', row.branchCount, args, context, info),
    }),
    tags: t.field({
      type: RefConnection,
      nullable: true,
      description: 'The tags by name.',
      complexity: pageCost(PROCESS),
      args: sliceArgs,
      select: { ...repos.accessColumns, tagCount: true },
      resolve: (row, args, context, info) => refs(row, 'tag', row.tagCount, args, context, info),
    }),
  }),
});

async function refs(
  row: repos.AccessRow,
  kind: RefKind,
  totalCount: number,
  args: SliceRequest,
  { services, viewer, allowance }: Context,
  info: GraphQLResolveInfo,
) {
  const range = { ...args, kind, totalCount };
  return toConnection(await history.refs(services, viewer, row, range, allowance(info)), args);
}

const RepositoryPage = pageType<{ id: string }>('RepositoryPage', Repository);

const listArgs = builder.args((t) => ({
  sort: t.field({
    type: RepositorySort,
    defaultValue: 'updated_at',
    required: true,
    description: 'What the repositories are sorted by.',
  }),
  order: t.field(orderArg),
  visibility: t.field({
    type: Visibility,
    description: 'Only repositories of this visibility; left out: of any.',
  }),
}));

builder.queryFields((t) => ({
  repository: t.field({
    type: Repository,
    nullable: true,
    description: 'By id or by name. By name, one that the viewer may not see does not exist.',
    args: {
      namespace: t.arg.string({ required: true, description: 'The name of its owner.' }),
      id: t.arg.id({ description: 'Its id; give this or `name`.' }),
      name: t.arg.string({ description: 'Its name, ignoring case; give this or `id`.' }),
    },
    resolve: (_root, args, context, info) => {
      const select = selectHere<repos.Select>(context, info);
      return repos.getRepository(context.services, context.viewer, args, select) as never;
    },
  }),
  repositoryPage: t.field({
    type: RepositoryPage,
    nullable: true,
    description:
      'Those of a namespace that the viewer may see: only for REST. In GraphQL ask for `namespace { repositories }`.',
    complexity: numberedPageCost(),
    args: {
      namespace: t.arg.string({ required: true, description: 'The name of the owner.' }),
      ...pageArgs,
      ...listArgs,
    },
    resolve: (_root, args, context, info) => {
      const select = selectAt<repos.Select>(context, info, 'nodes');
      return list.listRepositories(context.services, context.viewer, args, select);
    },
  }),
}));

const RepositoryConnection = connectionType('Repository', Repository);

builder.prismaObjectField(Namespace, 'repositories', (t) =>
  t.field(
    connectionField({
      type: RepositoryConnection,
      description: 'The repositories that the viewer may see.',
      args: { ...sliceArgs, ...listArgs },
      slice: ({ services, viewer }, id, args: list.SliceInput, select: repos.Select) =>
        list.sliceRepositories(services, viewer, [id], args, select),
    }),
  ),
);

builder.prismaObjectField(User, 'repositories', (t) =>
  t.field(
    connectionField({
      type: RepositoryConnection,
      description:
        'The repositories of all namespaces that the user is a member of, of the own one too. Only the user sees them.',
      args: { ...sliceArgs, ...listArgs },
      slice: ({ services, viewer }, id, args: list.SliceInput, select: repos.Select) =>
        list.sliceRepositoriesOf(services, viewer, id, args, select),
    }),
  ),
);
