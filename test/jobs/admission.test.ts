/** Admission of jobs: exact and shared resources, clusters, regions, and reservations. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  admit,
  type CandidateJob,
  findClaimablePools,
  type HeldCapacity,
  type ResourceRequest,
} from '../../src/jobs/queue/admission.ts';
import type { Machine } from '../../src/runners/runner.ts';
import { shareOf } from '../support/shares.ts';

const GIB = 2 ** 30;

const REGION = 'us-east-1';

function machine(id: string, cpus: number, memoryGb: number, gpus: Machine['gpus'] = {}): Machine {
  return { id, cpus, memoryBytes: memoryGb * GIB, gpus };
}

/** A cluster with nodes of 64 vCPUs and 256 GB. */
function cluster(id: string, maxJobs: number, changes: Partial<Machine> = {}): Machine {
  return { ...machine(id, 64, 256), maxJobs, ...changes };
}

const request = (changes: Partial<ResourceRequest> = {}): ResourceRequest => ({
  gpu: 'none',
  gpuCount: 1,
  cpu: 8,
  memoryGb: 32,
  ...changes,
});

/** A worker that starts all admitted jobs, and ends jobs when the test says so. Each namespace has one queue. */
function worker(machines: Machine[], slots: number, elsewhere: Machine[] = []) {
  const running = new Map<string, HeldCapacity>();
  const waiting: CandidateJob[] = [];
  let reservations: ReadonlyMap<string, string> = new Map();
  let turns = 0;
  const servedAt = new Map<string, number>();
  const isCluster = (id: string) =>
    machines.some((one) => one.id === id && one.maxJobs !== undefined);
  return {
    running,
    isCluster,
    add(id: string, changes: Partial<CandidateJob> = {}, namespaceId = 'ada') {
      waiting.push({ id, namespaceId, region: REGION, ...request(changes) });
    },
    end: (id: string) => running.delete(id),
    /** @returns the ids of started jobs, with the machine if there are several machines */
    step(): string[] {
      const names = [...new Set(waiting.map(({ namespaceId }) => namespaceId))];
      const heldBy = (name: string) =>
        [...running.keys()].filter((id) => id.startsWith(`${name}/`)).length;
      const order = names.sort(
        (a, b) =>
          heldBy(a) - heldBy(b) ||
          (servedAt.get(a) ?? 0) - (servedAt.get(b) ?? 0) ||
          (a < b ? -1 : 1),
      );
      const queues = order.map((namespaceId, rank) => ({
        namespaceId,
        rank,
        held: heldBy(namespaceId),
        jobs: waiting.filter((job) => job.namespaceId === namespaceId),
      }));
      const kept = new Set(reservations.values());
      const reserved = waiting.filter(({ id }) => kept.has(id));
      const held = [...running.values()];
      const slotsFree = slots - held.filter((job) => !isCluster(job.machine)).length;
      const decided = admit({ machines, elsewhere, slots, slotsFree, held, queues, reserved });
      ({ reservations } = decided);
      return decided.admitted.map(({ job, grant }) => {
        waiting.splice(waiting.indexOf(job), 1);
        servedAt.set(job.namespaceId, ++turns);
        running.set(`${job.namespaceId}/${job.id}`, { ...job, machine: grant.machine });
        return machines.length > 1 ? `${job.id}@${grant.machine}` : job.id;
      });
    },
  };
}

test('jobs on a machine get exactly what they request, and no more than it has', () => {
  const w = worker([machine('local', 16, 64)], 10);
  for (const id of ['a', 'b', 'c']) w.add(id);
  expect(w.step()).toEqual(['a', 'b']);
  w.end('ada/a');
  expect(w.step()).toEqual(['c']);
  // Memory counts like CPU.
  const narrow = worker([machine('local', 64, 64)], 10);
  for (const id of ['a', 'b', 'c']) narrow.add(id);
  expect(narrow.step()).toEqual(['a', 'b']);
});

test('a small machine runs as many jobs of the default size as it has slots', () => {
  for (const slots of [1, 3, 4, 7]) {
    const w = worker([machine('local', 2, 20.7)], slots);
    for (let i = 0; i < 10; i++) w.add(`job${i}`);
    expect(w.step()).toHaveLength(slots);
    // It runs no more smaller jobs, although it has the resources that they request.
    const modest = worker([machine('local', 2, 20.7)], slots);
    for (let i = 0; i < 10; i++) modest.add(`job${i}`, { cpu: 2, memoryGb: 16 });
    expect(modest.step()).toHaveLength(slots);
  }
});

