/** Lists the servers with their workers, and the pools of the queue, for the operator. */
import type pg from 'pg';
import type { Config } from '../../base/config/config.ts';
import { NO_GPU } from '../../base/hardware.ts';
import type { Urls } from '../../base/urls.ts';
import type { Cluster } from '../../cluster/cluster.ts';
import { DEAD_AFTER_S } from '../../cluster/members.ts';
import { demandOperator, type Viewer } from '../../identity/permissions.ts';
import { inPoolTransaction } from '../../platform/database/client.ts';
import {
  readLiveMachines,
  servesRegion,
  WORKER_SILENCE_S,
  type WorkerCapacity,
} from './worker-capacity.ts';

export type ServerState = {
  id: string;
  role: string;
  url: string | null;
  heartbeatAt: Date;
  isAlive: boolean;
  isCurrent: boolean;
  /** Null if the process runs no jobs. */
  worker: WorkerState | null;
};

export type WorkerState = {
  runner: string;
  heartbeatAt: Date;
  isAlive: boolean;
  jobCount: number;
  machines: MachineState[];
};

/** `jobCount`, `usedCpus` and `usedMemoryBytes` are sums over the open attempts on the machine. */
export type MachineState = WorkerCapacity & {
  jobCount: number;
  usedCpus: number;
  usedMemoryBytes: number;
};

