/** GraphQL: the type `Repository` and lists of repositories. */

import type { GraphQLResolveInfo } from 'graphql';
import { WEEKS } from '../../git/objects/commit-counts.ts';
import type { RefKind } from '../../git/objects/refs.ts';
import { Namespace, User } from '../../identity/graphql/namespaces.ts';
import type { CursorPageRequest } from '../../platform/database/paging.ts';
import { builder } from '../../platform/schema/builder.ts';
import type { Context } from '../../platform/schema/context.ts';
import {
  connectionField,
  cursorPageArgs,
  defineConnectionType,
  definePageType,
  GIT_PROCESS_COST,
  numberedPageCost,
  offsetPageArgs,
  orderArg,
  pageCost,
  toConnection,
} from '../../platform/schema/paging.ts';
import { selectForChild, selectForField } from '../../platform/schema/select.ts';
import * as authorship from '../browsing/authorship.ts';
import * as changes from '../browsing/changes.ts';
import * as contents from '../browsing/contents.ts';
import * as history from '../browsing/history.ts';
import { contentsColumns } from '../browsing/large-files.ts';
import * as list from '../list.ts';
import * as repos from '../repositories.ts';
import { collaboratorColumns, countCollaborators } from '../rows.ts';
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
  name: 'By name, case-insensitively.',
  created_at: 'By creation time.',
  updated_at: 'By the time of the last change or push.',
  size: 'By size on disk.',
};

const RepositorySort = builder.enumType('RepositorySort', {
  description: 'The sort keys of a list of repositories.',
  values: Object.fromEntries(
    list.SORTS.map((sort) => [sort.toUpperCase(), { value: sort, description: SORTS[sort] }]),
  ) as { [name: string]: { value: list.Sort } },
});

export const REF_DESCRIPTION =
  'A branch, tag or commit. Default: `main` if that branch exists, else the default branch.';

export const Repository = builder.prismaNode('Repository', {
  description: 'A Git repository.',
  id: { field: 'id' },
  select: { id: true },
  nullable: true,
  // A repository that the viewer may not see is null, like one that does not exist.
  findUnique: (id, { viewer }) => ({ id, AND: [visibleTo(viewer)] }),
  fields: (t) => ({
    name: t.exposeString('name', {
      description: 'The name, which is unique in the namespace, case-insensitively.',
    }),
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
        'The language with the most bytes on the default branch; null if none is detected.',
    }),
    contentAddressed: t.exposeBoolean('contentAddressed', {
      description: 'Whether its large files are deduplicated with those of other repositories.',
    }),
    branchProtection: t.exposeBoolean('branchProtection', {
      description: 'Whether the default branch rejects deletion and non-fast-forward pushes.',
    }),
    secretScanning: t.exposeBoolean('secretScanning', {
      description: 'Whether pushes that add a likely secret are rejected.',
    }),
    collaboratorCount: t.int({
      description: 'The number of users with write access, including the owner.',
      select: collaboratorColumns,
      resolve: countCollaborators,
    }),
    branchCount: t.exposeInt('branchCount', { description: 'The number of branches.' }),
    tagCount: t.exposeInt('tagCount', { description: 'The number of tags.' }),
    cloneUrl: t.string({
      description: 'The URL for cloning over HTTP.',
      select: { name: true, namespace: { select: { name: true } } },
      resolve: (row, _args, { services }) => repos.cloneUrls(services, row).http,
    }),
    sshUrl: t.string({
      description: 'The URL for cloning over SSH.',
      select: { name: true, namespace: { select: { name: true } } },
      resolve: (row, _args, { services }) => repos.cloneUrls(services, row).ssh,
    }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was created.' }),
    updatedAt: t.expose('updatedAt', {
      type: 'DateTime',
      description: 'When its settings last changed or it was last pushed to.',
    }),
    pushedAt: t.expose('pushedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When it was last pushed to; null before the first push.',
    }),
    tree: t.field({
      type: Tree,
      nullable: true,
      description: 'A directory at a revision.',
      args: {
        path: t.arg.string({
          required: true,
          defaultValue: '',
          description: 'The path of the directory. Empty or `/` for the root.',
        }),
        ref: t.arg.string({ description: REF_DESCRIPTION }),
      },
      select: contentsColumns,
      resolve: (row, args, { services, viewer, allowance }, info) =>
        contents.readDirectory(services, viewer, row, args, allowance(info)),
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
        ref: t.arg.string({ description: REF_DESCRIPTION }),
      },
      select: contentsColumns,
      resolve: (row, args, { services, viewer, allowance }, info) =>
        contents.readFile(services, viewer, row, args, allowance(info)),
    }),
    commitPage: t.field({
      type: CommitPage,
      nullable: true,
      description:
        'The history of a branch, tag or commit by page number. Only for REST; in GraphQL, use `commits`.',
      complexity: numberedPageCost(GIT_PROCESS_COST),
      args: {
        revision: t.arg.string({ required: true, description: 'Branch, tag or commit.' }),
        ...offsetPageArgs,
      },
      select: repos.accessColumns,
      resolve: (row, args, { services, viewer, allowance }, info) =>
        contents.listCommits(services, viewer, row, args, allowance(info)),
    }),
    commits: t.field({
      type: CommitConnection,
      nullable: true,
      description: 'The history of a revision, newest first.',
      complexity: pageCost(GIT_PROCESS_COST),
      args: {
        revision: t.arg.string({ description: REF_DESCRIPTION }),
        ...cursorPageArgs,
      },
      select: repos.accessColumns,
      resolve: async (row, args, { services, viewer, allowance }, info) =>
        toConnection(
          await history.sliceHistory(services, viewer, row, args, allowance(info)),
          args,
        ),
    }),
    commit: t.field({
      type: Commit,
      nullable: true,
      description: 'The commit that a revision names.',
      args: { revision: t.arg.string({ required: true, description: 'Branch, tag or commit.' }) },
      select: repos.accessColumns,
      resolve: (row, { revision }, { services, viewer, allowance }, info) =>
        history.readCommit(services, viewer, row, revision, allowance(info)),
    }),
    lastCommit: t.field({
      type: Commit,
      nullable: true,
      description:
        'The last commit that changed a file or directory. Null if the repository has no commits, or if the commit is not found within 5 seconds.',
      complexity: GIT_PROCESS_COST,
      args: {
        path: t.arg.string({
          required: true,
          defaultValue: '',
          description: 'The path. Empty or `/` for the root, whose last commit is that of `ref`.',
        }),
        ref: t.arg.string({ description: REF_DESCRIPTION }),
      },
      select: repos.accessColumns,
      resolve: (row, args, { services, viewer, allowance }, info) =>
        authorship.findLastCommit(services, viewer, row, args, allowance(info)),
    }),
    commitActivity: t.field({
      type: [CommitWeek],
      nullable: true,
      description: `The number of commits in each of the last ${WEEKS} weeks by committer date, oldest first. Null if the repository has no commits, or if counting takes longer than 5 seconds.`,
      complexity: { field: GIT_PROCESS_COST, multiplier: WEEKS },
      args: { ref: t.arg.string({ description: REF_DESCRIPTION }) },
      select: repos.accessColumns,
      resolve: (row, { ref }, { services, viewer }) =>
        history.readCommitActivity(services, viewer, row, ref),
    }),
    comparison: t.field({
      type: Comparison,
      nullable: true,
      description: 'A comparison of two revisions, as a merge request shows it.',
      complexity: { field: GIT_PROCESS_COST, multiplier: 1 },
      args: {
        base: t.arg.string({ required: true, description: 'Branch, tag or commit to merge into.' }),
        head: t.arg.string({ required: true, description: 'Branch, tag or commit to merge.' }),
      },
      select: repos.accessColumns,
      resolve: (row, args, { services, viewer }) =>
        changes.compareRevisions(services, viewer, row, args),
    }),
    branches: t.field({
      type: RefConnection,
      nullable: true,
      description: 'The branches, sorted by name.',
      complexity: pageCost(GIT_PROCESS_COST),
      args: cursorPageArgs,
      select: { ...repos.accessColumns, branchCount: true },
      resolve: (row, args, context, info) =>
        refsConnection(row, 'branch', row.branchCount, args, context, info),
    }),
    tags: t.field({
      type: RefConnection,
      nullable: true,
      description: 'The tags, sorted by name.',
      complexity: pageCost(GIT_PROCESS_COST),
      args: cursorPageArgs,
      select: { ...repos.accessColumns, tagCount: true },
      resolve: (row, args, context, info) =>
        refsConnection(row, 'tag', row.tagCount, args, context, info),
    }),
  }),
});

