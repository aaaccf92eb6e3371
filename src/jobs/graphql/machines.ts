/** GraphQL types of the machines that joined, and of worker tokens. */
import { describeEntry, findGpu, modelOf } from '../../base/hardware.ts';
import { builder, deletionPayload, INPUT } from '../../platform/schema/builder.ts';
import type { MachineFacts, MachineSample } from '../../runners/machines/protocol.ts';
import * as machines from '../machines/machines.ts';
import * as tokens from '../machines/tokens.ts';
import { Gpu, Region } from './enums.ts';
import { JobLabel, JobLabelInput } from './filters.ts';

const MachineStatus = builder.enumType('MachineStatus', {
  description: 'The status of a machine that joined.',
  values: {
    ONLINE: { value: 'online', description: 'It reports, and takes jobs.' },
    SILENT: { value: 'silent', description: 'It has not reported for a minute.' },
    DRAINING: { value: 'draining', description: 'It takes no new jobs, and some still run.' },
    DRAINED: { value: 'drained', description: 'It takes no jobs, and none runs.' },
  } as const,
});

const MachineJob = builder.objectRef<machines.MachineJob>('MachineJob').implement({
  description: 'A job on a machine.',
  fields: (t) => ({
    namespace: t.exposeString('namespace', { description: 'The namespace of the job.' }),
    name: t.exposeString('name', { description: 'The name of the job.' }),
    startedAt: t.expose('startedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When its process started; null while the job is prepared.',
    }),
    cpus: t.exposeInt('cpus', { description: 'The number of vCPUs that it may use.' }),
    memoryBytes: t.expose('memoryBytes', {
      type: 'SafeInt',
      description: 'The memory that it may use.',
    }),
  }),
});

type MachineGpuState = MachineFacts['gpus'][number] & { job: machines.MachineJob | null };

const toDrivenGpu = ({ memoryBytes, ...gpu }: MachineGpuState) => ({
  ...gpu,
  memoryGb: Math.round(memoryBytes / 2 ** 30),
});

const MachineGpu = builder.objectRef<MachineGpuState>('MachineGpu').implement({
  description: 'A GPU of a machine.',
  fields: (t) => ({
    index: t.exposeInt('index', { description: 'Its number on the machine, from 0.' }),
    name: t.exposeString('name', { description: 'Its name, as the driver prints it.' }),
    memoryBytes: t.expose('memoryBytes', { type: 'SafeInt', description: 'Its memory.' }),
    model: t.field({
      type: Gpu,
      description:
        'The model that jobs request: that of the catalogue of hardware, or one named after the GPU.',
      resolve: (gpu, _args, { services }) => modelOf(services.config.hardware.current, gpu),
    }),
    missingEntry: t.string({
      nullable: true,
      description:
        'The entry for `gpus` in the file `LOAM_HARDWARE`, to which the operator adds a price; null if the catalogue has the model.',
      resolve(gpu, _args, { services }) {
        const { current } = services.config.hardware;
        const model = modelOf(current, gpu);
        return findGpu(current, model) ? null : describeEntry(model, toDrivenGpu(gpu));
      },
    }),
    job: t.expose('job', {
      type: MachineJob,
      nullable: true,
      description: 'The job that uses it; null if it is free.',
    }),
  }),
});

const Sample = builder.objectRef<MachineSample>('MachineSample').implement({
  description: 'The load of a machine in one minute.',
  fields: (t) => ({
    at: t.field({
      type: 'DateTime',
      description: 'When it was measured.',
      resolve: ({ at }) => new Date(at),
    }),
    cpuPercent: t.exposeFloat('cpuPercent', {
      description: 'The load of all CPUs, from 0 to 100.',
    }),
    memoryBytes: t.expose('memoryBytes', {
      type: 'SafeInt',
      description: 'The memory that is in use.',
    }),
    gpuPercent: t.exposeFloat('gpuPercent', {
      nullable: true,
      description: 'The average load of the GPUs, from 0 to 100; null if unknown.',
    }),
    jobs: t.exposeInt('jobs', { description: 'The number of jobs.' }),
  }),
});

const REGIONS_DESCRIPTION = 'The only regions whose jobs run there; empty: all.';

