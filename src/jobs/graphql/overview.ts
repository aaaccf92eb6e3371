/** GraphQL types of servers and of the queue, for operators. */
import { builder } from '../../platform/schema/builder.ts';
import type { MachineState, QueuePoolState, ServerState, WorkerState } from '../queue/overview.ts';
import { listPools, listServers } from '../queue/overview.ts';
import { Gpu, Region } from './enums.ts';

const ServerRole = builder.enumType('ServerRole', {
  description: 'The role of a process of Loam.',
  values: {
    ALL: { value: 'all', description: 'Serves requests and runs jobs.' },
    SERVE: { value: 'serve', description: 'Serves requests.' },
    WORK: { value: 'work', description: 'Runs jobs.' },
  } as const,
});

const OfferedGpu = builder.objectRef<{ name: string; count: number }>('OfferedGpu').implement({
  description: 'The GPUs of one model in a machine.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The model, as named in REST.' }),
    count: t.exposeInt('count', { description: 'The number of GPUs, free or in use.' }),
  }),
});

const MachineType = builder.objectRef<MachineState>('Machine').implement({
  description: 'A machine on which a worker runs jobs, and its current use.',
  fields: (t) => ({
    name: t.exposeString('id', {
      description: 'The name; `local` is the machine of the server itself.',
    }),
    cpus: t.exposeFloat('cpus', { description: 'The number of CPUs for jobs.' }),
    usedCpus: t.exposeFloat('usedCpus', {
      description: 'The number of CPUs that are in use by jobs.',
    }),
    memoryBytes: t.expose('memoryBytes', {
      type: 'SafeInt',
      description: 'The memory for jobs.',
    }),
    usedMemoryBytes: t.expose('usedMemoryBytes', {
      type: 'SafeInt',
      description: 'The memory that is in use by jobs.',
    }),
    gpus: t.field({
      type: [OfferedGpu],
      description: 'The GPUs by model.',
      resolve: ({ gpus }) => Object.entries(gpus).map(([name, count]) => ({ name, count })),
    }),
    jobs: t.exposeInt('jobCount', {
      description:
        'The number of jobs that are running or being prepared; of a cluster, also those that wait in its queue.',
    }),
    maxJobs: t.exposeInt('maxJobs', {
      nullable: true,
      description:
        'Of a cluster, the maximum number of jobs of this worker; its CPUs and memory are then those of its largest node. Null for other machines.',
    }),
    regions: t.field({
      type: [Region],
      nullable: true,
      description: 'The regions whose jobs run here; null: all.',
      resolve: ({ regions }) => (regions ? [...regions] : null),
    }),
    refusesImages: t.boolean({
      description: 'Whether jobs that name an image cannot run here.',
      resolve: ({ withImage }) => withImage === false,
    }),
    refusesJobsWithoutImage: t.boolean({
      description: 'Whether jobs that name no image cannot run here.',
      resolve: ({ withoutImage }) => withoutImage === false,
    }),
    unavailableReason: t.exposeString('unavailableReason', {
      nullable: true,
      description:
        'Why a cluster takes no jobs now, for example because it does not answer; null if it takes jobs, and for other machines.',
    }),
  }),
});

const Worker = builder.objectRef<WorkerState>('Worker').implement({
  description: 'The worker of a process, which runs jobs.',
  fields: (t) => ({
    runner: t.exposeString('runner', { description: 'The runner, such as `process` or `docker`.' }),
    heartbeatAt: t.expose('heartbeatAt', {
      type: 'DateTime',
      description: 'The last heartbeat; workers write one every ten seconds.',
    }),
    isAlive: t.exposeBoolean('isAlive', {
      description: 'Whether the last heartbeat is less than a minute old.',
    }),
    jobs: t.exposeInt('jobCount', {
      description: 'The number of jobs that are running, being prepared, or waiting in a cluster.',
    }),
    machines: t.expose('machines', {
      type: [MachineType],
      description: 'The machines of the worker.',
    }),
  }),
});

const Server = builder.objectRef<ServerState>('Server').implement({
  description: 'A process of Loam on this database.',
  fields: (t) => ({
    id: t.exposeID('id', {
      description: 'The id of the data folder of the process. It cannot be used with `node`.',
    }),
    role: t.field({
      type: ServerRole,
      description: 'The role.',
      resolve: ({ role }) => role as 'all' | 'serve' | 'work',
    }),
    url: t.exposeString('url', {
      nullable: true,
      description: 'The address at which other servers reach this one; null before it has started.',
    }),
    heartbeatAt: t.expose('heartbeatAt', {
      type: 'DateTime',
      description:
        'The last heartbeat; if there are several servers, each writes one every second.',
    }),
    isAlive: t.exposeBoolean('isAlive', {
      description:
        'Whether the last heartbeat is less than three seconds old. A dead server is listed for a week.',
    }),
    isCurrent: t.exposeBoolean('isCurrent', {
      description: 'Whether this is the server that serves the request.',
    }),
    worker: t.expose('worker', {
      type: Worker,
      nullable: true,
      description: 'The worker of the process; null if it runs no jobs.',
    }),
  }),
});

const QueuePool = builder.objectRef<QueuePoolState>('QueuePool').implement({
  description: 'The jobs that request one GPU model in one region.',
  fields: (t) => ({
    gpu: t.expose('gpu', { type: Gpu, description: 'The GPU model, or `NONE`.' }),
    region: t.expose('region', { type: Region, description: 'The region.' }),
    waiting: t.exposeInt('waiting', {
      description: 'The number of waiting jobs, at most 10,000.',
    }),
    oldestWait: t.exposeFloat('oldestWaitSeconds', {
      nullable: true,
      description: 'The longest wait of the counted jobs in seconds; null if no job waits.',
    }),
    running: t.exposeInt('running', {
      description: 'The number of jobs that are running, being prepared, or waiting in a cluster.',
    }),
    gpusOffered: t.exposeInt('gpusOffered', {
      nullable: true,
      description:
        'The number of GPUs of the model on all machines that serve the region, free or in use, and of each cluster the most that one job may request; null for `NONE`.',
    }),
  }),
});

builder.queryFields((t) => ({
  servers: t.field({
    type: [Server],
    nullable: true,
    description:
      'The processes of Loam on this database, the one that serves the request first. Visible only to operators.',
    complexity: 20,
    resolve: (_root, _args, { services, viewer }) => listServers(services, viewer),
  }),
  queue: t.field({
    type: [QueuePool],
    nullable: true,
    description:
      'The pools with waiting or running jobs, by GPU and region. Visible only to operators.',
    complexity: 20,
    resolve: (_root, _args, { services, viewer }) => listPools(services, viewer),
  }),
}));
