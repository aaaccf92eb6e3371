/** Attempts in GraphQL. */
import { builder } from '../../platform/schema/builder.ts';
import { connectionType } from '../../platform/schema/paging.ts';
import * as jobs from '../jobs.ts';
import { AttemptOutcome } from './enums.ts';

const AttemptRef = builder.objectRef<jobs.Attempt>('JobAttempt');
const Attempt = builder.node(AttemptRef, {
  description: 'One execution of a job; there are more after retries and lost machines.',
  id: { resolve: ({ id }) => id },
  loadOne: (id, { services, viewer }) => jobs.findAttempt(services, viewer, id),
  fields: (t) => ({
    number: t.exposeInt('number', { description: 'The number of the attempt in its job, from 1.' }),
    machine: t.exposeString('machine', {
      description:
        'The machine of its worker that it was given a place on; `local` is the one that the worker runs on.',
    }),
    cpus: t.exposeInt('cpus', {
      nullable: true,
      description:
        'How many vCPUs it may use: what was asked for, or all of the machine; null for attempts of old versions.',
    }),
    memoryGb: t.float({
      nullable: true,
      description: 'How much memory it may use, in GB, as `cpus`.',
      resolve: ({ memoryBytes }) =>
        memoryBytes === null ? null : Math.round(Number(memoryBytes) / 2 ** 20) / 1024,
    }),
    shared: t.exposeBoolean('shared', {
      description:
        'Whether it shares CPU or memory with other attempts, because more was asked for than the machine has.',
    }),
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
    exitedAt: t.field({
      type: 'DateTime',
      nullable: true,
      description:
        'When its process ended, if it did. The attempt lasts until what that has left is stored; it runs, and costs, no longer.',
      resolve: ({ exitedAt, endedAt, outcome }) =>
        exitedAt ?? (outcome === 'exited' ? endedAt : null),
    }),
    endedAt: t.expose('endedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When it was over; null while it lasts.',
    }),
  }),
});

export const AttemptConnection = connectionType('JobAttempt', Attempt);
