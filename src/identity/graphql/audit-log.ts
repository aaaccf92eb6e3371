/** The audit log in GraphQL: of a namespace, of a user, and of the server. */

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
  description: 'The kind of a change.',
  values: Object.fromEntries(
    Object.entries(AUDIT_ACTIONS).map(([value, description]) => [
      value.replace('.', '_').toUpperCase(),
      { value, description },
    ]),
  ) as { [name: string]: { value: AuditAction } },
});

type StoredCredential = {
  credentialKind: string | null;
  credentialId: string | null;
  credentialName: string | null;
};

/** Reads the credential that a row has a copy of; null if none was used, as by a program on the machine of the server. */
export function readCredential({
  credentialKind,
  credentialId,
  credentialName,
}: StoredCredential): Credential | null {
  return credentialKind && credentialId
    ? { kind: credentialKind, id: credentialId, name: credentialName ?? '' }
    : null;
}

type Credential = { kind: string; id: string; name: string };

export const AuditCredential = builder.objectRef<Credential>('AuditCredential').implement({
  description: 'The credential that was used for a change, as it was at that time.',
  fields: (t) => ({
    kind: t.exposeString('kind', {
      description:
        '`pat` for a personal access token, `key` for an API key, `ssh` for an SSH key, `deploy` for a deploy key, `session` for a browser session, `oidc` for an access token of an identity provider, `job` for the token of a job.',
    }),
    id: t.exposeID('id', {
      description:
        'The id of the credential, which may be deleted by now; for the token of a job, that of the attempt.',
    }),
    name: t.exposeString('name', {
      description: 'The name of the credential, or of the job.',
    }),
  }),
});

const AuditEntry = builder.objectRef<log.AuditEntry>('AuditEntry').implement({
  description:
    'A change that a user made. Entries are never modified, and are kept after the changed object is deleted.',
  fields: (t) => ({
    id: t.exposeID('id', { description: 'The id of the entry.' }),
    action: t.field({
      type: Action,
      description: 'The kind of the change.',
      resolve: ({ action }) => action as AuditAction,
    }),
    timestamp: t.expose('createdAt', {
      type: 'DateTime',
      description: 'When the change was made.',
    }),
    namespace: t.exposeString('namespace', {
      nullable: true,
      description: 'The name of the namespace of the change.',
    }),
    subject: t.exposeID('subject', {
      description: 'The id of the changed object, which may be deleted by now.',
    }),
    name: t.exposeString('name', {
      description: 'The name of the changed object, after the change.',
    }),
    details: t.field({
      type: 'JSON',
      description: 'Further details, such as the previous name or the new role.',
      resolve: ({ details }) => details as object,
    }),
    actor: t.exposeString('actor', {
      description:
        'The name of the user who made the change; `server` for changes on the machine of the server.',
    }),
    actorId: t.exposeID('actorId', {
      nullable: true,
      description:
        'The id of the user who made the change; null for changes on the machine of the server.',
    }),
    credential: t.field({
      type: AuditCredential,
      nullable: true,
      description: 'The credential that was used; null for changes on the machine of the server.',
      resolve: readCredential,
    }),
    address: t.exposeString('address', {
      nullable: true,
      description: 'The client address of the request.',
    }),
    requestId: t.exposeString('requestId', {
      nullable: true,
      description: 'The `X-Request-Id` of the request.',
    }),
  }),
});

const AuditConnection = defineConnectionType('AuditEntry', AuditEntry);

const ONLY_ACTION = 'Only entries with this action.';
const ONLY_ACTOR = 'Only entries of the user with this name.';

builder.prismaObjectField(Namespace, 'auditLog', (t) =>
  t.field({
    type: AuditConnection,
    nullable: true,
    description:
      'The audit log of the namespace, newest first. Only for its admins, with a credential of full rights.',
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
      'The changes that the user made, newest first. Only for the user and operators, with a credential of full rights.',
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
    description: 'The audit log of the server, newest first. Only for operators.',
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
