/** The queue under load: counts are right, no machine is overcommitted, no job starves. */
import pg from 'pg';
import { expect, test, vi } from 'vitest';
import { newId } from '../../src/base/ids.ts';
import { createCheckout, createInputReader } from '../../src/jobs/attempts/checkouts.ts';
import { startWorker, type Worker } from '../../src/jobs/attempts/worker.ts';
import { createPeerWorkers } from '../../src/jobs/queue/peer-workers.ts';
import { listAdvertisedMachines, runsImages } from '../../src/jobs/queue/worker-capacity.ts';
import { commitMove } from '../../src/jobs/record/state.ts';
import { LOCAL_MACHINE, type Machine, type Runner } from '../../src/runners/runner.ts';
import { eventually } from '../support/eventually.ts';
import { type FakeRunner, fakeRunner } from '../support/fake-runner.ts';
import { type Client, startApp } from '../support/harness.ts';
import { shareOf } from '../support/shares.ts';
import { cancel, job, until } from '../support/submit.ts';

const GIB = 2 ** 30;
const SLOTS = 4;

/** The rows of `queue_shares` and `queue_lines` that differ from a count of the jobs, in one snapshot. */
const MISCOUNTED = `
  with held as (
    select namespace_id, count(*) as held from jobs where attempt_id is not null group by 1
  ), lines as (
    select namespace_id, gpu, region, count(*) as waiting, min(id) as first from jobs
    where status = 'queued' and attempt_id is null group by 1, 2, 3
  )
  select namespace_id, 'held' as what from held full join queue_shares s using (namespace_id)
  where coalesce(held.held, 0) <> coalesce(s.held, 0)
  union all
  select namespace_id, 'line' from lines full join queue_lines l using (namespace_id, gpu, region)
    left join queue_shares s using (namespace_id)
  where coalesce(lines.waiting, 0) <> coalesce(l.waiting, 0) or l.open <> (l.waiting > 0)
    or lines.first < l.head or (l.open and (l.held, l.served_at) <> (s.held, s.served_at))`;

async function insertJob(pool: pg.Pool, job: Record<string, unknown>): Promise<string> {
  const row = {
    id: newId('job'),
    gpu: 'none',
    gpu_count: 1,
    cpu: 8,
    memory_gb: 32,
    disk_gb: 1,
    region: 'us-east-1',
    timeout_minutes: 5,
    retries: 0,
    cost_per_hour: 0,
    next_seq: 2,
    ...job,
  };
  const columns = Object.keys(row);
  const places = columns.map((_, i) => `$${i + 1}`);
  await pool.query(`insert into jobs (name, ${columns}) values ($1, ${places})`, [
    ...Object.values(row),
  ]);
  await pool.query(`select pg_notify('loam', 'queue')`);
  return row.id;
}

/** Several workers on one database; the server of the app claims no jobs. */
async function withWorkers() {
  const app = await startApp({ config: { jobSlots: 0 }, overrides: { runner: fakeRunner() } });
  const { services } = app.app;
  const namespaces = await Promise.all(
    ['ada', 'bob', 'cleo'].map(async (name) => {
      await app.user(name);
      return (await services.db.namespace.findUniqueOrThrow({ where: { name } })).id;
    }),
  );
  const start = (id: string, runner: Runner) => {
    const members = { ...services.cluster.members, id };
    const deps = {
      ...services,
      db: services.db as Parameters<typeof startWorker>[0]['db'],
      config: { ...services.config, jobSlots: SLOTS },
      cluster: { ...services.cluster, members },
      checkout: createCheckout(services),
      readInput: createInputReader(services),
      runner,
    };
    return startWorker(deps, { pauses: { firstMs: 5, longestMs: 50 } });
  };
  // A pool of their own, so that a test can end only connections of the workers.
  const pool = new pg.Pool({ ...services.pool.options, max: 1 });
  return {
    services,
    pool,
    namespaces,
    start,
    async [Symbol.asyncDispose]() {
      await pool.end();
      await app[Symbol.asyncDispose]();
    },
  };
}

