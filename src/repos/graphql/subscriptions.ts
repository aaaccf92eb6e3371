/** What happens to repositories, to be followed in GraphQL. */
import { builder } from '../../graphql/builder.ts';
import { selectOf } from '../../graphql/select.ts';
import {
  endedByReader,
  eventArgs,
  eventTypes,
  followQuery,
  orThrow,
} from '../../graphql/subscription.ts';
import * as following from '../following.ts';
import type { RefPayload } from '../payload.ts';
import * as repos from '../repos.ts';
import { Repository } from './repositories.ts';

const RepositoryEventType = eventTypes<following.RepositoryEventType>(
  'RepositoryEventType',
  'What happened to a repository.',
  {
    'repository.created': 'It was made.',
    'repository.renamed': 'It has another name.',
    'repository.transferred': 'It belongs to another namespace, which is told of it.',
    'repository.updated': 'Its description, visibility or settings changed.',
    'repository.pushed': 'Refs of it moved.',
    'repository.deleted': 'It is gone.',
  },
);

const RefUpdate = builder.objectRef<RefPayload>('RefUpdate').implement({
  description: 'A branch, tag or other ref that a push moved.',
  fields: (t) => ({
    ref: t.exposeString('ref', { description: 'Its full name, such as `refs/heads/main`.' }),
    before: t.exposeString('before', {
      nullable: true,
      description: 'The id it stood at; null when it is new.',
    }),
    after: t.exposeString('after', {
      nullable: true,
      description: 'The id it stands at; null when it is gone.',
    }),
  }),
});

const Push = builder.objectRef<following.Push>('Push').implement({
  description: 'What somebody pushed.',
  fields: (t) => ({
    pusher: t.exposeString('pusher', { description: 'The name of the user.' }),
    refCount: t.exposeInt('refCount', { description: 'How many refs moved.' }),
    refs: t.expose('refs', { type: [RefUpdate], description: 'Those, at most the first fifty.' }),
  }),
});

const RepositoryEvent = builder.objectRef<following.RepositoryEvent>('RepositoryEvent').implement({
  description: 'Something that happened to a repository.',
  fields: (t) => ({
    id: t.exposeID('id', { description: 'Of the event; the same at every telling.' }),
    cursor: t.expose('cursor', {
      type: 'SafeInt',
      description: 'Goes on from here when given as `after`.',
    }),
    type: t.expose('type', { type: RepositoryEventType, description: 'What happened.' }),
    timestamp: t.expose('timestamp', { type: 'DateTime', description: 'When it happened.' }),
    repositoryId: t.exposeID('repositoryId', {
      description: 'Of the repository, also when it is gone.',
    }),
    name: t.exposeString('name', { description: 'After what happened.' }),
    fullName: t.exposeString('fullName', { description: '`namespace/name`, after what happened.' }),
    push: t.expose('push', {
      type: Push,
      nullable: true,
      description: 'What was pushed, where that is what happened.',
    }),
    repository: t.prismaField({
      type: Repository,
      nullable: true,
      description: 'As it is now; null once it is gone.',
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
