/**
 * Hardware that a job can request, and its price: the catalogue. `CONTRACT` is that of the API contract; an operator replaces
 * parts of it by a file (`config/hardware-file.ts`).
 *
 * A value outside its list or range is refused with 400. Values that are allowed but do not fit together are refused
 * with 422. The defaults fit together with every GPU.
 */
import { Decimal } from 'decimal.js';
import { invalid, unprocessable } from './errors.ts';

export type GpuModel = {
  /** As in requests, see `GPU_NAME`. */
  name: string;
  /** Memory of one GPU in GB; null: unknown. */
  memoryGb: number | null;
  /** Of one GPU per hour: a decimal number. */
  pricePerHour: string;
  /** Names that drivers give to GPUs of this model (`findModel`). */
  match: readonly string[];
  /** How many GPUs a job may request. */
  counts: readonly number[];
};

export type NumberRange = { min: number; max: number };

export type Catalogue = {
  /** A label of all amounts, such as `USD`. */
  currency: string;
  /** In the order in which they are listed; without `NO_GPU`. */
  gpus: readonly GpuModel[];
  regions: readonly string[];
  /** The vCPUs that a job may request. */
  cpus: readonly number[] | NumberRange;
  /** Range of memory for each vCPU. */
  memoryGbPerCpu: NumberRange;
  /** Per hour, of one vCPU, one GB of memory and one GB of disk: decimal numbers. */
  prices: { cpu: string; memoryGb: string; diskGb: string };
};

/** What a request names that needs no GPU. */
export const NO_GPU = 'none';

/** A part after a slash names an instance of a GPU that is divided: `A100-80GB/1g.10gb`. */
export const GPU_NAME =
  /^[A-Za-z0-9](?:[A-Za-z0-9.-]{0,62}[A-Za-z0-9])?(?:\/[a-z0-9][a-z0-9.-]{0,31})?$/;
