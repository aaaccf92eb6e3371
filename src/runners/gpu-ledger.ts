/**
 * Which attempt has which GPU of a machine: one ledger for all kinds of runner, so that no GPU is given out twice.
 *
 * It is kept in memory. Each runner has written down what its attempts hold, and says so when it is opened, before
 * anything is taken.
 */
import { type GpuInfo, listGpus } from './gpus.ts';

export type GpuLedger = {
  /** Model → how many there are. */
  models: Readonly<Record<string, number>>;
  /** Written down by an earlier server. */
  hold(attempt: string, indices: readonly number[]): void;
  /**
   * Gives so many of a model to an attempt, in place of what it has.
   * @throws Error when they are not free
   */
  take(attempt: string, wish: { gpu: string; gpuCount: number }): GpuInfo[];
  heldBy(attempt: string): GpuInfo[];
  release(attempt: string): void;
  /** How busy its GPUs are, on average; 0 for none. Of another machine this is not known here: 0. */
  percentOf(attempt: string): Promise<number>;
};

/** @param told of another machine, which the operator has said; unset: those of this one */
export async function openGpuLedger(told?: Readonly<Record<string, number>>): Promise<GpuLedger> {
  const all = told ? gpusOf(told) : await listGpus();
  const held = new Map<string, readonly number[]>();
  const models: Record<string, number> = {};
  for (const { model } of all) models[model] = (models[model] ?? 0) + 1;

  const heldBy = (attempt: string) => {
    const indices = held.get(attempt) ?? [];
    return all.filter(({ index }) => indices.includes(index));
  };

  return {
    models,
    hold: (attempt, indices) => void held.set(attempt, indices),
    take(attempt, { gpu, gpuCount }) {
      if (gpu === 'none') return [];
      const others = new Set([...held].flatMap(([id, gpus]) => (id === attempt ? [] : gpus)));
      const free = all.filter(({ model, index }) => model === gpu && !others.has(index));
      if (free.length < gpuCount) throw new Error(`${gpuCount} × ${gpu} are not free`);
      const taken = free.slice(0, gpuCount);
      held.set(
        attempt,
        taken.map(({ index }) => index),
      );
      return taken;
    },
    heldBy,
    release: (attempt) => void held.delete(attempt),
    async percentOf(attempt) {
      if (told) return 0;
      const mine = heldBy(attempt).map(({ uuid }) => uuid);
      if (mine.length === 0) return 0;
      const now = (await listGpus()).filter(({ uuid }) => mine.includes(uuid));
      return now.reduce((sum, { percent }) => sum + percent, 0) / Math.max(1, now.length);
    },
  };
}

/** Numbered as its operator names the models: `nvidia-smi` there must list them in the same order. */
function gpusOf(told: Readonly<Record<string, number>>): GpuInfo[] {
  return Object.entries(told)
    .flatMap(([model, count]) => Array<string>(count).fill(model))
    .map((model, index) => ({ index, model, percent: 0, uuid: String(index), minor: index }));
}
