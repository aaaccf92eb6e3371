/** GPUs of AMD, from amd-smi and sysfs. Written from recorded listings of ROCm 6 and 7, not tried on hardware. */
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import type { Gpu, RunTool } from './gpu.ts';

/** Above all indices of NVIDIA. */
const AMD_INDICES = 768;

/** A folder with a subfolder for each device, named by its bus address. */
const PCI_DEVICES = '/sys/bus/pci/devices';

/** ROCm 6 prints a list, ROCm 7 an object with the list. A missing value is the text `N/A`. */
function listOf<T extends z.ZodType>(gpu: T) {
  const list = z.array(gpu);
  return z.union([list, z.object({ gpu_data: list }).transform(({ gpu_data }) => gpu_data)]);
}
const measured = z.object({ value: z.number() }).nullable().catch(null);

const statics = listOf(
  z.object({
    gpu: z.int().min(0),
    asic: z.object({
      market_name: z.string(),
      /** A hexadecimal number, from which ROCm makes the UUID. */
      asic_serial: z
        .string()
        .regex(/^0x[0-9A-Fa-f]+$/)
        .nullable()
        .catch(null),
    }),
    bus: z.object({ bdf: z.string().regex(/^[0-9A-Fa-f:.]+$/) }),
    vram: z.object({ size: measured }).optional(),
  }),
);
const metrics = listOf(
  z.object({ gpu: z.int(), usage: z.object({ gfx_activity: measured }).optional() }),
);

export async function listAmdGpus(run: RunTool, pciDevices = PCI_DEVICES): Promise<Gpu[]> {
  const listing = await run('amd-smi', ['static', '--asic', '--bus', '--vram', '--json']);
  return parse(statics, listing).map(({ gpu, asic, bus, vram }) => {
    const mib = vram?.size?.value;
    return {
      vendor: 'amd',
      index: AMD_INDICES + gpu,
      name: asic.market_name,
      profile: null,
      memoryGb: mib === undefined ? null : Math.round(mib / 1024),
      // ROCm also takes the number of a GPU.
      uuid:
        asic.asic_serial === null
          ? String(gpu)
          : `GPU-${asic.asic_serial.slice(2).toLowerCase().padStart(16, '0')}`,
      devices: ['kfd', ...listRenderNodes(join(pciDevices, bus.bdf.toLowerCase(), 'drm'))],
    };
  });
}

/** @returns the load of each of the GPUs in percent */
export async function measureAmdGpus(gpus: readonly Gpu[], run: RunTool): Promise<number[]> {
  if (gpus.length === 0) return [];
  const listing = await run('amd-smi', ['metric', '--usage', '--json']);
  return parse(metrics, listing).flatMap(({ gpu, usage }) =>
    gpus.some(({ index }) => index === AMD_INDICES + gpu) && usage?.gfx_activity
      ? [usage.gfx_activity.value]
      : [],
  );
}

function listRenderNodes(folder: string): string[] {
  const nodes = existsSync(folder) ? readdirSync(folder) : [];
  return nodes.filter((name) => /^renderD\d+$/.test(name)).map((name) => `dri/${name}`);
}

function parse<T>(schema: z.ZodType<T[]>, text: string | null): T[] {
  try {
    return schema.parse(JSON.parse(text ?? ''));
  } catch {
    return [];
  }
}
