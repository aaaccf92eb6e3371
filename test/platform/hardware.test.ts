/** The catalogue of hardware: its file, and the models that names of drivers belong to. */
import { readFileSync, writeFileSync } from 'node:fs';
import { mkdtempDisposable } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { readConfig } from '../../src/base/config/config.ts';
import { parseCatalogue } from '../../src/base/config/hardware-file.ts';
import {
  type Catalogue,
  CONTRACT,
  checkHardware,
  costPerHour,
  defaultsOf,
  findModel,
  listCpus,
  withModels,
} from '../../src/base/hardware.ts';

const LAB = `
currency: EUR
gpus:
  - { name: RTX-4090, memory_gb: 24, price_per_hour: "0.42", match: ["GeForce RTX 4090"], counts: [1, 2, 4] }
  - { name: H200, price_per_hour: 3.1 }
regions: [lab, eu]
cpus: { min: 1, max: 48 }
memory_gb_per_cpu: { min: 0.5, max: 3 }
prices: { cpu: "0.01", disk_gb: "0.00011" }
`;

function parse(text: string): Catalogue {
  const { catalogue, problems } = parseCatalogue(text);
  expect(problems).toEqual([]);
  return catalogue as Catalogue;
}

test('a file replaces the parts of the catalogue that it has', () => {
  expect(parse(LAB)).toEqual({
    currency: 'EUR',
    gpus: [
      {
        name: 'RTX-4090',
        memoryGb: 24,
        pricePerHour: '0.42',
        match: ['GeForce RTX 4090'],
        counts: [1, 2, 4],
      },
      { name: 'H200', memoryGb: null, pricePerHour: '3.1', match: [], counts: [1, 2, 4, 8] },
    ],
    regions: ['lab', 'eu'],
    cpus: { min: 1, max: 48 },
    memoryGbPerCpu: { min: 0.5, max: 3 },
    prices: { cpu: '0.01', memoryGb: '0.003', diskGb: '0.00011' },
  });
  expect(parse('')).toEqual(CONTRACT);
  expect(parse('cpus: [8, 1]').cpus).toEqual([1, 8]);
});

test('the documentation has the catalogue of the contract as a file', () => {
  const page = readFileSync(join(import.meta.dirname, '../../docs/hardware.md'), 'utf8');
  const [, own = '', contract = ''] = page.split(/```yaml\n/).map((part) => part.split('```')[0]);
  expect(parse(contract)).toEqual(CONTRACT);
  expect(parse(own).currency).toBe('EUR');
});

test('ten mistakes give ten messages with line and column', () => {
  const { catalogue, problems } = parseCatalogue(`currency: "12"
gpus:
  - { memory_gb: 24 }
  - { name: none, price_per_hour: "free" }
  - { name: T4, counts: [0], colour: red }
  - { name: T4 }
regions: [lab, eu, lab]
cpus: { min: 8, max: 4 }
memory_gb_per_cpu: { min: 2, max: 1 }
`);
  expect(catalogue).toBeNull();
  expect(problems.map(({ line, column, message }) => `${line}:${column} ${message}`)).toEqual([
    '1:11 currency: must be 1 to 10 letters, such as EUR',
    '3:5 gpus[0].name: is required',
    '4:13 gpus[1].name: must not be none, which means no GPU',
    '4:35 gpus[1].price_per_hour: must be an amount such as "0.42", with at most 8 decimal places',
    '5:26 gpus[2].counts[0]: must be at least 1',
    '5:30 Unknown key "colour" in gpus[2]',
    '6:13 gpus[3]: T4 is listed twice',
    '7:20 regions[2]: lab is listed twice',
    '8:1 cpus: must be a list such as [1, 2, 4], or { min: 1, max: 128 }, of whole numbers from 1 to 1024',
    '9:1 memory_gb_per_cpu: must have a min that is not above its max',
  ]);
  expect(parseCatalogue('gpus: [').problems).toHaveLength(1);
  expect(parseCatalogue('[1]').problems).toMatchObject([{ line: 1, column: 1 }]);
});

test('a start with a wrong file lists all mistakes, and a later wrong file changes nothing', async () => {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'loam-hardware-'));
  const file = join(folder.path, 'hardware.yml');
  const write = (text: string) => writeFileSync(file, text);
  const read = () => readConfig({ LOAM_HARDWARE: file }).hardware;
  expect(read).toThrow(/^LOAM_HARDWARE: .*ENOENT/);
  write('regions: []\ncurrency: 1\n');
  expect(read).toThrow(
    `LOAM_HARDWARE: the file has 2 mistakes:\n  ${file}:1:1: regions: must not be empty\n  ${file}:2:11: currency: must be text`,
  );
  write(LAB);
  const hardware = read();
  write('regions: [');
  expect(() => hardware.reload()).toThrow('the file has 1 mistake');
  expect(hardware.current.regions).toEqual(['lab', 'eu']);
  write('regions: [moon]');
  hardware.reload();
  expect(hardware.current).toEqual({ ...CONTRACT, regions: ['moon'] });
  expect(readConfig({}).hardware.current).toBe(CONTRACT);
});

