/** What runs and what waits on all servers, for the operator. */
import type pg from 'pg';
import type { Config } from '../base/config/config.ts';
import { GPUS, type Gpu, REGIONS, type Region } from '../base/hardware.ts';
import type { Urls } from '../base/urls.ts';
import type { Cluster } from '../cluster/cluster.ts';
import { SILENCE_S } from '../cluster/members.ts';
import { demandOperator, type Viewer } from '../identity/permissions.ts';
import { inPoolTransaction } from '../platform/database/client.ts';
import type { Machine } from '../runners/runner.ts';
import { readLiveMachines, WORKER_SILENCE_S, type WorkerCapacity } from './worker-capacity.ts';

export type ServerState = {
  id: string;
  role: string;
  url: string | null;
  heartbeatAt: Date;
  alive: boolean;
  current: boolean;
  /** Of a process that runs jobs. */
  worker: WorkerState | null;
};

export type WorkerState = {
  runner: string;
  heartbeatAt: Date;
  alive: boolean;
  jobs: number;
  machines: MachineState[];
};

/** `jobs`, `usedCpus` and `usedMemoryBytes`: of what it runs now. */
export type MachineState = Machine & { jobs: number; usedCpus: number; usedMemoryBytes: number };

type Row = {
  id: string;
  role: string | null;
  url: string | null;
  heartbeat_at: Date | null;
  alive: boolean | null;
  runner: string | null;
  machines: WorkerCapacity[] | null;
  worker_heartbeat_at: Date | null;
  worker_alive: boolean | null;
};

type UsedCapacity = { worker_id: string; machine: string; jobs: number; cpus: number; memory: string };

/** Those that are gone stand here for a week. */
const SERVERS = `
  select coalesce(s.id, w.id) as id, s.role, s.url, s.heartbeat_at,
    s.heartbeat_at > now() - make_interval(secs => ${SILENCE_S}) as alive,
    w.runner, w.machines, w.heartbeat_at as worker_heartbeat_at,
    w.heartbeat_at > now() - make_interval(secs => ${WORKER_SILENCE_S}) as worker_alive
  from servers s full join workers w on w.id = s.id
  order by 1`;

const USED_CAPACITY = `
  select worker_id, machine, count(*)::int as jobs, coalesce(sum(cpus), 0)::int as cpus,
    coalesce(sum(memory_bytes), 0)::text as memory
  from job_attempts where ended_at is null group by 1, 2`;

/** The processes of Loam on this database, by id. @throws AppError 401, 403 */
export async function listServers(
  { pool, cluster, config, urls }: { pool: pg.Pool; cluster: Cluster; config: Config; urls: Urls },
  viewer: Viewer,
): Promise<ServerState[]> {
  demandOperator(viewer);
  const [{ rows }, { rows: used }] = await Promise.all([
    pool.query<Row>(SERVERS),
    pool.query<UsedCapacity>(USED_CAPACITY),
  ]);
  const ownId = cluster.members.id;
  const others = rows.filter(({ id }) => id !== ownId);
  const own = rows.find(({ id }) => id === ownId);
  // It answers, and on its embedded database it writes no heartbeat.
  const current: ServerState = {
    id: ownId,
    role: config.role,
    url: own?.url ?? urls.base,
    heartbeatAt: own?.heartbeat_at ?? new Date(),
    alive: true,
    current: true,
    worker: own ? workerOf(own, used) : null,
  };
  return [
    current,
    ...others.map((row) => ({
      id: row.id,
      // A worker whose server wrote no heartbeat was alone on the database.
      role: row.role ?? 'all',
      url: row.url,
      heartbeatAt: row.heartbeat_at ?? (row.worker_heartbeat_at as Date),
      alive: row.alive ?? false,
      current: false,
      worker: workerOf(row, used),
    })),
  ];
}

