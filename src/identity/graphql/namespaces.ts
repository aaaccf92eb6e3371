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
  description: 'A plan: it sets rate limits and quotas.',
  values: {
    FREE: { value: 'free', description: '60 requests a minute.' },
    TEAM: { value: 'team', description: '300 requests a minute.' },
    ENTERPRISE: { value: 'enterprise', description: '1,000 requests a minute.' },
    UNLIMITED: { value: 'unlimited', description: 'No limits; meant for the operator.' },
  } as const,
});

const NamespaceKind = builder.enumType('NamespaceKind', {
  description: 'What kind of owner a namespace is.',
  values: {
    USER: { value: 'user', description: 'A user, whose name it has.' },
    ORGANIZATION: {
      value: 'organization',
      description: 'An organization, which its members share.',
    },
  } as const,
});

export const Role = builder.enumType('Role', {
  description: 'What a member may do. Each role includes those before it.',
  values: {
    READ: { value: 'read', description: 'May read everything in the namespace.' },
    WRITE: {
      value: 'write',
      description: 'May push, create and cancel jobs, and delete own jobs.',
    },
    ADMIN: {
      value: 'admin',
      description:
        'May do everything else: delete, transfer, change visibility, manage keys and members.',
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
      description: 'The name of the user, and of the namespace of the user.',
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
      description:
        'Whether the user may create users and organizations, and act in every namespace.',
    }),
    namespace: t.relation('namespace', {
      description: 'The namespace of the user, which has the same name.',
      onNull: () => new Error('A user without a namespace'),
    }),
    disabledAt: t.field({
      type: 'DateTime',
      nullable: true,
      description:
        'When an operator disabled the user, whose credentials are refused since; null for all others. Only the operator sees it.',
      select: { disabledAt: true },
      resolve: ({ id, disabledAt }, _args, { viewer }) =>
        accounts.isSelfOrOperator(viewer, id) ? disabledAt : null,
    }),
    createdAt: t.expose('createdAt', {
      type: 'DateTime',
      description: 'When the account was made.',
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
      description: 'The name in lower case, with which paths of repositories begin.',
    }),
    kind: t.expose('kind', {
      type: NamespaceKind,
      description: 'Whether it is a user or an organization.',
    }),
    plan: t.field({
      type: Plan,
      nullable: true,
      description: 'The plan; only members see it.',
      select: { plan: true },
      resolve: (namespace, _args, { viewer }) => accounts.getVisiblePlan(viewer, namespace),
    }),
    members: t.field({
      type: MemberConnection,
      nullable: true,
      description:
        "The members by time of joining, the owner of a user's namespace first. Only members see them.",
      complexity: pageCost(),
      args: cursorPageArgs,
      select: { userId: true, createdAt: true },
      resolve: async (namespace, args, { services, viewer }) =>
        toConnection(await members.sliceMembers(services, viewer, namespace, args), args),
    }),
    viewerRole: t.field({
      type: Role,
      nullable: true,
      description: 'The role of the viewer in it; null without one.',
      resolve: ({ id }, _args, { viewer }) => accounts.viewerRole(viewer, id),
    }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was created.' }),
  }),
});

/** What no row has as its id. */
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
      // Prisma makes one query of all members' users.
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
      'The organizations that the user is a member of, by name. Only the user and the operator see them.',
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
  description:
    'The user that a credential acts for, in the form of REST. In GraphQL `viewer` has more.',
  fields: (t) => ({
    userId: t.exposeID('userId', { description: 'The id of the user.' }),
    username: t.exposeString('username', { description: 'The name of the user.' }),
    email: t.exposeString('email', { description: 'The address of the user.' }),
    namespace: t.exposeString('namespace', {
      description: 'The name of the namespace of the user.',
    }),
  }),
});

builder.queryFields((t) => ({
  viewer: t.prismaField({
    type: 'User',
    nullable: true,
    description: 'The user that asks; null without credentials.',
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
    description: 'The user that asks: only for REST. In GraphQL ask for `viewer`.',
    resolve: (_root, _args, { viewer }) => accounts.whoami(viewer),
  }),
  namespace: t.field({
    type: Namespace,
    nullable: true,
    description: 'A namespace by its name, in any case.',
    args: {
      name: t.arg.string({ required: true, description: 'The name of a user or an organization.' }),
    },
    resolve: (_root, { name }, context, info) => {
      const select = selectForField<Prisma.NamespaceSelect>(context, info);
      return accounts.getNamespace(context.services, context.viewer, name, select) as never;
    },
  }),
}));
