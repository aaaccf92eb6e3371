/** What there is to choose from when a job is made, with prices and rules, so that a form knows them beforehand. */

import type pg from 'pg';
import { GPU_MODELS, GPUS, type Gpu } from '../base/hardware.ts';
import { demandAccount, type Viewer } from '../identity/permissions.ts';
import { advertisedMachines } from './worker-capacity.ts';

export type GpuOption = {
  gpu: Gpu;
  memoryGb: number | null;
  pricePerHour: string;
  /** The most of them that one machine of a worker has; null where no GPU is asked for. */
  maxOffered: number | null;
};

/** Who is signed in may know. @throws AppError 401 */
export function demandOptions(viewer: Viewer): void {
  demandAccount(viewer);
}

export type MachineSize = { cpus: number; memoryGb: number };

/** Of the machines of workers that are alive, the one with the most vCPUs, and of equal ones the most memory. */
export async function largestMachine(services: { pool: pg.Pool }): Promise<MachineSize | null> {
  const machines = (await advertisedMachines(services)).filter(({ away }) => !away);
  const [largest] = machines.toSorted((a, b) => b.cpus - a.cpus || b.memoryBytes - a.memoryBytes);
  return largest ? { cpus: largest.cpus, memoryGb: largest.memoryBytes / 2 ** 30 } : null;
}

/** The models in the order of the contract, with what the workers that are alive have of them. */
export async function gpuOptions(services: { pool: pg.Pool }): Promise<GpuOption[]> {
  const machines = await advertisedMachines(services);
  return GPUS.map((gpu) => {
    const { memoryGb, pricePerHour } = GPU_MODELS[gpu];
    if (gpu === 'none') return { gpu, pricePerHour, memoryGb: null, maxOffered: null };
    const maxOffered = Math.max(0, ...machines.map(({ gpus }) => gpus[gpu] ?? 0));
    return { gpu, pricePerHour, memoryGb, maxOffered };
  });
}
