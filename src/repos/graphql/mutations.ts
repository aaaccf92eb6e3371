/** What changes repositories, in GraphQL. */
import { builder } from '../../graphql/builder.ts';
import { selectOf, Visibility } from '../graphql.ts';
import * as lifecycle from '../lifecycle.ts';

const CreateRepositoryInput = builder.inputType('CreateRepositoryInput', {
  fields: (t) => ({
    namespace: t.string({ required: true }),
    name: t.string({
      required: true,
      description: '1 to 100 of letters, digits, hyphen, underscore and dot.',
    }),
    description: t.string({
      required: true,
      defaultValue: '',
      description: 'At most 512 characters.',
    }),
    visibility: t.field({ type: Visibility, required: true, defaultValue: 'private' }),
    defaultBranch: t.string({ required: true, defaultValue: 'main' }),
    autoInit: t.boolean({
      required: true,
      defaultValue: true,
      description: 'Makes a first commit on the default branch.',
    }),
    contentAddressed: t.boolean({
      required: true,
      defaultValue: true,
      description: 'Stores its large files once with those of others.',
    }),
    gitignoreTemplate: t.string({
      description: 'The name of a language: its `.gitignore` is in the first commit.',
    }),
  }),
});

const RenameRepositoryInput = builder.inputType('RenameRepositoryInput', {
  fields: (t) => ({
    id: t.id({ required: true }),
    namespace: t.string(),
    name: t.string({ required: true }),
  }),
});

const ChangeRepositoryVisibilityInput = builder.inputType('ChangeRepositoryVisibilityInput', {
  fields: (t) => ({
    id: t.id({ required: true }),
    namespace: t.string(),
    visibility: t.field({ type: Visibility, required: true }),
  }),
});

const TransferRepositoryInput = builder.inputType('TransferRepositoryInput', {
  fields: (t) => ({
    id: t.id({ required: true }),
    namespace: t.string(),
    newNamespace: t.string({ required: true }),
  }),
});

const UpdateRepositoryInput = builder.inputType('UpdateRepositoryInput', {
  fields: (t) => ({
    id: t.id({ required: true }),
    namespace: t.string(),
    description: t.string(),
    branchProtection: t.boolean(),
    secretScanning: t.boolean(),
  }),
});

const DeleteRepositoryInput = builder.inputType('DeleteRepositoryInput', {
  fields: (t) => ({ id: t.id({ required: true }), namespace: t.string() }),
});

builder.mutationFields((t) => {
  const required = { required: true } as const;
  return {
    createRepository: t.prismaField({
      type: 'Repository',
      args: { input: t.arg({ type: CreateRepositoryInput, ...required }) },
      resolve: (query, _root, { input }, { services, viewer }) =>
        lifecycle.createRepository(services, viewer, input, selectOf(query)) as never,
    }),
    renameRepository: t.prismaField({
      type: 'Repository',
      description: 'Clone addresses with the old name stop working at once.',
      args: { input: t.arg({ type: RenameRepositoryInput, ...required }) },
      resolve: (query, _root, { input }, { services, viewer }) =>
        lifecycle.renameRepository(services, viewer, input, selectOf(query)) as never,
    }),
    changeRepositoryVisibility: t.prismaField({
      type: 'Repository',
      args: { input: t.arg({ type: ChangeRepositoryVisibilityInput, ...required }) },
      resolve: (query, _root, { input }, { services, viewer }) =>
        lifecycle.changeVisibility(services, viewer, input, selectOf(query)) as never,
    }),
    transferRepository: t.prismaField({
      type: 'Repository',
      description: 'Needs `ADMIN` in both namespaces. The id stays.',
      args: { input: t.arg({ type: TransferRepositoryInput, ...required }) },
      resolve: (query, _root, { input }, { services, viewer }) =>
        lifecycle.transferRepository(services, viewer, input, selectOf(query)) as never,
    }),
    updateRepository: t.prismaField({
      type: 'Repository',
      description: 'Changes what is given.',
      args: { input: t.arg({ type: UpdateRepositoryInput, ...required }) },
      resolve: (query, _root, { input }, { services, viewer }) =>
        lifecycle.updateRepository(services, viewer, input, selectOf(query)) as never,
    }),
    deleteRepository: t.id({
      description: 'Removes it with all its data, for good; answers the id that is gone.',
      args: { input: t.arg({ type: DeleteRepositoryInput, ...required }) },
      resolve: (_root, { input }, { services, viewer }) =>
        lifecycle.deleteRepository(services, viewer, input),
    }),
  };
});