/** Checks at every start of an attempt that the machine is not overcommitted. */
function watched(fake: FakeRunner, machine: Machine, problems: string[]): Runner {
  return {
    ...fake,
    async start(handle, mayBegin) {
      const begun = await fake.start(handle, mayBegin);
      const sum = { cpu: 0, memory: 0, gpus: 0 };
      for (const { hardware } of fake.running()) {
        const { cpu, memoryGb, gpu, gpuCount } = hardware;
        sum.cpu += shareOf(cpu, machine.cpus, SLOTS, 8);
        sum.memory += shareOf(memoryGb * GIB, machine.memoryBytes, SLOTS, 32 * GIB);
        if (gpu !== 'none') sum.gpus += gpuCount;
      }
      if (fake.running().length > SLOTS) problems.push(`${fake.running().length} run`);
      if (sum.cpu > machine.cpus + 1e-9 || sum.memory > machine.memoryBytes + 1)
        problems.push(JSON.stringify(sum));
      if (sum.gpus > (machine.gpus.T4 ?? 0)) problems.push(`${sum.gpus} GPUs`);
      return begun;
    },
  };
}

/** Pseudo-random, so that failures are reproducible. */
function random(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fffffff;
    return (state >>> 8) % below;
  };
}

test('counts are right and no machine is overcommitted when workers and statements are interrupted', async () => {
  await using made = await withWorkers();
  const { pool, namespaces, start } = made;
  const problems: string[] = [];
  const pick = random(11);
  const machines: Machine[] = [
    { id: LOCAL_MACHINE, cpus: 8, memoryBytes: 64 * GIB, gpus: { T4: 2 } },
    { id: LOCAL_MACHINE, cpus: 2, memoryBytes: 20 * GIB, gpus: {} },
  ];
  const runners = machines.map((machine) =>
    watched(fakeRunner({ machines: [machine], graceMs: 20 }), machine, problems),
  );
  const workers: Worker[] = [];
  const startOne = async (i: number) => {
    workers[i] = await start(`worker${i}`, runners[i] as Runner);
  };
  const stop = async (i: number) => workers[i]?.[Symbol.asyncDispose]();
  await startOne(0);
  await startOne(1);
  const recount = async () => {
    const { rows } = await pool.query(MISCOUNTED);
    expect(rows).toEqual([]);
  };

  const commands = ['exit 0', 'exit 1', 'sleep 0.05', 'sleep 0.2', 'lose', 'unstartable'];
  const ids: string[] = [];
  for (let i = 0; i < 70; i++) {
    const gpu = pick(5) === 0 ? 'T4' : 'none';
    const job = {
      namespace_id: namespaces[pick(3)],
      command: commands[pick(commands.length)],
      gpu,
      gpu_count: gpu === 'none' ? 1 : 1 + pick(2),
      cpu: [2, 4, 8, 16][pick(4)],
      memory_gb: [1, 8, 32, 100][pick(4)],
      retries: pick(4) === 0 ? 1 : 0,
      region: ['us-east-1', 'eu-west-1'][pick(2)],
    };
    ids.push(await insertJob(pool, job));
    if (pick(6) === 0)
      await pool.query(
        `update jobs set status = 'cancelled', attempt_id = null, completed_at = now()
         where id = $1 and status in ('queued', 'running')`,
        [ids[pick(ids.length)]],
      );
    // In the middle of a transaction, which is rolled back. (Prisma waits 15 s if the connection has ended.)
    if (pick(3) === 0)
      await pool.query(`select pg_cancel_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and state = 'active'
          and backend_type = 'client backend'`);
    if (pick(25) === 0) {
      const i = pick(2);
      await stop(i);
      await startOne(i);
    }
    if (i % 10 === 0) await recount();
  }
  await eventually(async () => {
    const { rows } = await pool.query(
      `select id, status, cpu, gpu, progress from jobs where status in ('queued', 'running')`,
    );
    expect(rows).toEqual([]);
  });
  await recount();
  expect(problems).toEqual([]);
  const { rows } = await pool.query('select sum(held)::int as held from queue_shares');
  expect(rows).toEqual([{ held: 0 }]);
  await stop(0);
  await stop(1);
});

