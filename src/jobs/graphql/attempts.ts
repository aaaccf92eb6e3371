/** GraphQL type of attempts. */
import { builder } from '../../platform/schema/builder.ts';
import { defineConnectionType } from '../../platform/schema/paging.ts';
import { findMachineOfAttempt } from '../machines/machines.ts';
import * as jobs from '../requests/jobs.ts';
import { AttemptOutcome } from './enums.ts';
import { Machine } from './machines.ts';

const Placement = builder.objectRef<jobs.Placement>('AttemptPlacement').implement({
  description: 'Where a cluster runs an attempt.',
  fields: (t) => ({
    cluster: t.exposeString('cluster', { description: 'The name of the cluster.' }),
    node: t.exposeString('node', { description: 'The name of the node.' }),
    inspect: t.exposeString('inspect', {
      nullable: true,
      description:
        'The command with which an operator looks at the attempt in the cluster, such as `scontrol show job 17`.',
    }),
  }),
});

const AttemptRef = builder.objectRef<jobs.Attempt>('JobAttempt');
const Attempt = builder.node(AttemptRef, {
  description: 'One execution of a job. A job has several after retries or lost machines.',
  id: { resolve: ({ id }) => id },
  loadOne: (id, { services, viewer }) => jobs.findAttempt(services, viewer, id),
  fields: (t) => ({
    number: t.exposeInt('number', { description: 'The number of the attempt in its job, from 1.' }),
    machine: t.exposeString('machine', {
      description:
        'The machine that the attempt was placed on; `local` is the machine of the worker itself.',
    }),
    joinedMachine: t.field({
      type: Machine,
      nullable: true,
      complexity: 5,
      description:
        'The machine, if it is one that joined, has not been removed, and the viewer may see it; otherwise null.',
      resolve: (attempt, _args, { services, viewer }) =>
        findMachineOfAttempt(services, viewer, attempt),
    }),
    cpus: t.exposeInt('cpus', {
      nullable: true,
      description:
        'The number of vCPUs that the attempt may use: the requested number, or all of the machine. Null for attempts of earlier versions.',
    }),
    memoryGb: t.float({
      nullable: true,
      description:
        'The memory in GB that the attempt may use: the requested amount, or all of the machine. Null for attempts of earlier versions.',
      resolve: ({ memoryBytes }) =>
        memoryBytes === null ? null : Math.round(Number(memoryBytes) / 2 ** 20) / 1024,
    }),
    shared: t.exposeBoolean('shared', {
      description:
        'Whether the attempt shares CPU or memory with others, because the job requests more than the machine has.',
    }),
    placement: t.field({
      type: Placement,
      nullable: true,
      description: 'Where a cluster runs the attempt; null before its start, and outside clusters.',
      resolve: jobs.readPlacement,
    }),
    outcome: t.field({
      type: AttemptOutcome,
      nullable: true,
      description: 'How the attempt ended; null while it is open.',
      resolve: ({ outcome }) => outcome as jobs.AttemptOutcome | null,
    }),
    exitCode: t.exposeInt('exitCode', {
      nullable: true,
      description: 'The exit code of the process, or 128 + the number of the signal that ended it.',
    }),
    startedAt: t.expose('startedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When the process started; null if it has not.',
    }),
    exitedAt: t.field({
      type: 'DateTime',
      nullable: true,
      description:
        'When the process ended; null if it has not. The attempt stays open until its artifacts are stored, but that time costs nothing.',
      resolve: ({ exitedAt, endedAt, outcome }) =>
        exitedAt ?? (outcome === 'exited' ? endedAt : null),
    }),
    endedAt: t.expose('endedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When the attempt ended; null while it is open.',
    }),
  }),
});

export const AttemptConnection = defineConnectionType('JobAttempt', Attempt);
