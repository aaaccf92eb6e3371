/** Keys for git over SSH in GraphQL: those of users here, and deploy keys, which the repository shows. */

import { orderByIds } from '../../platform/database/paging.ts';
import { builder, deletionPayload, INPUT } from '../../platform/schema/builder.ts';
import {
  cursorPageArgs,
  defineConnectionType,
  pageCost,
  toConnection,
} from '../../platform/schema/paging.ts';
import * as keys from '../ssh-keys.ts';
import { User } from './namespaces.ts';

const FINGERPRINT = 'The fingerprint, as `ssh-keygen -l` shows it: `SHA256:…`.';
const PUBLIC_KEY = 'The public key: its type and its content, without a comment.';
const LAST_USED = 'When it was last used, to the minute; null: never.';

const SshKeyRef = builder.objectRef<keys.SshKey>('SshKey');
const SshKey = builder.node(SshKeyRef, {
  description: 'A key of a user for git over SSH, with the full rights of the user.',
  id: { resolve: ({ id }) => id },
  loadMany: async (ids, { services, viewer }) =>
    orderByIds(ids, await keys.findSshKeys(services, viewer, ids)),
  fields: (t) => ({
    title: t.exposeString('title', { description: 'What its user calls it.' }),
    fingerprint: t.exposeString('fingerprint', { description: FINGERPRINT }),
    publicKey: t.exposeString('publicKey', { description: PUBLIC_KEY }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was added.' }),
    lastUsedAt: t.expose('lastUsedAt', {
      type: 'DateTime',
      nullable: true,
      description: LAST_USED,
    }),
  }),
});

const DeployKeyRef = builder.objectRef<keys.DeployKey>('DeployKey');
const DeployKey = builder.node(DeployKeyRef, {
  description:
    'A key for git over SSH that works for one repository, for as long as the user who added it may do there what it may.',
  id: { resolve: ({ id }) => id },
  loadMany: async (ids, { services, viewer }) =>
    orderByIds(ids, await keys.findDeployKeys(services, viewer, ids)),
  fields: (t) => ({
    title: t.exposeString('title', {
      description: 'What the repository’s administrators call it.',
    }),
    fingerprint: t.exposeString('fingerprint', { description: FINGERPRINT }),
    publicKey: t.exposeString('publicKey', { description: PUBLIC_KEY }),
    write: t.exposeBoolean('write', { description: 'Whether it may push; else it may only read.' }),
    repositoryId: t.exposeID('repositoryId', { description: 'The id of its repository.' }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was added.' }),
    lastUsedAt: t.expose('lastUsedAt', {
      type: 'DateTime',
      nullable: true,
      description: LAST_USED,
    }),
  }),
});

const SshKeyConnection = defineConnectionType('SshKey', SshKey);
const DeployKeyConnection = defineConnectionType('DeployKey', DeployKey);

builder.prismaObjectField(User, 'sshKeys', (t) =>
  t.field({
    type: SshKeyConnection,
    nullable: true,
    description:
      'The SSH keys of the user, newest first. Only the user sees them, with a credential of full rights.',
    complexity: pageCost(),
    args: cursorPageArgs,
    select: { id: true },
    resolve: async ({ id }, args, { services, viewer }) =>
      toConnection(await keys.sliceSshKeys(services, viewer, id, args), args),
  }),
);

builder.prismaObjectField('Repository', 'deployKeys', (t) =>
  t.field({
    type: DeployKeyConnection,
    nullable: true,
    description:
      'Its deploy keys, newest first. Only who may administer it sees them, with a credential of full rights.',
    complexity: pageCost(),
    args: cursorPageArgs,
    select: { id: true },
    resolve: async ({ id }, args, { services, viewer }) =>
      toConnection(await keys.sliceDeployKeys(services, viewer, id, args), args),
  }),
);

const HostKey = builder
  .objectRef<{ type: string; publicKey: string; fingerprint: string }>('HostKey')
  .implement({
    description: 'A key by which clients recognize this server over SSH.',
    fields: (t) => ({
      type: t.exposeString('type', { description: 'The type, such as `ssh-ed25519`.' }),
      fingerprint: t.exposeString('fingerprint', {
        description: 'What `ssh` shows at the first connection: `SHA256:…`.',
      }),
      publicKey: t.exposeString('publicKey', {
        description: 'What stands in `known_hosts` after the name of the host.',
      }),
    }),
  });

builder.queryField('sshHostKeys', (t) =>
  t.field({
    type: [HostKey],
    description:
      'The keys by which clients recognize this server over SSH; none where SSH is not served. No credentials are needed.',
    resolve: (_root, _args, { services }) => [...services.hostKeys],
  }),
);

const TITLE = '1 to 100 characters; empty: the comment of the key.';
const KEY =
  'The public key, as `ssh-keygen` writes it into a file that ends in `.pub`: Ed25519, ECDSA, RSA of 2048 bits or more, or one of the first two in a security key.';

const AddSshKeyInput = builder.inputType('AddSshKeyInput', {
  description: 'A key for the caller.',
  fields: (t) => ({
    title: t.string({ required: true, description: TITLE }),
    key: t.string({ required: true, description: KEY }),
  }),
});

const AddSshKeyPayload = builder.objectRef<{ sshKey: keys.SshKey }>('AddSshKeyPayload').implement({
  description: 'The key that was added.',
  fields: (t) => ({
    sshKey: t.expose('sshKey', { type: SshKey, description: 'The key that was added.' }),
  }),
});

const DeleteSshKeyInput = builder.inputType('DeleteSshKeyInput', {
  description: 'The key to delete.',
  fields: (t) => ({ id: t.id({ required: true, description: 'The id of the key.' }) }),
});

const AddDeployKeyInput = builder.inputType('AddDeployKeyInput', {
  description: 'A key for a repository.',
  fields: (t) => ({
    repositoryId: t.id({ required: true, description: 'The id of the repository.' }),
    title: t.string({ required: true, description: TITLE }),
    key: t.string({ required: true, description: KEY }),
    write: t.boolean({
      required: true,
      defaultValue: false,
      description: 'Whether it may push; else it may only read.',
    }),
  }),
});

const AddDeployKeyPayload = builder
  .objectRef<{ deployKey: keys.DeployKey }>('AddDeployKeyPayload')
  .implement({
    description: 'The deploy key that was added.',
    fields: (t) => ({
      deployKey: t.expose('deployKey', { type: DeployKey, description: 'The key that was added.' }),
    }),
  });

const DeleteDeployKeyInput = builder.inputType('DeleteDeployKeyInput', {
  description: 'The deploy key to delete.',
  fields: (t) => ({ id: t.id({ required: true, description: 'The id of the deploy key.' }) }),
});

builder.mutationFields((t) => ({
  addSshKey: t.field({
    type: AddSshKeyPayload,
    nullable: true,
    description:
      'Adds a key of the caller for git over SSH. The credential must have full rights; a key can belong to one account alone.',
    args: { input: t.arg({ type: AddSshKeyInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      sshKey: await keys.addSshKey(services, viewer, input),
    }),
  }),
  deleteSshKey: t.field({
    type: deletionPayload('DeleteSshKey'),
    nullable: true,
    description: 'It stops working at once.',
    args: { input: t.arg({ type: DeleteSshKeyInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await keys.deleteSshKey(services, viewer, String(input.id)),
    }),
  }),
  addDeployKey: t.field({
    type: AddDeployKeyPayload,
    nullable: true,
    description:
      'Adds a key for git over SSH that works for one repository, which the caller must administer. It acts for the caller.',
    args: { input: t.arg({ type: AddDeployKeyInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      deployKey: await keys.addDeployKey(services, viewer, {
        ...input,
        repositoryId: String(input.repositoryId),
      }),
    }),
  }),
  deleteDeployKey: t.field({
    type: deletionPayload('DeleteDeployKey'),
    nullable: true,
    description: 'It stops working at once.',
    args: { input: t.arg({ type: DeleteDeployKeyInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await keys.deleteDeployKey(services, viewer, String(input.id)),
    }),
  }),
}));