test('a large job starts although its namespace has open attempts and small jobs keep arriving', async () => {
  await using made = await withWorkers();
  const { pool, namespaces, start } = made;
  const [ada, bob] = namespaces;
  const machine = { id: LOCAL_MACHINE, cpus: 8, memoryBytes: 512 * GIB, gpus: { T4: 1 } };
  const runner = fakeRunner({ machines: [machine] });
  const small = { namespace_id: bob, cpu: 2, memory_gb: 2, command: 'sleep 0.05' };
  for (let i = 0; i < 12; i++) await insertJob(pool, small);
  // Ada always has an open attempt, so Bob comes first whenever he has none.
  const hold = { namespace_id: ada, cpu: 2, memory_gb: 2, gpu: 'T4', command: 'sleep 600' };
  const held = await insertJob(pool, hold);
  await using _worker = await start('one', runner);
  await eventually(() =>
    expect(runner.running().some(({ env }) => env.JOB_ID === held)).toBe(true),
  );
  const big = await insertJob(pool, {
    namespace_id: ada,
    cpu: 4,
    memory_gb: 64,
    command: 'exit 0',
  });
  const rank = () => runner.started.findIndex(({ env }) => env.JOB_ID === big);
  while (rank() < 0 && runner.started.length < 100) {
    await insertJob(pool, small);
    await insertJob(pool, small);
  }
  await eventually(() => expect(rank()).toBeGreaterThan(0));
  await pool.query(
    `update jobs set status = 'cancelled', attempt_id = null where status in ('queued', 'running')`,
  );
  await pool.query(`select pg_notify('loam', $1)`, [`job:${held}/status`]);
});

test('a worker that has drained the queue makes no claim at the end of a job; a job that waits for a GPU gets it at once', async () => {
  await using made = await withWorkers();
  const { pool, namespaces, services, start } = made;
  const { bus } = services;
  // Notifications within the worker; those of the database arrive in another way.
  const told = vi.spyOn(bus, 'notify');
  const asked = () => told.mock.calls.filter(([topic]) => topic === 'queue').length;
  let isClaiming = false;
  const wakes = bus.wakes.bind(bus);
  vi.spyOn(bus, 'wakes').mockImplementation(async function* (topics, ...more) {
    for await (const why of wakes(topics, ...more)) {
      if (topics === 'queue') isClaiming = true;
      yield why;
      if (topics === 'queue') isClaiming = false;
    }
  });
  const machine = { id: LOCAL_MACHINE, cpus: 64, memoryBytes: 512 * GIB, gpus: { T4: 1 } };
  const runner = fakeRunner({ machines: [machine] });
  const { remove } = runner;
  /** Job → number of claims requested when it was removed; null if a claim was running, which notes the free capacity. */
  const ends = new Map<string | undefined, number | null>();
  vi.spyOn(runner, 'remove').mockImplementation(async (handle) => {
    const id = runner.started.find((spec) => spec.id === handle.attempt)?.env.JOB_ID;
    await remove(handle);
    const [before, during] = [asked(), isClaiming];
    // The worker reacts within microtasks. Its timers, which also request claims, run later.
    void (async () => {
      for (let i = 0; i < 100; i++) await null;
      ends.set(id, during ? null : asked() - before);
    })();
  });
  await using _worker = await start('one', runner);
  const base = { namespace_id: namespaces[0], cpu: 2, memory_gb: 2 };
  const run = (command: string, gpu = 'none') => insertJob(pool, { ...base, command, gpu });
  const begun = (id: string) =>
    eventually(() => expect(runner.started.map(({ env }) => env.JOB_ID)).toContain(id));
  const askedAtEnd = async (id: string) => {
    await eventually(() => expect(ends.keys().toArray()).toContain(id));
    const { rows } = await pool.query('select completed_at from jobs where id = $1', [id]);
    expect(rows[0].completed_at).not.toBeNull();
    return ends.get(id);
  };
  // If the job ends during a claim, the test tries another job.
  let alone = null;
  while (alone === null) alone = await askedAtEnd(await run('exit 0'));
  expect(alone).toBe(0);

  let held = null;
  while (held === null) {
    // Exits with 0 on SIGTERM. The database sends no notification for that, so only the worker knows of the free capacity.
    const holder = await run('trap 0; sleep 600', 'T4');
    await begun(holder);
    const next = await run('exit 0', 'T4');
    // The only waiting job that could start; the jobs that wait for GPUs do not matter here.
    await askedAtEnd(await run('exit 0'));
    expect(runner.started.map(({ env }) => env.JOB_ID)).not.toContain(next);
    const attempt = runner.running().find(({ env }) => env.JOB_ID === holder)?.id as string;
    await runner.signal({ attempt }, 'TERM');
    held = await askedAtEnd(holder);
    await askedAtEnd(next);
  }
  expect(held).toBeGreaterThan(0);
});

