/**
 * Lists the GPUs of this machine, from nvidia-smi and NVIDIA's driver, and returns the variables and devices that a job needs
 * for its GPUs. Tested on a machine with one H100, and with recorded listings of several GPUs.
 */
import { execFile } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);

/** Name in nvidia-smi → model name in the API. */
const MODELS: [RegExp, string][] = [
  [/A100.*40GB/i, 'A100-40GB'],
  [/A100.*80GB/i, 'A100-80GB'],
  [/H100/i, 'H100-80GB'],
  [/\bL4\b/i, 'L4'],
  [/\bT4\b/i, 'T4'],
];

export type GpuInfo = {
  /** The number in nvidia-smi, in the order of bus addresses. */
  index: number;
  model: string;
  percent: number;
  /** `GPU-…`; also identifies the GPU in a job that sees only some GPUs and numbers them from 0. */
  uuid: string;
  /** The driver's number, as in `/dev/nvidia<minor>`. It may differ from the index. */
  minor: number;
};

const QUERY = 'index,name,utilization.gpu,uuid,pci.bus_id';
const DRIVER = '/proc/driver/nvidia/gpus';

/** Devices that every job with a GPU needs in addition to the GPU's own device. */
const CONTROL_DEVICES = ['nvidiactl', 'nvidia-uvm', 'nvidia-uvm-tools', 'nvidia-modeset'];

/** GPUs of known models; empty where there is no nvidia-smi. */
export async function listGpus(): Promise<GpuInfo[]> {
  try {
    const args = [`--query-gpu=${QUERY}`, '--format=csv,noheader,nounits'];
    const { stdout } = await run('nvidia-smi', args, { timeout: 10_000 });
    return parseGpus(stdout, DRIVER);
  } catch {
    return [];
  }
}

/** @returns null without GPUs, as when nvidia-smi fails */
export function averageLoad(gpus: readonly Pick<GpuInfo, 'percent'>[]): number | null {
  if (gpus.length === 0) return null;
  return gpus.reduce((sum, { percent }) => sum + percent, 0) / gpus.length;
}

/**
 * @param listing output of nvidia-smi
 * @param driver folder with a subfolder for each GPU, named by its bus address
 */
export function parseGpus(listing: string, driver: string): GpuInfo[] {
  return listing
    .trim()
    .split('\n')
    .flatMap((line) => {
      const [index, name = '', percent, uuid = '', bus = ''] = line.split(',').map((p) => p.trim());
      const model = MODELS.find(([pattern]) => pattern.test(name))?.[1];
      if (!model) return [];
      const number = Number(index);
      const minor = readDeviceMinor(bus, driver) ?? number;
      return [{ index: number, model, percent: Number(percent) || 0, uuid, minor }];
    });
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

/** Returns the variables for these GPUs, and those of their devices that exist. */
export function resolveGpuAccess(gpus: readonly GpuInfo[]): {
  env: Record<string, string>;
  devices: string[];
} {
  const env = buildGpuVariables(gpus.map(({ uuid }) => uuid));
  if (gpus.length === 0) return { env, devices: [] };
  const names = [...CONTROL_DEVICES, ...gpus.map(({ minor }) => `nvidia${minor}`)];
  return { env, devices: names.map((name) => `/dev/${name}`).filter((path) => existsSync(path)) };
}

/** nvidia-smi writes the address as `00000000:3B:00.0`, the driver as `0000:3b:00.0`. */
function readDeviceMinor(bus: string, driver: string): number | undefined {
  try {
    const folder = join(driver, bus.slice(-12).toLowerCase());
    const text = readFileSync(join(folder, 'information'), 'utf8');
    const minor = /^Device Minor:\s*(\d+)/m.exec(text)?.[1];
    return minor === undefined ? undefined : Number(minor);
  } catch {
    return undefined;
  }
}