test('the regions of engines are those of the catalogue', async () => {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'loam-hardware-'));
  const [hardware, clusters] = ['hardware.yml', 'clusters.yml'].map((name) =>
    join(folder.path, name),
  );
  writeFileSync(hardware ?? '', LAB);
  writeFileSync(clusters ?? '', 'engines: [{ kind: process, regions: [lab, moon] }]');
  expect(() => readConfig({ LOAM_HARDWARE: hardware, LOAM_CLUSTERS: clusters })).toThrow(
    /engines\[0\]\.regions\[1\]: must be one of lab, eu$/,
  );
});

test.each([
  ['NVIDIA A100-SXM4-40GB', 'A100-40GB'],
  ['NVIDIA A100-PCIE-40GB', 'A100-40GB'],
  ['A100-SXM4-80GB', 'A100-80GB'],
  ['NVIDIA A100 80GB PCIe', 'A100-80GB'],
  ['NVIDIA H100 80GB HBM3', 'H100-80GB'],
  ['NVIDIA H100 PCIe', 'H100-80GB'],
  ['NVIDIA L4', 'L4'],
  ['Tesla T4', 'T4'],
  ['NVIDIA L40S', undefined],
  ['NVIDIA T400 4GB', undefined],
  ['NVIDIA GH200 480GB', undefined],
])('in the catalogue of the contract, %s is %s', (driverName, model) => {
  expect(findModel(CONTRACT, driverName)?.name).toBe(model);
});

test('the defaults of a catalogue fit together with every GPU', () => {
  const small = parse('cpus: [1, 3]\nmemory_gb_per_cpu: { min: 1, max: 2 }\nregions: [lab]');
  for (const catalogue of [CONTRACT, parse(LAB), small])
    for (const { name } of [...catalogue.gpus, { name: 'none' }])
      checkHardware({ ...defaultsOf(catalogue), gpu: name }, catalogue);
  expect(defaultsOf(CONTRACT)).toMatchObject({ cpu: 8, memoryGb: 32, region: 'us-east-1' });
  expect(defaultsOf(small)).toMatchObject({ cpu: 3, memoryGb: 6, region: 'lab' });
  expect(listCpus(parse(LAB))).toEqual([1, 2, 4, 8, 16, 32, 48]);
});

test('a price is rounded to a hundredth of a cent', () => {
  const hardware = { gpu: 'RTX-4090', gpuCount: 2, cpu: 1, memoryGb: 1, diskGb: 1, region: 'lab' };
  expect(costPerHour(hardware, parse(LAB)).toFixed()).toBe('0.8531');
});

test('models of machines are added without a price, the same object while nothing changes', () => {
  const found = new Map([
    ['T4', 16],
    ['RTX-4090', 3],
  ]);
  const offer = withModels(CONTRACT, found);
  expect(offer.gpus.slice(0, -1)).toEqual(CONTRACT.gpus);
  expect(offer.gpus.at(-1)).toMatchObject({
    name: 'RTX-4090',
    pricePerHour: '0',
    counts: [1, 2, 3],
  });
  expect(withModels(CONTRACT, new Map(found))).toBe(offer);
  expect(withModels(CONTRACT, new Map([['T4', 16]]))).toBe(CONTRACT);
});
