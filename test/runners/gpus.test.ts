/** GPUs of machines of which only the listings are here. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { mkdtempDisposable } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { parseCatalogue } from '../../src/base/config/hardware-file.ts';
import { CONTRACT, describeEntry, findGpu, modelOf, withModels } from '../../src/base/hardware.ts';
import { listAmdGpus, measureAmdGpus } from '../../src/runners/gpus/amd.ts';
import type { Gpu, RunTool } from '../../src/runners/gpus/gpu.ts';
import { listGpus, resolveGpuAccess } from '../../src/runners/gpus/gpus.ts';
import { openGpuLedger } from '../../src/runners/gpus/ledger.ts';
import { listNvidiaGpus, measureNvidiaGpus } from '../../src/runners/gpus/nvidia.ts';

/** Answers with the outputs whose key is part of the command line; other commands fail. */
function machine(outputs: Record<string, string>): RunTool {
  return async (program, args) => {
    const line = [program, ...args].join(' ');
    return Object.entries(outputs).find(([part]) => line.includes(part))?.[1] ?? null;
  };
}

const nvidia = (...lines: string[]) => machine({ 'mig.mode.current': `${lines.join('\n')}\n` });
const amd = (...gpus: object[]) =>
  machine({ 'amd-smi static': JSON.stringify({ gpu_data: gpus }) });

/** `amd-smi static --asic --bus --vram --json`, shortened. */
const MI300X = (gpu: number, bdf: string) => ({
  gpu,
  asic: {
    market_name: 'AMD Instinct MI300X',
    vendor_id: '0x1002',
    device_id: '0x74a1',
    asic_serial: `0x6F1F0A2B3C4D5E${gpu}F`,
    target_graphics_version: 'gfx942',
  },
  bus: { bdf, max_pcie_width: 16 },
  vram: { type: 'HBM3', vendor: 'N/A', size: { value: 196592, unit: 'MB' } },
});

/** Memory of one GPU in GB, and number, by the model in the catalogue of the contract. */
async function inventory(run: RunTool): Promise<Record<string, string>> {
  const byModel = Map.groupBy(await listGpus(run), (gpu) => modelOf(CONTRACT, gpu));
  return Object.fromEntries(
    [...byModel].map(([model, gpus]) => [model, `${gpus.length} × ${gpus[0]?.memoryGb} GB`]),
  );
}

