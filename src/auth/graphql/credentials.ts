/** Access tokens and API keys in GraphQL. */
import { builder } from '../../graphql/builder.ts';
import { SCOPES } from '../access.ts';
import * as tokens from '../access-tokens.ts';
import * as keys from '../api-keys.ts';

const Scope = builder.enumType('Scope', {
  description: 'What a credential may be used for. `WRITE` includes `READ`, `ADMIN` includes both.',
  values: Object.fromEntries(
    SCOPES.map((scope) => [scope.toUpperCase().replace(':', '_'), { value: scope }]),
  ) as { [name: string]: { value: (typeof SCOPES)[number] } },
});

const AccessTokenRef = builder.objectRef<tokens.AccessToken>('AccessToken');
const AccessToken = builder.node(AccessTokenRef, {
  description: 'A personal access token.',
  id: { resolve: ({ id }) => id },
  loadMany: async (ids, { services, viewer }) =>
    inOrder(ids, await tokens.findAccessTokens(services, viewer, ids)),
  fields: (t) => ({
    name: t.exposeString('name'),
    token: t.exposeString('token', {
      nullable: true,
      description: 'In the answer that creates it; null ever after.',
    }),
    scopes: t.expose('scopes', { type: [Scope], description: 'Empty: full rights.' }),
    namespaces: t.exposeStringList('namespaces', {
      description: 'Names of those it is narrowed to; empty: all.',
    }),
    repositories: t.exposeIDList('repositories', {
      description: 'Those it is narrowed to; empty: all.',
    }),
    createdAt: t.expose('createdAt', { type: 'DateTime' }),
    expiresAt: t.expose('expiresAt', { type: 'DateTime', nullable: true }),
    lastUsedAt: t.expose('lastUsedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'To the minute.',
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
    name: t.exposeString('name'),
    key: t.exposeString('key', {
      nullable: true,
      description: '`name$secret` in the answer that creates it; null ever after.',
    }),
    namespace: t.exposeString('namespace', {
      nullable: true,
      description: "The one it works in; null: all of its user's.",
    }),
    scopes: t.expose('scopes', { type: [Scope], description: 'Empty: full rights.' }),
    createdAt: t.expose('createdAt', { type: 'DateTime' }),
    expiresAt: t.expose('expiresAt', { type: 'DateTime', nullable: true }),
    lastUsedAt: t.expose('lastUsedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'To the minute.',
    }),
  }),
});

/** `loadMany` answers id by id, with null for what is not there. */
function inOrder<T extends { id: string }>(ids: readonly string[], found: readonly T[]) {
  const byId = new Map(found.map((node) => [node.id, node]));
  return ids.map((id) => byId.get(id) ?? null);
}

builder.queryFields((t) => ({
  accessTokens: t.field({
    type: [AccessToken],
    description: 'Your own, newest first.',
    resolve: (_root, _args, { services, viewer }) => tokens.listAccessTokens(services, viewer),
  }),
  accessToken: t.field({
    type: AccessToken,
    args: { name: t.arg.string({ required: true }) },
    resolve: (_root, { name }, { services, viewer }) =>
      tokens.getAccessToken(services, viewer, name),
  }),
  apiKeys: t.field({
    type: [ApiKey],
    description: 'Your own and those of namespaces you administer, newest first.',
    resolve: (_root, _args, { services, viewer }) => keys.listApiKeys(services, viewer),
  }),
  apiKey: t.field({
    type: ApiKey,
    args: { name: t.arg.string({ required: true }) },
    resolve: (_root, { name }, { services, viewer }) => keys.getApiKey(services, viewer, name),
  }),
}));

const CreateAccessTokenInput = builder.inputType('CreateAccessTokenInput', {
  fields: (t) => ({
    name: t.string({ required: true, description: '1 to 100 characters, unique to you.' }),
    username: t.string({ description: "Whose it is; another's is the operator's to make." }),
    expiresInDays: t.int({ required: true, defaultValue: 30, description: '1 to 365.' }),
    scopes: t.field({ type: [Scope], description: 'None: full rights.' }),
    namespaces: t.stringList({ description: 'Names; none: all.' }),
    repositories: t.idList({ description: 'None: all.' }),
  }),
});

const CreateApiKeyInput = builder.inputType('CreateApiKeyInput', {
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

const DeleteAccessTokenInput = builder.inputType('DeleteAccessTokenInput', {
  fields: (t) => ({ name: t.string({ required: true }) }),
});

const DeleteApiKeyInput = builder.inputType('DeleteApiKeyInput', {
  fields: (t) => ({ name: t.string({ required: true }) }),
});

builder.mutationFields((t) => ({
  createAccessToken: t.field({
    type: AccessToken,
    args: { input: t.arg({ type: CreateAccessTokenInput, required: true }) },
    resolve: (_root, { input }, { services, viewer }) =>
      tokens.createAccessToken(services, viewer, input),
  }),
  deleteAccessToken: t.id({
    description: 'It stops working at once. Answers the id that is gone.',
    args: { input: t.arg({ type: DeleteAccessTokenInput, required: true }) },
    resolve: (_root, { input }, { services, viewer }) =>
      tokens.deleteAccessToken(services, viewer, input.name),
  }),
  createApiKey: t.field({
    type: ApiKey,
    args: { input: t.arg({ type: CreateApiKeyInput, required: true }) },
    resolve: (_root, { input }, { services, viewer }) => keys.createApiKey(services, viewer, input),
  }),
  deleteApiKey: t.id({
    description: 'It stops working at once. Answers the id that is gone.',
    args: { input: t.arg({ type: DeleteApiKeyInput, required: true }) },
    resolve: (_root, { input }, { services, viewer }) =>
      keys.deleteApiKey(services, viewer, input.name),
  }),
}));
