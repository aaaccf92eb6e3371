/** The events of namespaces in GraphQL: a page of them, and those that come. */
import { Namespace } from '../../identity/graphql/namespaces.ts';
import { builder, SortOrder } from '../../platform/schema/builder.ts';
import { cursorPageArgs, pageCost } from '../../platform/schema/paging.ts';
import { abortWithReader, orThrow } from '../../platform/schema/subscription.ts';
import * as feed from '../feed.ts';

const MEANINGS: Readonly<Record<string, string>> = {
  'job.queued': 'A job was created, or queued for a retry.',
  'job.running': 'The process of a job started.',
  'job.completed': 'A job ended with exit code 0.',
  'job.failed': 'A job failed or timed out after its last attempt.',
  'job.cancelled': 'Somebody stopped a job.',
  'job.deleted': 'The record of a job was removed. Webhooks are not told of it.',
  'repository.created': 'A repository was created.',
  'repository.renamed': 'A repository was renamed.',
  'repository.transferred': 'A repository was given to this namespace.',
  'repository.updated':
    'The description, visibility or settings of a repository changed. Webhooks are not told of it.',
  'repository.pushed': 'A repository was pushed to.',
  'repository.deleted': 'A repository was deleted.',
};

const EventType = builder.enumType('EventType', {
  description: 'What happened, by the names that webhooks use.',
  values: Object.fromEntries(
    feed.FEED_TYPES.map((value) => [
      value.replace('.', '_').toUpperCase(),
      { value, description: MEANINGS[value] },
    ]),
  ) as { [name: string]: { value: feed.FeedType } },
});

const Event = builder.objectRef<feed.FeedEvent>('Event').implement({
  description: 'Something that happened in a namespace: the row that webhooks send.',
  fields: (t) => ({
    id: t.exposeID('id', {
      description:
        'The id of the event, which is the same however often it is read. Webhooks send it as `webhook-id`.',
    }),
    cursor: t.expose('cursor', {
      type: 'SafeInt',
      description:
        'The number of the event. The subscription `events` goes on after it when it is given as `after`.',
    }),
    type: t.expose('type', { type: EventType, description: 'What happened.' }),
    timestamp: t.expose('timestamp', { type: 'DateTime', description: 'When it happened.' }),
    namespace: t.string({
      nullable: true,
      description: 'The name of the owner at that moment. Null in events of earlier versions.',
      resolve: (event) => feed.getEventNamespace(event),
    }),
    subject: t.exposeID('subject', {
      description: 'The id of the job or repository, also when it was deleted.',
    }),
    payload: t.field({
      type: 'JSON',
      nullable: true,
      description:
        'What webhooks send as `data`: the job or repository as REST returned it at that moment. Links to artifacts are signed anew. Null in events of earlier versions.',
      resolve: (event, _args, { services }) => feed.getEventPayload(services, event),
    }),
  }),
});

/** Without `totalCount`: it would be counted through all that is kept. */
const EventConnection = builder.connectionObject(
  {
    type: Event,
    name: 'EventConnection',
    description:
      'A page of events. It may be short, or empty, although there are more: `hasNextPage` says so, and the list goes on after `endCursor`.',
    edgesField: { complexity: { field: 1, multiplier: 1 } },
  },
  { name: 'EventEdge', description: 'An event, with its cursor.' },
);

const ONLY_TYPES =
  'Only these. Left out: all that the viewer may see; with a type that the viewer may not see it is refused.';

builder.prismaObjectField(Namespace, 'events', (t) =>
  t.field({
    type: EventConnection,
    nullable: true,
    description:
      'What happened to jobs and repositories, for as long as events are kept. Only members see it, and of it what they may see of jobs and repositories.',
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
      'What happens to jobs and repositories in namespaces that the viewer is a member of, each event once. It ends, with an error, when the viewer may not see one of them any more.',
    args: {
      namespaces: t.arg.stringList({
        required: true,
        description: 'The names of namespaces, at most 100.',
      }),
      types: t.arg({ type: [EventType], description: ONLY_TYPES }),
      after: t.arg({
        type: 'SafeInt',
        description:
          'The `cursor` of the last event that was seen. 0: begin with the oldest event that is kept; left out: with the next one.',
      }),
    },
    subscribe: async (_root, args, { services, viewer }) =>
      abortWithReader(await feed.followFeed(services, viewer, args)),
    resolve: orThrow,
  }),
);
