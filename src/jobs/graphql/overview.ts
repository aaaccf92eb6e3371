/** What the operator sees of all servers and of the queue, in GraphQL. */
import { builder } from '../../platform/schema/builder.ts';
import type { MachineState, PoolState, ServerState, WorkerState } from '../overview.ts';
import { listPools, listServers } from '../overview.ts';
import { Gpu, Region } from './enums.ts';

const ServerRole = builder.enumType('ServerRole', {
  description: 'What a process of Loam does.',
  values: {
    ALL: { value: 'all', description: 'It answers requests and runs jobs.' },
    SERVE: { value: 'serve', description: 'It answers requests.' },
    WORK: { value: 'work', description: 'It runs jobs.' },
  } as const,
});

const OfferedGpu = builder.objectRef<{ name: string; count: number }>('OfferedGpu').implement({
  description: 'The GPUs of one model in a machine.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The model, as REST names it.' }),
    count: t.exposeInt('count', { description: 'How many there are, free or not.' }),
  }),
});

const MachineType = builder.objectRef<MachineState>('Machine').implement({
  description: 'A machine that a worker runs jobs on, and what of it is in use.',
  fields: (t) => ({
    name: t.exposeString('id', { description: 'Its name; `local` is that of the server itself.' }),
    cpus: t.exposeFloat('cpus', { description: 'The CPUs that it has for jobs.' }),
    usedCpus: t.exposeFloat('usedCpus', { description: 'The CPUs that jobs have now.' }),
    memoryBytes: t.expose('memoryBytes', {
      type: 'SafeInt',
      description: 'The memory that it has for jobs.',
    }),
    usedMemoryBytes: t.expose('usedMemoryBytes', {
      type: 'SafeInt',
      description: 'The memory that jobs have now.',
    }),
    gpus: t.field({
      type: [OfferedGpu],
      description: 'Its GPUs by model.',
      resolve: ({ gpus }) => Object.entries(gpus).map(([name, count]) => ({ name, count })),
    }),
    jobs: t.exposeInt('jobs', { description: 'How many jobs it runs or prepares now.' }),
  }),
});

const Worker = builder.objectRef<WorkerState>('Worker').implement({
  description: 'The part of a process that runs jobs.',
  fields: (t) => ({
    runner: t.exposeString('runner', { description: 'What runs them: `process`, `docker` …' }),
    heartbeatAt: t.expose('heartbeatAt', {
      type: 'DateTime',
      description: 'When it was last heard of; it writes that every ten seconds.',
    }),
    isAlive: t.exposeBoolean('alive', {
      description: 'Whether it was heard of in the last minute.',
    }),
    jobs: t.exposeInt('jobs', { description: 'How many jobs it runs or prepares now.' }),
    machines: t.expose('machines', { type: [MachineType], description: 'What it runs them on.' }),
  }),
});

const Server = builder.objectRef<ServerState>('Server').implement({
  description: 'A process of Loam on this database.',
  fields: (t) => ({
    id: t.exposeID('id', { description: 'The id of its data folder. It is not that of a node.' }),
    role: t.field({
      type: ServerRole,
      description: 'What it does.',
      resolve: ({ role }) => role as 'all' | 'serve' | 'work',
    }),
    url: t.exposeString('url', {
      nullable: true,
      description: 'The address at which the others reach it; null when it answers no requests.',
    }),
    heartbeatAt: t.expose('heartbeatAt', {
      type: 'DateTime',
      description: 'When it was last heard of; one among several writes that every second.',
    }),
    isAlive: t.exposeBoolean('alive', {
      description:
        'Whether it was heard of in the last three seconds. One that is gone is listed for a week.',
    }),
    isCurrent: t.exposeBoolean('current', { description: 'Whether it is the one that answers.' }),
    worker: t.expose('worker', {
      type: Worker,
      nullable: true,
      description: 'The part of it that runs jobs; null when it has none.',
    }),
  }),
});

const QueuePool = builder.objectRef<PoolState>('QueuePool').implement({
  description: 'The jobs that ask for one model of GPU in one region.',
  fields: (t) => ({
    gpu: t.expose('gpu', { type: Gpu, description: 'The model of GPU, or `NONE`.' }),
    region: t.expose('region', { type: Region, description: 'The region.' }),
    waiting: t.exposeInt('waiting', {
      description: 'How many jobs wait; of more than 10,000 it says 10,000.',
    }),
    oldestWait: t.exposeFloat('oldestWait', {
      nullable: true,
      description:
        'For how many seconds one has waited that was counted, the longest; null where none waits.',
    }),
    running: t.exposeInt('running', { description: 'How many jobs run or are prepared.' }),
    gpusOffered: t.exposeInt('gpusOffered', {
      nullable: true,
      description:
        'How many GPUs of the model all machines have, free or not, for all regions together; null without a GPU.',
    }),
  }),
});

builder.queryFields((t) => ({
  servers: t.field({
    type: [Server],
    nullable: true,
    description:
      'The processes of Loam on this database, the one that answers first. Only the operator sees them.',
    complexity: 20,
    resolve: (_root, _args, { services, viewer }) => listServers(services, viewer),
  }),
  queue: t.field({
    type: [QueuePool],
    nullable: true,
    description:
      'The pools where jobs wait or run, by GPU and region. Only the operator sees them.',
    complexity: 20,
    resolve: (_root, _args, { services, viewer }) => listPools(services, viewer),
  }),
}));
