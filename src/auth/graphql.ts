/** Users, namespaces and members in GraphQL. */
import { builder } from '../graphql/builder.ts';
import * as accounts from './accounts.ts';

const Plan = builder.enumType('Plan', {
  description: 'Sets rate limits and quotas.',
  values: {
    FREE: { value: 'free' },
    TEAM: { value: 'team' },
    ENTERPRISE: { value: 'enterprise' },
    UNLIMITED: { value: 'unlimited', description: 'For the operator.' },
  } as const,
});

const NamespaceKind = builder.enumType('NamespaceKind', {
  values: { USER: { value: 'user' }, ORGANIZATION: { value: 'organization' } } as const,
});

const Role = builder.enumType('Role', {
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
  id: { field: 'id' },
  select: { id: true },
  nullable: true,
  findUnique: (id, { viewer }) => (viewer.kind === 'account' ? { id } : NOTHING),
  fields: (t) => ({
    username: t.exposeString('username'),
    email: t.string({
      nullable: true,
      description: 'Shown to the user and the operator.',
      select: { email: true },
      resolve: ({ id, email }, _args, { viewer }) => (accounts.knows(viewer, id) ? email : null),
    }),
    plan: t.field({
      type: Plan,
      nullable: true,
      description: 'Shown to the user and the operator.',
      select: { plan: true },
      resolve: ({ id, plan }, _args, { viewer }) => (accounts.knows(viewer, id) ? plan : null),
    }),
    operator: t.exposeBoolean('operator', {
      description: 'May create users and organizations, and act in every namespace.',
    }),
    namespace: t.relation('namespace', {
      description: "The user's own, of the same name.",
      onNull: () => new Error('A user without a namespace'),
    }),
    createdAt: t.expose('createdAt', { type: 'DateTime' }),
  }),
});

export const Namespace = builder.prismaNode('Namespace', {
  description: 'Who owns repositories and jobs: a user or an organization.',
  id: { field: 'id' },
  select: { id: true },
  nullable: true,
  findUnique: (id, { viewer }) => (viewer.kind === 'account' ? { id } : NOTHING),
  fields: (t) => ({
    name: t.exposeString('name'),
    kind: t.expose('kind', { type: NamespaceKind }),
    plan: t.field({
      type: Plan,
      nullable: true,
      description: 'Shown to members.',
      select: { plan: true },
      resolve: (namespace, _args, { viewer }) => accounts.visiblePlan(viewer, namespace),
    }),
    members: t.field({
      type: [Member],
      nullable: true,
      description: 'Shown to members: by time of joining, the owner first.',
      select: { userId: true, createdAt: true },
      resolve: (namespace, _args, { services, viewer }) =>
        accounts.listMembers(services, viewer, namespace),
    }),
    viewerRole: t.field({
      type: Role,
      nullable: true,
      description: 'The role of who asks; null without one.',
      resolve: ({ id }, _args, { viewer }) => accounts.viewerRole(viewer, id),
    }),
    createdAt: t.expose('createdAt', { type: 'DateTime' }),
  }),
});

/** What no row has as its id. */
const NOTHING = { id: '' };

const Member = builder.objectRef<accounts.Membership>('Member').implement({
  fields: (t) => ({
    user: t.prismaField({
      type: 'User',
      // Prisma makes one query of all members' users.
      resolve: (query, { userId }, _args, { services }) =>
        services.db.user.findUniqueOrThrow({ ...query, where: { id: userId } }),
    }),
    role: t.expose('role', { type: Role }),
    createdAt: t.expose('createdAt', { type: 'DateTime' }),
  }),
});

const Identity = builder.objectRef<accounts.Identity>('Identity').implement({
  description: 'Who a credential acts for.',
  fields: (t) => ({
    userId: t.exposeID('userId'),
    username: t.exposeString('username'),
    email: t.exposeString('email'),
    namespace: t.exposeString('namespace'),
  }),
});

builder.queryFields((t) => ({
  viewer: t.prismaField({
    type: 'User',
    nullable: true,
    description: 'Who is asking; null without credentials.',
    resolve: (query, _root, _args, { services, viewer }) =>
      viewer.kind === 'account'
        ? services.db.user.findUnique({ ...query, where: { id: viewer.userId } })
        : null,
  }),
  whoami: t.field({
    type: Identity,
    resolve: (_root, _args, { viewer }) => accounts.whoami(viewer),
  }),
  namespace: t.field({
    type: Namespace,
    nullable: true,
    description: 'By name; null when there is none.',
    args: { name: t.arg.string({ required: true }) },
    resolve: (_root, { name }, { services, viewer }) =>
      accounts.findNamespace(services, viewer, name),
  }),
}));

const CreateUserInput = builder.inputType('CreateUserInput', {
  fields: (t) => ({
    username: t.string({ required: true, description: '1 to 39 of a-z, 0-9 and -.' }),
    email: t.string({ required: true }),
    plan: t.field({ type: Plan, required: true, defaultValue: 'free' }),
  }),
});

const CreateOrganizationInput = builder.inputType('CreateOrganizationInput', {
  fields: (t) => ({
    name: t.string({ required: true, description: '1 to 39 of a-z, 0-9 and -.' }),
    plan: t.field({ type: Plan, required: true, defaultValue: 'free' }),
  }),
});

const SetMemberInput = builder.inputType('SetMemberInput', {
  fields: (t) => ({
    namespace: t.string({ required: true }),
    username: t.string({ required: true }),
    role: t.field({ type: Role, required: true }),
  }),
});

const RemoveMemberInput = builder.inputType('RemoveMemberInput', {
  fields: (t) => ({
    namespace: t.string({ required: true }),
    username: t.string({ required: true }),
  }),
});

builder.mutationFields((t) => ({
  createUser: t.field({
    type: User,
    description: 'By the operator: a user and the namespace of the same name.',
    args: { input: t.arg({ type: CreateUserInput, required: true }) },
    resolve: (_root, { input }, { services, viewer }) =>
      accounts.createUser(services, viewer, input),
  }),
  createOrganization: t.field({
    type: Namespace,
    description: 'By the operator, who becomes its first admin.',
    args: { input: t.arg({ type: CreateOrganizationInput, required: true }) },
    resolve: (_root, { input }, { services, viewer }) =>
      accounts.createOrganization(services, viewer, input),
  }),
  setMember: t.field({
    type: Member,
    description: 'By an admin: adds a member or changes its role.',
    args: { input: t.arg({ type: SetMemberInput, required: true }) },
    resolve: (_root, { input }, { services, viewer }) =>
      accounts.setMember(services, viewer, input),
  }),
  removeMember: t.boolean({
    description: 'By an admin. Whether the user was a member.',
    args: { input: t.arg({ type: RemoveMemberInput, required: true }) },
    resolve: (_root, { input }, { services, viewer }) =>
      accounts.removeMember(services, viewer, input),
  }),
}));
