/** Users, namespaces and members in GraphQL. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { memberId, parseMemberId } from '../../base/ids.ts';
import { builder } from '../../platform/schema/builder.ts';
import {
  cursorPageArgs,
  defineConnectionType,
  pageCost,
  toConnection,
} from '../../platform/schema/paging.ts';
import { selectForField, selectForNodes, selectOf } from '../../platform/schema/select.ts';
import * as accounts from '../accounts.ts';
import * as members from '../members.ts';

export const Plan = builder.enumType('Plan', {
  description: 'A plan, which sets rate limits and quotas.',
  values: {
    FREE: { value: 'free', description: '60 requests a minute.' },
    TEAM: { value: 'team', description: '300 requests a minute.' },
    ENTERPRISE: { value: 'enterprise', description: '1,000 requests a minute.' },
    UNLIMITED: { value: 'unlimited', description: 'No limits; intended for operators.' },
  } as const,
});

const NamespaceKind = builder.enumType('NamespaceKind', {
  description: 'The kind of a namespace.',
  values: {
    USER: { value: 'user', description: 'The namespace of a user, with the same name.' },
    ORGANIZATION: {
      value: 'organization',
      description: 'An organization, shared by its members.',
    },
  } as const,
});

export const Role = builder.enumType('Role', {
  description: 'The rights of a member. Each role includes the previous ones.',
  values: {
    READ: { value: 'read', description: 'Read everything in the namespace.' },
    WRITE: {
      value: 'write',
      description: 'Push, create and cancel jobs, and delete own jobs.',
    },
    ADMIN: {
      value: 'admin',
      description: 'Everything else: delete, transfer, change visibility, manage keys and members.',
    },
  } as const,
});

export const User = builder.prismaNode('User', {
  description: 'A user of this server.',
  id: { field: 'id' },
  select: { id: true },
  nullable: true,
  findUnique: (id, { viewer }) => (viewer.kind === 'account' ? { id } : NOTHING),
  fields: (t) => ({
    username: t.exposeString('username', {
      description: "The name of the user and of the user's namespace.",
    }),
    email: t.string({
      nullable: true,
      description: 'The email address. Only the user and operators see it.',
      select: { email: true },
      resolve: ({ id, email }, _args, { viewer }) =>
        accounts.isSelfOrOperator(viewer, id) ? email : null,
    }),
    plan: t.field({
      type: Plan,
      nullable: true,
      description: 'The plan. Only the user and operators see it.',
      select: { plan: true },
      resolve: ({ id, plan }, _args, { viewer }) =>
        accounts.isSelfOrOperator(viewer, id) ? plan : null,
    }),
    operator: t.exposeBoolean('operator', {
      description:
        'Whether the user is an operator, who may create users and organizations and act in every namespace.',
    }),
    namespace: t.relation('namespace', {
      description: 'The namespace of the user, which has the same name.',
      onNull: () => new Error('A user without a namespace'),
    }),
    disabledAt: t.field({
      type: 'DateTime',
      nullable: true,
      description:
        'When an operator disabled the user; null when the user is enabled. Only the user and operators see it.',
      select: { disabledAt: true },
      resolve: ({ id, disabledAt }, _args, { viewer }) =>
        accounts.isSelfOrOperator(viewer, id) ? disabledAt : null,
    }),
    createdAt: t.expose('createdAt', {
      type: 'DateTime',
      description: 'When the user was created.',
    }),
  }),
});

export const Namespace = builder.prismaNode('Namespace', {
  description: 'An owner of repositories and jobs: a user or an organization.',
  id: { field: 'id' },
  select: { id: true },
  nullable: true,
  findUnique: (id, { viewer }) => (viewer.kind === 'account' ? { id, deletedAt: null } : NOTHING),
  fields: (t) => ({
    name: t.exposeString('name', {
      description: 'The name in lower case, the first part of repository paths.',
    }),
    kind: t.expose('kind', {
      type: NamespaceKind,
      description: 'Whether it belongs to a user or an organization.',
    }),
    plan: t.field({
      type: Plan,
      nullable: true,
      description: 'The plan. Only members see it.',
      select: { plan: true },
      resolve: (namespace, _args, { viewer }) => accounts.getVisiblePlan(viewer, namespace),
    }),
    members: t.field({
      type: MemberConnection,
      nullable: true,
      description:
        "The members in the order of joining; the owner of a user's namespace comes first. Only members see them.",
      complexity: pageCost(),
      args: cursorPageArgs,
      select: { userId: true, createdAt: true },
      resolve: async (namespace, args, { services, viewer }) =>
        toConnection(await members.sliceMembers(services, viewer, namespace, args), args),
    }),
    viewerRole: t.field({
      type: Role,
      nullable: true,
      description: 'The role of the viewer in the namespace; null without a role.',
      select: { id: true },
      resolve: ({ id }, _args, { viewer }) => accounts.viewerRole(viewer, id),
    }),
    createdAt: t.expose('createdAt', {
      type: 'DateTime',
      description: 'When the namespace was created.',
    }),
  }),
});

/** A condition that matches no row. */
const NOTHING = { id: '' };

