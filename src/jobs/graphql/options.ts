/** GraphQL types of the options that a job can have, and of the rules that a request must follow. */

import * as hardware from '../../base/hardware.ts';
import { builder } from '../../platform/schema/builder.ts';
import { LABEL_NAME_PATTERN, MAX_LABELS } from '../record/labels.ts';
import {
  findLargestMachine,
  type GpuOption,
  listGpuOptions,
  type MachineSize,
  type Options,
  REQUEST_RULES as RULES,
  readOptions,
  suggestSize,
} from '../requests/request.ts';
import { Gpu, Region } from './enums.ts';

const GpuOptionType = builder.objectRef<GpuOption>('GpuOption').implement({
  description: 'A GPU model that a job can request, or none.',
  fields: (t) => ({
    gpu: t.expose('gpu', { type: Gpu, description: 'The model, as named in GraphQL.' }),
    name: t.exposeString('gpu', {
      description: 'The model, as named in REST and webhooks, such as `A100-40GB`.',
    }),
    memoryGb: t.exposeInt('memoryGb', {
      nullable: true,
      description: 'The memory of one GPU in GB; null if it is unknown, and for `NONE`.',
    }),
    pricePerHour: t.expose('pricePerHour', {
      type: 'Decimal',
      description: 'The price of one GPU per hour.',
    }),
    counts: t.exposeIntList('counts', { description: 'The numbers that a job may request.' }),
    free: t.exposeInt('free', {
      nullable: true,
      description:
        'The number of GPUs that no job has now; null for `NONE`. It may be two seconds old.',
    }),
    total: t.exposeInt('total', {
      nullable: true,
      description: 'The number of GPUs on all machines of live workers; null for `NONE`.',
    }),
    waiting: t.exposeInt('waiting', {
      description: 'The number of jobs that wait for the model, at most 10,000 of each region.',
    }),
    estimatedWait: t.exposeFloat('estimatedWait', {
      nullable: true,
      description:
        'The seconds that a new job with one GPU would wait at the current rate; null if no machine has the model, or no running job allows an estimate.',
    }),
    maxOffered: t.exposeInt('maxOffered', {
      nullable: true,
      description:
        'The largest number that one machine of a worker has now. A job that requests more waits until a worker has them. Null for `NONE`.',
    }),
  }),
});

const RegionOption = builder.objectRef<string>('RegionOption').implement({
  description: 'A region in which a job can run.',
  fields: (t) => ({
    region: t.field({
      type: Region,
      description: 'The region, as named in GraphQL.',
      resolve: (region) => region,
    }),
    name: t.string({
      description: 'The region, as named in REST and webhooks, such as `us-east-1`.',
      resolve: (region) => region,
    }),
  }),
});

const MachineSizeType = builder.objectRef<MachineSize>('MachineSize').implement({
  description: 'The size of a machine that runs jobs.',
  fields: (t) => ({
    cpus: t.exposeFloat('cpus', { description: 'The number of vCPUs.' }),
    memoryGb: t.exposeFloat('memoryGb', { description: 'The memory in GB.' }),
  }),
});

const JobSize = builder.objectRef<hardware.Size>('JobSize').implement({
  description: 'The vCPUs and the memory of a job.',
  fields: (t) => ({
    cpu: t.exposeInt('cpu', { description: 'The number of vCPUs.' }),
    memoryGb: t.exposeInt('memoryGb', { description: 'Memory in GB.' }),
  }),
});

type Range = { min: number; max: number; default?: number };

const IntRange = builder.objectRef<Range>('IntRange').implement({
  description: 'A range of allowed integers.',
  fields: (t) => ({
    min: t.exposeInt('min', { description: 'The minimum.' }),
    max: t.exposeInt('max', { description: 'The maximum.' }),
    default: t.exposeInt('default', {
      nullable: true,
      description: 'The default; null if the value is required.',
    }),
  }),
});

type Text = { maxLength?: number; maxBytes?: number; pattern?: RegExp };