export const Machine = builder.objectRef<machines.MachineState>('JoinedMachine').implement({
  description: 'A machine that joined with a worker token.',
  fields: (t) => ({
    id: t.exposeID('id', { description: 'The id. It cannot be used with `node`.' }),
    name: t.exposeString('name', {
      description: 'The name, which is unique on the server. Attempts of jobs name it.',
    }),
    status: t.expose('status', { type: MachineStatus, description: 'The status.' }),
    namespace: t.exposeString('namespace', {
      nullable: true,
      description: 'The namespace whose jobs alone run there; null: all.',
    }),
    regions: t.field({
      type: [Region],
      description: REGIONS_DESCRIPTION,
      resolve: ({ regions }) => regions,
    }),
    labels: t.expose('labels', { type: [JobLabel], description: 'The labels of its token.' }),
    hostname: t.string({
      description: 'The name of its host.',
      resolve: ({ facts }) => facts.hostname,
    }),
    os: t.string({
      description: 'Its operating system and architecture, such as `linux x64`.',
      resolve: ({ facts }) => `${facts.os} ${facts.arch}`,
    }),
    version: t.string({
      description: 'The version of the worker program.',
      resolve: ({ facts }) => facts.program,
    }),
    nodeVersion: t.string({
      description: 'The version of Node.js that runs the worker program.',
      resolve: ({ facts }) => facts.node,
    }),
    cpus: t.int({ description: 'The number of CPUs.', resolve: ({ facts }) => facts.cpus }),
    memoryBytes: t.field({
      type: 'SafeInt',
      description: 'The memory.',
      resolve: ({ facts }) => facts.memoryBytes,
    }),
    gpus: t.field({
      type: [MachineGpu],
      description: 'The GPUs, and which job uses each.',
      resolve: ({ facts, jobs }) =>
        facts.gpus.map((gpu) => ({
          ...gpu,
          job: jobs.find(({ gpus }) => gpus?.includes(gpu.index)) ?? null,
        })),
    }),
    slots: t.int({
      description: 'How many jobs it runs at once.',
      resolve: ({ facts }) => facts.slots,
    }),
    jobs: t.expose('jobs', {
      type: [MachineJob],
      description: 'The jobs that are running or being prepared, the oldest first.',
    }),
    refusesImages: t.boolean({
      description: 'Whether jobs that name an image cannot run there.',
      resolve: ({ facts }) => !facts.withImage,
    }),
    refusesJobsWithoutImage: t.boolean({
      description: 'Whether jobs that name no image cannot run there.',
      resolve: ({ facts }) => !facts.withoutImage,
    }),
    notes: t.stringList({
      description: 'What it refuses or lacks, and why.',
      resolve: ({ facts }) => facts.notes,
    }),
    joinedAt: t.expose('joinedAt', { type: 'DateTime', description: 'When it joined.' }),
    lastSeenAt: t.expose('lastSeenAt', {
      type: 'DateTime',
      description: 'When it last reported.',
    }),
    drainSince: t.expose('drainSince', {
      type: 'DateTime',
      nullable: true,
      description: 'When it was asked to take no more jobs; null while it takes jobs.',
    }),
    drainDeadline: t.expose('drainDeadline', {
      type: 'DateTime',
      nullable: true,
      description: 'When the jobs that still run are queued again; null: they run to their end.',
    }),
    history: t.expose('history', {
      type: [Sample],
      description: 'Its load in the last hour, one sample a minute, the oldest first.',
    }),
  }),
});

const Token = builder.objectRef<tokens.WorkerToken>('WorkerToken').implement({
  description: 'A token with which machines join.',
  fields: (t) => ({
    id: t.exposeID('id', { description: 'The id. It cannot be used with `node`.' }),
    name: t.exposeString('name', { description: 'The name, for people.' }),
    namespace: t.exposeString('namespace', {
      nullable: true,
      description: 'The namespace whose jobs alone its machines run; null: all.',
    }),
    regions: t.field({
      type: [Region],
      description: REGIONS_DESCRIPTION,
      resolve: ({ regions }) => regions,
    }),
    labels: t.expose('labels', { type: [JobLabel], description: 'The labels of its machines.' }),
    machines: t.exposeStringList('machines', {
      description: 'The names of the machines that joined with it.',
    }),
    createdBy: t.exposeString('createdBy', {
      description: 'The name, at that time, of the user who created it.',
    }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was created.' }),
    expiresAt: t.expose('expiresAt', {
      type: 'DateTime',
      nullable: true,
      description:
        'No machine can join with it after this time; those that have joined stay. Null: it does not expire.',
    }),
    lastUsedAt: t.expose('lastUsedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When a machine last joined with it; null: never.',
    }),
  }),
});

const ONLY_NAMESPACE = {
  description: 'Only those of this namespace. If omitted, all that the caller may see.',
} as const;
const MACHINE = { required: true, description: 'The name of the machine.' } as const;

builder.queryFields((t) => ({
  machines: t.field({
    type: [Machine],
    nullable: true,
    complexity: 20,
    description:
      'The machines that joined, by name: for operators all, for members those of their namespaces. Requires a credential without scopes.',
    args: { namespace: t.arg.string(ONLY_NAMESPACE) },
    resolve: (_root, { namespace }, { services, viewer }) =>
      machines.listMachines(services, viewer, namespace),
  }),
  machine: t.field({
    type: Machine,
    nullable: true,
    description: 'A machine that joined, by its name.',
    args: { name: t.arg.string(MACHINE) },
    resolve: (_root, { name }, { services, viewer }) => machines.getMachine(services, viewer, name),
  }),
  workerTokens: t.field({
    type: [Token],
    nullable: true,
    complexity: 20,
    description:
      'The tokens with which machines join, newest first: for operators all, for admins those of their namespaces. Requires a credential of full rights.',
    args: { namespace: t.arg.string(ONLY_NAMESPACE) },
    resolve: (_root, { namespace }, { services, viewer }) =>
      tokens.listWorkerTokens(services, viewer, namespace),
  }),
}));

