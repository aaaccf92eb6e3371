/** Attempts in GraphQL. */
import { builder } from '../../graphql/builder.ts';
import { connectionType } from '../../graphql/paging.ts';
import * as jobs from '../jobs.ts';
import { AttemptOutcome } from './enums.ts';

const AttemptRef = builder.objectRef<jobs.Attempt>('JobAttempt');
const Attempt = builder.node(AttemptRef, {
  description: 'One execution of a job; there are more after retries and lost machines.',
  id: { resolve: ({ id }) => id },
  loadOne: (id, { services, viewer }) => jobs.findAttempt(services, viewer, id),
  fields: (t) => ({
    number: t.exposeInt('number', { description: 'The number of the attempt in its job, from 1.' }),
    outcome: t.field({
      type: AttemptOutcome,
      nullable: true,
      description: 'How it ended; null while it lasts.',
      resolve: ({ outcome }) => outcome as jobs.AttemptOutcome | null,
    }),
    exitCode: t.exposeInt('exitCode', {
      nullable: true,
      description: 'The exit code of its process, 128 + the signal if one ended it.',
    }),
    startedAt: t.expose('startedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When its process started, if it did.',
    }),
    endedAt: t.expose('endedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When it was over; null while it lasts.',
    }),
  }),
});

export const AttemptConnection = connectionType('JobAttempt', Attempt);
