/** GraphQL types of the usage of a namespace and its cost. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { findUserById } from '../../identity/accounts.ts';
import { Namespace, User } from '../../identity/graphql/namespaces.ts';
import { builder } from '../../platform/schema/builder.ts';
import {
  cursorPageArgs,
  defineConnectionType,
  pageCost,
  toConnection,
} from '../../platform/schema/paging.ts';
import { selectOf } from '../../platform/schema/select.ts';
import { readNamespaceUsage, type UsageRow } from '../record/usage-ledger.ts';

const UsagePeriod = builder.enumType('UsagePeriod', {
  description: 'The period of a usage row.',
  values: {
    DAY: { value: 'day', description: 'A row for each day in UTC.' },
    MONTH: { value: 'month', description: 'A row for each month in UTC.' },
  } as const,
});

const NamespaceUsage = builder.objectRef<UsageRow>('NamespaceUsage').implement({
  description: 'The usage of jobs in a period, including deleted jobs.',
  fields: (t) => ({
    from: t.expose('from', { type: 'Date', description: 'The first day of the row.' }),
    to: t.expose('to', { type: 'Date', description: 'The last day of the row.' }),
    user: t.prismaField({
      type: User,
      nullable: true,
      description:
        'The user who created the jobs; null for all users together, or if the account was deleted.',
      resolve: (query, { userId }, _args, { services }) =>
        userId === null
          ? null
          : (findUserById(services, userId, selectOf<Prisma.UserSelect>(query)) as never),
    }),
    runtimeSeconds: t.field({
      type: 'SafeInt',
      description: 'The runtime of the attempts; running attempts count until now.',
      resolve: ({ seconds }) => seconds,
    }),
    gpuSeconds: t.expose('gpuSeconds', {
      type: 'SafeInt',
      description: 'The runtime of each attempt, multiplied by its number of GPUs.',
    }),
    cost: t.expose('cost', {
      type: 'Decimal',
      description: 'The cost, to a hundredth of a cent.',
    }),
    jobs: t.exposeInt('jobs', { description: 'The number of jobs that ended, with any status.' }),
  }),
});

const UsageConnection = defineConnectionType('NamespaceUsage', NamespaceUsage);

builder.prismaObjectField(Namespace, 'usage', (t) =>
  t.field({
    type: UsageConnection,
    nullable: true,
    description:
      'The usage of the jobs and its cost, oldest first. Members may see the total; only admins may see the usage of each user.',
    complexity: pageCost(),
    args: {
      ...cursorPageArgs,
      from: t.arg({ type: 'Date', required: true, description: 'The first day.' }),
      to: t.arg({
        type: 'Date',
        required: true,
        description: 'The last day. At most 366 days, or 31 days by user and day.',
      }),
      period: t.arg({
        type: UsagePeriod,
        description: 'The period of each row. By default one row for all days.',
      }),
      byUser: t.arg.boolean({
        required: true,
        defaultValue: false,
        description: 'Whether there is a row for each user.',
      }),
    },
    select: { id: true },
    resolve: async ({ id }, args, { services, viewer }) =>
      toConnection(await readNamespaceUsage(services, viewer, id, args), args),
  }),
);