const TextRule = builder.objectRef<Text>('TextRule').implement({
  description: 'The rules for a text.',
  fields: (t) => ({
    maxLength: t.exposeInt('maxLength', {
      nullable: true,
      description: 'The maximum number of characters; null if the limit is in bytes.',
    }),
    maxBytes: t.exposeInt('maxBytes', {
      nullable: true,
      description: 'The maximum number of bytes in UTF-8; null if the limit is in characters.',
    }),
    pattern: t.string({
      nullable: true,
      description: 'A JavaScript regular expression that the text must match; null for any text.',
      resolve: ({ pattern }) => pattern?.source ?? null,
    }),
  }),
});

const VariableRules = builder.objectRef<typeof RULES.variables>('VariableRules').implement({
  description: 'The rules for `env` and for `secrets` of a job, which apply to each separately.',
  fields: (t) => ({
    maxEntries: t.exposeInt('maxEntries', { description: 'The maximum number of variables.' }),
    maxBytes: t.exposeInt('maxBytes', {
      description: 'The maximum number of bytes of all names and values together.',
    }),
    namePattern: t.string({
      description: 'A JavaScript regular expression that a name must match.',
      resolve: ({ pattern }) => pattern.source,
    }),
  }),
});

const LabelRules = builder.objectRef<object>('LabelRules').implement({
  description: 'The rules for labels of a job, which are those of Kubernetes.',
  fields: (t) => ({
    maxEntries: t.int({
      description: 'The maximum number of labels of a job.',
      resolve: () => MAX_LABELS,
    }),
    pattern: t.string({
      description:
        'A JavaScript regular expression. A value must match it or be empty; a key must match it, after an optional DNS name and slash.',
      resolve: () => LABEL_NAME_PATTERN.source,
    }),
  }),
});

