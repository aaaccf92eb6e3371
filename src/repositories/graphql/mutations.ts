/** What changes repositories, in GraphQL. */

import type { GraphQLResolveInfo } from 'graphql';
import type { Viewer } from '../../identity/permissions.ts';
import { builder, deletionPayload, INPUT } from '../../platform/schema/builder.ts';
import type { Context, ContextServices } from '../../platform/schema/context.ts';
import { selectAt } from '../../platform/schema/select.ts';
import * as lifecycle from '../lifecycle.ts';
import type { Select } from '../repositories.ts';
import { Repository, Visibility } from './repositories.ts';

export const ID = { required: true, description: 'The id of the repository.' } as const;
export const NAMESPACE = {
  description:
    'The name of the owner. If it is given, a repository of another owner is not found; if not, the id is enough.',
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
      description: 'Whether to make a first commit on the default branch.',
    }),
    contentAddressed: t.boolean({
      required: true,
      defaultValue: true,
      description: 'Whether its large files are stored once with those of other repositories.',
    }),
    gitignoreTemplate: t.string({
      description: 'The name of a language, whose `.gitignore` goes into the first commit.',
    }),
  }),
});

const RenameRepositoryInput = builder.inputType('RenameRepositoryInput', {
  description: 'The new name of a repository.',
  fields: (t) => ({
    id: t.id(ID),
    namespace: t.string(NAMESPACE),
    name: t.string({ required: true, description: 'The new name.' }),
  }),
});

const ChangeRepositoryVisibilityInput = builder.inputType('ChangeRepositoryVisibilityInput', {
  description: 'The new visibility of a repository.',
  fields: (t) => ({
    id: t.id(ID),
    namespace: t.string(NAMESPACE),
    visibility: t.field({ type: Visibility, required: true, description: 'The new visibility.' }),
  }),
});

const TransferRepositoryInput = builder.inputType('TransferRepositoryInput', {
  description: 'The new owner of a repository.',
  fields: (t) => ({
    id: t.id(ID),
    namespace: t.string(NAMESPACE),
    newNamespace: t.string({ required: true, description: 'The name of the new owner.' }),
  }),
});

const UpdateRepositoryInput = builder.inputType('UpdateRepositoryInput', {
  description: 'The changes of a repository; what is left out stays as it is.',
  fields: (t) => ({
    id: t.id(ID),
    namespace: t.string(NAMESPACE),
    description: t.string({ description: 'The description, at most 512 characters.' }),
    defaultBranch: t.string({
      description: 'The branch that a clone checks out; it must exist.',
    }),
    branchProtection: t.boolean({
      description:
        'Whether the default branch refuses deletion and pushes that are no fast-forward.',
    }),
    secretScanning: t.boolean({
      description: 'Whether pushes are refused that add what looks like a valid secret.',
    }),
  }),
});

const DeleteRepositoryInput = builder.inputType('DeleteRepositoryInput', {
  description: 'The repository to delete.',
  fields: (t) => ({ id: t.id(ID), namespace: t.string(NAMESPACE) }),
});

type Changed = { repository: object };

/** `{Mutation}Payload` with the repository. */
export function changedPayload(mutation: string) {
  return builder.objectRef<Changed>(`${mutation}Payload`).implement({
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

type Change<I> = (
  services: ContextServices,
  viewer: Viewer,
  input: I,
  select: Select,
) => Promise<object>;

/** A resolver that makes the change and reads, in the same query, what is asked of the repository. */
export function answering<I>(change: Change<I>) {
  return async (
    _root: unknown,
    { input }: { input: I },
    context: Context,
    info: GraphQLResolveInfo,
  ): Promise<Changed> => {
    const { services, viewer } = context;
    return changed(context, info, (select) => change(services, viewer, input, select));
  };
}

/** The payload of a change that reads what is asked of the repository. */
export async function changed(
  context: Context,
  info: GraphQLResolveInfo,
  change: (select: Select) => Promise<object>,
): Promise<Changed> {
  return { repository: await change(selectAt<Select>(context, info, 'repository')) };
}

builder.mutationFields((t) => ({
  createRepository: t.field({
    type: changedPayload('CreateRepository'),
    nullable: true,
    description: 'Creates a repository, with a first commit unless `autoInit` is false.',
    args: { input: t.arg({ type: CreateRepositoryInput, ...INPUT }) },
    resolve: answering(lifecycle.createRepository),
  }),
  renameRepository: t.field({
    type: changedPayload('RenameRepository'),
    nullable: true,
    description: 'Renames a repository. Clone addresses with the old name stop working at once.',
    args: { input: t.arg({ type: RenameRepositoryInput, ...INPUT }) },
    resolve: answering(lifecycle.renameRepository),
  }),
  changeRepositoryVisibility: t.field({
    type: changedPayload('ChangeRepositoryVisibility'),
    nullable: true,
    description: 'Changes who may see a repository.',
    args: { input: t.arg({ type: ChangeRepositoryVisibilityInput, ...INPUT }) },
    resolve: answering(lifecycle.changeVisibility),
  }),
  transferRepository: t.field({
    type: changedPayload('TransferRepository'),
    nullable: true,
    description:
      'Gives a repository to another namespace. The caller must be `ADMIN` of both. The id stays.',
    args: { input: t.arg({ type: TransferRepositoryInput, ...INPUT }) },
    resolve: answering(lifecycle.transferRepository),
  }),
  updateRepository: t.field({
    type: changedPayload('UpdateRepository'),
    nullable: true,
    description: 'Changes the settings of a repository that are given.',
    args: { input: t.arg({ type: UpdateRepositoryInput, ...INPUT }) },
    resolve: answering(lifecycle.updateRepository),
  }),
  deleteRepository: t.field({
    type: deletionPayload('DeleteRepository'),
    nullable: true,
    description: 'Deletes a repository with all its data, for good.',
    args: { input: t.arg({ type: DeleteRepositoryInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await lifecycle.deleteRepository(services, viewer, input),
    }),
  }),
}));