function workerOf(row: Row, used: readonly UsedCapacity[]): WorkerState | null {
  if (row.runner === null || row.worker_heartbeat_at === null) return null;
  const own = used.filter(({ worker_id }) => worker_id === row.id);
  return {
    runner: row.runner,
    heartbeatAt: row.worker_heartbeat_at,
    alive: row.worker_alive ?? false,
    jobs: own.reduce((sum, { jobs }) => sum + jobs, 0),
    machines: (row.machines ?? []).flatMap((machine) => {
      if (machine.away) return [];
      const there = own.find((one) => one.machine === machine.id);
      return {
        ...machine,
        jobs: there?.jobs ?? 0,
        usedCpus: there?.cpus ?? 0,
        usedMemoryBytes: Number(there?.memory ?? 0),
      };
    }),
  };
}

export type PoolState = {
  gpu: Gpu;
  region: Region;
  waiting: number;
  /** Seconds; null where none waits. */
  oldestWait: number | null;
  running: number;
  /** GPUs of this model on all machines that are there; null where none is asked for. */
  gpusOffered: number | null;
};

const RUNNING = `
  select j.gpu, j.region, count(*)::int as jobs
  from job_attempts a join jobs j on j.id = a.job_id where a.ended_at is null group by 1, 2`;

/** The pools where jobs wait or run, in the order of the contract. @throws AppError 401, 403 */
export async function listPools(services: { pool: pg.Pool }, viewer: Viewer): Promise<PoolState[]> {
  demandOperator(viewer);
  const [waiting, { rows: running }, machines] = await Promise.all([
    waitingJobs(services),
    services.pool.query<{ gpu: string; region: string; jobs: number }>(RUNNING),
    readLiveMachines(services),
  ]);
  const keys = new Set([...waiting, ...running].map(({ gpu, region }) => `${gpu} ${region}`));
  const states = [...keys].map((key): PoolState => {
    const [gpu, region] = key.split(' ') as [Gpu, Region];
    const isThis = (one: { gpu: string; region: string }) =>
      one.gpu === gpu && one.region === region;
    const waits = waiting.find(isThis);
    return {
      ...{ gpu, region },
      waiting: waits?.jobs ?? 0,
      oldestWait: waits?.oldest ?? null,
      running: running.find(isThis)?.jobs ?? 0,
      gpusOffered:
        gpu === 'none' ? null : machines.reduce((sum, { gpus }) => sum + (gpus[gpu] ?? 0), 0),
    };
  });
  const place = ({ gpu, region }: PoolState) => `${GPUS.indexOf(gpu)} ${region}`;
  return states.sort((a, b) => (place(a) < place(b) ? -1 : 1));
}

/* How much waits in the pools. */

/** Of a pool no more are counted: a look at all pools is to cost milliseconds, whatever waits in them. */
const MAX_COUNTED = 10_000;

type WaitingPool = { gpu: string; region: string; jobs: number; oldest: number };

/**
 * The pools in which jobs wait, how many (10,000 at most), and for how many seconds the first of those that were
 * counted has waited. It walks `jobs_waiting`, pool by pool: 10,000 jobs in 10 ms. Where most jobs of the table wait,
 * PostgreSQL would rather read all of it for each pool (120 ms), and so is told not to.
 */
export function waitingJobs({ pool }: { pool: pg.Pool }): Promise<WaitingPool[]> {
  return inPoolTransaction(pool, async (client) => {
    await client.query('set local enable_seqscan = off; set local enable_bitmapscan = off');
    const { rows } = await client.query<WaitingPool>(COUNT_WAITING, [GPUS, REGIONS, MAX_COUNTED]);
    return rows;
  });
}

const COUNT_WAITING = `
  select gpu, region, jobs::int, greatest(0, extract(epoch from now() - since))::float8 as oldest
  from unnest($1::text[]) as gpus (gpu) cross join unnest($2::text[]) as regions (region)
  cross join lateral (
    select count(*) as jobs, min(available_at) as since from (
      select available_at from jobs
      where jobs.gpu = gpus.gpu and jobs.region = regions.region
        and status = 'queued' and attempt_id is null
      limit $3
    ) counted
  ) each
  where jobs > 0`;