test('jobs with shared resources and jobs with exact resources do not use the same capacity', () => {
  const w = worker([machine('local', 16, 128)], 4);
  w.add('shared1', { cpu: 32 });
  w.add('exact', { cpu: 8, memoryGb: 8 });
  w.add('shared2', { cpu: 32 });
  // Each job with shared resources takes a quarter of the sixteen vCPUs: 4 + 8 + 4.
  expect(w.step()).toEqual(['shared1', 'exact', 'shared2']);
  w.add('shared3', { cpu: 32 });
  expect(w.step()).toEqual([]);
  w.end('ada/exact');
  expect(w.step()).toEqual(['shared3']);
});

test('a request is reduced only if no machine has all of it', () => {
  const small = machine('small', 4, 16);
  const large = machine('large', 32, 128);
  const both = worker([small, large], 10);
  both.add('big', { cpu: 16, memoryGb: 64 });
  expect(both.step()).toEqual(['big@large']);
  both.add('next', { cpu: 32, memoryGb: 64 });
  expect(both.step()).toEqual([]);
  const one = worker([small], 10, [large]);
  one.add('big', { cpu: 16, memoryGb: 64 });
  one.add('fits', { cpu: 4, memoryGb: 8 });
  expect(one.step()).toEqual(['fits']);
});

test('a job with an image starts on a machine that runs images, and fails only if no worker runs images', () => {
  const processes = { ...machine('processes', 64, 256), withImage: false };
  const containers = { ...machine('containers', 16, 64), withoutImage: false };
  const away = { ...containers, away: true, cpus: 0, memoryBytes: 0 };
  const plain = request();
  const withImage = { ...plain, image: 'debian:12' };
  const placed = (asked: typeof plain, machines: Machine[], elsewhere: Machine[] = []) => {
    const queues = [
      {
        namespaceId: 'ns',
        held: 0,
        rank: 1,
        jobs: [{ id: 'j', namespaceId: 'ns', region: REGION, ...asked }],
      },
    ];
    const room = { machines, elsewhere, slots: 2, slotsFree: 2, held: [], reserved: [] };
    const { admitted, reservations } = admit({ ...room, queues });
    // A job that waits for another kind of machine makes no reservation here.
    expect(reservations.size).toBe(0);
    return admitted.map(({ grant }) => grant.machine);
  };
  expect(placed(withImage, [processes, containers])).toEqual(['containers']);
  expect(placed(plain, [processes, containers])).toEqual(['processes']);
  expect(placed(withImage, [processes], [containers])).toEqual([]);
  expect(placed(withImage, [processes], [away])).toEqual([]);
  expect(placed(plain, [processes], [containers])).toEqual(['processes']);
  expect(placed(plain, [containers], [processes])).toEqual([]);
  expect(placed(withImage, [processes])).toEqual(['processes']);
  expect(placed(withImage, [processes], [processes])).toEqual(['processes']);
});

test('a large job is left to a larger machine only if that machine runs such jobs', () => {
  const small = machine('small', 8, 32);
  const large = machine('large', 64, 256);
  const big = { cpu: 32, memoryGb: 128 };
  const placed = (image: string | null, elsewhere: Machine) => {
    const one = worker([small], 4, [elsewhere]);
    one.add('big', { ...big, image });
    return one.step();
  };
  expect(placed('debian:12', large)).toEqual([]);
  expect(placed('debian:12', { ...large, withImage: false })).toEqual(['big']);
  expect(placed(null, { ...large, withImage: false })).toEqual([]);
  expect(placed(null, { ...large, withoutImage: false })).toEqual(['big']);
});

test('a job without a GPU prefers a machine without GPUs', () => {
  const w = worker([machine('gpu', 32, 256, { T4: 1 }), machine('plain', 16, 128)], 10);
  for (const id of ['a', 'b', 'c']) w.add(id);
  w.add('g', { gpu: 'T4' });
  expect(w.step()).toEqual(['a@plain', 'b@plain', 'c@gpu', 'g@gpu']);
});

test('small jobs start beside a waiting large job, but not in its reserved capacity', () => {
  const w = worker([machine('local', 16, 256)], 10);
  w.add('first', { cpu: 8, memoryGb: 32 });
  expect(w.step()).toEqual(['first']);
  w.add('big', { cpu: 16, memoryGb: 64 });
  for (let i = 0; i < 20; i++) w.add(`small${i}`, { cpu: 2, memoryGb: 2 }, 'bob');
  // Bob has fewer open attempts than Ada, so he comes first until her job has a reservation.
  const small = w.step();
  expect(small.length).toBeGreaterThan(0);
  for (const id of small.slice(1)) w.end(`bob/${id}`);
  w.end(`bob/${small[0]}`);
  w.step();
  w.end('ada/first');
  for (let i = 0; i < 30 && !w.running.has('ada/big'); i++) {
    for (const id of w.running.keys()) if (id.startsWith('bob/')) w.end(id);
    w.step();
  }
  expect([...w.running.keys()]).toContain('ada/big');
});