async function refsConnection(
  row: repos.AccessRow,
  kind: RefKind,
  totalCount: number,
  args: CursorPageRequest,
  { services, viewer, allowance }: Context,
  info: GraphQLResolveInfo,
) {
  const range = { ...args, kind, totalCount };
  return toConnection(await history.sliceRefs(services, viewer, row, range, allowance(info)), args);
}

const RepositoryPage = definePageType<{ id: string }>('RepositoryPage', Repository);

const listArgs = builder.args((t) => ({
  sort: t.field({
    type: RepositorySort,
    defaultValue: 'updated_at',
    required: true,
    description: 'The sort key.',
  }),
  order: t.field(orderArg),
  visibility: t.field({
    type: Visibility,
    description: 'Returns only repositories with this visibility. Default: all.',
  }),
}));

builder.queryFields((t) => ({
  repository: t.field({
    type: Repository,
    nullable: true,
    description:
      'A repository by id or by name. By name, a repository that the viewer may not see is reported as not found.',
    args: {
      namespace: t.arg.string({ required: true, description: 'The name of its owner.' }),
      id: t.arg.id({ description: 'The id. Give this or `name`.' }),
      name: t.arg.string({ description: 'The name, case-insensitive. Give this or `id`.' }),
    },
    resolve: (_root, args, context, info) => {
      const select = selectForField<repos.Select>(context, info);
      return repos.getRepository(context.services, context.viewer, args, select) as never;
    },
  }),
  repositoryPage: t.field({
    type: RepositoryPage,
    nullable: true,
    description:
      'The repositories of a namespace that the viewer may see, by page number. Only for REST; in GraphQL, use `namespace { repositories }`.',
    complexity: numberedPageCost(),
    args: {
      namespace: t.arg.string({ required: true, description: 'The name of the owner.' }),
      ...offsetPageArgs,
      ...listArgs,
    },
    resolve: (_root, args, context, info) => {
      const select = selectForChild<repos.Select>(context, info, 'nodes');
      return list.listRepositories(context.services, context.viewer, args, select);
    },
  }),
}));

const RepositoryConnection = defineConnectionType('Repository', Repository);

builder.prismaObjectField(Namespace, 'repositories', (t) =>
  t.field(
    connectionField({
      type: RepositoryConnection,
      description: 'The repositories that the viewer may see.',
      args: { ...cursorPageArgs, ...listArgs },
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
        'The repositories of all namespaces that the user is a member of, including their own namespace. Visible only to the user.',
      args: { ...cursorPageArgs, ...listArgs },
      slice: ({ services, viewer }, id, args: list.SliceInput, select: repos.Select) =>
        list.sliceRepositoriesOfUser(services, viewer, id, args, select),
    }),
  ),
);
