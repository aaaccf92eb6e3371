/** GraphQL types of caches: those that a job names, and those of a repository. */

import { builder, INPUT } from '../../platform/schema/builder.ts';
import {
  cursorPageArgs,
  defineConnectionType,
  pageCost,
  toConnection,
} from '../../platform/schema/paging.ts';
import { Repository } from '../../repositories/graphql/repositories.ts';
import {
  type Cache,
  type CacheUsage,
  deleteCaches,
  readCacheUsage,
  sliceCaches,
} from '../caches/entries.ts';
import { CACHE_RULES, type JobCache } from '../caches/request.ts';
import type { CacheUse } from '../caches/use.ts';

const PATH =
  'A folder below the working directory, such as `node_modules`, or below the home folder, such as `~/.npm`; a single file, too.';
const KEY = `Up to ${CACHE_RULES.keyLength} characters. \`\${hash:path}\` is the git object id of a file or folder of the commit, or \`none\`; \`\${branch}\`, \`\${os}\` and \`\${arch}\` are those of the job.`;

export const JobCacheInput = builder.inputType('JobCacheInput', {
  description: 'A folder that a job finds as an earlier job of the repository has left it.',
  fields: (t) => ({
    path: t.string({ required: true, description: PATH }),
    key: t.string({ required: true, description: KEY }),
    restoreKeys: t.stringList({
      description: `If no cache has the key, the newest one is restored whose key begins with one of these, the first of them first. Up to ${CACHE_RULES.maxRestoreKeys}.`,
    }),
  }),
});

export type ShownJobCache = JobCache & { use: CacheUse | undefined };

export const JobCacheRef = builder.objectRef<ShownJobCache>('JobCache').implement({
  description: 'A cache that a job names, and what its last attempt did with it.',
  fields: (t) => ({
    path: t.exposeString('path', { description: PATH }),
    key: t.exposeString('key', { description: 'The key, with its variables.' }),
    restoreKeys: t.exposeStringList('restoreKeys', {
      description: 'The beginnings of keys that are restored if no cache has the key.',
    }),
    readOnly: t.boolean({
      description: 'Whether it is never saved, because the creator may not push to the branch.',
      resolve: ({ readOnly }) => readOnly ?? false,
    }),
    resolvedKey: t.string({
      nullable: true,
      description: 'The key with its variables replaced; null before the first attempt.',
      resolve: ({ use }) => use?.key ?? null,
    }),
    restoredKey: t.string({
      nullable: true,
      description: 'The key of the cache that was restored; null if there was none.',
      resolve: ({ use }) => use?.restoredKey ?? null,
    }),
    restoredBytes: t.field({
      type: 'SafeInt',
      nullable: true,
      description: 'The bytes of its files.',
      resolve: ({ use }) => use?.restoredBytes ?? null,
    }),
    isSaved: t.boolean({
      description: 'Whether the job has saved it.',
      resolve: ({ use }) => use?.isSaved ?? false,
    }),
    problem: t.string({
      nullable: true,
      description: 'Why it was not restored or not saved: `not saved: nothing exists at its path`.',
      resolve: ({ use }) => use?.note ?? null,
    }),
  }),
});

const RepositoryCache = builder.objectRef<Cache>('RepositoryCache').implement({
  description: 'Files that a job has left for later jobs of its branch or tag. It never changes.',
  fields: (t) => ({
    id: t.exposeID('id', { description: 'Identifies it for `deleteCache`.' }),
    key: t.exposeString('key', { description: 'The key.' }),
    path: t.exposeString('path', { description: 'The path in the job.' }),
    ref: t.exposeString('scope', {
      description:
        'The full name of the branch or tag whose jobs find it. Jobs of all others find those of the default branch, too.',
    }),
    sizeBytes: t.field({
      type: 'SafeInt',
      description: 'The compressed bytes, which count as storage.',
      resolve: ({ size }) => Number(size),
    }),
    contentBytes: t.field({
      type: 'SafeInt',
      description: 'The bytes of the files.',
      resolve: ({ contentBytes }) => Number(contentBytes),
    }),
    hits: t.exposeInt('hits', { description: 'How often it was restored.' }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was saved.' }),
    usedAt: t.expose('usedAt', {
      type: 'DateTime',
      description: 'When it was last restored, or saved.',
    }),
  }),
});

const RepositoryCacheConnection = defineConnectionType('RepositoryCache', RepositoryCache);

const RepositoryCacheUsage = builder.objectRef<CacheUsage>('RepositoryCacheUsage').implement({
  description: 'The caches of a repository in numbers.',
  fields: (t) => ({
    sizeBytes: t.field({
      type: 'SafeInt',
      description: 'The compressed bytes of all caches.',
      resolve: ({ bytes }) => bytes,
    }),
    maxBytes: t.field({
      type: 'SafeInt',
      description: 'At this size, the least recently used caches make room for new ones.',
      resolve: ({ maxBytes }) => maxBytes,
    }),
    hits: t.field({
      type: 'SafeInt',
      description: 'How often a job has found a cache.',
      resolve: ({ hits }) => hits,
    }),
    misses: t.field({
      type: 'SafeInt',
      description: 'How often a job has found none.',
      resolve: ({ misses }) => misses,
    }),
  }),
});

const CacheSort = builder.enumType('CacheSort', {
  description: 'The order of a list of caches.',
  values: {
    USED: { value: 'used', description: 'The most recently used first.' },
    NEWEST: { value: 'newest', description: 'The newest first.' },
  } as const,
});

builder.prismaObjectFields(Repository, (t) => ({
  caches: t.field({
    type: RepositoryCacheConnection,
    nullable: true,
    description: 'The caches of its jobs, for members of the namespace.',
    complexity: pageCost(),
    args: {
      ...cursorPageArgs,
      prefix: t.arg.string({ description: 'Only caches whose key begins with this.' }),
      sort: t.arg({ type: CacheSort, defaultValue: 'used', description: 'The order.' }),
    },
    select: { id: true, namespaceId: true },
    resolve: async (repository, args, { services, viewer }) =>
      toConnection(await sliceCaches(services, viewer, repository, args), args),
  }),
  cacheUsage: t.field({
    type: RepositoryCacheUsage,
    nullable: true,
    description: 'Its caches in numbers, for members of the namespace.',
    select: { id: true, namespaceId: true },
    resolve: (repository, _args, { services, viewer }) =>
      readCacheUsage(services, viewer, repository),
  }),
}));

const DeleteCacheInput = builder.inputType('DeleteCacheInput', {
  description: 'The caches to delete: `id` or `key` is required.',
  fields: (t) => ({
    repositoryId: t.id({ required: true, description: 'The id of the repository.' }),
    id: t.id({ description: 'The id of a cache.' }),
    key: t.string({ description: 'A key. The caches of all branches that have it are deleted.' }),
  }),
});

const DeleteCachePayload = builder
  .objectRef<{ deletedCount: number }>('DeleteCachePayload')
  .implement({
    description: 'What was deleted.',
    fields: (t) => ({
      deletedCount: t.exposeInt('deletedCount', { description: 'The number of caches.' }),
    }),
  });

builder.mutationField('deleteCache', (t) =>
  t.field({
    type: DeleteCachePayload,
    nullable: true,
    description: 'Deletes caches of a repository. Requires `WRITE`.',
    args: { input: t.arg({ type: DeleteCacheInput, ...INPUT }) },
    resolve: async (_root, { input: { repositoryId, id, key } }, { services, viewer }) => ({
      deletedCount: await deleteCaches(services, viewer, { repositoryId, cacheId: id, key }),
    }),
  }),
);
