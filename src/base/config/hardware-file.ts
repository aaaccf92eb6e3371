/**
 * The catalogue of hardware in the YAML file of `LOAM_HARDWARE`. A key that the file has replaces that part of the catalogue of
 * the contract:
 *
 *   currency: EUR
 *   gpus:
 *     - { name: RTX-4090, memory_gb: 24, price_per_hour: "0.42", match: ["GeForce RTX 4090"], counts: [1, 2, 4] }
 *   regions: [lab, us-east-1]
 *   cpus: { min: 1, max: 128 }
 *   memory_gb_per_cpu: { min: 0.25, max: 32 }
 *   prices: { cpu: "0.010", memory_gb: "0.001", disk_gb: "0" }
 */
import { z } from 'zod';
import { type Catalogue, CONTRACT, type GpuModel, REGION_NAME } from '../hardware.ts';
import { describeIssues, type Problem, readYaml } from '../yaml.ts';
import { CurrentFile } from './current-file.ts';
import { gpuModel } from './kinds.ts';

const MAX_GPUS = 64;
const MAX_CPUS = 1_024;

const AMOUNT = 'must be an amount such as "0.42", with at most 8 decimal places';
/** YAML reads an amount without quotes as a number. */
const amount = z
  .union([z.string(), z.number()], AMOUNT)
  .transform(String)
  .pipe(z.string().regex(/^\d{1,5}(\.\d{1,8})?$/, AMOUNT));

const text = z
  .string()
  .regex(/[A-Za-z0-9]/, 'must have letters or digits')
  .max(100);

const gpu = z.strictObject({
  name: gpuModel,
  memory_gb: z.number().min(1).max(65_536).nullable().default(null),
  price_per_hour: amount.default('0'),
  match: z.array(text).max(20).default([]),
  counts: z.array(z.int().min(1).max(64)).min(1).max(64).default([1, 2, 4, 8]),
});

const cpu = z.int().min(1).max(MAX_CPUS);
const perCpu = z.number().min(0.01).max(1_024);
const CPUS = `must be a list such as [1, 2, 4], or { min: 1, max: 128 }, of whole numbers from 1 to ${MAX_CPUS}`;
const ORDERED = { message: 'must have a min that is not above its max' };

const schema = z.strictObject({
  currency: z
    .string()
    .regex(/^\p{L}{1,10}$/u, 'must be 1 to 10 letters, such as EUR')
    .optional(),
  gpus: z.array(gpu).max(MAX_GPUS).optional(),
  regions: z
    .array(
      z.string().regex(REGION_NAME, 'must be lower-case letters, digits and hyphens, such as lab'),
    )
    .min(1)
    .max(100)
    .optional(),
  cpus: z
    .union(
      [
        z.array(cpu).min(1).max(100),
        z.strictObject({ min: cpu, max: cpu }).refine(({ min, max }) => min <= max, CPUS),
      ],
      CPUS,
    )
    .optional(),
  memory_gb_per_cpu: z
    .strictObject({ min: perCpu, max: perCpu })
    .refine(({ min, max }) => min <= max, ORDERED)
    .optional(),
  prices: z
    .strictObject({
      cpu: amount.optional(),
      memory_gb: amount.optional(),
      disk_gb: amount.optional(),
    })
    .optional(),
});

/** The catalogue that is valid now. */
export class CurrentCatalogue extends CurrentFile<Catalogue> {
  /** @throws Error that lists all mistakes of the file, a line for each */
  constructor(path: string | null) {
    const parse = (text: string) => {
      const { catalogue: value, problems } = parseCatalogue(text);
      return { value, problems };
    };
    super(path, parse, CONTRACT);
  }

  /** Takes the models of another server, by which this machine names its GPUs. */
  replaceModels(models: readonly Pick<GpuModel, 'name' | 'match'>[]): void {
    const unpriced = { memoryGb: null, pricePerHour: '0', counts: [] };
    this.value = { ...CONTRACT, gpus: models.map((model) => ({ ...unpriced, ...model })) };
  }
}

/** @returns the catalogue, or null and all mistakes in the order of the text */
export function parseCatalogue(text: string): {
  catalogue: Catalogue | null;
  problems: Problem[];
} {
  const yaml = readYaml(text);
  if (yaml.problems.length > 0) return { catalogue: null, problems: yaml.problems };
  const value = yaml.value ?? {};
  const { data, error } = schema.safeParse(value);
  const problems = [
    ...(error ? describeIssues(yaml, error.issues) : []),
    ...findRepeated(value, yaml.locate),
  ];
  if (!data || problems.length > 0)
    return {
      catalogue: null,
      problems: problems.sort((a, b) => a.line - b.line || a.column - b.column),
    };
  const { prices = {} } = data;
  const catalogue = {
    currency: data.currency ?? CONTRACT.currency,
    gpus:
      data.gpus?.map(({ name, memory_gb, price_per_hour, match, counts }) => ({
        name,
        memoryGb: memory_gb,
        pricePerHour: price_per_hour,
        match,
        counts,
      })) ?? CONTRACT.gpus,
    regions: data.regions ?? CONTRACT.regions,
    cpus: Array.isArray(data.cpus) ? data.cpus.sort((a, b) => a - b) : (data.cpus ?? CONTRACT.cpus),
    memoryGbPerCpu: data.memory_gb_per_cpu ?? CONTRACT.memoryGbPerCpu,
    prices: {
      cpu: prices.cpu ?? CONTRACT.prices.cpu,
      memoryGb: prices.memory_gb ?? CONTRACT.prices.memoryGb,
      diskGb: prices.disk_gb ?? CONTRACT.prices.diskGb,
    },
  };
  return { catalogue, problems: [] };
}

/** Not a rule of the schema, which does not look for repeated names while something else is wrong. */
function findRepeated(value: unknown, locate: ReturnType<typeof readYaml>['locate']): Problem[] {
  const { gpus, regions } = value as { gpus?: unknown; regions?: unknown };
  const namesOf = (list: unknown) =>
    Array.isArray(list) ? list.map((one: { name?: unknown } | null) => one?.name ?? one) : [];
  const lists: [string, unknown[], string[]][] = [
    ['gpus', namesOf(gpus), ['name']],
    ['regions', namesOf(regions), []],
  ];
  return lists.flatMap(([list, names, field]) =>
    names.flatMap((name, i) =>
      typeof name === 'string' && names.indexOf(name) < i
        ? [{ ...locate([list, i, ...field]), message: `${list}[${i}]: ${name} is listed twice` }]
        : [],
    ),
  );
}
