/** Access tokens and API keys in GraphQL. */

import { orderByIds } from '../../platform/database/paging.ts';
import { builder, deletionPayload, INPUT } from '../../platform/schema/builder.ts';
import {
  cursorPageArgs,
  defineConnectionType,
  pageCost,
  toConnection,
} from '../../platform/schema/paging.ts';
import * as tokens from '../access-tokens.ts';
import * as keys from '../api-keys.ts';
import { type Scope as AScope, SCOPES } from '../permissions.ts';
import { User } from './namespaces.ts';

const ALLOWS: Record<AScope, string> = {
  'repo:read': 'Read and clone repositories.',
  'repo:write': 'Push to repositories, too.',
  'repo:admin': 'Create, change and delete repositories, too.',
  'job:read': 'Read jobs, their logs and artifacts.',
  'job:write': 'Create, cancel and delete jobs, too.',
  'webhook:admin': 'Manage webhooks, and read what they send.',
};

const Scope = builder.enumType('Scope', {
  description: 'What a credential may be used for. `WRITE` includes `READ`, `ADMIN` includes both.',
  values: Object.fromEntries(
    SCOPES.map((scope) => [
      scope.toUpperCase().replace(':', '_'),
      { value: scope, description: ALLOWS[scope] },
    ]),
  ) as { [name: string]: { value: AScope } },
});

// Fields that tokens and keys have in common.
const GRANTED_SCOPES = {
  type: [Scope] as [typeof Scope],
  description: 'What it may be used for. Empty: everything that its user may do.',
};
const CREATED_AT = { type: 'DateTime', description: 'When it was created.' } as const;
const EXPIRES_AT = {
  type: 'DateTime',
  nullable: true,
  description: 'When it stops working; null: never.',
} as const;
const LAST_USED_AT = {
  type: 'DateTime',
  nullable: true,
  description: 'When it was last used, to the minute; null: never.',
} as const;
// Inputs that both take.
const CHOSEN_SCOPES = {
  type: [Scope] as [typeof Scope],
  description: 'What it may be used for. None: everything that its user may do.',
};
const LIFETIME = {
  required: true,
  defaultValue: 30,
  description: 'After how many days it stops working: 1 to 365.',
} as const;

const AccessTokenRef = builder.objectRef<tokens.AccessToken>('AccessToken');
const AccessToken = builder.node(AccessTokenRef, {
  description: 'A personal access token.',
  id: { resolve: ({ id }) => id },
  loadMany: async (ids, { services, viewer }) =>
    orderByIds(ids, await tokens.findAccessTokens(services, viewer, ids)),
  fields: (t) => ({
    name: t.exposeString('name', {
      description: 'The name; a user has no two tokens of the same.',
    }),
    scopes: t.expose('scopes', GRANTED_SCOPES),
    namespaces: t.exposeStringList('namespaces', {
      description: 'The names of the only namespaces it works in. Empty: in all.',
    }),
    repositories: t.exposeIDList('repositories', {
      description: 'The ids of the only repositories it works for. Empty: for all.',
    }),
    createdAt: t.expose('createdAt', CREATED_AT),
    expiresAt: t.expose('expiresAt', EXPIRES_AT),
    lastUsedAt: t.expose('lastUsedAt', LAST_USED_AT),
  }),
});

const ApiKeyRef = builder.objectRef<keys.ApiKey>('ApiKey');
const ApiKey = builder.node(ApiKeyRef, {
  description: 'A key for programs: `Authorization: API-Key name$secret`.',
  id: { resolve: ({ id }) => id },
  loadMany: async (ids, { services, viewer }) =>
    orderByIds(ids, await keys.findApiKeys(services, viewer, ids)),
  fields: (t) => ({
    name: t.exposeString('name', {
      description: 'The name; no two keys of the server have the same.',
    }),
    namespace: t.exposeString('namespace', {
      nullable: true,
      description:
        'The name of the only namespace it works in; null: in all that its user may use.',
    }),
    scopes: t.expose('scopes', GRANTED_SCOPES),
    createdAt: t.expose('createdAt', CREATED_AT),
    expiresAt: t.expose('expiresAt', EXPIRES_AT),
    lastUsedAt: t.expose('lastUsedAt', LAST_USED_AT),
  }),
});

const AccessTokenConnection = defineConnectionType('AccessToken', AccessToken);
const ApiKeyConnection = defineConnectionType('ApiKey', ApiKey);

builder.prismaObjectFields(User, (t) => ({
  accessTokens: t.field({
    type: AccessTokenConnection,
    nullable: true,
    description:
      'The tokens of the user, newest first. Only the user sees them, with a credential of full rights.',
    complexity: pageCost(),
    args: cursorPageArgs,
    select: { id: true },
    resolve: async ({ id }, args, { services, viewer }) =>
      toConnection(await tokens.sliceAccessTokens(services, viewer, id, args), args),
  }),
  apiKeys: t.field({
    type: ApiKeyConnection,
    nullable: true,
    description:
      'The keys of the user, and those of namespaces the user administers, newest first. Only the user sees them, with a credential of full rights.',
    complexity: pageCost(),
    args: cursorPageArgs,
    select: { id: true },
    resolve: async ({ id }, args, { services, viewer }) =>
      toConnection(await keys.sliceApiKeys(services, viewer, id, args), args),
  }),
}));

