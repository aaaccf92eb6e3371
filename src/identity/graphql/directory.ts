/** What the operator sees of all users and organizations, in GraphQL. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { builder, INPUT } from '../../platform/schema/builder.ts';
import {
  cursorPageArgs,
  defineConnectionType,
  pageCost,
  toConnection,
} from '../../platform/schema/paging.ts';
import { selectForNodes } from '../../platform/schema/select.ts';
import * as directory from '../directory.ts';
import { Namespace, NamespaceConnection, Plan, User } from './namespaces.ts';

const UserConnection = defineConnectionType('User', User);

builder.queryFields((t) => ({
  users: t.field({
    type: UserConnection,
    nullable: true,
    description: 'All users by name. Only the operator sees them.',
    complexity: pageCost(),
    args: {
      ...cursorPageArgs,
      text: t.arg.string({ description: 'Only those who have this in their name or address.' }),
    },
    resolve: async (_root, args, context, info) => {
      const select = selectForNodes<Prisma.UserSelect>(context, info);
      const { services, viewer } = context;
      return toConnection(await directory.sliceUsers(services, viewer, args, select), args);
    },
  }),
  organizations: t.field({
    type: NamespaceConnection,
    nullable: true,
    description: 'All organizations by name. Only the operator sees them.',
    complexity: pageCost(),
    args: {
      ...cursorPageArgs,
      text: t.arg.string({ description: 'Only those that have this in their name.' }),
    },
    resolve: async (_root, args, context, info) => {
      const select = selectForNodes<Prisma.NamespaceSelect>(context, info);
      const { services, viewer } = context;
      return toConnection(
        await directory.sliceAllOrganizations(services, viewer, args, select),
        args,
      );
    },
  }),
}));

const SetPlanInput = builder.inputType('SetPlanInput', {
  description: 'Whose plan is to be which.',
  fields: (t) => ({
    namespace: t.string({
      required: true,
      description: 'The name of an organization, or of a user.',
    }),
    plan: t.field({ type: Plan, required: true, description: 'The new plan.' }),
  }),
});

const SetPlanPayload = builder
  .objectRef<{ namespace: { id: string } }>('SetPlanPayload')
  .implement({
    description: 'The namespace whose plan was set.',
    fields: (t) => ({
      namespace: t.field({
        type: Namespace,
        description: 'The namespace, with the plan that was set.',
        resolve: ({ namespace }) => namespace as never,
      }),
    }),
  });

builder.mutationField('setPlan', (t) =>
  t.field({
    type: SetPlanPayload,
    nullable: true,
    description:
      'Sets the plan of an organization, or of a user and the namespace of the user. Only the operator may. What a namespace has beyond its new quotas stays.',
    args: { input: t.arg({ type: SetPlanInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      namespace: await directory.setPlan(services, viewer, input),
    }),
  }),
);
