/** Sessions of browsers, and addresses that sign somebody in once, in GraphQL. */

import { orderByIds } from '../../platform/database/paging.ts';
import { builder, deletionPayload, INPUT } from '../../platform/schema/builder.ts';
import {
  cursorPageArgs,
  defineConnectionType,
  pageCost,
  toConnection,
} from '../../platform/schema/paging.ts';
import * as links from '../sign-in/links.ts';
import * as sessions from '../sign-in/sessions.ts';
import { User } from './namespaces.ts';

const SessionMethod = builder.enumType('SessionMethod', {
  description: 'How somebody signed in.',
  values: {
    TOKEN: {
      value: 'token',
      description: 'With a personal access token; the session ends with it.',
    },
    OIDC: { value: 'oidc', description: 'By an issuer of identities.' },
    LINK: { value: 'link', description: 'By an address that works once.' },
  } as const,
});

const SessionRef = builder.objectRef<sessions.BrowserSession>('Session');
const Session = builder.node(SessionRef, {
  description: 'A browser in which a user is signed in, with the full rights of the user.',
  id: { resolve: ({ id }) => id },
  loadMany: async (ids, { services, viewer }) =>
    orderByIds(ids, await sessions.findSessions(services, viewer, ids)),
  fields: (t) => ({
    method: t.field({
      type: SessionMethod,
      description: 'How the user signed in.',
      resolve: ({ method }) => method as 'token' | 'link' | 'oidc',
    }),
    userAgent: t.exposeString('userAgent', { description: 'What the browser said of itself.' }),
    address: t.exposeString('address', {
      nullable: true,
      description: 'The address of the browser when the user signed in.',
    }),
    isCurrent: t.boolean({
      description: 'Whether this is the session that asks.',
      resolve: ({ id }, _args, { viewer }) =>
        viewer.kind === 'account' && viewer.credential.id === id,
    }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When the user signed in.' }),
    lastUsedAt: t.expose('lastUsedAt', {
      type: 'DateTime',
      description: 'When it was last used, to the minute. It ends two weeks later.',
    }),
    expiresAt: t.expose('expiresAt', {
      type: 'DateTime',
      description: 'When it ends however much it is used.',
    }),
  }),
});

const SessionConnection = defineConnectionType('Session', Session);

builder.prismaObjectField(User, 'sessions', (t) =>
  t.field({
    type: SessionConnection,
    nullable: true,
    description:
      'The browsers in which the user is signed in, newest first. Only the user sees them, with a credential of full rights.',
    complexity: pageCost(),
    args: cursorPageArgs,
    select: { id: true },
    resolve: async ({ id }, args, { services, viewer }) =>
      toConnection(await sessions.sliceSessions(services, viewer, id, args), args),
  }),
);

const DeleteSessionInput = builder.inputType('DeleteSessionInput', {
  description: 'The session to end.',
  fields: (t) => ({ id: t.id({ required: true, description: 'The id of the session.' }) }),
});

const DeleteSessionsInput = builder.inputType('DeleteSessionsInput', {
  description: 'Which sessions to end.',
  fields: (t) => ({
    keepCurrent: t.boolean({
      required: true,
      defaultValue: true,
      description: 'Whether the session that asks goes on.',
    }),
  }),
});

const DeleteSessionsPayload = builder
  .objectRef<{ ids: string[] }>('DeleteSessionsPayload')
  .implement({
    description: 'The sessions that have ended.',
    fields: (t) => ({
      ids: t.exposeIDList('ids', { description: 'The ids of the sessions that have ended.' }),
    }),
  });

const CreateSignInLinkInput = builder.inputType('CreateSignInLinkInput', {
  description: 'Whom the address signs in.',
  fields: (t) => ({
    username: t.string({
      description: 'The name of the user; left out: the caller. The operator may name others.',
    }),
  }),
});

const CreateSignInLinkPayload = builder
  .objectRef<links.SignInLink>('CreateSignInLinkPayload')
  .implement({
    description: 'The address, which is shown once.',
    fields: (t) => ({
      url: t.exposeString('url', {
        description: 'The address, to be opened in a browser. It signs in once.',
      }),
      expiresAt: t.expose('expiresAt', {
        type: 'DateTime',
        description: 'When it stops working if it was not used: after 24 hours.',
      }),
    }),
  });

builder.mutationFields((t) => ({
  deleteSession: t.field({
    type: deletionPayload('DeleteSession'),
    nullable: true,
    description: 'Signs the caller out of a browser, at once.',
    args: { input: t.arg({ type: DeleteSessionInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await sessions.deleteSession(services, viewer, String(input.id)),
    }),
  }),
  deleteSessions: t.field({
    type: DeleteSessionsPayload,
    nullable: true,
    description: 'Signs the caller out everywhere, or everywhere else, at once.',
    args: { input: t.arg({ type: DeleteSessionsInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      ids: await sessions.deleteSessions(services, viewer, input),
    }),
  }),
  createSignInLink: t.field({
    type: CreateSignInLinkPayload,
    nullable: true,
    description:
      'Makes an address that signs a user in once, within 24 hours: for a new user, or one who has no token any more.',
    args: { input: t.arg({ type: CreateSignInLinkInput, ...INPUT }) },
    resolve: (_root, { input }, { services, viewer }) =>
      links.createSignInLink(services, viewer, input.username),
  }),
}));
