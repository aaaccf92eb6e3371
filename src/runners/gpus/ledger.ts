/**
 * Assigns the GPUs of a machine to attempts. All kinds of runner share one ledger, so that no GPU is assigned twice. It is in
 * memory only: each runner stores the GPUs of its attempts, and registers them at its start.
 *
 * The catalogue names the models of the GPUs, and may change. A GPU keeps its name while an attempt has it, because the attempt
 * counts as a user of that model.
 */
import { type Catalogue, CONTRACT, describeEntry, findGpu, modelOf } from '../../base/hardware.ts';
import type { Logger } from '../../base/log.ts';
import type { Gpu } from './gpu.ts';
import { listGpus, measureLoad } from './gpus.ts';

export type GpuLedger = {
  /** Model → number of GPUs. */
  readonly models: Readonly<Record<string, number>>;
  /** Registers GPUs that a previous server process assigned to the attempt. @param gpu the model; unset: as they are called now */
  restore(attempt: string, indices: readonly number[], gpu?: string): void;
  /**
   * Assigns free GPUs to an attempt, in place of those that it has.
   * @throws Error when not enough GPUs are free
   */
  take(attempt: string, request: { gpu: string; gpuCount: number }): Gpu[];
  assignedTo(attempt: string): Gpu[];
  release(attempt: string): void;
  /** Average load of the attempt's GPUs in percent; 0 without GPUs, and null if unknown, as on another machine. */
  percentOf(attempt: string): Promise<number | null>;
};

type Assignment = { indices: readonly number[]; gpu?: string | undefined };

type Options = {
  /** GPUs of another machine, from the configuration: model → number; unset: the GPUs of this machine. */
  configured?: Readonly<Record<string, number>>;
  /** Default: the catalogue of the contract. */
  hardware?: { readonly current: Catalogue };
  /** The ledger logs one line for each model that is not in the catalogue. Default: it logs nothing. */
  log?: Logger;
};

export async function openGpuLedger({
  configured,
  hardware = { current: CONTRACT },
  log,
}: Options = {}): Promise<GpuLedger> {
  const all = configured ? toGpus(configured) : await listGpus();
  const modelNow = (gpu: Gpu) => (configured ? gpu.name : modelOf(hardware.current, gpu));
  const assigned = new Map<string, Assignment>();
  if (!configured && log) reportUnlisted(all, hardware.current, log);

  const modelsByIndex = (): Map<number, string> => {
    const models = new Map(all.map((gpu) => [gpu.index, modelNow(gpu)]));
    for (const { indices, gpu } of assigned.values())
      if (gpu !== undefined) for (const index of indices) models.set(index, gpu);
    return models;
  };

  const assignedTo = (attempt: string) => {
    const { indices = [] } = assigned.get(attempt) ?? {};
    return all.filter(({ index }) => indices.includes(index));
  };

  return {
    get models() {
      const models: Record<string, number> = {};
      for (const model of modelsByIndex().values()) models[model] = (models[model] ?? 0) + 1;
      return models;
    },
    restore: (attempt, indices, gpu) => void assigned.set(attempt, { indices, gpu }),
    take(attempt, { gpu, gpuCount }) {
      if (gpu === 'none') return [];
      assigned.delete(attempt);
      const used = new Set([...assigned.values()].flatMap(({ indices }) => indices));
      const models = modelsByIndex();
      const free = all.filter(({ index }) => models.get(index) === gpu && !used.has(index));
      if (free.length < gpuCount) throw new Error(`${gpuCount} × ${gpu} are not free`);
      const taken = free.slice(0, gpuCount);
      assigned.set(attempt, { indices: taken.map(({ index }) => index), gpu });
      return taken;
    },
    assignedTo,
    release: (attempt) => void assigned.delete(attempt),
    async percentOf(attempt) {
      const mine = assignedTo(attempt);
      if (mine.length === 0) return 0;
      return configured ? null : measureLoad(mine);
    },
  };
}

/** Numbers the GPUs in the order of the configuration, which must be the order of `nvidia-smi` on the machine. */
function toGpus(configured: Readonly<Record<string, number>>): Gpu[] {
  return Object.entries(configured)
    .flatMap(([model, count]) => Array<string>(count).fill(model))
    .map((name, index) => ({
      vendor: 'nvidia',
      index,
      name,
      profile: null,
      memoryGb: null,
      uuid: String(index),
      devices: [],
    }));
}

function reportUnlisted(all: readonly Gpu[], catalogue: Catalogue, log: Logger): void {
  const unlisted = Map.groupBy(all, (gpu) => modelOf(catalogue, gpu));
  for (const [model, [first]] of unlisted)
    if (first && !findGpu(catalogue, model))
      log.info(
        `The catalogue of hardware does not have ${first.name}${first.profile ? ` MIG ${first.profile}` : ''}. Jobs can request it as ${model}, without a price. An entry for gpus in LOAM_HARDWARE: ${describeEntry(model, first)}`,
      );
}
