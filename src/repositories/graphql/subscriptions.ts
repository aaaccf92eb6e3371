/** GraphQL: the subscription to repository events. */
import { builder } from '../../platform/schema/builder.ts';
import { selectOf } from '../../platform/schema/select.ts';
import {
  abortOnDisconnect,
  defineEventArgs,
  defineEventTypes,
  toFollowQuery,
  unwrapEvent,
} from '../../platform/schema/subscription.ts';
import * as following from '../following.ts';
import type { RefPayload } from '../payload.ts';
import * as repos from '../repositories.ts';
import { Repository } from './repositories.ts';

const RepositoryEventType = defineEventTypes<following.RepositoryEventType>(
  'RepositoryEventType',
  'The kind of a repository event.',
  {
    'repository.created': 'It was created.',
    'repository.renamed': 'It was renamed.',
    'repository.transferred': 'It was transferred to another namespace, which gets this event.',
    'repository.updated': 'Its description, visibility or settings changed.',
    'repository.pushed': 'It was pushed to.',
    'repository.deleted': 'It was deleted.',
  },
);

const RefUpdate = builder.objectRef<RefPayload>('RefUpdate').implement({
  description: 'A branch, tag or other ref that a push changed.',
  fields: (t) => ({
    ref: t.exposeString('ref', { description: 'Its full name, such as `refs/heads/main`.' }),
    before: t.exposeString('before', {
      nullable: true,
      description: 'The commit or tag that it pointed to; null when the push created it.',
    }),
    after: t.exposeString('after', {
      nullable: true,
      description: 'The commit or tag that it points to; null when the push deleted it.',
    }),
  }),
});

const Push = builder.objectRef<following.PushSummary>('Push').implement({
  description: 'A push.',
  fields: (t) => ({
    pusher: t.exposeString('pusher', { description: 'The name of the user who pushed.' }),
    refCount: t.exposeInt('refCount', { description: 'The number of refs that changed.' }),
    refs: t.expose('refs', {
      type: [RefUpdate],
      description: 'The refs that changed, at most the first 50.',
    }),
  }),
});

const RepositoryEvent = builder.objectRef<following.RepositoryEvent>('RepositoryEvent').implement({
  description: 'An event of a repository.',
  fields: (t) => ({
    id: t.exposeID('id', {
      description: 'The id of the event, which is the same however often it is read.',
    }),
    cursor: t.expose('cursor', {
      type: 'SafeInt',
      description:
        'The number of the event. A subscription goes on after it when it is given as `after`.',
    }),
    type: t.expose('type', { type: RepositoryEventType, description: 'What happened.' }),
    timestamp: t.expose('timestamp', { type: 'DateTime', description: 'When it happened.' }),
    repositoryId: t.exposeID('repositoryId', {
      description: 'The id of the repository, also when it was deleted.',
    }),
    name: t.exposeString('name', { description: 'The name after the event.' }),
    fullName: t.exposeString('fullName', { description: '`namespace/name` after the event.' }),
    push: t.expose('push', {
      type: Push,
      nullable: true,
      description: 'The push; null for other events.',
    }),
    repository: t.prismaField({
      type: Repository,
      nullable: true,
      description:
        'The current state of the repository; null once it is deleted. It is read for each event, while the other fields are part of the event.',
      resolve: (query, { repositoryId }, _args, { services, viewer }) =>
        repos.findRepositoryById(
          services,
          viewer,
          repositoryId,
          selectOf<repos.Select>(query),
        ) as never,
    }),
  }),
});

builder.subscriptionField('repositoryEvents', (t) =>
  t.field({
    type: RepositoryEvent,
    description:
      'Pushes to and changes of one repository, or of all repositories in one or more namespaces. The subscription ends with an error when the viewer loses access.',
    args: defineEventArgs(
      'The name of a repository in the only namespace; requires read access. Default: all repositories, which requires membership.',
    ),
    subscribe: async (_root, args, { services, viewer }) =>
      abortOnDisconnect(await following.followRepositories(services, viewer, toFollowQuery(args))),
    resolve: unwrapEvent,
  }),
);