test.each<[string, RunTool, Record<string, string>]>([
  [
    'four RTX 4090',
    nvidia(
      '0, NVIDIA GeForce RTX 4090, GPU-5e0dab2c-11a1-9a8b-4c3e-6d0b3e1ab1c1, 00000000:01:00.0, 24564, [N/A]',
      '1, NVIDIA GeForce RTX 4090, GPU-1d0ff9e3-7a5c-21d4-93ab-09a1c7e4f8d2, 00000000:25:00.0, 24564, [N/A]',
      '2, NVIDIA GeForce RTX 4090, GPU-8b6a1b44-3a2e-77f0-a5c6-5f9d0c1b2e73, 00000000:41:00.0, 24564, [N/A]',
      '3, NVIDIA GeForce RTX 4090, GPU-c4e5d6f7-90ab-4def-8123-a4b5c6d7e8f4, 00000000:61:00.0, 24564, [N/A]',
    ),
    { 'RTX-4090': '4 × 24 GB' },
  ],
  [
    'RTX PRO 6000',
    nvidia(
      '0, NVIDIA RTX PRO 6000 Blackwell Server Edition, GPU-f1e2d3c4-0001-0002-0003-000000000001, 00000000:C1:00.0, 97887, Disabled',
    ),
    { 'RTX-PRO-6000-Blackwell-Server-Edition': '1 × 96 GB' },
  ],
  [
    'H200',
    nvidia(
      '0, NVIDIA H200, GPU-aa11bb22-0001-0002-0003-000000000001, 00000000:19:00.0, 143771, Disabled',
    ),
    { H200: '1 × 140 GB' },
  ],
  [
    'B200',
    nvidia(
      '0, NVIDIA B200, GPU-aa11bb22-0001-0002-0003-000000000002, 00000000:1B:00.0, 183359, Disabled',
    ),
    { B200: '1 × 179 GB' },
  ],
  [
    'A10',
    nvidia(
      '0, NVIDIA A10, GPU-aa11bb22-0001-0002-0003-000000000003, 00000000:17:00.0, 23028, [N/A]',
    ),
    { A10: '1 × 22 GB' },
  ],
  [
    'A10G',
    nvidia(
      '0, NVIDIA A10G, GPU-aa11bb22-0001-0002-0003-000000000004, 00000000:00:1E.0, 23028, [N/A]',
    ),
    { A10G: '1 × 22 GB' },
  ],
  [
    'L40S',
    nvidia(
      '0, NVIDIA L40S, GPU-aa11bb22-0001-0002-0003-000000000005, 00000000:4A:00.0, 46068, [N/A]',
    ),
    { L40S: '1 × 45 GB' },
  ],
  [
    'V100 with a driver that knows no MIG',
    machine({
      'pci.bus_id,memory.total --format':
        '0, Tesla V100-SXM2-16GB, GPU-aa11bb22-0001-0002-0003-000000000006, 00000000:00:1E.0, 16160\n',
    }),
    { 'V100-SXM2-16GB': '1 × 16 GB' },
  ],
  [
    'A100 and H100 of the contract',
    nvidia(
      '0, NVIDIA A100-SXM4-80GB, GPU-aa11bb22-0001-0002-0003-000000000007, 00000000:07:00.0, 81920, Disabled',
      '1, NVIDIA H100 80GB HBM3, GPU-aa11bb22-0001-0002-0003-000000000008, 00000000:0F:00.0, 81559, Disabled',
    ),
    { 'A100-80GB': '1 × 80 GB', 'H100-80GB': '1 × 80 GB' },
  ],
  [
    'a mixed machine',
    nvidia(
      '0, Tesla T4, GPU-aa11bb22-0001-0002-0003-000000000009, 00000000:3B:00.0, 15360, [N/A]',
      '1, NVIDIA GeForce GTX 1080 Ti, GPU-aa11bb22-0001-0002-0003-00000000000a, 00000000:5E:00.0, 11264, [N/A]',
      '2, NVIDIA TITAN RTX, GPU-aa11bb22-0001-0002-0003-00000000000b, 00000000:86:00.0, 24576, [N/A]',
    ),
    { T4: '1 × 15 GB', 'GTX-1080-Ti': '1 × 11 GB', 'TITAN-RTX': '1 × 24 GB' },
  ],
  [
    'GH200',
    nvidia(
      '0, NVIDIA GH200 480GB, GPU-aa11bb22-0001-0002-0003-00000000000c, 00000009:01:00.0, 97871, Disabled',
    ),
    { 'GH200-480GB': '1 × 96 GB' },
  ],
  [
    'eight MI300X with ROCm 7',
    amd(...Array.from({ length: 8 }, (_, i) => MI300X(i, `0000:${i}5:00.0`))),
    { MI300X: '8 × 192 GB' },
  ],
  [
    'a Radeon with ROCm 6, which does not know everything',
    machine({
      'amd-smi static': JSON.stringify([
        {
          gpu: 0,
          asic: { market_name: 'AMD Radeon RX 7900 XTX', asic_serial: 'N/A' },
          bus: { bdf: '0000:03:00.0' },
          vram: { size: 'N/A' },
        },
      ]),
    }),
    { 'RX-7900-XTX': '1 × null GB' },
  ],
  ['without GPUs', machine({}), {}],
  ['with a driver that does not run', machine({ 'nvidia-smi': 'No devices were found\n' }), {}],
])('a machine %s', async (_, run, expected) => {
  expect(await inventory(run)).toEqual(expected);
});