test('a job that waits for GPUs reserves GPUs only', () => {
  const w = worker([machine('local', 32, 256, { T4: 2 })], 10);
  w.add('one', { gpu: 'T4' });
  expect(w.step()).toEqual(['one']);
  w.add('both', { gpu: 'T4', gpuCount: 2 });
  w.add('small', { gpu: 'T4' });
  w.add('plain');
  expect(w.step()).toEqual(['plain']);
  w.end('ada/one');
  expect(w.step()).toEqual(['both']);
  w.end('ada/both');
  expect(w.step()).toEqual(['small']);
});

test('an attempt that is being removed keeps its exact resources, but not its share', () => {
  const machines = [machine('local', 16, 64, { T4: 1 })];
  const base = { machines, elsewhere: [], slots: 2, slotsFree: 2, reserved: [] };
  const line = (job: ResourceRequest) => [
    {
      namespaceId: 'ns',
      held: 0,
      rank: 1,
      jobs: [{ id: 'j', namespaceId: 'ns', region: REGION, ...job }],
    },
  ];
  const started = (held: HeldCapacity[], job: ResourceRequest) =>
    admit({ ...base, held, queues: line(job) }).admitted.length;
  const leaving = { machine: 'local', isLeaving: true };
  const exact = { ...request({ cpu: 16, memoryGb: 8 }), ...leaving };
  expect(started([exact], request({ cpu: 2, memoryGb: 1 }))).toBe(0);
  const shared = { ...request({ cpu: 32, memoryGb: 128 }), ...leaving };
  expect(started([shared, { ...shared }, { ...shared }], request())).toBe(1);
  expect(started([{ ...request({ gpu: 'T4' }), ...leaving }], request({ gpu: 'T4' }))).toBe(0);
});

test('a cluster gets as many jobs as it may have, whatever they request, and they use no slots', () => {
  const w = worker([cluster('hpc', 3)], 0);
  for (let i = 0; i < 5; i++) w.add(`job${i}`, { cpu: 64, memoryGb: 256 });
  expect(w.step()).toEqual(['job0', 'job1', 'job2']);
  w.end('ada/job1');
  expect(w.step()).toEqual(['job3']);
  // Two jobs on the slots, one in the cluster.
  const both = worker([machine('local', 64, 256), cluster('hpc', 1)], 2);
  for (let i = 0; i < 5; i++) both.add(`job${i}`, { cpu: 2, memoryGb: 2 });
  expect(both.step()).toEqual(['job0@local', 'job1@local', 'job2@hpc']);
});

test('a job in a cluster may use what it requests, at most the largest node, and shares it with none', () => {
  const queue = (job: ResourceRequest) => [
    {
      namespaceId: 'ns',
      held: 0,
      rank: 1,
      jobs: [{ id: 'j', namespaceId: 'ns', region: REGION, ...job }],
    },
  ];
  const granted = (node: Machine, job: ResourceRequest) => {
    const base = { elsewhere: [], slots: 0, slotsFree: 0, held: [], reserved: [] };
    return admit({ ...base, machines: [node], queues: queue(job) }).admitted[0]?.grant;
  };
  expect(granted(cluster('hpc', 1), request({ cpu: 96, memoryGb: 64 }))).toEqual({
    machine: 'hpc',
    cpus: 64,
    memoryBytes: 64 * GIB,
    shared: false,
  });
  const small = { cpus: 4, memoryBytes: 8 * GIB };
  expect(granted(cluster('hpc', 1, small), request())).toEqual({
    machine: 'hpc',
    cpus: 4,
    memoryBytes: 8 * GIB,
    shared: false,
  });
});

test('a job goes to the first machine in order that has its GPUs, runs its kind and has room', () => {
  const gpus = { T4: 4 };
  const local = machine('local', 16, 64, { T4: 1 });
  const images = cluster('images', 1, { gpus, withoutImage: false });
  const w = worker([images, local, cluster('hpc', 2, { gpus, withImage: false })], 10);
  for (const id of ['a', 'b', 'c', 'd']) w.add(id, { gpu: 'T4' });
  w.add('e', { gpu: 'T4', image: 'debian:12' });
  w.add('two', { gpu: 'T4', gpuCount: 2, image: 'debian:12' });
  expect(w.step()).toEqual(['a@local', 'b@hpc', 'c@hpc', 'e@images']);
  w.end('ada/e');
  expect(w.step()).toEqual(['two@images']);
});

