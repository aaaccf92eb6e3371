/** Mutations of users, organizations and members in GraphQL. */

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
      description: 'The email address of the user. It must be unique on this server.',
    }),
    plan: t.field({
      type: Plan,
      required: true,
      defaultValue: 'free',
      description: "The plan of the user and of the user's namespace.",
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
        description: "The user. The user's namespace has the same name.",
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
      description: 'The plan, which sets rate limits and quotas.',
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
  description: 'The membership to add or change.',
  fields: (t) => ({
    namespace: t.string({ required: true, description: 'The name of the namespace.' }),
    username: t.string({ required: true, description: 'The name of the user.' }),
    role: t.field({ type: Role, required: true, description: 'The role of the member.' }),
  }),
});

const SetMemberPayload = builder
  .objectRef<{ member: members.Membership }>('SetMemberPayload')
  .implement({
    description: 'The membership that was added or changed.',
    fields: (t) => ({
      member: t.expose('member', {
        type: Member,
        description: 'The member with the new role.',
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
        description: 'The id of the removed member; null when the user was not a member.',
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
        description: 'The user after the change.',
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
      'Disables a user: all credentials and sign-ins are refused, and open streams end. No data is removed, and jobs continue. Only for operators, who cannot disable themselves.',
    args: { input: t.arg({ type: DisableUserInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      user: await disableUser(services, viewer, input),
    }),
  }),
  enableUser: t.field({
    type: userPayload('EnableUser'),
    nullable: true,
    description:
      'Enables a disabled user: credentials and sign-ins work again. Only for operators.',
    args: { input: t.arg({ type: EnableUserInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      user: await enableUser(services, viewer, input),
    }),
  }),
  deleteUser: t.field({
    type: deletionPayload('DeleteUser'),
    nullable: true,
    description:
      "Permanently deletes a user with all credentials, and the user's namespace. Refused with `CONFLICT` while the namespace has repositories or unfinished jobs, and while the user is the last admin of an organization. Only for operators, who cannot delete themselves.",
    args: { input: t.arg({ type: DeleteUserInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await deleteUser(services, viewer, input),
    }),
  }),
  deleteOrganization: t.field({
    type: deletionPayload('DeleteOrganization'),
    nullable: true,
    description:
      'Permanently deletes an organization with its members, API keys and webhooks, and the records, logs and artifacts of its jobs. Refused with `CONFLICT` while it has repositories or unfinished jobs. Only for its admins and operators.',
    args: { input: t.arg({ type: DeleteOrganizationInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await deleteOrganization(services, viewer, input),
    }),
  }),
  createUser: t.field({
    type: CreateUserPayload,
    nullable: true,
    description: 'Creates a user and the namespace of the same name. Only for operators.',
    args: { input: t.arg({ type: CreateUserInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      user: await accounts.createUser(services, viewer, input),
    }),
  }),
  createOrganization: t.field({
    type: CreateOrganizationPayload,
    nullable: true,
    description: 'Creates an organization with the caller as its first admin. Only for operators.',
    args: { input: t.arg({ type: CreateOrganizationInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      namespace: await accounts.createOrganization(services, viewer, input),
    }),
  }),
  setMember: t.field({
    type: SetMemberPayload,
    nullable: true,
    description:
      'Adds a member to a namespace, or changes the role of a member. Only for admins of the namespace. The last admin of an organization cannot be demoted.',
    args: { input: t.arg({ type: SetMemberInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      member: await members.setMember(services, viewer, input),
    }),
  }),
  removeMember: t.field({
    type: RemoveMemberPayload,
    nullable: true,
    description:
      'Removes a member from a namespace, with immediate effect. Only for admins of the namespace, and for members who leave. The last admin of an organization cannot be removed.',
    args: { input: t.arg({ type: RemoveMemberInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => {
      const removed = await members.removeMember(services, viewer, input);
      return { id: removed && memberId(removed) };
    },
  }),
}));
