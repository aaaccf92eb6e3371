/**
 * Assigns the GPUs of a machine to attempts. All kinds of runner share one ledger, so that no GPU is assigned twice. It is in
 * memory only: each runner stores the GPUs of its attempts, and registers them at its start.
 */
import { averageLoad, type GpuInfo, listGpus } from './gpus.ts';

export type GpuLedger = {
  /** Model → number of GPUs. */
  models: Readonly<Record<string, number>>;
  /** Registers GPUs that a previous server process assigned to the attempt. */
  restore(attempt: string, indices: readonly number[]): void;
  /**
   * Assigns free GPUs to an attempt, in place of those that it has.
   * @throws Error when not enough GPUs are free
   */
  take(attempt: string, request: { gpu: string; gpuCount: number }): GpuInfo[];
  assignedTo(attempt: string): GpuInfo[];
  release(attempt: string): void;
  /** Average load of the attempt's GPUs in percent; 0 without GPUs, and null if unknown, as on another machine. */
  percentOf(attempt: string): Promise<number | null>;
};

/** @param configured GPUs of another machine, from the configuration; default: the GPUs of this machine */
export async function openGpuLedger(
  configured?: Readonly<Record<string, number>>,
): Promise<GpuLedger> {
  const all = configured ? toGpuInfos(configured) : await listGpus();
  const assigned = new Map<string, readonly number[]>();
  const models: Record<string, number> = {};
  for (const { model } of all) models[model] = (models[model] ?? 0) + 1;

  const assignedTo = (attempt: string) => {
    const indices = assigned.get(attempt) ?? [];
    return all.filter(({ index }) => indices.includes(index));
  };

  return {
    models,
    restore: (attempt, indices) => void assigned.set(attempt, indices),
    take(attempt, { gpu, gpuCount }) {
      if (gpu === 'none') return [];
      const others = new Set([...assigned].flatMap(([id, gpus]) => (id === attempt ? [] : gpus)));
      const free = all.filter(({ model, index }) => model === gpu && !others.has(index));
      if (free.length < gpuCount) throw new Error(`${gpuCount} × ${gpu} are not free`);
      const taken = free.slice(0, gpuCount);
      assigned.set(
        attempt,
        taken.map(({ index }) => index),
      );
      return taken;
    },
    assignedTo,
    release: (attempt) => void assigned.delete(attempt),
    async percentOf(attempt) {
      const mine = assignedTo(attempt).map(({ uuid }) => uuid);
      if (mine.length === 0) return 0;
      if (configured) return null;
      return averageLoad((await listGpus()).filter(({ uuid }) => mine.includes(uuid)));
    },
  };
}

/** Numbers the GPUs in the order of the configuration, which must be the order of `nvidia-smi` on the machine. */
function toGpuInfos(configured: Readonly<Record<string, number>>): GpuInfo[] {
  return Object.entries(configured)
    .flatMap(([model, count]) => Array<string>(count).fill(model))
    .map((model, index) => ({ index, model, percent: 0, uuid: String(index), minor: index }));
}
