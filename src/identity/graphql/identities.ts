/** Issuers of identities, and those that a user signs in by, in GraphQL. */
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
  description: 'An issuer of identities (OpenID Connect) by which one can sign in here.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The name in addresses: `oidc`, `oidc-2` …' }),
    label: t.exposeString('label', { description: 'What people call it.' }),
    issuer: t.exposeString('issuer', { description: 'Its address.' }),
    signInUrl: t.exposeString('signInUrl', {
      description: 'To be opened in a browser: signs in by it. `?to=` says where to go then.',
    }),
    connectUrl: t.exposeString('connectUrl', {
      nullable: true,
      description:
        'To be opened in the same browser within ten minutes: connects an identity to the user, who can sign in by it from then on. `&to=` says where to go then. Null for who is not signed in with a browser.',
    }),
  }),
});

const ConnectedIdentity = builder.objectRef<connections.Identity>('ConnectedIdentity').implement({
  description: 'Who a user is to an issuer of identities: the user signs in by it.',
  fields: (t) => ({
    id: t.exposeID('id', { description: 'Its id. It is not that of a node.' }),
    issuer: t.exposeString('issuer', { description: 'The address of the issuer.' }),
    label: t.string({
      nullable: true,
      description: 'What people call the issuer; null when one cannot sign in by it any more.',
      resolve: ({ issuer }, _args, { services }) =>
        connections.findIssuerLabel(services.issuers, issuer),
    }),
    subject: t.exposeString('subject', { description: 'The id of the user there.' }),
    createdAt: t.expose('createdAt', {
      type: 'DateTime',
      description: 'When it was connected, or the user first signed in by it.',
    }),
    lastUsedAt: t.expose('lastUsedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When an access token of it was last used, to the minute.',
    }),
  }),
});

builder.prismaObjectField(User, 'identities', (t) =>
  t.field({
    type: defineConnectionType('ConnectedIdentity', ConnectedIdentity),
    nullable: true,
    description:
      'The identities that the user signs in by, newest first. Only the user sees them, with a credential of full rights.',
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
    description: 'The issuers of identities by which one can sign in here.',
    resolve: (_root, _args, { services, viewer }) => connections.listIssuers(services, viewer),
  }),
);

const DeleteIdentityInput = builder.inputType('DeleteIdentityInput', {
  description: 'The identity to take away.',
  fields: (t) => ({ id: t.id({ required: true, description: 'The id of the identity.' }) }),
});

builder.mutationField('deleteIdentity', (t) =>
  t.field({
    type: deletionPayload('DeleteIdentity'),
    nullable: true,
    description:
      'Takes an identity away from the caller, at once: it signs in nobody any more, and other sessions that began with an issuer end. The last way to sign in is not taken away (`CONFLICT`): another identity or a personal access token of full rights must be left.',
    args: { input: t.arg({ type: DeleteIdentityInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await connections.deleteIdentity(services, viewer, String(input.id)),
    }),
  }),
);
