/** Identity providers and connected identities in GraphQL. */
import { builder, deletionPayload, INPUT } from '../../platform/schema/builder.ts';
import {
  cursorPageArgs,
  defineConnectionType,
  pageCost,
  toConnection,
} from '../../platform/schema/paging.ts';
import * as connections from '../sign-in/connections.ts';
import { User } from './namespaces.ts';

const IdentityIssuer = builder.objectRef<connections.IssuerChoice>('IdentityIssuer').implement({
  description: 'An identity provider (OpenID Connect) for signing in.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The name in URLs: `oidc`, `oidc-2` …' }),
    label: t.exposeString('label', { description: 'The display name.' }),
    issuer: t.exposeString('issuer', { description: 'The issuer URL.' }),
    signInUrl: t.exposeString('signInUrl', {
      description:
        'The URL to sign in with it in a browser. `?to=` is the path to open afterwards.',
    }),
    connectUrl: t.exposeString('connectUrl', {
      nullable: true,
      description:
        'The URL to connect an identity to the user, for signing in from then on. Open it in the same browser within ten minutes. `&to=` is the path to open afterwards. Null without a browser session.',
    }),
  }),
});

const ConnectedIdentity = builder.objectRef<connections.Identity>('ConnectedIdentity').implement({
  description: 'An account at an identity provider with which a user signs in.',
  fields: (t) => ({
    id: t.exposeID('id', { description: 'The id. It cannot be used with `node`.' }),
    issuer: t.exposeString('issuer', { description: 'The issuer URL of the identity provider.' }),
    label: t.string({
      nullable: true,
      description:
        'The display name of the identity provider; null when it is not configured any more.',
      resolve: ({ issuer }, _args, { services }) =>
        connections.findIssuerLabel(services.issuers, issuer),
    }),
    subject: t.exposeString('subject', {
      description: 'The id of the user at the identity provider.',
    }),
    createdAt: t.expose('createdAt', {
      type: 'DateTime',
      description: 'When it was connected, or first used for signing in.',
    }),
    lastUsedAt: t.expose('lastUsedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When an access token of the identity provider was last used, to the minute.',
    }),
  }),
});

builder.prismaObjectField(User, 'identities', (t) =>
  t.field({
    type: defineConnectionType('ConnectedIdentity', ConnectedIdentity),
    nullable: true,
    description:
      'The connected identities of the user, newest first. Only the user sees them, with a credential of full rights.',
    complexity: pageCost(),
    args: cursorPageArgs,
    select: { id: true },
    resolve: async ({ id }, args, { services, viewer }) =>
      toConnection(await connections.sliceIdentities(services, viewer, id, args), args),
  }),
);

builder.queryField('identityIssuers', (t) =>
  t.field({
    type: [IdentityIssuer],
    description: 'The identity providers for signing in.',
    resolve: (_root, _args, { services, viewer }) => connections.listIssuers(services, viewer),
  }),
);

const DeleteIdentityInput = builder.inputType('DeleteIdentityInput', {
  description: 'The identity to remove.',
  fields: (t) => ({ id: t.id({ required: true, description: 'The id of the identity.' }) }),
});

builder.mutationField('deleteIdentity', (t) =>
  t.field({
    type: deletionPayload('DeleteIdentity'),
    nullable: true,
    description:
      'Removes an identity of the caller. It cannot be used for signing in any more, and other sessions from identity providers end. The last way to sign in cannot be removed (`CONFLICT`): another identity or a personal access token of full rights must exist.',
    args: { input: t.arg({ type: DeleteIdentityInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await connections.deleteIdentity(services, viewer, String(input.id)),
    }),
  }),
);
