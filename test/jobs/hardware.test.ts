/** Jobs on a server with a catalogue of its own, which changes while it runs. */
import { writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { CurrentCatalogue } from '../../src/base/config/hardware-file.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { job, submit, submitRaw } from '../support/submit.ts';

const catalogue = (price: string) => `
currency: EUR
gpus:
  - { name: RTX-4090, memory_gb: 24, price_per_hour: "${price}" }
  - { name: A100-80GB, price_per_hour: "2" }
regions: [lab, us-east-1]
cpus: { min: 1, max: 64 }
prices: { cpu: "0", memory_gb: "0", disk_gb: "0.001" }
`;

let app: TestApp;
let ada: Client;
let folder: string;
let hardware: CurrentCatalogue;
const runner = fakeRunner({ images: true, gpus: { 'RTX-4090': 2, 'A100-80GB/1g.10gb': 3 } });

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'loam-hardware-'));
  const file = join(folder, 'hardware.yml');
  writeFileSync(file, catalogue('0.42'));
  hardware = new CurrentCatalogue(file);
  app = await startApp({ config: { hardware }, overrides: { runner } });
  ada = await app.user('ada', 'unlimited');
});
afterAll(async () => {
  await app[Symbol.asyncDispose]();
  await rm(folder, { recursive: true });
});

const common = { namespace: 'ada', image: 'x' };

test('a job keeps the price of its creation', async () => {
  const first = { ...common, name: 'first', command: 'hold', gpu: 'RTX-4090', gpuCount: 2 };
  expect(await submit(ada, { ...first, diskGb: 10 })).toMatchObject({ costPerHour: '0.85' });
  writeFileSync(join(folder, 'hardware.yml'), catalogue('5'));
  hardware.reload();
  expect(await submit(ada, { ...first, name: 'second', diskGb: 10 })).toMatchObject({
    costPerHour: '10.01',
  });
  expect(await job(ada, 'ada', 'first')).toMatchObject({ costPerHour: '0.85' });
});

test('REST and GraphQL take and show the names of the catalogue', async () => {
  const path = '/auth/v1/seed/ada/jobs';
  const created = await ada.post(path, {
    name: 'rest',
    command: 'hold',
    image: 'x',
    gpu: 'RTX-4090',
    cpu: 3,
    memory_gb: 3,
    region: 'lab',
  });
  expect([created.status, created.body]).toEqual([
    201,
    expect.objectContaining({ gpu: 'RTX-4090', region: 'lab', cpu: 3 }),
  ]);
  const create = (name: string, gpu: string, region: string) =>
    ada.gql(`mutation { createJob(input: {
      namespace: "ada", name: "${name}", image: "x", command: "hold", gpu: ${gpu}, region: ${region}
    }) { job { gpu region } } }`);
  const jobOf = (gpu: string, region: string) => ({ createJob: { job: { gpu, region } } });
  // As clients wrote them when they were enums.
  expect(await create('literal', 'A100_80GB', 'US_EAST_1')).toEqual(
    jobOf('A100_80GB', 'US_EAST_1'),
  );
  expect(await create('text', '"A100-80GB"', '"us-east-1"')).toEqual(
    jobOf('A100_80GB', 'US_EAST_1'),
  );
  expect(await create('none', 'NONE', 'LAB')).toEqual(jobOf('NONE', 'lab'));
  expect(await create('own', 'RTX_4090', '"lab"')).toEqual(jobOf('RTX-4090', 'lab'));
  // Not in the catalogue, but of a machine.
  expect(await create('part', '"A100-80GB/1g.10gb"', 'lab')).toEqual(
    jobOf('A100-80GB/1g.10gb', 'lab'),
  );
  expect((await ada.get('/auth/v1/ada/job/part')).body).toMatchObject({
    gpu: 'A100-80GB/1g.10gb',
    cost_per_hour: '0.10',
  });
  const list = `{ namespace(name: "ada") { jobs(filter: { gpus: ["RTX-4090"] }) { nodes { name } } } }`;
  const { namespace } = await ada.gql(list);
  expect(namespace.jobs.nodes.map(({ name }: { name: string }) => name).sort()).toEqual([
    'first',
    'own',
    'rest',
    'second',
  ]);
});

