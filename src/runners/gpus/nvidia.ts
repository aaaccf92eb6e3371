/** GPUs of NVIDIA, from nvidia-smi and the driver's files. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Gpu, RunTool } from './gpu.ts';

const FIELDS = ['index', 'name', 'uuid', 'pci.bus_id', 'memory.total'];
/** Drivers before 450 have no MIG, and refuse the whole query. */
const MIG_FIELD = 'mig.mode.current';

/** The first index of an instance. A GPU has at most seven, and a machine fewer GPUs than this. */
const MIG_INDICES = 64;
const MAX_INSTANCES = 8;

/** Devices that every job with a GPU needs in addition to the GPU's own device. */
const CONTROL_DEVICES = ['nvidiactl', 'nvidia-uvm', 'nvidia-uvm-tools', 'nvidia-modeset'];

/** The driver's files. */
const FILES = {
  /** Folder with a subfolder for each GPU, named by its bus address. */
  gpus: '/proc/driver/nvidia/gpus',
  /** The numbers of the devices that give access to instances: `gpu0/gi1/ci0/access 13`. */
  migMinors: '/proc/driver/nvidia-caps/mig-minors',
};

export async function listNvidiaGpus(run: RunTool, files = FILES): Promise<Gpu[]> {
  const query = (fields: readonly string[]) =>
    run('nvidia-smi', [`--query-gpu=${fields.join(',')}`, '--format=csv,noheader,nounits']);
  const listing = (await query([...FIELDS, MIG_FIELD])) ?? (await query(FIELDS)) ?? '';
  const rows = listing
    .trim()
    .split('\n')
    .map((line) => line.split(',').map((field) => field.trim()));
  const isDivided = (row: readonly string[]) => row[5] === 'Enabled';
  const instances = rows.some(isDivided) ? await listInstances(run) : [];
  return rows.flatMap((row): Gpu[] => {
    const [index = '', name = '', uuid = '', bus = '', memory = ''] = row;
    if (!/^\d+$/.test(index)) return [];
    const number = Number(index);
    // The driver's number of the device, as in `/dev/nvidia<minor>`, may differ from the index.
    const minor = readDeviceMinor(bus, files.gpus) ?? number;
    const own = [...CONTROL_DEVICES, `nvidia${minor}`];
    const whole = { vendor: 'nvidia' as const, name };
    if (!isDivided(row))
      return [
        {
          ...whole,
          index: number,
          profile: null,
          memoryGb: toGb(memory),
          uuid,
          devices: own,
        },
      ];
    return instances
      .filter(({ gpu }) => gpu === number)
      .map(({ device, profile, uuid, memory, gi, ci }) => ({
        ...whole,
        index: MIG_INDICES + MAX_INSTANCES * number + device,
        profile,
        memoryGb: toGb(memory),
        uuid,
        devices: [...own, ...listCapabilities(files.migMinors, minor, gi, ci)],
      }));
  });
}

/** @returns the load of each whole GPU in percent; that of an instance is not known */
export async function measureNvidiaGpus(gpus: readonly Gpu[], run: RunTool): Promise<number[]> {
  const uuids = gpus.flatMap(({ uuid, profile }) => (profile === null ? uuid : []));
  if (uuids.length === 0) return [];
  const args = ['--query-gpu=uuid,utilization.gpu', '--format=csv,noheader,nounits'];
  const lines = ((await run('nvidia-smi', args)) ?? '').trim().split('\n');
  return lines.flatMap((line) => {
    const [uuid = '', percent] = line.split(',').map((field) => field.trim());
    return uuids.includes(uuid) ? [Number(percent) || 0] : [];
  });
}

type Instance = {
  /** The index of its GPU, and its number there. */
  gpu: number;
  device: number;
  profile: string;
  uuid: string;
  /** In MiB; empty if it is unknown. */
  memory: string;
  /** The ids of its GPU instance and compute instance; null if they are unknown. */
  gi: number | null;
  ci: number | null;
};

/** `nvidia-smi -L` has profiles and UUIDs of instances, and the XML of `nvidia-smi -q` has their ids and memory. */
async function listInstances(run: RunTool): Promise<Instance[]> {
  const [listing, details] = await Promise.all([
    run('nvidia-smi', ['-L']),
    run('nvidia-smi', ['-q', '-x']),
  ]);
  const gpus = (details ?? '').split(/<gpu id=/).slice(1);
  const instances: Instance[] = [];
  let gpu = -1;
  for (const line of (listing ?? '').split('\n')) {
    gpu = Number(/^GPU (\d+):/.exec(line)?.[1] ?? gpu);
    const [, profile, number, uuid] =
      /^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)/.exec(line) ?? [];
    if (profile === undefined || uuid === undefined) continue;
    const device = Number(number);
    const found = (gpus[gpu] ?? '')
      .split('<mig_device>')
      .slice(1)
      .find((one) => readTag(one, 'index') === device);
    instances.push({
      gpu,
      device,
      // `1g.10gb+me` has the media engines of the GPU.
      profile: profile.replaceAll('+', '-'),
      uuid,
      memory: /<fb_memory_usage>\s*<total>(\d+) MiB/.exec(found ?? '')?.[1] ?? '',
      gi: readTag(found, 'gpu_instance_id'),
      ci: readTag(found, 'compute_instance_id'),
    });
  }
  return instances;
}

function readTag(xml: string | undefined, name: string): number | null {
  const text = new RegExp(`<${name}>(\\d+)</${name}>`).exec(xml ?? '')?.[1];
  return text === undefined ? null : Number(text);
}

/** The devices that give access to an instance. */
function listCapabilities(file: string, minor: number, gi: number | null, ci: number | null) {
  if (!existsSync(file)) return [];
  const text = readFileSync(file, 'utf8');
  return [`gpu${minor}/gi${gi}/access`, `gpu${minor}/gi${gi}/ci${ci}/access`].flatMap((name) => {
    const number = text
      .split('\n')
      .find((line) => line.startsWith(`${name} `))
      ?.split(' ')[1];
    return number === undefined ? [] : [`nvidia-caps/nvidia-cap${number}`];
  });
}

/** nvidia-smi writes the address as `00000000:3B:00.0`, the driver as `0000:3b:00.0`. */
function readDeviceMinor(bus: string, folder: string): number | undefined {
  try {
    const file = join(folder, bus.slice(-12).toLowerCase(), 'information');
    const minor = /^Device Minor:\s*(\d+)/m.exec(readFileSync(file, 'utf8'))?.[1];
    return minor === undefined ? undefined : Number(minor);
  } catch {
    return undefined;
  }
}

/** @param mib a number of MiB; other texts mean that it is unknown */
function toGb(mib: string): number | null {
  return /^\d+$/.test(mib) ? Math.round(Number(mib) / 1024) : null;
}