export const REGION_NAME = /^[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?$/;

export type Hardware = {
  gpu: string;
  gpuCount: number;
  cpu: number;
  memoryGb: number;
  diskGb: number;
  region: string;
};

/** The defaults of the API contract. A catalogue without these values has others (`defaultsOf`). */
export const HARDWARE_DEFAULTS = {
  gpuCount: 1,
  cpu: 8,
  memoryGb: 32,
  diskGb: 100,
  region: 'us-east-1',
} as const;

/** Range of `diskGb`. */
export const DISK_GB = { min: 1, max: 10_240 } as const;

const counts = [1, 2, 4, 8];

/** Prices in US dollars. Disk is included. */
export const CONTRACT: Catalogue = {
  currency: 'USD',
  gpus: [
    {
      name: 'A100-40GB',
      memoryGb: 40,
      pricePerHour: '1.60',
      match: ['A100 40GB', 'A100 SXM 40GB', 'A100 SXM4 40GB', 'A100 PCIE 40GB'],
      counts,
    },
    {
      name: 'A100-80GB',
      memoryGb: 80,
      pricePerHour: '2.20',
      match: ['A100 80GB', 'A100 SXM 80GB', 'A100 SXM4 80GB', 'A100 PCIE 80GB'],
      counts,
    },
    { name: 'H100-80GB', memoryGb: 80, pricePerHour: '3.90', match: ['H100'], counts },
    { name: 'L4', memoryGb: 24, pricePerHour: '0.55', match: ['L4'], counts },
    { name: 'T4', memoryGb: 16, pricePerHour: '0.35', match: ['T4'], counts },
  ],
  regions: ['us-east-1', 'us-west-2', 'eu-west-1', 'eu-central-1', 'ap-northeast-1'],
  cpus: [2, 4, 8, 16, 32, 64, 96],
  memoryGbPerCpu: { min: 0.25, max: 16 },
  prices: { cpu: '0.024', memoryGb: '0.003', diskGb: '0' },
};

/** The names that `gpu` of a request may have. */
export function gpuNames({ gpus }: Catalogue): string[] {
  return [...gpus.map(({ name }) => name), NO_GPU];
}

/** Undefined for `NO_GPU`, and for a model that the catalogue does not have. */
export function findGpu({ gpus }: Catalogue, name: string): GpuModel | undefined {
  return gpus.find((model) => model.name === name);
}

/** The numbers of GPUs that a request may have with some model. */
export function gpuCounts({ gpus }: Catalogue): number[] {
  return [...new Set([1, ...gpus.flatMap((model) => model.counts)])].sort((a, b) => a - b);
}

/** All vCPUs that a request may have; of a range, its ends and the powers of two between them. */
export function listCpus({ cpus }: Pick<Catalogue, 'cpus'>): readonly number[] {
  if (!isRange(cpus)) return cpus;
  const powers = Array.from({ length: 14 }, (_, i) => 2 ** i);
  return [...new Set([cpus.min, ...powers.filter((n) => isWithin(n, cpus)), cpus.max])];
}

export function isRange(cpus: Catalogue['cpus']): cpus is NumberRange {
  return 'min' in cpus;
}

function isWithin(value: number, { min, max }: NumberRange): boolean {
  return value >= min && value <= max;
}

/** The largest memory that a request may have. */
export function maxMemoryGb(catalogue: Catalogue): number {
  return Math.floor(Math.max(...listCpus(catalogue)) * catalogue.memoryGbPerCpu.max);
}

/** The defaults of the contract where the catalogue has them, and otherwise the nearest that it has. */
export function defaultsOf(catalogue: Catalogue) {
  const { gpuCount, diskGb, region } = HARDWARE_DEFAULTS;
  return {
    ...defaultSize(null, {}, catalogue),
    gpuCount,
    diskGb,
    region: catalogue.regions.includes(region) ? region : (catalogue.regions[0] ?? region),
  };
}

const offers = new WeakMap<Catalogue, { key: string; offer: Catalogue }>();

/**
 * Adds models that machines have and the catalogue does not: without a price, and in any number that a machine has.
 * @param found model → the largest number of these GPUs in one machine
 * @returns the same object while nothing changes, so that results can be cached by it
 */
export function withModels(catalogue: Catalogue, found: ReadonlyMap<string, number>): Catalogue {
  const names = gpuNames(catalogue);
  const added = [...found]
    .filter(([name]) => !names.includes(name))
    .sort(([a], [b]) => (a < b ? -1 : 1));
  if (added.length === 0) return catalogue;
  const key = JSON.stringify(added);
  const known = offers.get(catalogue);
  if (known?.key === key) return known.offer;
  const gpus = added.map(([name, count]) => ({
    name,
    memoryGb: null,
    pricePerHour: '0',
    match: [],
    counts: Array.from({ length: count }, (_, i) => i + 1),
  }));
  const offer = { ...catalogue, gpus: [...catalogue.gpus, ...gpus] };
  offers.set(catalogue, { key, offer });
  return offer;
}

/**
 * Finds the model of a GPU: the first with a pattern that the driver's name of the GPU contains as whole words, in any case.
 * So `L4` matches `NVIDIA L4`, but not `NVIDIA L40S`.
 */
export function findModel({ gpus }: Catalogue, driverName: string): GpuModel | undefined {
  const words = toWords(driverName);
  return gpus.find(({ match }) => match.some((pattern) => words.includes(toWords(pattern))));
}

/** What the tool of a vendor says about a GPU. `profile`: of an instance of a divided GPU, such as `1g.10gb`. */
type DrivenGpu = { name: string; profile?: string | null; memoryGb?: number | null };

/** Words of names that do not tell models apart. */
const BRANDS = /\b(?:NVIDIA|GeForce|Tesla|Quadro|AMD|Radeon|Instinct|Graphics)\b/gi;

/**
 * The model of a GPU: that of the catalogue, or a name made from that of the driver. `NVIDIA GeForce RTX 4090` is `RTX-4090`. An
 * instance is named after its GPU and its profile, and the catalogue has it only under this name.
 */
export function modelOf(catalogue: Catalogue, { name, profile }: DrivenGpu): string {
  const words = name.replaceAll(BRANDS, ' ').match(/[A-Za-z0-9.]*[A-Za-z0-9]/g) ?? [];
  const own =
    words
      .join('-')
      .slice(0, 64)
      .replace(/[-.]+$/, '') || 'GPU';
  const whole = findModel(catalogue, name)?.name ?? own;
  return profile ? `${whole}/${profile}` : whole;
}

/** The entry of `LOAM_HARDWARE` that lists a GPU, to which the operator adds the price. */
export function describeEntry(model: string, { name, profile, memoryGb }: DrivenGpu): string {
  const memory = memoryGb ? `, memory_gb: ${memoryGb}` : '';
  const match = profile ? '' : `, match: [${JSON.stringify(name)}]`;
  return `- { name: ${model}${memory}, price_per_hour: "0.00"${match} }`;
}

/** Words between spaces, such as ` nvidia a100 sxm4 80gb `. */
function toWords(text: string): string {
  return ` ${text
    .toLowerCase()
    .replaceAll(/[^a-z0-9]+/g, ' ')
    .trim()} `;
}

export type Size = { cpu: number; memoryGb: number };

/**
 * The default vCPUs and memory, reduced to what the machine has; null: to nothing.
 * @param given what the request has; the result fits together with it
 */
export function defaultSize(
  machine: { cpus: number; memoryGb: number } | null,
  given: { gpuCount?: number | null; cpu?: number | null; memoryGb?: number | null },
  catalogue: Catalogue,
): Size {
  const { cpus, memoryGb: machineMemory } = machine ?? {
    cpus: HARDWARE_DEFAULTS.cpu,
    memoryGb: HARDWARE_DEFAULTS.memoryGb,
  };
  const { min, max } = catalogue.memoryGbPerCpu;
  const allowed = listCpus(catalogue).filter(
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
  const memoryGb =
    given.memoryGb ?? Math.max(1, Math.ceil(cpu * min), Math.min(wanted, Math.floor(cpu * max)));
  return { cpu, memoryGb };
}

/** @throws AppError 400 for a value outside its list or range, 422 for an invalid combination */
export function checkHardware(hardware: Hardware, catalogue: Catalogue): void {
  const { gpu, gpuCount, cpu, memoryGb, diskGb, region } = hardware;
  const { cpus, regions, memoryGbPerCpu } = catalogue;
  oneOf('gpu', gpu, gpuNames(catalogue));
  oneOf('gpuCount', gpuCount, findGpu(catalogue, gpu)?.counts ?? gpuCounts(catalogue));
  if (isRange(cpus)) within('cpu', cpu, cpus);
  else oneOf('cpu', cpu, cpus);
  oneOf('region', region, regions);
  if (memoryGb < 1) throw invalid('memoryGb', 'must be at least 1');
  within('diskGb', diskGb, DISK_GB);

  if (gpu === NO_GPU && gpuCount > 1)
    throw unprocessable('gpuCount', `must be 1 when gpu is "none" (got ${gpuCount})`);
  if (cpu < gpuCount)
    throw unprocessable('cpu', `must be at least ${gpuCount} with ${gpuCount} GPUs (got ${cpu})`);
  const memory = { min: cpu * memoryGbPerCpu.min, max: cpu * memoryGbPerCpu.max };
  if (!isWithin(memoryGb, memory))
    throw unprocessable(
      'memoryGb',
      `must be from ${Math.max(1, memory.min)} to ${memory.max} with ${cpu} vCPUs (got ${memoryGb})`,
    );
}

function oneOf<T>(field: string, value: unknown, allowed: readonly T[]): void {
  if (!allowed.includes(value as T)) throw invalid(field, `must be one of ${allowed.join(', ')}`);
}

function within(field: string, value: number, range: NumberRange): void {
  if (!isWithin(value, range)) throw invalid(field, `must be from ${range.min} to ${range.max}`);
}

/** The default of ext4: one inode for every 16 KiB. */
const FILES_PER_GIB = 65_536;
/** Removing more files takes minutes; a disk of 256 GiB could have four times as many. */
const MAX_FILES = 4_194_304;

/** Limits for a job's disk: bytes, and files including folders. A GB of the contract is a GiB here. */
export function diskLimits(diskGb: number): { maxBytes: number; maxFiles: number } {
  return { maxBytes: diskGb * 2 ** 30, maxFiles: Math.min(diskGb * FILES_PER_GIB, MAX_FILES) };
}

/** A price of the catalogue now, which a job keeps. A model that the catalogue does not have is free. */
export function costPerHour(
  { gpu, gpuCount, cpu, memoryGb, diskGb }: Hardware,
  catalogue: Catalogue,
): Decimal {
  const { prices } = catalogue;
  return new Decimal(findGpu(catalogue, gpu)?.pricePerHour ?? 0)
    .times(gpuCount)
    .plus(new Decimal(prices.cpu).times(cpu))
    .plus(new Decimal(prices.memoryGb).times(memoryGb))
    .plus(new Decimal(prices.diskGb).times(diskGb))
    .toDecimalPlaces(4);
}

/** Rounds to a hundredth of a cent, so that a minute on a small machine is not free. */
export function costOf(perHour: Decimal.Value, seconds: number): Decimal {
  return new Decimal(perHour).times(seconds).dividedBy(3600).toDecimalPlaces(4);
}
