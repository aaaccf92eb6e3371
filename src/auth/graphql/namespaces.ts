/** Users, namespaces and members in GraphQL. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { builder } from '../../graphql/builder.ts';
import { connectionType, pageCost, sliceArgs, toConnection } from '../../graphql/paging.ts';
import { selectOf, selectOfNodes } from '../../graphql/select.ts';
import { memberId, parseMemberId } from '../../ids.ts';
import * as accounts from '../accounts.ts';

export const Plan = builder.enumType('Plan', {
  description: 'Sets rate limits and quotas.',
  values: {
    FREE: { value: 'free', description: '60 requests a minute.' },
    TEAM: { value: 'team', description: '300 requests a minute.' },
    ENTERPRISE: { value: 'enterprise', description: '1,000 requests a minute.' },
    UNLIMITED: { value: 'unlimited', description: 'No limits: for the operator.' },
  } as const,
});

const NamespaceKind = builder.enumType('NamespaceKind', {
  description: 'Whose a namespace is.',
  values: {
    USER: { value: 'user', description: "One user's own, of the same name." },
    ORGANIZATION: { value: 'organization', description: 'Shared by its members.' },
  } as const,
});

export const Role = builder.enumType('Role', {
  description: 'Each includes those before it.',
  values: {
    READ: { value: 'read', description: 'Sees everything in the namespace.' },
    WRITE: { value: 'write', description: 'Pushes, creates and cancels jobs, deletes own jobs.' },
    ADMIN: {
      value: 'admin',
      description: 'All else: delete, transfer, visibility, keys, members.',
    },
  } as const,
});

export const User = builder.prismaNode('User', {
  description: 'Somebody with an account.',
  id: { field: 'id' },
  select: { id: true },
  nullable: true,
  findUnique: (id, { viewer }) => (viewer.kind === 'account' ? { id } : NOTHING),
  fields: (t) => ({
    username: t.exposeString('username', {
      description: 'Unique; also the name of the namespace.',
    }),
    email: t.string({
      nullable: true,
      description: 'Shown to the user and the operator.',
      select: { email: true },
      resolve: ({ id, email }, _args, { viewer }) =>
        accounts.isSelfOrOperator(viewer, id) ? email : null,
    }),
    plan: t.field({
      type: Plan,
      nullable: true,
      description: 'Shown to the user and the operator.',
      select: { plan: true },
      resolve: ({ id, plan }, _args, { viewer }) =>
        accounts.isSelfOrOperator(viewer, id) ? plan : null,
    }),
    operator: t.exposeBoolean('operator', {
      description: 'May create users and organizations, and act in every namespace.',
    }),
    namespace: t.relation('namespace', {
      description: "The user's own, of the same name.",
      onNull: () => new Error('A user without a namespace'),
    }),
    createdAt: t.expose('createdAt', {
      type: 'DateTime',
      description: 'When the account was made.',
    }),
  }),
});

export const Namespace = builder.prismaNode('Namespace', {
  description: 'Who owns repositories and jobs: a user or an organization.',
  id: { field: 'id' },
  select: { id: true },
  nullable: true,
  findUnique: (id, { viewer }) => (viewer.kind === 'account' ? { id } : NOTHING),
  fields: (t) => ({
    name: t.exposeString('name', {
      description: 'The first part of every path in it; lower case.',
    }),
    kind: t.expose('kind', { type: NamespaceKind, description: "A user's or an organization's." }),
    plan: t.field({
      type: Plan,
      nullable: true,
      description: 'Shown to members.',
      select: { plan: true },
      resolve: (namespace, _args, { viewer }) => accounts.visiblePlan(viewer, namespace),
    }),
    members: t.field({
      type: MemberConnection,
      nullable: true,
      description: 'Shown to members: by time of joining, the owner first.',
      complexity: pageCost(),
      args: sliceArgs,
      select: { userId: true, createdAt: true },
      resolve: async (namespace, args, { services, viewer }) =>
        toConnection(await accounts.sliceMembers(services, viewer, namespace, args), args),
    }),
    viewerRole: t.field({
      type: Role,
      nullable: true,
      description: 'The role of who asks; null without one.',
      resolve: ({ id }, _args, { viewer }) => accounts.viewerRole(viewer, id),
    }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was made.' }),
  }),
});

/** What no row has as its id. */
const NOTHING = { id: '' };

const MemberRef = builder.objectRef<accounts.Membership>('Member');
export const Member = builder.node(MemberRef, {
  description: 'A user in a namespace, with a role.',
  id: { resolve: memberId },
  loadOne: (id, { services, viewer }) =>
    accounts.findMember(services, viewer, parseMemberId(id) as accounts.MemberKey),
  fields: (t) => ({
    user: t.prismaField({
      type: 'User',
      description: 'Who it is.',
      // Prisma makes one query of all members' users.
      resolve: (query, { userId }, _args, { services }) =>
        accounts.userById(services, userId, selectOf<Prisma.UserSelect>(query)) as never,
    }),
    role: t.expose('role', { type: Role, description: 'What the user may do there.' }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When the user joined.' }),
  }),
});

const MemberConnection = connectionType('Member', Member);
export const NamespaceConnection = connectionType('Namespace', Namespace);

builder.prismaObjectField(User, 'organizations', (t) =>
  t.field({
    type: NamespaceConnection,
    nullable: true,
    description: 'Those the user is a member of, by name. Shown to the user and the operator.',
    complexity: pageCost(),
    args: sliceArgs,
    select: { id: true },
    resolve: async ({ id }, args, context, info) => {
      const select = selectOfNodes<Prisma.NamespaceSelect>(context, info);
      const { services, viewer } = context;
      return toConnection(
        await accounts.sliceOrganizations(services, viewer, id, args, select),
        args,
      );
    },
  }),
);

const Identity = builder.objectRef<accounts.Identity>('Identity').implement({
  description: 'Who a credential acts for, as REST answers it; in GraphQL `viewer` tells more.',
  fields: (t) => ({
    userId: t.exposeID('userId', { description: 'Of the user.' }),
    username: t.exposeString('username', { description: 'Of the user.' }),
    email: t.exposeString('email', { description: 'Of the user.' }),
    namespace: t.exposeString('namespace', { description: "The name of the user's own." }),
  }),
});

builder.queryFields((t) => ({
  viewer: t.prismaField({
    type: 'User',
    nullable: true,
    description: 'Who is asking; null without credentials.',
    resolve: (query, _root, _args, { services, viewer }) =>
      viewer.kind === 'account'
        ? (accounts.userById(services, viewer.userId, selectOf<Prisma.UserSelect>(query)) as never)
        : null,
  }),
  whoami: t.field({
    type: Identity,
    nullable: true,
    description: 'Only for REST, which answers it flat; in GraphQL ask for `viewer`.',
    resolve: (_root, _args, { viewer }) => accounts.whoami(viewer),
  }),
  namespace: t.field({
    type: Namespace,
    nullable: true,
    description: 'By name, ignoring case.',
    args: { name: t.arg.string({ required: true, description: 'Of a user or an organization.' }) },
    resolve: (_root, { name }, { services, viewer }) =>
      accounts.getNamespace(services, viewer, name),
  }),
}));
