/** What changes users, organizations and members, in GraphQL. */

import { memberId } from '../../base/ids.ts';
import { builder, deletionPayload, INPUT } from '../../platform/schema/builder.ts';
import * as accounts from '../accounts.ts';
import { deleteOrganization, deleteUser } from '../deletion.ts';
import { disableUser, enableUser } from '../disabling.ts';
import * as members from '../members.ts';
import { Member, Namespace, Plan, Role, User } from './namespaces.ts';

const CreateUserInput = builder.inputType('CreateUserInput', {
  description: 'The user to create.',
  fields: (t) => ({
    username: t.string({ required: true, description: '1 to 39 of a-z, 0-9 and -.' }),
    email: t.string({
      required: true,
      description: 'The address of the user; no two users have the same.',
    }),
    plan: t.field({
      type: Plan,
      required: true,
      defaultValue: 'free',
      description: 'The plan of the user and of their namespace.',
    }),
  }),
});

const CreateUserPayload = builder
  .objectRef<{ user: { id: string } }>('CreateUserPayload')
  .implement({
    description: 'The user that was created.',
    fields: (t) => ({
      user: t.field({
        type: User,
        description: 'The user; its namespace has the same name.',
        resolve: ({ user }) => user as never,
      }),
    }),
  });

const CreateOrganizationInput = builder.inputType('CreateOrganizationInput', {
  description: 'The organization to create.',
  fields: (t) => ({
    name: t.string({ required: true, description: '1 to 39 of a-z, 0-9 and -.' }),
    plan: t.field({
      type: Plan,
      required: true,
      defaultValue: 'free',
      description: 'The plan, which sets its quotas.',
    }),
  }),
});

const CreateOrganizationPayload = builder
  .objectRef<{ namespace: { id: string } }>('CreateOrganizationPayload')
  .implement({
    description: 'The organization that was created.',
    fields: (t) => ({
      namespace: t.field({
        type: Namespace,
        description: 'The namespace of the organization.',
        resolve: ({ namespace }) => namespace as never,
      }),
    }),
  });

const SetMemberInput = builder.inputType('SetMemberInput', {
  description: 'The membership to add or to change.',
  fields: (t) => ({
    namespace: t.string({ required: true, description: 'The name of the namespace.' }),
    username: t.string({ required: true, description: 'The name of the user.' }),
    role: t.field({ type: Role, required: true, description: 'The role that the member gets.' }),
  }),
});

const SetMemberPayload = builder
  .objectRef<{ member: members.Membership }>('SetMemberPayload')
  .implement({
    description: 'The membership that was added or changed.',
    fields: (t) => ({
      member: t.expose('member', {
        type: Member,
        description: 'The member, with the role that was set.',
      }),
    }),
  });

const RemoveMemberInput = builder.inputType('RemoveMemberInput', {
  description: 'The membership to remove.',
  fields: (t) => ({
    namespace: t.string({ required: true, description: 'The name of the namespace.' }),
    username: t.string({ required: true, description: 'The name of the user.' }),
  }),
});

const RemoveMemberPayload = builder
  .objectRef<{ id: string | null }>('RemoveMemberPayload')
  .implement({
    description: 'The membership that was removed.',
    fields: (t) => ({
      id: t.exposeID('id', {
        nullable: true,
        description: 'The id that the member had; null when the user was no member.',
      }),
    }),
  });

/** `{Mutation}Payload` with the user. */
function userPayload(mutation: string) {
  return builder.objectRef<{ user: { id: string } }>(`${mutation}Payload`).implement({
    description: 'The user that was changed.',
    fields: (t) => ({
      user: t.field({
        type: User,
        description: 'The user as it is now.',
        resolve: ({ user }) => user as never,
      }),
    }),
  });
}

const USERNAME = { required: true, description: 'The name of the user.' } as const;

const DisableUserInput = builder.inputType('DisableUserInput', {
  description: 'The user to disable.',
  fields: (t) => ({ username: t.string(USERNAME) }),
});

const EnableUserInput = builder.inputType('EnableUserInput', {
  description: 'The user to enable again.',
  fields: (t) => ({ username: t.string(USERNAME) }),
});

const DeleteUserInput = builder.inputType('DeleteUserInput', {
  description: 'The user to delete.',
  fields: (t) => ({ username: t.string(USERNAME) }),
});

const DeleteOrganizationInput = builder.inputType('DeleteOrganizationInput', {
  description: 'The organization to delete.',
  fields: (t) => ({
    name: t.string({ required: true, description: 'The name of the organization.' }),
  }),
});

builder.mutationFields((t) => ({
  disableUser: t.field({
    type: userPayload('DisableUser'),
    nullable: true,
    description:
      'Refuses all credentials of a user from now on, and signing in; streams that are open end. Nothing is removed, and jobs go on. Only an operator may, not for themselves.',
    args: { input: t.arg({ type: DisableUserInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      user: await disableUser(services, viewer, input),
    }),
  }),
  enableUser: t.field({
    type: userPayload('EnableUser'),
    nullable: true,
    description: 'Takes the credentials of a disabled user again. Only an operator may.',
    args: { input: t.arg({ type: EnableUserInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      user: await enableUser(services, viewer, input),
    }),
  }),
  deleteUser: t.field({
    type: deletionPayload('DeleteUser'),
    nullable: true,
    description:
      'Deletes a user with all credentials, and the namespace of the user, for good. Refused with `CONFLICT` while the namespace has repositories or unfinished jobs, and while the user is the last admin of an organization. Only an operator may, not for themselves.',
    args: { input: t.arg({ type: DeleteUserInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await deleteUser(services, viewer, input),
    }),
  }),
  deleteOrganization: t.field({
    type: deletionPayload('DeleteOrganization'),
    nullable: true,
    description:
      'Deletes an organization for good, with its members, API keys and webhooks, and the records, logs and artifacts of its jobs. Refused with `CONFLICT` while it has repositories or unfinished jobs. Its admins and operators may.',
    args: { input: t.arg({ type: DeleteOrganizationInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await deleteOrganization(services, viewer, input),
    }),
  }),
  createUser: t.field({
    type: CreateUserPayload,
    nullable: true,
    description: 'Creates a user, and the namespace of the same name. Only the operator may.',
    args: { input: t.arg({ type: CreateUserInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      user: await accounts.createUser(services, viewer, input),
    }),
  }),
  createOrganization: t.field({
    type: CreateOrganizationPayload,
    nullable: true,
    description:
      'Creates an organization, with the caller as its first admin. Only the operator may.',
    args: { input: t.arg({ type: CreateOrganizationInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      namespace: await accounts.createOrganization(services, viewer, input),
    }),
  }),
  setMember: t.field({
    type: SetMemberPayload,
    nullable: true,
    description:
      'Adds a member to a namespace, or changes its role. Only an admin of it may. The last admin of an organization stays one.',
    args: { input: t.arg({ type: SetMemberInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      member: await members.setMember(services, viewer, input),
    }),
  }),
  removeMember: t.field({
    type: RemoveMemberPayload,
    nullable: true,
    description:
      'Removes a member from a namespace, at once. An admin of it may, and members may leave. The last admin of an organization stays.',
    args: { input: t.arg({ type: RemoveMemberInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => {
      const gone = await members.removeMember(services, viewer, input);
      return { id: gone && memberId(gone) };
    },
  }),
}));