const JobOptions = builder.objectRef<Options>('JobOptions').implement({
  description:
    'The options of a job and their prices now, which a job keeps that is created now. The price per hour is the sum for GPUs, vCPUs, memory and disk.',
  fields: (t) => ({
    gpus: t.field({
      type: [GpuOptionType],
      description: 'The GPU models, and `NONE`.',
      resolve: (options, _args, { services }) => listGpuOptions(services, options),
    }),
    largestMachine: t.field({
      type: MachineSizeType,
      nullable: true,
      description:
        'The largest machine of all workers; null while there is no worker. A job that requests more shares the machine and gets less.',
      resolve: (options, _args, { services }) => findLargestMachine(services, options),
    }),
    suggestedSize: t.field({
      type: JobSize,
      description:
        'The default vCPUs and memory, reduced to the largest machine that can run a job with these arguments. Those that are given are returned as they are.',
      args: {
        gpu: t.arg({ type: Gpu, description: 'The GPU model, or `NONE`, as by default.' }),
        gpuCount: t.arg.int({ description: 'The number of GPUs.' }),
        region: t.arg({ type: Region, description: 'The region to run in.' }),
        image: t.arg.string({ description: 'The container image.' }),
        cpu: t.arg.int({ description: 'The number of vCPUs, if it is chosen.' }),
        memoryGb: t.arg.int({ description: 'The memory in GB, if it is chosen.' }),
      },
      resolve: (options, args, { services }) => suggestSize(services, options, args),
    }),
    gpuCounts: t.intList({
      description:
        'The numbers of GPUs that are allowed with some model. With `NONE` it must be 1, which has no meaning.',
      resolve: (catalogue) => hardware.gpuCounts(catalogue),
    }),
    defaultGpuCount: t.int({
      description: 'The default number of GPUs.',
      resolve: (catalogue) => hardware.defaultsOf(catalogue).gpuCount,
    }),
    cpus: t.intList({
      description:
        'The allowed numbers of vCPUs, at least one for each GPU. Where `cpuRange` is set, they are a choice from it.',
      resolve: (catalogue) => [...hardware.listCpus(catalogue)],
    }),
    cpuRange: t.field({
      type: IntRange,
      nullable: true,
      description: 'The range of vCPUs in which all numbers are allowed; null: those of `cpus`.',
      resolve: ({ cpus }) => (hardware.isRange(cpus) ? cpus : null),
    }),
    currency: t.exposeString('currency', {
      description: 'The currency of all amounts of this server, such as `USD`.',
    }),
    defaultCpu: t.int({
      description: 'The default number of vCPUs.',
      resolve: (catalogue) => hardware.defaultsOf(catalogue).cpu,
    }),
    cpuPricePerHour: t.field({
      type: 'Decimal',
      description: 'The price of a vCPU per hour.',
      resolve: ({ prices }) => prices.cpu,
    }),
    memoryGb: t.field({
      type: IntRange,
      description: 'Memory in GB, for any number of vCPUs.',
      resolve: (catalogue) => ({
        min: 1,
        max: hardware.maxMemoryGb(catalogue),
        default: hardware.defaultsOf(catalogue).memoryGb,
      }),
    }),
    minMemoryGbPerCpu: t.float({
      description: 'The minimum memory for each vCPU, in GB.',
      resolve: ({ memoryGbPerCpu }) => memoryGbPerCpu.min,
    }),
    maxMemoryGbPerCpu: t.float({
      description: 'The maximum memory for each vCPU, in GB.',
      resolve: ({ memoryGbPerCpu }) => memoryGbPerCpu.max,
    }),
    memoryGbPricePerHour: t.field({
      type: 'Decimal',
      description: 'The price of a GB of memory per hour.',
      resolve: ({ prices }) => prices.memoryGb,
    }),
    diskGb: t.field({
      type: IntRange,
      description: 'Disk in GB.',
      resolve: (catalogue) => ({
        ...hardware.DISK_GB,
        default: hardware.defaultsOf(catalogue).diskGb,
      }),
    }),
    diskGbPricePerHour: t.field({
      type: 'Decimal',
      description: 'The price of a GB of disk per hour.',
      resolve: ({ prices }) => prices.diskGb,
    }),
    regions: t.field({
      type: [RegionOption],
      description: 'The regions.',
      resolve: ({ regions }) => [...regions],
    }),
    defaultRegion: t.field({
      type: Region,
      description: 'The default region.',
      resolve: (catalogue) => hardware.defaultsOf(catalogue).region,
    }),
    timeoutMinutes: t.field({
      type: IntRange,
      description: 'The timeout of an attempt in minutes.',
      resolve: () => RULES.timeoutMinutes,
    }),
    holdOnFailureMinutes: t.field({
      type: IntRange,
      description: 'How many minutes the sandbox stays when the command of the last attempt fails.',
      resolve: () => RULES.holdOnFailureMinutes,
    }),
    retries: t.field({
      type: IntRange,
      description: 'How many times a failed job is retried.',
      resolve: () => RULES.retries,
    }),
    name: t.field({
      type: TextRule,
      description: 'The name, which is unique in its namespace.',
      resolve: () => RULES.name,
    }),
    command: t.field({
      type: TextRule,
      description: 'The command, which must not be blank.',
      resolve: () => ({ maxBytes: RULES.commandBytes }),
    }),
    image: t.field({
      type: TextRule,
      description: 'The container image. Either `image` or `repo` is required.',
      resolve: () => RULES.image,
    }),
    branch: t.field({
      type: TextRule,
      description: 'The branch of `repo`; only allowed with `repo`.',
      resolve: () => ({ maxBytes: RULES.branchBytes }),
    }),
    outputPath: t.field({
      type: TextRule,
      description: 'Files under this path are kept as artifacts. It must not contain `..`.',
      resolve: () => ({ maxBytes: RULES.outputPathBytes }),
    }),
    variables: t.field({
      type: VariableRules,
      description: 'The environment variables in `env`, and those in `secrets`.',
      resolve: () => RULES.variables,
    }),
    labels: t.field({
      type: LabelRules,
      description: 'The labels.',
      resolve: () => ({}),
    }),
  }),
});

builder.queryField('jobOptions', (t) =>
  t.field({
    type: JobOptions,
    nullable: true,
    description:
      'The options of a job, their prices, and all rules that `createJob` checks, for use in a form. Any signed-in user may read them.',
    args: {
      namespace: t.arg.string({
        description:
          'The namespace of the job: the machines that run the jobs of this namespace alone are included, if the viewer may see its jobs. If omitted, only the machines for all namespaces.',
      }),
    },
    resolve: (_root, { namespace }, { services, viewer }) =>
      readOptions(services, viewer, namespace),
  }),
);