test('the ordinary machines are chosen among themselves by cost, before and after clusters', () => {
  const gpu = machine('gpu', 16, 64, { T4: 1 });
  const plain = machine('plain', 8, 64);
  const started = (machines: Machine[]) => {
    const w = worker(machines, 10);
    for (const id of ['a', 'b', 'c', 'd', 'e']) w.add(id);
    return w.step();
  };
  expect(started([gpu, cluster('hpc', 1), plain])).toEqual([
    ...['a@plain', 'b@gpu', 'c@gpu', 'd@hpc'],
  ]);
  expect(started([cluster('hpc', 1), gpu, plain])).toEqual([
    ...['a@hpc', 'b@plain', 'c@gpu', 'd@gpu'],
  ]);
});

test('a job that waits for a cluster reserves nothing on other machines', () => {
  const w = worker([machine('local', 16, 64), cluster('hpc', 1)], 10);
  for (const id of ['large1', 'large2']) w.add(id, { cpu: 32, memoryGb: 128 });
  for (const id of ['a', 'b']) w.add(id);
  expect(w.step()).toEqual(['large1@hpc', 'a@local', 'b@local']);
  w.end('ada/a');
  w.add('c');
  expect(w.step()).toEqual(['c@local']);
  w.end('ada/large1');
  expect(w.step()).toEqual(['large2@hpc']);
});

test('a reservation stays while all slots are in use and jobs start in a cluster', () => {
  const hpc = cluster('hpc', 1, { cpus: 8, withImage: false });
  const w = worker([machine('local', 16, 256), machine('tiny', 2, 64), hpc], 2);
  const image = 'debian:12';
  w.add('a', { image });
  expect(w.step()).toEqual(['a@local']);
  w.add('big', { cpu: 16, memoryGb: 64, image });
  w.add('small', { cpu: 2, memoryGb: 2, image });
  expect(w.step()).toEqual(['small@tiny']);
  w.add('plain', { cpu: 2, memoryGb: 2 });
  expect(w.step()).toEqual(['plain@hpc']);
  w.end('ada/small');
  // Bob has no jobs yet, so without the reservation his job would be next.
  w.add('b', { image }, 'bob');
  expect(w.step()).toEqual([]);
  w.end('ada/a');
  expect(w.step()).toEqual(['big@local']);
});

test('a job starts only where its region is served', () => {
  const east = machine('east', 16, 64, { T4: 1 });
  const west = cluster('west', 5, { regions: ['us-west-2'], gpus: { T4: 4 } });
  const w = worker([{ ...east, regions: [REGION] }, west], 10);
  w.add('a', { region: 'us-west-2' });
  w.add('b', { region: REGION });
  w.add('c', { region: 'eu-west-1' });
  w.add('d', { region: 'us-west-2', gpu: 'T4', gpuCount: 4 });
  w.add('e', { region: REGION, gpu: 'T4', gpuCount: 2 });
  expect(w.step()).toEqual(['a@west', 'b@east', 'd@west']);
  // A larger machine in another region does not keep the request from being reduced.
  const small = worker([{ ...machine('small', 4, 16), regions: [REGION] }], 2, [west]);
  small.add('large', { cpu: 32, memoryGb: 64 });
  expect(small.step()).toEqual(['large']);
});

test('the queue is read only for the models and regions in which a job could start', () => {
  const machines = [
    { ...machine('east', 16, 64, { T4: 1 }), regions: [REGION] },
    cluster('west', 2, { regions: ['us-west-2'], gpus: { T4: 4, L4: 1 } }),
  ];
  const pools = (slots: number, held: HeldCapacity[]) => {
    const slotsFree = slots - held.filter((job) => job.machine === 'east').length;
    const found = findClaimablePools({ machines, slots, slotsFree, held });
    return { pools: Object.fromEntries(found.pools), jobsFree: found.jobsFree };
  };
  const on = (id: string, changes: Partial<ResourceRequest> = {}) => ({
    ...request(changes),
    machine: id,
  });
  const west = { none: { 'us-west-2': 0 }, T4: { 'us-west-2': 4 }, L4: { 'us-west-2': 1 } };
  expect(pools(2, [])).toEqual({
    pools: {
      none: { [REGION]: 0, 'us-west-2': 0 },
      T4: { [REGION]: 1, 'us-west-2': 4 },
      L4: { 'us-west-2': 1 },
    },
    jobsFree: 4,
  });
  expect(pools(1, [on('east')])).toEqual({ pools: west, jobsFree: 2 });
  const gpuInUse = pools(2, [on('east', { gpu: 'T4' }), on('west'), on('west')]);
  expect(gpuInUse).toEqual({ pools: { none: { [REGION]: 0 } }, jobsFree: 1 });
  // An attempt that is being removed counts in a cluster no more than it has a slot.
  expect(pools(2, [{ ...on('west'), isLeaving: true }]).jobsFree).toBe(4);
  expect(pools(0, [on('west'), on('west')])).toEqual({ pools: {}, jobsFree: 0 });
});

