/** What there is to choose from for a job, and every rule of a request, in GraphQL. */

import * as hardware from '../../base/hardware.ts';
import { builder } from '../../platform/schema/builder.ts';
import { LABEL_NAME, MAX_LABELS } from '../labels.ts';
import {
  demandOptions,
  type GpuOption,
  gpuOptions,
  largestMachine,
  type MachineSize,
  REQUEST_RULES as RULES,
} from '../request.ts';
import { Gpu, Region } from './enums.ts';

const { HARDWARE_DEFAULTS: DEFAULTS } = hardware;

const GpuOptionType = builder.objectRef<GpuOption>('GpuOption').implement({
  description: 'A model of GPU that a job can ask for, or none.',
  fields: (t) => ({
    gpu: t.expose('gpu', { type: Gpu, description: 'The model, as GraphQL names it.' }),
    name: t.exposeString('gpu', {
      description: 'The model as REST and webhooks name it, such as `A100-40GB`.',
    }),
    memoryGb: t.exposeInt('memoryGb', {
      nullable: true,
      description: 'The memory of one in GB; null without a GPU.',
    }),
    pricePerHour: t.expose('pricePerHour', {
      type: 'Decimal',
      description: 'The price of one for an hour.',
    }),
    maxOffered: t.exposeInt('maxOffered', {
      nullable: true,
      description:
        'The most of them that one machine of a worker has now. A job that asks for more waits until a worker has them. Null without a GPU.',
    }),
  }),
});

const RegionOption = builder
  .objectRef<(typeof hardware.REGIONS)[number]>('RegionOption')
  .implement({
    description: 'A region that a job can run in.',
    fields: (t) => ({
      region: t.field({
        type: Region,
        description: 'The region, as GraphQL names it.',
        resolve: (region) => region,
      }),
      name: t.string({
        description: 'The region as REST and webhooks name it, such as `us-east-1`.',
        resolve: (region) => region,
      }),
    }),
  });

const MachineSizeType = builder.objectRef<MachineSize>('MachineSize').implement({
  description: 'How large a machine is that runs jobs.',
  fields: (t) => ({
    cpus: t.exposeFloat('cpus', { description: 'Its vCPUs.' }),
    memoryGb: t.exposeFloat('memoryGb', { description: 'Its memory in GB.' }),
  }),
});

type Range = { min: number; max: number; default?: number };

const IntRange = builder.objectRef<Range>('IntRange').implement({
  description: 'Whole numbers that are allowed.',
  fields: (t) => ({
    min: t.exposeInt('min', { description: 'The smallest.' }),
    max: t.exposeInt('max', { description: 'The largest.' }),
    default: t.exposeInt('default', {
      nullable: true,
      description: 'What it is when it is left out; null when it is required.',
    }),
  }),
});

type Text = { maxLength?: number; maxBytes?: number; pattern?: RegExp };

const TextRule = builder.objectRef<Text>('TextRule').implement({
  description: 'What a text must be like.',
  fields: (t) => ({
    maxLength: t.exposeInt('maxLength', {
      nullable: true,
      description: 'How many characters it may have; null where bytes are counted.',
    }),
    maxBytes: t.exposeInt('maxBytes', {
      nullable: true,
      description: 'How many bytes of UTF-8 it may have; null where characters are counted.',
    }),
    pattern: t.string({
      nullable: true,
      description: 'A regular expression of JavaScript that it matches; null for any text.',
      resolve: ({ pattern }) => pattern?.source ?? null,
    }),
  }),
});

const VariableRules = builder.objectRef<typeof RULES.variables>('VariableRules').implement({
  description: 'What `env` and `secrets` of a job must be like, each for itself.',
  fields: (t) => ({
    maxEntries: t.exposeInt('maxEntries', { description: 'How many there may be.' }),
    maxBytes: t.exposeInt('maxBytes', {
      description: 'How many bytes all names and values together may have.',
    }),
    namePattern: t.string({
      description: 'A regular expression of JavaScript that a name matches.',
      resolve: ({ pattern }) => pattern.source,
    }),
  }),
});

