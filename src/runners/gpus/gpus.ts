/**
 * The GPUs of this machine, as the tools of their vendors list them, and the variables and devices that a job needs for its
 * GPUs. NVIDIA was tested on a machine with one H100. AMD, several GPUs and divided GPUs were tested with recorded listings only.
 */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { promisify } from 'node:util';
import { listAmdGpus, measureAmdGpus } from './amd.ts';
import type { Gpu, RunTool } from './gpu.ts';
import { listNvidiaGpus, measureNvidiaGpus } from './nvidia.ts';

const execute = promisify(execFile);

const runTool: RunTool = async (program, args) => {
  try {
    return (await execute(program, args, { timeout: 10_000, maxBuffer: 2 ** 24 })).stdout;
  } catch {
    return null;
  }
};

export async function listGpus(run: RunTool = runTool): Promise<Gpu[]> {
  return (await Promise.all([listNvidiaGpus(run), listAmdGpus(run)])).flat();
}

/** @returns the average load in percent, also that of an idle machine; null if none of them is measured */
export async function measureLoad(gpus: readonly Gpu[]): Promise<number | null> {
  const of = (vendor: Gpu['vendor']) => gpus.filter((gpu) => gpu.vendor === vendor);
  const percents = (
    await Promise.all([
      measureNvidiaGpus(of('nvidia'), runTool),
      measureAmdGpus(of('amd'), runTool),
    ])
  ).flat();
  if (percents.length === 0) return null;
  return percents.reduce((sum, percent) => sum + percent, 0) / percents.length;
}

/**
 * Returns the variables that CUDA and NVIDIA's container tools read. They are also set for jobs without a GPU: where NVIDIA's
 * runtime is the default, an image with `NVIDIA_VISIBLE_DEVICES=all` would otherwise get every GPU.
 */
export function buildGpuVariables(uuids: readonly string[]): Record<string, string> {
  const names = uuids.join(',');
  // For another machine only indices are known. In a container the job's GPUs are numbered from 0.
  const inside = uuids.every((uuid) => /^\d+$/.test(uuid)) ? [...uuids.keys()].join(',') : names;
  return { CUDA_VISIBLE_DEVICES: inside, NVIDIA_VISIBLE_DEVICES: names || 'void' };
}

/**
 * How a job gets its GPUs: variables, the UUIDs for NVIDIA's container tools, and device files. Containers with NVIDIA's GPUs
 * get the device files from these tools, so `devices` are for processes, and `amdDevices` for containers.
 */
export type GpuAccess = {
  env: Record<string, string>;
  nvidiaUuids: string[];
  devices: string[];
  amdDevices: string[];
};

export function resolveGpuAccess(
  gpus: readonly Pick<Gpu, 'vendor' | 'uuid' | 'devices'>[],
): GpuAccess {
  const amd = gpus.filter(({ vendor }) => vendor === 'amd');
  const nvidiaUuids = gpus.flatMap(({ vendor, uuid }) => (vendor === 'nvidia' ? [uuid] : []));
  // Checked for each job, because the driver creates some devices at their first use.
  const devicesOf = (some: typeof gpus) =>
    [...new Set(some.flatMap(({ devices }) => devices))]
      .map((name) => `/dev/${name}`)
      .filter((path) => existsSync(path));
  return {
    env: {
      ...buildGpuVariables(nvidiaUuids),
      ...(amd.length > 0 && { ROCR_VISIBLE_DEVICES: amd.map(({ uuid }) => uuid).join(',') }),
    },
    nvidiaUuids,
    devices: devicesOf(gpus),
    amdDevices: devicesOf(amd),
  };
}
