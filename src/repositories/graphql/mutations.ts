/** GraphQL: mutations that create, change and delete repositories. */

import type { GraphQLResolveInfo } from 'graphql';
import type { Viewer } from '../../identity/permissions.ts';
import { builder, deletionPayload, INPUT } from '../../platform/schema/builder.ts';
import type { Context, ContextServices } from '../../platform/schema/context.ts';
import { selectForChild } from '../../platform/schema/select.ts';
import * as lifecycle from '../lifecycle.ts';
import type { Select } from '../repositories.ts';
import { Repository, Visibility } from './repositories.ts';

export const REPOSITORY_ID = { required: true, description: 'The id of the repository.' } as const;
export const REPOSITORY_NAMESPACE = {
  description:
    'The name of the owner. Optional; if given, it must match the owner of the repository.',
};

const CreateRepositoryInput = builder.inputType('CreateRepositoryInput', {
  description: 'The repository to create.',
  fields: (t) => ({
    namespace: t.string({ required: true, description: 'The name of its owner.' }),
    name: t.string({
      required: true,
      description: 'The name: 1 to 100 letters, digits, hyphens, underscores and dots.',
    }),
    description: t.string({
      required: true,
      defaultValue: '',
      description: 'The description, at most 512 characters.',
    }),
    visibility: t.field({
      type: Visibility,
      required: true,
      defaultValue: 'private',
      description: 'Who may see it.',
    }),
    defaultBranch: t.string({
      required: true,
      defaultValue: 'main',
      description: 'The branch that a clone checks out: at most 240 bytes.',
    }),
    autoInit: t.boolean({
      required: true,
      defaultValue: true,
      description: 'Whether to create an initial commit on the default branch.',
    }),
    contentAddressed: t.boolean({
      required: true,
      defaultValue: true,
      description: 'Whether its large files are deduplicated with those of other repositories.',
    }),
    gitignoreTemplate: t.string({
      description:
        'The name of a language or tool whose `.gitignore` template is added to the initial commit.',
    }),
  }),
});

const RenameRepositoryInput = builder.inputType('RenameRepositoryInput', {
  description: 'The new name of a repository.',
  fields: (t) => ({
    id: t.id(REPOSITORY_ID),
    namespace: t.string(REPOSITORY_NAMESPACE),
    name: t.string({ required: true, description: 'The new name.' }),
  }),
});

const ChangeRepositoryVisibilityInput = builder.inputType('ChangeRepositoryVisibilityInput', {
  description: 'The new visibility of a repository.',
  fields: (t) => ({
    id: t.id(REPOSITORY_ID),
    namespace: t.string(REPOSITORY_NAMESPACE),
    visibility: t.field({ type: Visibility, required: true, description: 'The new visibility.' }),
  }),
});

const TransferRepositoryInput = builder.inputType('TransferRepositoryInput', {
  description: 'The new owner of a repository.',
  fields: (t) => ({
    id: t.id(REPOSITORY_ID),
    namespace: t.string(REPOSITORY_NAMESPACE),
    newNamespace: t.string({ required: true, description: 'The name of the new owner.' }),
  }),
});

const UpdateRepositoryInput = builder.inputType('UpdateRepositoryInput', {
  description: 'The settings to change. Omitted settings stay as they are.',
  fields: (t) => ({
    id: t.id(REPOSITORY_ID),
    namespace: t.string(REPOSITORY_NAMESPACE),
    description: t.string({ description: 'The description, at most 512 characters.' }),
    defaultBranch: t.string({
      description: 'The branch that a clone checks out; it must exist.',
    }),
    branchProtection: t.boolean({
      description: 'Whether the default branch rejects deletion and non-fast-forward pushes.',
    }),
    secretScanning: t.boolean({
      description: 'Whether pushes that add a likely secret are rejected.',
    }),
  }),
});

const DeleteRepositoryInput = builder.inputType('DeleteRepositoryInput', {
  description: 'The repository to delete.',
  fields: (t) => ({ id: t.id(REPOSITORY_ID), namespace: t.string(REPOSITORY_NAMESPACE) }),
});

type RepositoryPayload = { repository: object };

/** Defines `{mutation}Payload` with the field `repository`. */
export function definePayload(mutation: string) {
  return builder.objectRef<RepositoryPayload>(`${mutation}Payload`).implement({
    description: 'The repository that was created or changed.',
    fields: (t) => ({
      repository: t.field({
        type: Repository,
        description: 'The repository as it is now.',
        resolve: ({ repository }) => repository as never,
      }),
    }),
  });
}

type RepositoryMutation<I> = (
  services: ContextServices,
  viewer: Viewer,
  input: I,
  select: Select,
) => Promise<object>;

/** Creates a resolver that runs the mutation; the query that writes the row also reads the requested fields. */
export function resolveMutation<I>(change: RepositoryMutation<I>) {
  return async (
    _root: unknown,
    { input }: { input: I },
    context: Context,
    info: GraphQLResolveInfo,
  ): Promise<RepositoryPayload> => {
    const { services, viewer } = context;
    return readPayload(context, info, (select) => change(services, viewer, input, select));
  };
}

/** Runs the mutation with the `select` of the requested repository fields. */
export async function readPayload(
  context: Context,
  info: GraphQLResolveInfo,
  change: (select: Select) => Promise<object>,
): Promise<RepositoryPayload> {
  return { repository: await change(selectForChild<Select>(context, info, 'repository')) };
}

builder.mutationFields((t) => ({
  createRepository: t.field({
    type: definePayload('CreateRepository'),
    nullable: true,
    description: 'Creates a repository, with an initial commit unless `autoInit` is false.',
    args: { input: t.arg({ type: CreateRepositoryInput, ...INPUT }) },
    resolve: resolveMutation(lifecycle.createRepository),
  }),
  renameRepository: t.field({
    type: definePayload('RenameRepository'),
    nullable: true,
    description: 'Renames a repository. Clone URLs with the old name stop working immediately.',
    args: { input: t.arg({ type: RenameRepositoryInput, ...INPUT }) },
    resolve: resolveMutation(lifecycle.renameRepository),
  }),
  changeRepositoryVisibility: t.field({
    type: definePayload('ChangeRepositoryVisibility'),
    nullable: true,
    description: 'Changes who may see a repository.',
    args: { input: t.arg({ type: ChangeRepositoryVisibilityInput, ...INPUT }) },
    resolve: resolveMutation(lifecycle.changeVisibility),
  }),
  transferRepository: t.field({
    type: definePayload('TransferRepository'),
    nullable: true,
    description:
      'Transfers a repository to another namespace. Requires `ADMIN` in both namespaces. The id does not change.',
    args: { input: t.arg({ type: TransferRepositoryInput, ...INPUT }) },
    resolve: resolveMutation(lifecycle.transferRepository),
  }),
  updateRepository: t.field({
    type: definePayload('UpdateRepository'),
    nullable: true,
    description: 'Changes the given settings of a repository.',
    args: { input: t.arg({ type: UpdateRepositoryInput, ...INPUT }) },
    resolve: resolveMutation(lifecycle.updateRepository),
  }),
  deleteRepository: t.field({
    type: deletionPayload('DeleteRepository'),
    nullable: true,
    description: 'Permanently deletes a repository with all its data.',
    args: { input: t.arg({ type: DeleteRepositoryInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await lifecycle.deleteRepository(services, viewer, input),
    }),
  }),
}));
