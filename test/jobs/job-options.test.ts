/** The options of jobs must agree with the validation of requests. */
import { Decimal } from 'decimal.js';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { CONTRACT, defaultSize } from '../../src/base/hardware.ts';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { expectRefusal } from '../support/refusal.ts';
import { submitRaw } from '../support/submit.ts';

const OPTIONS = `{ jobOptions {
  gpus { gpu name memoryGb pricePerHour maxOffered counts } gpuCounts defaultGpuCount
  cpus defaultCpu cpuPricePerHour largestMachine { cpus memoryGb }
  memoryGb { min max default } minMemoryGbPerCpu maxMemoryGbPerCpu memoryGbPricePerHour
  diskGb { min max default } regions { region name } defaultRegion
  timeoutMinutes { min max default } retries { min max default }
  name { maxLength pattern } command { maxBytes } image { maxBytes pattern }
  branch { maxBytes } outputPath { maxBytes }
  variables { maxEntries maxBytes namePattern } labels { maxEntries pattern }
} }`;

let app: TestApp;
let ada: Client;
// biome-ignore lint/suspicious/noExplicitAny: an answer.
let options: any;
let count = 0;

beforeAll(async () => {
  // A machine with two T4 on which no job fits.
  const machine = { id: 'm', hostname: 'm', cpus: 0, memoryBytes: 0, gpus: { T4: 2 } };
  const machines = [machine, { ...machine, id: 'n', memoryBytes: 2 ** 29, gpus: {} }];
  app = await startApp({ overrides: { runner: fakeRunner({ machines: machines as never }) } });
  ada = await app.user('ada', 'unlimited');
  options = (await ada.gql(OPTIONS)).jobOptions;
});
afterAll(() => app[Symbol.asyncDispose]());

async function create(more: object) {
  count += 1;
  const input = {
    namespace: 'ada',
    name: `job-${count}`,
    command: 'true',
    image: 'x',
    gpu: 'NONE',
  };
  return submitRaw(ada, { ...input, ...more });
}

async function refused(field: string, more: object) {
  const { errors } = await create(more);
  expect(errors?.[0]?.extensions, JSON.stringify(more).slice(0, 200)).toMatchObject({ field });
}

async function taken(more: object) {
  const { data, errors } = await create(more);
  expect(errors, JSON.stringify(more).slice(0, 200)).toBeUndefined();
  return data.createJob.job;
}

test('the options contain the size of the largest machine', () => {
  expect(options.largestMachine).toEqual({ cpus: 0, memoryGb: 0.5 });
});

test('the suggested size is that of the largest machine, and fits together with what is chosen', () => {
  const size = (
    machine: Parameters<typeof defaultSize>[0],
    given: Parameters<typeof defaultSize>[1] = {},
  ) => defaultSize(machine, given, CONTRACT);
  const laptop = { cpus: 4, memoryGb: 15.5 };
  expect(size(laptop)).toEqual({ cpu: 4, memoryGb: 15 });
  expect(size(laptop, { gpuCount: 8 })).toEqual({ cpu: 8, memoryGb: 15 });
  expect(size(laptop, { memoryGb: 128 })).toEqual({ cpu: 8, memoryGb: 128 });
  expect(size(laptop, { memoryGb: 1 })).toEqual({ cpu: 4, memoryGb: 1 });
  expect(size(laptop, { cpu: 96 })).toEqual({ cpu: 96, memoryGb: 24 });
  expect(size({ cpus: 64, memoryGb: 512 })).toEqual({ cpu: 8, memoryGb: 32 });
  expect(size({ cpus: 1, memoryGb: 0.5 })).toEqual({ cpu: 2, memoryGb: 1 });
  expect(size(null)).toEqual({ cpu: 8, memoryGb: 32 });
});

test('a check of a job finds what its creation would refuse, and creates nothing', async () => {
  const input = { namespace: 'ada', name: 'checked', command: 'true', image: 'x', gpu: 'NONE' };
  const CHECK = 'query ($input: CreateJobInput!) { checkJob(input: $input) { name warnings } }';
  const check = async (more: object) =>
    (await ada.gql(CHECK, { input: { ...input, ...more } })).checkJob;
  const events = () => app.pool.query('select count(*)::int as count from events');
  const before = (await events()).rows;
  expect(await check({ cpu: 2, memoryGb: 4 })).toEqual({
    name: 'checked',
    warnings: [
      'The largest machine for this job has 0 vCPUs and 0.5 GB. The job asks for 2 vCPUs and 4 GB, and gets no more than the machine has.',
    ],
  });
  expect((await check({ gpu: 'L4' })).warnings).toEqual([
    'No worker can run this job now. It needs an L4 in us-east-1: no worker offers it.',
  ]);
  const { errors } = await ada.graphql(CHECK, { input: { ...input, cpu: 3 } });
  expect(errors?.[0]?.extensions).toMatchObject({ field: 'cpu' });
  const setPlan = (plan: string) =>
    app.pool.query(`update namespaces set plan = '${plan}' where name = 'ada'`);
  await setPlan('free');
  const many = await ada.graphql(CHECK, { input: { ...input, array: { size: 10_000 } } });
  await setPlan('unlimited');
  await expectRefusal(many, 'QUOTA_EXCEEDED');
  expect((await ada.get('/ada/job/checked')).status).toBe(404);
  expect((await events()).rows).toEqual(before);
});