test('an attempt shows its resources, and a small machine runs as many jobs as it has slots', async () => {
  const machine = { id: LOCAL_MACHINE, cpus: 2, memoryBytes: 20 * GIB, gpus: {} };
  const runner = fakeRunner({ machines: [machine], graceMs: 20 });
  await using made = await withWorkers();
  const { pool, namespaces, start } = made;
  await using _worker = await start('small', runner);
  const job = { namespace_id: namespaces[0], command: 'sleep 600' };
  for (let i = 0; i < SLOTS + 2; i++) await insertJob(pool, job);
  await eventually(() => expect(runner.running()).toHaveLength(SLOTS));
  expect(await given(pool)).toEqual(
    Array(SLOTS).fill({ machine: LOCAL_MACHINE, cpus: 2, memory: 20, shared: true }),
  );
  await endAll(pool);
  // The end of a process comes before the end of its attempt in the database.
  await eventually(async () => expect(await given(pool)).toEqual([]));
  expect(runner.running()).toEqual([]);
  // The machine has what these jobs request, but they share it nevertheless.
  for (let i = 0; i < 2; i++) await insertJob(pool, { ...job, cpu: 2, memory_gb: 4 });
  await eventually(() => expect(runner.running()).toHaveLength(2));
  expect(await given(pool)).toEqual(
    Array(2).fill({ machine: LOCAL_MACHINE, cpus: 2, memory: 4, shared: true }),
  );
  await endAll(pool);
});

async function given(pool: pg.Pool) {
  const { rows } = await pool.query(
    `select machine, cpus, (memory_bytes / 1073741824)::int as memory, shared from job_attempts where ended_at is null`,
  );
  return rows;
}

async function endAll(pool: pg.Pool): Promise<void> {
  const { rows } = await pool.query(
    `update jobs set status = 'cancelled', attempt_id = null
     where status in ('queued', 'running') returning id`,
  );
  for (const { id } of rows) await pool.query(`select pg_notify('loam', $1)`, [`job:${id}/status`]);
}