type ServerRow = {
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

type UsedCapacity = {
  worker_id: string;
  machine: string;
  jobs: number;
  cpus: number;
  memory: string;
};

/** Includes dead servers and workers until maintenance removes their rows, after a week. */
const SERVERS = `
  select coalesce(s.id, w.id) as id, s.role, s.url, s.heartbeat_at,
    s.heartbeat_at > now() - make_interval(secs => ${DEAD_AFTER_S}) as alive,
    w.runner, w.machines, w.heartbeat_at as worker_heartbeat_at,
    w.heartbeat_at > now() - make_interval(secs => ${WORKER_SILENCE_S}) as worker_alive
  from servers s full join workers w on w.id = s.id
  order by 1`;

const USED_CAPACITY = `
  select worker_id, machine, count(*)::int as jobs, coalesce(sum(cpus), 0)::int as cpus,
    coalesce(sum(memory_bytes), 0)::text as memory
  from job_attempts where ended_at is null group by 1, 2`;

/** Lists the processes of Loam on this database: this process first, then the others by id. @throws AppError 401, 403 */
export async function listServers(
  { pool, cluster, config, urls }: { pool: pg.Pool; cluster: Cluster; config: Config; urls: Urls },
  viewer: Viewer,
): Promise<ServerState[]> {
  demandOperator(viewer);
  const [{ rows }, { rows: used }] = await Promise.all([
    pool.query<ServerRow>(SERVERS),
    pool.query<UsedCapacity>(USED_CAPACITY),
  ]);
  const ownId = cluster.members.id;
  const others = rows.filter(({ id }) => id !== ownId);
  const own = rows.find(({ id }) => id === ownId);
  // With an embedded database, servers write no heartbeat; but this process is certainly alive.
  const current: ServerState = {
    id: ownId,
    role: config.role,
    url: own?.url ?? urls.base,
    heartbeatAt: own?.heartbeat_at ?? new Date(),
    isAlive: true,
    isCurrent: true,
    worker: own ? toWorkerState(own, used) : null,
  };
  return [
    current,
    ...others.map((row) => ({
      id: row.id,
      // A worker without a server row belonged to the only process of an embedded database, which writes no heartbeat.
      role: row.role ?? 'all',
      url: row.url,
      // Each row has a server or a worker.
      heartbeatAt: row.heartbeat_at ?? (row.worker_heartbeat_at as Date),
      isAlive: row.alive ?? false,
      isCurrent: false,
      worker: toWorkerState(row, used),
    })),
  ];
}

function toWorkerState(row: ServerRow, used: readonly UsedCapacity[]): WorkerState | null {
  if (row.runner === null || row.worker_heartbeat_at === null) return null;
  const ownUse = used.filter(({ worker_id }) => worker_id === row.id);
  return {
    runner: row.runner,
    heartbeatAt: row.worker_heartbeat_at,
    isAlive: row.worker_alive ?? false,
    jobCount: ownUse.reduce((sum, { jobs }) => sum + jobs, 0),
    machines: (row.machines ?? []).flatMap((machine) => {
      // A placeholder for container engines.
      if (machine.away && machine.unavailableReason === undefined) return [];
      const inUse = ownUse.find((use) => use.machine === machine.id);
      return {
        ...machine,
        jobCount: inUse?.jobs ?? 0,
        usedCpus: inUse?.cpus ?? 0,
        usedMemoryBytes: Number(inUse?.memory ?? 0),
      };
    }),
  };
}

export type QueuePoolState = {
  gpu: string;
  region: string;
  waiting: number;
  /** Null if no job waits. */
  oldestWaitSeconds: number | null;
  /** Number of jobs with an open attempt, which runs, is being prepared, or waits in a cluster. */
  running: number;
  /**
   * GPUs of this model on all machines of live workers that serve the region, and of a cluster the most that one job may
   * request; null for `none`.
   */
  gpusOffered: number | null;
};

const RUNNING = `
  select j.gpu, j.region, count(*)::int as jobs
  from job_attempts a join jobs j on j.id = a.job_id where a.ended_at is null group by 1, 2`;

/** Lists the pools with waiting or running jobs, by GPU model and region. @throws AppError 401, 403 */
export async function listPools(
  services: { pool: pg.Pool },
  viewer: Viewer,
): Promise<QueuePoolState[]> {
  demandOperator(viewer);
  const [waiting, { rows: running }, machines] = await Promise.all([
    countWaitingJobs(services),
    services.pool.query<{ gpu: string; region: string; jobs: number }>(RUNNING),
    readLiveMachines(services),
  ]);
  const pools = new Map(
    [...waiting, ...running].map(({ gpu, region }) => [`${gpu} ${region}`, { gpu, region }]),
  );
  const states = [...pools.values()].map((pool): QueuePoolState => {
    const { gpu, region } = pool;
    const isPool = (row: { gpu: string; region: string }) =>
      row.gpu === gpu && row.region === region;
    const waits = waiting.find(isPool);
    const offering = machines.filter((machine) => servesRegion(machine, pool));
    return {
      gpu,
      region,
      waiting: waits?.jobs ?? 0,
      oldestWaitSeconds: waits?.oldest ?? null,
      running: running.find(isPool)?.jobs ?? 0,
      gpusOffered:
        gpu === NO_GPU ? null : offering.reduce((sum, { gpus }) => sum + (gpus[gpu] ?? 0), 0),
    };
  });
  const keyOf = ({ gpu, region }: QueuePoolState) => `${gpu === NO_GPU ? 1 : 0} ${gpu} ${region}`;
  return states.sort((a, b) => (keyOf(a) < keyOf(b) ? -1 : 1));
}

/** Maximum number of jobs that are counted in a pool, so that the query takes milliseconds whatever the length of the queue. */
const MAX_COUNTED_JOBS = 10_000;

type WaitingPool = { gpu: string; region: string; jobs: number; oldest: number };

/**
 * Counts the waiting jobs of each pool, up to `MAX_COUNTED_JOBS`, and the longest wait in seconds among the counted jobs. It
 * scans the index `jobs_waiting` by pool, which takes 10 ms for 10,000 jobs. If most jobs of the table wait, PostgreSQL would
 * choose to read the whole table for each pool (120 ms), so sequential and bitmap scans are disabled.
 */
export function countWaitingJobs({ pool }: { pool: pg.Pool }): Promise<WaitingPool[]> {
  return inPoolTransaction(pool, async (client) => {
    await client.query('set local enable_seqscan = off; set local enable_bitmapscan = off');
    const { rows } = await client.query<WaitingPool>(COUNT_WAITING, [MAX_COUNTED_JOBS]);
    return rows;
  });
}

/** `pools` finds each pool by one step in the index. */
const COUNT_WAITING = `
  with recursive pools as (
    (select gpu, region from jobs where status = 'queued' and not blocked order by gpu, region limit 1)
    union all
    select next.* from pools cross join lateral (
      select gpu, region from jobs
      where (jobs.gpu, jobs.region) > (pools.gpu, pools.region) and status = 'queued' and not blocked
      order by gpu, region limit 1
    ) next
  )
  select gpu, region, jobs::int, greatest(0, extract(epoch from now() - since))::float8 as oldest
  from pools cross join lateral (
    select count(*) as jobs, min(available_at) as since from (
      select available_at from jobs
      where jobs.gpu = pools.gpu and jobs.region = pools.region
        and status = 'queued' and not blocked and attempt_id is null
      limit $1
    ) counted
  ) each
  where jobs > 0`;