test('every GPU has names, memory, price and the number that workers have', () => {
  expect(options.gpus).toEqual([
    {
      gpu: 'A100_40GB',
      name: 'A100-40GB',
      memoryGb: 40,
      pricePerHour: '1.60',
      maxOffered: 0,
      counts: [1, 2, 4, 8],
    },
    {
      gpu: 'A100_80GB',
      name: 'A100-80GB',
      memoryGb: 80,
      pricePerHour: '2.20',
      maxOffered: 0,
      counts: [1, 2, 4, 8],
    },
    {
      gpu: 'H100_80GB',
      name: 'H100-80GB',
      memoryGb: 80,
      pricePerHour: '3.90',
      maxOffered: 0,
      counts: [1, 2, 4, 8],
    },
    {
      gpu: 'L4',
      name: 'L4',
      memoryGb: 24,
      pricePerHour: '0.55',
      maxOffered: 0,
      counts: [1, 2, 4, 8],
    },
    {
      gpu: 'T4',
      name: 'T4',
      memoryGb: 16,
      pricePerHour: '0.35',
      maxOffered: 2,
      counts: [1, 2, 4, 8],
    },
    {
      gpu: 'NONE',
      name: 'none',
      memoryGb: null,
      pricePerHour: '0.00',
      maxOffered: null,
      counts: [1],
    },
  ]);
});

test('the price computed from the options is the price of the job', async () => {
  for (const { gpu, pricePerHour } of options.gpus) {
    const gpuCount = gpu === 'NONE' ? 1 : 4;
    const job = await taken({ gpu, gpuCount, cpu: 16, memoryGb: 100 });
    const price = new Decimal(pricePerHour)
      .times(gpuCount)
      .plus(new Decimal(options.cpuPricePerHour).times(16))
      .plus(new Decimal(options.memoryGbPricePerHour).times(100));
    expect(new Decimal(job.costPerHour).eq(price), gpu).toBe(true);
  }
});

test('omitted fields get the documented defaults', async () => {
  expect(await taken({})).toMatchObject({
    timeoutMinutes: options.timeoutMinutes.default,
    retries: options.retries.default,
    cpu: options.defaultCpu,
    gpuCount: options.defaultGpuCount,
    memoryGb: options.memoryGb.default,
    diskGb: options.diskGb.default,
    region: options.defaultRegion,
  });
});

test('the bounds of every range are accepted, and values beyond them are refused', async () => {
  for (const field of ['timeoutMinutes', 'retries', 'diskGb']) {
    const { min, max } = options[field];
    for (const value of [min, max]) await taken({ [field]: value });
    for (const value of [min - 1, max + 1]) await refused(field, { [field]: value });
  }
  for (const cpu of options.cpus) {
    const min = Math.max(options.memoryGb.min, cpu * options.minMemoryGbPerCpu);
    const max = cpu * options.maxMemoryGbPerCpu;
    for (const memoryGb of [min, max]) await taken({ cpu, memoryGb });
    for (const memoryGb of [min - 1, max + 1]) await refused('memoryGb', { cpu, memoryGb });
  }
  expect(Math.max(...options.cpus) * options.maxMemoryGbPerCpu).toBe(options.memoryGb.max);
  for (const gpuCount of options.gpuCounts) await taken({ gpu: 'T4', gpuCount });
  await refused('gpuCount', { gpu: 'T4', gpuCount: 3 });
  await refused('gpuCount', { gpu: 'NONE', gpuCount: 2 });
  await refused('cpu', { gpu: 'T4', gpuCount: 8, cpu: 4 });
  for (const { region } of options.regions) await taken({ region });
});

test('texts are validated by the documented lengths and patterns', async () => {
  const { name, command, image, branch, outputPath } = options;
  await taken({ name: 'n'.repeat(name.maxLength) });
  await refused('name', { name: 'n'.repeat(name.maxLength + 1) });
  for (const text of ['a b', 'a.b', '', 'a\n', 'ä', 'A_b-9'])
    if (new RegExp(name.pattern).test(text)) await taken({ name: text });
    else await refused('name', { name: text });
  await taken({ command: 'x'.repeat(command.maxBytes) });
  await refused('command', { command: 'x'.repeat(command.maxBytes + 1) });
  // A registry, a path, a tag and a digest, because none of them alone may be this long.
  const rest = `:${'t'.repeat(128)}@sha512:${'0'.repeat(128)}`;
  await taken({ image: `r.io/${'i'.repeat(image.maxBytes - 5 - rest.length)}${rest}` });
  await refused('image', { image: 'i'.repeat(image.maxBytes + 1) });
  for (const text of ['-a', 'a b', 'a:1'])
    if (new RegExp(image.pattern).test(text)) await taken({ image: text });
    else await refused('image', { image: text });
  await refused('image', { image: 'r.io/a/b@sha256:0' });
  await refused('branch', { repo: 'ada/x', branch: 'b'.repeat(branch.maxBytes + 1) });
  await taken({ outputPath: 'o'.repeat(outputPath.maxBytes) });
  await refused('outputPath', { outputPath: 'o'.repeat(outputPath.maxBytes + 1) });
});