const wishes = fc.record({
  gpu: fc.constantFrom('none', 'none', 'none', 'T4'),
  gpuCount: fc.constantFrom(1, 2),
  cpu: fc.constantFrom(2, 4, 8, 16, 32, 64),
  memoryGb: fc.integer({ min: 1, max: 200 }),
});
const machinesOf = fc
  .array(
    fc.record({
      cpus: fc.integer({ min: 1, max: 40 }),
      memoryGb: fc.integer({ min: 1, max: 150 }),
      T4: fc.nat(4),
      maxJobs: fc.option(fc.integer({ min: 1, max: 3 }), { freq: 3 }),
    }),
    { minLength: 1, maxLength: 3 },
  )
  .map((all) =>
    all.map(({ cpus, memoryGb, T4, maxJobs }, i) => ({
      ...machine(`m${i}`, cpus, memoryGb, { T4 }),
      ...(maxJobs !== null && { maxJobs }),
    })),
  );

function sums(w: ReturnType<typeof worker>, m: Machine, slots: number) {
  const sum = { cpu: 0, memory: 0, gpus: 0 };
  for (const job of w.running.values()) {
    if (job.machine !== m.id) continue;
    sum.cpu += shareOf(job.cpu, m.cpus, slots, 8);
    sum.memory += shareOf(job.memoryGb * GIB, m.memoryBytes, slots, 32 * GIB);
    if (job.gpu !== 'none') sum.gpus += job.gpuCount;
  }
  return sum;
}

test('in random sequences no capacity is given twice and every job runs in the end', () => {
  const jobs = fc.array(fc.tuple(wishes, fc.constantFrom('a', 'b', 'c'), fc.nat(3)), {
    minLength: 1,
    maxLength: 40,
  });
  fc.assert(
    fc.property(machinesOf, fc.integer({ min: 1, max: 6 }), jobs, (machines, slots, all) => {
      const w = worker(machines, slots);
      const able = ({ gpu, gpuCount }: ResourceRequest) =>
        gpu === 'none' || machines.some(({ gpus }) => (gpus.T4 ?? 0) >= gpuCount);
      let left = 0;
      const check = () => {
        const countOn = (all: Machine[]) =>
          [...w.running.values()].filter((job) => all.some(({ id }) => id === job.machine)).length;
        const ordinary = machines.filter(({ maxJobs }) => maxJobs === undefined);
        expect(countOn(ordinary)).toBeLessThanOrEqual(slots);
        for (const m of machines) {
          if (m.maxJobs !== undefined) {
            expect(countOn([m])).toBeLessThanOrEqual(m.maxJobs);
            continue;
          }
          const { cpu, memory, gpus } = sums(w, m, slots);
          expect(cpu).toBeLessThanOrEqual(m.cpus + 1e-9);
          expect(memory).toBeLessThanOrEqual(m.memoryBytes + 1);
          expect(gpus).toBeLessThanOrEqual(m.gpus.T4 ?? 0);
        }
      };
      for (const [i, [job, namespace, ends]] of all.entries()) {
        if (!able(job)) continue;
        w.add(`j${i}`, job, namespace);
        left++;
        w.step();
        check();
        for (const id of [...w.running.keys()].slice(0, ends)) if (w.end(id)) left--;
      }
      for (let round = 0; left > 0 && round < 500; round++) {
        // A pool that is reported as full admits no job.
        const held = [...w.running.values()];
        const slotsFree = slots - held.filter((job) => !w.isCluster(job.machine)).length;
        const open = findClaimablePools({ machines, slots, slotsFree, held });
        const started = w.step();
        expect(started.length).toBeLessThanOrEqual(open.jobsFree);
        if (open.pools.size === 0) expect(started).toEqual([]);
        check();
        const [oldest] = w.running.keys();
        if (oldest && w.end(oldest)) left--;
      }
      expect(left).toBe(0);
    }),
    { numRuns: 300 },
  );
});