test('a waiting job shows what it waits for, its position and an estimate', async () => {
  const machine = { id: LOCAL_MACHINE, cpus: 16, memoryBytes: 64 * GIB, gpus: {} };
  const runner = fakeRunner({ machines: [machine], graceMs: 20 });
  await using app = await startApp({ config: { jobSlots: 1 }, overrides: { runner } });
  const [ada, bob] = [await app.user('ada'), await app.user('bob')];
  const put = async (client: Client, name: string, more: object = {}) => {
    const path = `/auth/v1/seed/${client === ada ? 'ada' : 'bob'}/jobs`;
    const body = { name, gpu: 'none', image: 'none', command: 'true', ...more };
    const answer = await client.post(path, body);
    expect(answer.status).toBe(201);
    return answer.body;
  };
  const { db } = app.app.services;
  const prepare = runner.prepare;
  runner.prepare = (spec, signal) => prepare({ ...spec, image: null }, signal);
  await put(ada, 'past');
  await eventually(async () =>
    expect(await db.job.count({ where: { status: 'succeeded' } })).toBe(1),
  );
  await put(ada, 'first', { command: 'sleep 600' });
  await eventually(() => expect(runner.running()).toHaveLength(1));
  for (const name of ['a1', 'a2']) await put(ada, name);
  for (const name of ['b1', 'b2']) await put(bob, name, { cpu: 4, memory_gb: 8 });
  await put(bob, 'gpu', { gpu: 'T4', gpu_count: 2 });

  // Bob has no open attempt and comes first: b1, b2 or a1, …
  const query = `{ namespace(name: "ada") { jobs(sort: NAME, order: ASC) { nodes {
    name progress queue { waitsFor offered position estimatedStart } } } } }`;
  const nodes = await eventually(async () => {
    const { nodes } = (await ada.gql(query)).namespace.jobs;
    expect(nodes[1].queue.position).toBe(4);
    expect(nodes[0].queue.estimatedStart).not.toBeNull();
    return nodes;
  });
  expect(nodes[0]).toMatchObject({
    name: 'a1',
    progress: expect.stringMatching(
      /^waiting for 8 vCPUs and 32 GB: 3rd in line, less than a minute$/,
    ),
    queue: { waitsFor: '8 vCPUs and 32 GB', offered: true, position: 3 },
  });
  expect(nodes.find(({ name }: { name: string }) => name === 'first')).toMatchObject({
    progress: 'running',
    queue: null,
  });
  const list = (await bob.get('/bob/jobs?sort=name&order=asc')).body.data;
  expect(list.map(({ progress }: { progress: string }) => progress.slice(0, 41))).toEqual([
    'waiting for 4 vCPUs and 8 GB: 1st in line',
    'waiting for 4 vCPUs and 8 GB: 2nd in line',
    'waiting for 2 × T4 in us-east-1: no worke',
  ]);

  // A hundred requests cost as much as one.
  const { id } = await db.namespace.findUniqueOrThrow({ where: { name: 'bob' } });
  for (let i = 0; i < 97; i++)
    await insertJob(app.pool, { namespace_id: id, command: 'true', cpu: 2, memory_gb: 1 });
  const spy = vi.spyOn(app.app.services.pool, 'query');
  const { data } = (await bob.get('/bob/jobs?per_page=100')).body;
  expect(data).toHaveLength(100);
  const statements = spy.mock.calls.filter(([text]) =>
    /queue_lines|job_attempts|workers|order by id limit/.test(String(text)),
  );
  expect(statements.length).toBeLessThan(8);
});

const without: Machine = {
  id: LOCAL_MACHINE,
  cpus: 64,
  memoryBytes: 512 * GIB,
  gpus: {},
  withImage: false,
};
const small: Machine = { id: LOCAL_MACHINE, cpus: 8, memoryBytes: 32 * GIB, gpus: {} };