builder.queryFields((t) => ({
  accessTokens: t.field({
    type: [AccessToken],
    nullable: true,
    description:
      'The tokens of the caller, newest first: only for REST, which has no pages here. In GraphQL ask for `viewer { accessTokens }`.',
    resolve: (_root, _args, { services, viewer }) => tokens.listAccessTokens(services, viewer),
  }),
  accessToken: t.field({
    type: AccessToken,
    nullable: true,
    description: 'A token of the caller, by its name.',
    args: { name: t.arg.string({ required: true, description: 'The name of the token.' }) },
    resolve: (_root, { name }, { services, viewer }) =>
      tokens.getAccessToken(services, viewer, name),
  }),
  apiKeys: t.field({
    type: [ApiKey],
    nullable: true,
    description:
      'The keys of the caller, and those of namespaces that the caller administers: only for REST, which has no pages here. In GraphQL ask for `viewer { apiKeys }`.',
    resolve: (_root, _args, { services, viewer }) => keys.listApiKeys(services, viewer),
  }),
  apiKey: t.field({
    type: ApiKey,
    nullable: true,
    description: 'A key of the caller, or of a namespace that the caller administers, by its name.',
    args: {
      name: t.arg.string({
        required: true,
        description: 'The name of the key: the part before the `$`.',
      }),
    },
    resolve: (_root, { name }, { services, viewer }) => keys.getApiKey(services, viewer, name),
  }),
}));

const CreateAccessTokenInput = builder.inputType('CreateAccessTokenInput', {
  description: 'The token to create, for the caller or for `username`.',
  fields: (t) => ({
    name: t.string({
      required: true,
      description: '1 to 100 characters; a user has no two tokens of the same name.',
    }),
    username: t.string({
      description:
        'The user that the token is for; left out: the caller. Only the operator may name another.',
    }),
    expiresInDays: t.int(LIFETIME),
    scopes: t.field(CHOSEN_SCOPES),
    namespaces: t.stringList({
      description: 'The names of the only namespaces it is to work in. None: in all.',
    }),
    repositories: t.idList({
      description: 'The ids of the only repositories it is to work for. None: for all.',
    }),
  }),
});

const CreateAccessTokenPayload = builder
  .objectRef<{ accessToken: tokens.AccessToken; token: string }>('CreateAccessTokenPayload')
  .implement({
    description: 'The token that was created, and its secret.',
    fields: (t) => ({
      accessToken: t.expose('accessToken', {
        type: AccessToken,
        description: 'The token, as it can be read later.',
      }),
      token: t.exposeString('token', {
        description: 'The secret, for `Authorization: Bearer …`. Only this answer shows it.',
      }),
    }),
  });

const CreateApiKeyInput = builder.inputType('CreateApiKeyInput', {
  description: 'The key to create; it acts for the caller.',
  fields: (t) => ({
    name: t.string({
      required: true,
      description:
        '1 to 100 of A-Z, a-z, 0-9, ".", "_" and "-"; no two keys of the server have the same name.',
    }),
    namespace: t.string({
      description:
        'The name of the only namespace it is to work in, where the caller must be `ADMIN`. Left out: in all.',
    }),
    scopes: t.field(CHOSEN_SCOPES),
    expiresInDays: t.int(LIFETIME),
  }),
});

const CreateApiKeyPayload = builder
  .objectRef<{ apiKey: keys.ApiKey; key: string }>('CreateApiKeyPayload')
  .implement({
    description: 'The key that was created, and its secret.',
    fields: (t) => ({
      apiKey: t.expose('apiKey', {
        type: ApiKey,
        description: 'The key, as it can be read later.',
      }),
      key: t.exposeString('key', {
        description: '`name$secret`, for `Authorization: API-Key …`. Only this answer shows it.',
      }),
    }),
  });

const DeleteAccessTokenInput = builder.inputType('DeleteAccessTokenInput', {
  description: 'The token to delete.',
  fields: (t) => ({ name: t.string({ required: true, description: 'The name of the token.' }) }),
});

const DeleteApiKeyInput = builder.inputType('DeleteApiKeyInput', {
  description: 'The key to delete.',
  fields: (t) => ({
    name: t.string({
      required: true,
      description: 'The name of the key: the part before the `$`.',
    }),
  }),
});

builder.mutationFields((t) => ({
  createAccessToken: t.field({
    type: CreateAccessTokenPayload,
    nullable: true,
    description: 'Creates a personal access token. The credential must have full rights.',
    args: { input: t.arg({ type: CreateAccessTokenInput, ...INPUT }) },
    resolve: (_root, { input }, { services, viewer }) =>
      tokens.createAccessToken(services, viewer, input),
  }),
  deleteAccessToken: t.field({
    type: deletionPayload('DeleteAccessToken'),
    nullable: true,
    description: 'It stops working at once.',
    args: { input: t.arg({ type: DeleteAccessTokenInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await tokens.deleteAccessToken(services, viewer, input.name),
    }),
  }),
  createApiKey: t.field({
    type: CreateApiKeyPayload,
    nullable: true,
    description: 'Creates an API key. The credential must have full rights.',
    args: { input: t.arg({ type: CreateApiKeyInput, ...INPUT }) },
    resolve: (_root, { input }, { services, viewer }) => keys.createApiKey(services, viewer, input),
  }),
  deleteApiKey: t.field({
    type: deletionPayload('DeleteApiKey'),
    nullable: true,
    description: 'It stops working at once.',
    args: { input: t.arg({ type: DeleteApiKeyInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await keys.deleteApiKey(services, viewer, input.name),
    }),
  }),
}));