test('variables and labels are validated by the documented rules', async () => {
  const { maxEntries, maxBytes, namePattern } = options.variables;
  const named = (n: number) => Array.from({ length: n }, (_, i) => ({ name: `V${i}`, value: '' }));
  for (const field of ['env', 'secrets']) {
    await taken({ [field]: named(maxEntries) });
    await refused(field, { [field]: named(maxEntries + 1) });
    await taken({ [field]: [{ name: 'A', value: 'x'.repeat(maxBytes - 1) }] });
    await refused(field, { [field]: [{ name: 'A', value: 'x'.repeat(maxBytes) }] });
    for (const name of ['1A', 'A-B', '_a1', ''])
      if (new RegExp(namePattern).test(name)) await taken({ [field]: [{ name, value: '' }] });
      else await refused(field, { [field]: [{ name, value: '' }] });
  }
  const labels = (n: number) => Array.from({ length: n }, (_, i) => ({ key: `k${i}`, value: '' }));
  await taken({ labels: labels(options.labels.maxEntries) });
  await refused('labels', { labels: labels(options.labels.maxEntries + 1) });
  for (const value of ['a'.repeat(63), 'a'.repeat(64), '-a', 'a_b.c'])
    if (new RegExp(options.labels.pattern).test(value))
      await taken({ labels: [{ key: 'k', value }] });
    else await refused('labels', { labels: [{ key: 'k', value }] });
});

test('machines of a namespace are options for those who may see its jobs, as validation has it', async () => {
  const eve = await app.user('eve', 'unlimited');
  await app.organization('lab', { ada: 'WRITE' });
  const machine = {
    id: 'own',
    cpus: 64,
    memoryBytes: 512 * 2 ** 30,
    gpus: { 'RTX-4090': 2 },
    slots: 4,
  };
  await app.pool.query(
    `insert into workers (id, runner, machines, heartbeat_at)
     select 'w', 'clusters', jsonb_build_array($1::jsonb || jsonb_build_object('namespaceId', id)), now() + interval '1 hour'
     from namespaces where name = 'lab'`,
    [machine],
  );
  const query = `query ($namespace: String) { jobOptions(namespace: $namespace) {
    gpus { name total } largestMachine { cpus } suggestedSize(gpu: "RTX-4090") { cpu memoryGb } } }`;
  const read = async (client: Client, namespace: string | null) =>
    (await client.gql(query, { namespace })).jobOptions;
  // The availability is read at most every two seconds.
  await eventually(async () =>
    expect((await read(ada, 'lab')).gpus).toContainEqual({ name: 'RTX-4090', total: 2 }),
  );
  expect(await read(ada, 'lab')).toMatchObject({
    largestMachine: { cpus: 64 },
    suggestedSize: { cpu: 8, memoryGb: 32 },
  });
  const everybody = await read(ada, null);
  expect(everybody.gpus.map(({ name }: { name: string }) => name)).not.toContain('RTX-4090');
  expect(everybody.largestMachine.cpus).toBe(0);
  const limited = await ada.withToken({ scopes: ['REPO_READ'] });
  for (const [client, namespace] of [
    [eve, 'lab'],
    [limited, 'lab'],
    [ada, 'ada'],
    [ada, 'none-such'],
  ] as const)
    expect(await read(client, namespace), namespace).toEqual(everybody);

  const input = { name: 'own', image: 'x', command: 'true', gpu: 'RTX-4090' };
  expect((await submitRaw(ada, { ...input, namespace: 'lab' })).errors).toBeUndefined();
  const refusal = await submitRaw(ada, { ...input, namespace: 'ada' });
  expect(refusal.errors?.[0]?.extensions).toMatchObject({ field: 'gpu' });
});

test('the options require a signed-in user', async () => {
  const { body } = await app.anonymous.post('/graphql', { query: OPTIONS });
  expect(body).toMatchObject({
    data: { jobOptions: null },
    errors: [{ extensions: { code: 'AUTHENTICATION_FAILED' } }],
  });
  const limited = await ada.withToken({ scopes: ['REPO_READ'] });
  const { jobOptions } = await limited.gql(OPTIONS);
  expect(jobOptions.gpus).toHaveLength(6);
});
