/**
 * Hardware that a job can request, and its price.
 *
 * A value outside its list or range is refused with 400. Values that are allowed but do not fit together are refused
 * with 422. The defaults fit together with every GPU.
 */
import { Decimal } from 'decimal.js';
import { invalid, unprocessable } from './errors.ts';

export const GPUS = ['A100-40GB', 'A100-80GB', 'H100-80GB', 'L4', 'T4', 'none'] as const;
export const GPU_COUNTS = [1, 2, 4, 8] as const;
export const CPUS = [2, 4, 8, 16, 32, 64, 96] as const;
export const REGIONS = [
  'us-east-1',
  'us-west-2',
  'eu-west-1',
  'eu-central-1',
  'ap-northeast-1',
] as const;

export type Gpu = (typeof GPUS)[number];
export type Region = (typeof REGIONS)[number];

export type Hardware = {
  gpu: string;
  gpuCount: number;
  cpu: number;
  memoryGb: number;
  diskGb: number;
  region: string;
};

/** The defaults of the API contract. */
export const HARDWARE_DEFAULTS = {
  gpuCount: 1,
  cpu: 8,
  memoryGb: 32,
  diskGb: 100,
  region: 'us-east-1',
} as const;

/** Range of `diskGb`. */
export const DISK_GB = { min: 1, max: 10_240 } as const;
/** Range of memory for each vCPU. */
export const MEMORY_GB_PER_CPU = { min: 0.25, max: 16 } as const;

/** Memory of one GPU, and its price in US dollars per hour. */
export const GPU_MODELS: Record<Gpu, { memoryGb: number; pricePerHour: string }> = {
  'A100-40GB': { memoryGb: 40, pricePerHour: '1.60' },
  'A100-80GB': { memoryGb: 80, pricePerHour: '2.20' },
  'H100-80GB': { memoryGb: 80, pricePerHour: '3.90' },
  L4: { memoryGb: 24, pricePerHour: '0.55' },
  T4: { memoryGb: 16, pricePerHour: '0.35' },
  none: { memoryGb: 0, pricePerHour: '0' },
};

/** US dollars per hour for one vCPU and for one GB of memory. Disk is included. */
export const PRICES = { cpu: '0.024', memoryGb: '0.003' } as const;

export type Size = { cpu: number; memoryGb: number };

/**
 * The default vCPUs and memory, reduced to what the machine has; null: to nothing.
 * @param given what the request has; the result fits together with it
 */
export function defaultSize(
  machine: { cpus: number; memoryGb: number } | null,
  given: { gpuCount?: number | null; cpu?: number | null; memoryGb?: number | null } = {},
): Size {
  const { cpus, memoryGb: machineMemory } = machine ?? {
    cpus: HARDWARE_DEFAULTS.cpu,
    memoryGb: HARDWARE_DEFAULTS.memoryGb,
  };
  const { min, max } = MEMORY_GB_PER_CPU;
  const allowed = CPUS.filter(
    (cpu) =>
      cpu >= (given.gpuCount ?? 1) &&
      (given.memoryGb == null || (given.memoryGb >= cpu * min && given.memoryGb <= cpu * max)),
  );
  const cpu =
    given.cpu ??
    allowed.findLast((each) => each <= Math.min(cpus, HARDWARE_DEFAULTS.cpu)) ??
    allowed[0] ??
    HARDWARE_DEFAULTS.cpu;
  const wanted = Math.min(HARDWARE_DEFAULTS.memoryGb, Math.floor(machineMemory));
  const memoryGb = given.memoryGb ?? Math.max(1, Math.ceil(cpu * min), Math.min(wanted, cpu * max));
  return { cpu, memoryGb };
}

/** @throws AppError 400 for a value outside its list or range, 422 for an invalid combination */
export function checkHardware(hardware: Hardware): void {
  const { gpu, gpuCount, cpu, memoryGb, diskGb, region } = hardware;
  oneOf('gpu', gpu, GPUS);
  oneOf('gpuCount', gpuCount, GPU_COUNTS);
  oneOf('cpu', cpu, CPUS);
  oneOf('region', region, REGIONS);
  if (memoryGb < 1) throw invalid('memoryGb', 'must be at least 1');
  if (diskGb < DISK_GB.min || diskGb > DISK_GB.max)
    throw invalid('diskGb', `must be from ${DISK_GB.min} to ${DISK_GB.max}`);

  if (gpu === 'none' && gpuCount > 1)
    throw unprocessable('gpuCount', `must be 1 when gpu is "none" (got ${gpuCount})`);
  if (cpu < gpuCount)
    throw unprocessable('cpu', `must be at least ${gpuCount} with ${gpuCount} GPUs (got ${cpu})`);
  const memory = { min: cpu * MEMORY_GB_PER_CPU.min, max: cpu * MEMORY_GB_PER_CPU.max };
  if (memoryGb < memory.min || memoryGb > memory.max)
    throw unprocessable(
      'memoryGb',
      `must be from ${Math.max(1, memory.min)} to ${memory.max} with ${cpu} vCPUs (got ${memoryGb})`,
    );
}

function oneOf<T>(field: string, value: unknown, allowed: readonly T[]): void {
  if (!allowed.includes(value as T)) throw invalid(field, `must be one of ${allowed.join(', ')}`);
}

/** The default of ext4: one inode for every 16 KiB. */
const FILES_PER_GIB = 65_536;
/** Removing more files takes minutes; a disk of 256 GiB could have four times as many. */
const MAX_FILES = 4_194_304;

/** Limits for a job's disk: bytes, and files including folders. A GB of the contract is a GiB here. */
export function diskLimits(diskGb: number): { maxBytes: number; maxFiles: number } {
  return { maxBytes: diskGb * 2 ** 30, maxFiles: Math.min(diskGb * FILES_PER_GIB, MAX_FILES) };
}

export function costPerHour({ gpu, gpuCount, cpu, memoryGb }: Hardware): Decimal {
  return new Decimal(GPU_MODELS[gpu as Gpu].pricePerHour)
    .times(gpuCount)
    .plus(new Decimal(PRICES.cpu).times(cpu))
    .plus(new Decimal(PRICES.memoryGb).times(memoryGb));
}

/** Rounds to a hundredth of a cent, so that a minute on a small machine is not free. */
export function costOf(perHour: Decimal.Value, seconds: number): Decimal {
  return new Decimal(perHour).times(seconds).dividedBy(3600).toDecimalPlaces(4);
}
