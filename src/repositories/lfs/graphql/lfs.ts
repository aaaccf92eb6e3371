/** GraphQL: large files (LFS objects) and file locks. */
import { lazyAsync } from '../../../base/lazy-async.ts';
import { builder, INPUT } from '../../../platform/schema/builder.ts';
import {
  cursorPageArgs,
  defineConnectionType,
  pageCost,
  toConnection,
} from '../../../platform/schema/paging.ts';
import { findLargeFilePaths } from '../../browsing/large-file-paths.ts';
import { accessColumns } from '../../repositories.ts';
import * as locks from '../locks.ts';
import * as objects from '../objects.ts';

const LfsLock = builder.objectRef<locks.Lock>('LfsLock').implement({
  description: 'A file lock: no user except its owner can push changes to the file, on any branch.',
  fields: (t) => ({
    id: t.exposeID('id', { description: 'The id of the lock, also used by git-lfs.' }),
    path: t.exposeString('path', {
      description: 'The path of the file, relative to the root of the repository.',
    }),
    owner: t.string({
      description: 'The name of the user who locked the file.',
      resolve: ({ owner }) => owner.username,
    }),
    lockedAt: t.expose('lockedAt', { type: 'DateTime', description: 'When the file was locked.' }),
  }),
});

/** `paths` finds the paths of all objects of a page at once. */
type ListedLfsObject = objects.ListedObject & {
  paths(): Promise<ReadonlyMap<string, string[]>>;
};

const LfsObject = builder.objectRef<ListedLfsObject>('LfsObject').implement({
  description: 'A large file (LFS object) of the repository.',
  fields: (t) => ({
    oid: t.exposeString('oid', { description: 'SHA-256 of the contents, in hexadecimal.' }),
    sizeBytes: t.expose('size', { type: 'SafeInt', description: 'The size of its contents.' }),
    givenAt: t.expose('givenAt', { type: 'DateTime', description: 'When it was uploaded.' }),
    paths: t.stringList({
      description:
        'The paths on the default branch that have these contents, at most 20. Empty if only other commits have them, or none.',
      // One git process for all objects of a page.
      complexity: 5,
      resolve: async ({ oid, paths }) => (await paths()).get(oid) ?? [],
    }),
  }),
});

const LfsLockConnection = defineConnectionType('LfsLock', LfsLock);
const LfsObjectConnection = defineConnectionType('LfsObject', LfsObject);

builder.prismaObjectField('Repository', 'lfsLocks', (t) =>
  t.field({
    type: LfsLockConnection,
    nullable: true,
    description: 'The file locks, oldest first.',
    complexity: pageCost(),
    args: {
      ...cursorPageArgs,
      path: t.arg.string({ description: 'Lists only the lock of this path. Default: all locks.' }),
    },
    select: accessColumns,
    resolve: async (repository, args, { services, viewer }) =>
      toConnection(await locks.listLocks(services, viewer, repository, args), args),
  }),
);

builder.prismaObjectField('Repository', 'lfsObjects', (t) =>
  t.field({
    type: LfsObjectConnection,
    nullable: true,
    description: 'The large files, newest first, including those that no commit refers to.',
    complexity: pageCost(),
    args: cursorPageArgs,
    select: accessColumns,
    resolve: async (repository, args, { services, viewer }) => {
      const page = await objects.listObjects(services, viewer, repository, args);
      const paths = lazyAsync(() => {
        const oids = page.items.map(({ node }) => node.oid);
        return findLargeFilePaths(services, viewer, repository, oids);
      });
      const items = page.items.map(({ cursor, node }) => ({ cursor, node: { ...node, paths } }));
      return toConnection({ ...page, items }, args);
    },
  }),
);

const LockLfsFileInput = builder.inputType('LockLfsFileInput', {
  description: 'The file to lock.',
  fields: (t) => ({
    repositoryId: t.id({ required: true, description: 'The id of the repository.' }),
    path: t.string({
      required: true,
      description:
        'The path of the file, relative to the root of the repository, at most 1024 bytes. The file need not exist.',
    }),
  }),
});

const UnlockLfsFileInput = builder.inputType('UnlockLfsFileInput', {
  description: 'The lock to remove.',
  fields: (t) => ({
    id: t.id({ required: true, description: 'The id of the lock.' }),
    force: t.boolean({
      required: true,
      defaultValue: false,
      description: 'Whether to remove a lock of another user, which requires the role `ADMIN`.',
    }),
  }),
});

const DeleteLfsObjectsInput = builder.inputType('DeleteLfsObjectsInput', {
  description: 'Large files to delete.',
  fields: (t) => ({
    repositoryId: t.id({ required: true, description: 'The id of the repository.' }),
    oids: t.stringList({
      required: true,
      description: 'The SHA-256 of each file. At most 1000 files.',
    }),
  }),
});

function defineLockPayload(mutation: string, description: string) {
  return builder.objectRef<{ lock: locks.Lock }>(`${mutation}Payload`).implement({
    description,
    fields: (t) => ({ lock: t.expose('lock', { type: LfsLock, description }) }),
  });
}

const DeleteLfsObjectsPayload = builder
  .objectRef<{ oids: string[] }>('DeleteLfsObjectsPayload')
  .implement({
    description: 'What was deleted.',
    fields: (t) => ({
      oids: t.exposeStringList('oids', {
        description:
          'The SHA-256 of each deleted file. Files that the repository did not have are omitted.',
      }),
    }),
  });

builder.mutationFields((t) => ({
  lockLfsFile: t.field({
    type: defineLockPayload('LockLfsFile', 'The new lock.'),
    nullable: true,
    description:
      'Locks a file for the viewer: pushes of other users that change the file are rejected.',
    args: { input: t.arg({ type: LockLfsFileInput, ...INPUT }) },
    resolve: async (_root, { input: { repositoryId, path } }, { services, viewer }) => ({
      lock: await locks.lockFile(services, viewer, { repositoryId: String(repositoryId), path }),
    }),
  }),
  unlockLfsFile: t.field({
    type: defineLockPayload('UnlockLfsFile', 'The removed lock.'),
    nullable: true,
    description: 'Removes the lock of a file.',
    args: { input: t.arg({ type: UnlockLfsFileInput, ...INPUT }) },
    resolve: async (_root, { input: { id, force } }, { services, viewer }) => ({
      lock: await locks.unlockFile(services, viewer, { id: String(id), force }),
    }),
  }),
  deleteLfsObjects: t.field({
    type: DeleteLfsObjectsPayload,
    nullable: true,
    description:
      'Deletes large files from a repository permanently. Commits keep their pointers to them.',
    args: { input: t.arg({ type: DeleteLfsObjectsInput, ...INPUT }) },
    resolve: async (_root, { input: { repositoryId, oids } }, { services, viewer }) => ({
      oids: await objects.deleteObjects(services, viewer, {
        repositoryId: String(repositoryId),
        oids,
      }),
    }),
  }),
}));
