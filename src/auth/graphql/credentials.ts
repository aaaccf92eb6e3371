/** Access tokens and API keys in GraphQL. */
import { builder } from '../../graphql/builder.ts';
import { connectionType, pageCost, sliceArgs, toConnection } from '../../graphql/paging.ts';
import { deletionPayload, INPUT } from '../../graphql/payloads.ts';
import * as tokens from '../access-tokens.ts';
import * as keys from '../api-keys.ts';
import { type Scope as AScope, SCOPES } from '../permissions.ts';
import { User } from './namespaces.ts';

const ALLOWS: Record<AScope, string> = {
  'repo:read': 'Reading and cloning repositories.',
  'repo:write': 'Pushing to repositories, too.',
  'repo:admin': 'Creating, changing and deleting repositories, too.',
  'job:read': 'Reading jobs, their logs and artifacts.',
  'job:write': 'Creating, cancelling and deleting jobs, too.',
  'webhook:admin': 'All of webhooks.',
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

const AccessTokenRef = builder.objectRef<tokens.AccessToken>('AccessToken');
const AccessToken = builder.node(AccessTokenRef, {
  description: 'A personal access token.',
  id: { resolve: ({ id }) => id },
  loadMany: async (ids, { services, viewer }) =>
    inOrder(ids, await tokens.findAccessTokens(services, viewer, ids)),
  fields: (t) => ({
    name: t.exposeString('name', { description: 'Unique to its user.' }),
    scopes: t.expose('scopes', { type: [Scope], description: 'Empty: full rights.' }),
    namespaces: t.exposeStringList('namespaces', {
      description: 'Names of those it is narrowed to; empty: all.',
    }),
    repositories: t.exposeIDList('repositories', {
      description: 'Those it is narrowed to; empty: all.',
    }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was made.' }),
    expiresAt: t.expose('expiresAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When it stops working; null: never.',
    }),
    lastUsedAt: t.expose('lastUsedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'To the minute; null: never.',
    }),
  }),
});

const ApiKeyRef = builder.objectRef<keys.ApiKey>('ApiKey');
const ApiKey = builder.node(ApiKeyRef, {
  description: 'A key for programs: `Authorization: API-Key name$secret`.',
  id: { resolve: ({ id }) => id },
  loadMany: async (ids, { services, viewer }) =>
    inOrder(ids, await keys.findApiKeys(services, viewer, ids)),
  fields: (t) => ({
    name: t.exposeString('name', { description: 'Unique on the server.' }),
    namespace: t.exposeString('namespace', {
      nullable: true,
      description: "The one it works in; null: all of its user's.",
    }),
    scopes: t.expose('scopes', { type: [Scope], description: 'Empty: full rights.' }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was made.' }),
    expiresAt: t.expose('expiresAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When it stops working; null: never.',
    }),
    lastUsedAt: t.expose('lastUsedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'To the minute; null: never.',
    }),
  }),
});

/** `loadMany` answers id by id, with null for what is not there. */
function inOrder<T extends { id: string }>(ids: readonly string[], found: readonly T[]) {
  const byId = new Map(found.map((node) => [node.id, node]));
  return ids.map((id) => byId.get(id) ?? null);
}

const AccessTokenConnection = connectionType('AccessToken', AccessToken);
const ApiKeyConnection = connectionType('ApiKey', ApiKey);

