/** What changes users, organizations and members, in GraphQL. */
import { builder } from '../../graphql/builder.ts';
import { INPUT } from '../../graphql/payloads.ts';
import { memberId } from '../../ids.ts';
import * as accounts from '../accounts.ts';
import { Member, Namespace, Plan, Role, User } from './namespaces.ts';

const CreateUserInput = builder.inputType('CreateUserInput', {
  description: 'A user to make.',
  fields: (t) => ({
    username: t.string({ required: true, description: '1 to 39 of a-z, 0-9 and -.' }),
    email: t.string({ required: true, description: 'Where the user is reached; unique.' }),
    plan: t.field({
      type: Plan,
      required: true,
      defaultValue: 'free',
      description: 'Of the user and of their namespace.',
    }),
  }),
});

const CreateUserPayload = builder
  .objectRef<{ user: { id: string } }>('CreateUserPayload')
  .implement({
    description: 'The user that was made.',
    fields: (t) => ({
      user: t.field({
        type: User,
        description: 'With a namespace of the same name.',
        resolve: ({ user }) => user as never,
      }),
    }),
  });

const CreateOrganizationInput = builder.inputType('CreateOrganizationInput', {
  description: 'An organization to make.',
  fields: (t) => ({
    name: t.string({ required: true, description: '1 to 39 of a-z, 0-9 and -.' }),
    plan: t.field({
      type: Plan,
      required: true,
      defaultValue: 'free',
      description: 'Sets the quotas of what is in it.',
    }),
  }),
});

const CreateOrganizationPayload = builder
  .objectRef<{ namespace: { id: string } }>('CreateOrganizationPayload')
  .implement({
    description: 'The organization that was made.',
    fields: (t) => ({
      namespace: t.field({
        type: Namespace,
        description: 'An organization is a namespace.',
        resolve: ({ namespace }) => namespace as never,
      }),
    }),
  });

const SetMemberInput = builder.inputType('SetMemberInput', {
  description: 'Who is to be a member of what.',
  fields: (t) => ({
    namespace: t.string({ required: true, description: 'Its name.' }),
    username: t.string({ required: true, description: 'Of the member.' }),
    role: t.field({ type: Role, required: true, description: 'What the member may do.' }),
  }),
});

const SetMemberPayload = builder
  .objectRef<{ member: accounts.Membership }>('SetMemberPayload')
  .implement({
    description: 'The member as it is now.',
    fields: (t) => ({
      member: t.expose('member', { type: Member, description: 'New, or with another role.' }),
    }),
  });

const RemoveMemberInput = builder.inputType('RemoveMemberInput', {
  description: 'Who is to be no member any more.',
  fields: (t) => ({
    namespace: t.string({ required: true, description: 'Its name.' }),
    username: t.string({ required: true, description: 'Of the member.' }),
  }),
});

const RemoveMemberPayload = builder
  .objectRef<{ id: string | null }>('RemoveMemberPayload')
  .implement({
    description: 'Who is gone.',
    fields: (t) => ({
      id: t.exposeID('id', {
        nullable: true,
        description: 'The id that the member had; null when the user was no member.',
      }),
    }),
  });

builder.mutationFields((t) => ({
  createUser: t.field({
    type: CreateUserPayload,
    nullable: true,
    description: 'By the operator: a user and the namespace of the same name.',
    args: { input: t.arg({ type: CreateUserInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      user: await accounts.createUser(services, viewer, input),
    }),
  }),
  createOrganization: t.field({
    type: CreateOrganizationPayload,
    nullable: true,
    description: 'By the operator, who becomes its first admin.',
    args: { input: t.arg({ type: CreateOrganizationInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      namespace: await accounts.createOrganization(services, viewer, input),
    }),
  }),
  setMember: t.field({
    type: SetMemberPayload,
    nullable: true,
    description: 'By an admin: adds a member or changes its role.',
    args: { input: t.arg({ type: SetMemberInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      member: await accounts.setMember(services, viewer, input),
    }),
  }),
  removeMember: t.field({
    type: RemoveMemberPayload,
    nullable: true,
    description: 'By an admin. It takes effect at once.',
    args: { input: t.arg({ type: RemoveMemberInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => {
      const gone = await accounts.removeMember(services, viewer, input);
      return { id: gone && memberId(gone) };
    },
  }),
}));
