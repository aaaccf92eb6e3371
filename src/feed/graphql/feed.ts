/** The events of namespaces in GraphQL: pages and a subscription. */
import { Namespace } from '../../identity/graphql/namespaces.ts';
import { builder, SortOrder } from '../../platform/schema/builder.ts';
import { cursorPageArgs, pageCost } from '../../platform/schema/paging.ts';
import { abortOnDisconnect, unwrapEvent } from '../../platform/schema/subscription.ts';
import * as feed from '../feed.ts';

const DESCRIPTIONS: Readonly<Record<string, string>> = {
  'job.queued': 'A job was created, or queued for a retry.',
  'job.running': 'The process of a job started.',
  'job.completed': 'A job succeeded with exit code 0.',
  'job.failed': 'A job failed or timed out after its last attempt.',
  'job.cancelled':
    'A user cancelled a job, or the server did at its maximum cost, at its idle timeout or over budget.',
  'job.deleted': 'The record of a job was deleted. Webhooks do not receive it.',
  'repository.created': 'A repository was created.',
  'repository.renamed': 'A repository was renamed.',
  'repository.transferred': 'A repository was transferred to this namespace.',
  'repository.updated':
    'The description, visibility or settings of a repository changed. Webhooks do not receive it.',
  'repository.pushed': 'A repository was pushed to.',
  'repository.deleted': 'A repository was deleted.',
  'budget.reached': 'The jobs of a namespace have cost a threshold of its budget.',
  'machine.joined': 'A machine of the namespace joined.',
  'machine.silent': 'A machine of the namespace has not reported for a minute.',
  'machine.online': 'A silent machine of the namespace reports again.',
  'machine.draining':
    'A machine of the namespace was asked to take no more jobs, or its deadline was changed.',
  'machine.resumed': 'A drained machine of the namespace takes jobs again.',
  'machine.removed': 'A machine of the namespace was removed, or its worker token revoked.',
};

const EventType = builder.enumType('EventType', {
  description: 'The type of an event, with the names that webhooks use.',
  values: Object.fromEntries(
    feed.FEED_TYPES.map((value) => [
      value.replace('.', '_').toUpperCase(),
      { value, description: DESCRIPTIONS[value] },
    ]),
  ) as { [name: string]: { value: feed.FeedType } },
});

const Event = builder.objectRef<feed.FeedEvent>('Event').implement({
  description: 'An event in a namespace, as webhooks send it.',
  fields: (t) => ({
    id: t.exposeID('id', {
      description: 'The id of the event. Webhooks send it as `webhook-id`.',
    }),
    cursor: t.expose('cursor', {
      type: 'SafeInt',
      description:
        'The position of the event. The subscription `events` continues after it when it is passed as `after`.',
    }),
    type: t.expose('type', { type: EventType, description: 'The type of the event.' }),
    timestamp: t.expose('timestamp', { type: 'DateTime', description: 'When the event happened.' }),
    namespace: t.string({
      description: 'The name of the namespace at that time.',
      resolve: (event) => feed.getEventNamespace(event),
    }),
    subject: t.exposeID('subject', {
      description:
        'The id of the job, repository or machine, which may be deleted by now, or of the namespace of a budget.',
    }),
    payload: t.field({
      type: 'JSON',
      description:
        'The `data` of webhooks: the job or repository as REST returned it at that time, or a budget or a machine. Links to artifacts are signed again for each read.',
      resolve: (event, _args, { services }) => feed.getEventPayload(services, event),
    }),
  }),
});

/** Without `totalCount`, because counting would read all kept events. */
const EventConnection = builder.connectionObject(
  {
    type: Event,
    name: 'EventConnection',
    description:
      'A page of events. A page may be short or empty although more events follow: check `hasNextPage`, and continue after `endCursor`.',
    edgesField: { complexity: { field: 1, multiplier: 1 } },
  },
  { name: 'EventEdge', description: 'An event, with its cursor.' },
);

const ONLY_TYPES =
  'The event types to show. If omitted, all types that the viewer may see; a type that the viewer may not see is refused.';

builder.prismaObjectField(Namespace, 'events', (t) =>
  t.field({
    type: EventConnection,
    nullable: true,
    description:
      'Kept events of jobs, repositories, the budget and machines. Only members see them, and only those of what they may see.',
    complexity: pageCost(),
    args: {
      ...cursorPageArgs,
      order: t.arg({
        type: SortOrder,
        required: true,
        defaultValue: 'desc',
        description: 'DESC: the newest event comes first.',
      }),
      types: t.arg({ type: [EventType], description: ONLY_TYPES }),
    },
    select: { id: true },
    resolve: async ({ id }, args, { services, viewer }) => {
      const { items, hasNextPage, endCursor } = await feed.sliceFeed(services, viewer, id, args);
      return {
        edges: items,
        pageInfo: {
          hasNextPage,
          hasPreviousPage: args.after != null,
          startCursor: items[0]?.cursor ?? null,
          endCursor,
        },
      } as never;
    },
  }),
);

builder.subscriptionField('events', (t) =>
  t.field({
    type: Event,
    description:
      'Follows the events of jobs, repositories, budgets and machines in namespaces that the viewer is a member of, each event once. Ends with an error when the viewer loses access to one of them.',
    args: {
      namespaces: t.arg.stringList({
        required: true,
        description: 'The names of namespaces, at most 100.',
      }),
      types: t.arg({ type: [EventType], description: ONLY_TYPES }),
      after: t.arg({
        type: 'SafeInt',
        description:
          'The `cursor` of the last event that was seen. 0 starts with the oldest kept event. If omitted, starts with the next event.',
      }),
    },
    subscribe: async (_root, args, { services, viewer }) =>
      abortOnDisconnect(await feed.followFeed(services, viewer, args)),
    resolve: unwrapEvent,
  }),
);