const LabelRules = builder.objectRef<object>('LabelRules').implement({
  description: 'What labels of a job must be like. The rules are those of Kubernetes.',
  fields: (t) => ({
    maxEntries: t.int({ description: 'How many a job may have.', resolve: () => MAX_LABELS }),
    pattern: t.string({
      description:
        'A regular expression of JavaScript: a value matches it or is empty; a key matches it, after a DNS name and a slash if there is one.',
      resolve: () => LABEL_NAME.source,
    }),
  }),
});

const JobOptions = builder.objectRef<object>('JobOptions').implement({
  description:
    'What a job can be made of, and what it costs. The price of an hour is the sum of its GPUs, its vCPUs and its memory; disk is free.',
  fields: (t) => ({
    gpus: t.field({
      type: [GpuOptionType],
      description: 'The models of GPU, and `NONE`.',
      resolve: (_options, _args, { services }) => gpuOptions(services),
    }),
    largestMachine: t.field({
      type: MachineSizeType,
      nullable: true,
      description:
        'The largest machine of all workers; null while there is no worker. A job that asks for more shares the machine and gets less.',
      resolve: (_options, _args, { services }) => largestMachine(services),
    }),
    gpuCounts: t.intList({
      description: 'How many GPUs there can be. With `NONE` it is 1, which means nothing then.',
      resolve: () => [...hardware.GPU_COUNTS],
    }),
    defaultGpuCount: t.int({
      description: 'How many GPUs there are when it is left out.',
      resolve: () => DEFAULTS.gpuCount,
    }),
    cpus: t.intList({
      description: 'How many vCPUs there can be: at least one for each GPU.',
      resolve: () => [...hardware.CPUS],
    }),
    defaultCpu: t.int({
      description: 'How many vCPUs there are when it is left out.',
      resolve: () => DEFAULTS.cpu,
    }),
    cpuPricePerHour: t.field({
      type: 'Decimal',
      description: 'The price of a vCPU for an hour.',
      resolve: () => hardware.PRICES.cpu,
    }),
    memoryGb: t.field({
      type: IntRange,
      description: 'Memory in GB, whatever the number of vCPUs.',
      resolve: () => ({
        min: 1,
        max: Math.max(...hardware.CPUS) * hardware.MEMORY_GB_PER_CPU.max,
        default: DEFAULTS.memoryGb,
      }),
    }),
    minMemoryGbPerCpu: t.float({
      description: 'The least memory for each vCPU, in GB.',
      resolve: () => hardware.MEMORY_GB_PER_CPU.min,
    }),
    maxMemoryGbPerCpu: t.float({
      description: 'The most memory for each vCPU, in GB.',
      resolve: () => hardware.MEMORY_GB_PER_CPU.max,
    }),
    memoryGbPricePerHour: t.field({
      type: 'Decimal',
      description: 'The price of a GB of memory for an hour.',
      resolve: () => hardware.PRICES.memoryGb,
    }),
    diskGb: t.field({
      type: IntRange,
      description: 'Disk in GB, which has no price.',
      resolve: () => ({ ...hardware.DISK_GB, default: DEFAULTS.diskGb }),
    }),
    regions: t.field({
      type: [RegionOption],
      description: 'The regions.',
      resolve: () => [...hardware.REGIONS],
    }),
    defaultRegion: t.field({
      type: Region,
      description: 'The region when it is left out.',
      resolve: () => DEFAULTS.region,
    }),
    timeoutMinutes: t.field({
      type: IntRange,
      description: 'After how many minutes an attempt is stopped.',
      resolve: () => RULES.timeoutMinutes,
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
      description: 'The command, which is not blank.',
      resolve: () => ({ maxBytes: RULES.commandBytes }),
    }),
    image: t.field({
      type: TextRule,
      description: 'The container image. It or `repo` is required.',
      resolve: () => RULES.image,
    }),
    branch: t.field({
      type: TextRule,
      description: 'The branch of `repo`, only with it.',
      resolve: () => ({ maxBytes: RULES.branchBytes }),
    }),
    outputPath: t.field({
      type: TextRule,
      description: 'The path whose contents are kept. No part of it is `..`.',
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
      'What a job can be made of, what it costs, and every rule that `createJob` checks, for a form. Anyone who is signed in may ask.',
    resolve: (_root, _args, { viewer }) => {
      demandOptions(viewer);
      return {};
    },
  }),
);