test('a job with an image waits for a worker that runs images, and fails at once if there is none', async () => {
  await using made = await withWorkers();
  const { pool, namespaces, services, start } = made;
  const [processes, containers] = [
    fakeRunner({ machines: [without] }),
    fakeRunner({ machines: [small], images: true }),
  ];
  const put = (image: string | null = 'debian:12', more: object = {}) =>
    insertJob(pool, { namespace_id: namespaces[0], command: 'exit 0', image, ...more });
  const ends = (id: string, status: string, exitCode: number) =>
    eventually(async () => {
      const row = { status: true, exitCode: true } as const;
      const found = await services.db.job.findUniqueOrThrow({ where: { id }, select: row });
      expect(found).toEqual({ status, exitCode });
    });
  await using _processes = await start('processes', processes);
  await ends(await put(), 'failed', 125);

  // A new worker is known before a job fails; and a large job is not left to a worker that cannot run it.
  const other = await start('containers', containers);
  const ids = await Promise.all([1, 2, 3, 4, 5].map((i) => put('debian:12', { cpu: i * 8 })));
  for (const id of ids) await ends(id, 'succeeded', 0);
  expect(containers.started.map(({ env }) => env.JOB_ID).sort()).toEqual([...ids].sort());
  await other[Symbol.asyncDispose]();

  // A dead worker that may return.
  await put('debian:12');
  await ends(await put(null, { cpu: 16 }), 'succeeded', 0);
  expect(processes.started).toHaveLength(1);
  await pool.query(
    `update workers set heartbeat_at = now() - interval '2 minutes' where id = 'containers'`,
  );
  const left = await put();
  await ends(await put(null, { cpu: 16 }), 'succeeded', 0);
  await pool.query(`delete from workers where id = 'containers'`);
  await ends(left, 'failed', 125);
});

test('a worker whose engine does not answer still counts as running images', async () => {
  const processes = fakeRunner({ machines: [without], graceMs: 20 });
  const config = { jobSlots: 1 };
  await using app = await startApp({ config, overrides: { runner: processes } });
  const { pool, admin } = app;
  const rows = await pool.query(`select id from namespaces where name = 'admin'`);
  const put = (image: string | null, command: string) =>
    insertJob(pool, { namespace_id: rows.rows[0].id, image, command });
  const progress = async (name: string) => (await job(admin, 'admin', name)).progress;
  const holder = await put(null, 'sleep 600');
  await eventually(() => expect(processes.running()).toHaveLength(1));
  const first = await put('debian:12', 'true');
  await eventually(async () =>
    expect(await progress(first)).toBe(
      'waiting for a server that runs container images: no worker has a container engine',
    ),
  );
  const docker = { ...fakeRunner({ machines: [] }), hasUnavailableEngine: true };
  const offers = JSON.stringify(listAdvertisedMachines(docker, 1));
  await pool.query(`insert into workers (id, runner, machines) values ('other', 'docker', $1)`, [
    offers,
  ]);
  await cancel(admin, 'admin', holder);
  // It is behind the other job, and is next when that job has been skipped.
  await until(admin, 'admin', await put(null, 'true'), 'SUCCEEDED');
  await eventually(async () =>
    expect(await progress(first)).toBe(
      'waiting for a server that runs container images: no container engine answers',
    ),
  );
  // The placeholder has no resources and is not shown as a machine.
  const { servers } = await admin.gql('{ servers { id worker { machines { name } } } }');
  expect(servers.find(({ id }: { id: string }) => id === 'other').worker.machines).toEqual([]);
  await pool.query(`update workers set machines = $1 where id = 'other'`, [
    JSON.stringify([{ ...small, gpus: { T4: 1 } }]),
  ]);
  await eventually(async () =>
    expect(await progress(first)).toMatch(/^waiting for 8 vCPUs and 32 GB: 1st in line/),
  );
});

test('a worker that returns takes no peer for dead during its first minute', async () => {
  await using made = await withWorkers();
  const { pool, services } = made;
  await pool.query(
    `insert into workers (id, runner, machines, heartbeat_at)
     values ('other', 'docker', $1, now() - interval '2 minutes')`,
    [JSON.stringify([small])],
  );
  vi.useFakeTimers({ toFake: ['Date'] });
  try {
    const peers = createPeerWorkers(services, 'own', 10_000);
    for (const seconds of [0, 10, 20, 30, 40, 50]) {
      await peers.refresh();
      expect(runsImages(peers.machines), `after ${seconds} s`).toBe(true);
      vi.advanceTimersByTime(10_000);
    }
    expect(await peers.refresh()).toBe(true);
    expect(peers.machines).toEqual([]);
    // As if the database had been unavailable for all workers.
    vi.advanceTimersByTime(70_000);
    await peers.refresh();
    expect(peers.machines).toMatchObject([{ away: true }]);
  } finally {
    vi.useRealTimers();
  }
});

