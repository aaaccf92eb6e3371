/** What secret scanning lets pass, in GraphQL. */
import { builder, INPUT } from '../../platform/schema/builder.ts';
import { connectionType, pageCost, sliceArgs, toConnection } from '../../platform/schema/paging.ts';
import * as secrets from '../allowed-secrets.ts';
import { accessColumns } from '../repositories.ts';
import { answering, changedPayload, ID, NAMESPACE } from './mutations.ts';
import { Repository } from './repositories.ts';

const AllowedSecret = builder.objectRef<secrets.AllowedSecret>('AllowedSecret').implement({
  description: 'What looks like a secret and may be pushed to the repository all the same.',
  fields: (t) => ({
    finding: t.exposeID('finding', {
      description:
        'The id that a refused push showed. The same secret has the same one in this repository.',
    }),
    kind: t.exposeString('kind', {
      description: 'What it looks like, such as `an AWS access key id`.',
    }),
    path: t.exposeString('path', {
      description: 'A file it was in when it was allowed, or another place in words.',
    }),
    allowedBy: t.exposeString('allowedBy', {
      description: 'Who allowed it, by `git push -o secret.allow=…`.',
    }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was allowed.' }),
  }),
});

const AllowedSecretConnection = connectionType('AllowedSecret', AllowedSecret);

builder.prismaObjectField(Repository, 'allowedSecrets', (t) =>
  t.field({
    type: AllowedSecretConnection,
    nullable: true,
    description: 'What secret scanning lets pass, newest first. Only who may push sees it.',
    complexity: pageCost(),
    args: sliceArgs,
    select: accessColumns,
    resolve: async (row, args, { services, viewer }) =>
      toConnection(await secrets.sliceAllowedSecrets(services, viewer, row, args), args),
  }),
);

const DisallowSecretInput = builder.inputType('DisallowSecretInput', {
  description: 'What secret scanning is to refuse again.',
  fields: (t) => ({
    id: t.id(ID),
    namespace: t.string(NAMESPACE),
    finding: t.id({ required: true, description: 'The id of what was found.' }),
  }),
});

builder.mutationField('disallowSecret', (t) =>
  t.field({
    type: changedPayload('DisallowSecret'),
    nullable: true,
    description:
      'Lets secret scanning refuse again what was allowed. Where it has been pushed, it stays.',
    args: { input: t.arg({ type: DisallowSecretInput, ...INPUT }) },
    resolve: answering(secrets.disallowSecret),
  }),
);