/** A machine with an A100 in two instances and one that is whole. */
const DIVIDED = machine({
  'mig.mode.current': `0, NVIDIA A100-SXM4-80GB, GPU-9434a402-0d94-4ef8-93d0-0528ee662e9c, 00000000:07:00.0, 81920, Enabled
1, NVIDIA A100-SXM4-80GB, GPU-aa7153bf-c0ba-00ef-cdce-f861c34172f6, 00000000:0F:00.0, 81920, Disabled
`,
  '-L': `GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-9434a402-0d94-4ef8-93d0-0528ee662e9c)
  MIG 3g.40gb     Device  0: (UUID: MIG-e138a708-679d-5075-ab88-ba8e298ec5d3)
  MIG 1g.10gb     Device  1: (UUID: MIG-ae9a37c7-4e38-5a4c-8229-7f07dc126721)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-aa7153bf-c0ba-00ef-cdce-f861c34172f6)
`,
  '-q -x': `<?xml version="1.0" ?>
<nvidia_smi_log><attached_gpus>2</attached_gpus>
<gpu id="00000000:07:00.0"><mig_mode><current_mig>Enabled</current_mig></mig_mode>
<mig_devices>
  <mig_device><index>0</index><gpu_instance_id>1</gpu_instance_id><compute_instance_id>0</compute_instance_id>
    <fb_memory_usage>
      <total>40192 MiB</total>
    </fb_memory_usage></mig_device>
  <mig_device><index>1</index><gpu_instance_id>9</gpu_instance_id><compute_instance_id>0</compute_instance_id>
    <fb_memory_usage>
      <total>9728 MiB</total>
    </fb_memory_usage></mig_device>
</mig_devices>
<fb_memory_usage><total>81920 MiB</total></fb_memory_usage></gpu>
<gpu id="00000000:0F:00.0"><mig_devices>None</mig_devices></gpu></nvidia_smi_log>
`,
});

test('the instances of a divided GPU are models of their own, with their own devices', async () => {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'loam-gpus-'));
  const files = { gpus: join(folder.path, 'gpus'), migMinors: join(folder.path, 'mig-minors') };
  writeFileSync(
    files.migMinors,
    [
      'config 1',
      'monitor 2',
      'gpu3/gi1/access 12',
      'gpu3/gi1/ci0/access 13',
      'gpu3/gi9/access 84',
      'gpu3/gi9/ci0/access 85',
    ].join('\n'),
  );
  // The driver's numbers of devices differ from those of nvidia-smi.
  for (const [bus, minor] of [
    ['0000:07:00.0', 3],
    ['0000:0f:00.0', 0],
  ] as const) {
    mkdirSync(join(files.gpus, bus), { recursive: true });
    writeFileSync(join(files.gpus, bus, 'information'), `Model: x\nDevice Minor: \t ${minor}\n`);
  }
  const gpus = await listNvidiaGpus(DIVIDED, files);
  const control = ['nvidiactl', 'nvidia-uvm', 'nvidia-uvm-tools', 'nvidia-modeset'];
  expect(gpus.map((gpu) => [modelOf(CONTRACT, gpu), gpu])).toEqual([
    [
      'A100-80GB/3g.40gb',
      {
        vendor: 'nvidia',
        index: 64,
        name: 'NVIDIA A100-SXM4-80GB',
        profile: '3g.40gb',
        memoryGb: 39,
        uuid: 'MIG-e138a708-679d-5075-ab88-ba8e298ec5d3',
        devices: [...control, 'nvidia3', 'nvidia-caps/nvidia-cap12', 'nvidia-caps/nvidia-cap13'],
      },
    ],
    [
      'A100-80GB/1g.10gb',
      expect.objectContaining({
        index: 65,
        uuid: 'MIG-ae9a37c7-4e38-5a4c-8229-7f07dc126721',
        devices: [...control, 'nvidia3', 'nvidia-caps/nvidia-cap84', 'nvidia-caps/nvidia-cap85'],
      }),
    ],
    [
      'A100-80GB',
      expect.objectContaining({ index: 1, memoryGb: 80, devices: [...control, 'nvidia0'] }),
    ],
  ]);
  // Nothing measures the load of an instance.
  const load = machine({ utilization: 'GPU-aa7153bf-c0ba-00ef-cdce-f861c34172f6, 37\n' });
  expect(await measureNvidiaGpus(gpus, load)).toEqual([37]);
  expect(await measureNvidiaGpus(gpus.slice(0, 2), load)).toEqual([]);
});