builder.prismaObjectFields(User, (t) => ({
  accessTokens: t.field({
    type: AccessTokenConnection,
    nullable: true,
    description: 'Newest first. Shown to the user alone, with a credential of full rights.',
    complexity: pageCost(),
    args: sliceArgs,
    select: { id: true },
    resolve: async ({ id }, args, { services, viewer }) =>
      toConnection(await tokens.sliceAccessTokens(services, viewer, id, args), args),
  }),
  apiKeys: t.field({
    type: ApiKeyConnection,
    nullable: true,
    description:
      "The user's own and those of namespaces the user administers, newest first. Shown to the user alone, with a credential of full rights.",
    complexity: pageCost(),
    args: sliceArgs,
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
      'Your own, newest first: only for REST, which lists them whole. In GraphQL ask for `viewer { accessTokens }`.',
    resolve: (_root, _args, { services, viewer }) => tokens.listAccessTokens(services, viewer),
  }),
  accessToken: t.field({
    type: AccessToken,
    nullable: true,
    description: 'One of your own by its name.',
    args: { name: t.arg.string({ required: true, description: 'As it was given.' }) },
    resolve: (_root, { name }, { services, viewer }) =>
      tokens.getAccessToken(services, viewer, name),
  }),
  apiKeys: t.field({
    type: [ApiKey],
    nullable: true,
    description:
      'Your own and those of namespaces you administer: only for REST, which lists them whole. In GraphQL ask for `viewer { apiKeys }`.',
    resolve: (_root, _args, { services, viewer }) => keys.listApiKeys(services, viewer),
  }),
  apiKey: t.field({
    type: ApiKey,
    nullable: true,
    description: 'Your own, or one of a namespace you administer, by its name.',
    args: { name: t.arg.string({ required: true, description: 'What stands before the `$`.' }) },
    resolve: (_root, { name }, { services, viewer }) => keys.getApiKey(services, viewer, name),
  }),
}));

const CreateAccessTokenInput = builder.inputType('CreateAccessTokenInput', {
  description: 'A token to make: for yourself, unless the operator says for whom.',
  fields: (t) => ({
    name: t.string({ required: true, description: '1 to 100 characters, unique to you.' }),
    username: t.string({ description: "Whose it is; another's is the operator's to make." }),
    expiresInDays: t.int({ required: true, defaultValue: 30, description: '1 to 365.' }),
    scopes: t.field({ type: [Scope], description: 'None: full rights.' }),
    namespaces: t.stringList({ description: 'Names; none: all.' }),
    repositories: t.idList({ description: 'None: all.' }),
  }),
});

const CreateAccessTokenPayload = builder
  .objectRef<{ accessToken: tokens.AccessToken; token: string }>('CreateAccessTokenPayload')
  .implement({
    description: 'The token that was made, and its secret.',
    fields: (t) => ({
      accessToken: t.expose('accessToken', {
        type: AccessToken,
        description: 'What is known of it ever after.',
      }),
      token: t.exposeString('token', {
        description: 'For `Authorization: Bearer …`. It is in this answer only.',
      }),
    }),
  });

const CreateApiKeyInput = builder.inputType('CreateApiKeyInput', {
  description: 'A key to make, which acts for you.',
  fields: (t) => ({
    name: t.string({
      required: true,
      description: '1 to 100 of A-Z, a-z, 0-9, ".", "_" and "-", unique on the server.',
    }),
    namespace: t.string({ description: 'The one it is to work in; it takes `ADMIN` there.' }),
    scopes: t.field({ type: [Scope], description: 'None: full rights.' }),
    expiresInDays: t.int({ required: true, defaultValue: 30, description: '1 to 365.' }),
  }),
});

const CreateApiKeyPayload = builder
  .objectRef<{ apiKey: keys.ApiKey; key: string }>('CreateApiKeyPayload')
  .implement({
    description: 'The key that was made, with its secret.',
    fields: (t) => ({
      apiKey: t.expose('apiKey', { type: ApiKey, description: 'What is known of it ever after.' }),
      key: t.exposeString('key', {
        description: '`name$secret`, for `Authorization: API-Key …`. It is in this answer only.',
      }),
    }),
  });

const DeleteAccessTokenInput = builder.inputType('DeleteAccessTokenInput', {
  description: 'The token that is to go.',
  fields: (t) => ({ name: t.string({ required: true, description: 'As it was given.' }) }),
});

const DeleteApiKeyInput = builder.inputType('DeleteApiKeyInput', {
  description: 'The key that is to go.',
  fields: (t) => ({ name: t.string({ required: true, description: 'Before the `$`.' }) }),
});

builder.mutationFields((t) => ({
  createAccessToken: t.field({
    type: CreateAccessTokenPayload,
    nullable: true,
    description: 'Makes a personal access token; it takes a credential of full rights.',
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
    description: 'Makes an API key; it takes a credential of full rights.',
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
