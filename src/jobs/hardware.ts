/**
 * What a job can ask for, and what it costs.
 *
 * A value outside its own list or range is the client's mistake (400); values that are each allowed but do
 * not go together are unprocessable (422). The defaults go together under every GPU.
 */
import { Decimal } from 'decimal.js';
import { invalid, unprocessable } from '../errors.ts';

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
const MAX_DISK_GB = 10_240;

/** US dollars an hour: of one GPU, one vCPU, and one GB of memory. Disk is part of the machine. */
const PRICES = {
  gpu: {
    'A100-40GB': '1.60',
    'A100-80GB': '2.20',
    'H100-80GB': '3.90',
    L4: '0.55',
    T4: '0.35',
    none: '0',
  } satisfies Record<Gpu, string>,
  cpu: '0.024',
  memoryGb: '0.003',
};

/** @throws AppError 400 for a value outside its list or range, 422 for a combination. */
export function checkHardware(hardware: Hardware): void {
  const { gpu, gpuCount, cpu, memoryGb, diskGb, region } = hardware;
  oneOf('gpu', gpu, GPUS);
  oneOf('gpuCount', gpuCount, GPU_COUNTS);
  oneOf('cpu', cpu, CPUS);
  oneOf('region', region, REGIONS);
  if (memoryGb < 1) throw invalid('memoryGb', 'must be at least 1');
  if (diskGb < 1 || diskGb > MAX_DISK_GB)
    throw invalid('diskGb', `must be from 1 to ${MAX_DISK_GB}`);

  if (gpu === 'none' && gpuCount > 1)
    throw unprocessable('gpuCount', `${gpuCount} GPUs were asked for with gpu "none"`);
  if (cpu < gpuCount)
    throw unprocessable('cpu', `${gpuCount} GPUs need at least ${gpuCount} vCPUs, not ${cpu}`);
  if (memoryGb > cpu * 16 || memoryGb * 4 < cpu)
    throw unprocessable(
      'memoryGb',
      `must be from ${Math.max(1, cpu / 4)} to ${cpu * 16} with ${cpu} vCPUs (got ${memoryGb})`,
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
  return new Decimal(PRICES.gpu[gpu as Gpu])
    .times(gpuCount)
    .plus(new Decimal(PRICES.cpu).times(cpu))
    .plus(new Decimal(PRICES.memoryGb).times(memoryGb));
}

/** To a hundredth of a cent, so that a minute on a small machine is not free. */
export function costOf(perHour: Decimal.Value, seconds: number): Decimal {
  return new Decimal(perHour).times(seconds).dividedBy(3600).toDecimalPlaces(4);
}
