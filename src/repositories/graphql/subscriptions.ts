/** What happens to repositories, to be followed in GraphQL. */
import { builder } from '../../platform/schema/builder.ts';
import { selectOf } from '../../platform/schema/select.ts';
import {
  endedByReader,
  eventArgs,
  eventTypes,
  followQuery,
  orThrow,
} from '../../platform/schema/subscription.ts';
import * as following from '../following.ts';
import type { RefPayload } from '../payload.ts';
import * as repos from '../repositories.ts';
import { Repository } from './repositories.ts';

const RepositoryEventType = eventTypes<following.RepositoryEventType>(
  'RepositoryEventType',
  'What happened to a repository.',
  {
    'repository.created': 'It was created.',
    'repository.renamed': 'It was renamed.',
    'repository.transferred': 'It was given to another namespace, which gets this event.',
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

const Push = builder.objectRef<following.Push>('Push').implement({
  description: 'A push.',
  fields: (t) => ({
    pusher: t.exposeString('pusher', { description: 'The name of the user who pushed.' }),
    refCount: t.exposeInt('refCount', { description: 'The number of refs that changed.' }),
    refs: t.expose('refs', {
      type: [RefUpdate],
      description: 'The refs that changed, at most the first fifty.',
    }),
  }),
});

const RepositoryEvent = builder.objectRef<following.RepositoryEvent>('RepositoryEvent').implement({
  description: 'Something that happened to a repository.',
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
        'The repository as it is now; null once it is deleted. It is read for each event, while the other fields are part of it.',
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
      'What happens to one repository, or to all of one namespace or several: pushes, and changes of the record. It ends, with an error, when the viewer may not see one of them any more.',
    args: eventArgs(
      'One repository of the one namespace, which whoever may read it can follow; left out: all, for members.',
    ),
    subscribe: async (_root, args, { services, viewer }) =>
      endedByReader(await following.followRepositories(services, viewer, followQuery(args))),
    resolve: orThrow,
  }),
);