const CreateWorkerTokenInput = builder.inputType('CreateWorkerTokenInput', {
  description: 'The token to create.',
  fields: (t) => ({
    name: t.string({ required: true, description: '1 to 100 characters, for people.' }),
    namespace: t.string({
      description:
        'The only namespace whose jobs its machines run, which the caller must administer. If omitted, all namespaces; only for operators.',
    }),
    regions: t.field({
      type: [Region],
      description: 'The only regions whose jobs its machines run. None: all.',
    }),
    labels: t.field({ type: [JobLabelInput], description: 'Labels of its machines, up to 32.' }),
    expiresInDays: t.int({
      description:
        'Machines can join with it for so many days: 1 to 365. If omitted, until it is revoked.',
    }),
  }),
});

const CreateWorkerTokenPayload = builder
  .objectRef<{ workerToken: tokens.WorkerToken; token: string }>('CreateWorkerTokenPayload')
  .implement({
    description: 'The token that was created, and its secret.',
    fields: (t) => ({
      workerToken: t.expose('workerToken', {
        type: Token,
        description: 'The token without its secret.',
      }),
      token: t.exposeString('token', {
        description: 'The secret. It is shown only in this response.',
      }),
      command: t.string({
        description:
          'The command that installs the worker on a machine, which then joins. Options can be added, such as `--name box`.',
        resolve: ({ token }, _args, { services }) =>
          `curl -fsSL ${services.urls.base}/worker/install.sh | sh -s -- --token ${token}`,
      }),
    }),
  });

const RevokeWorkerTokenInput = builder.inputType('RevokeWorkerTokenInput', {
  description: 'The token to revoke.',
  fields: (t) => ({ id: t.id({ required: true, description: 'The id of the token.' }) }),
});

const DrainMachineInput = builder.inputType('DrainMachineInput', {
  description: 'The machine to drain.',
  fields: (t) => ({
    name: t.string(MACHINE),
    deadlineMinutes: t.int({
      description:
        'After so many minutes, at most 10080 (a week), the jobs that still run are queued again, without using a retry. If omitted, they run to their end.',
    }),
  }),
});

const ResumeMachineInput = builder.inputType('ResumeMachineInput', {
  description: 'The machine that takes jobs again.',
  fields: (t) => ({ name: t.string(MACHINE) }),
});

const RemoveMachineInput = builder.inputType('RemoveMachineInput', {
  description: 'The machine to remove.',
  fields: (t) => ({
    name: t.string(MACHINE),
    force: t.boolean({
      defaultValue: false,
      description: 'Also if it runs jobs, which are then lost and queued again.',
    }),
  }),
});

const definePayload = (name: string) =>
  builder.objectRef<{ machine: machines.MachineState }>(name).implement({
    description: 'The machine after the change.',
    fields: (t) => ({
      machine: t.expose('machine', { type: Machine, description: 'The machine.' }),
    }),
  });
const DrainMachinePayload = definePayload('DrainMachinePayload');
const ResumeMachinePayload = definePayload('ResumeMachinePayload');

builder.mutationFields((t) => ({
  createWorkerToken: t.field({
    type: CreateWorkerTokenPayload,
    nullable: true,
    description:
      'Creates a token with which machines join. For operators, and with `namespace` for its admins. Requires a credential of full rights.',
    args: { input: t.arg({ type: CreateWorkerTokenInput, ...INPUT }) },
    resolve: (_root, { input }, { services, viewer }) =>
      tokens.createWorkerToken(services, viewer, input),
  }),
  revokeWorkerToken: t.field({
    type: deletionPayload('RevokeWorkerToken'),
    nullable: true,
    description:
      'Revokes a worker token, and removes the machines that joined with it. Their running jobs are lost and queued again.',
    args: { input: t.arg({ type: RevokeWorkerTokenInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await tokens.revokeWorkerToken(services, viewer, input.id),
    }),
  }),
  drainMachine: t.field({
    type: DrainMachinePayload,
    nullable: true,
    description:
      'A machine takes no new jobs. A second call changes the deadline. For operators, and for admins of the namespace of the machine.',
    args: { input: t.arg({ type: DrainMachineInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      machine: await machines.drainMachine(services, viewer, input),
    }),
  }),
  resumeMachine: t.field({
    type: ResumeMachinePayload,
    nullable: true,
    description: 'A drained machine takes jobs again.',
    args: { input: t.arg({ type: ResumeMachineInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      machine: await machines.resumeMachine(services, viewer, input.name),
    }),
  }),
  removeMachine: t.field({
    type: deletionPayload('RemoveMachine'),
    nullable: true,
    description:
      'Removes a machine: its requests are refused from now on. It can join again with a worker token.',
    args: { input: t.arg({ type: RemoveMachineInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await machines.removeMachine(services, viewer, input),
    }),
  }),
}));
