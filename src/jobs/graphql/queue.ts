/** Where a job that waits stands, in GraphQL. */
import { builder } from '../../platform/schema/builder.ts';
import type { QueuePosition } from '../queue-position.ts';

export const JobQueue = builder.objectRef<QueuePosition>('JobQueue').implement({
  description: 'Where a job that waits stands, as it was at most two seconds ago.',
  fields: (t) => ({
    waitsFor: t.exposeString('waitsFor', {
      description: 'What it waits for, as `8 vCPUs and 32 GB` or `a T4 in us-east-1`.',
    }),
    offered: t.boolean({
      description: 'Whether any worker has it, so that it starts when its turn comes.',
      resolve: ({ missing }) => missing === null,
    }),
    position: t.exposeInt('position', {
      nullable: true,
      description:
        'Its place in line, from 1, as if no job ended meanwhile; null behind a thousand of its namespace.',
    }),
    estimatedStart: t.expose('estimatedStart', {
      type: 'DateTime',
      nullable: true,
      description:
        'When it is likely to start, at the current rate; null when no running job allows an estimate.',
    }),
  }),
});