test('concurrent moves share a transaction; none waits for or fails because of another job', async () => {
  await using made = await withWorkers();
  const { pool, namespaces, services } = made;
  const ids = await Promise.all(
    [0, 1, 2, 0, 1].map((owner) =>
      insertJob(pool, { namespace_id: namespaces[owner], command: 'exit 0' }),
    ),
  );
  const [free, locked, illegal, unmoved, other] = ids as [string, string, string, string, string];
  await pool.query('begin');
  await pool.query('select from jobs where id = $1 for update', [locked]);
  const fail = (id: string) =>
    commitMove(services.pool, id, () => ({
      to: id === illegal ? 'timed_out' : 'failed',
      phase: '',
    }));
  const transaction = async (id: string) => {
    const { rows } = await services.pool.query('select xmin from jobs where id = $1', [id]);
    return rows[0].xmin;
  };

  const waiting = fail(locked);
  let waited = false;
  void waiting.then(() => {
    waited = true;
  });
  const others = await Promise.all([
    fail(free),
    fail(other),
    commitMove(services.pool, unmoved, () => null),
    commitMove(services.pool, 'job_of_nobody', () => ({ to: 'failed', phase: '' })),
  ]);
  expect(others.map((job) => job?.id)).toEqual([free, other, undefined, undefined]);
  expect(await transaction(free)).toBe(await transaction(other));
  expect(waited).toBe(false);
  await pool.query('commit');
  expect((await waiting)?.id).toBe(locked);

  const ends = await Promise.allSettled([fail(illegal), fail(unmoved)]);
  expect(ends.map(({ status }) => status)).toEqual(['rejected', 'fulfilled']);
  const { rows } = await pool.query('select id from jobs where status = $1 order by id', [
    'failed',
  ]);
  expect(rows.map(({ id }) => id)).toEqual([free, locked, unmoved, other].sort());
  expect((await pool.query(MISCOUNTED)).rows).toEqual([]);
});

test('moves that wait for a locked namespace block neither other namespaces nor the holder of the lock', async () => {
  await using made = await withWorkers();
  const { pool, namespaces, services } = made;
  const [locked, other] = namespaces as [string, string];
  const [quiet, loud, elsewhere] = (await Promise.all(
    [
      { namespace_id: locked },
      // The size of its log is added to the namespace at its end.
      { namespace_id: locked, log_bytes: 1_000_000 },
      { namespace_id: other, log_bytes: 1_000_000 },
    ].map((job) => insertJob(pool, { command: 'exit 0', ...job })),
  )) as [string, string, string];
  const ran = { from: new Date(), seconds: 1 };
  const fail = (id: string) =>
    commitMove(services.pool, id, () => ({ to: 'failed', phase: '', ran }));

  await pool.query('begin');
  // Like the trigger that counts the storage.
  await pool.query('select from namespaces where id = $1 for no key update', [locked]);
  const moves = [quiet, loud, elsewhere].map(fail);
  const [first, , third] = moves;
  expect((await third)?.id).toBe(elsewhere);
  expect((await first)?.id).toBe(quiet);
  const waiting = `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;
  await eventually(async () => expect((await services.pool.query(waiting)).rowCount).toBe(1));
  // Like a cancellation of another job; otherwise the cancellation or the move would fail.
  await pool.query(`set local lock_timeout = '500ms'`);
  await pool.query('update usage_days set seconds = seconds where namespace_id = $1', [locked]);
  await pool.query('commit');
  expect((await Promise.all(moves)).map((job) => job?.id)).toEqual([quiet, loud, elsewhere]);
  const { rows } = await pool.query(
    'select namespace_id, seconds::int, jobs from usage_days order by jobs desc',
  );
  expect(rows).toEqual([
    { namespace_id: locked, seconds: 2, jobs: 2 },
    { namespace_id: other, seconds: 1, jobs: 1 },
  ]);
});