test('a job on an AMD GPU gets its render node, and ROCm names it', async () => {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'loam-gpus-'));
  for (const [bdf, node] of [
    ['0000:c1:00.0', 'renderD128'],
    ['0000:c5:00.0', 'renderD129'],
  ] as const)
    for (const name of ['card1', node])
      mkdirSync(join(folder.path, bdf, 'drm', name), { recursive: true });
  const gpus = await listAmdGpus(
    amd(MI300X(0, '0000:C1:00.0'), MI300X(1, '0000:c5:00.0')),
    folder.path,
  );
  expect(gpus.map(({ index, devices }) => ({ index, devices }))).toEqual([
    { index: 768, devices: ['kfd', 'dri/renderD128'] },
    { index: 769, devices: ['kfd', 'dri/renderD129'] },
  ]);
  // Of the devices those that exist here.
  const access = resolveGpuAccess(
    gpus.slice(1).map((gpu) => ({ ...gpu, devices: ['null', 'dri/none'] })),
  );
  expect(access).toEqual({
    env: {
      CUDA_VISIBLE_DEVICES: '',
      NVIDIA_VISIBLE_DEVICES: 'void',
      ROCR_VISIBLE_DEVICES: 'GPU-6f1f0a2b3c4d5e1f',
    },
    nvidiaUuids: [],
    devices: ['/dev/null'],
    amdDevices: ['/dev/null'],
  });
  const usage = (gpu: number, value: number | string) => ({
    gpu,
    usage: { gfx_activity: { value, unit: '%' } },
  });
  const load = machine({
    'amd-smi metric': JSON.stringify([usage(0, 20), usage(1, 60), usage(2, 'N/A')]),
  });
  expect(await measureAmdGpus(gpus.slice(1), load)).toEqual([60]);
  expect(await measureAmdGpus([], load)).toEqual([]);
});

test.each([
  [{ name: 'NVIDIA GeForce RTX 4090', profile: null, memoryGb: 24 }, 'RTX-4090'],
  [{ name: 'NVIDIA A100-SXM4-80GB', profile: '1g.10gb', memoryGb: 10 }, 'A100-80GB/1g.10gb'],
  [{ name: 'AMD Radeon Graphics', profile: null, memoryGb: null }, 'GPU'],
])('the entry that the log shows for %j lists it as %s', (gpu, model) => {
  expect(modelOf(CONTRACT, gpu)).toBe(model);
  const { catalogue } = parseCatalogue(`gpus:\n  ${describeEntry(model, gpu)}\n`);
  expect(findGpu(catalogue ?? CONTRACT, model)).toMatchObject({ memoryGb: gpu.memoryGb });
  if (!gpu.profile) expect(modelOf(catalogue ?? CONTRACT, gpu)).toBe(model);
  // A model that a machine has can be requested under the same name.
  expect(findGpu(withModels(CONTRACT, new Map([[model, 1]])), model)).toBeDefined();
});

test('GPUs get their new name with the catalogue, but not while a job has them', async () => {
  const hardware = { current: CONTRACT };
  const ledger = await openGpuLedger({ configured: { T4: 2 }, hardware });
  expect(ledger.models).toEqual({ T4: 2 });
  // As read from the folder of an attempt that a former process started under a former name.
  ledger.restore('old', [1], 'Tesla-T4');
  expect(ledger.models).toEqual({ T4: 1, 'Tesla-T4': 1 });
  expect(() => ledger.take('new', { gpu: 'T4', gpuCount: 2 })).toThrow('2 × T4 are not free');
  ledger.release('old');
  expect(ledger.take('new', { gpu: 'T4', gpuCount: 2 }).map(({ index }: Gpu) => index)).toEqual([
    0, 1,
  ]);
});
