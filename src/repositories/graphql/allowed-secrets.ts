/** GraphQL: allowed findings of secret scanning. */
import { builder, INPUT } from '../../platform/schema/builder.ts';
import {
  cursorPageArgs,
  defineConnectionType,
  pageCost,
  toConnection,
} from '../../platform/schema/paging.ts';
import * as secrets from '../allowed-secrets.ts';
import { accessColumns } from '../repositories.ts';
import {
  definePayload,
  REPOSITORY_ID,
  REPOSITORY_NAMESPACE,
  resolveMutation,
} from './mutations.ts';
import { Repository } from './repositories.ts';

const AllowedSecret = builder.objectRef<secrets.AllowedSecret>('AllowedSecret').implement({
  description: 'A finding of secret scanning that may be pushed to the repository.',
  fields: (t) => ({
    finding: t.exposeID('finding', {
      description:
        'The id of the finding, shown by the push that was rejected for it. The same secret has the same id within a repository.',
    }),
    kind: t.exposeString('kind', {
      description: 'The kind of secret with its article, such as `an AWS access key id`.',
    }),
    path: t.exposeString('path', {
      description:
        'The path of a file that contained it when it was allowed; a description of the location if it was not in a file, for example in a commit message.',
    }),
    allowedBy: t.exposeString('allowedBy', {
      description: 'The user who allowed it with `git push -o secret.allow=…`.',
    }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was allowed.' }),
  }),
});

const AllowedSecretConnection = defineConnectionType('AllowedSecret', AllowedSecret);

builder.prismaObjectField(Repository, 'allowedSecrets', (t) =>
  t.field({
    type: AllowedSecretConnection,
    nullable: true,
    description:
      'The findings that secret scanning allows, newest first. Requires permission to push.',
    complexity: pageCost(),
    args: cursorPageArgs,
    select: accessColumns,
    resolve: async (repository, args, { services, viewer }) =>
      toConnection(await secrets.sliceAllowedSecrets(services, viewer, repository, args), args),
  }),
);

const DisallowSecretInput = builder.inputType('DisallowSecretInput', {
  description: 'The finding to remove from the allowed findings.',
  fields: (t) => ({
    id: t.id(REPOSITORY_ID),
    namespace: t.string(REPOSITORY_NAMESPACE),
    finding: t.id({
      required: true,
      description: 'The id of the finding, as in `AllowedSecret.finding`.',
    }),
  }),
});

builder.mutationField('disallowSecret', (t) =>
  t.field({
    type: definePayload('DisallowSecret'),
    nullable: true,
    description:
      'Makes secret scanning reject an allowed finding again. Commits that were already pushed are not affected.',
    args: { input: t.arg({ type: DisallowSecretInput, ...INPUT }) },
    resolve: resolveMutation(secrets.disallowSecret),
  }),
);
