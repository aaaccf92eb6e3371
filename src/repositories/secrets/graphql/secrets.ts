/** GraphQL: secrets and variables of namespaces and repositories. */
import { Namespace } from '../../../identity/graphql/namespaces.ts';
import { builder, deletionPayload, INPUT } from '../../../platform/schema/builder.ts';
import {
  cursorPageArgs,
  defineConnectionType,
  pageCost,
  toConnection,
} from '../../../platform/schema/paging.ts';
import { Repository } from '../../graphql/repositories.ts';
import * as secrets from '../secrets.ts';

const NAME =
  'The name of the environment variable: letters, digits and underscores, not starting with a digit.';
const REFS =
  'The refs whose jobs may have it: names or glob patterns of branches as in branch rules, such as `main` or `release/*`; `tags/` and a pattern for tags; `**` for every job. Empty: protected branches, which are those with a branch rule, and the default branch with `branchProtection`.';

const Secret = builder.objectRef<secrets.Secret>('Secret').implement({
  description:
    'A secret of a namespace or a repository, which jobs can get as an environment variable. Its value is never shown.',
  fields: (t) => ({
    name: t.exposeString('name', { description: NAME }),
    refs: t.exposeStringList('refs', { description: REFS }),
    updatedBy: t.exposeString('updatedBy', { description: 'The user who set it last.' }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was created.' }),
    updatedAt: t.expose('updatedAt', { type: 'DateTime', description: 'When it was set last.' }),
    lastUsedAt: t.expose('lastUsedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'The minute in which a job got it last; null if none did.',
    }),
  }),
});

const Variable = builder.objectRef<secrets.Variable>('Variable').implement({
  description:
    'A variable of a namespace or a repository, which jobs can get as an environment variable.',
  fields: (t) => ({
    name: t.exposeString('name', { description: NAME }),
    value: t.exposeString('value', { description: 'The value.' }),
    updatedBy: t.exposeString('updatedBy', { description: 'The user who set it last.' }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was created.' }),
    updatedAt: t.expose('updatedAt', { type: 'DateTime', description: 'When it was set last.' }),
    lastUsedAt: t.expose('lastUsedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'The minute in which a job got it last; null if none did.',
    }),
  }),
});

const SecretConnection = defineConnectionType('Secret', Secret);
const VariableConnection = defineConnectionType('Variable', Variable);

builder.prismaObjectFields(Namespace, (t) => ({
  secrets: t.field({
    type: SecretConnection,
    nullable: true,
    description:
      'The secrets of the namespace, sorted by name, without those of its repositories. Requires `WRITE`.',
    complexity: pageCost(),
    args: cursorPageArgs,
    select: { id: true },
    resolve: async ({ id }, args, { services, viewer }) =>
      toConnection(await secrets.sliceSecrets(services, viewer, { id }, args), args),
  }),
  variables: t.field({
    type: VariableConnection,
    nullable: true,
    description:
      'The variables of the namespace, sorted by name, without those of its repositories. Requires `WRITE`.',
    complexity: pageCost(),
    args: cursorPageArgs,
    select: { id: true },
    resolve: async ({ id }, args, { services, viewer }) =>
      toConnection(await secrets.sliceVariables(services, viewer, { id }, args), args),
  }),
}));

builder.prismaObjectFields(Repository, (t) => ({
  secrets: t.field({
    type: SecretConnection,
    nullable: true,
    description: 'The secrets of the repository, sorted by name. Requires `WRITE`.',
    complexity: pageCost(),
    args: cursorPageArgs,
    select: { id: true, namespaceId: true },
    resolve: async (repository, args, { services, viewer }) =>
      toConnection(await secrets.sliceSecrets(services, viewer, repository, args), args),
  }),
  variables: t.field({
    type: VariableConnection,
    nullable: true,
    description: 'The variables of the repository, sorted by name. Requires `WRITE`.',
    complexity: pageCost(),
    args: cursorPageArgs,
    select: { id: true, namespaceId: true },
    resolve: async (repository, args, { services, viewer }) =>
      toConnection(await secrets.sliceVariables(services, viewer, repository, args), args),
  }),
}));