const MemberRef = builder.objectRef<members.Membership>('Member');
export const Member = builder.node(MemberRef, {
  description: 'A user in a namespace, with a role.',
  id: { resolve: memberId },
  loadOne: (id, { services, viewer }) =>
    members.findMember(services, viewer, parseMemberId(id) as members.MemberKey),
  fields: (t) => ({
    user: t.prismaField({
      type: 'User',
      description: 'The user.',
      // Prisma batches the users of all members into one query.
      resolve: (query, { userId }, _args, { services }) =>
        accounts.findUserById(services, userId, selectOf<Prisma.UserSelect>(query)) as never,
    }),
    role: t.expose('role', { type: Role, description: 'The role of the user in the namespace.' }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When the user joined.' }),
  }),
});

const MemberConnection = defineConnectionType('Member', Member);
export const NamespaceConnection = defineConnectionType('Namespace', Namespace);

builder.prismaObjectField(User, 'organizations', (t) =>
  t.field({
    type: NamespaceConnection,
    nullable: true,
    description:
      'The organizations that the user is a member of, by name. Only the user and operators see them.',
    complexity: pageCost(),
    args: cursorPageArgs,
    select: { id: true },
    resolve: async ({ id }, args, context, info) => {
      const select = selectForNodes<Prisma.NamespaceSelect>(context, info);
      const { services, viewer } = context;
      return toConnection(
        await accounts.sliceOrganizations(services, viewer, id, args, select),
        args,
      );
    },
  }),
);

const Identity = builder.objectRef<accounts.Identity>('Identity').implement({
  description: 'The user of the credential, in the form of REST. In GraphQL use `viewer`.',
  fields: (t) => ({
    userId: t.exposeID('userId', { description: 'The id of the user.' }),
    username: t.exposeString('username', { description: 'The name of the user.' }),
    email: t.exposeString('email', { description: 'The email address of the user.' }),
    namespace: t.exposeString('namespace', {
      description: "The name of the user's namespace.",
    }),
  }),
});

builder.queryFields((t) => ({
  viewer: t.prismaField({
    type: 'User',
    nullable: true,
    description: 'The user of the credential; null without credentials.',
    resolve: (query, _root, _args, { services, viewer }) =>
      viewer.kind === 'account'
        ? (accounts.findUserById(
            services,
            viewer.userId,
            selectOf<Prisma.UserSelect>(query),
          ) as never)
        : null,
  }),
  whoami: t.field({
    type: Identity,
    nullable: true,
    description: 'The user of the credential; only for REST. In GraphQL use `viewer`.',
    resolve: (_root, _args, { viewer }) => accounts.whoami(viewer),
  }),
  namespace: t.field({
    type: Namespace,
    nullable: true,
    description: 'A namespace by its name, which is case-insensitive.',
    args: {
      name: t.arg.string({ required: true, description: 'The name of a user or an organization.' }),
    },
    resolve: (_root, { name }, context, info) => {
      const select = selectForField<Prisma.NamespaceSelect>(context, info);
      return accounts.getNamespace(context.services, context.viewer, name, select) as never;
    },
  }),
}));
