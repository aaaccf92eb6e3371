/**
 * What a job can ask for, and what it costs.
 *
 * A value outside its own list or range is the client's mistake (400); values that are each allowed but do
 * not go together are unprocessable (422). The defaults go together under every GPU.
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

/** Spec section 4.3. */
export const HARDWARE_DEFAULTS = {
  gpuCount: 1,
  cpu: 8,
  memoryGb: 32,
  diskGb: 100,
  region: 'us-east-1',
} as const;

/** Decisions section 4. */
export const DISK_GB = { min: 1, max: 10_240 } as const;
/** Of memory, for each vCPU. */
export const MEMORY_GB_PER_CPU = { min: 0.25, max: 16 } as const;

/** The memory of one, and US dollars for one an hour. */
export const GPU_MODELS: Record<Gpu, { memoryGb: number; pricePerHour: string }> = {
  'A100-40GB': { memoryGb: 40, pricePerHour: '1.60' },
  'A100-80GB': { memoryGb: 80, pricePerHour: '2.20' },
  'H100-80GB': { memoryGb: 80, pricePerHour: '3.90' },
  L4: { memoryGb: 24, pricePerHour: '0.55' },
  T4: { memoryGb: 16, pricePerHour: '0.35' },
  none: { memoryGb: 0, pricePerHour: '0' },
};

/** US dollars an hour: of one vCPU, and one GB of memory. Disk is part of the machine. */
export const PRICES = { cpu: '0.024', memoryGb: '0.003' } as const;

/** @throws AppError 400 for a value outside its list or range, 422 for a combination. */
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
    throw unprocessable('gpuCount', `${gpuCount} GPUs were asked for with gpu "none"`);
  if (cpu < gpuCount)
    throw unprocessable('cpu', `${gpuCount} GPUs need at least ${gpuCount} vCPUs, not ${cpu}`);
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

/** As many inodes as ext4 makes by default: one for 16 KiB. */
const FILES_PER_GIB = 65_536;
/** Removing more than this takes minutes, and a disk of 256 GiB has four times as many inodes. */
const MAX_FILES = 4_194_304;

/** What fits on the disk that was asked for: bytes, and files with folders. The GB of the contract are GiB here. */
export function diskRoom(diskGb: number): { maxBytes: number; maxFiles: number } {
  return { maxBytes: diskGb * 2 ** 30, maxFiles: Math.min(diskGb * FILES_PER_GIB, MAX_FILES) };
}

export function costPerHour({ gpu, gpuCount, cpu, memoryGb }: Hardware): Decimal {
  return new Decimal(GPU_MODELS[gpu as Gpu].pricePerHour)
    .times(gpuCount)
    .plus(new Decimal(PRICES.cpu).times(cpu))
    .plus(new Decimal(PRICES.memoryGb).times(memoryGb));
}

/** To a hundredth of a cent, so that a minute on a small machine is not free. */
export function costOf(perHour: Decimal.Value, seconds: number): Decimal {
  return new Decimal(perHour).times(seconds).dividedBy(3600).toDecimalPlaces(4);
}