const OWNER = { required: true, description: 'The name of the namespace.' } as const;
const OF_REPOSITORY = {
  description: 'The name of the repository to which it belongs. Left out: the namespace.',
};

const SetSecretInput = builder.inputType('SetSecretInput', {
  description: 'A secret to create or to change.',
  fields: (t) => ({
    namespace: t.string(OWNER),
    repository: t.string(OF_REPOSITORY),
    name: t.string({ required: true, description: NAME }),
    value: t.string({
      description:
        'The value: text without NUL, not empty. Left out: the value of the existing secret stays.',
    }),
    refs: t.stringList({
      description: `${REFS} Left out: those of the existing secret stay.`,
    }),
  }),
});

const SetVariableInput = builder.inputType('SetVariableInput', {
  description: 'A variable to create or to change.',
  fields: (t) => ({
    namespace: t.string(OWNER),
    repository: t.string(OF_REPOSITORY),
    name: t.string({ required: true, description: NAME }),
    value: t.string({ required: true, description: 'The value: text without NUL.' }),
  }),
});

const DeleteSecretInput = builder.inputType('DeleteSecretInput', {
  description: 'The secret to delete.',
  fields: (t) => ({
    namespace: t.string(OWNER),
    repository: t.string(OF_REPOSITORY),
    name: t.string({ required: true, description: 'The name of the secret.' }),
  }),
});

const DeleteVariableInput = builder.inputType('DeleteVariableInput', {
  description: 'The variable to delete.',
  fields: (t) => ({
    namespace: t.string(OWNER),
    repository: t.string(OF_REPOSITORY),
    name: t.string({ required: true, description: 'The name of the variable.' }),
  }),
});

const SetSecretPayload = builder
  .objectRef<{ secret: secrets.Secret }>('SetSecretPayload')
  .implement({
    description: 'The secret that was set.',
    fields: (t) => ({
      secret: t.expose('secret', { type: Secret, description: 'The secret, without its value.' }),
    }),
  });

const SetVariablePayload = builder
  .objectRef<{ variable: secrets.Variable }>('SetVariablePayload')
  .implement({
    description: 'The variable that was set.',
    fields: (t) => ({
      variable: t.expose('variable', { type: Variable, description: 'The variable.' }),
    }),
  });

builder.mutationFields((t) => ({
  setSecret: t.field({
    type: SetSecretPayload,
    nullable: true,
    description:
      'Creates or changes a secret of a namespace or repository. Attempts of jobs that start later get the new value. Requires `ADMIN`.',
    args: { input: t.arg({ type: SetSecretInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      secret: await secrets.setSecret(services, viewer, input),
    }),
  }),
  setVariable: t.field({
    type: SetVariablePayload,
    nullable: true,
    description: 'Creates or changes a variable of a namespace or repository. Requires `ADMIN`.',
    args: { input: t.arg({ type: SetVariableInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      variable: await secrets.setVariable(services, viewer, input),
    }),
  }),
  deleteSecret: t.field({
    type: deletionPayload('DeleteSecret'),
    nullable: true,
    description:
      'Deletes a secret of a namespace or repository. Jobs that name it fail at their next attempt. Requires `ADMIN`.',
    args: { input: t.arg({ type: DeleteSecretInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await secrets.deleteSecret(services, viewer, input),
    }),
  }),
  deleteVariable: t.field({
    type: deletionPayload('DeleteVariable'),
    nullable: true,
    description:
      'Deletes a variable of a namespace or repository. Jobs that name it fail at their next attempt. Requires `ADMIN`.',
    args: { input: t.arg({ type: DeleteVariableInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await secrets.deleteVariable(services, viewer, input),
    }),
  }),
}));
