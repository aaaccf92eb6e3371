/** `loam hardware`, and other hardware on which a waiting job would start sooner. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../support/eventually.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp, type TestApp } from '../support/harness.ts';
import { LoamUser } from '../support/loam-command.ts';
import { submit } from '../support/submit.ts';

const GIB = 2 ** 30;
const runner = fakeRunner({
  images: true,
  machines: [
    { id: 'a', cpus: 64, memoryBytes: 256 * GIB, gpus: { T4: 1, 'RTX-4090': 2 } },
    { id: 'b', cpus: 64, memoryBytes: 256 * GIB, gpus: { T4: 1, L4: 1 }, regions: ['eu-west-1'] },
  ],
});

let app: TestApp;
let ada: Client;
let user: LoamUser;

beforeAll(async () => {
  app = await startApp({ config: { jobSlots: 16 }, overrides: { runner } });
  ada = await app.user('ada');
  user = await LoamUser.open(ada);
  const t4 = { namespace: 'ada', image: 'x', gpu: 'T4', cpu: 2, memoryGb: 4 };
  for (const name of ['first', 'second']) await submit(ada, { ...t4, name, command: 'hold' });
  await eventually(() => expect(runner.running()).toHaveLength(1));
});
afterAll(async () => {
  await user[Symbol.asyncDispose]();
  await app[Symbol.asyncDispose]();
});

type Option = { name: string; [field: string]: unknown };

test('the hardware shows what is free, who waits, and the price', async () => {
  await eventually(async () => {
    const options = JSON.parse(await user.loam(['hardware', '--json']));
    expect(options).toMatchObject({ currency: 'USD', cpuPricePerHour: '0.024' });
    const found = new Map(options.gpus.map((one: Option) => [one.name, one]));
    expect(found.get('T4')).toMatchObject({ free: 1, total: 2, waiting: 1, estimatedWait: null });
    expect(found.get('L4')).toMatchObject({ free: 1, total: 1, waiting: 0, estimatedWait: 0 });
    expect(found.get('RTX-4090')).toMatchObject({ free: 2, total: 2, pricePerHour: '0.00' });
    expect(found.get('H100-80GB')).toMatchObject({ free: 0, total: 0, estimatedWait: null });
    expect(found.get('none')).toMatchObject({ free: null, total: null, estimatedWait: 0 });
  });
  const lines = (await user.loam(['hardware'])).split('\n');
  expect(lines).toContain('L4\t24 GB\t1 of 1\t0\t0\t0.55 USD');
  expect(lines).toContain('RTX-4090\t\t2 of 2\t0\t0\t0.00 USD');
});

test('a waiting job shows where it would start sooner, and at what cost', async () => {
  const { sooner } = await eventually(async () => {
    const shown = JSON.parse(await user.loam(['job', 'second', '--json']));
    expect(shown.sooner).toHaveLength(3);
    return shown;
  });
  // All at once, so the cheapest is the first. Models that no machine has are not among them.
  expect(sooner).toMatchObject([
    { gpu: 'RTX-4090', region: 'US_EAST_1', costPerHour: '0.06' },
    { gpu: 'RTX-4090', region: 'EU_WEST_1', costPerHour: '0.06' },
    { gpu: 'T4', region: 'EU_WEST_1', costPerHour: '0.41' },
  ]);
  expect(await user.loam(['job', 'second'])).toMatch(
    /^sooner\s+1x T4 in eu-west-1: now, 0\.41 per hour$/m,
  );
  expect(JSON.parse(await user.loam(['job', 'first', '--json'])).sooner).toEqual([]);
});

test('jobs of recent times give an estimate of the wait', async () => {
  await eventually(async () => {
    runner.release();
    expect(await app.app.services.db.job.count({ where: { status: 'succeeded' } })).toBe(2);
  });
  const many = {
    namespace: 'ada',
    image: 'x',
    gpu: 'L4',
    cpu: 2,
    memoryGb: 4,
    region: 'EU_WEST_1',
  };
  await submit(ada, { ...many, name: 'past', command: 'true' });
  await submit(ada, { ...many, name: 'now', command: 'sleep 600' });
  await submit(ada, { ...many, name: 'later', command: 'true' });
  await eventually(async () => {
    const options = JSON.parse(await user.loam(['hardware', '--json']));
    const l4 = options.gpus.find(({ name }: Option) => name === 'L4');
    expect(l4).toMatchObject({ free: 0, waiting: 1, estimatedWait: expect.any(Number) });
  }, 30_000);
});

test('the hardware of a namespace includes its own machines', async () => {
  const machine = { id: 'own', cpus: 4, memoryBytes: 4 * GIB, gpus: { B200: 2 }, slots: 4 };
  await app.pool.query(
    `insert into workers (id, runner, machines, heartbeat_at)
     select 'w', 'clusters', jsonb_build_array($1::jsonb || jsonb_build_object('namespaceId', id)), now() + interval '1 hour'
     from namespaces where name = 'ada'`,
    [machine],
  );
  const own = 'B200\t\t2 of 2\t0\t0\t0.00 USD';
  await eventually(async () =>
    expect((await user.loam(['hardware', '--namespace', 'ada'])).split('\n')).toContain(own),
  );
  expect((await user.loam(['hardware'])).split('\n')).not.toContain(own);
});
