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
  'repo:write': 'Also push to repositories.',
  'repo:admin': 'Also create, change and delete repositories.',
  'job:read': 'Read jobs, their logs and artifacts.',
  'job:write': 'Also create, cancel and delete jobs.',
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

// Fields of both tokens and keys.
const GRANTED_SCOPES = {
  type: [Scope] as [typeof Scope],
  description: 'The scopes. Empty: all rights of its user.',
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
// Inputs of both.
const CHOSEN_SCOPES = {
  type: [Scope] as [typeof Scope],
  description: 'The scopes. None: all rights of its user.',
};
const LIFETIME = {
  required: true,
  defaultValue: 30,
  description: 'The lifetime in days: 1 to 365.',
} as const;

const AccessTokenRef = builder.objectRef<tokens.AccessToken>('AccessToken');
const AccessToken = builder.node(AccessTokenRef, {
  description: 'A personal access token.',
  id: { resolve: ({ id }) => id },
  loadMany: async (ids, { services, viewer }) =>
    orderByIds(ids, await tokens.findAccessTokens(services, viewer, ids)),
  fields: (t) => ({
    name: t.exposeString('name', {
      description: 'The name, which is unique per user.',
    }),
    scopes: t.expose('scopes', GRANTED_SCOPES),
    namespaces: t.exposeStringList('namespaces', {
      description: 'The names of the namespaces to which it is limited. Empty: all namespaces.',
    }),
    repositories: t.exposeIDList('repositories', {
      description: 'The ids of the repositories to which it is limited. Empty: all repositories.',
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
      description: 'The name, which is unique on the server.',
    }),
    namespace: t.exposeString('namespace', {
      nullable: true,
      description:
        'The name of the namespace to which it is limited; null: all namespaces of its user.',
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
      'The keys of the user, and the keys of namespaces that the user administers, newest first. Only the user sees them, with a credential of full rights.',
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
      'The tokens of the caller, newest first; only for REST, which has no pages here. In GraphQL use `viewer { accessTokens }`.',
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
      'The keys of the caller, and the keys of namespaces that the caller administers; only for REST, which has no pages here. In GraphQL use `viewer { apiKeys }`.',
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
      description: '1 to 100 characters, unique per user.',
    }),
    username: t.string({
      description:
        'The user of the token. If omitted, the caller; only operators may name another user.',
    }),
    expiresInDays: t.int(LIFETIME),
    scopes: t.field(CHOSEN_SCOPES),
    namespaces: t.stringList({
      description: 'The names of the namespaces to which it is limited. None: all namespaces.',
    }),
    repositories: t.idList({
      description: 'The ids of the repositories to which it is limited. None: all repositories.',
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
        description: 'The token without its secret.',
      }),
      token: t.exposeString('token', {
        description:
          'The secret, for `Authorization: Bearer …`. It is shown only in this response.',
      }),
    }),
  });

const CreateApiKeyInput = builder.inputType('CreateApiKeyInput', {
  description: 'The key to create. It acts for the caller.',
  fields: (t) => ({
    name: t.string({
      required: true,
      description:
        '1 to 100 characters from A-Z, a-z, 0-9, ".", "_" and "-", unique on the server.',
    }),
    namespace: t.string({
      description:
        'The name of the namespace to which it is limited, where the caller must be `ADMIN`. If omitted, all namespaces.',
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
        description: 'The key without its secret.',
      }),
      key: t.exposeString('key', {
        description:
          '`name$secret`, for `Authorization: API-Key …`. It is shown only in this response.',
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
    description: 'Creates a personal access token. Requires a credential of full rights.',
    args: { input: t.arg({ type: CreateAccessTokenInput, ...INPUT }) },
    resolve: (_root, { input }, { services, viewer }) =>
      tokens.createAccessToken(services, viewer, input),
  }),
  deleteAccessToken: t.field({
    type: deletionPayload('DeleteAccessToken'),
    nullable: true,
    description: 'Deletes a token, which stops working at once.',
    args: { input: t.arg({ type: DeleteAccessTokenInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await tokens.deleteAccessToken(services, viewer, input.name),
    }),
  }),
  createApiKey: t.field({
    type: CreateApiKeyPayload,
    nullable: true,
    description: 'Creates an API key. Requires a credential of full rights.',
    args: { input: t.arg({ type: CreateApiKeyInput, ...INPUT }) },
    resolve: (_root, { input }, { services, viewer }) => keys.createApiKey(services, viewer, input),
  }),
  deleteApiKey: t.field({
    type: deletionPayload('DeleteApiKey'),
    nullable: true,
    description: 'Deletes an API key, which stops working at once.',
    args: { input: t.arg({ type: DeleteApiKeyInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await keys.deleteApiKey(services, viewer, input.name),
    }),
  }),
}));
