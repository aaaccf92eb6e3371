/** What a namespace has used and what it cost, in GraphQL. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { userById } from '../../identity/accounts.ts';
import { Namespace, User } from '../../identity/graphql/namespaces.ts';
import { builder } from '../../platform/schema/builder.ts';
import { connectionType, pageCost, sliceArgs, toConnection } from '../../platform/schema/paging.ts';
import { selectOf } from '../../platform/schema/select.ts';
import { namespaceUsage, type UsageRow } from '../usage.ts';

const UsagePeriod = builder.enumType('UsagePeriod', {
  description: 'What usage is divided by.',
  values: {
    DAY: { value: 'day', description: 'A row for each day in UTC.' },
    MONTH: { value: 'month', description: 'A row for each month in UTC.' },
  } as const,
});

const NamespaceUsage = builder.objectRef<UsageRow>('NamespaceUsage').implement({
  description: 'What jobs used in some days, also those that were deleted since.',
  fields: (t) => ({
    from: t.expose('from', { type: 'Date', description: 'The first of the days.' }),
    to: t.expose('to', { type: 'Date', description: 'The last of the days.' }),
    user: t.prismaField({
      type: User,
      nullable: true,
      description: 'Who created the jobs; null when it is of all users, or of one who is gone.',
      resolve: (query, { userId }, _args, { services }) =>
        userId === null
          ? null
          : (userById(services, userId, selectOf<Prisma.UserSelect>(query)) as never),
    }),
    runtimeSeconds: t.field({
      type: 'SafeInt',
      description: 'How long attempts ran; of those that run now, until now.',
      resolve: ({ seconds }) => seconds,
    }),
    gpuSeconds: t.expose('gpuSeconds', {
      type: 'SafeInt',
      description: 'The same, times the GPUs that each had.',
    }),
    cost: t.expose('cost', {
      type: 'Decimal',
      description: 'The price of that, to a hundredth of a cent.',
    }),
    jobs: t.exposeInt('jobs', { description: 'How many jobs ended, however they did.' }),
  }),
});

const UsageConnection = connectionType('NamespaceUsage', NamespaceUsage);

builder.prismaObjectField(Namespace, 'usage', (t) =>
  t.field({
    type: UsageConnection,
    nullable: true,
    description:
      'What its jobs used and what that cost, oldest first. Members see it; who used what, its admins.',
    complexity: pageCost(),
    args: {
      ...sliceArgs,
      from: t.arg({ type: 'Date', required: true, description: 'The first day.' }),
      to: t.arg({
        type: 'Date',
        required: true,
        description: 'The last day: 366 days at most, 31 by user and day.',
      }),
      period: t.arg({
        type: UsagePeriod,
        description: 'What it is divided by; left out: all days together.',
      }),
      byUser: t.arg.boolean({
        required: true,
        defaultValue: false,
        description: 'Whether it is divided by user.',
      }),
    },
    select: { id: true },
    resolve: async ({ id }, args, { services, viewer }) =>
      toConnection(await namespaceUsage(services, viewer, id, args), args),
  }),
);
