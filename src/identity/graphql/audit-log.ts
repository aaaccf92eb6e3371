/** The audit log in GraphQL: of a namespace, of what a user did, and all of it. */

import { builder } from '../../platform/schema/builder.ts';
import {
  cursorPageArgs,
  defineConnectionType,
  pageCost,
  toConnection,
} from '../../platform/schema/paging.ts';
import { AUDIT_ACTIONS, type AuditAction } from '../audit.ts';
import * as log from '../audit-log.ts';
import { Namespace, User } from './namespaces.ts';

const Action = builder.enumType('AuditAction', {
  description: 'What was done.',
  values: Object.fromEntries(
    Object.entries(AUDIT_ACTIONS).map(([value, description]) => [
      value.replace('.', '_').toUpperCase(),
      { value, description },
    ]),
  ) as { [name: string]: { value: AuditAction } },
});

const AuditCredential = builder
  .objectRef<{ kind: string; id: string; name: string }>('AuditCredential')
  .implement({
    description: 'The credential that something was done with, as it was then.',
    fields: (t) => ({
      kind: t.exposeString('kind', {
        description:
          '`pat` for a personal access token, `key` for an API key, `ssh` for an SSH key, `deploy` for a deploy key.',
      }),
      id: t.exposeID('id', { description: 'The id of the credential, also when it was deleted.' }),
      name: t.exposeString('name', { description: 'The name of the credential.' }),
    }),
  });

const AuditEntry = builder.objectRef<log.AuditEntry>('AuditEntry').implement({
  description:
    'A change that somebody made. Entries are never changed, and outlive what they tell of.',
  fields: (t) => ({
    id: t.exposeID('id', { description: 'The id of the entry.' }),
    action: t.field({
      type: Action,
      description: 'What was done.',
      resolve: ({ action }) => action as AuditAction,
    }),
    timestamp: t.expose('createdAt', { type: 'DateTime', description: 'When it was done.' }),
    namespace: t.exposeString('namespace', {
      nullable: true,
      description: 'The name of the namespace that it concerned.',
    }),
    subject: t.exposeID('subject', {
      description: 'The id of what was changed, also when it was deleted.',
    }),
    name: t.exposeString('name', {
      description: 'The name of what was changed, after the change.',
    }),
    details: t.field({
      type: 'JSON',
      description: 'What else is to be known, such as the former name or the new role.',
      resolve: ({ details }) => details as object,
    }),
    actor: t.exposeString('actor', {
      description: 'The name of the user who did it; `server` for what was done on its machine.',
    }),
    actorId: t.exposeID('actorId', {
      nullable: true,
      description:
        'The id of the user who did it; null for what was done on the machine of the server.',
    }),
    credential: t.field({
      type: AuditCredential,
      nullable: true,
      description: 'By which credential; null for what was done on the machine of the server.',
      resolve: ({ credentialKind, credentialId, credentialName }) =>
        credentialKind && credentialId
          ? { kind: credentialKind, id: credentialId, name: credentialName ?? '' }
          : null,
    }),
    address: t.exposeString('address', {
      nullable: true,
      description: 'The address that the request came from.',
    }),
    requestId: t.exposeString('requestId', {
      nullable: true,
      description: 'The `X-Request-Id` of the request.',
    }),
  }),
});

const AuditConnection = defineConnectionType('AuditEntry', AuditEntry);

const ONLY_ACTION = 'Only entries of this action.';
const ONLY_ACTOR = 'Only what the user of this name did.';

builder.prismaObjectField(Namespace, 'auditLog', (t) =>
  t.field({
    type: AuditConnection,
    nullable: true,
    description:
      'What was changed in it, the newest first. Only who may administer it sees it, with a credential of full rights.',
    complexity: pageCost(),
    args: {
      ...cursorPageArgs,
      action: t.arg({ type: Action, description: ONLY_ACTION }),
      actor: t.arg.string({ description: ONLY_ACTOR }),
    },
    select: { id: true },
    resolve: async ({ id }, args, { services, viewer }) =>
      toConnection(await log.sliceNamespaceLog(services, viewer, id, args), args),
  }),
);

builder.prismaObjectField(User, 'auditLog', (t) =>
  t.field({
    type: AuditConnection,
    nullable: true,
    description:
      'What the user changed, the newest first. Only the user and the operator see it, with a credential of full rights.',
    complexity: pageCost(),
    args: { ...cursorPageArgs, action: t.arg({ type: Action, description: ONLY_ACTION }) },
    select: { id: true },
    resolve: async ({ id }, args, { services, viewer }) =>
      toConnection(await log.sliceUserLog(services, viewer, id, args), args),
  }),
);

builder.queryField('auditLog', (t) =>
  t.field({
    type: AuditConnection,
    nullable: true,
    description: 'What was changed on this server, the newest first. Only the operator sees it.',
    complexity: pageCost(),
    args: {
      ...cursorPageArgs,
      action: t.arg({ type: Action, description: ONLY_ACTION }),
      actor: t.arg.string({ description: ONLY_ACTOR }),
    },
    resolve: async (_root, args, { services, viewer }) =>
      toConnection(await log.sliceServerLog(services, viewer, args), args),
  }),
);