test('what nobody offers is refused with the names that exist', async () => {
  const names = 'RTX-4090, A100-80GB, A100-80GB/1g.10gb, none';
  const { status, body } = await ada.post('/auth/v1/seed/ada/jobs', {
    name: 'wrong',
    command: 'hold',
    image: 'x',
    gpu: 'T4',
  });
  expect([status, body.error]).toEqual([
    400,
    expect.objectContaining({ code: 'invalid_request', message: `gpu: must be one of ${names}` }),
  ]);
  for (const [field, change, message] of [
    ['gpu', { gpu: 'T4' }, `must be one of ${names}`],
    ['gpuCount', { gpu: 'A100-80GB/1g.10gb', gpuCount: 4 }, 'must be one of 1, 2, 3'],
    ['cpu', { cpu: 65 }, 'must be from 1 to 64'],
    ['region', { region: 'EU_WEST_1' }, 'must be one of lab, us-east-1'],
  ] as const)
    expect(
      (await submitRaw(ada, { ...common, name: 'wrong', command: 'x', ...change })).errors,
    ).toMatchObject([{ message: `${field}: ${message}`, extensions: { field } }]);
});

test('options, OpenAPI and the schema of files list the catalogue and the models of machines', async () => {
  const { jobOptions } = await ada.gql(`{ jobOptions {
    currency cpus cpuRange { min max } defaultCpu defaultRegion diskGbPricePerHour
    gpus { gpu name pricePerHour counts maxOffered } regions { region name }
  } }`);
  expect(jobOptions).toEqual({
    currency: 'EUR',
    cpus: [1, 2, 4, 8, 16, 32, 64],
    cpuRange: { min: 1, max: 64 },
    defaultCpu: 8,
    defaultRegion: 'US_EAST_1',
    diskGbPricePerHour: '0.001',
    gpus: [
      {
        gpu: 'RTX-4090',
        name: 'RTX-4090',
        pricePerHour: '5.00',
        counts: [1, 2, 4, 8],
        maxOffered: 2,
      },
      {
        gpu: 'A100_80GB',
        name: 'A100-80GB',
        pricePerHour: '2.00',
        counts: [1, 2, 4, 8],
        maxOffered: 0,
      },
      {
        gpu: 'A100-80GB/1g.10gb',
        name: 'A100-80GB/1g.10gb',
        pricePerHour: '0.00',
        counts: [1, 2, 3],
        maxOffered: 3,
      },
      { gpu: 'NONE', name: 'none', pricePerHour: '0.00', counts: [1], maxOffered: null },
    ],
    regions: [
      { region: 'lab', name: 'lab' },
      { region: 'US_EAST_1', name: 'us-east-1' },
    ],
  });
  const gpus = ['RTX-4090', 'A100-80GB', 'A100-80GB/1g.10gb', 'none'];
  const { body: api } = await app.anonymous.get('/openapi.json');
  expect(api.components.schemas.Gpu.enum).toEqual(gpus);
  expect(api.components.schemas.Region.enum).toEqual(['lab', 'us-east-1']);
  const { properties } =
    api.paths['/auth/v1/seed/{namespace}/jobs'].post.requestBody.content['application/json'].schema;
  expect(properties.cpu).toMatchObject({ minimum: 1, maximum: 64, default: 8 });
  expect(properties.gpu_count.enum).toEqual([1, 2, 3, 4, 8]);
  const { body: file } = await app.anonymous.get('/schemas/jobs.json');
  expect(file.properties.defaults.properties.gpu.enum).toEqual(gpus);
});

test('the operator sees jobs that wait for what the catalogue no longer has', async () => {
  await submit(ada, { ...common, name: 'old', command: 'hold', gpu: 'A100-80GB', region: 'lab' });
  writeFileSync(join(folder, 'hardware.yml'), 'gpus: []\nregions: [moon]\n');
  hardware.reload();
  const { queue } = await app.admin.gql('{ queue { gpu region waiting } }');
  expect(queue).toContainEqual({ gpu: 'A100_80GB', region: 'lab', waiting: 1 });
});
